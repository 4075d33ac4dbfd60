"""One unit of a study's work: what its records say, and the errors of a worker."""

import dataclasses
import errno
import os
import shutil

import pytest

from runs import cli, records
from studies import trial
from studies.trial import Unit, run_unit
from tests.helpers.runs import on_each_step, stop_at_call
from tests.helpers.small_studies import QUIET, study


def test_a_resumed_trial_keeps_the_mark_of_what_it_shared(tmp_path):
    plan, trials = study(conditions=("baseline",)), (0, 1)
    unit = Unit("baseline", 0, trials, workers=3)
    with on_each_step(stop_at_call(6)):
        together = run_unit(plan, unit, tmp_path, QUIET).checked()
    assert [result["status"] for result in together.values()] == ["preempted"] * 2
    shutil.rmtree(unit.workdir(1, tmp_path) / records.CHECKPOINTS)  # so that it starts over
    shared = []
    for number in trials:
        run_unit(plan, Unit("baseline", 0, (number,)), tmp_path, QUIET)
        record = records.read_json(unit.workdir(number, tmp_path) / records.HPARAMS)
        shared.append([record[name] for name in ("lanes", "workers")])
    assert shared == [[2, 3], [1, 1]]


def test_a_killed_trial_resumes_whatever_follows_its_checkpoint_in_the_metrics(tmp_path):
    plan, unit = study(conditions=("baseline",), trials=1), Unit("baseline", 0, (0,))
    with on_each_step(stop_at_call(6)):
        run_unit(plan, unit, tmp_path, QUIET)
    workdir = unit.workdir(0, tmp_path)
    (workdir / records.RESULT).unlink()  # as if it had been killed later
    with (workdir / records.METRICS).open("ab") as file:
        file.write(bytes(9) + b"\n")
    outcome = run_unit(plan, unit, tmp_path, QUIET)
    assert outcome.checked()[0]["status"] == "exhausted"
    assert not outcome.notes
    assert not (workdir / records.DAMAGED).exists()


@pytest.mark.parametrize(
    ("error", "kind", "named"),
    [
        (OSError(errno.EROFS, os.strerror(errno.EROFS), "/x"), cli.InputError, "/x"),
        (OSError(errno.EDQUOT, os.strerror(errno.EDQUOT)), cli.Failed, "quota"),
        (records.Damaged("hparams.json is not a file"), cli.InputError, "hparams"),
        (ZeroDivisionError("by zero"), RuntimeError, "(?s)^Traceback.*: by zero\n$"),
    ],
)
def test_an_error_of_a_worker_is_that_of_a_single_process(error, kind, named, monkeypatch):
    def fails(*_):
        raise error

    monkeypatch.setattr(trial, "run_unit", fails)
    outcome = trial.attempt(study(), Unit("baseline", 0, (0,)), None)
    with pytest.raises(kind, match=named):
        outcome.checked()


def test_a_worker_without_the_file_of_the_study_or_with_another_commit_trains_nothing(tmp_path):
    """As on a machine of a cluster that lacks it."""
    unit, without = Unit("baseline", 0, (0,), commit="another"), "/nowhere/mine.py"
    for plan in (study(), dataclasses.replace(study(), config_flag=without)):
        with pytest.raises(cli.InputError, match=f"another|{without}"):
            trial.attempt(plan, unit, tmp_path).checked()
    assert not [*tmp_path.iterdir()]
