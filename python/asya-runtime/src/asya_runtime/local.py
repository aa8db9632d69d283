"""`asya-runtime call` and `asya-runtime serve`: a handler without a broker, as it runs behind a sidecar."""

from __future__ import annotations

import argparse
import json
import os
import sys
import uuid
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from . import runtime

FAILED = 1


def main(words: Sequence[str]) -> int:
    args = _arguments().parse_args(words)
    runtime._make_importable()
    settings = runtime.Settings.from_env({**os.environ, "ASYA_HANDLER": args.handler})
    runner = runtime.Runner(runtime.load_handler(settings.handler), settings)
    return args.run(runner, args)


def _arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="asya-runtime",
        description="Run a handler without a broker. Without arguments: behind a sidecar, with ASYA_HANDLER.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    call = commands.add_parser("call", help="Call a handler once, and print each of its messages as a line of JSON.")
    call.add_argument("handler", metavar="HANDLER", help="such as sentiment.Sentiment.score")
    call.add_argument("payload", metavar="PAYLOAD", help="JSON, @FILE, or - for standard input")
    call.set_defaults(run=_call)
    serve = commands.add_parser("serve", help="Answer POST requests with a payload as their body.")
    serve.add_argument("handler", metavar="HANDLER", help="such as sentiment.Sentiment.score")
    serve.add_argument("--port", type=int, default=8000, help="port on 127.0.0.1; 0 for a free one (default: 8000)")
    serve.set_defaults(run=_serve)
    return parser


def _call(runner: runtime.Runner, args: argparse.Namespace) -> int:
    try:
        payload = json.loads(_text(args.payload))
    except (OSError, ValueError) as error:
        raise runtime.SetupError(f"cannot read the payload: {error}: give JSON, @FILE or - for standard input") from None
    status, messages = _answer(runner, payload)
    for message in messages:
        print(json.dumps(message), file=sys.stdout if status == 200 else sys.stderr)
    return 0 if status == 200 else FAILED


def _text(argument: str) -> str:
    if argument == "-":
        return sys.stdin.read()
    return Path(argument[1:]).read_text() if argument.startswith("@") else argument


def _answer(runner: runtime.Runner, argument: Any) -> tuple[int, list[Any]]:
    """The status code, and the payloads of the messages, the envelopes in envelope mode, or the error."""
    in_envelopes = runner.settings.envelope_mode
    route = {"actors": ["local"], "current": 0}
    envelope = argument if in_envelopes else {"id": str(uuid.uuid4()), "route": route, "payload": argument}
    messages = json.loads(runner.answer(json.dumps(envelope).encode()))
    if messages and "error" in messages[0] and "payload" not in messages[0]:
        return 500, messages
    return 200, messages if in_envelopes else [message["payload"] for message in messages]


def _serve(runner: runtime.Runner, args: argparse.Namespace) -> int:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            try:
                length = int(self.headers.get("Content-Length") or 0)
                if length > runner.settings.max_frame_bytes:
                    self.send_error(413)
                    return
                status, messages = _answer(runner, json.loads(self.rfile.read(length)))
            except ValueError as error:
                status, messages = 400, [{"error": "msg_parsing_error", "details": {"message": f"no JSON: {error}"}}]
            body = json.dumps(messages).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with ThreadingHTTPServer(("127.0.0.1", args.port), Handler) as server:
        print(f"http://127.0.0.1:{server.server_port}", flush=True)
        try:
            server.serve_forever()
        except runtime._Terminated:
            return 0
    return 0
