"""Where a study's trials run: in this process or in worker processes (ray_executor.py adds Ray).

Executors take units and return outcomes. All of them call `trial.run_unit` on the same directory.
A worker that dies loses no work: the kernel releases its lock, and the unit is submitted again.
"""

import contextlib
import multiprocessing
import os
import pathlib
import signal
import threading
import time
from multiprocessing import connection, resource_tracker
from multiprocessing.process import BaseProcess
from typing import Protocol

from runs.progress import Progress
from runs.study import Study
from studies.trial import Outcome, Unit, attempt, run_unit

# How long stopping workers may take to save before they are killed.
_STOP_SECONDS = 120.0

Ended = list[tuple[Unit, Outcome]]  # without results if the worker died


class Executor(Protocol):
    """Runs units; the caller closes it at the end. `here`: in this process, which then prints their
    progress and takes their signals. `workers`: the most that train on one machine at once."""

    here: bool
    workers: int

    def free(self) -> int: ...  # units that can be submitted now
    def submit(self, unit: Unit, label: str) -> None: ...  # starts it; `label` is for a display
    def wait(self, seconds: float) -> Ended: ...  # at most so long, for one that has ended
    def stop(self) -> None: ...  # running units save themselves and end
    def close(self) -> None: ...


class InProcessExecutor:
    """Runs one unit after another in this process."""

    here, workers = True, 1

    def __init__(self, study: Study, study_dir: pathlib.Path, progress: Progress):
        self._study, self._study_dir, self._progress = study, study_dir, progress
        self._ended: Ended = []

    def free(self) -> int:
        return 0 if self._ended else 1

    def submit(self, unit: Unit, label: str) -> None:
        progress = Progress(heading=label, quiet=self._progress.quiet)
        self._ended.append((unit, run_unit(self._study, unit, self._study_dir, progress)))

    def wait(self, seconds: float) -> Ended:
        ended, self._ended = self._ended, []
        return ended

    def stop(self) -> None: ...

    def close(self) -> None: ...


class PoolExecutor:
    """Worker processes on this machine, which keep what they have compiled from unit to unit.

    `concurrent.futures.ProcessPoolExecutor` does not fit: once a worker is killed, it gives up all
    its work.
    """

    here = False

    def __init__(self, study: Study, study_dir: pathlib.Path, progress: Progress, number: int):
        self._arguments, self.workers = (study, study_dir), number
        self._workers: dict[connection.Connection, BaseProcess] = {}
        self._busy: dict[connection.Connection, Unit] = {}

    def free(self) -> int:
        return self.workers - len(self._busy)

    def submit(self, unit: Unit, label: str) -> None:
        idle = [p for p, own in self._workers.items() if p not in self._busy and own.is_alive()]
        pipe = idle[-1] if idle else self._start_worker()
        with contextlib.suppress(OSError):  # it has died just now, as `wait` will see
            pipe.send(unit)
        self._busy[pipe] = unit

    def wait(self, seconds: float) -> Ended:
        ended: Ended = []
        for pipe in connection.wait(list(self._busy), seconds) if self._busy else []:
            assert isinstance(pipe, connection.Connection)
            unit = self._busy.pop(pipe)
            try:
                ended.append((unit, pipe.recv()))
            except (EOFError, OSError):
                self._workers.pop(pipe).join()
                ended.append((unit, Outcome({})))
        return ended

    def stop(self) -> None:
        for pipe in self._busy:
            self._workers[pipe].terminate()  # on SIGTERM the run saves itself; the worker answers

    def close(self) -> None:
        self.stop()
        for pipe in self._workers:
            pipe.close()  # which ends an idle worker
        for process in self._workers.values():
            process.join(_STOP_SECONDS)
            process.kill()
        self._workers, self._busy = {}, {}

    def _start_worker(self) -> connection.Connection:
        context = multiprocessing.get_context("spawn")  # JAX does not survive a fork
        ours, theirs = context.Pipe()
        process = context.Process(target=_work, args=(theirs, *self._arguments))
        # Blocked signals stay blocked in a new process, so Ctrl-C cannot end a worker's imports
        # with a traceback. Starting the resource tracker would unblock them, so it comes first.
        resource_tracker.ensure_running()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()  # the worker then holds the only copy, and its end closes the pipe
        self._workers[ours] = process
        return ours


def _work(pipe: connection.Connection, study: Study, study_dir: pathlib.Path) -> None:
    """The main loop of a worker: receives a unit, sends its outcome."""
    # Ctrl-C reaches every process of a terminal; a worker handles it only while it trains
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # see _start_worker
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with contextlib.suppress(EOFError, OSError):
        while True:
            pipe.send(attempt(study, pipe.recv(), study_dir))


def _end_with_parent() -> None:
    """Ends this worker if its parent is killed: at once, or when the run has saved itself."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_STOP_SECONDS)
    os._exit(1)
