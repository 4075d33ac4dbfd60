"""Progress of a command: one live line in a terminal, plain lines elsewhere; and a run's clocks.

Output may fail at any time without ending the process: a terminal closes, the reader of a pipe
ends, or the disk of a log is full.
"""

import contextlib
import io
import logging
import math
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import IO

from runs.records import redacted

# A terminal gets a line this often, and a log file.
_LIVE_SECONDS, _PLAIN_SECONDS = 0.2, 10.0

# Lines are made of parts, the most important first; a terminal cuts what does not fit.
SEPARATOR = " | "


class Clock:
    """Measures a run in seconds; a resumed run continues from saved readings.

    Attributes:
        waited: seconds of training time spent waiting for input.
    """

    def __init__(
        self, train: float = 0.0, wall: float = 0.0, waited: float = 0.0, cores: float = 0.0
    ):
        now = time.perf_counter()
        self.waited, self._paused, self._began = waited, 0, now - wall
        self._trained, self._since = (train, cores), (now, time.process_time())

    @property
    def train(self) -> float:
        """Seconds of training."""
        return self._trained_so_far()[0]

    def _trained_so_far(self) -> tuple[float, float]:
        """Seconds of training, and CPU seconds of this process during it."""
        (train, cores), (since, cores_since) = self._trained, self._since
        if self._paused:
            return train, cores
        return train + time.perf_counter() - since, cores + time.process_time() - cores_since

    @property
    def wall(self) -> float:
        """Seconds since the run began, without the time between interruption and resumption."""
        return time.perf_counter() - self._began

    @property
    def input_wait_fraction(self) -> float:
        """The share of training time that was spent waiting for input, 0 to 1."""
        return min(1.0, self.waited / self.train) if self.train > 0 else 0.0

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Excludes the context from the training time."""
        self._trained = self._trained_so_far()
        self._paused += 1
        try:
            yield
        finally:
            self._paused -= 1
            self._since = time.perf_counter(), time.process_time()

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Counts the context as time spent waiting for input, which is training time."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.waited += time.perf_counter() - start

    def readings(self) -> dict[str, float]:
        """Arguments for a Clock that continues from here."""
        train, cores = self._trained_so_far()
        return {"train": train, "wall": self.wall, "waited": self.waited, "cores": cores}


class Progress:
    """Shows a status on standard error, at most a few times a second.

    Args:
        heading: stands before every status.
        quiet: show nothing.

    Attributes:
        unsaid: the lines that were not said because it is quiet.
    """

    def __init__(self, heading: str = "", quiet: bool = False):
        self.quiet, self.unsaid = quiet, list[str]()
        self._stream, self._heading = sys.stderr, heading
        self._live = self._stream is not None and self._stream.isatty()
        self._last, self._next_line = "", time.monotonic() + (0.0 if self._live else 2.0)

    def update(self, status: Callable[[], str]) -> None:
        """Shows what `status` returns if the last one is old enough. A log does not get a status
        that equals the last one."""
        now = time.monotonic()
        if self.quiet or now < self._next_line:
            return
        self._next_line = now + (_LIVE_SECONDS if self._live else _PLAIN_SECONDS)
        line = SEPARATOR.join(filter(None, (self._heading, status())))
        if self._live:
            self._show(line[: shutil.get_terminal_size().columns - 1])
        elif line != self._last:
            write(line, self._stream)
        self._last = line

    def say(self, line: str) -> None:
        """Prints a line permanently; if quiet, keeps it in `unsaid`."""
        if self.quiet:
            self.unsaid.append(line)
            return
        self.close()
        write(line, self._stream)

    def close(self) -> None:
        """Removes the live line."""
        if self._live and self._last:
            self._last = ""
            self._show("")

    def _show(self, line: str) -> None:
        with writable(self._stream):
            print(f"\r\x1b[K{line}", end="", file=self._stream, flush=True)


def duration(seconds: float | None) -> str:
    """Seconds for humans: '42 s', '3 min 20 s', '2 h 05 min'."""
    if seconds is None or not math.isfinite(seconds):
        return "?"
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def several(number: int, noun: str) -> str:
    """A count with its noun: "1 search", "1,200 trials"."""
    plural = f"{noun}es" if noun.endswith("ch") else f"{noun}s"
    return f"{number:,} {noun if number == 1 else plural}"


def write(line: str, stream: IO[str] | None = None) -> None:
    """Prints a line, without passwords in URLs, to `stream`, by default standard output, if it is
    still writable."""
    stream = sys.stdout if stream is None else stream
    with writable(stream):
        print(redacted(line), file=stream, flush=True)


@contextlib.contextmanager
def writable(stream: IO[str] | None) -> Iterator[None]:
    """Discards all further output to `stream` once a write in the context fails."""
    try:
        yield
    except (OSError, ValueError):  # ValueError: the stream is closed
        if stream is not None:
            with contextlib.suppress(OSError, ValueError), open(os.devnull, "w") as nowhere:
                os.dup2(nowhere.fileno(), stream.fileno())


@contextlib.contextmanager
def surviving_output() -> Iterator[None]:
    """Keeps a command alive, within the context, when its terminal closes or its output fails.

    Prints characters that standard output cannot encode, such as '≤' in ASCII, as escapes, as
    Python does on standard error. Flushes at the end, where Python would fail at exit. Leaves out
    what Orbax and its file layer, in their coroutines, too, report of errors that they raise.
    """
    for name in ("absl", "asyncio"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    report, sys.unraisablehook = sys.unraisablehook, lambda raised: None
    in_main = threading.current_thread() is threading.main_thread()
    if in_main and signal.getsignal(signal.SIGHUP) == signal.SIG_DFL:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        yield
    finally:
        sys.unraisablehook = report
        for stream in filter(None, (sys.stdout, sys.stderr)):
            with writable(stream):
                stream.flush()
