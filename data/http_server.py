"""The process that serves a training split over HTTP; see http_source.py.

    python -m data.http_server

`http_source.HttpSource` starts it. The first line of its standard input is config.dataset as JSON;
the first line of its output gives the port. It ends when its standard input is closed.
"""

import json
import os
import signal
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import ml_collections
from flax import serialization

from data.http_source import LENGTH_BYTES
from data.sources import Source, reason
from data.splits import open_splits


class _Server(ThreadingHTTPServer):
    def __init__(self, source: Source):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.source = source

    def handle_error(self, request, client_address):
        """Ignores a reader that went away, which reports its own errors."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # keeps connections open
    disable_nagle_algorithm = True
    server: _Server

    def do_POST(self):
        indices = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        try:
            frames = [_frame(record) for record in self.server.source.__getitems__(indices)]
        except Exception as error:  # the reader raises it
            return self._respond(500, _escaped(reason(error)).encode())
        self._respond(200, b"".join(frames))

    def _respond(self, status: int, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        """Logs nothing."""


def _frame(record: dict[str, Any]) -> bytes:
    sent = {
        name: _escaped(value) if isinstance(value, str) else value for name, value in record.items()
    }
    content = serialization.msgpack_serialize(sent)
    return len(content).to_bytes(LENGTH_BYTES, "big") + content


def _escaped(text: str) -> str:
    """The text with escapes for what UTF-8 cannot encode, as some file names have."""
    return text.encode(errors="backslashreplace").decode()


def _exit_with_input() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C also reaches the reader, which saves
    dataset = json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=_exit_with_input, daemon=True).start()
    try:
        source, _, _ = open_splits(ml_collections.ConfigDict(dataset))
    except Exception as error:  # the reader raises it
        print(json.dumps({"error": reason(error)}), flush=True)
        return
    server = _Server(source)
    print(json.dumps({"port": server.server_port, "length": len(source)}), flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
