"""Where a study's trials run: in this process or in worker processes (ray_executor.py adds Ray).

Executors take units and return outcomes. All of them call `trial.run_unit` on the same directory.
A worker that dies loses no work: the kernel releases its lock, and the unit is submitted again.
"""

import multiprocessing
import os
import pathlib
import signal
import threading
import time
from concurrent import futures
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import resource_tracker
from typing import Protocol

from runs.progress import Progress
from runs.study import Study
from studies.trial import Outcome, Unit, attempt, run_unit

# How long stopping workers may take to save before they are killed.
_STOP_SECONDS = 120.0

Ended = list[tuple[Unit, Outcome | None]]  # None: the worker died


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
    """Worker processes on this machine, which keep what they have compiled from unit to unit. If
    one is killed, the pool stops the others, which save themselves, and another takes its place."""

    here = False

    def __init__(self, study: Study, study_dir: pathlib.Path, progress: Progress, number: int):
        self._arguments, self.workers = (study, study_dir), number
        self._units: dict[futures.Future[Outcome], Unit] = {}
        self._pool = self._new_pool()

    def _new_pool(self) -> futures.ProcessPoolExecutor:
        context = multiprocessing.get_context("spawn")  # JAX does not survive a fork
        return futures.ProcessPoolExecutor(self.workers, context, end_with_parent)

    def free(self) -> int:
        return self.workers - len(self._units)

    def submit(self, unit: Unit, label: str) -> None:
        study, study_dir = self._arguments
        # Ctrl-C reaches every process of a terminal. Workers inherit that it is blocked, and `stop`
        # reaches them. Starting the resource tracker would unblock it, so it comes first.
        resource_tracker.ensure_running()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            future = self._pool.submit(attempt, study, unit, study_dir)
        except BrokenProcessPool:  # an idle worker was killed
            self._pool = self._new_pool()
            future = self._pool.submit(attempt, study, unit, study_dir)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self._units[future] = unit

    def wait(self, seconds: float) -> Ended:
        ended: Ended = []
        for future in futures.wait(self._units, seconds, futures.FIRST_COMPLETED).done:
            unit = self._units.pop(future)
            broken = isinstance(future.exception(), BrokenProcessPool)
            ended.append((unit, None if broken else future.result()))
        return ended

    def stop(self) -> None:
        for process in multiprocessing.active_children():
            process.terminate()  # on SIGTERM a run saves itself

    def close(self) -> None:
        self.stop()
        self._pool.shutdown(wait=False, cancel_futures=True)
        for process in multiprocessing.active_children():
            process.join(_STOP_SECONDS)
            process.kill()


def end_with_parent() -> None:
    """Ends this worker if its parent is killed: at once, or when the run has saved itself."""

    def watch() -> None:
        parent = multiprocessing.parent_process()
        assert parent is not None
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(_STOP_SECONDS)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
