"""One unit of a study's work: a trial, or a group of lanes. Every executor runs the same code.

A trial's directory is locked while it trains, and a finished trial is never trained again, so any
number of processes may be given the same unit.
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
from runs import cli, processes, records, resuming, trial_records, workdirs
from runs.progress import Progress
from runs.study import Study
from runs.tracking import Tools
from studies import search
from training import lanes

# Another process holds the trial's lock. It may finish the trial, or be killed and release it.
HELD = {"status": "held"}


@dataclasses.dataclass(frozen=True)
class Unit:
    """Trials of one search that one process trains: one trial, or several as lanes."""

    condition: str
    search: int
    trials: tuple[int, ...]
    stacked: bool = False  # whether one call does the steps of all lanes
    tools: Tools | None = None
    workers: int = 1  # processes that share the machine's cores

    def workdir(self, trial: int, study_dir: pathlib.Path) -> pathlib.Path:
        return records.TrialPath(self.condition, self.search, trial).under(study_dir)

    def label(self, trial: int) -> str:
        return f"{self.condition}, search {self.search}, trial {trial}"

    def __str__(self) -> str:
        noun = "trial" if len(self.trials) == 1 else "trials"
        return f"{self.condition}, search {self.search}, {noun} {' '.join(map(str, self.trials))}"


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The results of a unit, or the error of a worker process.

    Attributes:
        results: by trial number; HELD for trials of another process.
        trained: the trials that this unit trained; another launch finished the others.
        notes: sentences for the person who runs the study.
        error, kind: an error's message and the name of its class, or of InputError if it is one;
            None and '' without an error.
    """

    results: dict[int, dict[str, Any]]
    trained: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()
    error: str | None = None
    kind: str = ""

    def checked(self) -> dict[int, dict[str, Any]]:
        """The results; raises the worker's error, in its own class if that is one of ours."""
        if self.error is None:
            return self.results
        classes = {error.__name__: error for error in (cli.InputError, cli.DiskFull)}
        raise classes.get(self.kind, RuntimeError)(self.error)


def finished_result(
    study: Study, study_dir: pathlib.Path, condition: str, search_number: int, trial: int
) -> dict[str, Any] | None:
    """The result of a finished trial of the study whose records are intact; None for any other
    trial."""
    place = records.TrialPath(condition, search_number, trial)
    workdir = place.under(study_dir)
    try:
        result = trial_records.read_result(workdir)
        if result.get("status") not in records.FINISHED:
            return None
        return trial_records.read(workdir, place, study).result
    except records.Damaged:
        return None


def run_unit(study: Study, unit: Unit, study_dir: pathlib.Path, progress: Progress) -> Outcome:
    """Trains the trials that are not finished. Trials with damaged records are set aside and start
    over.

    Raises:
        cli.InputError, cli.DiskFull: see `train.train`.
    """
    with contextlib.ExitStack() as held_locks, cli.disk_full_named(study_dir):
        known, notes = processes.decided_by_first(
            lambda: _claim(study, unit, study_dir, held_locks)
        )
        results = {int(trial): result for trial, result in known.items()}
        to_train = tuple(trial for trial in unit.trials if trial not in results)
        while True:
            try:
                trained = _train(study, unit, to_train, study_dir, progress)
                results |= zip(to_train, trained, strict=True)
                return Outcome(results, to_train, tuple(notes))
            except resuming.NothingToResume as error:
                moved_to = processes.decided_by_first(functools.partial(_set_aside, error.workdir))
                notes.append(
                    f"{error.workdir}: no checkpoint can be used ({error.reasons}); its files are "
                    f"now in {moved_to}, and the trial has started over"
                )


def give_up(
    study: Study, unit: Unit, trial: int, study_dir: pathlib.Path, error: str
) -> dict[str, Any]:
    """Records a trial that its workers did not survive as failed, so that its search can end.

    A later launch tries it again, as it does any failed trial.

    Args:
        error: why it is given up.

    Returns:
        The content of its result.json: what is recorded now, or the result of a trial that had
        finished before its worker was killed. HELD if another process trains it.
    """
    workdir = unit.workdir(trial, study_dir)
    workdir.mkdir(parents=True, exist_ok=True)
    with workdirs.held(workdir / records.LOCK) as locked:
        if not locked:
            return HELD
        if finished := finished_result(study, study_dir, unit.condition, unit.search, trial):
            return finished
        if not (workdir / records.HPARAMS).exists():
            _write_hparams(study, unit, trial, workdir, len(unit.trials))
        result = _failed_result(study, unit, trial, workdir, error)
        records.write_json(workdir / records.RESULT, result)
        return result


def _failed_result(
    study: Study, unit: Unit, trial: int, workdir: pathlib.Path, error: str
) -> dict[str, Any]:
    """The content of result.json as far as the trial's records go."""
    condition = study.condition(unit.condition)
    config = search.trial_config(study, condition, unit.search, trial)
    target = records.Target(**config.target.to_dict())
    try:
        metrics = trial_records.read_metrics(workdir)
    except records.Damaged:
        metrics = []
    start = {"step": 0, "fresh_examples": 0, "train_seconds": 0.0, "wall_seconds": 0.0}
    position = {**start, "input_wait_fraction": None} | (metrics[-1] if metrics else {})
    best: dict[str, Any] | None = None
    for record in metrics:
        value = record.get(target.metric) if record.get("split") == "validation" else None
        if value is not None and target.better(value, than=best["value"] if best else None):
            fresh = record["fresh_examples"]
            best = {"metric": target.metric, "value": value, "fresh_examples": fresh}
    return records.run_result("failed", target, position, best, error)


def attempt(study: Study, unit: Unit, study_dir: pathlib.Path) -> Outcome:
    """`run_unit` in a worker process: prints nothing, and returns errors instead of raising."""
    try:
        # It may add fields and networks; of a Ray cluster, one machine may have it alone.
        with contextlib.suppress(cli.InputError):
            cli.load_module(study.config_flag)
        progress = Progress(quiet=True)
        outcome = run_unit(study, unit, study_dir, progress)
        return dataclasses.replace(outcome, notes=(*outcome.notes, *progress.unsaid))
    except Exception as caught:
        error = cli.explained(caught)
        kind = cli.InputError if isinstance(error, cli.InputError) else type(error)
        return Outcome({}, error=str(error) or repr(error), kind=kind.__name__)


def _train(
    study: Study, unit: Unit, trials: Sequence[int], study_dir: pathlib.Path, progress: Progress
) -> list[dict[str, Any]]:
    """Trains trials whose locks this process holds; returns their results."""
    trial_dirs = [unit.workdir(trial, study_dir) for trial in trials]
    condition = study.condition(unit.condition)
    if processes.is_first():
        for trial, workdir in zip(trials, trial_dirs, strict=True):
            _write_hparams(study, unit, trial, workdir, len(trials))
    configs = [search.trial_config(study, condition, unit.search, trial) for trial in trials]
    if len(trials) == 1:
        result = train.train(configs[0], trial_dirs[0], progress, locked=True, tools=unit.tools)
        processes.raise_if_failed(result, trial_dirs[0])
        return [result]
    return lanes.train(configs, trial_dirs, progress, unit.stacked, tools=unit.tools)


def _write_hparams(study: Study, unit: Unit, trial: int, workdir: pathlib.Path, lanes: int) -> None:
    """Writes the hparams.json of a trial that trains together with `lanes` - 1 others."""
    before = _shared_before(workdir)
    record = {
        "condition": unit.condition,
        "search": unit.search,
        "trial": trial,
        "lanes": max(lanes, before.get("lanes") or 1),
        "stacked": (unit.stacked and lanes > 1) or bool(before.get("stacked")),
        "workers": max(unit.workers, before.get("workers") or 1),
        "hparams": search.point(study.space, unit.search, trial),
    }
    records.write_json(workdir / records.HPARAMS, record)


def _shared_before(workdir: pathlib.Path) -> dict[str, Any]:
    """The hparams.json of a trial that resumes, whose clocks and numbers include what it shared
    before the interruption; empty for one that starts, or starts over."""
    checkpoints = (workdir / records.CHECKPOINTS).glob("*")
    # A hidden one was being replaced when its process was killed; see Checkpoints.recover.
    resumes = any(records.is_numbered(path.name.removeprefix(".")) for path in checkpoints)
    return trial_records.read_hparams(workdir) if resumes else {}


def _set_aside(workdir: pathlib.Path) -> str:
    return str(workdirs.set_aside(workdir))


def _claim(
    study: Study, unit: Unit, study_dir: pathlib.Path, held_locks: contextlib.ExitStack
) -> tuple[dict[str, dict[str, Any]], list[str]]:
    """Locks the trials that this process will train.

    Returns:
        Results of the other trials, finished or HELD, by number as text (they are sent between
        processes as JSON); and a sentence for each trial whose records were set aside.
    """
    known, notes = {}, []
    for trial in unit.trials:
        workdir, label = unit.workdir(trial, study_dir), unit.label(trial)
        for path, kind, moved_to in _make_directory(workdir):
            notes.append(f"{label}: {path} was not {kind}; what was in its place is now {moved_to}")
        locked = held_locks.enter_context(workdirs.held(workdir / records.LOCK))
        # read under the lock: the process that held it may just have finished the trial
        if locked and (reason := _damage(study, unit, trial, workdir)):
            moved_to = workdirs.set_aside(workdir)
            notes.append(
                f"{label}: its records were damaged ({reason}); they are now in {moved_to}, and "
                "the trial has started over"
            )
        result = finished_result(study, study_dir, unit.condition, unit.search, trial)
        if result or not locked:
            known[str(trial)] = result or HELD
    return known, notes


def _make_directory(workdir: pathlib.Path) -> list[tuple[pathlib.Path, str, pathlib.Path]]:
    """Creates a trial's directory, and moves away what is in the place of another kind of entry.

    Returns:
        The path of what was moved, what should be there, and where it is now.

    Raises:
        cli.InputError: a directory above it is not a directory.
    """
    wrong = []
    if os.path.lexists(workdir) and not workdir.is_dir():
        wrong.append((workdir, "a directory"))
    moved = [
        (path, kind, _moved_away(path, workdir))
        for path, kind in wrong + workdirs.misplaced(workdir)
    ]
    try:
        workdir.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise cli.InputError(
            f"{workdir} cannot be created, since {error.filename} is not a directory; move it away"
        ) from error
    return moved


def _moved_away(path: pathlib.Path, workdir: pathlib.Path) -> pathlib.Path:
    """Moves a trial's directory, or something in it, to a new path next to that directory."""
    name = path.relative_to(workdir.parent).as_posix().replace("/", "-")
    moved_to = workdir.with_name(f"{records.DAMAGED}-{name}.{secrets.token_hex(4)}")
    with contextlib.suppress(FileNotFoundError):  # a concurrent launch moved it
        path.rename(moved_to)
    return moved_to


def _damage(study: Study, unit: Unit, trial: int, workdir: pathlib.Path) -> str | None:
    """Why `workdir` holds neither a finished trial of the study nor one to resume; None if it holds
    either, or nothing yet."""
    place = records.TrialPath(unit.condition, unit.search, trial)
    try:
        result = trial_records.read_result(workdir)
        if result.get("status") in records.FINISHED:
            trial_records.read(workdir, place, study)
            return None
        recorded = trial_records.read_config(workdir)
        trial_records.read_hparams(workdir)
        if not recorded:
            return None if workdirs.is_new(workdir) else f"{records.CONFIG} is missing"
        if "fingerprint" not in (recorded.get("dataset") or {}):
            return f"{records.CONFIG} has no fingerprint of the data"
        if records.schema_version(recorded) != records.SCHEMA_VERSION:
            return None  # training refuses it with a message of its own
        trial_records.check_data(recorded, place, study)
        condition = study.condition(unit.condition)
        config = search.trial_config(study, condition, unit.search, trial).to_dict()
        changed = workdirs.differences(
            recorded.get("config") or {}, json.loads(json.dumps(config)), base.MAY_CHANGE_IN_STUDY
        )
        return f"{records.CONFIG} belongs to another trial: {changed[0]}" if changed else None
    except records.Damaged as error:
        return str(error)
