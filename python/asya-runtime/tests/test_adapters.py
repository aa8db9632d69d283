"""The adapters in a real runtime, against a real HTTP server that streams."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from asya_runtime import Unavailable
from asya_runtime.adapters.target import Target
from harness import Runtime, envelope, error_of

ENVELOPE_TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Server:
    """An inference server; the answers of each path are given in order, the last one stays."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, dict[str, str], Any]] = []
        self.answers: dict[str, list[Callable[[BaseHTTPRequestHandler], None]]] = {}
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                outer.requests.append((self.command, self.path, dict(self.headers), json.loads(body) if body else None))
                answers = outer.answers.get(self.path, [status(404, "no such path")])
                (answers.pop(0) if len(answers) > 1 else answers[0])(self)

            do_GET = do_POST = answer

            def log_message(self, *_: Any) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def posts(self) -> list[Any]:
        return [body for method, _, _, body in self.requests if method == "POST"]


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.http.shutdown()
    server.http.server_close()


def reply(value: Any, code: int = 200, **headers: str) -> Callable[[BaseHTTPRequestHandler], None]:
    def answer(request: BaseHTTPRequestHandler) -> None:
        body = json.dumps(value).encode()
        request.send_response(code)
        for name, text in headers.items():
            request.send_header(name.replace("_", "-"), text)
        request.send_header("Content-Type", "application/json")
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        request.wfile.write(body)

    return answer


def status(code: int, message: str, **headers: str) -> Callable[[BaseHTTPRequestHandler], None]:
    return reply({"error": {"message": message}}, code, **headers)


def stream(
    *events: Any, end: str = "data: [DONE]\n\n", cut: bool = False, eol: str = "\n"
) -> Callable[[BaseHTTPRequestHandler], None]:
    """Server-sent events, each in a chunk of its own; `cut` closes the connection in the middle."""

    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.send_header("Content-Type", "text/event-stream; charset=utf-8")
        request.send_header("Transfer-Encoding", "chunked")
        request.end_headers()
        for text in [": a comment\n\n", *(f"data: {json.dumps(event)}\n\n" for event in events), *([] if cut else [end])]:
            data = text.replace("\n", eol).encode()
            request.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))
            request.wfile.flush()
        if not cut:
            request.wfile.write(b"0\r\n\r\n")
        request.close_connection = True

    return answer


def drop(request: BaseHTTPRequestHandler) -> None:
    request.close_connection = True


def drip(request: BaseHTTPRequestHandler) -> None:
    """Never silent, never done."""
    request.send_response(200)
    request.send_header("Content-Length", "100000")
    request.end_headers()
    for _ in range(600):
        request.wfile.write(b" ")
        request.wfile.flush()
        time.sleep(0.1)


def forward(start: Callable[..., Runtime], server: Server, adapter: str = "openai.forward", **env: str) -> Runtime:
    return start(f"asya_runtime.adapters.{adapter}", **({"ASYA_TARGET_URL": server.url, "ASYA_TARGET_WAIT": "0"} | env))


CHAT = "/v1/chat/completions"
MODELS = "/v1/models"


def test_openai_finds_the_endpoint_and_the_model(start, server):
    server.answers = {
        MODELS: [reply({"data": [{"id": "phi-3"}]})],
        CHAT: [reply({"choices": [1]})],
        "/v1/completions": [reply({"choices": [2]})],
        "/v1/embeddings": [reply({"data": [3]})],
    }
    runtime = forward(start, server)
    messages = [{"role": "user", "content": "hello"}]
    for payload, expected in [
        ({"messages": messages}, {"choices": [1]}),
        ("hello", {"choices": [1]}),
        ({"prompt": "p", "model": "mine"}, {"choices": [2]}),
        ({"input": ["x"]}, {"data": [3]}),
    ]:
        [item] = runtime.ask(envelope(payload))
        assert item == {"payload": expected, "route": {"actors": ["a", "b"], "current": 1}}
    assert server.posts() == [
        {"messages": messages, "model": "phi-3"},
        {"messages": messages, "model": "phi-3"},
        {"prompt": "p", "model": "mine"},
        {"input": ["x"], "model": "phi-3"},
    ]
    assert [path for _, path, _, _ in server.requests].count(MODELS) == 1


def test_a_server_that_closes_the_connection_after_each_answer(start, server):
    """Behavior of HTTP/1.0 servers."""
    server.answers = {
        MODELS: [reply({"data": [{"id": "m"}]}, Connection="close")],
        CHAT: [reply({"choices": [1]}, Connection="close"), status(400, "too much", Connection="close")],
    }
    runtime = forward(start, server, ASYA_TARGET_WAIT="5")
    [item] = runtime.ask(envelope("hello"))
    assert item["payload"] == {"choices": [1]}
    [item] = runtime.ask(envelope("hello"))
    assert "too much" in item["details"]["message"]


def test_a_version_in_the_url_token_model_and_trace_are_sent(start, server):
    server.answers = {CHAT: [reply({})]}
    env = {"ASYA_TARGET_URL": server.url + "/v1/", "ASYA_TARGET_TOKEN": "t0ken", "ASYA_TARGET_MODEL": "m"}
    headers = {"traceparent": ENVELOPE_TRACE, "tracestate": "a=b", "Cookie": "no", "Host": "evil"}
    [item] = forward(start, server, **env).ask(envelope("hi", headers=headers))
    assert item["headers"] == headers
    [(_, _, sent, body)] = server.requests
    assert body["model"] == "m"
    sent = {name.lower(): value for name, value in sent.items()}
    assert (sent["authorization"], sent["traceparent"], sent["tracestate"]) == ("Bearer t0ken", ENVELOPE_TRACE, "a=b")
    assert "cookie" not in sent
    assert sent["host"] != "evil"


def test_chat_stream_gives_the_response_without_a_stream(start, server):
    def chunk(delta, finish=None, index=0, **more):
        return {"id": "c1", "object": "chat.completion.chunk", "model": "m", "choices": [
            {"index": index, "delta": delta, "finish_reason": finish}], **more}  # fmt: skip

    def call(index, arguments, **more):
        return {"tool_calls": [{"index": index, "function": {"arguments": arguments, **more.pop("f", {})}, **more}]}

    server.answers = {
        CHAT: [
            stream(
                chunk({"role": "assistant", "content": ""}),
                chunk({"content": "Hel"}),
                chunk({"content": "lo é"}),
                chunk({"role": "assistant", "content": "second"}, index=1),
                chunk(call(0, "", id="t1", type="function", f={"name": "look"})),
                chunk(call(0, '{"a"')),
                chunk(call(1, "{}", id="t2", type="function", f={"name": "go"})),
                chunk(call(0, ": 1}")),
                chunk({}, "stop", index=1),
                chunk({}, "tool_calls"),
                {"id": "c1", "model": "m", "choices": [], "usage": {"total_tokens": 9}},
            )
        ]
    }
    runtime = forward(start, server, ASYA_TARGET_STREAM="true", ASYA_TARGET_MODEL="m")
    [item] = runtime.ask(envelope("hi"))
    assert item["payload"] == {
        "id": "c1",
        "object": "chat.completion",
        "model": "m",
        "usage": {"total_tokens": 9},
        "choices": [
            {
                "index": 0,
                "finish_reason": "tool_calls",
                "message": {
                    "role": "assistant",
                    "content": "Hello é",
                    "tool_calls": [
                        {"id": "t1", "type": "function", "function": {"name": "look", "arguments": '{"a": 1}'}},
                        {"id": "t2", "type": "function", "function": {"name": "go", "arguments": "{}"}},
                    ],
                },
            },
            {"index": 1, "finish_reason": "stop", "message": {"role": "assistant", "content": "second"}},
        ],
    }
    assert server.posts()[0]["stream"] is True


def test_a_text_stream_and_a_stream_that_broke_off(start, server):
    def chunk(text, finish=None):
        return {"id": "t", "choices": [{"index": 0, "text": text, "finish_reason": finish}]}

    server.answers = {"/v1/completions": [stream(chunk("a"), cut=True), stream(chunk("a"), chunk("b", "stop"))]}
    [item] = forward(start, server).ask(envelope({"prompt": "p", "model": "m", "stream": True}))
    assert item["payload"]["choices"] == [{"index": 0, "text": "ab", "finish_reason": "stop"}]
    assert len(server.requests) == 2, "the first stream had no end and was requested again"


def test_an_error_in_a_stream_is_an_error(start, server):
    server.answers = {CHAT: [stream({"error": {"message": "out of memory"}})]}
    code, details = error_of(forward(start, server, ASYA_TARGET_MODEL="m").ask(envelope({"messages": [], "stream": True})))
    assert (code, details["type"]) == ("processing_error", "TargetError")
    assert "out of memory" in details["message"]


def test_temporary_errors_are_retried(start, server):
    server.answers = {CHAT: [status(503, "loading"), drop, status(429, "slow down", Retry_After="0"), reply({"ok": 1})]}
    [item] = forward(start, server, ASYA_TARGET_MODEL="m").ask(envelope("hi"))
    assert item["payload"] == {"ok": 1}
    assert len(server.requests) == 4


@pytest.mark.parametrize(
    ("answer", "env", "requests", "text"),
    [
        (status(400, "bad temperature"), {}, 1, "bad temperature"),
        (status(500, "broken"), {"ASYA_TARGET_ATTEMPTS": "2"}, 2, "tried 2 times"),
        (status(504, "busy", Retry_After="3600"), {}, 1, "tried once"),
        (status(302, "elsewhere", Location="http://169.254.169.254/"), {}, 1, "redirects are not followed"),
        (reply([1]), {}, 1, "not a JSON object"),
        (drip, {"ASYA_TARGET_TIMEOUT": "1"}, 1, "not answered in time"),
    ],
)
def test_other_errors_are_reported(start, server, answer, env, requests, text):
    server.answers = {CHAT: [answer]}
    code, details = error_of(forward(start, server, ASYA_TARGET_MODEL="m", **env).ask(envelope("hi")))
    assert code == "processing_error"
    assert text in details["message"]
    assert len(server.requests) == requests


@pytest.mark.parametrize(
    ("answer", "env"),
    [
        (status(503, "loading"), {"ASYA_TARGET_TIMEOUT": "4", "ASYA_TARGET_ATTEMPTS": "1"}),
        (status(429, "busy", Retry_After="3600"), {}),
        (None, {"ASYA_TARGET_TIMEOUT": "1"}),
    ],
)
def test_message_waits_while_the_target_is_down(start, server, answer, env):
    server.answers = {CHAT: [answer]}
    if answer is None:
        server.http.server_close()
    code, details = error_of(forward(start, server, ASYA_TARGET_MODEL="m", **env).ask(envelope("hi")))
    assert (code, details["type"]) == ("unavailable", "Unavailable")
    assert "tried" in details["message"]


def test_target_is_down_also_if_the_time_ends_between_two_tries(monkeypatch):
    sleep = time.sleep
    monkeypatch.setattr(time, "sleep", lambda _: sleep(1.1))
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
    target = Target.from_env(url, {"ASYA_TARGET_TIMEOUT": "1"})
    with pytest.raises(Unavailable, match=r"cannot be reached: .*; tried once in"):
        target.post("/", {}, list)


def test_message_fails_while_the_target_is_down_if_its_deadline_is_close(start, server):
    from datetime import datetime, timedelta, timezone

    server.answers = {CHAT: [status(503, "loading")]}
    deadline = (datetime.now(timezone.utc) + timedelta(seconds=2)).isoformat()
    code, details = error_of(forward(start, server, ASYA_TARGET_MODEL="m").ask(envelope("hi", deadline=deadline)))
    assert (code, details["type"]) == ("processing_error", "TargetError")


def test_target_that_breaks_off_is_not_down(start, server):
    """The message may be the cause, and would block the others."""
    server.answers = {CHAT: [drop]}
    code, _ = error_of(forward(start, server, ASYA_TARGET_MODEL="m", ASYA_TARGET_ATTEMPTS="2").ask(envelope("hi")))
    assert code == "processing_error"
    assert len(server.requests) == 2


def test_the_deadline_of_the_envelope_ends_a_call(start, server):
    from datetime import datetime, timedelta, timezone

    server.answers = {CHAT: [drip]}
    deadline = (datetime.now(timezone.utc) + timedelta(seconds=2)).isoformat()
    _, details = error_of(forward(start, server, ASYA_TARGET_MODEL="m").ask(envelope("hi", deadline=deadline)))
    assert "not answered in time" in details["message"] or details["type"] == "DeadlineExceeded"


@pytest.mark.parametrize("payload", [1, None, {}, {"text": "x"}])
def test_invalid_payload_is_rejected(start, server, payload):
    _, details = error_of(forward(start, server).ask(envelope(payload)))
    assert "not an OpenAI request" in details["message"]
    assert server.requests == []


def test_kserve_v2(start, server):
    infer = "/v2/models/my%2Fmodel/versions/2/infer"
    server.answers = {
        infer: [reply({"outputs": [{"name": "y", "data": [1]}]})],
        "/v2/models/llm/generate": [reply({"text_output": "one"})],
        "/v2/models/llm/generate_stream": [stream({"text_output": "to"}, {"text_output": "gether", "n": 2}, end="")],
    }
    runtime = forward(start, server, "kserve_v2.forward", ASYA_TARGET_MODEL="llm")
    inputs = [{"name": "x", "shape": [1], "datatype": "FP32", "data": [0.5]}]
    for payload, expected in [
        ({"inputs": inputs, "model_name": "my/model", "model_version": "2"}, {"outputs": [{"name": "y", "data": [1]}]}),
        ({"text_input": "x"}, {"text_output": "one"}),
        ({"text_input": "x", "stream": True}, {"text_output": "together", "n": 2}),
    ]:
        [item] = runtime.ask(envelope(payload))
        assert item["payload"] == expected
    assert server.posts()[0] == {"inputs": inputs}
    assert "not a v2 request" in error_of(runtime.ask(envelope({"input": 1})))[1]["message"]


def test_rest_posts_the_payload_as_it_is(start, server):
    path = "/predict?version=2"
    server.answers = {path: [reply([1, 2]), reply(None), stream({"a": 1}, "text")]}
    runtime = forward(start, server, "rest.forward", ASYA_TARGET_URL=server.url + path)
    answers = [runtime.ask(envelope({"x": 1})) for _ in range(3)]
    assert [[item["payload"] for item in answer] for answer in answers] == [[[1, 2]], [None], [{"events": [{"a": 1}, "text"]}]]
    assert server.posts() == [{"x": 1}] * 3


@pytest.mark.parametrize("eol", ["\r\n", "\r"])
def test_lines_of_a_stream_may_end_with_cr(start, server, eol):
    server.answers = {"/": [stream({"a": 1}, {"b": 2}, eol=eol)]}
    [item] = forward(start, server, "rest.forward", ASYA_TARGET_URL=server.url + "/").ask(envelope(1))
    assert item["payload"] == {"events": [{"a": 1}, {"b": 2}]}


def test_the_runtime_is_ready_when_the_target_is(folder, server):
    server.answers = {MODELS: [status(503, "loading"), status(503, "loading"), reply({"data": []})]}
    with Runtime(folder, "adapters.openai.forward", ASYA_TARGET_URL=server.url) as runtime:
        runtime.ready()
        assert len(server.requests) == 3
        assert "waiting for the target" in runtime.log()


@pytest.mark.parametrize(
    ("adapter", "path"), [("kserve_v2", "/v2/models/classifier/infer"), ("openai", "/v1/chat/completions")]
)
def test_url_of_an_operation_is_rejected_at_the_start(folder, adapter, path):
    with Runtime(folder, f"asya_runtime.adapters.{adapter}.forward", ASYA_TARGET_URL=f"http://127.0.0.1:9{path}") as runtime:
        assert runtime.exit_code() == 3
        assert f"ASYA_TARGET_URL is the URL of one operation ({path})" in runtime.log()


def test_start_fails_if_the_target_never_responds(folder):
    env = {"ASYA_TARGET_URL": "http://127.0.0.1:9", "ASYA_TARGET_WAIT": "1"}
    with Runtime(folder, "asya_runtime.adapters.kserve_v2.forward", **env) as runtime:
        assert runtime.exit_code() == 3
        assert "the target does not respond after 1 s" in runtime.log()


@pytest.mark.parametrize(
    "url",
    [
        "ftp://host/",
        "file:///etc/passwd",
        "host:8000",
        "http://",
        "http://user:secret@host/",
        "http://169.254.169.254/latest",
        "http://169.254.1.1",
        "http://2852039166/",
        "http://0xa9fea9fe/",
        "http://169.254.43518/",
        "http://[::ffff:169.254.169.254]/",
        "http://[fe80::1]/",
        "http://[fd00:ec2::254]/",
        "http://[64:ff9b::a9fe:a9fe]/",
        "http://100.100.100.200/",
        "http://168.63.129.16/",
        "http://metadata.google.internal/",
        "https://METADATA.google.internal./",
    ],
)
def test_forbidden_urls_are_rejected(url):
    from asya_runtime.adapters.target import TargetError, checked_url

    with pytest.raises(TargetError, match="ASYA_TARGET_URL"):
        checked_url(url)


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:8000", "https://model.ns.svc:8443/v1", "http://[::1]:80/", "http://10.0.0.7"]
)
def test_allowed_urls_are_accepted(url):
    from asya_runtime.adapters.target import checked_url

    assert checked_url(url).geturl() == url


def test_start_fails_with_a_forbidden_url(folder):
    with Runtime(folder, "adapters.openai.forward", ASYA_TARGET_URL="http://169.254.169.254/") as runtime:
        assert runtime.exit_code() == 3
        assert "link-local or metadata address: not allowed" in runtime.log()


def test_name_of_a_metadata_address_is_rejected_after_connecting(monkeypatch, server):
    """Only the resolver is replaced here. The check uses the address of the open connection."""
    import ipaddress

    from asya_runtime.adapters import target

    monkeypatch.setattr(target, "METADATA_NETWORKS", [ipaddress.ip_network("127.0.0.0/8"), ipaddress.ip_network("::1/128")])
    called = target.Target(target.checked_url(server.url.replace("127.0.0.1", "localhost")))
    with pytest.raises(target.TargetError, match=r"is (127\.0\.0\.1|::1), a link-local or metadata address"):
        called.get("/v1/models")
    assert server.requests == []
