"""Output that may fail at any time without ending the process: a terminal closes, the reader of a
pipe ends, or the disk of a log is full."""

import contextlib
import io
import os
import signal
import sys
import threading
from collections.abc import Iterator
from typing import IO


def write(line: str, stream: IO[str] | None = None) -> None:
    """Prints a line to `stream`, by default standard output, if it is still writable."""
    stream = sys.stdout if stream is None else stream
    with reached(stream):
        print(line, file=stream, flush=True)


@contextlib.contextmanager
def reached(stream: IO[str] | None) -> Iterator[None]:
    """Discards all further output to `stream` once a write in the context fails."""
    try:
        yield
    except (OSError, ValueError):  # ValueError: the stream is closed
        _silence(stream)


def flush() -> None:
    """Writes buffered output. If that fails here, Python does not fail with it at exit."""
    for stream in (sys.stdout, sys.stderr):
        with reached(stream):
            if stream is not None:
                stream.flush()


def escape_what_cannot_be_encoded() -> None:
    """Prints characters that standard output cannot encode, such as '≤' in ASCII, as escapes, as
    Python does on standard error. An error would end the output."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def survive_hangup() -> None:
    """Keeps the process alive when its terminal closes; has an effect only in the main thread."""
    in_main = threading.current_thread() is threading.main_thread()
    if in_main and signal.getsignal(signal.SIGHUP) == signal.SIG_DFL:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)


def _silence(stream: IO[str] | None) -> None:
    if stream is None:
        return
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
