#!/usr/bin/env python3
"""The Asya handler runtime: loads one Python handler and responds to the sidecar's requests on a Unix socket.

One file without dependencies, for Python 3.10 and newer. It runs as the command `asya-runtime`, or mounted alone as
`asya_runtime.py`. The protocol is docs/reference/asya-protocol.md, sections 3 and 4.

It reads top down: settings, loading the handler, envelopes, calling the handler, the socket, `main`.
"""

from __future__ import annotations

import os
import signal

if __name__ == "__main__":
    # The first process of a container ignores a signal for which it has no handler: until `main` the pod could not be ended.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))

import asyncio
import contextlib
import contextvars
import copy
import difflib
import errno
import faulthandler
import functools
import importlib
import importlib.machinery
import importlib.util
import inspect
import json
import logging
import math
import re
import select
import selectors
import socket
import stat
import struct
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, fields, is_dataclass
from datetime import date, datetime, timezone
from datetime import time as clock
from enum import Enum
from pathlib import Path
from typing import Any, Union, get_args, get_origin, get_type_hints
from uuid import UUID

log = logging.getLogger("asya.runtime")

READY = "ready\nprotocol 2\n"
HEADER = struct.Struct(">I")
MAX_CONNECTIONS = 128
# Longest pause of the peer within a frame, in seconds.
FRAME_PATIENCE = 30.0
# An error must fit into a frame, however long the handler's message is.
LONGEST_TEXT = 8_192

EXIT_SETTINGS = 2
EXIT_HANDLER = 3
EXIT_STUCK = 4
# Time in seconds by which a call may exceed the sidecar's limit before the process ends.
STUCK_AFTER = 10.0
# The same after the sidecar closed the connection, if its limit is unknown.
ABANDONED_AFTER = 60.0


class SetupError(Exception):
    """The runtime cannot start. The message contains cause and remedy."""

    def __init__(self, message: str, exit_code: int = EXIT_SETTINGS) -> None:
        super().__init__(message)
        self.exit_code = exit_code


# ---------------------------------------------------------------------------------------------------------- settings


@dataclass(frozen=True)
class Settings:
    """Settings from the environment, with the defaults of the README."""

    handler: str
    envelope_mode: bool = False
    validate: bool = True
    # `@NAME` is an abstract socket, anything else a path.
    socket: str = "/var/run/asya/asya-runtime.sock"
    socket_mode: int | None = 0o666
    max_frame_bytes: int = 64 * 1024 * 1024
    chunk_bytes: int = 65_536
    concurrency: int = 1
    # Time limit of the sidecar for one call, in seconds. None: unknown.
    timeout: float | None = None

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> Settings:
        handler = env.get("ASYA_HANDLER", "").strip()
        if not handler:
            raise SetupError("ASYA_HANDLER is not set: set it to `module.function` or `module.Class.method`")
        mode = env.get("ASYA_HANDLER_MODE", "").strip().lower() or "payload"
        if mode not in ("payload", "envelope"):
            raise SetupError(f"ASYA_HANDLER_MODE is `{mode}`: it must be `payload` or `envelope`")
        folder = env.get("ASYA_SOCKET_DIR") or "/var/run/asya"
        return cls(
            handler=handler,
            envelope_mode=mode == "envelope",
            validate=_flag(env, "ASYA_ENABLE_VALIDATION", True),
            socket=env.get("ASYA_SOCKET") or f"{folder}/asya-runtime.sock",
            socket_mode=_file_mode(env.get("ASYA_SOCKET_CHMOD", "0o666").strip()),
            max_frame_bytes=_whole_number(env, "ASYA_MAX_FRAME_BYTES", 64 * 1024 * 1024, least=65_536),
            chunk_bytes=_whole_number(env, "ASYA_CHUNK_SIZE", 65_536, least=1),
            concurrency=_whole_number(env, "ASYA_RUNTIME_CONCURRENCY", 1, least=1),
            timeout=_duration(env, "ASYA_RUNTIME_TIMEOUT"),
        )

    @property
    def abstract(self) -> bool:
        return self.socket.startswith("@")

    @property
    def address(self) -> str:
        return "\0" + self.socket[1:] if self.abstract else self.socket

    @property
    def ready_file(self) -> Path:
        return Path(self.socket).with_name("runtime-ready")


def _flag(env: Mapping[str, str], name: str, default: bool) -> bool:
    text = env.get(name, "").strip().lower()
    if not text:
        return default
    if text in ("true", "1", "yes", "on"):
        return True
    if text in ("false", "0", "no", "off"):
        return False
    raise SetupError(f"{name} is `{text}`: it must be `true` or `false`")


def _whole_number(env: Mapping[str, str], name: str, default: int, least: int) -> int:
    text = env.get(name, "").strip()
    try:
        number = int(text) if text else default
    except ValueError:
        raise SetupError(f"{name} is `{text}`: it must be a whole number") from None
    if number < least:
        raise SetupError(f"{name} is {number}: it must be at least {least}")
    return number


def _duration(env: Mapping[str, str], name: str) -> float | None:
    """A duration in Go's notation, as the sidecar reads it, in seconds."""
    text = env.get(name, "").strip()
    if not text:
        return None
    units = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 0.001}
    parts = re.findall(r"(\d+(?:\.\d+)?)(h|ms|m|s)", text)
    if "".join(number + unit for number, unit in parts) != text:
        raise SetupError(f"{name} is `{text}`: it must be a duration such as `300s`, `5m` or `1m30s`")
    return sum(float(number) * units[unit] for number, unit in parts)


def _file_mode(text: str) -> int | None:
    if not text:
        return None
    try:
        return int(text, 8)
    except ValueError:
        raise SetupError(f"ASYA_SOCKET_CHMOD is `{text}`: it must be an octal number like 0o666, or empty") from None


# ------------------------------------------------------------------------------------------------------- the handler

HANDLER = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+", re.ASCII)


def load_handler(path: str) -> Callable[[Any], Any]:
    """Load the callable with the path `module.function`, `module.Class`, `module.Class.method` or `module.object.method`.

    A class is instantiated once, without arguments. If the handler (or the object it is a method of) has
    `asya_warm_up()`, it is called before the runtime says that it is ready.
    """
    if not HANDLER.fullmatch(path):
        raise SetupError(f"ASYA_HANDLER is `{path}`: it must look like `module.function` or `module.Class.method`")
    parts = path.split(".")
    if parts[0] == "adapters" and importlib.util.find_spec("adapters") is None:
        parts.insert(0, "asya_runtime")
    module, names = _import_longest(parts)
    with _users_code(f"cannot find `{path}` for ASYA_HANDLER"):
        handler = _resolve(module, names)
    _takes_one_argument(handler, path)
    warm_up = getattr(getattr(handler, "__self__", handler), "asya_warm_up", None)
    if warm_up is not None:
        with _users_code(f"{path}: asya_warm_up() failed"):
            warm_up()
    return handler


def _import_longest(parts: list[str]) -> tuple[Any, list[str]]:
    """The longest prefix that is a module, and the rest. An error inside a module is reported as such."""
    module: Any = None
    taken = 0
    while taken < len(parts) - 1:
        name = ".".join(parts[: taken + 1])
        if module is not None and not hasattr(module, "__path__"):
            break
        with _users_code(f"cannot import `{name}` for ASYA_HANDLER"):
            if name not in sys.modules and importlib.util.find_spec(name) is None:
                break
            module = importlib.import_module(name)
        taken += 1
    if module is None:
        where = ", ".join(entry or "." for entry in sys.path)
        raise SetupError(
            f"no module `{parts[0]}` found for ASYA_HANDLER `{'.'.join(parts)}`: add it to the image, and its folder "
            f"to PYTHONPATH or the working directory. Searched in: {where}",
            EXIT_HANDLER,
        )
    return module, parts[taken:]


def _resolve(module: Any, names: list[str]) -> Callable[[Any], Any]:
    value, path = module, module.__name__
    for name in names:
        if inspect.isclass(value) and _needs_an_instance(value, name):
            value = _instantiate(value, path)
        if not hasattr(value, name):
            raise SetupError(_no_such_name(value, path, name), EXIT_HANDLER)
        value, path = getattr(value, name), f"{path}.{name}"
    if inspect.isclass(value):
        value = _instantiate(value, path)
    if inspect.ismodule(value):
        raise SetupError(f"ASYA_HANDLER `{path}` is a module: add the function, `{path}.NAME`", EXIT_HANDLER)
    if not callable(value):
        hint = _public_names(value)
        raise SetupError(
            f"ASYA_HANDLER `{path}` cannot be called: it is a `{type(value).__name__}`"
            + (f"; name one of its methods: {hint}" if hint else ""),
            EXIT_HANDLER,
        )
    return value


def _needs_an_instance(cls: type, name: str) -> bool:
    return not isinstance(inspect.getattr_static(cls, name, None), (staticmethod, classmethod, type))


def _instantiate(cls: type, path: str) -> Any:
    # A class without a readable signature (written in C) reports its own error when it is called.
    with contextlib.suppress(ValueError):
        try:
            inspect.signature(cls).bind()
        except TypeError as error:
            raise SetupError(
                f"cannot instantiate `{path}` without arguments: {error}: give every parameter of `__init__` a default",
                EXIT_HANDLER,
            ) from None
    with _users_code(f"cannot instantiate the handler `{path}()`"):
        return cls()


def _takes_one_argument(handler: Callable[[Any], Any], path: str) -> None:
    try:
        signature = inspect.signature(handler)
    except (TypeError, ValueError):
        return  # written in C: cannot be checked before the first call
    try:
        signature.bind(None)
    except TypeError as error:
        raise SetupError(
            f"the handler `{path}{signature}` must take one argument, the payload or the envelope: {error}", EXIT_HANDLER
        ) from None


def _no_such_name(value: Any, path: str, name: str) -> str:
    if inspect.ismodule(value) and hasattr(value, "__path__"):
        with contextlib.suppress(Exception):
            if importlib.util.find_spec(f"{path}.{name}") is not None:
                return f"ASYA_HANDLER `{path}.{name}` is a module: add the function, `{path}.{name}.NAME`"
    if value is sys.modules.get("asya_runtime") and not hasattr(value, "__path__"):
        return "the adapters are part of the package, not of the mounted script: run `pip install asya-runtime` in the image"
    close = difflib.get_close_matches(name, dir(value), 1)
    hint = f"did you mean `{close[0]}`?" if close else f"it has: {_public_names(value) or 'nothing callable'}"
    return f"`{path}` has no `{name}` for ASYA_HANDLER; {hint}"


def _public_names(value: Any) -> str:
    names = [name for name in dir(value) if not name.startswith("_") and callable(getattr(value, name, None))]
    return ", ".join(names[:20])


class _Terminated(BaseException):
    """SIGTERM before the runtime was ready."""


@contextlib.contextmanager
def _users_code(what: str) -> Iterator[None]:
    """Turn exceptions of the user's code during loading into a SetupError with their traceback."""
    try:
        yield
    except (SetupError, _Terminated):
        raise
    except BaseException as error:
        raise SetupError(f"{what}: {_one_line(error)}\n{_users_traceback(error)}", EXIT_HANDLER) from None


def _one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {_text_of(error)}"


def _text_of(error: BaseException) -> str:
    try:
        return _unicode(str(error)[:LONGEST_TEXT])
    except Exception:
        return "(the text of this error cannot be made)"


def _unicode(text: str) -> str:
    """The text with lone surrogates, such as those of file names that are not UTF-8, as `\\udce9`, which JSON can represent."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _users_traceback(error: BaseException) -> str:
    """The traceback without the frames of this file and of the import machinery at its top."""
    ours = (__file__, importlib.__file__, "<frozen importlib._bootstrap>", "<frozen importlib._bootstrap_external>")
    frame = error.__traceback__
    while frame is not None and frame.tb_frame.f_code.co_filename in ours:
        frame = frame.tb_next
    try:
        return _unicode("".join(traceback.format_exception(type(error), error, frame))[-LONGEST_TEXT:])
    except Exception:
        return type(error).__name__


# ----------------------------------------------------------------------------------------------- typed parameters


def reader_of(handler: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """What makes the handler's argument of a payload: an object of the parameter's type, if it is a dataclass or pydantic's."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    function = handler if inspect.isroutine(handler) else type(handler).__call__
    try:
        hints = get_type_hints(function)
        parameters = list(inspect.signature(handler).parameters)
    except Exception:
        return lambda payload: payload  # without a signature, or with names that exist for type checkers only
    hint = hints.get(parameters[0]) if parameters else None
    if not (inspect.isclass(hint) and (is_dataclass(hint) or hasattr(hint, "model_validate"))):
        return lambda payload: payload
    return lambda payload: _read_payload(hint, payload)


def _read_payload(hint: type, payload: Any) -> Any:
    try:
        return _read(hint, payload)
    except (TypeError, ValueError) as error:
        raise ValueError(f"the payload is not a `{hint.__name__}`: {error}") from None


def _read(hint: Any, value: Any) -> Any:
    """The value as the type of a field. Other types than those that `plain` writes are not checked."""
    if get_origin(hint) in (Union, type(int | str)):
        present = [option for option in get_args(hint) if option is not type(None)]
        return _read(present[0], value) if value is not None and len(present) == 1 else value
    if get_origin(hint) is list and isinstance(value, list):
        return [_read(get_args(hint)[0], item) for item in value]
    if not inspect.isclass(hint):
        return value
    if hasattr(hint, "model_validate"):
        return hint.model_validate(value)
    if is_dataclass(hint):
        return _read_dataclass(hint, value)
    if issubclass(hint, (datetime, date, clock)) and isinstance(value, str):
        # Python 3.10 does not parse `Z`.
        return hint.fromisoformat(value.removesuffix("Z") + "+00:00" if value.endswith("Z") else value)
    if issubclass(hint, (UUID, Enum)):
        return hint(value)
    return value


def _read_dataclass(hint: Any, value: Any) -> Any:
    if not isinstance(value, dict):
        raise ValueError(f"it must be an object, not {_kind(value)}")
    hints = get_type_hints(hint)
    given = {}
    for field in fields(hint):
        if field.init and field.name in value:
            try:
                given[field.name] = _read(hints[field.name], value[field.name])
            except (TypeError, ValueError) as error:
                raise ValueError(f"`{field.name}`: {error}") from None
    return hint(**given)


# --------------------------------------------------------------------------------------------------------- envelopes


class BadEnvelope(ValueError):
    """The message is not an envelope."""


class DeadlineExceeded(Exception):
    """The envelope's `deadline` has passed."""


class Unavailable(Exception):
    """A service that the handler needs is down. The sidecar holds the message and calls again later."""


_current: contextvars.ContextVar[dict[str, Any] | None] = contextvars.ContextVar("asya_envelope", default=None)


def current_envelope() -> dict[str, Any]:
    """A copy of the current envelope without its payload: `id`, `route`, `headers`, `deadline`, ….

    For handlers in payload mode. Outside a call it is empty.
    """
    envelope = _current.get()
    if envelope is None:
        return {}
    return copy.deepcopy({key: value for key, value in envelope.items() if key != "payload"})


def time_left(envelope: Mapping[str, Any]) -> float | None:
    """Seconds until the envelope's `deadline`; None without a valid one."""
    text = envelope.get("deadline")
    if not isinstance(text, str):
        return None
    # Python 3.10 parses neither `Z` nor nanoseconds.
    match = re.fullmatch(r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:\d\d)(\.\d+)?([Zz]|[+-]\d\d:\d\d)", text.strip())
    if match is None:
        return None
    day, clock, fraction, zone = match.groups()
    offset = "+00:00" if zone in "Zz" else zone
    try:
        moment = datetime.fromisoformat(f"{day}T{clock}{offset}")
    except ValueError:
        return None
    return (moment - datetime.now(timezone.utc)).total_seconds() + float(fraction or 0)


def parse(body: bytes) -> Any:
    try:
        return json.loads(body.decode("utf-8"), parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        raise BadEnvelope(f"the message is not UTF-8: {error}") from None
    except RecursionError:
        raise BadEnvelope("the message is nested too deeply") from None
    except ValueError as error:
        raise BadEnvelope(f"the message is not JSON: {error}") from None


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON number")


def check_envelope(envelope: Any) -> None:
    if not isinstance(envelope, dict):
        raise BadEnvelope(f"an envelope must be a JSON object, not {_kind(envelope)}")
    for key in ("payload", "route"):
        if key not in envelope:
            raise BadEnvelope(f"`{key}` is missing")
    check_route(envelope["route"])
    if not isinstance(envelope.get("headers", {}), dict):
        raise BadEnvelope(f"`headers` must be an object, not {_kind(envelope['headers'])}")
    if not isinstance(envelope.get("id", ""), str):
        raise BadEnvelope(f"`id` must be a string, not {_kind(envelope['id'])}")


def check_route(route: Any) -> None:
    if not isinstance(route, dict):
        raise BadEnvelope(f"`route` must be an object, not {_kind(route)}")
    actors = route.get("actors")
    if not isinstance(actors, list) or not actors:
        raise BadEnvelope("`route.actors` must be a list with at least one actor")
    if not all(isinstance(actor, str) for actor in actors):
        raise BadEnvelope("`route.actors` must be a list of strings")
    current = route.get("current", 0)
    if isinstance(current, bool) or not isinstance(current, int):
        raise BadEnvelope(f"`route.current` must be a whole number, not {_kind(current)}")
    if not 0 <= current <= len(actors):
        raise BadEnvelope(f"`route.current` is {current}: it must be between 0 and {len(actors)}, the number of actors")


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", int: "a number", float: "a number"}
    return "null" if value is None else names.get(type(value), f"a Python `{type(value).__name__}`")


def advanced(route: Any) -> Any:
    """The route advanced to the next actor. A finished route stays as it is."""
    if not isinstance(route, dict):
        return route
    current, actors = route.get("current", 0), route.get("actors")
    if not isinstance(current, int) or not isinstance(actors, list):
        return route
    return {**route, "current": min(current + 1, len(actors))}


@dataclass(frozen=True)
class Passed:
    """The finished part of a route, copied before the handler can change it."""

    actors: tuple[str, ...]

    @classmethod
    def of(cls, route: Mapping[str, Any]) -> Passed:
        return cls(tuple(route["actors"][: route.get("current", 0) + 1]))

    def check(self, item: Any) -> dict[str, Any]:
        """The handler's item with the kept keys; an error if it is not an envelope, or changes the finished part."""
        if not isinstance(item, dict):
            raise ValueError(f"in envelope mode the handler must return envelopes (objects), not {_kind(item)}")
        try:
            check_envelope(item)
        except BadEnvelope as error:
            raise ValueError(f"the handler returned an invalid envelope: {error}") from None
        kept = tuple(item["route"]["actors"][: len(self.actors)])
        if kept != self.actors:
            raise ValueError(
                f"the handler changed finished actors: `route.actors` started with {list(self.actors)}, now with "
                f"{list(kept)}; only the actors after them may change"
            )
        return {key: item[key] for key in ("id", "parent_id", "route", "headers", "payload") if key in item}


# ---------------------------------------------------------------------------------------------- calling the handler


class Call:
    """One request: the argument of the handler, and the response so far."""

    def __init__(self, body: bytes, settings: Settings) -> None:
        self.settings = settings
        self.parts: list[bytes] = []
        self.size = 2
        self.envelope = parse(body)
        if settings.validate:
            check_envelope(self.envelope)
        elif not settings.envelope_mode and not isinstance(self.envelope, dict):
            raise BadEnvelope(f"an envelope must be a JSON object, not {_kind(self.envelope)}")
        known = self.envelope if isinstance(self.envelope, dict) else {}
        # End actors (validation off) accept every message, even after its deadline.
        self.seconds = time_left(known) if settings.validate else None
        if self.seconds is not None and self.seconds <= 0:
            raise DeadlineExceeded(f"the deadline {known['deadline']} has passed before the handler was called")
        if settings.envelope_mode:
            self.passed = Passed.of(self.envelope["route"]) if settings.validate else None
        else:
            self.common = {"route": advanced(known.get("route"))}
            if "headers" in known:
                self.common["headers"] = known["headers"]
        _current.set(known)

    @property
    def argument(self) -> Any:
        return self.envelope if self.settings.envelope_mode else self.envelope.get("payload")

    def add(self, item: Any) -> None:
        """Encode each item immediately, so that the items of a generator never exceed a frame."""
        if not self.settings.envelope_mode:
            item = {"payload": item, **self.common}
        elif self.passed is not None:
            item = self.passed.check(item)
        part = encode(item)
        self.size += len(part) + 1
        if self.size > self.settings.max_frame_bytes:
            raise ValueError(
                f"the result of the handler is larger than {self.settings.max_frame_bytes} bytes (ASYA_MAX_FRAME_BYTES): "
                "store large data elsewhere and return its address"
            )
        self.parts.append(part)

    def answer(self) -> bytes:
        return b"[" + b",".join(self.parts) + b"]"


def messages(result: Any) -> Iterable[Any]:
    """The result of a handler as messages: none for None, several for a list, tuple or generator, otherwise one."""
    if result is None:
        return ()
    if isinstance(result, (list, tuple, Iterator)):
        return result
    return (result,)


def plain(value: Any) -> Any:
    """A value that JSON does not know, as one that it knows: dataclasses and pydantic models as objects, times in ISO 8601,
    UUIDs and members of enumerations as their values, arrays and numbers of NumPy as lists and numbers."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    if hasattr(value, "model_dump") and not isinstance(value, type):
        return value.model_dump(mode="json")
    if isinstance(value, (datetime, date, clock)):
        return value.isoformat()
    if isinstance(value, UUID):
        return str(value)
    if isinstance(value, Enum):
        return value.value
    if type(value).__module__.partition(".")[0] == "numpy" and hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a Python `{type(value).__module__}.{type(value).__qualname__}`; convert it, such as to str")


def encode(item: Any) -> bytes:
    try:
        return json.dumps(item, allow_nan=False, separators=(",", ":"), default=plain).encode("ascii")
    except RecursionError:
        raise ValueError("the result of the handler contains itself, or is nested too deeply for JSON") from None
    except (TypeError, ValueError) as error:
        raise ValueError(_not_json(item, "") or f"the result of the handler is not valid JSON: {error}") from None


def _not_json(value: Any, path: str, depth: int = 0) -> str | None:
    """Describe the first value that JSON cannot represent."""
    children: Iterable[tuple[str, Any]] = ()
    if isinstance(value, float):
        if not math.isfinite(value):
            return f"the result of the handler is not valid JSON: `{path}` is {value}, which is not a JSON number"
    elif isinstance(value, dict):
        for key in value:
            if not isinstance(key, (str, int, float, bool, type(None))):
                return f"the result of the handler is not valid JSON: a key of `{path}` is a Python `{type(key).__name__}`"
        children = ((f"{path}.{key}" if path else str(key), child) for key, child in value.items())
    elif isinstance(value, (list, tuple)):
        children = ((f"{path}[{index}]", child) for index, child in enumerate(value))
    elif not isinstance(value, (str, int, type(None))):
        try:
            children = ((path, plain(value)),)
        except Exception as error:
            return f"the result of the handler is not valid JSON: `{path}` is {error}"
    if depth < 64:
        for where, child in children:
            if found := _not_json(child, where, depth + 1):
                return found
    return None


class Runner:
    """Turn the body of a request into the body of its response. Never raises."""

    def __init__(self, handler: Callable[[Any], Any], settings: Settings) -> None:
        self.handler = handler
        self.settings = settings
        self.read = (lambda envelope: envelope) if settings.envelope_mode else reader_of(handler)

    def answer(self, body: bytes) -> bytes:
        if not body:
            return b""  # a ping
        try:
            call = Call(body, self.settings)
            result = self.handler(self.read(call.argument))
            if inspect.isawaitable(result) or isinstance(result, AsyncIterator):
                asyncio.run(self._drain(call, result))
            else:
                for item in messages(result):
                    call.add(item)
            return call.answer()
        except BaseException as error:  # `sys.exit()` in a handler is an error of the handler
            return failure(error)
        finally:
            _current.set(None)

    async def answer_async(self, body: bytes) -> bytes:
        if not body:
            return b""
        try:
            call = Call(body, self.settings)
            try:
                await asyncio.wait_for(self._drain(call, self.handler(self.read(call.argument))), call.seconds)
            except (TimeoutError, asyncio.TimeoutError):
                if call.seconds is not None and (time_left(call.envelope) or 0) <= 0:
                    raise DeadlineExceeded(f"the deadline {call.envelope['deadline']} passed while the handler ran") from None
                raise
            return call.answer()
        except (KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:
            return failure(error)

    async def _drain(self, call: Call, result: Any) -> None:
        if inspect.isawaitable(result):
            result = await result
        if isinstance(result, AsyncIterator):
            async for item in result:
                call.add(item)
        else:
            for item in messages(result):
                call.add(item)


def failure(error: BaseException) -> bytes:
    """The response for an error."""
    kinds = {BadEnvelope: "msg_parsing_error", Unavailable: "unavailable"}
    code = next((code for kind, code in kinds.items() if isinstance(error, kind)), "processing_error")
    text, trace = _text_of(error) or type(error).__name__, _users_traceback(error)
    envelope = _current.get() or {}
    shown = f"envelope {envelope.get('id', '(no id)')}"
    if isinstance(error, (BadEnvelope, DeadlineExceeded, Unavailable)):
        log.warning("%s: %s: %s", shown, type(error).__name__, text)
    else:
        log.error("%s: %s: %s\n%s", shown, type(error).__name__, text, trace)
    details = {"message": text, "type": type(error).__name__, "traceback": trace}
    return encode([{"error": code, "details": details}])


def broken_frame(code: str, message: str) -> bytes:
    return encode([{"error": code, "details": {"message": message, "type": "FrameError", "traceback": ""}}])


def is_async(handler: Callable[[Any], Any]) -> bool:
    while isinstance(handler, functools.partial):
        handler = handler.func
    candidates = (handler, type(handler).__call__)
    return any(inspect.iscoroutinefunction(c) or inspect.isasyncgenfunction(c) for c in candidates)


# -------------------------------------------------------------------------------------------------------- the socket


class FrameError(Exception):
    """The stream cannot be read any further."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Connection:
    """Connection of a sidecar: reads one frame, and the next one after the response."""

    def __init__(self, sock: socket.socket, settings: Settings) -> None:
        self.sock = sock
        self.settings = settings
        self.length: int | None = None
        self.incoming = bytearray()
        self.outgoing = memoryview(b"")
        self.busy = False
        self.closing = False
        self.future: Future[bytes] | None = None
        self.moved = time.monotonic()

    def read(self) -> bytes | None:
        """The next frame; None while it is incomplete; EOFError if the peer closed between two frames."""
        while True:
            wanted = HEADER.size if self.length is None else self.length
            missing = wanted - len(self.incoming)
            if missing == 0:
                body, self.incoming = bytes(self.incoming), bytearray()
                if self.length is not None:
                    self.length = None
                    return body
                self.length = self._checked(HEADER.unpack(body)[0])
                continue
            try:
                chunk = self.sock.recv(min(missing, self.settings.chunk_bytes))
            except (BlockingIOError, InterruptedError):
                return None
            if not chunk:
                if self.length is None and not self.incoming:
                    raise EOFError
                raise FrameError("connection_error", f"the connection closed within a frame, {missing} bytes before its end")
            self.incoming += chunk
            self.moved = time.monotonic()

    def _checked(self, length: int) -> int:
        if length > self.settings.max_frame_bytes:
            raise FrameError(
                "msg_parsing_error",
                f"a frame of {length} bytes exceeds the limit of {self.settings.max_frame_bytes} (ASYA_MAX_FRAME_BYTES)",
            )
        return length

    def reply(self, body: bytes) -> None:
        self.outgoing = memoryview(HEADER.pack(len(body)) + body)
        self.moved = time.monotonic()

    def write(self) -> bool:
        """Send as much as possible. True if everything is sent."""
        while self.outgoing:
            try:
                sent = self.sock.send(self.outgoing)
            except (BlockingIOError, InterruptedError):
                return False
            self.outgoing = self.outgoing[sent:]
            self.moved = time.monotonic()
        return True

    @property
    def in_frame(self) -> bool:
        return self.length is not None or bool(self.incoming) or bool(self.outgoing)

    def gone(self) -> bool:
        """Whether the peer closed the connection completely, and does not wait for a response any more."""
        poll = select.poll()
        poll.register(self.sock, 0)
        return any(flags & (select.POLLHUP | select.POLLERR) for _, flags in poll.poll(0))


class Watchdog:
    """End the process if no sidecar waits for any of the running calls, because the pod would do nothing from then on.

    A thread looks at the calls. If the handler holds the interpreter lock, no thread runs, and `faulthandler` ends the process.
    """

    def __init__(self, timeout: float | None) -> None:
        self.limit = None if timeout is None else timeout + STUCK_AFTER
        self.period = 1.0 if timeout is None else min(1.0, timeout)
        self.begun: dict[Connection, float] = {}
        self.abandoned: dict[Connection, float] = {}
        threading.Thread(target=self._watch, name="asya-watchdog", daemon=True).start()

    @contextlib.contextmanager
    def call(self, connection: Connection, body: bytes) -> Iterator[None]:
        """Look at the call that runs in this context. Pings are no calls."""
        if body:
            self.begun[connection] = time.monotonic()
        try:
            yield
        finally:
            self.begun.pop(connection, None)
            self.abandoned.pop(connection, None)

    def _watch(self) -> None:
        while True:
            stuck = [self._is_stuck(call, start) for call, start in dict(self.begun).items()]
            if stuck and all(stuck):
                faulthandler.dump_traceback(file=sys.__stderr__ or 2)
                _report("a call does not end, and the sidecar no longer waits for it (ASYA_RUNTIME_TIMEOUT)")
                os._exit(EXIT_STUCK)
            if self.limit is not None:
                # Replaces the previous one. It fires if this thread does not run.
                faulthandler.dump_traceback_later(self.limit + self.period, exit=True, file=sys.__stderr__ or 2)
            time.sleep(self.period)

    def _is_stuck(self, call: Connection, start: float) -> bool:
        now = time.monotonic()
        if self.limit is not None:
            return now - start > self.limit
        try:
            is_abandoned = call.gone()
        except (OSError, ValueError):
            is_abandoned = True  # closed by the server
        return is_abandoned and now - self.abandoned.setdefault(call, now) > ABANDONED_AFTER


class Server:
    """Listen, and pass each request to the handler.

    A plain handler runs in the main thread, one call at a time, with nothing between it and the socket. With
    ASYA_RUNTIME_CONCURRENCY above 1 it runs in that many threads. An async handler runs in one event loop, in a thread
    of its own.
    """

    def __init__(self, runner: Runner, settings: Settings) -> None:
        self.runner = runner
        self.settings = settings
        self.selector = selectors.DefaultSelector()
        self.connections: set[Connection] = set()
        self.finished: deque[Connection] = deque()
        self.stopping = False
        self.watchdog = Watchdog(settings.timeout)
        self.wake_reader, self.wake_writer = socket.socketpair()
        for end in (self.wake_reader, self.wake_writer):
            end.setblocking(False)
        self.selector.register(self.wake_reader, selectors.EVENT_READ, "wake")
        self.submit = self._executor()
        self.listener = self._listen()

    def _executor(self) -> Callable[[Connection, bytes], Future[bytes]] | None:
        """Executor of calls; None: the main thread."""
        if is_async(self.runner.handler):
            loop = asyncio.new_event_loop()
            threading.Thread(target=loop.run_forever, name="asya-handlers", daemon=True).start()
            slots = asyncio.Semaphore(self.settings.concurrency)

            async def one(connection: Connection, body: bytes) -> bytes:
                async with slots:
                    with self.watchdog.call(connection, body):
                        return await self.runner.answer_async(body)

            return lambda connection, body: asyncio.run_coroutine_threadsafe(one(connection, body), loop)
        if self.settings.concurrency > 1:
            pool = ThreadPoolExecutor(self.settings.concurrency, "asya-handler")
            return lambda connection, body: pool.submit(self._answer, connection, body)
        return None

    def _listen(self) -> socket.socket:
        settings = self.settings
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind(settings.address)
            if not settings.abstract and settings.socket_mode is not None:
                os.chmod(settings.socket, settings.socket_mode)
            listener.listen(MAX_CONNECTIONS)
        except OSError as error:
            reason = "another program listens on it" if error.errno == errno.EADDRINUSE else _text_of(error)
            name = "ASYA_SOCKET" if "ASYA_SOCKET" in os.environ else "ASYA_SOCKET_DIR"
            raise SetupError(f"cannot listen on `{settings.socket}` ({name}): {reason}") from None
        listener.setblocking(False)
        self.selector.register(listener, selectors.EVENT_READ, "accept")
        if not settings.abstract:
            # Renamed, so that the sidecar never reads a partial file.
            unfinished = settings.ready_file.with_suffix(".new")
            unfinished.write_text(READY)
            unfinished.replace(settings.ready_file)
        return listener

    def stop(self, *_: Any) -> None:
        """Signal handler: accept no new requests, finish running calls."""
        self.stopping = True
        self._wake()

    def run(self) -> None:
        signal.set_wakeup_fd(self.wake_writer.fileno(), warn_on_full_buffer=False)
        try:
            while not self.stopping:
                self._turn()
            self._close_listener()
            for connection in list(self.connections):
                if not connection.busy and not connection.outgoing:
                    self._drop(connection)
            while self.connections:
                self._turn()
        finally:
            signal.set_wakeup_fd(-1)
            self._close_listener()

    def _turn(self) -> None:
        waiting = any(connection.busy or connection.in_frame for connection in self.connections)
        for key, mask in self.selector.select(1.0 if waiting else None):
            if key.data == "wake":
                self._collect()
            elif key.data == "accept":
                self._accept()
            elif key.data in self.connections:
                self._serve(key.data, mask)
            if self.stopping and self.submit is None:
                return  # stopped during a long call: skip the other connections
        if waiting:
            self._look_after()

    def _accept(self) -> None:
        if self.stopping:
            return
        try:
            sock, _ = self.listener.accept()
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                log.warning("cannot accept a connection: %s", error)
                time.sleep(0.1)
            return
        if len(self.connections) >= MAX_CONNECTIONS:
            log.warning("more than %d connections: closing the newest", MAX_CONNECTIONS)
            sock.close()
            return
        sock.setblocking(False)
        connection = Connection(sock, self.settings)
        self.connections.add(connection)
        self.selector.register(sock, selectors.EVENT_READ, connection)

    def _serve(self, connection: Connection, mask: int) -> None:
        try:
            if mask & selectors.EVENT_WRITE:
                self._flush(connection)
            elif not self.stopping and (body := connection.read()) is not None:
                self._begin(connection, body)
        except EOFError:
            self._drop(connection)  # a probe, or a closed connection
        except FrameError as error:
            log.warning("%s", error)
            connection.closing = True
            self._reply(connection, broken_frame(error.code, str(error)))
        except OSError as error:
            log.debug("connection lost: %s", error)
            self._drop(connection)

    def _begin(self, connection: Connection, body: bytes) -> None:
        if connection.gone():
            log.info("skipping a request of %d bytes: the sidecar closed the connection", len(body))
            self._drop(connection)
        elif self.submit is None:
            self._reply(connection, self._answer(connection, body))
        else:
            connection.busy = True
            self.selector.unregister(connection.sock)
            connection.future = self.submit(connection, body)
            connection.future.add_done_callback(lambda _: self._done(connection))

    def _answer(self, connection: Connection, body: bytes) -> bytes:
        with self.watchdog.call(connection, body):
            return self.runner.answer(body)

    def _done(self, connection: Connection) -> None:
        """Called in the handler's thread."""
        self.finished.append(connection)
        self._wake()

    def _collect(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self.wake_reader.recv(4096):
                pass
        while self.finished:
            connection = self.finished.popleft()
            connection.busy = False
            future = connection.future
            if connection not in self.connections or future is None:
                continue
            self.selector.register(connection.sock, selectors.EVENT_READ, connection)
            if future.cancelled():
                self._drop(connection)
            else:
                self._reply(connection, future.result())

    def _reply(self, connection: Connection, body: bytes) -> None:
        connection.reply(body)
        try:
            self._flush(connection)
        except OSError as error:
            log.info("dropping a response of %d bytes: the sidecar closed the connection: %s", len(body), error)
            self._drop(connection)

    def _flush(self, connection: Connection) -> None:
        done = connection.write()
        if done and (connection.closing or self.stopping):
            self._drop(connection)
            return
        wanted = selectors.EVENT_READ if done else selectors.EVENT_WRITE
        if self.selector.get_key(connection.sock).events != wanted:
            self.selector.modify(connection.sock, wanted, connection)

    def _look_after(self) -> None:
        """Cancel calls without a waiting sidecar, and close connections that stall within a frame."""
        now = time.monotonic()
        for connection in list(self.connections):
            if connection.busy:
                if connection.future is not None and connection.gone():
                    connection.future.cancel()
            elif connection.in_frame and now - connection.moved > FRAME_PATIENCE:
                log.warning("closing a connection that stalled within a frame for %d seconds", FRAME_PATIENCE)
                self._drop(connection)

    def _drop(self, connection: Connection) -> None:
        self.connections.discard(connection)
        with contextlib.suppress(KeyError, ValueError):
            self.selector.unregister(connection.sock)
        connection.sock.close()

    def _close_listener(self) -> None:
        if self.listener.fileno() < 0:
            return
        self.selector.unregister(self.listener)
        self.listener.close()
        if not self.settings.abstract:
            self.settings.ready_file.unlink(missing_ok=True)
            Path(self.settings.socket).unlink(missing_ok=True)

    def _wake(self) -> None:
        with contextlib.suppress(OSError):
            self.wake_writer.send(b"\0")


def _remove_stale_socket(path: str) -> None:
    """Remove the socket of a killed runtime. A socket that accepts connections belongs to another runtime."""
    try:
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            raise SetupError(f"`{path}` exists and is not a socket: remove it, or set another path with ASYA_SOCKET")
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except OSError:
            os.unlink(path)
        else:
            raise SetupError(f"another runtime listens on `{path}`: give each its own ASYA_SOCKET_DIR")


# -------------------------------------------------------------------------------------------------------------- main


def main() -> int:
    """The command `asya-runtime`. Exit codes: 0 after SIGTERM, 2 for invalid settings, 3 if the handler
    cannot be loaded, 4 if a call does not end."""
    try:
        _log_to_stderr(os.environ.get("ASYA_LOG_LEVEL", ""))
        signal.signal(signal.SIGTERM, _terminate)
        signal.signal(signal.SIGINT, _terminate)
        if sys.argv[1:] and __package__:
            return int(importlib.import_module(".local", __package__).main(sys.argv[1:]))
        settings = Settings.from_env(os.environ)
        if not settings.abstract:
            _forget_the_last_run(settings)
        _make_importable()
        handler = load_handler(settings.handler)
        server = Server(Runner(handler, settings), settings)
        signal.signal(signal.SIGTERM, server.stop)
        signal.signal(signal.SIGINT, server.stop)
        mode = "envelope" if settings.envelope_mode else "payload"
        log.info("handler %s in %s mode is ready on %s", settings.handler, mode, settings.socket)
        server.run()
        log.info("stopped after finishing running calls")
    except SetupError as error:
        _report(error)
        return error.exit_code
    except _Terminated:
        log.info("stopped before the handler was loaded")
    return 0


def _terminate(*_: Any) -> None:
    raise _Terminated


def _forget_the_last_run(settings: Settings) -> None:
    """Remove the socket and ready file of a killed runtime, because this one is not ready yet."""
    try:
        Path(settings.socket).parent.mkdir(parents=True, exist_ok=True)
        _remove_stale_socket(settings.socket)
        settings.ready_file.unlink(missing_ok=True)
    except OSError as error:
        raise SetupError(f"cannot use the folder of `{settings.socket}`: {error}") from None


def _make_importable() -> None:
    """Append the working directory to the path. Import `asya_runtime` from the installed package, also in the script."""
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.append(os.getcwd())
    if __name__ != "__main__":
        return
    # Mounted as asya_runtime.py, this file would hide the package and its adapters: its folder is the first in the path.
    here = Path(__file__).resolve()
    elsewhere = [entry for entry in sys.path if (Path(entry) / "asya_runtime.py").resolve() != here]
    spec = importlib.machinery.PathFinder.find_spec("asya_runtime", elsewhere)
    module = sys.modules[__name__]
    if spec is None or spec.submodule_search_locations is None or spec.loader is None:
        sys.modules["asya_runtime"] = module
        return
    package = importlib.util.module_from_spec(spec)
    sys.modules["asya_runtime"] = package
    sys.modules["asya_runtime.runtime"] = module
    spec.loader.exec_module(package)


def _log_to_stderr(level: str) -> None:
    level = level.strip().upper() or "INFO"
    known = {"DEBUG": logging.DEBUG, "INFO": logging.INFO, "WARN": logging.WARNING, "WARNING": logging.WARNING}
    known |= {"ERROR": logging.ERROR, "CRITICAL": logging.CRITICAL}
    if level not in known:
        raise SetupError(f"ASYA_LOG_LEVEL is `{level}`: it must be one of {', '.join(known)}")
    output = logging.StreamHandler(sys.stderr)
    output.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger("asya")
    root.addHandler(output)
    root.setLevel(known[level])
    root.propagate = False


def _report(error: object) -> None:
    """Print an error to stderr, and to the termination log, which `kubectl describe pod` shows."""
    print(f"asya-runtime: {error}", file=sys.stderr, flush=True)
    place = Path(os.environ.get("ASYA_TERMINATION_LOG") or "/dev/termination-log")
    with contextlib.suppress(OSError):
        if place.is_file():
            place.write_text(f"asya-runtime: {error}"[:4096])


if __name__ == "__main__":
    sys.exit(main())
