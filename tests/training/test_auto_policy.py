"""Runs with echo.policy=auto: recorded decisions, exact replay, resuming, and the loop's pace."""

import jax
import numpy as np
import pytest

import train
from configs import cifar10, coco, imagenet, lm1b
from data.splits import open_splits
from pipeline import accounting, build
from runs import cli, records
from runs.study import Condition
from tests.helpers.held_training import late_examples
from tests.helpers.runs import (
    assert_equal_runs,
    batches_of,
    decisions_file,
    mini,
    recorded,
    train_lines,
)
from training.auto_policy import AutoPolicy, Pace
from training.experiment import make_experiment

AUTO_INSERTIONS = (
    ("before_augmentation", 128),
    ("after_augmentation", 128),
    ("after_batching", 4),
)


def auto(insertion="before_augmentation", buffer=128, **fields):
    settings = {"echo__insertion": insertion, "echo__shuffle_buffer": buffer}
    settings["echo__max_factor"] = 1000  # enough for the steps before late examples arrive
    return mini(**settings | {"echo__policy": "auto"} | fields)


@pytest.mark.parametrize(("insertion", "buffer"), AUTO_INSERTIONS)
@pytest.mark.parametrize("streams", [1, 2])
def test_with_fast_input_batches_are_those_without_echoing(insertion, buffer, streams):
    config = auto(insertion, buffer, echo__streams=streams)
    parts = make_experiment(config)
    source, _, _ = open_splits(config.dataset)
    workload = parts.program.task.workload
    plain = batches_of(mini(echo__streams=streams))
    patient = list(build.build(config, source, workload, policy=AutoPolicy(config, lambda: 1.0)))
    assert len(patient) == len(plain) == 20
    for ours, theirs in zip(patient, plain, strict=True):
        assert ours.fresh_examples == theirs.fresh_examples
        assert ours.decisions == (32 // streams,) * streams
        ours = ours._replace(decisions=())
        for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
            np.testing.assert_array_equal(one, other)


def test_a_restored_stream_is_still_at_most_a_batch_ahead_of_the_slowest():
    config = auto(echo__streams=2)
    source, _, _ = open_splits(config.dataset)
    workload = make_experiment(config).program.task.workload

    def started():
        streams = AutoPolicy(config, lambda: 1.0)
        streams.earlier.update({0: [16, 16], 1: [16, 0]})
        return iter(build.build(config, source, workload, policy=streams))

    whole, restored = started(), started()
    assert [next(whole).decisions for _ in range(2)] == [(16, 16), (16, 0)]
    restored.set_state(whole.get_state())
    assert next(whole).decisions == next(restored).decisions == (0, 16)


@pytest.mark.parametrize(
    ("insertion", "buffer", "streams"),
    [(*AUTO_INSERTIONS[0], 2), (*AUTO_INSERTIONS[2], 1)],
)
def test_a_run_is_repeated_exactly_by_its_decisions(insertion, buffer, streams, tmp_path):
    slow = auto(insertion, buffer, echo__streams=streams)
    with late_examples(100, step=12) as hook:  # so that there are repeats
        first = train.train(slow, tmp_path / "first", on_step=hook)
    assert first["status"] == "exhausted"
    decisions = recorded(tmp_path / "first")
    assert len(decisions) == first["step"] > 20  # steps without echoing
    # The run ends with the first stream that does; the other is at most a batch behind.
    left = 640 - first["fresh_examples"]
    assert sum(map(sum, decisions)) == first["fresh_examples"]
    assert left < 32 if streams == 1 else left < 2 * 32
    fast = auto(
        insertion,
        buffer,
        echo__streams=streams,
        echo__replay=str(tmp_path / "first" / records.DECISIONS),
    )
    train.train(fast, tmp_path / "again")
    assert recorded(tmp_path / "again") == decisions
    assert_equal_runs(fast, tmp_path / "first", tmp_path / "again")


def test_the_schedule_follows_fresh_examples(tmp_path):
    decisions = [[32], [0], [0], *[[32]] * 9, [0], *[[32]] * 10]
    replay = decisions_file(tmp_path / "decisions", decisions)
    horizon = {"optimizer__schedule__horizon_fresh_examples": 320}
    config = auto(echo__replay=replay, log_every_steps=1, **horizon)
    train.train(config, tmp_path / "run")
    logged = train_lines(tmp_path / "run")
    before = np.minimum(np.cumsum([0, *(fresh for (fresh,) in decisions[:-1])]) / 320, 1.0)
    assert [r["fresh_examples"] for r in logged] == np.cumsum(decisions).tolist()
    schedule = config.optimizer.schedule
    assert schedule.name == "linear"
    rates = config.optimizer.learning_rate * (1 - (1 - schedule.final_factor) * before)
    np.testing.assert_allclose([r["learning_rate"] for r in logged], rates, rtol=1e-6)


@pytest.mark.parametrize(
    ("module", "fields", "factor"),
    [
        (cifar10, {"augmentation.flip": False}, 16),
        (cifar10, {"augmentation.pad": 0, "augmentation.flip": False}, 8),
        (cifar10, {"echo.insertion": "after_augmentation"}, 8),
        (cifar10, {"echo.insertion": "after_batching"}, 8),
        (cifar10, {"echo.max_factor": 3}, 3),
        (cifar10, {"batch_size": 4, "echo.insertion": "after_augmentation"}, 2),
        (imagenet, {}, 16),
        (coco, {}, 16),
        (lm1b, {}, 8),
    ],
)
def test_by_default_it_stores_eight_batches_and_repeats_more_if_copies_differ(
    module, fields, factor
):
    """In a run, and in a condition of a study, which may set the fields that decide it."""
    config = module.get_config("mini")
    config.batch_size = 32
    fields = {"echo.policy": "auto", "echo.insertion": "before_augmentation"} | fields
    if "batch_size" not in fields:
        assert Condition.of("auto", fields, config).factor == factor
    config.update_from_flattened_dict(fields)
    assert accounting.max_factor(config) == factor
    whole = config.echo.insertion == "after_batching"
    assert accounting.buffer_slots(config, 0) == 8 * (1 if whole else config.batch_size)


BAD_LINES = [[16, 16], 32, [33], [-5], [10**24], [1.7], [True], ["32"]]


@pytest.mark.parametrize("second", [*BAD_LINES, "repeated", "another version", "part of a batch"])
def test_decisions_that_such_a_run_cannot_take_are_wrong_input(second, tmp_path):
    path, config = tmp_path / "decisions", auto(buffer=16)  # may be smaller than a batch here
    config.echo.replay = decisions_file(path, [[32], second if second in BAD_LINES else [17]])
    version = 4 if second == "another version" else records.SCHEMA_VERSION
    if second not in BAD_LINES:
        make_experiment(config)
        records.write_json(tmp_path / records.CONFIG, {"schema_version": version})
    if second == "repeated":
        path.write_text(path.read_text() * 2)
    if second == "part of a batch":
        config.echo.insertion = "after_batching"
    with pytest.raises(cli.InputError, match="replay"):
        make_experiment(config)


# ---- the pace of the loop


class Output:
    """A step's output on a simulated device."""

    def __init__(self, clock, ends):
        self._clock, self.ends = clock, ends

    def is_ready(self):
        return self._clock.now >= self.ends


class Loop:
    """Steps of 10 ms, dispatched as in training, on a simulated clock."""

    def __init__(self, monkeypatch, lead):
        self.now, self.lead, self.idle, self.ends = 0.0, lead, 0.0, 0.0
        self.step_seconds = 0.010
        self.pace = Pace(lambda: self.now)
        self.before = None
        monkeypatch.setattr(jax, "block_until_ready", self.wait_for)

    def wait_for(self, metrics):
        self.now = max(self.now, metrics["loss"].ends)

    def step(self, stall=0.0):
        """Waits as long as the pace says, then dispatches a batch; returns the time waited.

        A stream waits for its input for `stall` seconds in between, and then another one asks.
        """
        asked = self.now
        while (seconds := self.pace()) > 0:
            self.now += seconds
        if stall:
            self.now += stall
            assert self.pace() <= 0
        waited = self.now - asked
        self.dispatch()
        return waited

    def dispatch(self):
        """Hands over a batch, and dispatches its step."""
        self.now += self.lead
        self.idle += max(0.0, self.now - self.ends)
        self.ends = max(self.now, self.ends) + self.step_seconds
        output = Output(self, self.ends)
        self.pace.dispatched({"loss": output})
        if self.before:
            self.pace.awaits({"loss": self.before})
        self.before = output


@pytest.mark.parametrize("lead", [0.0005, 0.003])
def test_it_waits_until_the_running_step_is_about_to_end(monkeypatch, lead):
    loop = Loop(monkeypatch, lead)
    for _ in range(5):  # until it knows how long a step takes
        loop.step()
    loop.idle = 0.0
    waited = [loop.step() for _ in range(20)]
    # A step that has ended when its successor is dispatched may have ended up to `lead` before.
    assert min(waited) > 0.010 - 1.5 * lead - 0.0011
    assert loop.idle < 20 * 0.0002
    loop.now += 0.004
    assert loop.pace.busy(0.002) == 0.002  # the last step runs for 10 ms
    loop.now += 0.007
    assert loop.pace.busy(0.003) == pytest.approx(0.002, abs=0.0005)


@pytest.mark.parametrize("short", [0.0080, 0.0092])  # the latter ends as the batch is prepared
def test_the_device_does_not_wait_after_a_short_step(monkeypatch, short):
    loop, durations = Loop(monkeypatch, 0.001), [0.010, 0.010 + (0.010 - short) / 2, short] * 20
    for loop.step_seconds in durations:  # until it knows
        loop.step()
    loop.idle = 0.0
    waited = []
    for loop.step_seconds in durations:
        waited.append(loop.step())
    assert loop.idle < len(durations) * 0.0001
    assert min(waited) > short - 1.5 * 0.001 - 0.0011


def test_what_passes_outside_of_steps_is_neither_waited_for_nor_counted(monkeypatch):
    loop = Loop(monkeypatch, 0.001)
    assert loop.step() == 0.0
    for _ in range(5):  # each step has ended before the next batch is there
        loop.step()
        loop.now += 0.100
        assert loop.pace.busy(0.100) <= 0.011
    loop.now += 1.0  # an evaluation
    assert loop.step() == 0.0
    for _ in range(40):
        loop.step(stall=0.030)
    loop.now += 0.050
    assert loop.pace.busy(0.050) == pytest.approx(0.010, abs=0.002)


def test_the_hosts_usual_time_is_allowed_for_and_a_rare_wait_for_upstream_is_not(monkeypatch):
    loop, leads = Loop(monkeypatch, 0.001), [0.001, 0.002, 0.002] * 20
    for loop.lead in leads:  # until it knows
        loop.step()
    loop.idle = 0.0
    for loop.lead in leads:
        loop.step()
    assert loop.idle < len(leads) * 0.0002
    loop = Loop(monkeypatch, 0.001)
    for number in range(60):
        loop.lead = 0.001 if number % 3 else 0.009
        waited = loop.step()
    assert waited > 0.010 - 0.001 - 0.0011
