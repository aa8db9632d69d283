"""Fixtures: `start(handler, …)` starts a runtime that ends with the test; `shared(handler, …)` one for many tests."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness import Runtime


@pytest.fixture
def folder() -> Iterator[Path]:
    # A socket's path has at most 107 characters, pytest's own folders may be longer.
    with tempfile.TemporaryDirectory(prefix="asya-") as path:
        yield Path(path)


@pytest.fixture
def start(folder: Path) -> Iterator[Callable[..., Runtime]]:
    with contextlib.ExitStack() as stack:
        yield lambda handler, **options: stack.enter_context(Runtime(folder, handler, **options)).ready()


@pytest.fixture(scope="session")
def shared() -> Iterator[Callable[..., Runtime]]:
    """For handlers without state."""
    running: dict[str, Runtime] = {}
    with contextlib.ExitStack() as stack:

        def get(handler: str, **env: str) -> Runtime:
            key = f"{handler} {sorted(env.items())}"
            if key not in running:
                folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="asya-"))
                running[key] = stack.enter_context(Runtime(Path(folder), handler, **env)).ready()
            return running[key]

        yield get
