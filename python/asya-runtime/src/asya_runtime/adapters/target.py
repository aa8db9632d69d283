"""The inference server behind an adapter: its address, and calls with timeout, retries and streaming.

Only the standard library. The server is on loopback, or where ASYA_TARGET_URL says; never at a metadata address of a cloud.
"""

from __future__ import annotations

import http.client
import ipaddress
import itertools
import json
import logging
import os
import random
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import SplitResult, urlsplit

from asya_runtime import Unavailable, current_envelope, time_left

log = logging.getLogger("asya.adapters")

LARGEST_ANSWER = 64 * 1024 * 1024
# Status codes after which a retry can succeed.
TEMPORARY = (408, 425, 429, 500, 502, 503, 504)
# Status codes with which a server that runs, or a proxy before it, takes no request: it is overloaded, starts or stops.
DOWN = (429, 503)
# Ends of URLs that already are those of an operation.
OPERATIONS = ("/infer", "/generate", "/completions", "/embeddings", "/rerank", "/predictions")
# Link-local addresses, at which clouds serve credentials, and other metadata addresses (AWS, Google, Alibaba, Azure).
METADATA_NETWORKS = [
    ipaddress.ip_network(network)
    for network in (
        "169.254.0.0/16",
        "fe80::/10",
        "fd00:ec2::/32",
        "fd20:ce::254/128",
        "100.100.100.200/32",
        "168.63.129.16/32",
    )
]
METADATA_NAMES = ("metadata", "metadata.google.internal", "metadata.goog", "instance-data", "instance-data.ec2.internal")
NAT64 = ipaddress.ip_network("64:ff9b::/96")

# Builds the result of a stream from the data of its events.
Fold = Callable[[Iterable[str]], Any]


class TargetError(Exception):
    """The target cannot be used, or its response is invalid. The message contains the cause."""


class Answered(TargetError):
    """The server sent a response that cannot be used."""


class TooLate(TargetError):
    """The timeout is over."""


class NoTime(TooLate):
    """The timeout is over before a try."""


class Temporary(Exception):
    """An attempt failed that may be repeated. `down`: the target took no request, so the cause is not this message."""

    def __init__(self, message: str, after: float | None = None, down: bool = False) -> None:
        super().__init__(message)
        self.after = after
        self.down = down


@dataclass(frozen=True)
class Target:
    """An HTTP server, with timeouts and retries. All times are seconds."""

    url: SplitResult
    # For one message including retries. The envelope's deadline shortens it.
    timeout: float = 240.0
    connect_timeout: float = 5.0
    # Attempts after temporary errors. A server that is down is waited for until the timeout.
    attempts: int = 4
    token: str | None = None
    model: str | None = None
    stream: bool = False
    # Longest wait for the server at the start; None: no limit.
    patience: float | None = None

    @classmethod
    def from_env(cls, default_url: str | None, env: Mapping[str, str] = os.environ) -> Target:
        url = env.get("ASYA_TARGET_URL") or default_url
        if not url:
            raise TargetError("ASYA_TARGET_URL is not set: set it to the URL to which each payload is posted")
        return cls(
            url=checked_url(url),
            timeout=_seconds(env, "ASYA_TARGET_TIMEOUT", 240.0),
            connect_timeout=_seconds(env, "ASYA_TARGET_CONNECT_TIMEOUT", 5.0),
            attempts=max(1, int(_seconds(env, "ASYA_TARGET_ATTEMPTS", 4))),
            token=env.get("ASYA_TARGET_TOKEN") or None,
            model=env.get("ASYA_TARGET_MODEL") or None,
            stream=env.get("ASYA_TARGET_STREAM", "").strip().lower() in ("true", "1", "yes", "on"),
            patience=_seconds(env, "ASYA_TARGET_WAIT", 0.0) if env.get("ASYA_TARGET_WAIT") else None,
        )

    def path(self, rest: str) -> str:
        """A path of the API below the target's own. A version in both occurs once."""
        base = self.url.path.rstrip("/")
        version = "/" + rest.lstrip("/").split("/", 1)[0]
        if base.endswith(OPERATIONS):
            raise TargetError(
                f"ASYA_TARGET_URL is the URL of one operation ({base}): set it to the address of the server, or set the "
                "handler to asya_runtime.adapters.rest.forward"
            )
        return base.removesuffix(version) + rest

    def post(self, path: str, body: Any, fold: Fold) -> Any:
        """The JSON response or, for an event stream, the result of `fold`."""
        return self._call("POST", path, json.dumps(body).encode(), fold)

    def get(self, path: str) -> Any:
        return self._call("GET", path, None, list)

    def wait_for(self, path: str) -> None:
        """Wait until the server responds. Called before the runtime is ready, so that no message arrives too early."""
        if self.patience == 0:
            return
        start = time.monotonic()
        said = start - 60.0
        for attempt in itertools.count(1):
            try:
                self._once("GET", path, None, list, time.monotonic() + 5.0)
                return
            except Answered:
                return  # 401, 404 or no JSON: the server runs
            except (Temporary, TooLate) as error:
                if self.patience is not None and time.monotonic() - start >= self.patience:
                    raise TargetError(
                        f"the target does not respond after {self.patience:g} s (ASYA_TARGET_WAIT): {error}"
                    ) from None
                if time.monotonic() - said > 30:
                    said = time.monotonic()
                    log.info("waiting for the target: %s", error)
            time.sleep(min(_backoff(attempt), 3.0))

    def _call(self, method: str, path: str, body: bytes | None, fold: Fold) -> Any:
        start = time.monotonic()
        left = time_left(current_envelope())
        budget = self.timeout if left is None else max(0.0, min(self.timeout, left))
        until = start + budget
        tries = attempts = 0
        last: Temporary | None = None
        while True:
            try:
                return self._once(method, path, body, fold, until)
            except NoTime:
                if last is None:
                    raise
                out_of_time = True
            except Temporary as error:
                last = error
                tries += 1
                attempts += not error.down
                pause = _backoff(tries) if error.after is None else error.after
                out_of_time = time.monotonic() + pause >= until
            if out_of_time or attempts >= self.attempts:
                tried = "once" if tries == 1 else f"{tries} times"
                text = f"{last}; tried {tried} in {time.monotonic() - start:.1f} of {budget:.0f} s"
                # Other messages would fail as well, so this one waits, unless its deadline is too close.
                if last.down and (left is None or left > self.timeout):
                    raise Unavailable(text) from None
                raise TargetError(text) from None
            log.warning("%s; again in %.1f s", last, pause)
            time.sleep(pause)

    def _once(self, method: str, path: str, body: bytes | None, fold: Fold, until: float) -> Any:
        shown = f"{method} {self.url.scheme}://{self.url.netloc}{path}"
        connection = self._connect(until)
        # http.client releases it as soon as the server announces to close the connection.
        sock = connection.sock
        try:
            connection.request(method, path, body, self._headers(body is not None))
            response = connection.getresponse()
            if 200 <= response.status < 300:
                return self._result(response, sock, fold, until, shown)
            self._refused(response, next(_chunks(response, sock, until), b""), shown)
        except TimeoutError:
            raise TooLate(f"{shown} was not answered in time (ASYA_TARGET_TIMEOUT, or the envelope's deadline)") from None
        except (OSError, http.client.HTTPException) as error:
            raise Temporary(f"{shown}: the connection failed: {type(error).__name__}: {error}") from None
        finally:
            connection.close()

    def _connect(self, until: float) -> http.client.HTTPConnection:
        left = until - time.monotonic()
        if left <= 0:
            raise NoTime("no time left for a call (ASYA_TARGET_TIMEOUT, or the envelope's deadline)")
        kind = http.client.HTTPSConnection if self.url.scheme == "https" else http.client.HTTPConnection
        connection = kind(self.url.hostname or "", self.url.port, timeout=min(self.connect_timeout, left))
        try:
            connection.connect()
        except OSError as error:
            connection.close()
            reason = "connection timed out" if isinstance(error, TimeoutError) else error
            raise Temporary(f"{self.url.scheme}://{self.url.netloc} cannot be reached: {reason}", down=True) from None
        # The name can resolve to any address, so the connected address is checked.
        peer = connection.sock.getpeername()[0]
        if is_metadata_address(peer):
            connection.close()
            raise TargetError(f"the target {self.url.hostname} is {peer}, a link-local or metadata address: not allowed")
        connection.sock.settimeout(max(0.001, until - time.monotonic()))
        return connection

    def _headers(self, with_body: bool) -> dict[str, str]:
        headers = {"Accept": "application/json, text/event-stream", "User-Agent": "asya-runtime"}
        if with_body:
            headers["Content-Type"] = "application/json"
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        for name, value in (current_envelope().get("headers") or {}).items():
            if (
                name.lower() in ("traceparent", "tracestate")
                and isinstance(value, str)
                and value.isascii()
                and value.isprintable()
            ):
                headers[name.lower()] = value
        return headers

    def _result(self, response: http.client.HTTPResponse, sock: socket.socket, fold: Fold, until: float, shown: str) -> Any:
        if response.headers.get_content_type() == "text/event-stream":
            return fold(_events(_lines(response, sock, until)))
        text = b"".join(_chunks(response, sock, until))
        if not text:
            return None
        try:
            return json.loads(text)
        except ValueError:
            kind = response.headers.get_content_type()
            raise Answered(f"{shown} answered no JSON but {kind}: {_excerpt(text)}") from None

    def _refused(self, response: http.client.HTTPResponse, beginning: bytes, shown: str) -> None:
        text = f"{shown} answered {response.status} {response.reason}: {_excerpt(beginning)}"
        if 300 <= response.status < 400:
            raise TargetError(f"{text} (redirects are not followed: set ASYA_TARGET_URL to the final URL)")
        if response.status in TEMPORARY:
            after = response.headers.get("Retry-After", "")
            raise Temporary(text, float(after) if after.isdecimal() else None, down=response.status in DOWN)
        raise Answered(text)


def checked_url(text: str) -> SplitResult:
    """Parse the URL of a target, or raise a TargetError with the cause."""
    try:
        url = urlsplit(text.strip())
        host, _ = url.hostname, url.port
    except ValueError as error:
        raise TargetError(f"ASYA_TARGET_URL is not a URL: {error}") from None
    if url.scheme not in ("http", "https") or not host:
        raise TargetError(f"ASYA_TARGET_URL must be http://HOST or https://HOST, but starts with `{url.scheme or text[:20]}`")
    if url.username is not None or url.password is not None:
        raise TargetError("ASYA_TARGET_URL must not contain a user or password: set a token with ASYA_TARGET_TOKEN")
    if host.rstrip(".").lower() in METADATA_NAMES or is_metadata_address(host):
        raise TargetError(f"ASYA_TARGET_URL points at {host}, a link-local or metadata address: not allowed")
    return url


def is_metadata_address(host: str) -> bool:
    """Whether an address (not a name) is link-local or a metadata service of a cloud, in any notation."""
    try:
        address = ipaddress.ip_address(host.split("%", 1)[0])
    except ValueError:
        try:
            # 2852039166, 0xa9fea9fe and 169.254.43518 are 169.254.169.254 for the resolver.
            address = ipaddress.ip_address(socket.inet_aton(host))
        except (OSError, ValueError):
            return False
    candidates = [address]
    if isinstance(address, ipaddress.IPv6Address):
        candidates += [embedded for embedded in (address.ipv4_mapped, address.sixtofour) if embedded is not None]
        if address in NAT64:
            candidates.append(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
    return any(candidate in network for candidate in candidates for network in METADATA_NETWORKS)


def _chunks(response: http.client.HTTPResponse, sock: socket.socket, until: float) -> Iterator[bytes]:
    size = 0
    while chunk := _in_time(response.read1, 65_536, sock, until):
        size += len(chunk)
        if size > LARGEST_ANSWER:
            raise TargetError(f"the target's response is larger than {LARGEST_ANSWER} bytes")
        yield chunk
    # `read1` does not distinguish a lost connection from the end of the response.
    if response.length:
        raise http.client.IncompleteRead(b"", response.length)


def _lines(response: http.client.HTTPResponse, sock: socket.socket, until: float) -> Iterator[bytes]:
    size = 0
    while line := _in_time(response.readline, LARGEST_ANSWER, sock, until):
        size += len(line)
        if size > LARGEST_ANSWER:
            raise TargetError(f"the target's response is larger than {LARGEST_ANSWER} bytes")
        # A line of events ends with LF, CRLF or CR.
        yield from line.removesuffix(b"\n").removesuffix(b"\r").split(b"\r")


def _in_time(read: Callable[[int], bytes], size: int, sock: socket.socket, until: float) -> bytes:
    """Limit the total time, so that a server cannot extend it by sending single bytes."""
    left = until - time.monotonic()
    if left <= 0:
        raise TimeoutError
    if sock.fileno() >= 0:  # closed by http.client if the whole response is in its buffer
        sock.settimeout(left)
    return read(size)


def _events(lines: Iterable[bytes]) -> Iterator[str]:
    """Data of each server-sent event."""
    data: list[str] = []
    for line in lines:
        if line.startswith(b"data:"):
            data.append(line[5:].removeprefix(b" ").decode("utf-8", "replace"))
        elif not line and data:
            yield "\n".join(data)
            data = []
    if data:
        yield "\n".join(data)


def parse_event(text: str) -> dict[str, Any]:
    """Parse the JSON object of an event. An error in it is an error of the target."""
    try:
        event = json.loads(text)
    except ValueError:
        raise TargetError(f"the target's stream has an event that is not JSON: {_excerpt(text.encode())}") from None
    if not isinstance(event, dict):
        raise TargetError("the target's stream has an event that is not a JSON object")
    if event.get("error"):
        raise TargetError(f"the target reports an error in its stream: {_excerpt(json.dumps(event['error']).encode())}")
    return event


def an_object(answer: Any) -> dict[str, Any]:
    if not isinstance(answer, dict):
        raise TargetError("the target's response is not a JSON object")
    return answer


def _seconds(env: Mapping[str, str], name: str, default: float) -> float:
    text = env.get(name, "").strip()
    try:
        value = float(text.removesuffix("s")) if text else default
    except ValueError:
        raise TargetError(f"{name} is `{text}`: it must be a number") from None
    if not 0 <= value < 1e9:
        raise TargetError(f"{name} is `{text}`: it must be a number from 0")
    return value


def _backoff(attempt: int) -> float:
    return random.uniform(0.5, 1.0) * min(8.0, 0.5 * 2 ** min(attempt - 1, 10))


def _excerpt(text: bytes) -> str:
    shown = text[:500].decode("utf-8", "replace").strip()
    return (shown + " …" if len(text) > 500 else shown) or "(nothing)"
