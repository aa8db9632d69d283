"""Checks the external providers of a run.yaml in the very Python that is about to run the Llama Stack server.

    python3 preflight.py --run-yaml=/opt/llama-stack/config/run.yaml

Exit code 0: the server may start. 1: a provider is not fit, and the reason is printed. 2: the arguments are wrong.
A llama-stack that has `llama stack preflight` of its own is asked instead.

In this order: native code against this machine and this Python, before anything is imported; import; what
get_provider_spec() returns, and whether it is what the metadata says (warnings only); whether config_class accepts `config`;
and whether the packages of the distribution still fit together with those of the providers in front of them.
"""

import argparse
import importlib
import importlib.machinery
import importlib.util
import json
import os
import re
import select
import signal
import subprocess
import sys
import time
import traceback
from importlib import metadata

MESSAGE_LIMIT = 4096
# Long enough for a provider that loads a large library, short enough for a startup probe.
IMPORT_SECONDS = 120
MACHINES = {3: "386", 21: "ppc64le", 22: "s390x", 40: "arm", 62: "amd64", 183: "arm64", 243: "riscv64"}


class Entry:
    """One provider of run.yaml that is not built in."""

    def __init__(self, api, fields, volume):
        self.api = api
        self.id = fields.get("provider_id", "(no provider_id)")
        self.type = fields.get("provider_type")
        self.module = str(fields["module"]).split("==")[0]
        self.config = fields.get("config") or {}
        folder = os.path.join(volume, "metadata", str(self.id))
        self.metadata = read_yaml(os.path.join(folder, "lls-provider-spec.yaml")).get("spec") or {}
        crd = read_yaml(os.path.join(folder, "crd-config.yaml"))
        self.image = crd.get("image", "(not an external provider of this resource)")


def main():
    arguments = argparse.ArgumentParser(prog="preflight", description="Checks external providers before the server starts.")
    arguments.add_argument("--run-yaml", required=True, help="the configuration of the server")
    arguments.add_argument("--external-providers", default="/opt/llama-stack/external-providers", help="the volume of the providers")
    arguments.add_argument("--termination-log", default="/dev/termination-log", help=argparse.SUPPRESS)
    # For the command: a Python that has the metadata of the distribution's packages, and not the packages. Nothing is imported.
    arguments.add_argument("--packages-of", help=argparse.SUPPRESS)
    options = arguments.parse_args()
    native = None if options.packages_of else native_preflight()
    if native:
        os.execv(sys.executable, [sys.executable, "-c", native, "stack", "preflight", f"--run-yaml={options.run_yaml}"])
    entries, wrong = read_run_yaml(options.run_yaml, options.external_providers)
    if wrong:
        print(f"ERROR: {wrong}", file=sys.stderr)
        return 2
    packages = os.path.join(options.external_providers, "python-packages")
    checks = PipChecks(packages, options.packages_of)
    owners = owners_of(options.external_providers, packages)
    errors = native_code(packages, entries, owners)
    if not errors:
        # Code for another machine must not be loaded; everything else is reported at once.
        errors = ([] if options.packages_of else imports(entries)) + checks.errors(entries, owners)
    checks.stop()
    if errors:
        text = "\n\n".join(errors)
        print(text, file=sys.stderr)
        tell_kubelet(options.termination_log, text)
        return 1
    print("All providers validated successfully: " + (", ".join(entry.id for entry in entries) or "none to validate"))
    return 0


def native_preflight():
    for package in ("llama_stack", "ogx"):
        try:
            if importlib.util.find_spec(f"{package}.cli.stack.preflight"):
                name = package.split("_", maxsplit=1)[0]
                return f"import sys; from {package}.cli.{name} import main; sys.exit(main())"
        except ImportError:
            pass
    return None


# --- what there is ---


def parse(file):
    """YAML as the server reads it; ValueError if it is none. Without the server, there may be only JSON."""
    try:
        import yaml
    except ImportError:
        return json.load(file)
    try:
        return yaml.safe_load(file)
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from None


def read_yaml(path):
    try:
        with open(path, encoding="utf-8") as file:
            found = parse(file)
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def read_run_yaml(path, volume):
    """The entries with a `module`, and why there are none if the file cannot be read."""
    try:
        with open(path, encoding="utf-8") as file:
            config = parse(file)
    except OSError as error:
        return [], f"cannot read --run-yaml: {error}"
    except ValueError as error:
        return [], f"--run-yaml {path} is not valid YAML: {error}"
    providers = config.get("providers") if isinstance(config, dict) else None
    if providers is not None and not isinstance(providers, dict):
        return [], f"--run-yaml {path}: `providers` must be a mapping"
    entries = []
    for api, section in (providers or {}).items():
        for fields in section or []:
            if isinstance(fields, dict) and fields.get("module"):
                entries.append(Entry(api, fields, volume))
    return entries, None


def canonical(name):
    return re.sub(r"[-_.]+", "-", name).lower()


def owners_of(volume, packages):
    """Which provider brought a distribution, by the manifest that the installation leaves."""
    owners, provider = {}, None
    try:
        with open(os.path.join(volume, "installed-packages.txt"), encoding="utf-8") as file:
            for line in file:
                if line.startswith("# provider "):
                    provider = line[len("# provider ") :].split(",")[0]
                elif "==" in line and "# installed before" not in line:
                    owners.setdefault(canonical(line.split("==")[0].strip()), provider)
    except OSError:
        pass
    return owners


def failed(entry, reason, detail, resolution):
    who = f"Provider: {entry.id}\nImage: {entry.image}\nModule: {entry.module}\n" if entry else ""
    detail = f"\n{detail.strip()}\n" if detail.strip() else ""
    return f"ERROR: Provider validation failed\n\n{who}Reason: {reason}\n{detail}\nResolution: {resolution}"


def entry_of(entries, owners, name):
    return next((entry for entry in entries if entry.id == owners.get(canonical(name))), None)


# --- native code ---


def elf_machine(path):
    """(word size, byte order, machine) of an ELF file; none if it is something else."""
    try:
        with open(path, "rb") as file:
            head = file.read(20)
    except OSError:
        return None
    if len(head) < 20 or head[:4] != b"\x7fELF":
        return None
    return head[4], head[5], int.from_bytes(head[18:20], "little" if head[5] == 1 else "big")


def native_code(packages, entries, owners):
    """Extension modules that this Python cannot load. A file made for another Python does not matter beside one for this."""
    here = elf_machine("/proc/self/exe") or elf_machine(sys.executable)
    # The plain ".so" would take the files of every Python.
    loadable = tuple(suffix for suffix in importlib.machinery.EXTENSION_SUFFIXES if suffix != ".so")
    errors = []
    for distribution in metadata.distributions(path=[packages]) if os.path.isdir(packages) else []:
        files = [str(file) for file in distribution.files or [] if re.search(r"\.so(\.[0-9.]+)?\Z", str(file))]
        found = {file: elf_machine(os.path.join(packages, file)) for file in files}
        foreign = sorted(file for file, machine in found.items() if machine and here and machine != here)
        fit = {stem(file) for file, machine in found.items() if machine == here and file.endswith(loadable)}
        name = f"{distribution.metadata['Name']} {distribution.version}"
        entry = entry_of(entries, owners, distribution.metadata["Name"])
        wrong = [file for file in foreign if is_extension(file) and stem(file) not in fit]
        if foreign and len(foreign) == len([machine for machine in found.values() if machine]):
            wrong = foreign
        if wrong:
            machine = found[wrong[0]][2]
            errors.append(
                failed(
                    entry,
                    "Native extension architecture mismatch",
                    f"Package: {name}\nFile: {os.path.join(packages, wrong[0])}\nExpected architecture: linux/{MACHINES.get(here[2], here[2])}\n"
                    f"Found architecture: linux/{MACHINES.get(machine, machine)}",
                    f"Build the provider image for linux/{MACHINES.get(here[2], here[2])}, with wheels for that architecture.",
                )
            )
            continue
        tagged = [file for file in files if re.search(r"\.cpython-\d+[^/]*\.so\Z", file)]
        other = sorted(file for file in tagged if not file.endswith(loadable) and stem(file) not in fit)
        if other:
            python = ".".join(str(part) for part in sys.version_info[:2])
            errors.append(
                failed(
                    entry,
                    "Native extension built for another Python",
                    f"Package: {name}\nFile: {os.path.join(packages, other[0])}\nThis Python loads: {', '.join(loadable)}",
                    f"Build the provider image with Python {python}, the one of the distribution, so that its wheels fit.",
                )
            )
    return errors


def stem(file):
    return re.sub(r"(\.cpython-[^/]*|\.abi3)?\.so\Z", "", file)


def is_extension(file):
    return re.search(r"\.(cpython-[^/]*|abi3)\.so\Z", file) is not None


# --- import and get_provider_spec() ---


def imports(entries):
    apis = known_apis()
    # Imported here, once, so that the processes for the providers have it already.
    servers_own("replace_env_vars")
    errors = {}
    for entry in entries:
        if apis and entry.api not in apis:
            errors[entry] = [failed(entry, f"API '{entry.api}' does not exist in this llama-stack", f"APIs: {', '.join(sorted(apis))}", way_to(entry.api, apis))]
    for entry, result in in_processes_of_their_own([entry for entry in entries if entry not in errors]):
        for warning in result.get("warnings", []):
            print(warning)
        errors[entry] = result.get("errors", [])
    return [error for entry in entries for error in errors.get(entry, [])]


def way_to(api, apis):
    """The way out for an API that this server does not have; some have other names in other releases."""
    # llama-stack 0.7.0: llama_stack_api/datatypes.py, class Api. `responses` took the place of `agents`.
    renamed = {"agents": "responses", "responses": "agents"}.get(api)
    if renamed in apis:
        return (
            f"This server has the API '{renamed}' instead. Use a release of the provider that implements it, and list it under "
            f"spec.server.externalProviders.{renamed}; or use a distribution that has '{api}'."
        )
    return "Use a distribution that has this API, or take the provider out of spec.server.externalProviders."


def known_apis():
    """The APIs of the server; imported here, once, so that the processes for the providers have it already."""
    for name in ("llama_stack_api", "llama_stack.apis.datatypes", "ogx_api"):
        try:
            return {api.value for api in importlib.import_module(name).Api}
        except (ImportError, AttributeError):
            continue
    return set()


class Child:
    """A process that validates one provider: it may crash, exit or hang when it is imported; this process lives on to tell."""

    def __init__(self, entry):
        self.entry, self.output, self.end = entry, b"", time.monotonic() + IMPORT_SECONDS
        self.reader, writer = os.pipe()
        sys.stdout.flush()
        self.id = os.fork()
        if self.id == 0:
            os.close(self.reader)
            status = 1
            try:
                with os.fdopen(writer, "w", encoding="utf-8") as pipe:
                    json.dump(validate(entry), pipe)
                sys.stdout.flush()
                status = 0
            finally:
                os._exit(status)
        os.close(writer)

    def has_more(self):
        part = os.read(self.reader, 65536)
        self.output += part
        return bool(part)

    def result(self, finished):
        os.close(self.reader)
        if not finished:
            os.kill(self.id, signal.SIGKILL)
        _, status = os.waitpid(self.id, 0)
        if not finished:
            text = f"It did not finish within {IMPORT_SECONDS} seconds."
            return {"errors": [failed(self.entry, "Import hangs", text, "Do not wait for anything while the module is imported.")]}
        try:
            return json.loads(self.output)
        except ValueError:
            code = os.waitstatus_to_exitcode(status)
            text = f"The process died with signal {-code}." if code < 0 else f"The process exited with code {code}."
            way_out = "Look at the native code of the provider and its dependencies."
            return {"errors": [failed(self.entry, "Import ends the process", text, way_out)]}


def in_processes_of_their_own(entries):
    """Validates the providers beside each other, as many as there are processors. Yields each with its result."""
    waiting, running = list(reversed(entries)), {}
    while waiting or running:
        while waiting and len(running) < processors():
            child = Child(waiting.pop())
            running[child.reader] = child
        rest = min(child.end for child in running.values()) - time.monotonic()
        ready, _, _ = select.select(list(running), [], [], max(0, rest))
        over = [(reader, True) for reader in ready if not running[reader].has_more()]
        now = time.monotonic()
        over += [(reader, False) for reader, child in running.items() if child.end <= now and reader not in ready]
        for reader, finished in over:
            child = running.pop(reader)
            yield child.entry, child.result(finished)


def processors():
    try:
        return min(8, len(os.sched_getaffinity(0)))
    except AttributeError:
        return 1


def validate(entry):
    try:
        return check(entry)
    except Invalid as invalid:
        return {"errors": [failed(entry, *invalid.args)]}
    except BaseException:
        return {"errors": [failed(entry, "get_provider_spec() raised", last_lines(), "Mend the provider package.")]}


class Invalid(Exception):
    """Reason, detail, resolution."""


def last_lines():
    """The traceback of what is being handled, without our own frames and those of the import system."""
    failure = traceback.TracebackException(*sys.exc_info())
    ours = lambda name: name == __file__ or name.startswith("<frozen ") or name.endswith("importlib/__init__.py")
    failure.stack = traceback.StackSummary.from_list([frame for frame in failure.stack if not ours(frame.filename)])
    return "\n".join("".join(failure.format()).rstrip().splitlines()[-20:])


def check(entry):
    module = load(entry, f"{entry.module}.provider")
    if not callable(getattr(module, "get_provider_spec", None)):
        raise Invalid(
            f"Module {entry.module}.provider has no get_provider_spec()",
            f"It was loaded from {getattr(module, '__file__', 'nowhere')}",
            "The server imports <packageName>.provider and calls get_provider_spec() there. Name the package without "
            "'.provider' in spec.packageName, and define the function.",
        )
    returned = module.get_provider_spec()
    specs = returned if isinstance(returned, list) else [returned]
    shape = "Return one ProviderSpec, or a list of them, with api, provider_type, config_class and module."
    if not specs:
        raise Invalid("get_provider_spec() returned invalid data", "It returned an empty list.", shape)
    for spec in specs:
        for field in ("api", "provider_type", "config_class"):
            if not getattr(spec, field, None):
                text = f"Missing required field: {field}\nIt returned: {returned!r}"[:2000]
                raise Invalid("get_provider_spec() returned invalid data", text, shape)
    matching = [spec for spec in specs if spec.provider_type == entry.type]
    if isinstance(returned, list) and not matching:
        # The server picks one of a list by its type.
        types = ", ".join(str(spec.provider_type) for spec in specs)
        raise Invalid(
            f"get_provider_spec() has no provider of type {entry.type}",
            f"It has: {types}",
            "Make spec.providerType of lls-provider-spec.yaml one of these.",
        )
    spec = (matching or specs)[0]
    config_class = implementation(entry, spec)
    return {"warnings": mismatches(entry, spec) + configuration(entry, spec, config_class)}


def load(entry, name):
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if name.startswith(f"{error.name}.") or name == error.name:
            text = f"No module named {error.name!r}; looked for {name} in:\n" + "\n".join(f"  {path}" for path in sys.path if path)
            raise Invalid(
                "Module not found",
                text,
                "spec.packageName of lls-provider-spec.yaml must name the package of the wheel, which must have a module "
                "'provider'; the packages must be first on PYTHONPATH.",
            ) from None
        raise Invalid(
            f"Import failed: {error}",
            last_lines(),
            f"Add the wheel that contains {error.name!r} to /lls-provider/packages/ of the provider image. If it is optional, "
            "import it inside try/except.",
        ) from None
    except BaseException as error:
        raise Invalid(
            f"Import failed: {type(error).__name__}: {error}",
            last_lines(),
            "Mend the provider package, or build it for the version of llama-stack in the distribution.",
        ) from None


def implementation(entry, spec):
    """What the server will look for when it has read the spec. Returns the class of the configuration."""
    module = load(entry, spec.module or entry.module)
    remote = any(base.__name__ == "RemoteProviderSpec" for base in type(spec).__mro__)
    function = "get_adapter_impl" if remote else "get_provider_impl"
    if not callable(getattr(module, function, None)):
        raise Invalid(
            f"Module {module.__name__} has no {function}()",
            f"It was loaded from {getattr(module, '__file__', 'nowhere')}",
            f"The server makes a provider of type {spec.provider_type} by calling {function}() of that module: define it.",
        )
    place, _, name = str(spec.config_class).rpartition(".")
    found = load(entry, place) if place else None
    if not hasattr(found, name):
        raise Invalid(
            f"config_class {spec.config_class} does not exist", "", "Make config_class the full path of the class of the configuration."
        )
    return getattr(found, name)


# --- config ---

# Providers of an API, as the custom resource names them where run.yaml has another name.
SECTIONS = {"vector_io": "vectorIo", "datasetio": "datasetIo", "tool_runtime": "toolRuntime", "post_training": "postTraining"}
# Not `max_tokens`.
SECRET = re.compile(r"(token|secret|password|passwd|credentials?|api_?key|private_?key)$", re.IGNORECASE)
INVALID_CONFIG = "Invalid config"


def configuration(entry, spec, config_class):
    """Makes a config_class of `config`, as the server does when it starts. Returns warnings."""
    where = f"spec.server.externalProviders.{SECTIONS.get(entry.api, entry.api)}" if entry.metadata else "the run.yaml of spec.server.userConfig"
    mend = f"Correct config of provider '{entry.id}' in {where}."
    if not isinstance(entry.config, dict):
        raise Invalid(INVALID_CONFIG, f"Field: config\nFound: {shown((), entry.config)}\nExpected: a mapping", mend)
    replace = servers_own("replace_env_vars")
    try:
        config = replace(entry.config, "config") if replace else entry.config
    except Exception as error:
        variable, path = getattr(error, "var_name", None), getattr(error, "path", "config")
        if variable is None:
            raise
        text = f"Field: {path}\nExpected: the environment variable {variable}, which is not set or empty"
        way_out = f"Set {variable} in spec.server.containerSpec.env, or give a default in config: ${{env.{variable}:=default}}."
        raise Invalid(INVALID_CONFIG, text, way_out) from None
    fields = getattr(config_class, "model_fields", None) or {}
    try:
        config_class(**config)
    except Exception as error:
        problems = error.errors() if callable(getattr(error, "errors", None)) else None
        if problems is None:
            text = f"{spec.config_class} does not accept it: {type(error).__name__}: {error}"
            raise Invalid(INVALID_CONFIG, text[:2000], mend) from None
        # The server adds this one.
        problems = [problem for problem in problems if problem.get("loc", ())[:1] != ("vector_stores_config",)]
        if problems:
            raise Invalid(INVALID_CONFIG, described(entry, spec, fields, problems), mend) from None
    return unknown_fields(entry, spec, config_class, fields)


def described(entry, spec, fields, problems):
    blocks = []
    for problem in problems[:10]:
        place = problem.get("loc", ())
        field = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place)
        blocks.append(f"Field: config{field}\nFound: {shown(place, value_at(entry.config, place))}\nExpected: {problem.get('msg', 'another value')}")
    if len(problems) > 10:
        blocks.append(f"and {len(problems) - 10} more")
    return "\n".join(blocks + [f"Fields of {spec.config_class}: {listed(fields)}"])


MISSING = object()


def value_at(value, place):
    """The value as the user has written it, so with ${env.NAME} for a secret. A part of a place may name a member of a union."""
    for part in place:
        if isinstance(value, dict) and part in value or isinstance(value, list) and isinstance(part, int) and part < len(value):
            value = value[part]
        elif isinstance(value, (dict, list)):
            return MISSING
    return value


def shown(place, value):
    if value is MISSING:
        return "nothing"
    if any(SECRET.search(str(part)) for part in place) and not (isinstance(value, str) and value.startswith("${env.")):
        return "(hidden, since it may be a secret)"
    if isinstance(value, (dict, list)) and value:
        return "a mapping" if isinstance(value, dict) else "a list"
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 200 else text[:200] + "…"


def listed(fields):
    names = ", ".join(f"{name} (required)" if field.is_required() else name for name, field in fields.items())
    return names[:1000] or "(none)"


def unknown_fields(entry, spec, config_class, fields):
    """pydantic ignores what it does not know, unless the class says otherwise; a misspelt field would have no effect."""
    if not fields or getattr(config_class, "model_config", {}).get("extra") not in (None, "ignore"):
        return []
    names = set(fields)
    for field in fields.values():
        for alias in (field.alias, field.validation_alias):
            if alias is not None and not isinstance(alias, str):
                return []
            names.add(alias)
    unknown = [str(name) for name in entry.config if name not in names]
    if not unknown:
        return []
    return [
        f"WARNING: config of provider '{entry.id}' has fields that {spec.config_class} does not have; the server ignores them: "
        f"{', '.join(unknown)}. Fields: {listed(fields)}"
    ]


def servers_own(name):
    """A function of the server's start, which moved between releases."""
    for place in ("llama_stack.core.stack", "ogx.core.stack", "llama_stack.distribution.stack"):
        try:
            return getattr(importlib.import_module(place), name)
        except (ImportError, AttributeError):
            continue
    return None


def mismatches(entry, spec):
    """FR-026: every field that metadata and code both state."""
    stated = {"provider_type": entry.metadata.get("providerType"), "api": entry.metadata.get("api")}
    runtime = {"provider_type": spec.provider_type, "api": getattr(spec.api, "value", str(spec.api))}
    used = {"provider_type": entry.type, "api": entry.api}
    if not entry.metadata or stated == runtime:
        return []
    blocks = [f"WARNING: Provider metadata mismatch (non-blocking)\n\nProvider: {entry.id}\nImage: {entry.image}"]
    for field, value in stated.items():
        # The server registers a provider under what run.yaml says, which comes from the metadata.
        verdict = "Match ✓" if value == runtime[field] else f"Using: {used[field]} (run.yaml, as the server does)"
        blocks.append(
            f"Field: {field}\n  Metadata (lls-provider-spec.yaml): {value}\n  Runtime (get_provider_spec()): {runtime[field]}\n  {verdict}"
        )
    return ["\n\n".join(blocks) + "\n"]


# --- the distribution with the providers in front ---


# Lines of `pip check` (pip 26.3, commands/check.py).
CONFLICT = r"(?P<package>\S+) \S+ has requirement (?P<requirement>.+), but you have (?P<found>\S+) \S+\.\Z"
NOT_THERE = r"(?P<package>\S+) \S+ requires (?P<requirement>.+), which is not installed\.\Z"


def finding(line):
    """The package and its requirement, without the versions that are there."""
    for pattern in (CONFLICT, NOT_THERE):
        found = re.match(pattern, line)
        if found:
            return pattern, canonical(found.group("package")), found.group("requirement")
    return line


class PipChecks:
    """`pip check` with and without the providers, beside the imports: only what they break is their doing."""

    def __init__(self, packages, distribution=None):
        self.running, self.python = [], ["--python", distribution] if distribution else []
        if os.path.isdir(packages) and importlib.util.find_spec("pip"):
            others = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path and not same(path, packages)]
            self.running = [self.start(others), self.start([packages] + others)]

    def start(self, paths):
        environment = dict(os.environ, PYTHONPATH=os.pathsep.join(paths))
        command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *self.python, "check"]
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)

    def errors(self, entries, owners):
        if not self.running:
            return []
        before, after = [process.communicate()[0].decode("utf-8", "replace").splitlines() for process in self.running]
        # What the distribution lacks already is not the provider's doing, even if a version in the text has changed.
        known = {finding(line) for line in before}
        errors, notes = [], []
        for line in sorted(line for line in set(after) if finding(line) not in known):
            conflict = re.match(CONFLICT, line)
            if conflict is None:
                # Reported, without stopping: the provider could be imported without it.
                if "No broken requirements" not in line:
                    notes.append(line)
                continue
            entry = entry_of(entries, owners, conflict.group("found")) or entry_of(entries, owners, conflict.group("package"))
            errors.append(
                failed(
                    entry,
                    "Packages of the provider and of the distribution do not fit together",
                    f"pip check says: {line}",
                    f"Build the provider image with a version of {conflict.group('found')} that both accept, or leave its wheel out if the "
                    "distribution's own will do. Installed packages: /opt/llama-stack/external-providers/installed-packages.txt",
                )
            )
        for note in notes:
            print(f"WARNING: pip check says: {note}")
        return errors

    def stop(self):
        for process in self.running:
            if process.poll() is None:
                process.kill()
            process.wait()


def same(one, other):
    return os.path.realpath(one) == os.path.realpath(other)


def tell_kubelet(log, text):
    if not os.path.exists(log):
        return
    message = text.encode()
    if len(message) > MESSAGE_LIMIT:
        gap = b"\n[...]\n"
        half = (MESSAGE_LIMIT - len(gap)) // 2
        message = message[:half].decode("utf-8", "ignore").encode() + gap + message[-half:].decode("utf-8", "ignore").encode()
    try:
        with open(log, "wb") as file:
            file.write(message)
    except OSError:
        pass


if __name__ == "__main__":
    sys.exit(main())
