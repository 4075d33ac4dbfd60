"""A throttled upstream: rates on a simulated clock, and what stands still during an evaluation."""

import contextlib
import dataclasses
import threading
import types

import numpy as np
import pytest

import train
from data import sources, splits
from data.throttle import Limits, RateLimiter, SlowSource, StoppableClock, throttled
from pipeline import build
from pipeline.evaluation import evaluation_batches
from pipeline.map_datasets import CHUNK, CORES, Examples, FreshOrder
from tests.helpers.runs import HANGS, echoing, mini
from training.experiment import make_experiment


class Clock:
    """A clock that advances only by sleeping."""

    def __init__(self):
        self.now = 100.0

    def sleep(self, seconds):
        self.now += seconds

    def line(self, **limits):
        return RateLimiter(Limits(**limits), StoppableClock(lambda: self.now, self.sleep))


@pytest.mark.parametrize(
    ("limits", "seconds"),
    [
        ({}, 0.0),
        ({"examples_per_second": 50.0}, 100 / 50),
        ({"latency_seconds": 0.25}, 4 * 0.25),
        # work for 2 s, with a stall of 3 s after each half second of it
        (
            {"examples_per_second": 50.0, "stall_every_seconds": 0.5, "stall_seconds": 3.0},
            2 + 3 * 3,
        ),
    ],
)
def test_a_limit_sets_when_the_last_record_arrives(limits, seconds):
    clock = Clock()
    line = clock.line(**limits)
    for _ in range(4):
        line.wait(25)
    credit = 0.02 * (1 + 4)  # of the first record, and after each latency
    assert seconds - credit <= clock.now - 100.0 <= seconds + 1e-6


@pytest.mark.parametrize(
    ("limits", "seconds"),
    [
        ({"examples_per_second": 50.0}, lambda slow: (200 + 9 * slow) / 50),
        ({"latency_seconds": 0.25}, lambda slow: 0.25 * (200 + 9 * slow)),
    ],
)
def test_a_slow_example_takes_ten_times_as_long_whenever_it_is_read(limits, seconds):
    source = sources.ArraySource(x=np.arange(200))
    taken = []
    for order in (range(200), range(199, -1, -1)):
        clock = Clock()
        line = clock.line(**limits, slow_share=0.05)
        one_by_one = SlowSource(source, line)
        for number in order:
            one_by_one[number]
        taken.append(clock.now - 100.0)
    slow = [number for number in range(200) if line.limits.is_slow(number)]
    assert 4 <= len(slow) <= 18
    assert taken == pytest.approx([seconds(len(slow))] * 2, abs=0.021)
    assert not Limits(slow_share=0.0).is_slow(slow[0])
    assert Limits(**limits, slow_share=0.05).record_seconds == pytest.approx(
        10 * Limits(**limits).record_seconds
    )


def test_a_cache_keeps_its_share_from_the_first_epoch_on():
    clock, images = Clock(), sources.ArraySource(x=np.zeros((8, 6), np.uint8))
    source = SlowSource(images, clock.line(examples_per_second=10.0, cached_share=0.25))
    for passing in (8, 6, 6):
        start = clock.now
        assert len(source.__getitems__(range(8))) == 8
        assert clock.now - start == pytest.approx(passing / 10, abs=0.021)
    # after the first epoch, three quarters
    assert [source.bytes_read(n) for n in (0, 4, 8, 16, 20)] == [0, 24, 48, 84, 102]


def test_unused_time_is_not_saved_up():
    clock = Clock()
    line = clock.line(examples_per_second=10.0)
    line.wait(1)
    clock.now += 60
    line.wait(10)
    assert clock.now - 160 == pytest.approx(0.1 + 1.0, abs=0.041)


def test_a_limit_is_shared_by_all_threads():
    clock = Clock()
    line = clock.line(examples_per_second=100.0)
    threads = [threading.Thread(target=line.wait, args=(25,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert clock.now - 100.0 == pytest.approx(2.0, abs=0.021)


@pytest.mark.parametrize(
    ("condition", "augmented"),
    [
        (echoing("none", 0) | {"echo__streams": 2}, 640),
        (echoing("none", 0) | {"augment_on": "device"}, 0),
        (echoing("before_augmentation", 50, factor=2), 2 * 640),
        (echoing("after_batching", 4), 640),
    ],
)
def test_a_limit_on_augmentation_delays_each_example_that_the_host_augments(condition, augmented):
    clock, batches = Clock(), {}
    for rate in (0.0, 100.0):
        config = mini(**condition, upstream__augmented_examples_per_second=rate)
        opened = make_experiment(config)
        timer = StoppableClock(lambda: clock.now, clock.sleep)
        workload = opened.program.task.workload
        input_ = build.build(config, opened.source, workload, first=opened.first, clock=timer)
        batches[rate] = [batch.data["image"] for batch in input_]
    np.testing.assert_array_equal(batches[0.0], batches[100.0])
    assert clock.now - 100.0 == pytest.approx(augmented / 100, abs=0.021)


def test_a_stopped_clock_excludes_the_time_that_passes():
    clock = Clock()
    stoppable = StoppableClock(lambda: clock.now)
    clock.sleep(1.0)
    with stoppable.stopped():
        clock.sleep(2.0)
        with stoppable.stopped():
            clock.sleep(4.0)
        assert stoppable() == 101.0
    clock.sleep(8.0)
    assert stoppable() == 109.0


class Asked(StoppableClock):
    """A clock that reports when a thread has begun to wait."""

    def __init__(self):
        self.real, self.waits = Clock(), threading.Event()
        super().__init__(lambda: self.real.now, self.real.sleep)

    def sleep(self, seconds):
        self.waits.set()
        super().sleep(seconds)


@pytest.mark.parametrize(
    ("limits", "seconds"),
    [
        ({"examples_per_second": 10.0}, 20 / 10),
        ({"latency_seconds": 5.0}, 5.0),
        ({"stall_every_seconds": 1.0, "stall_seconds": 9.0, "examples_per_second": 10.0}, 2 + 18),
    ],
)
def test_a_request_made_while_the_clock_is_stopped_costs_as_much(limits, seconds):
    fields = {f"upstream__{name}": value for name, value in limits.items()}

    def charged(evaluates):
        """Seconds by the run's clock that 20 records take."""
        clock = Asked()
        config = mini(**fields)
        source = throttled(config, splits.open_splits(config.dataset)[0], clock)
        source[0]
        clock.waits.clear()
        begin, request = clock(), threading.Thread(target=source.__getitems__, args=[range(20)])
        with clock.stopped() if evaluates else contextlib.nullcontext():
            request.start()
            assert clock.waits.wait(HANGS)
            if evaluates:
                clock.real.sleep(3600.0)  # an hour in which nothing comes
                assert request.is_alive()
        request.join()
        return clock() - begin

    paused = charged(evaluates=True)
    assert paused == pytest.approx(charged(evaluates=False), abs=1e-6)
    assert paused == pytest.approx(seconds, abs=0.021)


def test_a_run_evaluates_while_all_of_its_reading_threads_wait():
    clock, reads = Asked(), threading.Semaphore(0)

    class Counted(sources.ArraySource):
        def __getitems__(self, indices):
            reads.release()
            return super().__getitems__(indices)

    def decode(records, *_):
        return {"x": np.asarray([record["x"] for record in records])}

    numbers = Counted(x=np.arange(CORES * CHUNK))
    line = RateLimiter(Limits(latency_seconds=1.0), clock)
    source, order = SlowSource(numbers, line), FreshOrder(len(numbers))
    examples = Examples(source, 0, order, decode, augment=lambda batch: batch)
    with clock.stopped():
        training = threading.Thread(target=examples.stacked_items, args=[range(len(numbers))])
        training.start()
        for _ in range(CORES):
            assert reads.acquire(timeout=HANGS)
        functions = types.SimpleNamespace(decode=decode)
        evaluated = []
        evaluation = threading.Thread(
            target=lambda: evaluated.extend(evaluation_batches(numbers, functions, 4 * CHUNK)),
            daemon=True,
        )
        evaluation.start()
        evaluation.join(HANGS)
        assert training.is_alive()
    training.join()
    assert np.concatenate([data["x"] for data, _ in evaluated])[: len(numbers)].tolist() == [
        *range(len(numbers))
    ]


def test_slow_input_stands_still_while_a_run_evaluates(tmp_path):
    """Evaluating after every step gives the input no time that training is not charged for."""
    config = mini(upstream__augmented_examples_per_second=1600.0)
    config.budget.fresh_examples = 1600
    config.evaluate_every_fresh_examples = 32
    config.target.value = 2.0
    result = train.train(config, tmp_path / "run")
    assert result["wall_seconds"] > result["train_seconds"]
    # The first examples are read ahead before the first step, the last ones before the last.
    ahead = 4 * config.batch_size
    assert result["train_seconds"] >= (result["fresh_examples"] - ahead) / 1600


def test_limits_have_a_field_each_and_processes_share_them():
    assert Limits(examples_per_second=10, latency_seconds=1).shared_by(2) == Limits(5, 1)
    names = {field.name for field in dataclasses.fields(Limits)}
    assert set(mini().upstream) == names | {"augmented_examples_per_second"}
