"""Handlers with typed parameters and results."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date, datetime, timezone
from enum import Enum
from uuid import UUID

from pydantic import BaseModel


class Kind(Enum):
    NEWS = "news"
    MAIL = "mail"


@dataclass
class Part:
    text: str
    at: datetime | None = None


@dataclass
class Document:
    id: UUID
    kind: Kind
    parts: list[Part]
    day: date | None = None
    tags: list[str] = field(default_factory=list)


class Question(BaseModel):
    text: str
    top: int = 3


def describe(document: Document) -> dict:
    return {
        "types": [type(document).__name__, type(document.id).__name__, document.kind.name, type(document.parts[0]).__name__],
        "at": document.parts[0].at,
        "document": document,
    }


class Answers:
    def find(self, question: Question) -> Iterator[Question]:
        for rank in range(question.top):
            yield Question(text=f"{question.text} {rank}")


def moment(payload):
    return {"at": datetime(2026, 11, 29, 12, tzinfo=timezone.utc), "id": UUID(int=7), "kind": Kind.MAIL}
