"""A throttled upstream: rates on a simulated clock, the real connection, and failures."""

import contextlib
import dataclasses
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
import types

import numpy as np
import pytest

import train
from data import http_source, sources, splits
from data.sources import UpstreamError
from data.throttle import (
    Limits,
    RateLimiter,
    SlowSource,
    Stalled,
    StoppableClock,
    TimeoutSource,
)
from pipeline import build
from pipeline.evaluation import evaluation_batches
from pipeline.map_datasets import CHUNK, CORES, MapChunks, Read
from runs import cli
from tests.helpers.runs import HANGS, ROOT, assert_equal_runs, echoing, latest_step, mini
from training import experiment
from training.experiment import make_experiment


class Clock:
    """A clock that advances only by sleeping."""

    def __init__(self):
        self.now = 100.0

    def sleep(self, seconds):
        self.now += seconds

    def line(self, **limits):
        return RateLimiter(Limits(**limits), lambda: self.now, self.sleep)


def arrivals(limits, sizes, requests=1):
    clock = Clock()
    line = clock.line(**limits)
    return [clock.now - 100.0 for _ in range(requests) for _ in line.passed(sizes)]


@pytest.mark.parametrize(
    ("limits", "seconds"),
    [
        ({}, 0.0),
        ({"examples_per_second": 50.0}, 100 / 50),
        ({"bytes_per_second": 1000.0}, 100 * 30 / 1000),
        ({"examples_per_second": 50.0, "bytes_per_second": 1000.0}, 100 * 30 / 1000),
        ({"examples_per_second": 50.0, "bytes_per_second": 9000.0}, 100 / 50),
        ({"latency_seconds": 0.25}, 4 * 0.25),
        # work for 2 s, with a stall of 3 s after each half second of it
        (
            {"examples_per_second": 50.0, "stall_every_seconds": 0.5, "stall_seconds": 3.0},
            2 + 3 * 3,
        ),
    ],
)
def test_a_limit_sets_when_the_last_record_arrives(limits, seconds):
    credit = 0.02 * (1 + 4)  # of the first record, and after each latency
    last = arrivals(limits, [30] * 25, requests=4)[-1]
    assert seconds - credit <= last <= seconds + 1e-6


def test_records_of_one_request_arrive_steadily():
    times = arrivals({"examples_per_second": 100.0}, [1] * 256)
    assert np.diff(times).max() == pytest.approx(0.01)


def test_unused_time_is_not_saved_up():
    clock = Clock()
    line = clock.line(examples_per_second=10.0)
    list(line.passed([1]))
    clock.now += 60
    begin = clock.now
    list(line.passed([1] * 10))
    assert clock.now - begin == pytest.approx(1.0, abs=0.021)


def test_a_limit_is_shared_by_all_threads():
    clock = Clock()
    line = clock.line(examples_per_second=100.0)
    order = []

    def ask(request):
        for _ in line.passed([1] * 25):
            order.append(request)
            time.sleep(1e-4)  # lets another thread have its turn

    threads = [threading.Thread(target=ask, args=(request,)) for request in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert clock.now - 100.0 == pytest.approx(2.0, abs=0.021)
    # One request after another: shared between two, both would be late.
    assert len(list(itertools.groupby(order))) == 8


@pytest.mark.parametrize(
    ("condition", "augmented"),
    [
        (echoing("none", 0), 640),
        (echoing("none", 0) | {"echo__streams": 2}, 640),
        (echoing("none", 0) | {"augment_on": "device"}, 0),
        (echoing("before_augmentation", 50, factor=2), 2 * 640),
        (echoing("after_augmentation", 50), 640),
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


def test_a_sleep_excludes_the_time_while_the_clock_was_stopped():
    clock, asked = Clock(), []

    def half_of_it_evaluating(seconds):
        asked.append(seconds)
        with stoppable.stopped():
            clock.sleep(60.0)
        clock.sleep(max(seconds / 2, 0.5))

    stoppable = StoppableClock(lambda: clock.now, half_of_it_evaluating)
    stoppable.sleep(2.0)
    assert (asked, stoppable()) == ([2.0, 1.0, 0.5], 102.0)


class Asked(StoppableClock):
    """A clock that reports when a thread has begun to wait."""

    def __init__(self):
        self.real, self.waits = Clock(), threading.Event()
        super().__init__(lambda: self.real.now, self.real.sleep)

    def sleep(self, seconds):
        self.waits.set()
        super().sleep(seconds)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("http", "limits", "seconds"),
    [
        (False, {"examples_per_second": 10.0}, 20 / 10),
        (True, {"examples_per_second": 10.0}, 20 / 10),
        (False, {"bytes_per_second": 1e3}, None),  # in proportion to the records' sizes
        (False, {"latency_seconds": 5.0}, 5.0),
        (
            False,
            {"stall_every_seconds": 1.0, "stall_seconds": 9.0, "examples_per_second": 10.0},
            2 + 18,
        ),
    ],
)
def test_a_request_made_while_the_clock_is_stopped_costs_as_much(http, limits, seconds):
    fields = {f"upstream__{name}": value for name, value in limits.items()}

    def charged(http, evaluates):
        """Seconds by the run's clock that 20 records take."""
        clock = Asked()
        source, _, _ = splits.open_data(mini(upstream__http=http, **fields), clock)
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

    paused = charged(http, evaluates=True)
    assert paused == pytest.approx(charged(http=False, evaluates=False), abs=1e-6)
    if seconds:
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
    line = RateLimiter(Limits(latency_seconds=1.0), clock, clock.sleep)
    read = Read(SlowSource(numbers, line), 0, len(numbers), decode)
    examples = MapChunks(read, lambda data, _: data)
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


@pytest.mark.slow
@pytest.mark.parametrize("limit", ["examples_per_second", "augmented_examples_per_second"])
def test_slow_input_stands_still_while_a_run_evaluates(limit, tmp_path):
    """Evaluating after every step gives the input no time that training is not charged for."""
    config = mini()
    config.upstream[limit] = 1600.0
    config.budget.fresh_examples = 1600
    config.evaluate_every_fresh_examples = 32
    config.target.value = 2.0
    result = train.train(config, tmp_path / "run")
    assert result["wall_seconds"] > result["train_seconds"]
    # The first examples are read ahead before the first step, the last ones before the last.
    ahead = 4 * config.batch_size
    assert result["train_seconds"] >= (result["fresh_examples"] - ahead) / 1600


def test_jitter_is_a_function_of_the_seed():
    limits = {
        "examples_per_second": 50.0,
        "latency_seconds": 0.1,
        "stall_every_seconds": 0.3,
        "stall_seconds": 1.0,
        "jitter": 0.5,
    }
    one, again, other = (arrivals(limits | {"seed": s}, [1] * 20, 5) for s in (3, 3, 4))
    assert one == again != other
    gaps = np.diff(one)
    assert (gaps > 1.0).sum() >= 3  # stalls
    assert len(set(np.round(gaps[gaps < 0.9], 6))) > 2  # latencies


def test_a_limit_is_shared_by_processes():
    limits = Limits(examples_per_second=10, bytes_per_second=100, latency_seconds=1)
    assert limits.shared_by(2) == Limits(5, 50, 1)


def test_a_source_that_hangs_raises_an_error_that_names_the_records():
    hangs = threading.Event()

    class Hangs(sources.ArraySource):
        def __getitems__(self, indices):
            if 3 in indices:
                hangs.set()
                threading.Event().wait()
            return super().__getitems__(indices)

    def clock():  # passes only once the source hangs
        return 100.0 if hangs.is_set() else 0.0

    watched = TimeoutSource(lambda _: Hangs(x=np.arange(9)), timeout=0.2, clock=clock)
    assert [record["x"] for record in watched.__getitems__([1, 2])] == [1, 2]
    with pytest.raises(Stalled, match=r"0\.2 s .*timeout.* record 3 and 1 others"):
        watched.__getitems__([3, 4])


def test_a_long_request_is_not_a_stall_while_examples_arrive():
    clock, looked = Clock(), threading.Event()

    def watched_clock():
        if clock.now > 100.31:
            looked.set()
        return clock.now

    def sleep(seconds):
        clock.sleep(seconds)
        if clock.now > 100.31:  # the watch must see that the whole request takes too long
            assert looked.wait(HANGS)

    def slow(arrived):
        line = RateLimiter(Limits(examples_per_second=20), lambda: clock.now, sleep)
        return SlowSource(sources.ArraySource(x=np.arange(9)), line, arrived)

    assert len(TimeoutSource(slow, 0.3, watched_clock).__getitems__(range(9))) == 9
    assert clock.now == pytest.approx(100.45, abs=0.021)


# ---- over HTTP


@pytest.mark.multiprocess
@pytest.mark.parametrize("name", ["digits_jpeg", "digit_scenes"])
def test_records_over_http_equal_the_local_ones(name):
    config = mini(dataset__name=name, upstream__http=True)
    served, held_out, _ = splits.open_data(config)
    local, _ = splits.open_source(name, "train")
    assert isinstance(served, http_source.HttpSource)
    assert not isinstance(held_out, http_source.HttpSource)
    assert len(served) == len(local)
    for request in ([5], [0, len(local) - 1, 7, 7]):
        for index, record in zip(request, served.__getitems__(request), strict=True):
            assert_same(record, local[index])


def assert_same(one, other):
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_same(one[key], other[key])
    else:
        assert type(one) is type(other)
        np.testing.assert_array_equal(one, other)
        assert np.asarray(one).dtype == np.asarray(other).dtype


@pytest.mark.multiprocess
def test_an_error_of_the_server_is_raised_by_the_reader():
    served = http_source.HttpSource(mini().dataset.to_dict())
    with pytest.raises(UpstreamError, match="IndexError"):
        served[1_000_000]
    assert_same(served[3], splits.open_source("digits", "train")[0][3])  # and it serves on
    served.server.kill()
    with pytest.raises(http_source.ServerLost, match=r"is gone .* record 3 "):
        served[3]


@pytest.mark.slow
def test_a_split_that_the_server_cannot_open_is_wrong_input():
    dataset = mini().dataset.to_dict() | {"train_split": "trian"}
    with pytest.raises(sources.SourceError, match="no split 'trian'"):
        http_source.HttpSource(dataset)


@pytest.mark.multiprocess
def test_the_server_ends_with_its_parent():
    program = (
        "from tests.helpers.runs import mini; from data.http_source import HttpSource\n"
        "import os; s = HttpSource(mini().dataset.to_dict())\n"
        "print(s.server.pid, flush=True); os.kill(os.getpid(), 9)"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", program],
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    with parent:
        # The server holds the same standard output's end no longer than it lives, and its own
        # connection to us is that output: reading to the end waits for both.
        pid = int(parent.stdout.readline())
    deadline = time.monotonic() + HANGS
    while _alive(pid):
        assert time.monotonic() < deadline, f"the server {pid} outlived its parent"
        time.sleep(0.05)


def _alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


# ---- whole runs


SLOW = {
    "echo__streams": 2,
    **echoing("before_augmentation", 100),
}


class UntilTheStall:
    """A clock that advances by the waits of a limited upstream, and on its own during a stall."""

    def __init__(self):
        self.now, self._over = 0.0, threading.Event()

    def __call__(self):
        return self.now

    def sleep(self, seconds):
        while seconds >= 1000.0 and not self._over.wait(0.001):
            self.now += 0.1
        if seconds < 1000.0 or self._over.is_set():
            self.now += seconds

    def end(self):
        self._over.set()


@pytest.fixture
def until_the_stall(monkeypatch):
    clock = UntilTheStall()
    stoppable = experiment.StoppableClock
    monkeypatch.setattr(experiment, "StoppableClock", lambda: stoppable(clock, clock.sleep))
    before = set(threading.enumerate())
    yield
    clock.end()
    for thread in set(threading.enumerate()) - before:
        if thread.name == "upstream":
            thread.join(HANGS)
            assert not thread.is_alive()  # or it would keep a core busy in all later tests


@pytest.mark.slow
def test_a_stall_fails_the_run_which_resumes_bit_for_bit(tmp_path, uninterrupted, until_the_stall):
    whole = mini(**SLOW)
    fields = SLOW | {
        "upstream__examples_per_second": 300.0,
        "upstream__stall_every_seconds": 1.0,
        "upstream__stall_seconds": 1e6,
        "upstream__timeout": 0.5,
    }
    result = train.train(mini(**fields), tmp_path / "run")
    assert result["status"] == "failed"
    assert "no example has arrived from upstream for 0.5 s" in result["error"]
    assert 0 < result["fresh_examples"] <= 306  # so many come before the stall
    assert latest_step(tmp_path / "run") == result["step"]
    assert train.train(whole, tmp_path / "run")["status"] == "exhausted"
    assert_equal_runs(whole, uninterrupted(whole), tmp_path / "run")


@pytest.mark.multiprocess
def test_a_server_that_dies_fails_the_run_which_resumes_bit_for_bit(tmp_path, uninterrupted):
    whole = mini(**SLOW)
    config = mini(**SLOW, upstream__http=True, upstream__examples_per_second=1000.0)

    def kill_servers(step):
        if step == 5:
            for server in servers:
                os.kill(server.pid, signal.SIGKILL)

    servers = []
    started = http_source.start_server
    try:
        http_source.start_server = lambda settings: servers.append(started(settings)) or servers[-1]
        result = train.train(config, tmp_path / "run", on_step=kill_servers)
    finally:
        http_source.start_server = started
    assert result["status"] == "failed"
    assert result["error"].startswith("ServerLost: the HTTP upstream")
    assert latest_step(tmp_path / "run") == result["step"] >= 5
    assert train.train(whole, tmp_path / "run")["status"] == "exhausted"
    assert_equal_runs(whole, uninterrupted(whole), tmp_path / "run")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"upstream__examples_per_second": -1.0}, r"upstream.examples_per_second is -1.0; allowed"),
        ({"upstream__jitter": 2.0}, r"upstream.jitter is 2.0; allowed"),
        ({"upstream__stall_seconds": 1.0}, r"stall_seconds is 1 with .*allowed: both"),
    ],
)
def test_wrong_settings_are_one_sentence(fields, message):
    with pytest.raises(cli.InputError, match=message):
        make_experiment(mini(**fields))


def test_limits_have_a_field_each():
    config = mini()
    names = {field.name for field in dataclasses.fields(Limits)} - {"seed"}
    assert set(config.upstream) == names | {"http", "timeout", "augmented_examples_per_second"}
