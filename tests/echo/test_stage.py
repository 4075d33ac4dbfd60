"""The Grain stage: it emits what the schedule says, and stops, resumes, and fails without loss."""

import contextlib
import json
import threading
import time
import types
import weakref
from concurrent.futures import ThreadPoolExecutor

import grain
import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from echo import EchoIterDataset, EchoSchedule, readers
from echo.sequential import SNAPSHOT_EVERY
from echo.stage import DEFAULT_READ_OPTIONS
from tests.helpers.echo_parents import (
    KINDS,
    NO_THREADS,
    RANDOM_ACCESS,
    THREADS,
    Source,
    Stacked,
    gone,
    numbers,
    on_device,
    parent_of,
    reading_threads,
)
from tests.helpers.runs import HANGS, run_python


def drained(dataset) -> list:
    iterator = iter(dataset)
    try:
        return list(iterator)
    finally:
        iterator.close()


def schedule_says(factor, buffer, seed, n) -> list[int]:
    return EchoSchedule(factor, buffer, seed).cursor(0, n).take(10_000)[0].tolist()


def emitted(output):
    """An annotated output as (items, copies, fresh count), after checks of its example."""
    batch = output.item
    y = np.ravel(batch["y"])
    np.testing.assert_array_equal(np.ravel(output.index), -y)
    np.testing.assert_array_equal(np.reshape(batch["x"], (-1, 3)), -y[:, None].repeat(3, 1))
    if isinstance(batch["x"], np.ndarray):
        assert (batch["x"].dtype, batch["y"].dtype) == (np.int64, np.int32)
        batch["x"][:] = -1  # which changes no other copy
    return y.tolist(), np.ravel(output.copy).tolist(), output.fresh


@hypothesis.settings(max_examples=150, deadline=None)
@hypothesis.given(
    kind=st.sampled_from(KINDS),
    factor=st.sampled_from([1, 2, 1.5, "2.7", 16]),
    buffer=st.sampled_from([0, 1, 6, 200]),
    batch_size=st.sampled_from([None, 1, 4, 10]),
    n=st.integers(0, 60),
    drop=st.booleans(),
    threads=st.booleans(),
    placement=st.sampled_from(["host", "host", "host", on_device]),
    cut=st.floats(0, 1),
)
def test_it_emits_what_the_schedule_says_and_resumes_anywhere(
    kind, factor, buffer, batch_size, n, drop, threads, placement, cut
):
    drop = drop or placement is on_device  # another length would be compiled
    parent, source = parent_of(kind, n)
    dataset = EchoIterDataset(
        parent,
        factor=factor,
        shuffle_buffer=buffer,
        seed=3,
        batch_size=batch_size,
        drop_remainder=drop,
        annotate=True,
        read_options=THREADS if threads else NO_THREADS,
        placement=placement,
    )
    schedule, size = EchoSchedule(factor, buffer, 3), batch_size or 1
    fresh, copies = schedule.cursor(0, n).take(10_000)
    expected = []
    for start in range(0, len(fresh), size):
        part = slice(start, min(start + size, len(fresh)))
        if part.stop - start == size or not drop or not batch_size:
            admitted = schedule.admitted(part.stop, n)
            expected.append(((-fresh[part]).tolist(), copies[part].tolist(), admitted))
    iterator, cut = iter(dataset), round(cut * len(expected))
    outputs = [emitted(next(iterator)) for _ in range(cut)]
    state = iterator.get_state()
    assert len(json.dumps(state)) < 200
    iterator.close()
    reads_before, source.reads[:] = sorted(source.reads), []

    resumed = iter(dataset)
    resumed.set_state(json.loads(json.dumps(state)))
    assert resumed.get_state() == state
    outputs += [emitted(output) for output in resumed]
    resumed.close()
    assert outputs == expected
    assert source.x[:, 0].tolist() == list(range(n))
    # Upstream works once for each fresh item, and again for those that are pending.
    position = min(cut * size, len(fresh))
    admitted, pending = schedule.admitted(position, n), set(schedule.cursor(position, n).pending())
    assert reads_before[:admitted] == list(range(admitted))
    assert len(set(reads_before)) == len(reads_before)
    if kind in RANDOM_ACCESS:
        assert sorted(source.reads) == sorted(pending | set(range(admitted, n)))
    elif len(outputs) > cut:
        first = min(pending, default=admitted)
        assert len(source.reads) == len(set(source.reads))
        assert min(source.reads, default=first) > first - 2 * SNAPSHOT_EVERY


@pytest.mark.parametrize("kind", ["map", "sequential", "prefetched"])
@pytest.mark.parametrize("buffer", [0, 3])
def test_grains_own_check_restores_it_at_every_step(kind, buffer):
    options = {"factor": 1.5, "shuffle_buffer": buffer, "read_options": NO_THREADS}
    dataset = EchoIterDataset(parent_of(kind, 26)[0].batch(3), annotate=True, **options)
    grain.experimental.assert_equal_output_after_checkpoint(dataset)
    examples = EchoIterDataset(parent_of(kind, 18)[0], batch_size=3, annotate=True, **options)
    grain.experimental.assert_equal_output_after_checkpoint(
        grain.experimental.ThreadPrefetchIterDataset(
            examples.map(lambda echoed: echoed.item), prefetch_buffer_size=2
        )
    )


def test_what_is_read_is_as_far_as_the_options_say():
    parent, source = parent_of("sequential", 100)
    options = {"factor": 2, "annotate": True}
    for echoed in EchoIterDataset(parent, shuffle_buffer=10, batch_size=3, **options):
        assert len(source.reads) == echoed.fresh  # nothing ahead of a sequential parent
    iterator = iter(EchoIterDataset(parent_of("sequential", 2_000)[0], factor=1))
    assert len(list(iterator)) == 2_000
    assert len(iterator._pass.reader._snapshots) < 100
    parent, source = parent_of("map", 2_000)
    options = grain.ReadOptions(num_threads=2, prefetch_buffer_size=32)
    iterator = iter(EchoIterDataset(parent, factor=1, annotate=True, read_options=options))
    for _ in range(500):
        fresh = next(iterator).fresh
    while not all(future.done() for _, future in iterator._pass.reader._chunks):
        time.sleep(0.01)
    ahead = len(source.reads) - fresh
    iterator.close()
    assert 16 <= ahead <= 32 + 8  # and what is left of the chunk in use
    assert DEFAULT_READ_OPTIONS.num_threads == grain.ReadOptions().num_threads


@pytest.mark.parametrize("read", [False, True])
@pytest.mark.parametrize("sequential_slice", [False, True])
def test_workers_of_grain_share_the_fresh_items(read, sequential_slice):
    examples = grain.MapDataset.source(range(12))
    parent = examples.to_iter_dataset(grain.ReadOptions(0, 0)) if read else examples
    stage = EchoIterDataset(parent, factor=2, shuffle_buffer=3)
    # What IterDataset.mp_prefetch does with processes.
    shared = drained(grain.experimental.multithread_prefetch(stage, 3, 1, sequential_slice))
    assert sorted(shared) == [n for n in range(12) for _ in "ab"]


def test_workers_of_grain_share_all_parents_or_are_refused():
    read = [grain.MapDataset.range(n, n + 6).to_iter_dataset() for n in (0, 6)]
    stage = EchoIterDataset(grain.IterDataset.mix(read), factor=2)
    shared = drained(grain.experimental.multithread_prefetch(stage, 2, 1))
    assert sorted(shared) == [n for n in range(12) for _ in "ab"]
    with pytest.raises(TypeError, match="Changing"):
        EchoIterDataset(Changing(9), factor=2).set_slice(slice(0, None, 2))


def test_a_state_can_be_restored_with_another_batch_size_and_where_it_was():
    parent, _ = parent_of("chunks", 200)  # of which several batches are settled at once
    options = {"factor": 2, "shuffle_buffer": 4, "seed": 1, "read_options": NO_THREADS}
    iterator = iter(EchoIterDataset(parent, batch_size=6, **options))
    outputs = [next(iterator) for _ in range(20)]
    state, expected = iterator.get_state(), schedule_says(2, 4, 1, 200)
    other = iter(EchoIterDataset(parent, batch_size=4, **options))
    other.set_state(state)
    assert numbers(outputs) + numbers(other) == expected
    next(iterator)
    iterator.set_state(state)
    assert numbers(outputs) + numbers(iterator) == expected[:396]


@pytest.mark.parametrize("kind", ["map", "sequential"])
def test_restoring_over_shorter_data_is_refused_until_another_state_comes(kind):
    iterator = iter(EchoIterDataset(parent_of(kind, 40)[0], factor=1, shuffle_buffer=4))
    for _ in range(30):
        next(iterator)
    shorter = iter(EchoIterDataset(parent_of(kind, 20)[0], factor=1, shuffle_buffer=4))
    start = shorter.get_state()
    with pytest.raises(ValueError, match="20"):
        shorter.set_state(iterator.get_state())
    if kind == "sequential":  # whose end is known only when it has been read
        with pytest.raises(ValueError, match="20"):
            next(shorter)
        shorter.set_state(start)
    assert numbers(shorter) == schedule_says(1, 4, 0, 20)


class Changing(grain.IterDataset):
    """Numbers, read one by one. Its state is one dict, which it changes in place."""

    def __init__(self, n, fails_at=None):
        super().__init__()
        self.n, self.fails_at = n, fails_at

    def __iter__(self):
        return ChangingIterator(self)


class ChangingIterator(grain.DatasetIterator):
    def __init__(self, dataset):
        super().__init__()
        self.dataset, self.state = dataset, {"next": 0}

    def __next__(self):
        number = self.state["next"]
        if number == self.dataset.n:
            raise StopIteration
        self.state["next"] += 1
        if number == self.dataset.fails_at:  # and is past the item
            raise OSError(f"cannot read {number}")
        return {"y": np.int32(-number)}

    def get_state(self):
        return self.state

    def set_state(self, state):
        self.state = state


def test_a_parent_may_change_its_states():
    dataset = EchoIterDataset(Changing(30), factor=2)
    grain.experimental.assert_equal_output_after_checkpoint(dataset)
    parts = [grain.MapDataset.range(10 * k, 10 * k + 9).to_iter_dataset() for k in range(3)]
    interleaved = grain.experimental.InterleaveIterDataset(parts, cycle_length=2)
    dataset = EchoIterDataset(interleaved, factor=1.5, shuffle_buffer=4)
    iterator, restored = iter(dataset), iter(dataset)
    for _ in range(20):
        next(iterator)
    state = iterator.get_state()
    for _ in range(2):
        restored.set_state(state)
        rest = list(restored)
    assert iterator.get_state() == state
    assert rest == list(iterator)


class Flaky(Source):
    """Fails at one index, or gives an item of another shape, until it is fixed."""

    wrong = None

    def __getitem__(self, index):
        item = super().__getitem__(index)
        if index == 7 and self.wrong == "error":
            raise OSError("cannot read 7")
        return item | {"x": np.zeros(4)} if index == 7 and self.wrong == "shape" else item


@pytest.mark.parametrize("kind", ["map", "chunks", "sequential"])
@pytest.mark.parametrize("wrong", ["error", "shape"])
@pytest.mark.parametrize("options", [NO_THREADS, THREADS])
@pytest.mark.parametrize("placement", ["host", on_device])
def test_after_an_error_no_item_is_skipped(kind, wrong, options, placement):
    parent, source = parent_of(kind, 30)
    source.__class__ = type("FlakySource", (Flaky, type(source)), {})
    source.wrong = wrong
    dataset = EchoIterDataset(
        parent,
        factor=2,
        shuffle_buffer=3,
        batch_size=2,
        annotate=True,
        read_options=options,
        placement=placement,
    )
    iterator, index = iter(dataset), []
    for _ in range(2):
        with pytest.raises((OSError, ValueError), match="7"):
            index.extend(i for output in iterator for i in output.index.tolist())
    state = iterator.get_state()
    source.wrong = None
    resumed = iter(dataset)
    resumed.set_state(state)
    for same in (resumed, iterator):
        same.set_state(state)
        rest = [i for output in same for i in output.index.tolist()]
        assert index + rest == schedule_says(2, 3, 0, 30)
        same.close()


def test_a_parent_past_the_item_that_failed_is_not_read_on():
    iterator = iter(EchoIterDataset(Changing(30, fails_at=7), factor=2))
    items = []
    for _ in range(2):
        with pytest.raises(OSError, match="cannot read 7"):
            items.extend(iterator)
    resumed = iter(EchoIterDataset(Changing(30), factor=2))
    resumed.set_state(iterator.get_state())
    assert numbers([*items, *resumed]) == schedule_says(2, 0, 0, 30)


def test_parents_and_items_that_cannot_be_echoed_are_refused():
    dropped = parent_of("map", 10)[0].filter(lambda item: item["y"] != -6)
    with pytest.raises(ValueError, match="to_iter_dataset"):
        drained(EchoIterDataset(dropped, factor=2))
    kept = EchoIterDataset(dropped.to_iter_dataset(), factor=2, batch_size=2)
    assert numbers(drained(kept)) == [i for i in range(10) if i != 6 for _ in range(2)]

    def broken(number):
        return next(iter([] if number == 37 else [number]))

    for batch_size in (None, 4):
        stage = EchoIterDataset(
            grain.MapDataset.range(100).map(broken), factor=2, batch_size=batch_size
        )
        with pytest.raises(RuntimeError, match="StopIteration"):
            drained(stage)
    several = grain.MapDataset.range(8).map(lambda i: {"x": np.zeros(3 + i // 5)})
    with pytest.raises(ValueError, match="fresh item 5"):
        drained(EchoIterDataset(several, factor=2, batch_size=2))
    lengths = [len(item["x"]) for item in EchoIterDataset(several, factor=2)]
    assert lengths == [3] * 10 + [4] * 6


@pytest.mark.parametrize("drained", [False, True])
def test_closing_ends_the_threads(drained):
    before = reading_threads()
    parent, _ = parent_of("map", 500)
    iterator = iter(EchoIterDataset(parent, factor=2, batch_size=4, read_options=THREADS))
    next(iterator)
    mine = reading_threads() - before
    assert len(mine) == 3
    if drained:
        list(iterator)
    for _ in range(2):
        iterator.close()
    with pytest.raises(ValueError, match="closed"):
        next(iterator)
    assert gone(mine)


def test_closing_closes_the_parent():
    iterator = iter(EchoIterDataset(parent_of("prefetched", 500)[0], factor=2))
    next(iterator)
    mine = {t for t in threading.enumerate() if t.name.startswith("grain-thread-prefetch")}
    assert mine
    iterator.close()
    assert gone(mine)


@pytest.mark.parametrize("kind", ["map", "sequential"])
def test_several_threads_may_share_an_iterator(kind):
    options = {"factor": 2, "shuffle_buffer": 9, "annotate": True}
    iterator = iter(EchoIterDataset(parent_of(kind, 300)[0], **options))
    with ThreadPoolExecutor(4) as pool:
        parts = [pool.submit(list, iterator) for _ in range(4)]
    outputs = [output for part in parts for output in part.result()]
    assert sorted(numbers(x.item for x in outputs)) == [i for i in range(300) for _ in "ab"]
    position = {(int(x.index), int(x.copy)): x.fresh for x in outputs}
    alone = EchoIterDataset(parent_of(kind, 300)[0], **options)
    assert position == {(int(x.index), int(x.copy)): x.fresh for x in alone}


PROGRAM = """
import threading, grain, jax, numpy as np, echo
held, work, item = threading.Event(), jax.jit(lambda x: x @ x), np.ones((500, 500), np.float32)
def read(i):
    if i >= 5 and i % 2:
        held.wait()
    return np.asarray(work(item))[0]
iterator = iter(echo.EchoIterDataset(grain.MapDataset.range(10**6).map(read), factor=1))
print(int(sum(next(iterator)[0] for _ in range(5)) / 250))
"""


def test_a_program_may_end_while_threads_wait_and_run_compiled_code():
    finished = run_python(["-c", PROGRAM])
    assert (finished.returncode, finished.stdout) == (0, "10\n"), finished.stderr


def test_items_are_released_after_their_last_copy():
    class Item:
        def __deepcopy__(self, memo):
            return "a copy"

    alive = weakref.WeakSet()

    def read(index):
        alive.add(item := Item())
        return item

    parent = grain.MapDataset.range(300).map(read)
    iterator = iter(EchoIterDataset(parent, factor=2, shuffle_buffer=5, read_options=THREADS))
    assert list(iterator) == ["a copy"] * 600
    end = time.monotonic() + HANGS
    while alive:  # a thread may be about to let go of its last one
        assert time.monotonic() < end
        time.sleep(0.05)
    iterator.close()


class Growing(Stacked):
    """Items of one element, and from item 500 on of 1,000."""

    def __getitem__(self, index):
        return self.stacked_items(np.asarray([index]))["x"][0]

    def stacked_items(self, indices):
        return {"x": np.zeros((len(indices), 1000 if indices[-1] >= 500 else 1), np.uint8)}


@pytest.mark.parametrize("stacked", [False, True])
def test_read_ahead_and_chunks_are_bounded_by_the_largest_items_so_far(stacked, monkeypatch):
    monkeypatch.setattr(readers, "READ_AHEAD_BYTES", 20_000)
    reader = readers.RandomAccessReader(Growing(range(3_000)), 2, 400, stacked=stacked)
    with contextlib.closing(reader):
        while reader.next_index < 500:
            reader.read(1, None)
        while len(reader.read(1, None)[0]) > 4:  # requested before the first large items came
            pass
        assert reader.next_index < 1_500
        while reader.next_index < 2_000:
            assert len(reader.read(1, None)[0]) == 4
            assert sum(len(indices) for indices, _ in reader._chunks) <= 20


@pytest.mark.parametrize(("first", "others", "size"), [(9.0, 0.0011, 128), (0.1, 0.1, 2)])
def test_chunks_grow_after_a_slow_start_and_not_where_items_are_slow(
    first, others, size, monkeypatch
):
    """By a clock of its own, on which reading an item takes so many seconds."""
    now = 0.0

    class Timed(Growing):
        def stacked_items(self, indices):
            nonlocal now
            now += others * len(indices) if indices[0] else first
            return super().stacked_items(indices)

    monkeypatch.setattr(readers, "time", types.SimpleNamespace(perf_counter=lambda: now))
    reader = readers.RandomAccessReader(Timed(range(10**6)), 0, 400, stacked=True)
    for _ in range(9):
        indices, _ = reader.read(1, None)
    assert len(indices) == size
