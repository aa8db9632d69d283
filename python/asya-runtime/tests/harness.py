"""A real runtime process, spoken to over its real socket."""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PATIENCE = 60.0


def eventually(check: Callable[[], Any], what: str) -> Any:
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        if result := check():
            return result
        time.sleep(0.01)
    raise AssertionError(f"not within {PATIENCE} s: {what}")


def envelope(payload: Any = None, actors: tuple[str, ...] = ("a", "b"), current: int = 0, **more: Any) -> dict[str, Any]:
    return {"id": "e1", "route": {"actors": list(actors), "current": current}, "payload": payload, **more}


class Connection:
    """What a sidecar holds."""

    def __init__(self, address: str) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(PATIENCE)
        self.sock.connect(address)

    def send(self, message: Any) -> None:
        body = message if isinstance(message, bytes) else json.dumps(message).encode()
        self.sock.sendall(struct.pack(">I", len(body)) + body)

    def receive_frame(self) -> bytes | None:
        """The body of the next frame; None at the end of the stream."""
        header = self._exactly(4)
        if not header:
            return None
        return self._exactly(struct.unpack(">I", header)[0])

    def receive(self) -> Any:
        body = self.receive_frame()
        assert body is not None, "the runtime closed the connection without an answer"
        return json.loads(body, parse_constant=lambda name: (_ for _ in ()).throw(AssertionError(f"bare {name}")))

    def ask(self, message: Any) -> Any:
        self.send(message)
        return self.receive()

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            try:
                chunk = self.sock.recv(count - len(data))
            except ConnectionResetError:
                return b""
            if not chunk:
                return b""
            data += chunk
        return data

    def close(self) -> None:
        self.sock.close()

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Runtime:
    """The process; by default as `python -m asya_runtime` with a socket file in `folder`."""

    def __init__(self, folder: Path, handler: str | None, *, command: list[str] | None = None, **env: str) -> None:
        self.folder = folder
        self.errors = folder / "stderr"
        self.address = str(folder / "asya-runtime.sock")
        if env.get("ASYA_SOCKET", "").startswith("@"):
            self.address = "\0" + env["ASYA_SOCKET"][1:]
        clean = {key: value for key, value in os.environ.items() if not key.startswith("ASYA_")}
        clean |= {"ASYA_SOCKET_DIR": str(folder), "PYTHONPATH": str(HERE), "NOTES": str(folder / "notes")}
        if handler is not None:
            clean["ASYA_HANDLER"] = handler
        with self.errors.open("ab") as errors:
            self.process = subprocess.Popen(
                command or [sys.executable, "-m", "asya_runtime"], env=clean | env, stderr=errors, cwd=folder
            )

    def connect(self) -> Connection:
        return Connection(self.address)

    def ready(self) -> Runtime:
        def listening() -> bool:
            assert self.process.poll() is None, f"the runtime ended:\n{self.log()}"
            try:
                self.connect().close()
            except OSError:
                return False
            return True

        eventually(listening, "the runtime listens")
        return self

    def ask(self, message: Any) -> Any:
        with self.connect() as connection:
            return connection.ask(message)

    def log(self) -> str:
        return self.errors.read_text()

    def notes(self) -> list[str]:
        """What the handlers wrote down."""
        path = self.folder / "notes"
        return path.read_text().splitlines() if path.exists() else []

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def exit_code(self) -> int:
        return self.process.wait(PATIENCE)

    def __enter__(self) -> Runtime:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(PATIENCE)


def error_of(answer: Any) -> tuple[str, dict[str, Any]]:
    assert isinstance(answer, list), answer
    assert len(answer) == 1, answer
    assert set(answer[0]) == {"error", "details"}, answer
    assert set(answer[0]["details"]) == {"message", "type", "traceback"}
    return answer[0]["error"], answer[0]["details"]
