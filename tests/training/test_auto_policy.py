"""Runs with echo.policy=auto: recorded decisions, exact replay, resuming, and the loop's pace."""

import os
import sys

import jax
import numpy as np
import pytest

import train
from data.splits import open_data
from pipeline import accounting, build
from pipeline.auto_streams import AutoStreams
from runs import cli, records
from runs.study import Condition
from tests.helpers.held_training import late_examples
from tests.helpers.runs import (
    assert_equal_runs,
    batches_of,
    decisions_file,
    mini,
    recorded,
    stop_at,
)
from training import check
from training.auto_policy import HandOverTimes, Pace
from training.experiment import make_experiment

AUTO_INSERTIONS = (
    ("before_augmentation", 128),
    ("after_augmentation", 128),
    ("after_batching", 4),
)


def auto(insertion="before_augmentation", buffer=128, **fields):
    settings = {"echo__insertion": insertion, "echo__shuffle_buffer": buffer}
    return mini(echo__policy="auto", **settings, **fields)


@pytest.mark.parametrize(("insertion", "buffer"), AUTO_INSERTIONS)
@pytest.mark.parametrize("streams", [1, 2])
def test_with_fast_input_batches_are_those_without_echoing(insertion, buffer, streams):
    config = auto(insertion, buffer, echo__streams=streams)
    parts = make_experiment(config)
    source, _, _ = open_data(config)
    workload = parts.program.task.workload
    plain = batches_of(mini(echo__streams=streams))
    patient = list(build.build(config, source, workload, streams=AutoStreams(config, lambda: 1.0)))
    assert len(patient) == len(plain) == 20
    for ours, theirs in zip(patient, plain, strict=True):
        assert ours.fresh_examples == theirs.fresh_examples
        assert ours.decisions == (32 // streams,) * streams
        ours = ours._replace(decisions=())
        for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
            np.testing.assert_array_equal(one, other)


def test_a_restored_stream_is_still_at_most_a_batch_ahead_of_the_slowest():
    config = auto(echo__streams=2)
    source, _, _ = open_data(config)
    workload = make_experiment(config).program.task.workload

    def started():
        streams = AutoStreams(config, lambda: 1.0, earlier={0: [16, 16], 1: [16, 0]})
        return iter(build.build(config, source, workload, streams=streams))

    whole, restored = started(), started()
    assert [next(whole).decisions for _ in range(2)] == [(16, 16), (16, 0)]
    restored.set_state(whole.get_state())
    assert next(whole).decisions == next(restored).decisions == (0, 16)


class AtMost:
    """A hand-over that allows so many fresh examples, and what it was told."""

    def __init__(self, most):
        self.most, self.fresh, self.seconds = most, [], 0.0

    def most_fresh(self):
        return self.most

    def waited(self, seconds):
        self.seconds += seconds

    def decided(self, fresh):
        self.fresh.append(fresh)


@pytest.mark.parametrize(("insertion", "buffer"), AUTO_INSERTIONS)
@pytest.mark.parametrize("streams", [1, 2])
def test_a_batch_has_no_more_fresh_examples_than_the_host_hands_over_in_time(
    insertion, buffer, streams
):
    config = auto(insertion, buffer, echo__streams=streams)
    source, _, _ = open_data(config)
    hand_over = AtMost(10)
    workload = make_experiment(config).program.task.workload
    policy = AutoStreams(config, lambda: 1.0, hand_over=hand_over)
    iterator = iter(build.build(config, source, workload, streams=policy))
    decisions = [next(iterator).decisions for _ in range(5)]
    rows = 32 // streams
    most = rows if insertion == "after_batching" else 10 // streams  # whole batches are not split
    assert decisions == [(rows,) * streams] + [(most,) * streams] * 4
    assert hand_over.fresh == [sum(numbers) for numbers in decisions]
    assert hand_over.seconds > 0  # in the exchange at least


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize(("insertion", "buffer"), [AUTO_INSERTIONS[0], AUTO_INSERTIONS[2]])
def test_items_kept_on_the_device_give_the_same_run_and_are_sent_once(insertion, buffer, tmp_path):
    whole = insertion == "after_batching"
    fresh = [[32], [0], [32], [0], [0]] * 4 if whole else [[32], [12], [0], [20], [7]] * 4
    replay = decisions_file(tmp_path / "decisions", fresh)
    where = "device" if insertion == "before_augmentation" else "host"
    fields = {"echo__replay": replay, "augment_on": where}
    runs = {name: tmp_path / name for name in ("host", "device")}
    for name, workdir in runs.items():
        config = auto(insertion, buffer, echo__placement=name, **fields)
        assert train.train(config, workdir)["step"] == 20
    assert_equal_runs(config, runs["host"], runs["device"])
    sent = {n: records.read_metrics(w)[-2]["bytes_sent"] for n, w in runs.items()}
    shown_for_each_fresh_one = 32 * 20 / sum(map(sum, fresh))
    # rounds are filled up, and numbers are sent with each row
    assert sent["host"] / sent["device"] > 0.6 * shown_for_each_fresh_one


@pytest.mark.slow
def test_a_stopped_run_keeps_its_decisions_and_resumes(tmp_path):
    config = auto()
    with late_examples(100, step=6) as hook:
        train.train(config, tmp_path / "run", on_step=lambda n: (hook(n), stop_at(9)(n)))
    before = recorded(tmp_path / "run")
    result = train.train(config, tmp_path / "run")
    decisions = recorded(tmp_path / "run")
    assert len(before) == 9
    assert min(before) != [32]  # there are repeats
    assert decisions[:9] == before
    assert len(decisions) == result["step"]
    # A replay of all decisions ends alike.
    replay = auto(echo__replay=str(tmp_path / "run" / records.DECISIONS))
    train.train(replay, tmp_path / "replay")
    assert_equal_runs(replay, tmp_path / "run", tmp_path / "replay")


def test_the_schedule_follows_fresh_examples(tmp_path):
    decisions = [[32], [0], [0], *[[32]] * 9, [0], *[[32]] * 10]
    replay = decisions_file(tmp_path / "decisions", decisions)
    config = auto(echo__replay=replay, log_every_steps=1)
    train.train(config, tmp_path / "run")
    logged = [r for r in records.read_metrics(tmp_path / "run") if r["split"] == "train"]
    before = np.cumsum([0, *(fresh for (fresh,) in decisions[:-1])]) / 640
    assert [r["fresh_examples"] for r in logged] == np.cumsum(decisions).tolist()
    schedule = config.optimizer.schedule
    assert schedule.name == "linear"
    rates = config.optimizer.learning_rate * (1 - (1 - schedule.final_factor) * before)
    np.testing.assert_allclose([r["learning_rate"] for r in logged], rates, rtol=1e-6)


@pytest.mark.parametrize(
    ("insertion", "slots"), [("before_augmentation", 8 * 32), ("after_batching", 8)]
)
def test_without_further_settings_it_stores_eight_batches_and_repeats_by_batch_size(
    insertion, slots
):
    config = mini(echo__policy="auto", echo__insertion=insertion, echo__max_factor=0)
    check.check(config)
    assert accounting.buffer_slots(config, 0) == slots
    copies = {
        n: accounting.max_factor(auto(echo__max_factor=0, batch_size=n)) for n in (8, 32, 256)
    }
    assert copies == {8: 2, 32: 8, 256: 64}
    assert accounting.max_factor(auto(echo__max_factor=3)) == 3
    for version, factor in ((2, 16), (3, 4), (4, 8)):  # records keep the default of their version
        assert Condition.of("auto", {}, config, schema_version=version).factor == factor
    assert Condition.of("auto", {}, config).label.endswith("e ≤ 8")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"echo__insertion": "none"}, "insertion='none', where nothing is repeated; allowed"),
        ({"echo__factor": 2}, r"config.echo.factor is 2 with echo.policy='auto'.*allowed: 1"),
        ({"echo__shuffle_buffer": 31}, r"shuffle_buffer is 31 .* allowed: .*\(32\) or more, or 0"),
        ({"echo__max_factor": -1}, "config.echo.max_factor is -1; allowed: a whole number from 0"),
        ({"echo__replay": "nowhere"}, "replay is 'nowhere', which contains no decisions .*allowed"),
        ({"echo__replay": __file__}, "which contains no decisions"),
        ({"echo__policy": "fixed", "echo__replay": "x"}, "replay is 'x' with echo.policy='fixed'"),
    ],
)
def test_wrong_settings_are_one_sentence(fields, message):
    settings = {
        "echo__policy": "auto",
        "echo__insertion": "before_augmentation",
        "echo__shuffle_buffer": 128,
    }
    with pytest.raises(cli.InputError, match=message):
        make_experiment(mini(**settings | fields))


@pytest.mark.parametrize(
    ("decisions", "says"),
    [
        ([[32], [16, 16]], r"step 2 takes \[16, 16\]"),  # of another number of streams
        ([32], "step 1 takes 32"),
        ([[32], [33]], "step 2 takes 33 fresh examples in a stream, not 0 to 32"),
        ([[32], [-5]], "step 2 takes -5"),
        ([[10**24]], "step 1 takes 10+ fresh"),
        ([[1.7]], "step 1 takes 1.7"),
        ([[True]], "step 1 takes True"),
        ([["32"]], "step 1 takes '32'"),
    ],
    ids=str,
)
def test_decisions_that_such_a_run_cannot_take_are_wrong_input(decisions, says, tmp_path):
    replay = decisions_file(tmp_path / "decisions", decisions)
    with pytest.raises(cli.InputError, match=rf"echo\.streams=1 \({says}.*\); allowed: echo_d"):
        make_experiment(auto(echo__replay=replay))


def test_recorded_decisions_are_replayed_if_the_buffer_is_smaller_than_a_batch(tmp_path):
    replay = decisions_file(tmp_path / "decisions", [[32], [16], [20]])
    make_experiment(auto(buffer=16, echo__replay=replay))


def test_decisions_of_other_steps_or_parts_of_batches_are_wrong_input(tmp_path):
    path = tmp_path / "decisions"
    path.write_text('{"step": 1, "fresh": [32]}\n{"step": 1, "fresh": [32]}\n')
    with pytest.raises(cli.InputError, match="line 2 is of step 1"):
        make_experiment(auto(echo__replay=str(path)))
    replay = decisions_file(tmp_path / "parts", [[32], [17]])
    with pytest.raises(cli.InputError, match="takes 17 fresh examples in a stream, not 0 or 32"):
        make_experiment(auto("after_batching", 4, echo__replay=replay))


def test_decisions_of_a_run_of_another_schema_version_are_wrong_input(tmp_path):
    replay = decisions_file(tmp_path / "decisions", [[32], [16]])
    records.write_json(tmp_path / records.CONFIG, {"schema_version": records.SCHEMA_VERSION})
    make_experiment(auto(echo__replay=replay))
    records.write_json(tmp_path / records.CONFIG, {"schema_version": 4})
    with pytest.raises(cli.InputError, match=r"\(the run is of schema version 4\); allowed: "):
        make_experiment(auto(echo__replay=replay))


def test_the_command_says_what_is_wrong(tmp_path, capsys):
    flags = ("--config.echo.policy=auto", f"--workdir={tmp_path / 'run'}")
    words = ["--config=configs/cifar10.py:mini", *flags]
    assert cli.guarded(train.main, words) == cli.WRONG_INPUT
    assert capsys.readouterr().err.count("\n") == 1
    assert not os.path.exists(tmp_path / "run")


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
        monkeypatch.setattr(jax, "device_get", self.device_get)

    def device_get(self, metrics):
        self.now = max(self.now, metrics["loss"].ends)
        return {"loss": 0.0}

    def step(self, stall=0.0):
        """Waits as long as the pace says, then dispatches a batch; returns the time waited.

        A stream waits for its input for `stall` seconds in between, and then another one asks.
        """
        asked = self.now
        while (seconds := self.pace()) > 0:
            self.now += seconds
        if stall:
            self.now += stall
            self.pace.waited(stall)
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
            self.pace.fetch({"loss": self.before})
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
    loop.now += 0.006
    loop.now += 0.001
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


def test_it_does_not_wait_for_a_device_that_is_idle(monkeypatch):
    loop = Loop(monkeypatch, 0.001)
    assert loop.step() == 0.0
    for _ in range(5):
        loop.step()
    loop.now += 1.0  # an evaluation
    assert loop.step() == 0.0


def test_waiting_for_input_does_not_count_as_step_time(monkeypatch):
    loop = Loop(monkeypatch, 0.001)
    for _ in range(5):
        loop.step()
    for _ in range(40):
        loop.step(stall=0.030)
    loop.now += 0.050
    assert loop.pace.busy(0.050) == pytest.approx(0.010, abs=0.002)


def test_a_step_whose_end_no_one_saw_does_not_count_as_busy(monkeypatch):
    loop = Loop(monkeypatch, 0.001)
    for _ in range(5):  # each step has ended before the next batch is there
        loop.step()
        loop.now += 0.100
        assert loop.pace.busy(0.100) <= 0.011


def test_a_host_that_mostly_needs_longer_is_given_that_time(monkeypatch):
    loop, leads = Loop(monkeypatch, 0.001), [0.001, 0.002, 0.002] * 20
    for loop.lead in leads:  # until it knows
        loop.step()
    loop.idle = 0.0
    for loop.lead in leads:
        loop.step()
    assert loop.idle < len(leads) * 0.0002


def test_waiting_for_upstream_now_and_then_is_not_taken_for_the_hosts_time(monkeypatch):
    loop = Loop(monkeypatch, 0.001)
    for number in range(60):
        loop.lead = 0.001 if number % 3 else 0.009
        waited = loop.step()
    assert waited > 0.010 - 0.001 - 0.0011


# ---- how many fresh examples the host hands over during a step


def taken(hand_over, fixed, each, numbers):
    """The hand-over after batches with so many fresh examples, which took fixed + each * n."""
    for n in numbers:
        hand_over.took(fixed + each * n, n)
    return hand_over


def test_as_many_as_fit_into_a_step():
    most = taken(HandOverTimes(), 0.010, 0.001, [8, 32, 100, 100, 300]).most
    assert most(0.060) == pytest.approx(50, abs=1)
    assert most(0.110) == pytest.approx(100, abs=1)
    assert most(0.250) == pytest.approx(240, abs=1)
    assert most(0.400) == sys.maxsize  # all have been in time
    assert HandOverTimes().most(0.001) == sys.maxsize


def test_a_batch_that_was_late_once_does_not_count():
    hand_over = taken(HandOverTimes(), 0.010, 0.001, [8, 100, 100])
    hand_over.took(9.0, 100)
    assert hand_over.most(0.120) == sys.maxsize


def test_fewer_are_tried_than_were_ever_late():
    most = taken(HandOverTimes(), 0.010, 0.001, [50, 50, 50]).most
    assert most(0.030) == pytest.approx(25, abs=1)  # as if 60 ms for 50 were 30 ms for 25
    most = taken(HandOverTimes(), 0.010, 0.001, [50, 100]).most
    assert most(0.030) == pytest.approx(20, abs=1)


def test_a_host_that_needs_longer_than_a_step_without_them_still_hands_some_over():
    most = taken(HandOverTimes(), 0.010, 0.001, [8, 64]).most
    assert most(0.008) == pytest.approx(4, abs=1)  # half a step's worth
    assert taken(HandOverTimes(), 0.010, 0.0, [8, 64]).most(0.008) == sys.maxsize


class Sending(Loop):
    """Steps of 10 ms; handing over n fresh examples takes `fixed` + `each` * n seconds, and
    another one becomes ready every `every` seconds, up to `ahead`."""

    def __init__(self, monkeypatch, fixed, each, every=0.0001, ahead=100):
        super().__init__(monkeypatch, 0.0)
        self.fixed, self.each, self.every, self.ahead = fixed, each, every, ahead
        self.read = 0

    def ready(self):
        return min(self.ahead, int(self.now / self.every) - self.read)

    def send(self, least=0):
        """A step with what is ready, of a batch of 100; returns its number of fresh examples."""
        begun = self.now
        most = max(least, min(100, self.pace.most_fresh()))
        while self.ready() < most and (seconds := self.pace()) > 0:
            self.now += seconds
            self.pace.waited(seconds)
        if self.ready() < least:
            start, self.now = self.now, (self.read + least) * self.every
            self.pace.waited(self.now - start)
        fresh = max(least, min(most, self.ready()))
        self.read = max(self.read + fresh, int(begun / self.every) - self.ahead)
        self.pace.decided(fresh)
        self.lead = self.fixed + self.each * fresh
        self.dispatch()
        return fresh

    def run(self, batches, **options):
        """The mean number of fresh examples, and the device's mean idle time in seconds."""
        self.idle = 0.0
        return np.mean([self.send(**options) for _ in range(batches)]), self.idle / batches


def test_the_device_does_not_wait_for_fresh_examples_that_take_longer_than_a_step(monkeypatch):
    # With all 100, each batch would take 41 ms: 31 ms without a step.
    loop = Sending(monkeypatch, fixed=0.001, each=0.0004)
    loop.run(60)
    fresh, idle = loop.run(90)
    assert fresh == pytest.approx((0.010 - 0.001) / 0.0004, abs=2)
    assert idle < 0.0005
    loop.each = 0.00001  # a faster host: all that becomes ready during a step
    loop.run(200)
    fresh, idle = loop.run(90)
    assert fresh > 95
    assert idle < 0.0005


def test_a_slow_host_hands_all_over_if_that_hardly_takes_longer_than_fewer(monkeypatch):
    loop = Sending(monkeypatch, fixed=0.015, each=0.00001)
    loop.run(60)
    fresh, _ = loop.run(99)  # while one batch after the other is forgotten
    assert fresh > 95


def test_waiting_for_fresh_examples_does_not_count_as_handing_them_over(monkeypatch):
    loop = Sending(monkeypatch, fixed=0.001, each=0.00001, every=0.010)
    loop.run(120, least=8)  # each waits for about 80 ms
    loop.every = 0.0001
    loop.read = int(loop.now / loop.every) - 100
    fresh, _ = loop.run(5)
    assert fresh > 90
