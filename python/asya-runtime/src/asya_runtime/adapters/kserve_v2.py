"""Handler for servers with the Open Inference Protocol (KServe v2): KServe runtimes, Triton, OpenVINO, MLServer.

A payload with `inputs` goes to `infer`. A payload with `text_input` goes to the generate extension; with `stream` its events
are put together to one answer. `model_name` and `model_version` in the payload take precedence over ASYA_TARGET_MODEL.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from urllib.parse import quote

from .target import Target, TargetError, Temporary, an_object, parse_event

target = Target.from_env("http://127.0.0.1:8080")


def forward(payload: Any) -> dict[str, Any]:
    """POST /v2/models/MODEL/infer, /generate or /generate_stream."""
    if not isinstance(payload, dict) or ("inputs" not in payload and "text_input" not in payload):
        raise TargetError("the payload is not a v2 request: it must be an object with `inputs` or `text_input`")
    body = dict(payload)
    name = body.pop("model_name", None) or target.model
    version = body.pop("model_version", None)
    if not name:
        raise TargetError("no model given: add `model_name` to the payload, or set ASYA_TARGET_MODEL")
    model = f"/v2/models/{quote(str(name), safe='')}" + (f"/versions/{quote(str(version), safe='')}" if version else "")
    action = "infer"
    if "inputs" not in body:
        action = "generate_stream" if body.get("stream", target.stream) else "generate"
    return an_object(target.post(target.path(f"{model}/{action}"), body, _fold))


def _wait_for_the_server() -> None:
    target.wait_for(target.path("/v2/health/ready"))


forward.asya_warm_up = _wait_for_the_server  # type: ignore[attr-defined]


def _fold(events: Iterable[str]) -> dict[str, Any]:
    answer: dict[str, Any] = {}
    texts: list[str] = []
    for text in events:
        if text.strip() == "[DONE]":
            break
        event = parse_event(text)
        piece = event.pop("text_output", None)
        texts.append(piece if isinstance(piece, str) else "")
        answer.update(event)
    if not texts:
        raise Temporary("the target's stream ended without an event")
    return {**answer, "text_output": "".join(texts)}
