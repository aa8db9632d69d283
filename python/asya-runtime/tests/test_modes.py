"""Results of handlers, and the responses that the sidecar gets."""

from __future__ import annotations

import pytest

from harness import envelope, error_of


def payloads(answer):
    return [item["payload"] for item in answer]


def test_one_message_becomes_one_with_the_route_advanced_and_the_rest_kept(shared):
    asked = envelope({"n": 2**63 + 1}, ("a", "b"), 0, headers={"traceparent": "00-1"}, deadline="2999-01-01T00:00:00Z", other=1)
    asked["route"]["metadata"] = {"job": 1}
    answer = shared("handlers.echo").ask(asked)
    assert answer == [
        {
            "payload": {"n": 2**63 + 1},
            "route": {"actors": ["a", "b"], "current": 1, "metadata": {"job": 1}},
            "headers": {"traceparent": "00-1"},
        }
    ]


def test_current_may_be_absent_and_never_passes_the_end(shared):
    runtime = shared("handlers.echo")
    first = runtime.ask({"route": {"actors": ["a"]}, "payload": "x"})
    assert first == [{"payload": "x", "route": {"actors": ["a"], "current": 1}}]
    finished = runtime.ask(envelope(1, ("a",), 1))
    assert finished == [{"payload": 1, "route": {"actors": ["a"], "current": 1}}]


def test_no_result_is_an_empty_response(start):
    runtime = start("handlers.nothing")
    assert runtime.ask(envelope(1)) == []
    assert runtime.notes() == ["called"]


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ("list", [1, 2, 3]),
        ("tuple", [1, 2]),
        ("empty", []),
        ("a list as one payload", [[1, 2, 3]]),
        ("nulls", [None, None]),
        ("false", [False]),
        ("text", ["été <&> \u2028"]),
        ("big", [2**70 + 1]),
        ("map", ["0", "1", "2"]),
    ],
)
def test_lists_fan_out(shared, asked, expected):
    answer = shared("handlers.constant").ask(envelope(asked))
    assert payloads(answer) == expected
    assert all(item["route"]["current"] == 1 for item in answer)


@pytest.mark.parametrize(
    ("handler", "asked", "expected"),
    [
        ("handlers.numbers", 3, [{"number": 0}, {"number": 1}, {"number": 2}]),
        ("handlers.numbers", 0, []),
        ("handlers.echo_async", {"x": 1}, [{"x": 1}]),
        ("handlers.numbers_async", 3, [0, 1, 2]),
        ("handlers.hidden_async", "x", ["x"]),
        ("handlers.with_asyncio_run", "x", ["x"]),
        ("handlers.echo_partial", "you", ["hello you"]),
        ("handlers.Counter.static", 1, ["static"]),
        ("handlers.Counter.of_class", 1, ["Counter"]),
        ("handlers.Plain.process", 1, [{"plain": 1}]),
        ("handlers.loud", 1, [1]),
        ("os.path.basename", "/a/b", ["b"]),
        ("math.sqrt", 4, [2.0]),
    ],
)
def test_every_kind_of_handler(shared, handler, asked, expected):
    assert payloads(shared(handler).ask(envelope(asked))) == expected


@pytest.mark.parametrize(
    ("handler", "expected"),
    [
        ("handlers.Counter.process", [[2], [4], [6]]),
        ("handlers.Counter.process_async", [[2], [4], [6]]),
        ("handlers.Counter", [["called", 2], ["called", 4], ["called", 6]]),
        ("objects.shared.process", [[5], [10], [15]]),
    ],
)
def test_object_is_created_once_and_keeps_its_state(start, handler, expected):
    runtime = start(handler)
    assert [payloads(runtime.ask(envelope(1))) for _ in range(3)] == expected
    assert runtime.notes() == ["made"]


def test_payload_handler_can_read_the_current_envelope(start):
    runtime = start("handlers.who")
    asked = envelope("secret", headers={"h": 1}, deadline="2999-01-01T00:00:00.123456789+02:00")
    [item] = runtime.ask(asked)
    assert item["payload"] == {key: asked[key] for key in ("id", "route", "headers", "deadline")}


def test_an_error_after_the_first_item_sends_nothing(start):
    code, details = error_of(start("handlers.breaks_off").ask(envelope()))
    assert (code, details["type"], details["message"]) == ("processing_error", "ValueError", "no more")


ENVELOPE = {"ASYA_HANDLER_MODE": "envelope"}


@pytest.mark.parametrize(("current", "expected"), [(0, 1), (1, 2), (2, 3)])
def test_the_route_may_be_changed_in_place_by_every_actor_also_the_last(shared, current, expected):
    [item] = shared("handlers.advance_in_place", **ENVELOPE).ask(envelope(7, ("a", "b", "c"), current, headers={"h": 1}))
    assert item == {
        "id": "e1",
        "payload": {"seen": 7},
        "route": {"actors": ["a", "b", "c"], "current": expected},
        "headers": {"h": 1},
    }


@pytest.mark.parametrize("how", ["replace all in place", "erase in place", "copy"])
def test_finished_actors_cannot_be_changed(shared, how):
    code, details = error_of(shared("handlers.edit_route", **ENVELOPE).ask(envelope(how, ("a", "b"), 1)))
    assert code == "processing_error"
    assert "`route.actors` started with ['a', 'b']" in details["message"]


@pytest.mark.parametrize(
    ("how", "text"),
    [
        ("clear in place", "at least one actor"),
        ("boolean", "a boolean"),
        ("past the end", "between 0 and 2"),
        ("no payload", "`payload` is missing"),
        ("not an object", "not a string"),
    ],
)
def test_invalid_envelope_is_rejected(shared, how, text):
    code, details = error_of(shared("handlers.edit_route", **ENVELOPE).ask(envelope(how)))
    assert code == "processing_error"
    assert text in details["message"]


def test_remaining_route_may_change_and_results_may_be_several(shared):
    runtime = shared("handlers.edit_route", **ENVELOPE)
    [item] = runtime.ask(envelope("future", ("a", "b"), 0))
    assert item["route"] == {"actors": ["a", "new", "newer"], "current": 1}
    assert payloads(runtime.ask(envelope("two"))) == [1, 2]
    assert runtime.ask(envelope("nothing")) == []


def test_a_generator_may_yield_the_same_envelope_changed(start):
    assert payloads(start("handlers.mutate_and_yield", **ENVELOPE).ask(envelope())) == [0, 1, 2]


def test_end_actors_accept_any_json(start):
    runtime = start("handlers.end", **ENVELOPE, ASYA_ENABLE_VALIDATION="false")
    for message in ({}, {"id": ""}, [1], envelope(1, ("a",), 1, deadline="2001-01-01T00:00:00Z")):
        assert runtime.ask(message) == [{}]
    assert error_of(runtime.ask(b"no json"))[0] == "msg_parsing_error"
    assert runtime.notes() == ["None", "", "no object", "e1"]
