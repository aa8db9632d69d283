#!/usr/bin/python3
"""Plays an engine that misbehaves: /health answers 200, everything else as --mode says. Flags of llama-server are ignored."""

import argparse
import json
import signal
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

parser = argparse.ArgumentParser(allow_abbrev=False)
parser.add_argument("--mode", required=True)
parser.add_argument("--port", type=int, default=8080)
parser.add_argument("--alias", default="model")
parser.add_argument("--redirect-to", default="http://127.0.0.1:1/")
options, _ = parser.parse_known_args()

ENDLESS = 1 << 30


class Engine(BaseHTTPRequestHandler):
    def do_GET(self):
        if self.path == "/health":
            self.answer(200, {"status": "ok"})
        else:
            MODES[options.mode](self)

    def do_POST(self):
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        MODES[options.mode](self)

    def answer(self, status, what):
        body = json.dumps(what).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def models(self, name):
        self.answer(200, {"object": "list", "data": [{"id": name, "object": "model"}]})

    def other_name(self):
        if self.path == "/v1/models":
            self.models("another-" + options.alias)
        else:
            self.not_found()

    def errors(self):
        if self.path == "/v1/models":
            self.models(options.alias)
        else:
            self.answer(500, {"error": {"code": 500, "message": "the engine is broken", "type": "server_error"}})

    def hangs(self):
        while True:
            time.sleep(60)

    def redirects(self):
        self.send_response(302)
        self.send_header("Location", options.redirect_to)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def endless(self):
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(ENDLESS))
        self.end_headers()
        chunk = b" " * 65536
        for _ in range(ENDLESS // len(chunk)):
            self.wfile.write(chunk)

    def not_found(self):
        self.answer(404, {"error": {"code": 404, "message": "File Not Found", "type": "not_found_error"}})

    def closes(self):
        self.close_connection = True

    def log_message(self, format, *args):
        print(format % args, flush=True)


MODES = {
    "other-name": Engine.other_name,
    "errors": Engine.errors,
    "hangs": Engine.hangs,
    "redirects": Engine.redirects,
    "endless": Engine.endless,
    "not-found": Engine.not_found,
    "closes": Engine.closes,
}

if options.mode not in MODES:
    sys.exit(f"unknown mode {options.mode}: use one of {', '.join(MODES)}")
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
ThreadingHTTPServer(("", options.port), Engine).serve_forever()
