"""One unit of a study's work, the same for every executor: a trial, or a group of lanes.

A trial's directory is locked while it is trained, and a finished trial is never trained again, so
any number of processes may be given the same unit.
"""

import contextlib
import dataclasses
import functools
import json
import os
import pathlib
import secrets
from collections.abc import Sequence
from typing import Any

import train
from configs import base
from runs import cli, distributed, locks, records, resuming, trial_records, workdirs
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
    """A trial's result if it is finished and its records can be read, else None."""
    workdir = records.TrialPath(condition, search, trial).under(study_dir)
    try:
        result = trial_records.read_result(workdir)
        if result.get("status") not in records.FINISHED:
            return None
        return trial_records.read(workdir).result
    except records.Damaged:
        return None


def run_unit(study: Study, unit: Unit, study_dir: pathlib.Path, progress: Progress) -> "Outcome":
    """Trains what is not finished; trials with damaged records are set aside and start anew.

    Raises:
        command.InputError, command.DiskFull: as `train.train` does.
    """
    with contextlib.ExitStack() as locked, cli.disk_full_named(study_dir):
        known, notes = distributed.decided_by_first(
            lambda: _claimed(study, unit, study_dir, locked)
        )
        results = {int(trial): result for trial, result in known.items()}
        mine = [trial for trial in unit.trials if trial not in results]
        while True:
            try:
                trained = _trained(study, unit, mine, study_dir, progress)
                return Outcome(results | dict(zip(mine, trained, strict=True)), tuple(notes))
            except resuming.NothingToResume as error:
                aside = functools.partial(_set_aside, error.workdir)
                place = distributed.decided_by_first(aside)
                notes.append(
                    f"{error.workdir}: no checkpoint can be used ({error.reasons}); its files are "
                    f"now in {place}, and the trial has started anew"
                )


def _trained(
    study: Study, unit: Unit, trials: Sequence[int], study_dir: pathlib.Path, progress: Progress
) -> list[dict[str, Any]]:
    """Results of trials whose locks are held here."""
    workdirs = [_workdir(unit, trial, study_dir) for trial in trials]
    condition = study.condition(unit.condition)
    if distributed.is_first():
        for trial, workdir in zip(trials, workdirs, strict=True):
            hparams = plan.point(study.space, unit.search, trial)
            place = {"condition": unit.condition, "search": unit.search, "trial": trial}
            place |= {"lanes": len(trials), "stacked": unit.stacked and len(trials) > 1}
            place |= {"hparams": hparams}
            records.write_json(workdir / records.HPARAMS, place)
    configs = [plan.trial_config(study, condition, unit.search, trial) for trial in trials]
    if len(trials) == 1:
        return [train.train(configs[0], workdirs[0], progress, locked=True)]
    return lanes.train(configs, workdirs, progress, unit.stacked)


def _set_aside(workdir: pathlib.Path) -> str:
    return str(workdirs.set_aside(workdir))


def _claimed(
    study: Study, unit: Unit, study_dir: pathlib.Path, locked: contextlib.ExitStack
) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Locks the trials that are to be trained; what is known of the others, by number as text, and
    a sentence for each whose records were set aside."""
    known, notes = {}, []
    for trial in unit.trials:
        workdir = _workdir(unit, trial, study_dir)
        where = f"{unit.condition}, search {unit.search}, trial {trial}"
        if moved := _made(workdir):
            notes.append(f"{where}: its directory was no directory; what was there is now {moved}")
        here = locked.enter_context(locks.held(workdir / records.LOCK))
        # read under the lock: whoever had it before may just have finished
        if here and (reason := _damage(study, unit, trial, workdir)):
            place = workdirs.set_aside(workdir)
            notes.append(
                f"{where}: its records were damaged ({reason}); they are now in {place}, and the "
                "trial has started anew"
            )
        result = finished(study_dir, unit.condition, unit.search, trial)
        if result or not here:
            known[str(trial)] = result or HELD
    return known, notes


def _made(workdir: pathlib.Path) -> pathlib.Path | None:
    """Makes a trial's directory; returns where something else of that name went to.

    Raises:
        command.InputError: a directory above it is no directory.
    """
    moved = None
    if os.path.lexists(workdir) and not workdir.is_dir():
        moved = workdir.with_name(f"{records.DAMAGED}-{workdir.name}.{secrets.token_hex(4)}")
        with contextlib.suppress(FileNotFoundError):  # another launch did it just now
            workdir.rename(moved)
    try:
        workdir.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise cli.InputError(
            f"{workdir} cannot be made, since {error.filename} is no directory; move that away"
        ) from error
    return moved


def _damage(study: Study, unit: Unit, trial: int, workdir: pathlib.Path) -> str | None:
    """Why neither a finished trial nor one to go on with is in `workdir`; None where one is, or
    nothing yet."""
    try:
        result = trial_records.read_result(workdir)
        if result.get("status") in records.FINISHED:
            trial_records.read(workdir)
            return None
        there = trial_records.read_config(workdir)
        trial_records.read_hparams(workdir)
        if not there:
            return None if workdirs.is_new(workdir) else f"{records.CONFIG} is missing"
        if "fingerprint" not in (there.get("dataset") or {}):
            return f"{records.CONFIG} does not say of which data"
        if records.schema_version(there) != records.SCHEMA_VERSION:
            return None  # which training refuses, and says so
        condition = study.condition(unit.condition)
        config = plan.trial_config(study, condition, unit.search, trial).to_dict()
        changed = workdirs.differences(
            there.get("config") or {}, json.loads(json.dumps(config)), base.MAY_CHANGE_ON_RESUME
        )
        return f"{records.CONFIG} is not of this trial: {changed[0]}" if changed else None
    except records.Damaged as error:
        return str(error)


def _workdir(unit: Unit, trial: int, study_dir: pathlib.Path) -> pathlib.Path:
    return records.TrialPath(unit.condition, unit.search, trial).under(study_dir)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What became of a unit: results, or in another process an error of a kind and its words.

    Attributes:
        results: by trial number; HELD for trials of another process.
        notes: sentences for the person who runs the study.
    """

    results: dict[int, dict[str, Any]]
    notes: tuple[str, ...] = ()
    error: str | None = None
    kind: str = ""

    def checked(self) -> dict[int, dict[str, Any]]:
        """The results; raises the error as the same class in this process."""
        if self.error is None:
            return self.results
        known = {each.__name__: each for each in (cli.InputError, cli.DiskFull)}
        raise known.get(self.kind, RuntimeError)(self.error)


def attempt(study: Study, unit: Unit, study_dir: pathlib.Path) -> Outcome:
    """`run_unit` for a worker process, which shows nothing and raises nothing."""
    try:
        return run_unit(study, unit, study_dir, Progress(quiet=True))
    except Exception as error:
        return Outcome({}, error=str(error) or repr(error), kind=type(error).__name__)
