"""Parameters and results that are objects."""

from __future__ import annotations

from harness import envelope, error_of

DOCUMENT = {
    "id": "00000000-0000-0000-0000-000000000007",
    "kind": "news",
    "parts": [{"text": "good", "at": "2026-11-29T12:00:00Z"}, {"text": "bad"}],
    "of": "another actor",
}


def test_dataclass_is_made_of_the_payload_and_written_back(start):
    [message] = start("typed.describe").ask(envelope(DOCUMENT))
    assert message["payload"]["types"] == ["Document", "UUID", "NEWS", "Part"]
    assert message["payload"]["at"] == "2026-11-29T12:00:00+00:00"
    assert message["payload"]["document"] == {
        "id": DOCUMENT["id"],
        "kind": "news",
        "parts": [{"text": "good", "at": "2026-11-29T12:00:00+00:00"}, {"text": "bad", "at": None}],
        "day": None,
        "tags": [],
    }


def test_payload_that_does_not_fit_names_the_field(start):
    runtime = start("typed.describe")
    for payload, text in [
        ("text", "the payload is not a `Document`: it must be an object, not a string"),
        ({**DOCUMENT, "id": "seven"}, "the payload is not a `Document`: `id`: badly formed hexadecimal UUID string"),
        ({**DOCUMENT, "parts": [{}]}, "`parts`: Part.__init__() missing 1 required positional argument: 'text'"),
        ({**DOCUMENT, "kind": "song"}, "`kind`: 'song' is not a valid Kind"),
    ]:
        message = error_of(runtime.ask(envelope(payload)))[1]["message"]
        assert text in message


def test_pydantic_model_is_validated_and_written(start):
    runtime = start("typed.Answers.find")
    messages = runtime.ask(envelope({"text": "why", "top": 2}))
    assert [message["payload"] for message in messages] == [{"text": "why 0", "top": 3}, {"text": "why 1", "top": 3}]
    message = error_of(runtime.ask(envelope({"top": "many"})))[1]["message"]
    assert message.startswith("the payload is not a `Question`: 2 validation errors for Question")


def test_times_identifiers_and_enumerations_are_written(start):
    [message] = start("typed.moment").ask(envelope())
    assert message["payload"] == {
        "at": "2026-11-29T12:00:00+00:00",
        "id": "00000000-0000-0000-0000-000000000007",
        "kind": "mail",
    }
