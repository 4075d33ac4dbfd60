"""Runs a study: gives out what is needed next, until every search has its trials."""

import collections
import functools
import pathlib
import time
from collections.abc import Callable
from typing import Any

from pipeline import accounting
from runs import distributed
from runs.progress import Progress, duration
from studies import plan
from studies.directory import open_study
from studies.executors import Executor, InProcessExecutor
from studies.plan import Study
from studies.study_progress import StudyProgress
from studies.trial import HELD, Outcome, Unit, finished
from studies.trial_queue import Search

_LOOK_SECONDS = 0.5  # between looks at what workers and signals have to say
_HELD_SECONDS = 2.0  # until a trial that another launch holds is tried again

# A trial whose worker is killed again and again (too little memory) is given up after so many.
MAX_WORKER_FAILURES = 3

MakeExecutor = Callable[[Study, pathlib.Path, Progress], Executor]


def run(
    study: Study,
    study_dir: pathlib.Path,
    progress: Progress,
    make_executor: MakeExecutor = InProcessExecutor,
    lanes: int = 1,
    shard: tuple[int, int] = (0, 1),
    stacked: bool = False,
) -> str:
    """Runs what is not finished yet; returns 'finished' or 'preempted'.

    Args:
        make_executor: an executor class; `executors.PoolExecutor` and
            `ray_executor.RayExecutor` with their options filled in.
        lanes: trials of a search that train in one process on the same batches, at most.
        stacked: whether one call does the steps of all lanes.
        shard: (i, n): of the study's searches run number i, i + n, ... alone.

    Raises:
        command.InputError: a condition that cannot be trained, or a directory with another study;
            nothing has been written then.
        command.DiskFull: as `train.train` does.
    """
    plan.check(study, lanes)
    executor = make_executor(study, study_dir, progress)
    try:
        distributed.decided_by_first(lambda: open_study(study, study_dir))
        return _Launch(study, study_dir, progress, executor, lanes, shard, stacked).run()
    finally:
        progress.close()
        executor.close()


class _Launch:
    """One launch on a study's directory: its searches, and what the executor does for them."""

    def __init__(self, study, study_dir, progress, executor, lanes, shard, stacked):
        self._study, self._study_dir, self._progress = study, study_dir, progress
        self._executor, self._lanes, self._stacked = executor, lanes, stacked
        pairs = list(study.searches_in_order())[shard[0] :: shard[1]]
        self._searches = {
            (c["name"], search): Search(c["name"], search, study.trials, study.max_trials)
            for c, search in pairs
        }
        # of conditions: each is in many pairs
        steps = {
            c["name"]: accounting.total_steps(plan.trial_config(study, c, 0, 0))
            for c in study.conditions
        }
        self._tally = StudyProgress(list(self._searches.values()), steps)
        self._deaths: collections.Counter = collections.Counter()
        self._stopping = False

    def run(self) -> str:
        """Until all is done, or until told to stop and what was running has saved itself."""
        with self._executor.listening() as told_to_stop:
            while self._running() or not (self._stopping or self._over()):
                if not self._stopping and told_to_stop():
                    self._stopping = True
                    self._executor.stop()
                if not self._stopping:
                    self._give_out()
                ended = self._executor.wait(_LOOK_SECONDS)
                for unit, outcome in ended:
                    self._unit_ended(unit, outcome)
                if not (ended or self._running() or self._over()):
                    time.sleep(_LOOK_SECONDS)  # what is left is held by another launch
                if self._executor.silent:
                    self._progress.update(self._tally.status())
        self._warn()
        return "finished" if self._over() else "preempted"

    def _running(self) -> bool:
        return any(search.running for search in self._searches.values())

    def _over(self) -> bool:
        return all(search.over for search in self._searches.values())

    def _give_out(self) -> None:
        """Submits units, the first searches first, as long as the executor takes any."""
        for search in self._searches.values():
            while self._executor.free() and (taken := search.take(self._lanes)):
                waiting = tuple(trial for trial in taken if not self._known(search, trial))
                if waiting:
                    unit = Unit(search.condition, search.search, waiting, self._stacked)
                    self._executor.submit(unit, f"{self._tally} {unit}")

    def _known(self, search: Search, trial: int) -> bool:
        """Whether the trial was finished before, and now counts as ended."""
        read = functools.partial(finished, self._study_dir, search.condition, search.search, trial)
        result = distributed.decided_by_first(read)
        if result:
            search.end(trial, result["status"])
            self._tally.trial_done(search.condition, result["status"], trained=False)
        return bool(result)

    def _unit_ended(self, unit: Unit, outcome: Outcome | None) -> None:
        search = self._searches[unit.condition, unit.search]
        results = {} if outcome is None else outcome.checked()
        for note in () if outcome is None else outcome.notes:
            self._progress.say(note)
        for trial in unit.trials:
            if trial not in results and not self._stopping:
                self._died(search, trial)
            elif trial not in results:
                search.again(trial)  # it had not begun, or was killed since it took too long
            elif results[trial] == HELD:
                search.again(trial, _HELD_SECONDS)
            elif results[trial]["status"] == "preempted":
                search.again(trial)
            else:
                self._trial_ended(search, trial, results[trial])

    def _died(self, search: Search, trial: int) -> None:
        """Has a trial started again whose worker was killed, unless that is hopeless."""
        self._deaths[search.condition, search.search, trial] += 1
        where = f"{search.condition}, search {search.search}, trial {trial}"
        if self._deaths[search.condition, search.search, trial] < MAX_WORKER_FAILURES:
            self._progress.say(f"{where}: its worker was killed; the trial is taken up again")
            search.again(trial)
        else:
            self._progress.say(
                f"{where}: given up, {MAX_WORKER_FAILURES} workers were killed in it"
            )
            search.end(trial, "failed")

    def _trial_ended(self, search: Search, trial: int, result: dict[str, Any]) -> None:
        search.end(trial, result["status"])
        self._tally.trial_done(search.condition, result["status"], trained=True)
        hparams = plan.point(self._study.space, search.search, trial)
        values = ", ".join(f"{name.rpartition('.')[2]} {_short(x)}" for name, x in hparams.items())
        where = f"{search.condition}, search {search.search}, trial {trial}"
        left = duration(self._tally.seconds_left())
        self._progress.say(f"{self._tally} {where}: {_words(result)} ({values}) | {left} left")

    def _warn(self) -> None:
        for search in self._searches.values():
            if search.over and search.counted < search.wanted:
                self._progress.say(
                    f"warning: {search.condition}, search {search.search}: only {search.counted} "
                    f"of {search.wanted} trials did not diverge or fail in {search.most} tries"
                )


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _words(result: dict[str, Any]) -> str:
    """How a trial ended."""
    if result["status"] == "reached":
        return f"target after {result['fresh_examples_to_target']:,} fresh examples"
    if "error" in result:
        return f"{result['status']}: {result['error']}"
    best = result["best"]["value"]
    return f"{result['status']}, best {'none' if best is None else format(best, '.4g')}"
