"""One unit of a study's work, the same for every executor: a trial, or a group of lanes.

A trial's directory is locked while it is trained, and a finished trial is never trained again, so
any number of processes may be given the same unit.
"""

import contextlib
import dataclasses
import pathlib
from typing import Any

import train
from runs import command, locks, processes, records
from runs.progress import Progress
from studies import lanes, plan
from studies.plan import Study

# Another process has the trial's lock; it may end it, or be killed and leave it to the next.
HELD = {"status": "held"}


@dataclasses.dataclass(frozen=True)
class Unit:
    """Trials of one search that one process trains, side by side if there are several."""

    condition: str
    search: int
    trials: tuple[int, ...]
    stacked: bool = False  # whether their steps are one call

    def __str__(self) -> str:
        numbers = [str(trial) for trial in self.trials]
        noun = "trial" if len(numbers) == 1 else "trials"
        return f"{self.condition}, search {self.search}, {noun} {' '.join(numbers)}"


def finished(study_dir: pathlib.Path, condition: str, search: int, trial: int) -> Any:
    """A trial's result if it is finished, else None."""
    path = records.TrialPath(condition, search, trial).under(study_dir) / records.RESULT
    result = records.read_json(path)
    return result if result and result["status"] in records.FINISHED else None


def run_unit(
    study: Study, unit: Unit, study_dir: pathlib.Path, progress: Progress
) -> dict[int, dict[str, Any]]:
    """Trains what is not finished; results by trial number, HELD for trials of another process.

    Raises:
        command.InputError, command.DiskFull: as `train.train` does.
    """
    with contextlib.ExitStack() as locked, command.disk_full_named(study_dir):
        results = processes.decided_by_first(lambda: _claimed(unit, study_dir, locked))
        results = {int(trial): result for trial, result in results.items()}
        mine = [trial for trial in unit.trials if trial not in results]
        workdirs = [_workdir(unit, trial, study_dir) for trial in mine]
        condition = next(each for each in study.conditions if each["name"] == unit.condition)
        if processes.is_first():
            for trial, workdir in zip(mine, workdirs, strict=True):
                hparams = plan.point(study.space, unit.search, trial)
                place = {"condition": unit.condition, "search": unit.search, "trial": trial}
                place |= {"lanes": len(mine), "stacked": unit.stacked and len(mine) > 1}
                place |= {"hparams": hparams}
                records.write_json(workdir / records.HPARAMS, place)
        configs = [plan.trial_config(study, condition, unit.search, trial) for trial in mine]
        if len(mine) == 1:
            trained = [train.train(configs[0], workdirs[0], progress, locked=True)]
        else:
            trained = lanes.train(configs, workdirs, progress, unit.stacked)
        return results | dict(zip(mine, trained, strict=True))


def _claimed(
    unit: Unit, study_dir: pathlib.Path, locked: contextlib.ExitStack
) -> dict[str, dict[str, Any]]:
    """Locks the trials that are to be trained; what is known of the others, by number as text."""
    known = {}
    for trial in unit.trials:
        workdir = _workdir(unit, trial, study_dir)
        workdir.mkdir(parents=True, exist_ok=True)
        here = locked.enter_context(locks.held(workdir / records.LOCK))
        # read under the lock: whoever had it before may just have finished
        result = finished(study_dir, unit.condition, unit.search, trial)
        if result or not here:
            known[str(trial)] = result or HELD
    return known


def _workdir(unit: Unit, trial: int, study_dir: pathlib.Path) -> pathlib.Path:
    return records.TrialPath(unit.condition, unit.search, trial).under(study_dir)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What became of a unit in another process: results, or an error of a kind and its words."""

    results: dict[int, dict[str, Any]]
    error: str | None = None
    kind: str = ""

    def checked(self) -> dict[int, dict[str, Any]]:
        """The results; raises the error as the same class in this process."""
        if self.error is None:
            return self.results
        known = {each.__name__: each for each in (command.InputError, command.DiskFull)}
        raise known.get(self.kind, RuntimeError)(self.error)


def attempt(study: Study, unit: Unit, study_dir: pathlib.Path) -> Outcome:
    """`run_unit` for a worker process, which shows nothing and raises nothing."""
    try:
        return Outcome(run_unit(study, unit, study_dir, Progress(quiet=True)))
    except Exception as error:
        return Outcome({}, str(error) or repr(error), type(error).__name__)
