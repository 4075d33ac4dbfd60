"""Runs a study: submits trials to an executor until every search has its trials."""

import collections
import dataclasses
import itertools
import pathlib
import time
from collections.abc import Callable
from typing import Any

from data.splits import remarks
from runs import cli, mirror, origins, signals, workdirs
from runs.progress import SEPARATOR, Progress, several
from runs.study import Study
from runs.tracking import Tools
from studies import search
from studies.executors import Executor, InProcessExecutor
from studies.plan import open_study, with_record
from studies.queue import SearchQueue
from studies.trial import HELD, Outcome, Unit

_POLL_SECONDS = 0.5  # between polls of workers and signals
_HELD_SECONDS = 2.0  # before a trial that another launch holds is tried again

# A trial whose workers are killed this often (too little memory) ends the launch.
MAX_WORKER_FAILURES = 3

MakeExecutor = Callable[[Study, pathlib.Path, Progress], Executor]


def run(
    study: Study,
    study_dir: pathlib.Path,
    progress: Progress,
    make_executor: MakeExecutor = InProcessExecutor,
    lanes: int = 1,
    shard: tuple[int, int] = (0, 1),
    tools: Tools | None = None,
) -> str:
    """Runs what is not finished yet; returns 'finished' or 'preempted'.

    Args:
        make_executor: an executor class, with its options filled in.
        lanes: maximum number of trials that train in one process on the same batches.
        shard: (i, n): run searches i, i + n, i + 2n, ... of the study.
        tools: trackers and a mirror; None for TensorBoard alone.

    Raises:
        cli.InputError: a condition that cannot be trained, or a directory with another study;
            nothing has been written.
        OSError, ValueError: see `train.train`.
    """
    workdirs.check_place(study_dir, study.config, "--outdir")
    tools = tools or Tools(root=study_dir.absolute())
    search.check(study, lanes)
    study = with_record(study)
    executor = make_executor(study, study_dir, progress)
    try:
        if tools.mirror:
            mirror.check(tools.mirror, study_dir)
        if note := open_study(study, study_dir):
            progress.say(note)
        # before any trial, so that a copy of an unfinished study can be resumed
        tools.copy(study_dir, progress.say)
        for remark in remarks(study.config.dataset):
            progress.say(remark)
        return _Launch(study, study_dir, progress, executor, lanes, shard, tools).run()
    finally:
        progress.close()
        executor.close()


@dataclasses.dataclass
class _Launch:
    """One launch on a study's directory: its searches, and the trials that its executor runs; see
    `run` for the attributes."""

    study: Study
    study_dir: pathlib.Path
    progress: Progress
    executor: Executor
    lanes: int
    shard: tuple[int, int]
    tools: Tools

    def __post_init__(self) -> None:
        index, number_of_shards = self.shard
        # the first search of every condition, then the second of every condition, and so on
        in_order = [*itertools.product(range(self.study.searches), self.study.conditions)]
        sizes = self.study.trials, self.study.max_trials
        self._queues = {
            (c.name, number): SearchQueue(c.name, number, *sizes)
            for number, c in in_order[index::number_of_shards]
        }
        self._commit = origins.describe()["commit"]
        self._worker_failures: collections.Counter = collections.Counter()
        self._diverged = 0
        self._stopping = False

    def run(self) -> str:
        """Runs until every search is over, or until a signal has stopped what was running."""
        with signals.stop_requested() as stop_requested:
            while self._running() or not (self._stopping or self._over()):
                if not self._stopping and stop_requested():
                    self._stopping = True
                    self.executor.stop()
                if not self._stopping:
                    self._submit()
                ended = self.executor.wait(_POLL_SECONDS)
                for unit, outcome in ended:
                    self._unit_ended(unit, outcome)
                if not (ended or self._running() or self._over()):
                    time.sleep(_POLL_SECONDS)  # other launches hold the trials that are left
                if not self.executor.here:
                    self.progress.update(self._status)
        self.tools.copy(self.study_dir, self.progress.say)
        return "finished" if self._over() else "preempted"

    def _running(self) -> int:
        return sum(len(queue.running) for queue in self._queues.values())

    def _over(self) -> bool:
        return all(queue.over for queue in self._queues.values())

    def _counts(self) -> str:
        """How many trials count, of how many that are needed."""
        counted = sum(queue.counted for queue in self._queues.values())
        return f"[{counted}/{self.study.trials * len(self._queues)}]"

    def _status(self) -> str:
        parts = (f"{self._counts()} trials", f"{self._running()} running")
        return SEPARATOR.join((*parts, f"{self._diverged} diverged"))

    def _submit(self) -> None:
        """Submits units, in the order of the searches, while the executor accepts any."""
        for queue in self._queues.values():
            while self.executor.free() and (taken := queue.take(self.lanes)):
                shared = self.tools, self.executor.workers, self._commit
                unit = Unit(queue.condition, queue.search, taken, *shared)
                self.executor.submit(unit, f"{self._counts()} {unit.label(*taken)}")

    def _unit_ended(self, unit: Unit, outcome: Outcome) -> None:
        queue, results = self._queues[unit.condition, unit.search], outcome.checked()
        for note in outcome.notes:
            self.progress.say(note)
        for trial in unit.trials:
            result = results.get(trial)
            if result is None and not self._stopping:
                self._worker_died(unit, trial)
            if result is None or result["status"] == "preempted":
                queue.postpone(trial)
                # what stops a trial in this process stops the launch
                self._stopping |= result is not None and self.executor.here
            elif result == HELD:
                queue.postpone(trial, _HELD_SECONDS)
            else:
                queue.end(trial, result["status"])
                self._diverged += result["status"] == "diverged"
                if trial in outcome.trained:  # else an earlier launch finished it
                    self._say_ended(unit, trial, result)

    def _worker_died(self, unit: Unit, trial: int) -> None:
        """Counts the workers that a trial has lost; raises Failed if there are too many."""
        key = (unit.condition, unit.search, trial)
        self._worker_failures[key] += 1
        if self._worker_failures[key] >= MAX_WORKER_FAILURES:
            raise cli.Failed(
                f"{unit.label(trial)}: {MAX_WORKER_FAILURES} of its workers were killed, perhaps "
                "since memory ran out; use fewer workers, and start the same command again"
            )
        self.progress.say(f"{unit.label(trial)}: its worker was killed; the trial is retried")

    def _say_ended(self, unit: Unit, trial: int, result: dict[str, Any]) -> None:
        values = search.in_words(search.point(self.study.space, unit.search, trial))
        parts = (f"{self._counts()} {unit.label(trial)}: {_ending(result)}", values)
        self.progress.say(SEPARATOR.join(filter(None, parts)))


def _ending(result: dict[str, Any]) -> str:
    """How a trial ended."""
    if result["status"] == "reached":
        return f"target after {several(result['fresh_examples_to_target'], 'fresh example')}"
    if "error" in result:
        return f"{result['status']}: {result['error']}"
    best = result["best"]["value"]
    return f"{result['status']}, best {'none' if best is None else format(best, '.4g')}"
