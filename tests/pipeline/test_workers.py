"""Worker processes give the examples that this process would, and end with it."""

import dataclasses
import os
import pathlib
import random
import signal
import threading
import time

import numpy as np
import pytest

from data.sources import DatasetInfo, RecordError
from pipeline import build, workers
from runs import cli
from runs.signals import STOPS
from tests.helpers.runs import (
    HANGS,
    assert_equal_runs,
    echoing,
    flags,
    held_training,
    mini,
    run_command,
)
from training import check
from training.experiment import make_experiment


class Squares:
    """Item i is [i*i, ...] and its number; item 13 is damaged."""

    def __init__(self, width: int):
        self._width = width

    def stacked_items(self, indices):
        if 13 in indices:
            raise RecordError("record 13 cannot be read")
        index_n = np.asarray(indices, np.int64)
        return {"square": np.repeat(index_n[:, None] ** 2, self._width, 1), "index": index_n}


@pytest.fixture(scope="module")
def pool():
    return workers.Workers(Squares, count=2)


def asked(pool, width, indices):
    return pool.stacked_items(width, indices, Squares(width).stacked_items([0]))


def asked_without_end(*arguments):
    while True:
        asked(*arguments)


def same(arrays, expected) -> bool:
    return arrays.keys() == expected.keys() and all(
        np.array_equal(arrays[name], expected[name]) and arrays[name].dtype == expected[name].dtype
        for name in expected
    )


@pytest.mark.parametrize("width", [1, 7, 2**17])
def test_arrays_are_those_of_this_process(pool, width):
    """Also of several chunks, while others are in use, and in memory that is used again."""
    examples = Squares(width)
    indices = [[4], range(20, 157), [5, 4, 3], np.arange(40, 44), [99, 1], range(20, 85), []]
    for _ in range(2):
        kept = [asked(pool, width, some) for some in indices]
        assert all(
            same(arrays, examples.stacked_items(some))
            for arrays, some in zip(kept, indices, strict=True)
        )
        assert all(array.ctypes.data % 64 == 0 for arrays in kept for array in arrays.values())


def test_a_view_keeps_its_memory(pool):
    rows = asked(pool, 3, [6, 7])["square"][1:]
    for _ in range(10):
        asked(pool, 3, [8, 9])
    assert rows.tolist() == [[49, 49, 49]]


def test_an_error_comes_from_the_worker_and_the_next_chunk_is_right(pool):
    for indices in ([12, 13], range(200)):
        with pytest.raises(RecordError, match="13"):
            asked(pool, 1, indices)
    assert same(asked(pool, 1, [14]), Squares(1).stacked_items([14]))


def test_arrays_unlike_the_others_are_refused(pool):
    with pytest.raises(ValueError, match="same names"):
        pool.stacked_items(3, [1], Squares(2).stacked_items([0]))


@pytest.mark.parametrize("at_work", [False, True])
def test_a_killed_worker_is_an_error(at_work):
    one = workers.Workers(Squares, count=1)
    asked(one, 1, [0])
    (process,) = one._processes
    if at_work:
        threading.Timer(0.2, process.kill).start()
    else:
        process.kill()
        process.wait()
    with pytest.raises(workers.WorkerError, match="SIGKILL"):
        asked_without_end(one, 1, [1])


def test_a_signal_to_a_whole_job_ends_no_worker(pool):
    asked(pool, 1, range(14, 400))
    for process in pool._processes:
        for number in (signal.SIGINT, signal.SIGHUP, *STOPS):
            process.send_signal(number)
    for _ in range(9):
        assert same(asked(pool, 1, [3]), Squares(1).stacked_items([3]))
    assert {process.poll() for process in pool._processes} == {None}


def test_an_interrupted_request_is_not_answered_to_the_next(pool):
    def interrupted(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupted)
    signal.setitimer(signal.ITIMER_REAL, 0.01)
    try:
        with pytest.raises(KeyboardInterrupt):
            asked_without_end(pool, 2**17, range(14, 200))
    finally:
        signal.signal(signal.SIGALRM, before)
    assert same(asked(pool, 1, [3]), Squares(1).stacked_items([3]))


def test_a_signal_that_is_handled_interrupts_no_request(pool):
    before = signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    try:
        for _ in range(3):
            arrays = asked(pool, 2**17, range(14, 200))
            assert arrays["index"].tolist() == [*range(14, 200)]
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.long
@pytest.mark.parametrize("number", range(8))
def test_after_a_kill_nothing_is_left_and_the_run_resumes_bit_for_bit(
    number, tmp_path, uninterrupted
):
    rng = random.Random(number)
    insertion = rng.choice(["none", "before_augmentation", "after_augmentation", "after_batching"])
    settings = echoing(insertion, 0 if insertion == "none" else 4) | {
        "budget__fresh_examples": 3200
    }
    config, workdir = mini(**settings, loader__workers=2), tmp_path / "run"
    words = ["--config=configs/cifar10.py:mini", f"--workdir={workdir}", *flags(config)]
    shared = set(os.listdir("/dev/shm"))
    with held_training(rng.randrange(1, 60), *words) as parent:
        children = pathlib.Path(f"/proc/{parent.pid}/task").glob("*/children")
        pids = [int(pid) for path in children for pid in path.read_text().split()]
        assert len(pids) == 2
        os.kill(rng.choice([parent.pid, *pids]), signal.SIGKILL)
        parent.communicate(timeout=HANGS)
    while any(map(alive, pids)):  # the test's own time limit ends this
        time.sleep(0.05)
    left = set(os.listdir("/dev/shm")) - shared
    assert {name for name in left if not name.startswith("sem.")} == set()  # of other programs
    again = run_command("train.py", *words)
    assert again.returncode == 0, again.stderr
    assert_equal_runs(config, uninterrupted(mini(**settings)), workdir)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = pathlib.Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] != "Z"


def test_workers_are_chosen_for_long_runs_on_photographs_with_many_cores(monkeypatch):
    photographs = DatasetInfo("x", "1", "", num_classes=2, channels=3)
    small, text = (
        dataclasses.replace(photographs, **own)
        for own in ({"image_shape": (32, 32, 3)}, {"channels": None, "vocabulary_size": 100})
    )

    def chosen(cores, info=photographs, **fields):
        monkeypatch.setattr(build, "CORES", cores)
        flags = [f"--config.{k.replace('__', '.')}={value}" for k, value in fields.items()]
        return build.chosen_workers(cli.load_config("configs/imagenet.py", flags)[0], info)

    many = build.MIN_CORES
    assert [chosen(cores) for cores in (1, many - 1, many, 16)] == [0, 0, many, 16]
    assert [chosen(16, info) for info in (small, text)] == [0, 0]
    least = build.MIN_EXAMPLES
    assert [chosen(16, budget__fresh_examples=n) for n in (least - 1, least)] == [0, 16]
    assert chosen(16, upstream__examples_per_second=10) == chosen(16, dataset__damaged="skip") == 0
    assert [chosen(1, small, loader__workers=n) for n in (0, 2)] == [0, 2]
    monkeypatch.setattr(build, "AVAILABLE", False)
    assert chosen(16) == 0


def test_a_system_without_memory_for_workers_refuses_them(monkeypatch):
    monkeypatch.setattr(check, "AVAILABLE", False)
    config = cli.load_config("configs/imagenet.py", ["--config.loader.workers=-1"])[0]
    check.check_rules(config)
    config.loader.workers = 1
    with pytest.raises(check.ConfigError, match=r"loader\.workers"):
        check.check_rules(config)


@pytest.mark.parametrize(
    "number", [0, *(pytest.param(n, marks=pytest.mark.long) for n in range(1, 20))]
)
def test_batches_and_states_of_a_run_are_those_of_threads(number, monkeypatch):
    """Under settings drawn at random, whatever JAX is told in the environment; continued from each
    state, too."""
    for name, value in {"ENABLE_X64": "1", "DEFAULT_PRNG_IMPL": "rbg"}.items():
        monkeypatch.setenv(f"JAX_{name}", value)
    rng = random.Random(number)
    insertion = ("before_augmentation", "none", "after_augmentation", "after_batching")[number % 4]
    fields = {
        "echo.insertion": insertion,
        "echo.factor": 1 if insertion == "none" else rng.choice([1.5, 2, 3]),
        "echo.streams": rng.choice([1, 2]),
        "echo.shuffle_buffer": 0 if insertion == "none" else rng.choice([0, 4]),
        "batch_size": rng.choice([16, 32, 80]),
        "seed.data": number,
        "dataset.fused_decode": insertion != "before_augmentation" and rng.random() < 0.5,
        "budget.fresh_examples": 320,
        "prefetch": rng.choice([0, 2]),
    }
    flags = [f"--config.{name}={value}" for name, value in fields.items()]

    def experiment(count):
        own = f"--config.loader.workers={count}"
        return make_experiment(cli.load_config("configs/imagenet.py:mini", [*flags, own])[0])

    threads, processes = experiment(0), experiment(1)
    again, one, other = iter(processes.batches), iter(threads.batches), iter(processes.batches)
    steps, state = 0, one.get_state()
    for batch in one:
        again.set_state(state)
        assert_equal(batch, next(again))
        assert_equal(batch, next(other))
        state = one.get_state()
        assert state == other.get_state() == again.get_state()
        steps += 1
    assert steps >= 3
    assert next(other, None) is None


def assert_equal(batch, other):
    assert same(batch.data, other.data)
    assert (batch.index == other.index).all()
    assert (batch.copy == other.copy).all()
    assert batch.fresh_examples == other.fresh_examples
