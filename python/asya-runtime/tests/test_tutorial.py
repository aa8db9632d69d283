"""The commands of docs/start/handler.md, with the handler of the page."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs/start/handler.md"


def blocks(language: str) -> list[str]:
    found = re.findall(rf"^ *```{language}\n(.*?)^ *```$", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    return ["\n".join(line.removeprefix("   ") for line in block.splitlines()) for block in found]


def test_calls_of_the_page_have_the_results_of_the_page(tmp_path):
    [handler] = blocks("python")
    (tmp_path / "reviews.py").write_text(handler)
    calls = [block.splitlines() for block in blocks("console") if "asya-runtime call" in block]
    assert len(calls) == 2
    for command, *output in calls:
        words = shlex.split(command.removeprefix("$ asya-runtime "))
        program = [sys.executable, "-m", "asya_runtime", *words]
        done = subprocess.run(program, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
        assert done.stdout.splitlines() == output, done.stderr
        assert done.returncode == (0 if output else 1)
    assert "missing 1 required positional argument: 'text'" in done.stderr
