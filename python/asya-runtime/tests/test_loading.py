"""Start of the runtime: errors with cause and remedy, and readiness."""

from __future__ import annotations

import subprocess
import sys

import pytest

from harness import Connection, Runtime, eventually


@pytest.mark.parametrize(
    ("handler", "env", "exit_code", "text"),
    [
        (None, {}, 2, "ASYA_HANDLER is not set: set it to `module.function`"),
        ("handlers", {}, 2, "must look like `module.function`"),
        ("handlers.écho", {}, 2, "must look like"),
        ("../handlers.echo", {}, 2, "must look like"),
        (
            "handlers.echo",
            {"ASYA_HANDLER_MODE": "batch"},
            2,
            "ASYA_HANDLER_MODE is `batch`: it must be `payload` or `envelope`",
        ),
        ("handlers.echo", {"ASYA_ENABLE_VALIDATION": "maybe"}, 2, "ASYA_ENABLE_VALIDATION is `maybe`"),
        ("handlers.echo", {"ASYA_SOCKET_CHMOD": "rw"}, 2, "ASYA_SOCKET_CHMOD is `rw`"),
        ("handlers.echo", {"ASYA_MAX_FRAME_BYTES": "64M"}, 2, "ASYA_MAX_FRAME_BYTES is `64M`"),
        ("handlers.echo", {"ASYA_RUNTIME_CONCURRENCY": "0"}, 2, "it must be at least 1"),
        ("handlers.echo", {"ASYA_LOG_LEVEL": "chatty"}, 2, "ASYA_LOG_LEVEL is `CHATTY`"),
        ("handlers.echo", {"ASYA_SOCKET": "/" + "x" * 120 + "/s"}, 2, "cannot listen on"),
        ("handlers.echo", {"ASYA_SOCKET": "/proc/none/s"}, 2, "cannot use the folder"),
        ("nowhere.predict", {}, 3, "no module `nowhere` found"),
        ("handlers.ecko", {}, 3, "`handlers` has no `ecko` for ASYA_HANDLER; did you mean `echo`?"),
        ("handlers.Plain.predict", {}, 3, "`handlers.Plain` has no `predict` for ASYA_HANDLER; it has: process"),
        ("handlers.Plain", {}, 3, "cannot be called: it is a `Plain`; name one of its methods: process"),
        ("handlers.not_callable", {}, 3, "cannot be called: it is a `int`"),
        ("handlers.NeedsArguments.process", {}, 3, "missing a required argument: 'model': give every parameter"),
        ("handlers.Fails.process", {}, 3, "cannot instantiate the handler `handlers.Fails()`: RuntimeError: no GPU here"),
        ("handlers.no_argument", {}, 3, "must take one argument"),
        ("importing.missing.predict", {}, 3, "cannot import `importing.missing` for ASYA_HANDLER: ModuleNotFoundError"),
        ("importing.missing.predict", {}, 3, "No module named 'not_installed'"),
        ("importing.missing.predict", {}, 3, "import not_installed"),  # the user's own line
        ("importing.broken.predict", {}, 3, "SyntaxError"),
        ("importing.leaves.predict", {}, 3, "SystemExit: 7"),
        ("importing.fine", {}, 3, "`importing.fine` is a module: add the function, `importing.fine.NAME`"),
        ("asya_runtime.adapters.openai.forward", {"ASYA_TARGET_URL": "ftp://x"}, 3, "must be http://HOST or https://HOST"),
    ],
)
def test_failed_start_reports_the_cause(folder, handler, env, exit_code, text):
    termination_log = folder / "termination-log"
    termination_log.touch()
    with Runtime(folder, handler, ASYA_TERMINATION_LOG=str(termination_log), **env) as runtime:
        assert runtime.exit_code() == exit_code
        assert text in runtime.log()
        assert "asya-runtime: " in runtime.log()
        assert text in termination_log.read_text(), "`kubectl describe pod` shows it, too"
        assert "in load_handler" not in runtime.log(), "the runtime's own frames are noise"
        assert not (folder / "asya-runtime.sock").exists()
        assert not (folder / "runtime-ready").exists()


def test_ready_from_the_loaded_handler_until_the_end(folder):
    (folder / "runtime-ready").write_text("ready")  # a killed runtime left it
    ready, sock = folder / "runtime-ready", folder / "asya-runtime.sock"
    with Runtime(folder, "importing.slow.predict") as runtime:
        eventually(runtime.notes, "the handler's module is being imported")
        assert not ready.exists()
        assert not sock.exists()
        (folder / "notes.go").touch()
        eventually(ready.exists, "the runtime is ready")
        assert ready.read_text() == "ready\nprotocol 2\n"
        assert sock.stat().st_mode & 0o777 == 0o666
        assert runtime.ask({"id": "1", "route": {"actors": ["a"]}, "payload": 1})[0]["payload"] == 1
        runtime.terminate()
        assert runtime.exit_code() == 0
        assert not ready.exists()
        assert not sock.exists()


def test_sigterm_while_the_handler_is_loaded(folder):
    with Runtime(folder, "importing.slow.predict") as runtime:
        eventually(runtime.notes, "the handler's module is being imported")
        runtime.terminate()
        assert runtime.exit_code() == 0
        assert "stopped before the handler was loaded" in runtime.log()


def test_sigterm_before_the_first_import(folder):
    """PID 1 of a container ignores signals without a handler, so there must be one before the slow imports."""
    hook = "import os, signal, sys\nclass End:\n def find_spec(name, *_):\n"
    hook += "  if name == 'asyncio': os.kill(os.getpid(), signal.SIGTERM)\nsys.meta_path.insert(0, End)\n"
    (folder / "sitecustomize.py").write_text(hook)
    command = [sys.executable, str(_mounted(folder))]
    with Runtime(folder, "handlers.echo", command=command, PYTHONPATH=str(folder)) as runtime:
        assert runtime.exit_code() == 0, runtime.log()


def test_warm_up_runs_once_before_ready(start):
    runtime = start("handlers.WarmUp.process")
    assert runtime.notes() == ["warm"]
    runtime.ask({"route": {"actors": ["a"]}, "payload": 1})
    assert runtime.notes() == ["warm", "processed"]


def test_the_working_directory_is_importable(folder):
    (folder / "mine.py").write_text("def handle(payload):\n    return payload\n")
    command = [str(next(p for p in [*_scripts()] if p.exists()))]
    with Runtime(folder, "mine.handle", command=command) as runtime:
        assert runtime.ready().ask({"route": {"actors": ["a"]}, "payload": 1})[0]["payload"] == 1


def _scripts():
    """The installed command `asya-runtime`."""
    from pathlib import Path

    yield Path(sys.executable).with_name("asya-runtime")


def test_mounted_alone_it_runs_without_the_package(folder):
    """Same as standalone mode: python3 /opt/asya/asya_runtime.py without the package."""
    script = _mounted(folder)
    python = [sys.executable, "-I", "-S", str(script)]
    with Runtime(folder, "json.dumps", command=python) as runtime:
        assert runtime.ready().ask({"route": {"actors": ["a"]}, "payload": [1]})[0]["payload"] == "[1]"
    with Runtime(folder, "adapters.openai.forward", command=python) as runtime:
        assert runtime.exit_code() == 3
        assert "`pip install asya-runtime` in the image" in runtime.log()


def test_mounted_script_does_not_hide_the_installed_package(folder):
    """The script's folder is first in the path, yet handlers see the package, its adapters and the current envelope."""
    script = _mounted(folder)
    with Runtime(folder, "handlers.who", command=[sys.executable, str(script)]) as runtime:
        asked = {"id": "7", "route": {"actors": ["a"]}, "payload": 1}
        assert runtime.ready().ask(asked)[0]["payload"] == {"id": "7", "route": {"actors": ["a"]}}
    with Runtime(
        folder, "adapters.kaito_openai.forward", command=[sys.executable, str(script)], ASYA_TARGET_WAIT="0"
    ) as runtime:
        [item] = runtime.ready().ask({"route": {"actors": ["a"]}, "payload": 1})
        assert "the payload is not an OpenAI request" in item["details"]["message"]


def _mounted(folder):
    import asya_runtime.runtime

    (folder / "opt").mkdir()
    script = folder / "opt" / "asya_runtime.py"
    with open(asya_runtime.runtime.__file__) as source:
        script.write_text(source.read())
    return script


def test_stale_socket_is_replaced_and_one_in_use_is_not(folder):
    with Runtime(folder, "handlers.echo") as killed:
        killed.ready().process.kill()
        killed.exit_code()
    assert (folder / "asya-runtime.sock").exists()
    with Runtime(folder, "handlers.echo") as runtime:
        runtime.ready()
        with Runtime(folder, "handlers.echo") as second:
            assert second.exit_code() == 2
            assert "another runtime listens on" in second.log()
        assert Connection(runtime.address).ask({"route": {"actors": ["a"]}, "payload": 1})[0]["payload"] == 1
        assert (folder / "runtime-ready").exists()


def test_file_at_the_path_of_the_socket_is_not_deleted(folder):
    (folder / "asya-runtime.sock").write_text("precious")
    with Runtime(folder, "handlers.echo") as runtime:
        assert runtime.exit_code() == 2
        assert "exists and is not a socket" in runtime.log()
    assert (folder / "asya-runtime.sock").read_text() == "precious"


def test_an_abstract_socket_needs_no_file(folder):
    name = f"@asya-test-{folder.name}"
    with Runtime(folder, "handlers.echo", ASYA_SOCKET=name) as runtime:
        assert runtime.ready().ask({"route": {"actors": ["a"]}, "payload": 1})[0]["payload"] == 1
        assert sorted(path.name for path in folder.iterdir()) == ["stderr"]
        with Runtime(folder, "handlers.echo", ASYA_SOCKET=name) as second:
            assert second.exit_code() == 2
            assert "another program listens on it" in second.log()
        runtime.terminate()
        assert runtime.exit_code() == 0


def test_the_package_depends_on_nothing():
    shown = subprocess.run(
        [sys.executable, "-m", "pip", "show", "asya-runtime"], check=True, capture_output=True, text=True
    ).stdout
    assert "\nRequires: \n" in shown
