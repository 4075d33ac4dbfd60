"""Stacked lanes: one call per step for all, and the numbers of the lanes alone to rounding.

The network is linear, so that no rounding carries an activation over relu's kink, where a gradient
changes in its first digits. The stacks of test_divergence.py are of the ResNet.
"""

import numpy as np
import pytest

import sweep
from runs import records
from runs.progress import Progress
from tests.helpers.runs import echoing, mini, numbers, preempt, stop_at_call
from tests.helpers.small_studies import study
from training import lanes
from training.step import Program

pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered in cast")  # of 1e39

QUIET = Progress(quiet=True)

# float32 has 7 digits, of which these runs of 22 steps keep 5 or 6.
TOLERANCE = {"rtol": 5e-5, "atol": 1e-5}

# one that gets to the target early, one that diverges, two that use their whole budget
RATES = (0.1, 1e39, 0.003, 0.001)  # 1e39 is infinite in float32
STATUSES = ["reached", "diverged", "exhausted", "exhausted"]


def lane_configs(**fields):
    fields = {
        "target__value": 0.5,  # the first lane gets to 0.66, the others to 0.35 at most
        "log_every_steps": 1,
        "budget__fresh_examples": 480,
        "evaluate_every_fresh_examples": 240,
        **echoing("before_augmentation", 100, factor=1.5),
        **fields,
    }
    return [
        mini(optimizer__learning_rate=rate, seed__model=number, **fields)
        for number, rate in enumerate(RATES)
    ]


def in_directory(directory):
    return [directory / str(number) for number in range(len(RATES))]


@pytest.fixture(scope="module")
def apart(tmp_path_factory):
    """The directories of the same lanes, not stacked."""
    workdirs = in_directory(tmp_path_factory.mktemp("apart"))
    lanes.train(lane_configs(), workdirs, QUIET)
    return workdirs


@pytest.fixture
def calls(monkeypatch):
    """The sizes of the stacks that the step was called with, one a call."""
    sizes = []
    original = Program.compile

    def compile_(self, name, function, arguments):
        if name == "stacked":
            sizes.append(len(arguments[2].learning_rate))
        return original(self, name, function, arguments)

    monkeypatch.setattr(Program, "compile", compile_)
    return sizes


def assert_close(one, other):
    """Of two runs: the same records, floats to rounding, and the same arrays to rounding."""
    (result, curve, step, arrays), (result_, curve_, step_, arrays_) = (
        numbers(workdir, lane_configs()[0]) for workdir in (one, other)
    )
    assert (len(curve), step) == (len(curve_), step_)
    for mine, theirs in zip([*curve, result], [*curve_, result_], strict=True):
        assert mine.keys() == theirs.keys()
        for name, value in mine.items():
            if isinstance(value, float):
                np.testing.assert_allclose(value, theirs[name], err_msg=name, **TOLERANCE)
            elif name not in ("best", "error"):  # a loss may be inf here, NaN there
                assert value == theirs[name], name
    assert arrays.keys() == arrays_.keys()
    for name, array in arrays.items():
        np.testing.assert_allclose(array, arrays_[name], **TOLERANCE)


def test_stacked_lanes_have_the_numbers_of_their_own_runs_and_leave_one_by_one(
    apart, tmp_path, calls
):
    workdirs = in_directory(tmp_path)
    results = lanes.train(lane_configs(), workdirs, QUIET, stacked=True)
    assert [result["status"] for result in results] == STATUSES
    for together, alone in zip(workdirs, apart, strict=True):
        assert_close(together, alone)
    steps = [result["step"] for result in results]
    assert steps[1] < steps[0] < steps[2] == steps[3]
    # half of four are gone with the second lane that leaves, not with the first
    assert calls == [4] * steps[0] + [2] * (steps[2] - steps[0])


def test_stopped_lanes_resume_together(apart, tmp_path):
    workdirs = in_directory(tmp_path)
    # in the middle of a round: 3 of four lanes, then of three
    hook = stop_at_call(26)
    results = lanes.train(lane_configs(), workdirs, QUIET, stacked=True, on_step=hook)
    assert [result["status"] for result in results] == ["preempted", "diverged", *["preempted"] * 2]
    assert len({result["step"] for result in results if result["status"] == "preempted"}) == 1
    results = lanes.train(lane_configs(), workdirs, QUIET, stacked=True)
    assert [result["status"] for result in results] == STATUSES
    for together, alone in zip(workdirs, apart, strict=True):
        assert_close(together, alone)


def test_lanes_at_different_steps_are_stacked_once_they_meet(apart, tmp_path, calls):
    workdirs = in_directory(tmp_path)
    preempt(lane_configs()[3], workdirs[3], 7)
    results = lanes.train(lane_configs(), workdirs, QUIET, stacked=True)
    assert [result["status"] for result in results] == STATUSES
    for together, alone in zip(workdirs, apart, strict=True):
        assert_close(together, alone)
    # three lanes; then, as one of them has diverged, the rest with the fourth; never a stack of one
    assert calls == [3] * results[2]["step"]


def test_lanes_with_different_losses_form_separate_stacks_and_fail_separately(
    tmp_path, monkeypatch
):
    original = Program.compile

    def fail(self, name, function, arguments):
        if name == "stacked":
            raise RuntimeError(f"no room for {len(arguments[2].learning_rate)}")
        return original(self, name, function, arguments)

    monkeypatch.setattr(Program, "compile", fail)
    configs = [mini(loss__label_smoothing=smoothing) for smoothing in (0.0, 0.1, 0.1)]
    results = lanes.train(configs, in_directory(tmp_path)[:3], QUIET, stacked=True)
    assert {result["status"] for result in results} == {"failed"}
    assert [result["error"][-1] for result in results] == ["1", "2", "2"]


def test_a_study_records_which_trials_were_stacked(tmp_path):
    plan = study(trials=3, conditions=("baseline",))
    assert sweep.run(plan, tmp_path / "s", QUIET, lanes=2, stacked=True) == "finished"
    found = [
        records.read_json(workdir / records.HPARAMS)
        for _, workdir in records.trials_on_disk(tmp_path / "s")
    ]
    assert [each["lanes"] for each in found] == [2, 2, 1]
    assert [each["stacked"] for each in found] == [True, True, False]
