"""One unit of a study's work: what its records say of how it was trained."""

import shutil

from runs import records, trial_records
from studies.trial import Unit, run_unit
from tests.helpers.runs import on_each_step, stop_at_call
from tests.helpers.small_studies import QUIET, study


def test_a_resumed_trial_keeps_the_mark_of_what_it_shared(tmp_path):
    plan, trials = study(conditions=("baseline",)), (0, 1)
    unit = Unit("baseline", 0, trials, stacked=True, workers=3)
    with on_each_step(stop_at_call(6)):
        together = run_unit(plan, unit, tmp_path, QUIET).checked()
    assert [result["status"] for result in together.values()] == ["preempted"] * 2
    shutil.rmtree(unit.workdir(1, tmp_path) / records.CHECKPOINTS)  # so that it starts over
    shared = []
    for trial in trials:
        run_unit(plan, Unit("baseline", 0, (trial,)), tmp_path, QUIET)
        record = trial_records.read_hparams(unit.workdir(trial, tmp_path))
        shared.append([record[name] for name in ("lanes", "stacked", "workers")])
    assert shared == [[2, True, 3], [1, False, 1]]
