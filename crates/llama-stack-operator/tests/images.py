"""Makes the provider images of the tests: folders as they lie at `/` of an image, with wheels written from here.

    python3 images.py FOLDER

A wheel is a zip archive with metadata (PyPA, binary distribution format), so nothing has to be built or downloaded.
"""

import base64
import hashlib
import json
import os
import shutil
import sys
import zipfile

ROOT = os.path.dirname(os.path.abspath(__file__))
EXAMPLE = os.path.join(ROOT, "../../../deploy/examples/llama-stack-provider")


def wheel(folder, name, version, files, requires=(), tag="py3-none-any", python=None):
    module = name.replace("-", "_")
    distinfo = f"{module}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    metadata += f"Requires-Python: {python}\n" if python else ""
    metadata += "".join(f"Requires-Dist: {required}\n" for required in requires)
    files = {path: text if isinstance(text, bytes) else text.encode() for path, text in files.items()}
    files[f"{distinfo}/METADATA"] = (metadata + "\n").encode()
    files[f"{distinfo}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: {tag}\n".encode()
    record = "".join(f"{path},sha256={digest(content)},{len(content)}\n" for path, content in files.items())
    files[f"{distinfo}/RECORD"] = f"{record}{distinfo}/RECORD,,\n".encode()
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, f"{module}-{version}-{tag}.whl")
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0)), content)


def digest(content):
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


def spec(package, kind="inline::lls-echo", api="inference", main=None, **extra):
    main = main or f"{package}-1.0.0-py3-none-any.whl"
    lines = [
        "apiVersion: llamastack.io/v1alpha1",
        "kind: ProviderPackage",
        "metadata:",
        f"  name: {package}",
        "  version: 1.0.0   # quoted or not",
        "  vendor: Example",
        "  description: |",
        "    Text: with a colon",
        "      and an indent",
        "spec:",
        f"  packageName: {package}",
        f"  providerType: {kind}",
        f"  api: {api}",
        f"  wheelPath: /lls-provider/packages/{main}",
    ]
    return "\n".join(lines + [f"  {key}: {value}" for key, value in extra.items()]) + "\n"


class Image:
    def __init__(self, out, name):
        self.root = os.path.join(out, name, "lls-provider")
        self.packages = os.path.join(self.root, "packages")
        os.makedirs(self.packages)

    def spec(self, text):
        with open(os.path.join(self.root, "lls-provider-spec.yaml"), "w") as file:
            file.write(text)
        return self

    def wheel(self, *arguments, **options):
        wheel(self.packages, *arguments, **options)
        return self


def example():
    """The sources of the example in the documentation."""
    files = {}
    folder = os.path.join(EXAMPLE, "lls_echo")
    for name in sorted(os.listdir(folder)):
        if name.endswith(".py"):
            with open(os.path.join(folder, name)) as file:
                files[f"lls_echo/{name}"] = file.read()
    with open(os.path.join(EXAMPLE, "lls-provider-spec.yaml")) as file:
        return file.read(), files


def provider(package, kind, body=None, api="inference", more=None):
    """A provider that can be imported, and no more."""
    body = body or (
        "from llama_stack_api import Api, InlineProviderSpec\n\n\n"
        "def get_provider_spec():\n"
        f"    return InlineProviderSpec(api=Api.{api}, provider_type='{kind}', module='{package}',\n"
        f"                              config_class='{package}.config.Config', is_external=True)\n"
    )
    files = {
        f"{package}/__init__.py": "async def get_provider_impl(config, deps):\n    raise NotImplementedError\n",
        f"{package}/config.py": "from pydantic import BaseModel\n\n\nclass Config(BaseModel):\n    pass\n",
        f"{package}/provider.py": body,
    }
    files.update(more or {})
    return files


def elf(machine):
    return b"\x7fELF\x02\x01\x01" + b"\0" * 9 + (3).to_bytes(2, "little") + machine.to_bytes(2, "little") + b"\0" * 100


def installs(out):
    """The matrix of the installation: `a` comes first, then one of the others."""
    text, files = example()
    dep = lambda version: {"lls_dep/__init__.py": f"VERSION = '{version}'\n"}
    image = lambda name: Image(out, name)
    echo = image("echo").spec(text)
    echo.wheel("lls-echo", "1.0.0", files)
    a = image("a").spec(spec("lls_a"))
    a.wheel("lls-a", "1.0.0", {"lls_a/__init__.py": "", "lls_ns/a.py": "A = 1\n"}, ["lls-dep>=1.0"])
    a.wheel("lls-dep", "1.0.0", dep("1.0.0"))
    b = lambda name, requires, bundled, **more: (
        image(name)
        .spec(spec("lls_b"))
        .wheel("lls-b", "1.0.0", {"lls_b/__init__.py": "", "lls_ns/b.py": "B = 1\n", **more}, requires)
        .wheel("lls-dep", bundled, dep(bundled))
    )
    b("b-wants-2", ["lls-dep==2.0.0"], "2.0.0")
    b("b-bundles-1.5", ["lls-dep>=1.0"], "1.5.0")
    b("b-below-2", ["lls-dep<2"], "1.5.0")
    b("b-same-file", ["lls-dep>=1.0"], "1.0.0", **{"lls_dep/__init__.py": "VERSION = 'mine'\n"})
    for name, text in (("with-tests-1", "1"), ("with-tests-2", "2")):
        module = name.replace("-", "_")
        beside = {"tests/__init__.py": text, "tests/conftest.py": f"x = {text}\n", "docs/conf.py": f"x = {text}\n", "share/a.cfg": text, "README.md": text}
        image(name).spec(spec(module)).wheel(name, "1.0.0", {f"{module}/__init__.py": "", f"tests/test_{module}.py": "", **beside})
    for name, path in (("same-module", "lls_ns.py"), ("same-data-of-a-package", "lls_ns/data.json"), ("tests-of-its-name", "tests/__init__.py")):
        for number in (1, 2):
            distribution = "tests" if name == "tests-of-its-name" and number == 1 else f"lls-b-{number}"
            main = f"{distribution.replace('-', '_')}-1.0.0-py3-none-any.whl"
            files = {"lls_ns/__init__.py": "", path: f"x = {number}\n"} if "/" in path else {path: f"x = {number}\n"}
            image(f"{name}-{number}").spec(spec(f"lls_b_{number}", main=main)).wheel(distribution, "1.0.0", files)
    b("b-newer-python", ["lls-dep>=1.0", "lls-backport; python_version<'3.11'"], "1.0.0")
    image("no-dependency").spec(spec("lls_b")).wheel("lls-b", "1.0.0", {"lls_b/__init__.py": ""}, ["lls-nowhere>=1"])
    old = image("backport").spec(spec("lls_b"))
    old.wheel("lls-b", "1.0.0", {"lls_b/__init__.py": ""}, ["lls-backport; python_version<'3.11'"])
    old.wheel("lls-backport", "1.0.0", {"lls_backport.py": ""})
    image("server-not-bundled").spec(spec("lls_b")).wheel(
        "lls-b", "1.0.0", {"lls_b/__init__.py": ""}, ["llama-stack>=0.7", "llama_stack_api"]
    )
    bundles = image("server-bundled").spec(spec("lls_b"))
    bundles.wheel("lls-b", "1.0.0", {"lls_b/__init__.py": ""}, ["llama-stack==0.2.14", "lls-dep"])
    bundles.wheel("llama-stack", "0.2.14", {"llama_stack/__init__.py": ""}, ["lls-of-server"])
    bundles.wheel("lls-of-server", "1.0.0", {"lls_of_server.py": ""})
    bundles.wheel("lls-dep", "1.0.0", dep("1.0.0"))
    several = image("several-wheels").spec(spec("lls_b"))
    several.wheel("lls-b", "1.0.0", {"lls_b/__init__.py": ""}, ["lls-dep", "lls-native"])
    for version in ("1.0.0", "2.0.0"):
        several.wheel("lls-dep", version, dep(version))
    for tag in ("cp312-cp312-manylinux_2_17_aarch64", "cp35-cp35m-manylinux_2_17_x86_64", "py3-none-any"):
        several.wheel("lls-native", "1.0.0", {"lls_native.py": f"TAG = '{tag}'\n"}, tag=tag)
    image("foreign-main").spec(spec("lls_b", main="lls_b-1.0.0-cp312-cp312-manylinux_2_17_s390x.whl")).wheel(
        "lls-b", "1.0.0", {"lls_b/__init__.py": ""}, tag="cp312-cp312-manylinux_2_17_s390x"
    )
    ten = image("ten-dependencies").spec(spec("lls_b"))
    names = [f"lls-d{number}" for number in range(10)]
    ten.wheel("lls-b", "1.0.0", {"lls_b/__init__.py": ""}, names)
    for name in names:
        module = name.replace("-", "_")
        ten.wheel(name, "1.0.0", {f"{module}/m{number}.py": "x = 1\n" * 50 for number in range(100)})
    # 200 MB of zeros in 200 KB.
    large = image("large-content").spec(spec("lls_b"))
    with zipfile.ZipFile(os.path.join(large.packages, "lls_b-1.0.0-py3-none-any.whl"), "w", zipfile.ZIP_DEFLATED) as archive:
        with archive.open("lls_b/data.bin", "w") as data:
            for _ in range(200):
                data.write(bytes(1 << 20))
        archive.writestr("lls_b-1.0.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: lls-b\nVersion: 1.0.0\n\n")
        archive.writestr("lls_b-1.0.0.dist-info/WHEEL", "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr("lls_b-1.0.0.dist-info/RECORD", "")
    # The folder of the wheels and a wheel are links of the image; the wheel has a link as an entry.
    linked = image("links").spec(spec("lls_b"))
    os.rename(linked.packages, linked.root + "/wheels")
    os.symlink("wheels", linked.packages)
    elsewhere = os.path.join(linked.root, "elsewhere")
    wheel(elsewhere, "lls-b", "1.0.0", {"lls_b/__init__.py": ""})
    name = "lls_b-1.0.0-py3-none-any.whl"
    with zipfile.ZipFile(os.path.join(elsewhere, name), "a") as archive:
        link = zipfile.ZipInfo("lls_b/passwd", (2020, 1, 1, 0, 0, 0))
        link.create_system, link.external_attr = 3, 0o120777 << 16
        archive.writestr(link, "/etc/passwd")
    os.symlink(os.path.join("../elsewhere", name), os.path.join(linked.packages, name))
    image("scripts").spec(spec("lls_b")).wheel(
        "lls-b", "1.0.0", {"lls_b/__init__.py": "", "lls_b-1.0.0.dist-info/entry_points.txt": "[console_scripts]\nlls=lls_b:x\n"}
    )
    image("local-version").spec(spec("lls_b", main="lls_b-1.0.0+cpu-py3-none-any.whl")).wheel("lls-b", "1.0.0+cpu", {"lls_b/__init__.py": ""})


def bad_images(out):
    """Images without a provider."""
    image = lambda name: Image(out, name)
    os.makedirs(os.path.join(out, "nothing"))
    no_spec = image("no-spec")
    no_spec.wheel("lls-b", "1.0.0", {"lls_b/__init__.py": ""})
    shutil.rmtree(image("no-packages").spec(spec("lls_b")).packages)
    image("empty-packages").spec(spec("lls_b"))
    image("no-wheel-path").spec(spec("lls_b").replace("wheelPath", "wheel")).wheel("lls-b", "1.0.0", {})
    image("wrong-wheel-path").spec(spec("lls_b", main="lls_c-1.0.0-py3-none-any.whl")).wheel("lls-b", "1.0.0", {})
    image("large-spec").spec(spec("lls_b") + "# " + "x" * (1 << 20)).wheel("lls-b", "1.0.0", {})
    image("tab").spec(spec("lls_b").replace("  name", "\tname")).wheel("lls-b", "1.0.0", {})
    image("indent").spec(spec("lls_b").replace("  api:", " api:")).wheel("lls-b", "1.0.0", {})
    image("colon").spec(spec("lls_b").replace("vendor: Example", "vendor: a: b")).wheel("lls-b", "1.0.0", {})
    image("unclosed").spec(spec("lls_b").replace("vendor: Example", 'vendor: "Example')).wheel("lls-b", "1.0.0", {})
    image("no-key").spec(spec("lls_b").replace("kind: ", "kind ")).wheel("lls-b", "1.0.0", {})
    broken = image("broken-wheel").spec(spec("lls_b"))
    with open(os.path.join(broken.packages, "lls_b-1.0.0-py3-none-any.whl"), "w") as file:
        file.write("this is not an archive")
    bomb = image("metadata-bomb").spec(spec("lls_b"))
    with zipfile.ZipFile(os.path.join(bomb.packages, "lls_b-1.0.0-py3-none-any.whl"), "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("lls_b-1.0.0.dist-info/METADATA", "Name: lls-b\nVersion: 1.0.0\n\n" + " " * (64 << 20))
    several = image("several-metadata").spec(spec("lls_b"))
    several.wheel("lls-b", "1.0.0", {"other-1.0.0.dist-info/METADATA": "Name: other\nVersion: 1.0.0\n"})
    for name, path in (("path-out-of-the-volume", "../../lls_out.py"), ("absolute-path", "/tmp/lls_out.py")):
        image(name).spec(spec("lls_b")).wheel("lls-b", "1.0.0", {path: ""})
    hostile_names = {
        "name-without-tags": b"lls.whl",
        "name-with-newline": b"lls_x-1.0.0\n-py3-none-any.whl",
        "name-as-an-option": b"--target-1.0.0-py3-none-any.whl",
        "name-with-quotes": b"lls_x-1.0.0';$(id)-py3-none-any.whl",
        "name-not-text": b"lls_x\xff-1.0.0-py3-none-any.whl",
    }
    for name, file in hostile_names.items():
        one = image(name).spec(spec("lls_b")).wheel("lls-b", "1.0.0", {"lls_b/__init__.py": ""})
        with open(os.path.join(os.fsencode(one.packages), file), "w"):
            pass
    named = image("main-wheel-is-no-wheel").spec(spec("lls_b", main="lls.whl.txt")).wheel("lls-b", "1.0.0", {"lls_b/__init__.py": ""})
    with open(os.path.join(named.packages, "lls.whl.txt"), "w"):
        pass
    for name, make in {
        "a-folder": os.mkdir,
        "a-pipe": os.mkfifo,
        "a-device": lambda path: os.symlink("/dev/zero", path),
        "a-link-to-nowhere": lambda path: os.symlink("/not/there", path),
        "a-link-to-itself": lambda path: os.symlink(os.path.basename(path), path),
    }.items():
        one = image(f"wheel-is-{name}").spec(spec("lls_b")).wheel("lls-b", "1.0.0", {"lls_b/__init__.py": ""})
        make(os.path.join(one.packages, "lls_x-1.0.0-py3-none-any.whl"))
    # A compressed METADATA whose bytes are not those of any text.
    corrupt = image("corrupt-wheel").spec(spec("lls_b"))
    path = os.path.join(corrupt.packages, "lls_b-1.0.0-py3-none-any.whl")
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("lls_b-1.0.0.dist-info/METADATA", "Name: lls-b\nVersion: 1.0.0\n\n" + "text " * 1000)
    with open(path, "r+b") as file:
        file.seek(30 + len("lls_b-1.0.0.dist-info/METADATA"))
        file.write(b"\xff" * 16)
    binary = image("binary-spec")
    with open(os.path.join(binary.root, "lls-provider-spec.yaml"), "wb") as file:
        file.write(b"\x89PNG\xff")
    binary.wheel("lls-b", "1.0.0", {})


def wheel_paths(out):
    """Metadata that name the main wheel in forms that a search for the text would read wrongly."""
    good = spec("lls_b")
    path = "/lls-provider/packages/lls_b-1.0.0-py3-none-any.whl"
    other = "/lls-provider/packages/lls_dep-1.0.0-py3-none-any.whl"
    line = f"  wheelPath: {path}\n"
    flow = f"spec: {{packageName: lls_b, providerType: 'inline::lls-echo', api: inference, wheelPath: {path}}}\n"
    texts = {
        "comment": f"# wheelPath: {other}\n" + good.replace(line, f"  # wheelPath: {other}\n{line}"),
        "description": good.replace("    Text: with a colon\n", f"    wheelPath: {other}\n"),
        "annotation": good.replace("spec:\n", f"  annotations:\n    wheelPath: {other}\nspec:\n"),
        "quoted-text": good.replace("vendor: Example", f'vendor: "wheelPath: {other} # or"'),
        "quoted": good.replace(line, f'  "wheelPath" : "{path}"  # not "{other}"\n'),
        "flow": good[: good.index("spec:")] + flow,
        "json": json.dumps({"metadata": {"wheelPath": other}, "spec": {"wheelPath": path}}),
    }
    refused = {
        "only-a-comment": good.replace("  wheelPath", "  # wheelPath"),
        "twice": good + f"  wheelPath: {other}\n",
        "alias": good.replace(line, "  wheelPath: *wheel\n"),
        "list": good.replace(line, f"  wheelPath: [{path}]\n"),
        "tagged": good.replace("spec:\n", "? spec\n:\n"),
    }
    for name, text in {**texts, **refused}.items():
        one = Image(out, f"path-{name}").spec(text)
        one.wheel("lls-b", "1.0.0", {"lls_b/__init__.py": ""})
        one.wheel("lls-dep", "1.0.0", {"lls_dep/__init__.py": ""})
        # Beside a wheel of the server, only what the main wheel requires is installed.
        one.wheel("llama-stack", "0.2.14", {"llama_stack/__init__.py": ""})


def for_a_server(out):
    """Providers that a server really serves, and some that it is not started with."""
    text, files = example()

    def renamed(name, replace=()):
        """The example under another name, with changes."""
        def change(content):
            content = content.replace("lls_echo", f"lls_{name}").replace("lls-echo", f"lls-{name}")
            for old, new in replace:
                content = content.replace(old, new)
            return content

        return change(text), {change(path): change(content) for path, content in files.items()}

    # A later release of the example, which says so.
    later = [("1.0.0", "2.0.0"), ("{asked}", "{asked}, by 2.0.0")]
    text_2, files_2 = renamed("echo", later)
    Image(out, "echo-2").spec(text_2).wheel("lls-echo", "2.0.0", files_2)
    # Another provider, which says what version of the dependency it has found.
    told = [("{asked}", "{asked}, with {lls_dep.VERSION}"), ("import time", "import time\n\nimport lls_dep")]
    dep = lambda version: {"lls_dep/__init__.py": f"VERSION = '{version}'\n"}
    for name, requires, bundled in (("second", "lls-dep>=1.0", "1.0.0"), ("third", "lls-dep>=1.0", "1.5.0"), ("fourth", "lls-dep==2.0.0", "2.0.0")):
        own_text, own_files = renamed(name, told)
        provider_image = Image(out, name).spec(own_text)
        provider_image.wheel(f"lls-{name}", "1.0.0", own_files, [requires])
        provider_image.wheel("lls-dep", bundled, dep(bundled))
    text_n, files_n = renamed("lost", [("def get_provider_spec", "import lls_not_there\n\n\ndef get_provider_spec")])
    Image(out, "missing-import").spec(text_n).wheel("lls-lost", "1.0.0", files_n)
    body = "return Echo(config)"
    for name, change in {
        # A server that ends, and one that never serves.
        "dies": (body, "raise RuntimeError('the model is gone')"),
        "hangs": (body, "import asyncio\n\n    await asyncio.sleep(1000000)"),
        # The states of providers are in the answer to /v1/providers. Server 0.7 does not ask external providers for theirs.
        "talks": (
            body,
            "from llama_stack.core.providers import ProviderImpl\n\n"
            "    async def health(self):\n"
            "        return {'inference': {'talks': {'status': 'OK', 'message': 'x' * (5 << 20)}}}\n\n"
            f"    ProviderImpl.get_providers_health = health\n    {body}",
        ),
    }.items():
        own_text, own_files = renamed(name, [change])
        Image(out, name).spec(own_text).wheel(f"lls-{name}", "1.0.0", own_files)
    text_f, files_f = renamed("foreign")
    other = {"x86_64": ("aarch64", 183), "aarch64": ("x86_64", 62)}[os.uname().machine]
    files_f[f"lls_foreign/_fast.cpython-312-{other[0]}-linux-gnu.so"] = elf(other[1])
    Image(out, "foreign-arch").spec(text_f).wheel("lls-foreign", "1.0.0", files_f)


class Volume:
    """The volume external-providers as installations leave it, without the installing."""

    def __init__(self, out, name):
        self.root = os.path.join(out, name)
        self.wheels = os.path.join(self.root, "wheels")
        self.manifest = ""
        os.makedirs(self.root)

    def add(self, id, files=None, requires=(), more=(), kind=None, api="inference", config=None):
        package = "p_" + id.replace("-", "_")
        kind = kind or f"inline::{id}"
        self.wheel(package.replace("_", "-"), "1.0.0", files or provider(package, kind), requires)
        folder = os.path.join(self.root, "metadata", id)
        os.makedirs(folder)
        self.manifest += f"# provider {id}, image registry.example.com/{id}:v1, Python 3.12\n{package.replace('_', '-')}==1.0.0\n"
        for name, version, content in more:
            self.wheel(name, version, content)
            self.manifest += f"{name}=={version}\n"
        order = len(os.listdir(os.path.dirname(folder)))
        crd = {"providerId": id, "api": api, "image": f"registry.example.com/{id}:v1", "order": order}
        if config is not None:
            crd["config"] = config
        for name, text in (
            ("lls-provider-spec.yaml", spec(package, f"inline::{id}", api)),
            ("crd-config.yaml", json.dumps(crd)),
        ):
            with open(os.path.join(folder, name), "w") as file:
                file.write(text)
        with open(os.path.join(self.root, "installed-packages.txt"), "w") as file:
            file.write(self.manifest)

    def wheel(self, *arguments):
        wheel(self.wheels, *arguments)
        for name in os.listdir(self.wheels):
            with zipfile.ZipFile(os.path.join(self.wheels, name)) as archive:
                archive.extractall(os.path.join(self.root, "python-packages"))
        shutil.rmtree(self.wheels)


def for_preflight(out):
    """Providers that can be installed, and that a server should not be started with, or only with a warning."""
    fit = Volume(out, "preflight-good")
    fit.add("good")
    fit.add("mismatch", provider("p_mismatch", "remote::else"))
    optional = "try:\n    import lls_not_there\nexcept ImportError:\n    pass\n"
    fit.add("optional-import", provider("p_optional_import", "inline::optional-import", optional + provider("p_optional_import", "inline::optional-import")["p_optional_import/provider.py"]))
    here = os.uname().machine
    machine, other = {"x86_64": (62, 183), "aarch64": (183, 62)}.get(here, (62, 183))
    several = {f"p_several_pythons/_fast.cpython-{minor}-{here}-linux-gnu.so": elf(machine) for minor in (311, 312)}
    several["p_several_pythons/data/tool.so"] = elf(21)
    fit.add("several-pythons", provider("p_several_pythons", "inline::several-pythons", more=several))

    # Each import ends when the other one has begun.
    meeting = Volume(out, "preflight-parallel")
    for own, partner in (("first", "second"), ("second", "first")):
        wait = (
            "import os\nimport time\n\n"
            f"open(os.path.join(os.environ['HOME'], '{own}'), 'w').close()\n"
            "end = time.monotonic() + 60\n"
            f"while not os.path.exists(os.path.join(os.environ['HOME'], '{partner}')):\n"
            "    assert time.monotonic() < end, 'the other import has not begun'\n"
            "    time.sleep(0.05)\n"
        )
        files = provider(f"p_{own}", f"inline::{own}")
        files[f"p_{own}/provider.py"] = wait + files[f"p_{own}/provider.py"]
        meeting.add(own, files)

    wrong = Volume(out, "preflight-wrong")
    body = lambda id, text: provider("p_" + id.replace("-", "_"), f"inline::{id}", text)
    returns = lambda id, text: body(id, f"def get_provider_spec():\n    return {text}\n")
    wrong.add("good")
    wrong.add("no-provider-module", {"p_no_provider_module/__init__.py": ""})
    wrong.add("no-function", body("no-function", "x = 1\n"))
    wrong.add("returns-none", returns("returns-none", "None"))
    wrong.add("empty-list", returns("empty-list", "[]"))
    wrong.add("raises", returns("raises", "1 / 0"))
    wrong.add("missing-import", body("missing-import", "import lls_not_there\n"))
    wrong.add("dies", body("dies", "import os\nos.kill(os.getpid(), 11)\n"))
    wrong.add("exits", body("exits", "import os\nos._exit(7)\n"))
    wrong.add("says-exit", body("says-exit", "import sys\nsys.exit(0)\n"))
    files = provider("p_no_config_class", "inline::no-config-class")
    wrong.add("no-config-class", {**files, "p_no_config_class/config.py": ""})
    files = provider("p_no_impl", "inline::no-impl")
    wrong.add("no-impl", {**files, "p_no_impl/__init__.py": ""})
    wrong.add("api-is-gone", api="post_training")
    wrong.add("old-server", requires=["llama-stack==0.2.14"])
    # Shadows a package of the distribution with a version that it does not accept.
    wrong.add("shadows", more=[("python-multipart", "0.0.1", {"lls_multipart.py": ""})])

    wrong.add("renamed-api", api="agents")

    # The distribution has lls-old, which does not accept its own lls-new; a provider brings another version of that.
    distribution = Volume(out, "distribution-with-a-conflict")
    distribution.wheel("lls-old", "1.0.0", {"lls_old.py": ""}, ["lls-new<2", "lls-absent>=1"])
    distribution.wheel("lls-new", "2.0.0", {"lls_new.py": ""})
    inherited = Volume(out, "preflight-inherited")
    inherited.add("good", more=[("lls-new", "2.1.0", {"lls_new.py": ""})])

    fields = (
        "from typing import Literal\n\nfrom pydantic import BaseModel, ConfigDict, Field\n\n\n"
        "class Limits(BaseModel):\n    tokens: int = 1\n\n\n"
        "class Config(BaseModel):\n    model_config = ConfigDict(extra=EXTRA)\n    url: str\n    mode: Literal['fast', 'exact'] = 'fast'\n"
        "    api_token: str | None = None\n    limits: list[Limits] = []\n    timeout: int = Field(default=10, ge=1, alias='timeout_seconds')\n"
    )

    def configured(volume, id, config, extra="ignore"):
        package = "p_" + id.replace("-", "_")
        own = {f"{package}/config.py": fields.replace("EXTRA", repr(extra))}
        volume.add(id, provider(package, f"inline::{id}", more=own), config=config)

    fine = Volume(out, "preflight-config-good")
    configured(fine, "complete", {"url": "${env.CONFIG_URL}", "api_token": "${env.CONFIG_TOKEN:=none}", "timeout_seconds": "30"})
    configured(fine, "misspelt", {"url": "x", "mod": "exact"})
    bad = Volume(out, "preflight-config-wrong")
    configured(bad, "several", {"mode": "slow", "limits": [{"tokens": 1}, {"tokens": "many"}], "timeout_seconds": 0})
    configured(bad, "secret", {"url": "x", "api_token": {"value": "hunter2"}})
    configured(bad, "unset", {"url": "${env.NOBODY_SETS_THIS}"})
    configured(bad, "strict", {"url": "x", "mod": "exact"}, extra="forbid")
    configured(bad, "fine", {"url": "x"})
    raises = {"p_raises/config.py": "class Config:\n    def __init__(self, **config):\n        raise ValueError('the port is taken')\n"}
    bad.add("raises", provider("p_raises", "inline::raises", more=raises), config={"port": 1})

    foreign = Volume(out, "preflight-foreign")
    foreign.add("good", provider("p_good", "inline::good", "raise SystemExit('imported before it was looked at')\n"))
    path = f"p_foreign_arch/_fast.cpython-312-{'aarch64' if other == 183 else 'x86_64'}-linux-gnu.so"
    foreign.add("foreign-arch", provider("p_foreign_arch", "inline::foreign-arch", more={path: elf(other)}))
    path = f"p_other_python/_fast.cpython-311-{here}-linux-gnu.so"
    foreign.add("other-python", provider("p_other_python", "inline::other-python", more={path: elf(machine)}))


if __name__ == "__main__":
    installs(sys.argv[1])
    bad_images(sys.argv[1])
    wheel_paths(sys.argv[1])
    for_a_server(sys.argv[1])
    for_preflight(sys.argv[1])
