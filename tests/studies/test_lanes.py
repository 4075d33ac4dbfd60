"""Lanes: each has the numbers of a separate run, bit for bit, also when resumed."""

import dataclasses

import jax
import pytest

import train
from runs import records
from runs.progress import Progress
from tests.helpers.runs import (
    EIGHT_STEPS,
    RESNET,
    StopsAt,
    assert_equal_runs,
    echoing,
    mini,
    preempt,
    stop_at_call,
    train_lines,
    without_clocks,
)
from training import experiment, lanes, sharding

QUIET = Progress(quiet=True)

# one that gets to the target early, one that diverges, two that use their whole budget
RATES = (0.012, 1e9, 0.0015, 0.001)
STATUSES = ["reached", "diverged", "exhausted", "exhausted"]
TARGET = 0.62  # the first is at 0.52, then at 0.72; the others end with 0.54 or less


def lane_configs(**fields):
    fields = echoing("before_augmentation", 100, factor=2) | {"target__value": TARGET} | fields
    return [
        mini(optimizer__learning_rate=rate, seed__model=number, **fields)
        for number, rate in enumerate(RATES)
    ]


def assert_same(one, other, config=None):
    """Equal runs, of which each has sent as many bytes as the other."""
    assert_equal_runs(config or mini(), one, other)
    lines = (map(without_clocks, records.read_metrics(workdir)) for workdir in (one, other))
    assert [*next(lines)] == [*next(lines)]


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The directories of the same runs, each on its own."""
    directory = tmp_path_factory.mktemp("alone")
    workdirs = [directory / str(number) for number in range(len(RATES))]
    for config, workdir in zip(lane_configs(), workdirs, strict=True):
        train.train(config, workdir)
    return workdirs


def test_a_lane_is_its_own_run_bit_for_bit(alone, tmp_path):
    workdirs = [tmp_path / str(number) for number in range(len(RATES))]
    results = lanes.train(lane_configs(), workdirs, QUIET)
    assert [result["status"] for result in results] == STATUSES
    for together, apart in zip(workdirs, alone, strict=True):
        assert_same(together, apart)


def test_batch_statistics_are_a_lanes_own(tmp_path):
    """Logistic regression, of the other tests, has none."""
    fields = RESNET | EIGHT_STEPS
    configs = [mini(**fields, optimizer__learning_rate=rate) for rate in (0.1, 0.001)]
    lanes.train(configs, [tmp_path / "0", tmp_path / "1"], QUIET)
    for number, config in enumerate(configs):
        train.train(config, tmp_path / "alone" / str(number))
        assert_same(tmp_path / str(number), tmp_path / "alone" / str(number), config)


def test_each_batch_is_read_and_sent_once_and_counted_by_every_lane(tmp_path, monkeypatch):
    sent, put = [], sharding.Transfer.put
    monkeypatch.setattr(
        sharding.Transfer, "put", lambda *given: sent.append(put(*given)) or sent[-1]
    )
    workdirs = [tmp_path / name for name in "abc"]
    lanes.train([mini(**EIGHT_STEPS, log_every_steps=1)] * 3, workdirs, QUIET)
    assert len(sent) == 8
    assert not any(array.is_deleted() for array in jax.tree.leaves(sent))  # donated to a step
    per_step = sum(array.nbytes for array in jax.tree.leaves(sent[0]))
    for workdir in workdirs:
        counts = [line["bytes_sent"] for line in train_lines(workdir)]
        assert counts == [per_step * step for step in range(1, 9)]


def test_lanes_stop_at_the_same_step(tmp_path):
    """Also without an evaluation, and if they are asked to in the middle of a round."""
    config = mini(**EIGHT_STEPS | {"evaluate_every_fresh_examples": 0})
    results = lanes.train([config] * 2, [tmp_path / "0", tmp_path / "1"], QUIET, stop_at_call(3))
    assert [(result["status"], result["step"]) for result in results] == [("preempted", 2)] * 2


def late(configs, workdirs):
    """After one of them has ended."""
    results = lanes.train(configs, workdirs, QUIET, on_step=stop_at_call(82))
    assert "preempted" in [result["status"] for result in results]


def in_an_evaluation(configs, workdirs):
    """The second one of the second lane."""
    first = experiment.make_experiment(configs[0])
    validation = StopsAt(first.validation, 6)
    stopping = dataclasses.replace(first, validation=validation)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(lanes, "make_experiment", lambda _: stopping)
        lanes.train(configs, workdirs, QUIET)
    assert max(validation.evaluated[5:]) == 1


def one_far_ahead(configs, workdirs):
    preempt(configs[3], workdirs[3], 17)


def two_ahead(configs, workdirs):
    """Of one that takes 27 steps, or 2, and ends before it has caught up."""
    for lane, steps in ((1, 30), (2, 34)):
        preempt(configs[lane], workdirs[lane], steps)


@pytest.mark.parametrize(
    ("interrupt", "chosen"),
    [
        (late, [0, 1, 2, 3]),
        (in_an_evaluation, [0, 1, 2, 3]),
        (one_far_ahead, [0, 1, 2, 3]),
        (two_ahead, [0, 2, 3]),
        (two_ahead, [1, 2, 3]),
    ],
)
def test_interrupted_lanes_resume_together(interrupt, chosen, alone, tmp_path):
    configs = [lane_configs()[number] for number in chosen]
    workdirs = [tmp_path / str(number) for number in chosen]
    interrupt(configs, workdirs)
    results = lanes.train(configs, workdirs, QUIET)
    assert [result["status"] for result in results] == [STATUSES[number] for number in chosen]
    for number, workdir in zip(chosen, workdirs, strict=True):
        assert_same(workdir, alone[number])


class Broken:
    """An input that ends in an error."""

    def __iter__(self):
        return self

    def __next__(self):
        raise OSError("a cable was pulled")

    def get_state(self):
        return {"batches": 0}


def test_input_that_ends_in_an_error_ends_every_lane():
    shared = lanes.SharedInput(Broken(), None)
    for lane in [lanes.Lane(shared), lanes.Lane(shared)]:
        for _ in range(2):
            with pytest.raises(OSError, match="a cable was pulled"):
                next(lane)
