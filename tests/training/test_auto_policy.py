"""Runs with echo.policy=auto: recorded decisions, exact replay, resuming, and the loop's pace."""

import math
import time

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
    stop_at,
)
from training.auto_policy import AutoPolicy, FreshLimit, Pace
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
    patient = list(build.build(config, source, workload, policy=AutoPolicy(config, AtMost())))
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
        streams = AutoPolicy(config, AtMost())
        streams.earlier.update({0: [16, 16], 1: [16, 0]})
        return iter(build.build(config, source, workload, policy=streams))

    whole, restored = started(), started()
    assert [next(whole).decisions for _ in range(2)] == [(16, 16), (16, 0)]
    restored.set_state(whole.get_state())
    assert next(whole).decisions == next(restored).decisions == (0, 16)


class AtMost:
    """A pace that never hurries and allows these numbers of fresh examples; what it was told."""

    def __init__(self, *most):
        self.most, self.fresh, self.seconds = iter(most), [], 0.0

    def __call__(self):
        return 1.0

    def waited(self, seconds):
        self.seconds += seconds

    def decided(self, fresh):
        self.fresh.append(fresh)
        return next(self.most)


def limited(config, pace, earlier=(), **options):
    """The batches of a configuration, of items kept on a device, of which `pace` limits the fresh
    ones."""
    config.echo.placement, config.augment_on = "device", "device"
    source, _, _ = open_splits(config.dataset)
    workload = make_experiment(config).program.task.workload
    policy = AutoPolicy(config, pace, **options)
    policy.earlier.update(earlier)
    return iter(build.build(config, source, workload, policy=policy))


@pytest.mark.parametrize(("insertion", "buffer"), AUTO_INSERTIONS[:2])
@pytest.mark.parametrize("streams", [1, 2, 4])
def test_a_batch_has_no_more_fresh_examples_than_the_host_hands_over_in_time(
    insertion, buffer, streams
):
    most = [math.inf, 10, 10, 3, 3, 3, 3, 1, 1, 1]
    hand_over = AtMost(*most)
    batches = limited(auto(insertion, buffer, echo__streams=streams), hand_over)
    decisions = [next(batches).decisions for _ in most]
    totals = [sum(numbers) for numbers in decisions]
    assert totals == hand_over.fresh == [32, 32, 10, 10, 3, 3, 3, 3, 1, 1]
    # In turn, so that none is left behind.
    sums = np.cumsum(decisions, axis=0)
    assert (sums.max(axis=1) - sums.min(axis=1)).max() <= 1


def test_whole_batches_are_not_limited():
    insertion, buffer = AUTO_INSERTIONS[2]
    batches = limited(auto(insertion, buffer), AtMost())
    assert [next(batches).decisions for _ in range(3)] == [(32,)] * 3


def test_a_restored_stream_is_not_limited_by_what_was_allowed_before():
    config = auto()
    batches = limited(config, AtMost(*[4] * 5))
    states = []
    for _ in range(5):
        next(batches)
        states.append(batches.get_state())
    batches = limited(config, AtMost(*[4] * 5))
    assert [next(batches).decisions for _ in range(2)] == [(32,), (4,)]
    batches.set_state(states[4])  # two batches later; 8 fresh examples are allowed there
    assert next(batches).decisions == (32,)


def test_waits_and_the_exchange_with_other_processes_are_timed():
    def exchange(contribution):
        time.sleep(0.02)
        return [contribution]

    pace = AtMost(math.inf)
    assert AutoPolicy(auto(), pace).echo_stage(0).keywords["waited"] == pace.waited
    next(limited(auto(), pace, exchange=exchange))
    assert pace.seconds >= 0.02


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
    horizon = {"optimizer__schedule__horizon_fresh_examples": 320}
    config = auto(echo__replay=replay, log_every_steps=1, **horizon)
    train.train(config, tmp_path / "run")
    logged = [r for r in records.read_metrics(tmp_path / "run") if r["split"] == "train"]
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


# ---- how many fresh examples the host hands over during a step


class Host:
    """A host that takes `fixed` + `per_example` * n seconds for n fresh examples, of which 100 are
    always ready; a step takes 10 ms."""

    def __init__(self, fixed, per_example, seed=0, scatter=0.0):
        self.fixed, self.per_example = fixed, per_example
        self.limit, self.scatter = FreshLimit(), scatter
        self.draws = np.random.default_rng(seed)

    def took(self, batches):
        """The mean number of fresh examples, and the mean time from step to step in seconds."""
        numbers, times = [], []
        for _ in range(batches):
            fresh = int(min(100, self.limit.most))
            seconds = self.fixed + self.per_example * fresh
            seconds *= math.exp(self.draws.normal(0, self.scatter)) if self.scatter else 1.0
            late = seconds > 0.010
            self.limit.took(fresh, seconds, late, None if late else 0.010)
            numbers.append(fresh)
            times.append(max(0.010, seconds))
        return np.mean(numbers), np.mean(times)


@pytest.mark.parametrize("scatter", [0.0, 0.2])
def test_large_examples_are_limited_to_those_that_fit_into_one_step(scatter):
    host = Host(fixed=0.001, per_example=0.0004, scatter=scatter)  # 41 ms for all
    assert host.took(20)[0] == 100
    host.took(80)
    fresh, seconds = host.took(500)
    assert fresh == pytest.approx((0.95 * 0.010 - 0.001) / 0.0004, rel=0.15)
    assert seconds < 0.010 * (1.01 if not scatter else 1.15)


@pytest.mark.parametrize("per_example", [0.0004, 0.006])  # 21 examples fit into a step, and one
def test_a_host_that_becomes_faster_hands_over_all_again(per_example):
    host = Host(fixed=0.001, per_example=per_example)
    host.took(200)
    host.per_example = 0.00001
    host.took(150)
    assert host.took(100)[0] == 100
    host.per_example = 0.0004
    host.took(100)
    assert host.took(100)[0] < 25


@pytest.mark.parametrize("scatter", [0.0, 0.3])
def test_a_host_that_is_late_for_other_reasons_hands_over_nearly_all(scatter):
    host = Host(fixed=0.020, per_example=0.00001, scatter=scatter)
    host.took(200)
    assert host.took(3000)[0] > 95


def test_what_takes_longer_than_a_step_by_itself_is_not_all_given_up():
    """One by one, fresh examples would take five times as long as ten at a time."""
    host = Host(fixed=0.015, per_example=0.001)
    host.took(200)
    fresh, seconds = host.took(500)
    assert 10 < fresh < 40
    assert 1.5 * fresh / seconds > 100 / 0.115  # fresh examples per second, of those without limit
    assert seconds < 0.115 / 2.5


@pytest.mark.parametrize("number", [2, 3, 5, 8])
def test_small_numbers_are_found_too(number):
    host = Host(fixed=0.001, per_example=0.0085 / (number + 0.2))
    host.took(300)
    assert host.took(200)[0] == pytest.approx(number, rel=0.1)


def test_single_late_batches_and_blocks_change_nothing():
    host = Host(fixed=0.009, per_example=0.000005)
    for number in range(40):
        host.took(20)
        for _ in range(10 if number % 2 else 4):
            host.limit.took(100, 0.020, True)
        if number % 2 == 0:
            host.took(6)
        assert host.limit.most == math.inf


def test_a_batch_in_time_is_not_limited_further():
    host = Host(fixed=0.001, per_example=0.0004)
    host.took(200)
    before = host.limit.most
    for _ in range(50):
        host.limit.took(int(before), 0.0099, False, 0.010)
        assert host.limit.most == before


def test_repeated_decisions_are_no_attempts():
    pace = AtMost(4)
    batches = limited(auto(), pace, earlier={0: [32], 1: [5], 2: [6]})
    assert [next(batches).decisions for _ in range(4)] == [(32,), (5,), (6,), (32,)]
    assert pace.fresh == [32]


@pytest.mark.parametrize("placement", ["host", "device"])
def test_a_run_is_limited_if_the_devices_store_the_examples(placement, tmp_path, monkeypatch):
    took = []
    monkeypatch.setattr(FreshLimit, "took", lambda self, *batch: took.append(batch))
    always_four = property(lambda self: 4.0, lambda self, most: None)
    monkeypatch.setattr(FreshLimit, "most", always_four, raising=False)
    fields = {"echo__placement": placement, "augment_on": "device", "echo__max_factor": 1000}
    config = auto(**fields, budget__fresh_examples=128)
    result = train.train(config, tmp_path / "run")
    first, *others = recorded(tmp_path / "run")
    assert first == [32]
    if placement == "device":
        assert max(others) <= [4]
        assert result["step"] > 15  # 4 without a limit
    else:
        assert not took


class Sending(Loop):
    """Steps of 10 ms; handing over n fresh examples takes 1 ms and `per_example` * n, and another
    one becomes ready every `every` seconds, up to 100, the size of a batch."""

    def __init__(self, monkeypatch, per_example, every):
        super().__init__(monkeypatch, 0.0)
        self.per_example, self.every = per_example, every
        self.ready, self.read_at, self.exchange_seconds = 0.0, 0.0, 0.0

    def come(self):
        self.ready = min(100.0, self.ready + (self.now - self.read_at) / self.every)
        self.read_at = self.now
        return int(self.ready)

    def send(self, least=0):
        """A step with what is ready, at least `least`; returns its number of fresh examples."""
        most = int(max(least, min(100, self.pace.decided(0))))
        while self.come() < most and (seconds := self.pace()) > 0:
            self.wait(seconds)
        while self.come() < least:
            self.wait(self.every)
        fresh = min(most, self.come())
        self.ready -= fresh
        self.now += self.exchange_seconds
        self.pace.waited(self.exchange_seconds)
        self.pace.decided(fresh)
        self.lead = 0.001 + self.per_example * fresh
        self.dispatch()
        return fresh

    def wait(self, seconds):
        self.now += seconds
        self.pace.waited(seconds)

    def run(self, batches, **options):
        """The mean number of fresh examples, and the device's mean idle time in seconds."""
        self.idle = 0.0
        return np.mean([self.send(**options) for _ in range(batches)]), self.idle / batches


def test_the_device_does_not_wait_for_fresh_examples_that_take_longer_than_one_step(monkeypatch):
    # With all that are ready, each batch would take up to 41 ms: 31 ms without a step.
    loop = Sending(monkeypatch, per_example=0.0004, every=0.0002)
    loop.run(150)
    fresh, idle = loop.run(300)
    assert fresh == pytest.approx((0.010 - 0.001) / 0.0004, rel=0.15)
    assert idle < 0.0002


def test_neither_waiting_for_fresh_examples_nor_for_processes_counts_as_handing_over(monkeypatch):
    loop = Sending(monkeypatch, per_example=0.00001, every=0.010)
    loop.run(200, least=8)  # each waits for about 80 ms
    assert loop.pace.decided(0) == math.inf
    loop.every = 0.0001
    loop.run(5)
    assert loop.run(20)[0] > 90
    loop = Sending(monkeypatch, per_example=0.00005, every=0.0001)
    loop.exchange_seconds = 0.015
    loop.run(300)
    assert loop.pace.decided(0) == math.inf


def test_nothing_is_limited_while_the_input_is_slow(monkeypatch):
    loop = Sending(monkeypatch, per_example=0.0001, every=0.002)
    fresh, _ = loop.run(300)
    assert fresh == pytest.approx(5, abs=0.2)
    assert loop.pace.decided(0) == math.inf
