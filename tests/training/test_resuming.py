"""Runs that are interrupted twice and resumed end bit for bit like runs that were not.

One matrix for all that a run's state depends on: the echo policy, the insertion point, the shuffle
buffer, the placement, the streams, lanes, and the workload. What else an interruption must keep is
tested where it belongs: killed processes in test_train.py, damaged files in runs/test_damage.py,
decisions made while training in test_auto_policy.py.
"""

from typing import NamedTuple

import pytest

import train
from configs import cifar10, coco, lm1b, vit
from data import packaged
from models.resnet import STAGES, BasicBlock
from runs import cli
from runs.progress import Progress
from tests.helpers import detection
from tests.helpers.runs import (
    SHRUNK,
    SMALL_TEXT,
    assert_equal_runs,
    decisions_file,
    echoing,
    recorded,
    stop_at_call,
    train_lines,
)
from training import lanes

STOPPED, FAILED = 3, 6  # a signal asks to stop after the first step, an error ends the second
QUIET = Progress(quiet=True)


class Case(NamedTuple):
    """One run, or `lanes` runs that share their input."""

    workload: str
    policy: str = "fixed"
    insertion: str = "none"
    buffer: str = "none"
    placement: str = "host"
    streams: int = 1
    lanes: int = 1


BEFORE, AFTER, BATCHES = "before_augmentation", "after_augmentation", "after_batching"
# Every two choices that go together are in one of these.
CASES = [
    Case("logistic"),
    Case("cifar10", streams=2, lanes=2),
    Case("logistic", streams=2, lanes=2),
    Case("logistic", "fixed", BEFORE, "none", "host", 2, 2),
    Case("logistic", "fixed", BEFORE, "none", "host", 1, 2),
    Case("cifar10", "auto", BEFORE, "small", "device", 2),
    Case("cifar10", "fixed", AFTER, "small", "host", 1, 2),
    Case("logistic", "fixed", AFTER, "none", "device", 2),
    Case("coco", "auto", AFTER, "small", "host", 1),
    Case("vit", "fixed", AFTER, "none", "host", 1, 2),
    Case("logistic", "auto", BATCHES, "small", "device", 1),
    Case("lm1b", "fixed", BATCHES, "none", "host", 2, 2),
    Case("logistic", "fixed", BATCHES, "small", "host", 1, 2),
]


MODULES = {
    "cifar10": cifar10,
    "logistic": cifar10,
    "coco": coco,
    "lm1b": lm1b,
    "vit": vit,  # of the photographs of imagenet
}
# The networks and batches of the workloads' own tests, whose compiled programs are found again.
SMALL = {"budget.fresh_examples": 256, "log_every_steps": 1}
SMALLER = {
    "cifar10": SHRUNK | SMALL | {"model.depth": 8, "model.width": 4},
    "logistic": SHRUNK | SMALL,
    "coco": detection.SHRUNK | {"budget.fresh_examples": 128},
    "lm1b": SMALL_TEXT | SMALL,
    "vit": SHRUNK
    | SMALL
    | {"dataset.canvas": 96, "augmentation.crop_size": 16, "model.layers": 1, "model.dim": 8}
    | {"model.heads": 2, "model.mlp_dim": 16},
}


def configs(case, directory):
    """The configuration of a run, or those of two lanes."""
    batch = 16 if case.workload == "coco" else 32
    buffers = {"none": 0, "small": 4 if case.insertion == BATCHES else 50}
    fields = echoing(case.insertion, buffers[case.buffer], 2.5 if case.policy == "fixed" else 1)
    fields = {name.replace("__", "."): value for name, value in fields.items()}
    fields |= {"echo.policy": case.policy, "echo.streams": case.streams, "echo.max_factor": 16}
    fields |= {"evaluate_every_fresh_examples": 4 * batch}
    fields |= {"checkpoint_every_fresh_examples": 2 * batch}
    if case.placement == "device":
        fields |= {"echo.placement": "device", "augment_on": "device"}
    if case.policy == "auto":  # all rows fresh, none, or most of them
        rows = batch // case.streams
        most = rows if case.insertion == BATCHES else rows - 3
        decisions = [[fresh] * case.streams for fresh in (rows, 0, most, 0)] * 4
        fields["echo.replay"] = decisions_file(directory / "decisions", decisions)
    made = []
    for rate in (0.003,) if case.lanes == 1 else (0.003, 0.001):
        config = MODULES[case.workload].get_config("mini")
        given = SMALLER[case.workload] | fields | {"optimizer.learning_rate": rate}
        for name, value in given.items():
            cli.set_field(config, name, value)
        made.append(config)
    return made


@pytest.fixture(autouse=True)
def few_scenes_and_layers(monkeypatch):
    """Fewer scenes to compose and to score, and one block per stage: a third of the time."""
    monkeypatch.setitem(packaged.NUM_SCENES, "validation", 40)
    monkeypatch.setitem(STAGES, 18, (BasicBlock, (1, 1, 1, 1)))


def trained(case, runs, workdirs, on_step=None):
    """Trains one run, or lanes together; the statuses that they end with."""
    if case.lanes == 1:
        return {train.train(runs[0], workdirs[0], on_step=on_step)["status"]}
    results = lanes.train(runs, workdirs, QUIET, on_step=on_step)
    return {result["status"] for result in results}


def fail(step):
    if step == FAILED:
        raise RuntimeError("the power went")


def param(case):
    """Networks, which take long to trace and compile, are in the long tests."""
    marks = [] if case.workload == "logistic" else pytest.mark.long
    return pytest.param(case, marks=marks, id="-".join(map(str, case)))


@pytest.mark.parametrize("case", [param(case) for case in CASES])
def test_an_interrupted_run_ends_like_one_that_was_not(case, tmp_path):
    runs = configs(case, tmp_path)
    whole, interrupted = ([tmp_path / name / str(n) for n in range(len(runs))] for name in "ab")
    assert trained(case, runs, whole) == {"exhausted"}
    stop = stop_at_call(len(runs) * (STOPPED - 1) + 1)  # of lanes, in the middle of a round
    assert trained(case, runs, interrupted, stop) == {"preempted"}
    assert trained(case, runs, interrupted, fail) == {"failed"}
    assert trained(case, runs, interrupted) == {"exhausted"}
    for config, one, other in zip(runs, whole, interrupted, strict=True):
        assert_equal_runs(config, one, other)
        steps = [line["step"] for line in train_lines(one)]
        assert steps == [*range(1, len(steps) + 1)]
        assert len(steps) > FAILED
        if case.policy == "auto":
            assert recorded(one) == recorded(other)
