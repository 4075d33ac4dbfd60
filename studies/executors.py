"""Where a study's work is done: in this process, in worker processes, or on Ray.

All three are given units and hand back outcomes, and all run `work.run_unit` on the same directory.
A worker that dies takes nothing with it: its lock is free, and the unit is given out again.
"""

import contextlib
import multiprocessing
import pathlib
import signal
from collections.abc import Callable, Iterator
from multiprocessing import connection
from typing import Protocol

from runs import signals
from runs.progress import Progress
from studies.plan import Study
from studies.trial import Outcome, Unit, attempt, run_unit

# How long workers that were told to stop may take to save, before they are killed.
_STOP_SECONDS = 120.0

Ended = list[tuple[Unit, Outcome | None]]  # None: the worker died


class Executor(Protocol):
    """What runs units. Close it at the end.

    Attributes:
        silent: whether it shows nothing itself while units run.
    """

    silent: bool

    def listening(self) -> contextlib.AbstractContextManager[Callable[[], bool]]:
        """A function that says whether the study was told to stop, for as long as it is open."""

    def free(self) -> int:
        """How many units can be submitted now."""

    def submit(self, unit: Unit, described: str) -> None:
        """Starts a unit; `described` is what a live display calls it."""

    def wait(self, seconds: float) -> Ended:
        """The units that have ended, after at most so many seconds."""

    def stop(self) -> None:
        """Has what runs save itself and end."""

    def close(self) -> None: ...


class InProcessExecutor:
    """One unit after another, in this process."""

    silent = False

    def __init__(self, study: Study, study_dir: pathlib.Path, progress: Progress):
        self._study, self._study_dir, self._progress = study, study_dir, progress
        self._ended: Ended = []
        self._preempted = False

    @contextlib.contextmanager
    def listening(self) -> Iterator[Callable[[], bool]]:
        yield lambda: self._preempted  # it is training that listens

    def free(self) -> int:
        return 0 if self._ended else 1

    def submit(self, unit: Unit, described: str) -> None:
        shown = Progress(prefix=f"{described}: ", quiet=self._progress.quiet)
        outcome = run_unit(self._study, unit, self._study_dir, shown)
        self._preempted |= any(each["status"] == "preempted" for each in outcome.results.values())
        self._ended.append((unit, outcome))

    def wait(self, seconds: float) -> Ended:
        ended, self._ended = self._ended, []
        return ended

    def stop(self) -> None: ...

    def close(self) -> None: ...


class PoolExecutor:
    """Worker processes on this machine; each is kept, with what it has compiled, for many units.

    `concurrent.futures` has such a pool, which gives up all its work once one process is killed.
    """

    silent = True

    def __init__(self, study: Study, study_dir: pathlib.Path, progress: Progress, number: int):
        self._arguments = (study, study_dir)
        self._context = multiprocessing.get_context("spawn")  # JAX does not survive a fork
        self._number = number
        self._idle: list[tuple] = []
        self._busy: dict[connection.Connection, tuple] = {}  # (process, unit) by its connection

    @contextlib.contextmanager
    def listening(self) -> Iterator[Callable[[], bool]]:
        with signals.stop_requested() as stop:
            yield lambda: stop(0)

    def free(self) -> int:
        return self._number - len(self._busy)

    def submit(self, unit: Unit, described: str) -> None:
        while True:
            process, pipe = self._idle.pop() if self._idle else self._started()
            with contextlib.suppress(OSError):  # it died while it was idle
                pipe.send(unit)
                self._busy[pipe] = (process, unit)
                return
            process.join()

    def wait(self, seconds: float) -> Ended:
        ended: Ended = []
        for pipe in connection.wait(list(self._busy), seconds) if self._busy else []:
            process, unit = self._busy.pop(pipe)
            try:
                ended.append((unit, pipe.recv()))
                self._idle.append((process, pipe))
            except (EOFError, OSError):
                process.join()
                ended.append((unit, None))
        return ended

    def stop(self) -> None:
        for process, _ in self._busy.values():
            process.terminate()  # SIGTERM: the run saves itself, and the worker answers

    def close(self) -> None:
        self.stop()
        for pipe in [*(pipe for _, pipe in self._idle), *self._busy]:
            pipe.close()  # at which a worker ends that has nothing to do
        for process, _ in [*self._idle, *self._busy.values()]:
            process.join(_STOP_SECONDS)
            if process.is_alive():
                process.kill()
                process.join()
        self._idle, self._busy = [], {}

    def _started(self) -> tuple:
        here, there = self._context.Pipe()
        process = self._context.Process(target=_work, args=(there, *self._arguments))
        process.start()
        there.close()  # so that the end of the process is the end of the pipe
        return process, here


def _work(pipe: connection.Connection, study: Study, study_dir: pathlib.Path) -> None:
    """A worker's life: a unit, its outcome, the next unit."""
    # Ctrl-C reaches all processes of a terminal; while it trains a worker listens to it
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(EOFError, OSError):
        while True:
            pipe.send(attempt(study, pipe.recv(), study_dir))
