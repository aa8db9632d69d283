"""A handler without a broker: `asya-runtime call` and `asya-runtime serve`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "asya_runtime", *words]


def call(*words: str, **more) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command("call", *words), cwd=HERE, capture_output=True, text=True, timeout=60, check=False, **more)


def test_call_prints_each_message_as_a_line():
    done = call("typed.Answers.find", '{"text": "why", "top": 2}')
    assert [json.loads(line) for line in done.stdout.splitlines()] == [{"text": "why 0", "top": 3}, {"text": "why 1", "top": 3}]
    assert done.returncode == 0


def test_call_reads_the_payload_from_a_file_or_standard_input(tmp_path):
    file = tmp_path / "payload.json"
    file.write_text('{"a": 1}')
    assert call("handlers.echo", f"@{file}").stdout == '{"a": 1}\n'
    assert call("handlers.echo", "-", input="[1]").stdout == "1\n"


def test_failed_call_ends_with_the_error():
    done = call("typed.describe", "{}")
    assert (done.returncode, done.stdout) == (1, "")
    assert "missing" in done.stderr


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("handlers.echo", "{text: good}"), 2, "cannot read the payload"),
        (("handlers.echo", "@/nowhere"), 2, "cannot read the payload: [Errno 2] No such file"),
        (("handlers.absent", "{}"), 3, "`handlers` has no `absent`"),
        (("echo", "{}"), 2, "it must look like `module.function`"),
    ],
)
def test_call_that_cannot_start_says_why(words, code, text):
    done = call(*words)
    assert (done.returncode, done.stdout) == (code, "")
    assert text in done.stderr
    assert "Traceback" not in done.stderr


def test_serve_answers_requests_until_it_is_terminated():
    server = subprocess.Popen(
        command("serve", "typed.Answers.find", "--port", "0"), cwd=HERE, stdout=subprocess.PIPE, text=True, env={**os.environ}
    )
    try:
        assert server.stdout is not None
        url = server.stdout.readline().strip()

        def post(body: str) -> tuple[int, object]:
            try:
                with urllib.request.urlopen(url, data=body.encode(), timeout=60) as answer:
                    return answer.status, json.load(answer)
            except urllib.error.HTTPError as error:
                return error.code, json.load(error)

        assert post('{"text": "why", "top": 1}') == (200, [{"text": "why 0", "top": 3}])
        status, [error] = post("{}")
        assert (status, error["error"]) == (500, "processing_error")
        assert post("{text")[0] == 400
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) == 0
    finally:
        server.kill()
