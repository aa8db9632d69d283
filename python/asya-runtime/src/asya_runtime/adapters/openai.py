"""Handlers for servers with the OpenAI API: vLLM, KAITO, SGLang, llama.cpp, Ray Serve LLM, NIM and others.

The payload is the API's own request, the result its own answer. A stream is put together again: the result of a message is
one answer, the same as without `stream`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from .target import Target, TargetError, Temporary, an_object, parse_event

target = Target.from_env("http://127.0.0.1:8000")

# A stream repeats the whole value of these fields. All other texts arrive in pieces.
WHOLE = ("role", "id", "type", "name", "finish_reason", "stop_reason", "object", "model", "index")

_models: list[str] = []


def forward(payload: Any) -> dict[str, Any]:
    """Choose the endpoint by the payload: `messages`, `prompt` or `input`. A bare string is a user's message."""
    if isinstance(payload, str):
        payload = {"messages": [{"role": "user", "content": payload}]}
    if isinstance(payload, dict):
        for key, endpoint in (("messages", chat), ("prompt", completions), ("input", embeddings)):
            if key in payload:
                return endpoint(payload)
    raise TargetError(
        "the payload is not an OpenAI request: it needs `messages` (chat), `prompt` (completions) or `input` (embeddings)"
    )


def chat(payload: dict[str, Any]) -> dict[str, Any]:
    """POST /v1/chat/completions."""
    return _post("/v1/chat/completions", payload, _fold_chat)


def completions(payload: dict[str, Any]) -> dict[str, Any]:
    """POST /v1/completions."""
    return _post("/v1/completions", payload, _fold_text)


def embeddings(payload: dict[str, Any]) -> dict[str, Any]:
    """POST /v1/embeddings; it does not stream."""
    return _post("/v1/embeddings", payload, None)


def _wait_for_the_server() -> None:
    target.wait_for(target.path("/v1/models"))


for _handler in (forward, chat, completions, embeddings):
    _handler.asya_warm_up = _wait_for_the_server  # type: ignore[attr-defined]


def _post(path: str, payload: Any, fold: Callable[[Iterable[str]], Any] | None) -> dict[str, Any]:
    if not isinstance(payload, dict):
        raise TargetError("the payload is not an OpenAI request: it must be a JSON object")
    body = {**payload, "model": payload.get("model") or target.model or _first_model()}
    if fold is not None and target.stream:
        body.setdefault("stream", True)
    return an_object(target.post(target.path(path), body, fold or _no_stream))


def _first_model() -> str:
    """The first model of the server, requested once."""
    if not _models:
        answer = an_object(target.get(target.path("/v1/models")))
        _models.extend(model["id"] for model in answer.get("data") or [] if isinstance(model, dict) and "id" in model)
    if not _models:
        raise TargetError("the server lists no model at /v1/models: set the payload's `model` or ASYA_TARGET_MODEL")
    return _models[0]


def _no_stream(_: Iterable[str]) -> Any:
    raise TargetError("the server sent a stream that was not requested")


def _fold_chat(events: Iterable[str]) -> dict[str, Any]:
    answer = _fold(events, "delta", "message")
    answer["object"] = "chat.completion"
    return answer


def _fold_text(events: Iterable[str]) -> dict[str, Any]:
    answer = _fold(events, None, None)
    answer["object"] = "text_completion"
    return answer


def _fold(events: Iterable[str], piece: str | None, whole: str | None) -> dict[str, Any]:
    answer: dict[str, Any] = {}
    choices: dict[int, dict[str, Any]] = {}
    complete = False
    for text in events:
        if text.strip() == "[DONE]":
            complete = True
            break
        event = parse_event(text)
        for part in event.pop("choices", None) or []:
            index = part.get("index", 0)
            choice = choices.setdefault(index, {"index": index})
            if piece is not None and whole is not None:
                _merge(choice.setdefault(whole, {}), part.pop(piece, None) or {})
            _merge(choice, part)
        answer.update({key: value for key, value in event.items() if value is not None})
    if not complete and not (choices and all(choice.get("finish_reason") for choice in choices.values())):
        raise Temporary("the target's stream ended early")
    answer["choices"] = [choices[index] for index in sorted(choices)]
    for choice in answer["choices"]:
        for call in (choice.get("message") or {}).get("tool_calls") or []:
            call.pop("index", None)
    return answer


def _merge(whole: dict[str, Any], piece: dict[str, Any]) -> None:
    for key, value in piece.items():
        known = whole.get(key)
        if value is None:
            whole.setdefault(key, None)
        elif key == "tool_calls":
            calls = whole[key] = known or []
            for call in value:
                index = call.get("index", len(calls))
                same = next((c for c in calls if c.get("index") == index), None)
                if same is None:
                    same = {"index": index}
                    calls.append(same)
                _merge(same, call)
        elif known is None or key in WHOLE:
            whole[key] = value if not isinstance(value, dict) else dict(value)
        elif isinstance(value, str) and isinstance(known, str):
            whole[key] = known + value
        elif isinstance(value, dict) and isinstance(known, dict):
            _merge(known, value)
        elif isinstance(value, list) and isinstance(known, list):
            whole[key] = known + value
        else:
            whole[key] = value
