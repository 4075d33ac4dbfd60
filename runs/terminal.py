"""Output that may be lost at any time, and with it nothing else: a terminal goes away, a pipe's
reader ends, a log's disk is full. The process continues without it."""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator
from typing import IO


def write(line: str, stream: IO[str] | None = None) -> None:
    """Prints a line to `stream`, by default standard output, while it can be reached."""
    stream = sys.stdout if stream is None else stream
    with reached(stream):
        print(line, file=stream, flush=True)


@contextlib.contextmanager
def reached(stream: IO[str] | None) -> Iterator[None]:
    """Once `stream` cannot be written to, what is written in here goes nowhere."""
    try:
        yield
    except (OSError, ValueError):  # ValueError: it is closed
        _silence(stream)


def flush() -> None:
    """Writes out what is buffered. Where it cannot be, Python would fail in that when it exits."""
    for stream in (sys.stdout, sys.stderr):
        with reached(stream):
            if stream is not None:
                stream.flush()


def survive_hangup() -> None:
    """Lets the process go on when its terminal closes; only the main thread can do that."""
    in_main = threading.current_thread() is threading.main_thread()
    if in_main and signal.getsignal(signal.SIGHUP) == signal.SIG_DFL:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)


def _silence(stream: IO[str] | None) -> None:
    with contextlib.suppress(OSError, ValueError, AttributeError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
