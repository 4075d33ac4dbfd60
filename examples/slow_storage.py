"""Slow storage for the examples: an HTTP server on loopback that sends JPEGs at a limited rate.

    python -m examples.slow_storage 250

serves the training digits of scikit-learn, enlarged to JPEGs of varying size, at /0, /1, ... with
at most 250 files per second over all connections. The label is in the header X-Label. The first
line of its output is the URL. It ends when its standard input is closed.
"""

import argparse
import contextlib
import functools
import io
import json
import os
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
from PIL import Image

from data import packaged
from data.throttle import Limits, RateLimiter

SIDE = 32  # pixels of the images that the networks take
NUM_TRAIN = 1197


@contextlib.contextmanager
def serve(files_per_second: float) -> Iterator[str]:
    """Runs the server in a process of its own; yields its URL."""
    command = [sys.executable, "-m", "examples.slow_storage", str(files_per_second)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline().strip()
        finally:
            server.terminate()  # workers of a loader may still hold its standard input


def get(url: str) -> tuple[bytes, int]:
    """The file at `url`, and its label."""
    with urllib.request.urlopen(url) as response:
        return response.read(), int(response.headers["X-Label"])


def decode(jpeg: bytes) -> np.ndarray:
    """Its pixels in gray, uint8 [SIDE, SIDE]."""
    return np.asarray(Image.open(io.BytesIO(jpeg)).convert("L").resize((SIDE, SIDE)))


@functools.cache
def local(split: str) -> tuple[np.ndarray, np.ndarray]:
    """A split, read without the server: images, uint8 [N, SIDE, SIDE], and labels, int64 [N]."""
    source, _ = packaged.open_source("digits_jpeg", split)
    records = source.__getitems__(range(len(source)))
    images_NxHxW = np.stack([decode(record["image"]) for record in records])
    return images_NxHxW, np.asarray([record["label"] for record in records])


def run_job(train: Callable[..., dict], make_loader_with_echo: Callable[..., Any]) -> None:
    """The command line of a job; prints what `train` returns, as JSON."""
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__)
    parser.add_argument("url", help="of examples.slow_storage")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target", type=float, default=0.95, help="validation accuracy, 0 to 1")
    parser.add_argument("--echo", action="store_true", help="use make_loader_with_echo")
    arguments = parser.parse_args()
    changed = {"make_loader": make_loader_with_echo} if arguments.echo else {}
    print(json.dumps(train(arguments.url, arguments.seed, arguments.target, **changed)))


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    limiter: RateLimiter
    records: list[dict]

    def do_GET(self):
        record = self.records[int(self.path.strip("/"))]
        self.limiter.wait(1)
        self.send_response(200)
        self.send_header("Content-Length", str(len(record["image"])))
        self.send_header("X-Label", str(record["label"]))
        self.end_headers()
        self.wfile.write(record["image"])

    def log_message(self, *_):
        """Logs nothing."""


def _exit_with_input() -> None:
    sys.stdin.read()
    os._exit(0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files_per_second", type=float)
    limits = Limits(examples_per_second=parser.parse_args().files_per_second)
    source, _ = packaged.open_source("digits_jpeg", "train")
    _Handler.records = source.__getitems__(range(len(source)))
    _Handler.limiter = RateLimiter(limits)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    threading.Thread(target=_exit_with_input, daemon=True).start()
    print(f"http://127.0.0.1:{server.server_port}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
