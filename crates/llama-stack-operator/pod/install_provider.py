"""Installs the wheels of one provider image into the volume that the Llama Stack server gets them from.

Runs as an init container in the provider's own image, with nothing but that image's Python and pip.
Whatever could go wrong is found before anything changes in the volume, so that a container that is tried again meets
what it met before.

  environment                  default                               what
  LLS_CRD_CONFIG               (required)                            base64 of what becomes crd-config.yaml, as JSON
  LLS_PROVIDER_DIR             /lls-provider                         the provider's files in this image
  LLS_EXTERNAL_PROVIDERS       /opt/llama-stack/external-providers   the volume
  LLS_PROVIDER_CACHE           (unset)                               unpacked packages of earlier pods
  LLS_TERMINATION_LOG          /dev/termination-log                  where the kubelet looks for the reason

Exit code 0: installed. 1: not, and why is told.
"""

import base64
import errno
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from urllib.parse import unquote

# The distribution has these; a provider names them to say what it was made for. `pip check` judges that in preflight.
SERVER = {"llama-stack", "llama-stack-api", "llama-stack-client", "ogx", "ogx-api", "ogx-client"}
# Folders beside a package in a source tree, which wheels contain when they are built without a list of packages.
BESIDE_PACKAGES = {"test", "tests", "testing", "doc", "docs", "example", "examples", "benchmark", "benchmarks"}
METADATA_LIMIT = 64 * 1024
# Metadata of a wheel is mostly its description.
WHEEL_METADATA_LIMIT = 4 * 1024 * 1024
MESSAGE_LIMIT = 4096
# Name, version, perhaps a build number, then the tags (PyPA, binary distribution format).
WHEEL_NAME = re.compile(r"[A-Za-z0-9][\w.]*-[\w.!+]+(-\d[\w.]*)?(-[\w.]+){3}\.whl\Z", re.ASCII)


class Failure(Exception):
    """Something that the user can mend: a title, what happened, and the way out."""

    def __init__(self, title, body, resolution):
        super().__init__(title)
        self.title, self.body, self.resolution = title, body, resolution


class Provider:
    """What the custom resource says, and where things are."""

    def __init__(self, environment):
        config = json.loads(base64.b64decode(environment["LLS_CRD_CONFIG"]))
        self.config = config
        self.id = config["providerId"]
        self.image = config.get("image", "(unknown)")
        self.container = config.get("initContainerName", "(unknown)")
        source = environment.get("LLS_PROVIDER_DIR", "/lls-provider")
        volume = environment.get("LLS_EXTERNAL_PROVIDERS", "/opt/llama-stack/external-providers")
        self.source = source
        self.cache = environment.get("LLS_PROVIDER_CACHE")
        self.spec = os.path.join(source, "lls-provider-spec.yaml")
        self.packages = os.path.join(source, "packages")
        self.volume = volume
        self.target = os.path.join(volume, "python-packages")
        self.metadata = os.path.join(volume, "metadata", self.id)
        self.manifest = os.path.join(volume, "installed-packages.txt")
        if not re.match(r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?\Z", self.id):
            raise Failure(
                f"Provider ID '{self.id}' is not valid",
                "Reason: it may have lower-case letters, digits and '-', and begins and ends with a letter or digit.",
                "Correct providerId in the LLSD spec.",
            )


def install(provider):
    """The story: look, resolve, stage, compare; then change the volume."""
    require_python_and_pip(provider)
    spec = read_spec(provider)
    wheels = find_wheels(provider)
    main = main_wheel(provider, spec, wheels)
    work = workspace(provider)
    try:
        present = installed(provider.target)
        entry = cache_entry(provider, main, wheels, present)
        chosen, staged = read_cache(entry) or (None, None)
        if chosen is None:
            chosen = resolve(provider, work, main, wheels, present)
            new = {name: path for name, (version, path) in chosen.items() if name not in present}
            staged = stage(provider, work, new)
            write_cache(entry, chosen, staged)
        refuse_clashes(provider, staged, present)
        move_in(staged, provider.target)
        write_manifest(provider, chosen)
        write_metadata(provider)
    finally:
        shutil.rmtree(work, ignore_errors=True)
    for name, (version, _) in sorted(chosen.items()):
        print(f"{name}=={version}" + (" (installed before)" if name in present else ""))
    print(f"Provider '{provider.id}' is installed")


# --- what the image must have ---


def require_python_and_pip(provider):
    running = ".".join(str(part) for part in sys.version_info[:3])
    if sys.version_info < (3, 9):
        raise Failure(
            f"Cannot install provider '{provider.id}': Python {running} is too old",
            f"Reason: image {provider.image} has Python {running}; 3.9 or newer is needed.",
            "Build the provider image with a newer Python, best the one that the distribution has.",
        )
    try:
        import pip
    except ImportError:
        raise Failure(
            f"Cannot install provider '{provider.id}': its image has no pip",
            f"Reason: Python {running} ({sys.executable}) in image {provider.image} cannot import pip.",
            "Add pip to the provider image: use a base image such as python:3.12-slim, or run `python3 -m ensurepip`.",
        ) from None
    version = tuple(int(part) for part in re.findall(r"\d+", pip.__version__)[:2])
    if version < (22, 2):
        raise Failure(
            f"Cannot install provider '{provider.id}': pip {pip.__version__} is too old",
            f"Reason: image {provider.image} has pip {pip.__version__}; 22.2 or newer is needed.",
            "Run `python3 -m pip install --upgrade pip` when the provider image is built.",
        )


def read_spec(provider):
    if not os.path.isfile(provider.spec):
        raise missing(provider, "/lls-provider/lls-provider-spec.yaml")
    size = os.path.getsize(provider.spec)
    if size > METADATA_LIMIT:
        raise bad_spec(provider, None, f"the file has {size} bytes; at most {METADATA_LIMIT} are read")
    with open(provider.spec, "rb") as file:
        content = file.read()
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise bad_spec(provider, None, f"the file is not UTF-8 text: byte {error.start} does not belong there") from None
    line, reason = yaml_error(text)
    if reason:
        raise bad_spec(provider, line, f"YAML parse error: {reason}")
    return text


def missing(provider, what):
    return Failure(
        f"Missing {what} in image {provider.image}",
        f"Reason: {what} is not there.",
        "Add it to the provider image (see 'Making a provider image' in the documentation), and refer to the new image.",
    )


def bad_spec(provider, line, reason):
    place = "" if line is None else f", line {line}"
    return Failure(
        f"Invalid provider metadata of '{provider.id}'",
        f"File: /lls-provider/lls-provider-spec.yaml{place}\nReason: {reason}",
        "Correct lls-provider-spec.yaml, build the provider image again, and refer to the new image.",
    )


class YamlError(Exception):
    """What is certainly not YAML: the line and the reason."""


class Unclear(Exception):
    """A form of YAML that is not read here, and its line."""


def yaml_error(text):
    """The first certain error of a YAML text, as (line, reason); merge-config reads the file strictly."""
    try:
        for _ in yaml_entries(text):
            pass
    except YamlError as error:
        return error.args
    except Unclear:
        pass
    return None, None


def yaml_entries(text):
    """The entries of a YAML text in block style, as (line, keys from the root, value as it is written). Python has no YAML
    parser. What else YAML can be is Unclear."""
    columns, keys, text_below, closing, opened, pending = [0], [None], None, None, None, None
    for number, line in enumerate(text.splitlines(), 1):
        content = line.strip()
        indent = len(line) - len(line.lstrip(" "))
        if closing is not None:
            pending[2] += " " + content
            if closing in content:
                closing = None
                yield tuple(pending)
            continue
        if not content or content.startswith("#") or content in ("---", "..."):
            continue
        if text_below is not None and indent > text_below:
            continue
        text_below = None
        if content[0] in "[{&*!%?":
            raise Unclear(number)
        if line[indent] == "\t":
            raise YamlError(number, "a tab cannot indent")
        entry = re.match(r"""((?:- +)*)("[^"\\]*"|'[^']*'|[^\s:#"'-][^:#]*?) *:(?: +(.*)|)\Z""", content)
        if entry is None:
            if indent == 0 and not content.startswith("-") and content[0] not in "\"'":
                raise YamlError(number, "expected 'key: value'")
            continue
        column = indent + len(entry.group(1))
        dedented = column < columns[-1]
        while column < columns[-1]:
            columns.pop()
            keys.pop()
        if column > columns[-1]:
            if dedented:
                raise YamlError(number, "this indent fits nothing above")
            columns.append(column)
            keys.append(None)
        key = entry.group(2)
        keys[-1] = key[1:-1] if key[0] in "\"'" else key
        value = (entry.group(3) or "").strip()
        quoted = re.match(r"""("(?:[^"\\]|\\.)*"|'(?:[^']|'')*')(?: +#.*)?\Z""", value)
        if quoted:
            value = quoted.group(1)
        elif value[:1] not in ('"', "'"):
            value = "" if value.startswith("#") else value.split(" #")[0].strip()
        pending = [number, tuple(keys), value]
        if value[:1] in ("|", ">"):
            text_below = indent
        elif value[:1] in ('"', "'"):
            if not quoted and value.count(value[0]) == 1:
                closing, opened = value[0], number
        elif value[:1] in ("[", "{"):
            pair = {"[": "]", "{": "}"}[value[0]]
            if pair not in value:
                closing, opened = pair, number
        elif ": " in value:
            raise YamlError(number, "a second ': ' in one line; put the text in quotes")
        if closing is None:
            yield tuple(pending)
    if closing is not None:
        raise YamlError(opened, f"what begins here is never closed by {closing}")


def wheel_path(provider, text):
    """The line and the value of spec.wheelPath, never of a comment or another key."""
    how = "write it as `wheelPath: /lls-provider/packages/FILE.whl` on a line of its own below `spec:`"
    found, unclear = [], None
    try:
        document = json.loads(text)
        if isinstance(document, dict) and isinstance(document.get("spec"), dict):
            found = [(None, json.dumps(document["spec"].get("wheelPath")))]
    except ValueError:
        try:
            for line, keys, value in yaml_entries(text):
                if keys == ("spec", "wheelPath"):
                    found.append((line, value))
                elif keys == ("spec",) and value:
                    found += [(line, path) for path in in_flow(value)] or [(line, value)]
        except Unclear as error:
            unclear = error.args[0]
    if len(found) > 1:
        raise bad_spec(provider, found[1][0], f"spec.wheelPath is there twice, first in line {found[0][0]}")
    line, value = found[0] if found else (unclear, "")
    if value in ("", "~", "null", '""', "''"):
        seen = "is missing" if unclear is None or found else "is not found, and from this line on the file is not read here"
        raise bad_spec(provider, line, f"spec.wheelPath {seen}: {how}")
    quoted = re.match(r"""(["'])([^"'\\]*)\1\Z""", value)
    if not quoted and value[0] in "\"'[{|>&*!":
        raise bad_spec(provider, line, f"spec.wheelPath is {value[:80]}, which is not read here: {how}")
    return line, quoted.group(2) if quoted else value


def in_flow(value):
    """Values of wheelPath in a mapping such as `{api: inference, wheelPath: FILE.whl}`."""
    if value[0] != "{" or "#" in value:
        return []
    return re.findall(r"""[{,]\s*["']?wheelPath["']?\s*:\s*("[^"\\]*"|'[^']*'|[^\s,{}\[\]"']+)\s*(?=[,}])""", value)


# --- the wheels ---


class Wheel:
    def __init__(self, path):
        self.path = path
        self.name = canonical(os.path.basename(path).split("-")[0])


def canonical(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def find_wheels(provider):
    if not os.path.isdir(provider.packages):
        raise missing(provider, "/lls-provider/packages/ directory")
    names = sorted(name for name in os.listdir(provider.packages) if name.endswith(".whl"))
    for name in names:
        # A link to a file is one, a device or a pipe is not: reading it might never end.
        if not os.path.isfile(os.path.join(provider.packages, name)):
            raise wheel_failure(provider, f"{ascii(name)} in /lls-provider/packages/ is not a file")
        if not WHEEL_NAME.match(name):
            raise wheel_failure(provider, f"{ascii(name)} is not the name of a wheel: NAME-VERSION-PYTHON-ABI-PLATFORM.whl")
    if not names:
        raise Failure(
            f"No wheels in /lls-provider/packages/ in image {provider.image}",
            "Reason: the directory has no file that ends with .whl.",
            "Put the provider's wheel and those of all its dependencies there: "
            "`pip wheel --wheel-dir /lls-provider/packages .` when the image is built.",
        )
    return [Wheel(os.path.join(provider.packages, name)) for name in names]


def main_wheel(provider, spec, wheels):
    line, stated = wheel_path(provider, spec)
    path = stated
    if path.startswith("/lls-provider/"):
        path = path[len("/lls-provider/") :]
    path = os.path.join(provider.source, path)
    if os.path.isfile(path):
        if not WHEEL_NAME.match(os.path.basename(path)):
            raise bad_spec(provider, line, f"spec.wheelPath '{stated}' is not the name of a wheel")
        return Wheel(path)
    present = ", ".join(os.path.basename(wheel.path) for wheel in wheels)
    raise bad_spec(provider, line, f"spec.wheelPath '{stated}' is not a file in image {provider.image}; there is: {present}")


def requirements_of(metadata, keep):
    """The metadata of a distribution, with only those requirements whose names are to be kept."""
    lines, kept = [], True
    head, separator, description = metadata.replace("\r\n", "\n").partition("\n\n")
    for line in head.split("\n"):
        if not line.startswith((" ", "\t")):
            required = re.match(r"Requires-Dist:\s*([A-Za-z0-9._-]+)", line)
            kept = required is None or keep(canonical(required.group(1)))
        if kept:
            lines.append(line)
    return "\n".join(lines) + "\n\n"


def write_stand_in(folder, filename, distinfo, metadata):
    """A wheel with metadata and nothing else: all that pip needs to resolve."""
    wheel = "Wheel-Version: 1.0\nGenerator: lls\nRoot-Is-Purelib: true\n"
    tags = filename[: -len(".whl")].split("-")[-3:]
    for python in tags[0].split("."):
        for abi in tags[1].split("."):
            for platform in tags[2].split("."):
                wheel += f"Tag: {python}-{abi}-{platform}\n"
    with zipfile.ZipFile(os.path.join(folder, filename), "w") as archive:
        archive.writestr(f"{distinfo}/METADATA", metadata)
        archive.writestr(f"{distinfo}/WHEEL", wheel)
        archive.writestr(f"{distinfo}/RECORD", "")


def installed(target):
    """What earlier providers put into the volume, by name."""
    from importlib import metadata

    found = {}
    if os.path.isdir(target):
        for distribution in metadata.distributions(path=[target]):
            name = distribution.metadata["Name"]
            if name:
                found[canonical(name)] = distribution
    return found


def resolve(provider, work, main, wheels, present):
    """Chooses one version of everything, as {name: (version, path)}; what is installed already stays as it is.

    pip sees stand-ins only: of what is installed, pinned by a constraint, and of the wheels of this image. So the
    requirements of earlier providers take part, and nothing is unpacked.
    """
    bundled = {wheel.name for wheel in wheels} | {main.name}
    bundles_server = bool(bundled & SERVER)
    relevant = lambda name: name not in SERVER and (name in bundled or name in present)
    stand_ins = os.path.join(work, "stand-ins")
    os.mkdir(stand_ins)
    files = {}
    for name, distribution in present.items():
        base = f"{name.replace('-', '_')}-{distribution.version}"
        text = distribution.read_text("METADATA") or f"Metadata-Version: 2.1\nName: {name}\nVersion: {distribution.version}\n"
        # A requirement that is not there was not needed where it was installed; another Python may judge otherwise.
        write_stand_in(stand_ins, f"{base}-py3-none-any.whl", f"{base}.dist-info", requirements_of(text, relevant))
    for wheel in wheels + [main]:
        filename = os.path.basename(wheel.path)
        if wheel.name in SERVER:
            print(f"WARNING: {filename} is not installed: the distribution brings its own")
            continue
        distinfo, text = read_metadata(provider, wheel)
        write_stand_in(stand_ins, filename, distinfo, requirements_of(text, lambda name: name not in SERVER))
        files[filename] = wheel.path
    constraints = os.path.join(work, "constraints.txt")
    with open(constraints, "w", encoding="utf-8") as file:
        file.writelines(f"{name}=={distribution.version}\n" for name, distribution in sorted(present.items()))
    # With the server come its hundred dependencies, which the distribution has too: then only what is required is.
    others = [] if bundles_server else sorted(bundled - {main.name})
    report = os.path.join(work, "report.json")
    arguments = ["--dry-run", "--ignore-installed", "--report", report, "--find-links", stand_ins]
    arguments += ["--constraint", constraints, os.path.join(stand_ins, os.path.basename(main.path))]
    status, output = pip(work, arguments + others + sorted(set(present) - {main.name} - set(others)))
    if status != 0:
        raise pip_failure(provider, output)
    chosen = {}
    with open(report, encoding="utf-8") as file:
        for item in json.load(file)["install"]:
            name = canonical(item["metadata"]["name"])
            filename = os.path.basename(unquote(item["download_info"]["url"]))
            path = files.get(filename)
            if path is not None or name in bundled:
                chosen[name] = (item["metadata"]["version"], path)
    return chosen


def read_metadata(provider, wheel):
    filename = os.path.basename(wheel.path)
    try:
        with zipfile.ZipFile(wheel.path) as archive:
            names = [name for name in archive.namelist() if re.match(r"^[^/]+\.dist-info/METADATA\Z", name)]
            if len(names) == 1 and archive.getinfo(names[0]).file_size > WHEEL_METADATA_LIMIT:
                reason = f"its METADATA has more than {WHEEL_METADATA_LIMIT} bytes"
            elif len(names) == 1:
                return names[0].split("/")[0], archive.read(names[0]).decode("utf-8", "replace")
            else:
                reason = "it has no METADATA" if not names else "it has METADATA of several packages"
    except Exception as error:
        # zipfile raises errors of many modules, such as zlib.error, for what is not a wheel.
        reason = str(error) or type(error).__name__
    raise wheel_failure(provider, f"{filename} is not a wheel: {reason}")


def pip(work, arguments):
    """Runs `pip install`, without network, cache, or the image's own settings."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PIP_")}
    environment.update(HOME=work, TMPDIR=work, PIP_CONFIG_FILE=os.devnull, PYTHONIOENCODING="utf-8")
    environment.pop("PYTHONPATH", None)
    command = [sys.executable, "-m", "pip", "install", "--isolated", "--no-index", "--only-binary", ":all:"]
    command += ["--no-cache-dir", "--disable-pip-version-check", "--no-input", "--no-color", "--progress-bar", "off"]
    done = subprocess.run(
        # The home folder is not used either, and pip does not mention it.
        command + ["--no-user", "--root-user-action", "ignore"] + arguments,
        cwd=work,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    return done.returncode, done.stdout.decode("utf-8", "replace").strip()


def pip_failure(provider, output):
    """The way out depends on what pip says."""
    output = clean(output)
    if "No space left on device" in output or "Disk quota exceeded" in output:
        return volume_failure(provider, errno.ENOSPC, output.splitlines()[-1])
    if "ResolutionImpossible" in output or "The conflict is caused by" in output:
        return Failure(
            f"Cannot install provider '{provider.id}' due to dependency conflict",
            f"Pip installation failed with:\n{output}\n\nPreviously installed packages can be found in: "
            "/opt/llama-stack/external-providers/installed-packages.txt",
            "Update provider images to use compatible dependency versions, or reorder providers in the CRD if one "
            "provider's dependencies are a superset of another's.",
        )
    if "No matching distribution found for" in output:
        return Failure(
            f"Cannot install provider '{provider.id}': a dependency is not in its image",
            f"Pip installation failed with:\n{output}",
            f"Add a wheel of it for {this_platform()} to /lls-provider/packages/ of the provider image; nothing is "
            "downloaded at deploy time.",
        )
    return wheel_failure(provider, output)


def wheel_failure(provider, output):
    return Failure(
        f"Cannot install provider '{provider.id}': pip failed",
        f"Pip installation failed with:\n{output}",
        f"Check wheel compatibility: the wheels must be whole, and made for {this_platform()}.",
    )


def this_platform():
    return f"Python {sys.version_info[0]}.{sys.version_info[1]} on {os.uname().machine}"


def clean(output):
    """pip's lines about conflicts and errors; not those about files found and temporary names."""
    noise = ("Looking in links:", "Processing ", "Collecting ", "Would install", "Link requires", "[notice]")
    lines = [line for line in output.splitlines() if not line.strip().startswith(noise)]
    return re.sub(r"[^\s'\"(]*/\.install-[^/\s]*/stand-ins/", "", "\n".join(lines)).strip()


# --- the cache ---


def cache_entry(provider, main, wheels, present):
    """The folder of what pip chooses and unpacks for this image in this Python, beside what is installed already."""
    if not provider.cache or not os.path.isdir(provider.cache):
        return None
    import pip

    versions = [sys.version, sys.implementation.cache_tag, os.uname().machine, pip.__version__, digest(__file__)]
    files = [[os.path.basename(wheel.path), digest(wheel.path)] for wheel in wheels + [main]]
    before = sorted((name, found.version, found.read_text("METADATA") or "") for name, found in present.items())
    key = hashlib.sha256(json.dumps([versions, files, before]).encode()).hexdigest()
    return os.path.join(provider.cache, key)


def digest(path):
    value = hashlib.sha256()
    with open(path, "rb") as file:
        for part in iter(lambda: file.read(1 << 20), b""):
            value.update(part)
    return value.hexdigest()


def read_cache(entry):
    """What was chosen, and the folder of the files; none if the entry is missing or damaged, such as by a full volume."""
    if entry is None:
        return None
    folder = os.path.join(entry, "files")
    try:
        with open(os.path.join(entry, "entry.json"), encoding="utf-8") as file:
            content = json.load(file)
        if content["files"] != {name: digest(os.path.join(folder, name)) for name in files_below(folder)}:
            raise ValueError("files have changed")
        chosen = {name: (version, None) for name, version in content["chosen"].items()}
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, AttributeError) as error:
        print(f"WARNING: an entry of the cache is not used: {error}")
        shutil.rmtree(entry, ignore_errors=True)
        return None
    print("The packages are taken from the cache")
    return chosen, folder


def write_cache(entry, chosen, staged):
    """Adds an entry, which appears complete or not at all. A cache that cannot be written is not a failure."""
    if entry is None:
        return
    work = None
    try:
        work = tempfile.mkdtemp(prefix=".new-", dir=os.path.dirname(entry))
        os.chmod(work, 0o775)
        folder = os.path.join(work, "files")
        shutil.copytree(staged, folder)
        files = {name: digest(os.path.join(folder, name)) for name in files_below(folder)}
        versions = {name: version for name, (version, _) in chosen.items()}
        write(os.path.join(work, "entry.json"), json.dumps({"chosen": versions, "files": files}))
        os.rename(work, entry)
    except OSError as error:
        if work:
            shutil.rmtree(work, ignore_errors=True)
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            print(f"WARNING: the cache cannot be written: {error}")


# --- the volume ---


def workspace(provider):
    """A folder of our own in the volume: nothing else is sure to be writable. Clears what a killed container left."""
    for name in os.listdir(provider.volume):
        if name.startswith(".install-"):
            shutil.rmtree(os.path.join(provider.volume, name), ignore_errors=True)
    os.makedirs(provider.target, exist_ok=True)
    return tempfile.mkdtemp(prefix=".install-", dir=provider.volume)


def stage(provider, work, new):
    """Unpacks what is new beside the packages. Bytecode is skipped: it would be for this Python, and differ each time."""
    folder = os.path.join(work, "stage")
    os.mkdir(folder)
    if new:
        arguments = ["--no-deps", "--no-compile", "--quiet", "--target", folder]
        status, output = pip(work, arguments + [new[name] for name in sorted(new)])
        if status != 0:
            raise pip_failure(provider, output)
        # Commands name the Python of this image, which the server's container has not.
        shutil.rmtree(os.path.join(folder, "bin"), ignore_errors=True)
    return folder


def files_below(folder):
    found = []
    for parent, _, names in os.walk(folder):
        found += [os.path.relpath(os.path.join(parent, name), folder) for name in names]
    return sorted(found)


def refuse_clashes(provider, staged, present):
    """Two distributions may share a folder (a namespace package), but no file that an import could reach. Of others, such as
    the tests that many wheels contain by accident, the first is kept."""
    new = files_below(staged)
    modules = {name.split(os.sep)[0] for name in new + files_below(provider.target) if is_module(name)}
    named = {canonical(name) for name in present} | {canonical(name.split("-")[0]) for name in os.listdir(staged) if name.endswith(".dist-info")}
    clashes = []
    for name in new:
        there = os.path.join(provider.target, name)
        if not os.path.exists(there) or content(there) == content(os.path.join(staged, name)):
            continue
        top = name.split(os.sep)[0]
        if top not in modules or (top != name and top.lower() in BESIDE_PACKAGES and canonical(top) not in named):
            print(f"NOTE: {name} is there already ({owner(present, name)}) and is kept; it is not a part of a package")
        else:
            clashes.append(name)
    if not clashes:
        return
    lines = [f"  {name} ({owner(present, name)})" for name in clashes[:10]]
    if len(clashes) > 10:
        lines.append(f"  and {len(clashes) - 10} more")
    raise Failure(
        f"Cannot install provider '{provider.id}' due to file conflict",
        "These files are there already, with other content:\n"
        + "\n".join(lines)
        + "\n\nPreviously installed packages can be found in: /opt/llama-stack/external-providers/installed-packages.txt",
        "Two packages of different names contain the same module. Leave one of them out of its provider image.",
    )


def is_module(name):
    return name.endswith((".py", ".so", ".pyc", ".pyd", ".pth"))


def owner(present, name):
    for distribution in present.values():
        for file in distribution.files or []:
            if os.path.normpath(str(file)) == name:
                return f"of {canonical(distribution.metadata['Name'])}=={distribution.version}"
    return "of an unknown package"


def content(path):
    with open(path, "rb") as file:
        return file.read()


def move_in(staged, target):
    """Copies; `*.dist-info` comes last, so that a distribution that is listed is complete."""
    names = files_below(staged)
    names.sort(key=lambda name: ".dist-info" in name.split(os.sep)[0])
    for name in names:
        there = os.path.join(target, name)
        os.makedirs(os.path.dirname(there), exist_ok=True)
        if not os.path.exists(there):
            shutil.copyfile(os.path.join(staged, name), there + ".part")
            os.replace(there + ".part", there)


def write_manifest(provider, chosen):
    """One line for each package; the lines of this provider from an earlier try are replaced."""
    blocks = []
    if os.path.exists(provider.manifest):
        with open(provider.manifest, encoding="utf-8") as file:
            blocks = re.split(r"^(?=# provider )", file.read(), flags=re.MULTILINE)
    blocks = [block for block in blocks if block and not block.startswith(f"# provider {provider.id},")]
    of_others = {line for block in blocks for line in block.splitlines()}
    python = ".".join(str(part) for part in sys.version_info[:2])
    lines = [f"# provider {provider.id}, image {provider.image}, Python {python}\n"]
    for name, (version, _) in sorted(chosen.items()):
        line = f"{name}=={version}"
        lines.append(f"{line}  # installed before\n" if line in of_others else f"{line}\n")
    write(provider.manifest, "".join(blocks + lines))


def write_metadata(provider):
    os.makedirs(provider.metadata, exist_ok=True)
    with open(provider.spec, "rb") as file:
        write(os.path.join(provider.metadata, "lls-provider-spec.yaml"), file.read().decode("utf-8"))
    # JSON is YAML.
    write(os.path.join(provider.metadata, "crd-config.yaml"), json.dumps(provider.config, indent=2) + "\n")


def write(path, text):
    with open(path + ".part", "w", encoding="utf-8", newline="") as file:
        file.write(text)
    os.replace(path + ".part", path)


def volume_failure(provider, number, text):
    if number in (errno.ENOSPC, errno.EDQUOT):
        title, way_out = "the volume is full", "Give the volume external-providers a larger size limit, or use fewer dependencies."
    elif number == errno.EROFS:
        title, way_out = "the volume is read-only", "Mount the volume external-providers writable in this container."
    elif number in (errno.EACCES, errno.EPERM):
        title = "the volume is not writable for this user"
        way_out = (
            f"This container runs as user {os.getuid()}, group {os.getgid()}. Set fsGroup in the pod's security context, "
            "or one runAsUser for all containers."
        )
    elif number == errno.ENOENT:
        title, way_out = "the volume is not mounted", "Mount the volume external-providers in this container."
    else:
        title, way_out = "a file cannot be written", "Look at the volume external-providers of the pod."
    return Failure(f"Cannot install provider '{provider.id}': {title}", f"Reason: {text}", way_out)


# --- telling ---


def tell(failure, provider, log):
    who = f"Provider: {provider.id}\nImage: {provider.image}\nInit Container: {provider.container}\n\n" if provider else ""
    head = f"ERROR: {failure.title}\n\n{who}"
    tail = f"\n\nResolution: {failure.resolution}"
    print(head + failure.body + tail, file=sys.stderr, flush=True)
    room = MESSAGE_LIMIT - len((head + tail).encode()) - len("\n[...]\n")
    body = failure.body.encode()
    if len(body) > room:
        # What is missing or in conflict stands first, what follows from it last.
        body = body[: room // 2] + b"\n[...]\n" + body[len(body) - room // 2 :]
    message = (head + body.decode("utf-8", "ignore") + tail).encode()
    if os.path.exists(log):
        try:
            with open(log, "wb") as file:
                file.write(message[:MESSAGE_LIMIT])
        except OSError:
            pass


def main():
    # Other containers run as other users of the same group.
    os.umask(0o002)
    log = os.environ.get("LLS_TERMINATION_LOG", "/dev/termination-log")
    provider = None
    try:
        provider = Provider(os.environ)
        install(provider)
        return 0
    except Failure as failure:
        tell(failure, provider, log)
    except OSError as error:
        tell(volume_failure(provider, error.errno, str(error)), provider, log)
    except (KeyError, ValueError) as error:
        broken = Failure(
            "Cannot install a provider: LLS_CRD_CONFIG is not what the operator writes",
            f"Reason: {error!r}",
            "Delete the pod; if that does not help, operator and pod are of different versions.",
        )
        tell(broken, provider, log)
    return 1


sys.exit(main())
