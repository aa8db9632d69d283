"""Every failure is a response, and the runtime continues."""

from __future__ import annotations

import json

import pytest

from harness import envelope, error_of


@pytest.mark.parametrize(
    ("asked", "kind", "message"),
    [
        ("value", "ValueError", "bad value"),
        ("exit", "SystemExit", "3"),
        ("interrupt", "KeyboardInterrupt", "KeyboardInterrupt"),
        ("empty", "RuntimeError", "RuntimeError"),
        ("base", "Rare", "rare"),
        ("surrogate", "ValueError", r"file caf\udce9"),
        ("unprintable", "Unprintable", "cannot be made"),
        ("recursion", "RecursionError", "maximum recursion depth"),
    ],
)
def test_exception_of_the_handler_is_the_response(shared, asked, kind, message):
    runtime = shared("handlers.fail")
    code, details = error_of(runtime.ask(envelope(asked)))
    assert (code, details["type"]) == ("processing_error", kind)
    assert message in details["message"]
    assert "handlers.py" in details["traceback"]
    assert "runtime.py" not in details["traceback"], "the runtime's own frames are noise"
    assert error_of(runtime.ask(envelope("value")))[1]["message"] == "bad value", "the runtime continues"


def test_long_error_is_cut_to_fit_into_a_frame(shared):
    _, details = error_of(shared("handlers.fail", ASYA_MAX_FRAME_BYTES="65536").ask(envelope("long")))
    assert 1000 < len(details["message"]) < 10_000


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("nan", "`payload.scores[1].best` is nan"),
        ("infinity", "`payload` is -inf"),
        ("set", "`payload.tags` is a Python `builtins.set`"),
        ("object", "`payload` is a Python `builtins.object`"),
        ("bytes", "`payload.image` is a Python `builtins.bytes`"),
        ("key", "a key of `payload` is a Python `tuple`"),
        ("loop", "Circular reference"),
        ("large", "larger than 65536 bytes (ASYA_MAX_FRAME_BYTES)"),
    ],
)
def test_invalid_result_is_reported_with_place_and_cause(shared, asked, message):
    code, details = error_of(shared("handlers.strange", ASYA_MAX_FRAME_BYTES="65536").ask(envelope(asked)))
    assert code == "processing_error"
    assert message in details["message"]


def test_infinite_generator_stops_at_the_frame_limit(start):
    code, details = error_of(start("handlers.endless", ASYA_MAX_FRAME_BYTES="100000").ask(envelope()))
    assert code == "processing_error"
    assert "larger than 100000 bytes" in details["message"]


def test_unavailable_service_has_its_own_code(shared):
    code, details = error_of(shared("handlers.unavailable").ask(envelope(1)))
    assert (code, details["message"]) == ("unavailable", "no database")


ROUTE = {"actors": ["a"], "current": 0}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b"{", "not JSON"),
        (b"\xff\xfe", "not UTF-8"),
        (b'{"payload": NaN, "route": {"actors": ["a"]}}', "NaN is not a JSON number"),
        pytest.param(b"[" * 200_000, "nested too deeply", id="deep"),
        ([], "must be a JSON object, not a list"),
        ({"route": ROUTE}, "`payload` is missing"),
        ({"payload": 1}, "`route` is missing"),
        ({"payload": 1, "route": []}, "`route` must be an object"),
        ({"payload": 1, "route": {"current": 0}}, "at least one actor"),
        ({"payload": 1, "route": {"actors": [], "current": 0}}, "at least one actor"),
        ({"payload": 1, "route": {"actors": [1]}}, "list of strings"),
        ({"payload": 1, "route": {"actors": ["a", "b"], "current": True}}, "not a boolean"),
        ({"payload": 1, "route": {"actors": ["a"], "current": 1.0}}, "not a number"),
        ({"payload": 1, "route": {"actors": ["a"], "current": -1}}, "between 0 and 1"),
        ({"payload": 1, "route": {"actors": ["a"], "current": 2}}, "between 0 and 1"),
        ({"payload": 1, "route": ROUTE, "headers": []}, "`headers` must be an object"),
        ({"payload": 1, "route": ROUTE, "id": 7}, "`id` must be a string"),
    ],
)
@pytest.mark.parametrize("mode", ["payload", "envelope"])
def test_invalid_envelope_does_not_reach_the_handler(shared, body, message, mode):
    runtime = shared("handlers.nothing", ASYA_HANDLER_MODE=mode)
    before = runtime.notes()
    code, details = error_of(runtime.ask(body if isinstance(body, bytes) else json.dumps(body).encode()))
    assert code == "msg_parsing_error"
    assert message in details["message"]
    assert runtime.notes() == before
    assert runtime.ask(envelope(1)) == [], "the runtime continues"


@pytest.mark.parametrize("deadline", ["2001-01-01T00:00:00Z", "2001-01-01T00:00:00.123456789+02:00"])
def test_message_past_its_deadline_is_not_processed(shared, deadline):
    runtime = shared("handlers.nothing")
    before = runtime.notes()
    code, details = error_of(runtime.ask(envelope(1, deadline=deadline)))
    assert (code, details["type"]) == ("processing_error", "DeadlineExceeded")
    assert runtime.notes() == before


@pytest.mark.parametrize("deadline", ["2999-01-01T00:00:00Z", "tomorrow", 7, None])
def test_future_or_invalid_deadline_does_not_stop_processing(shared, deadline):
    assert shared("handlers.echo").ask(envelope(1, deadline=deadline))[0]["payload"] == 1


def test_payloads_are_not_logged(start):
    runtime = start("handlers.echo")
    runtime.ask(envelope("my secret"))
    runtime.ask(b'{"my secret": 1}')
    assert "msg_parsing_error" in str(runtime.ask(b"my secret"))
    assert "my secret" not in runtime.log()
