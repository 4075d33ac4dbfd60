"""One unit of a study's work: a trial, or a group of lanes. Every executor runs the same code.

A trial's directory is locked while it trains, and a finished trial is never trained again, so any
number of processes may be given the same unit.
"""

import contextlib
import dataclasses
import pathlib
import traceback
from typing import Any

import train
from runs import cli, origins, records, resuming, trial_records, workdirs
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
    tools: Tools | None = None
    workers: int = 1  # processes that share the machine's cores
    commit: str | None = None  # of the code with which a worker must train; None = any

    def place(self, trial: int) -> records.TrialPath:
        return records.TrialPath(self.condition, self.search, trial)

    def workdir(self, trial: int, study_dir: pathlib.Path) -> pathlib.Path:
        return self.place(trial).under(study_dir)

    def label(self, *trials: int) -> str:
        noun = "trial" if len(trials) == 1 else "trials"
        return f"{self.condition}, search {self.search}, {noun} {' '.join(map(str, trials))}"


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The results of a unit, or the error of a worker process.

    Attributes:
        results: by trial number; HELD for trials of another process; none if the worker died.
        trained: the trials that this unit trained; the others had been finished before.
        notes: sentences for the person who runs the study.
        error: what the worker raised, in its own class if that is one of ours.
    """

    results: dict[int, dict[str, Any]]
    trained: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()
    error: Exception | None = None

    def checked(self) -> dict[int, dict[str, Any]]:
        """The results; raises the worker's error."""
        if self.error is not None:
            raise self.error
        return self.results


def _finished(
    study: Study, study_dir: pathlib.Path, place: records.TrialPath
) -> dict[str, Any] | None:
    """The result of a finished trial, None for one to begin or resume; raises Damaged."""
    workdir = place.under(study_dir)
    if records.read_json(workdir / records.RESULT).get("status") in records.FINISHED:
        return trial_records.read(workdir, place, study).result
    # What follows the last checkpoint in metrics.jsonl is written again.
    config = records.read_json(workdir / records.CONFIG)
    if not config and not workdirs.is_new(workdir):
        raise records.Damaged(f"{records.CONFIG} is missing")
    trial_records.check_place(config, records.read_json(workdir / records.HPARAMS), place, study)
    return None


def run_unit(study: Study, unit: Unit, study_dir: pathlib.Path, progress: Progress) -> Outcome:
    """Trains the trials that are not finished. Trials with damaged records are set aside and start
    over.

    Raises:
        cli.InputError, OSError, ValueError: see `train.train`.
    """
    with contextlib.ExitStack() as held_locks:
        results, notes = _claim(study, unit, study_dir, held_locks)
        to_train = tuple(trial for trial in unit.trials if trial not in results)
        while True:
            try:
                trained = _train(study, unit, to_train, study_dir, progress)
                results |= zip(to_train, trained, strict=True)
                return Outcome(results, to_train, tuple(notes))
            except resuming.NothingToResume as error:
                notes.append(
                    f"{error.workdir}: no checkpoint can be used ({error.reasons}); its files are "
                    f"now in {resuming.set_aside(error.workdir)}, and the trial has started over"
                )


def attempt(study: Study, unit: Unit, study_dir: pathlib.Path) -> Outcome:
    """`run_unit` in a worker process: prints nothing, and returns errors instead of raising."""
    try:
        if study.config_flag:
            cli.load_module(study.config_flag)  # which may add fields, networks, and workloads
        here = origins.describe()["commit"]
        if unit.commit and here and not {*here.split()} <= {*unit.commit.split()}:
            raise cli.InputError(
                f"a worker has other code ({here}) than the sweep began with ({unit.commit}); "
                "restore it, or start the same command again with the new code"
            )
        progress = Progress(quiet=True)
        outcome = run_unit(study, unit, study_dir, progress)
        return dataclasses.replace(outcome, notes=(*outcome.notes, *progress.unsaid))
    except Exception as caught:
        error = cli.explained(caught)  # as one of ours: any other may not be pickled
        for kind in (cli.InputError, cli.Failed):
            if isinstance(error, kind):
                return Outcome({}, error=kind(str(error)))
        return Outcome({}, error=RuntimeError(traceback.format_exc()))


def _train(
    study: Study, unit: Unit, trials: tuple[int, ...], study_dir: pathlib.Path, progress: Progress
) -> list[dict[str, Any]]:
    """Trains trials whose locks this process holds; returns their results."""
    trial_dirs = [unit.workdir(trial, study_dir) for trial in trials]
    condition = study.condition(unit.condition)
    for trial, workdir in zip(trials, trial_dirs, strict=True):
        _write_hparams(study, unit, trial, workdir, len(trials))
    configs = [search.trial_config(study, condition, unit.search, trial) for trial in trials]
    if len(trials) == 1:
        return [train.train(configs[0], trial_dirs[0], progress, locked=True, tools=unit.tools)]
    return lanes.train(configs, trial_dirs, progress, tools=unit.tools)


def _write_hparams(study: Study, unit: Unit, trial: int, workdir: pathlib.Path, lanes: int) -> None:
    """Writes the hparams.json of a trial that trains together with `lanes` - 1 others."""
    # The clocks and numbers of a trial that resumes include what it shared before.
    checkpoints = (workdir / records.CHECKPOINTS).glob("*")
    resumes = any(records.is_numbered(path.name) for path in checkpoints)
    before = records.read_json(workdir / records.HPARAMS) if resumes else {}
    record = {
        "condition": unit.condition,
        "search": unit.search,
        "trial": trial,
        "lanes": max(lanes, before.get("lanes") or 1),
        "workers": max(unit.workers, before.get("workers") or 1),
        "hparams": search.point(study.space, unit.search, trial),
    }
    records.write_json(workdir / records.HPARAMS, record)


def _claim(
    study: Study, unit: Unit, study_dir: pathlib.Path, held_locks: contextlib.ExitStack
) -> tuple[dict[int, dict[str, Any]], list[str]]:
    """Locks the trials that this process will train, and sets damaged ones aside. Returns the
    results of the others, finished or HELD, and a sentence for each that was set aside."""
    known, notes = {}, []
    for trial in unit.trials:
        workdir = unit.workdir(trial, study_dir)
        workdir.mkdir(parents=True, exist_ok=True)
        locked = held_locks.enter_context(workdirs.held(workdir / records.LOCK))
        result = None
        try:  # under the lock: the process that held it may just have finished the trial
            result = _finished(study, study_dir, unit.place(trial))
        except records.Damaged as error:
            if locked:
                notes.append(
                    f"{unit.label(trial)}: its records were damaged ({error}); they are now in "
                    f"{resuming.set_aside(workdir)}, and the trial has started over"
                )
        if result or not locked:
            known[trial] = result or HELD
    return known, notes
