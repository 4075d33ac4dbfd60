"""The process that serves a training split over HTTP; see http_source.

    python -m data.http_server

It is started by `http_source.HttpSource`: the first line of its standard input is config.dataset
as JSON, the first line of its output where it listens. It ends when its standard input does.
"""

import json
import os
import signal
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import ml_collections
from flax import serialization

from data.errors import reason
from data.http_source import LENGTH_BYTES
from data.sources import Source
from data.splits import open_splits


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, source: Source):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.source = source

    def handle_error(self, request, client_address):
        """Nothing: a reader that went away has its own way of saying so."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # which keeps connections open
    disable_nagle_algorithm = True
    server: _Server

    def do_POST(self):
        indices = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        try:
            frames = [_frame(record) for record in self.server.source.__getitems__(indices)]
        except Exception as error:  # is the reader's to raise
            return self._answer(500, reason(error).encode())
        self._answer(200, b"".join(frames))

    def _answer(self, status: int, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        """Nothing: the output is the reader's."""


def _frame(record) -> bytes:
    content = serialization.msgpack_serialize(record)
    return len(content).to_bytes(LENGTH_BYTES, "big") + content


def _end_with_input() -> None:
    sys.stdin.buffer.read()
    os._exit(0)


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole terminal; ours saves
    dataset = json.loads(sys.stdin.buffer.readline())
    threading.Thread(target=_end_with_input, daemon=True).start()
    try:
        source, _, _ = open_splits(ml_collections.ConfigDict(dataset))
    except Exception as error:  # is the reader's to raise
        print(json.dumps({"error": reason(error)}), flush=True)
        return
    server = _Server(source)
    print(json.dumps({"port": server.server_port, "length": len(source)}), flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
