"""Handler for any HTTP endpoint: the payload is posted as JSON to ASYA_TARGET_URL as it stands, the JSON answer is the result.

The events of a stream become `{"events": [...]}`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from .target import Target

target = Target.from_env(None)
_path = (target.url.path or "/") + (f"?{target.url.query}" if target.url.query else "")


def forward(payload: Any) -> list[Any]:
    """POST ASYA_TARGET_URL. One response is one message, even a list or null."""
    return [target.post(_path, payload, _fold)]


def _fold(events: Iterable[str]) -> dict[str, Any]:
    return {"events": [_value(text) for text in events if text.strip() != "[DONE]"]}


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text
