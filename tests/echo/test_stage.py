"""The Grain stage: its outputs, its reads, its errors, and how it stops and resumes."""

import gc
import json
import queue
import subprocess
import sys
import threading
import time
import weakref

import grain
import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from echo import (
    PLACEMENTS,
    EchoIterDataset,
    EchoSchedule,
    OpportunisticIterDataset,
    readers,
)
from echo.stage import DEFAULT_READ_OPTIONS
from tests.helpers.echo_parents import (
    KINDS,
    NO_THREADS,
    THREADS,
    Source,
    Stacked,
    no_garbage_collector,
    numbers,
    parent_of,
)
from tests.helpers.runs import HANGS, ROOT


def drained(dataset) -> list:
    iterator = iter(dataset)
    try:
        return list(iterator)
    finally:
        iterator.close()


def schedule_says(factor, buffer, seed, n) -> list[int]:
    return EchoSchedule(factor, buffer, seed).cursor(0, n).take(10_000)[0].tolist()


@pytest.mark.slow
@hypothesis.settings(max_examples=150, deadline=None)
@hypothesis.given(
    kind=st.sampled_from(KINDS),
    factor=st.sampled_from([1, 2, 1.5, "2.7", 16]),
    buffer=st.sampled_from([0, 1, 6, 200]),
    batch_size=st.sampled_from([None, 1, 4, 100]),
    n=st.integers(0, 40),
    drop=st.booleans(),
    threads=st.booleans(),
)
def test_it_emits_what_the_schedule_says(kind, factor, buffer, batch_size, n, drop, threads):
    parent, source = parent_of(kind, n)
    dataset = EchoIterDataset(
        parent,
        factor=factor,
        shuffle_buffer=buffer,
        seed=3,
        batch_size=batch_size,
        drop_remainder=drop,
        read_options=THREADS if threads else NO_THREADS,
    )
    items, expected = drained(dataset), schedule_says(factor, buffer, 3, n)
    if batch_size and drop:
        expected = expected[: len(expected) // batch_size * batch_size]
    assert numbers(items) == expected
    if batch_size:
        sizes = [len(batch["y"]) for batch in items]
        assert all(size == batch_size for size in sizes[:-1])
        assert all(batch["x"].shape == (len(batch["y"]), 3) for batch in items)
    for item in items:
        np.testing.assert_array_equal(item["x"], np.asarray(-item["y"])[..., None].repeat(3, -1))
    # Upstream works once for each fresh item, however many copies it has.
    assert sorted(source.reads) == list(range(n))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch_size", [None, 4])
def test_annotations_are_item_copy_and_fresh_count(kind, batch_size):
    parent, _ = parent_of(kind, 20)
    dataset = EchoIterDataset(
        parent, factor=2.5, shuffle_buffer=8, seed=1, batch_size=batch_size, annotate=True
    )
    schedule = EchoSchedule(2.5, 8, 1)
    fresh, copy = schedule.cursor(0, 20).take(50)
    position = 0
    for echoed in drained(dataset):
        size = batch_size or 1
        np.testing.assert_array_equal(np.ravel(echoed.index), fresh[position : position + size])
        np.testing.assert_array_equal(np.ravel(echoed.copy), copy[position : position + size])
        np.testing.assert_array_equal(-echoed.item["y"], echoed.index)
        position += size
        assert echoed.fresh == schedule.admitted(position, 20)
    assert position == 50 // size * size


def test_the_fresh_count_includes_the_prefill_and_excludes_read_ahead():
    parent, source = parent_of("map", 1_000)
    dataset = EchoIterDataset(
        parent, factor=2, shuffle_buffer=100, batch_size=10, annotate=True, read_options=THREADS
    )
    iterator = iter(dataset)
    fresh = [next(iterator).fresh for _ in range(3)]
    iterator.close()
    assert fresh == [55, 60, 65]  # ceil((100 + 10 k - 1) / 2)
    assert len(source.reads) >= 65


def test_no_more_items_of_a_sequential_parent_are_read_than_admitted():
    parent, source = parent_of("sequential", 100)
    dataset = EchoIterDataset(parent, factor=2, shuffle_buffer=10, batch_size=3, annotate=True)
    for echoed in dataset:
        assert len(source.reads) == echoed.fresh


def test_read_ahead_is_as_far_as_the_options_say():
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


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["map", "stacked", "sequential", "prefetched"])
@pytest.mark.parametrize("factor", [1, 2, 1.5])
@pytest.mark.parametrize("buffer", [0, 5])
@pytest.mark.parametrize("batch_size", [None, 3])
def test_it_can_be_restored_at_every_step(kind, factor, buffer, batch_size):
    parent, _ = parent_of(kind, 18)
    options = {"factor": factor, "shuffle_buffer": buffer, "seed": 2, "batch_size": batch_size}
    dataset = EchoIterDataset(parent, read_options=NO_THREADS, drop_remainder=False, **options)
    grain.experimental.assert_equal_output_after_checkpoint(dataset)


@pytest.mark.parametrize("parent_kind", ["map", "sequential"])
@pytest.mark.parametrize("buffer", [0, 3])
def test_batch_echoing_can_be_restored_at_every_step(parent_kind, buffer):
    parent, _ = parent_of(parent_kind, 26)
    dataset = EchoIterDataset(
        parent.batch(3), factor=1.5, shuffle_buffer=buffer, read_options=NO_THREADS, annotate=True
    )
    grain.experimental.assert_equal_output_after_checkpoint(dataset)


@pytest.mark.parametrize("kind", ["map", "sequential"])
def test_behind_a_prefetching_thread_it_can_be_restored_at_every_step(kind):
    parent, _ = parent_of(kind, 18)
    echoed = EchoIterDataset(
        parent, factor=1.5, shuffle_buffer=5, batch_size=3, read_options=THREADS, annotate=True
    ).map(lambda echoed: echoed.item)
    grain.experimental.assert_equal_output_after_checkpoint(
        grain.experimental.ThreadPrefetchIterDataset(echoed, prefetch_buffer_size=2)
    )


@pytest.mark.parametrize("read", [False, True])
@pytest.mark.parametrize("sequential_slice", [False, True])
def test_workers_of_grain_share_the_fresh_items(read, sequential_slice):
    examples = grain.MapDataset.range(12).map(lambda number: number + 1)
    parent = examples.to_iter_dataset(grain.ReadOptions(0, 0)) if read else examples
    stage = EchoIterDataset(parent, factor=2, shuffle_buffer=3).map(lambda number: number - 1)
    # What IterDataset.mp_prefetch does with processes.
    shared = grain.experimental.multithread_prefetch(stage, 3, 1, sequential_slice)
    assert sorted(drained(shared)) == sorted(drained(stage)) == [n for n in range(12) for _ in "ab"]


@pytest.mark.parametrize("batch_size", [None, 2])
@pytest.mark.parametrize("read", [False, True])
@pytest.mark.parametrize("sequential_slice", [False, True])
def test_workers_of_grain_number_the_fresh_items_of_all(batch_size, read, sequential_slice):
    examples = grain.MapDataset.range(12)
    parent = examples.to_iter_dataset(grain.ReadOptions(0, 0)) if read else examples
    stage = EchoIterDataset(
        parent, factor=2, shuffle_buffer=3, batch_size=batch_size, annotate=True
    )
    shared = drained(grain.experimental.multithread_prefetch(stage, 3, 1, sequential_slice))
    items, index, copy = (np.ravel([e[field] for e in shared]).tolist() for field in range(3))
    assert sorted(zip(index, copy, strict=True)) == [(n, c) for n in range(12) for c in range(2)]
    if not sequential_slice:  # which gives each worker a part of the source, not of what is read
        assert index == items
    assert shared[-1].fresh == 4  # of one worker


def test_slices_of_slices_keep_the_numbers_of_the_fresh_items():
    stage = EchoIterDataset(grain.MapDataset.range(24), factor=1, annotate=True)
    stage.set_slice(slice(1, None, 2))
    stage.set_slice(slice(2, None, 3))
    assert [(int(e.index), int(e.item)) for e in drained(stage)] == [
        (n, n) for n in (5, 11, 17, 23)
    ]


def test_a_parent_that_workers_cannot_share_is_refused():
    stage = EchoIterDataset(FlakyIterDataset(range(9)), factor=2)
    with pytest.raises(ValueError, match=r"workers cannot share .*, which has no slices"):
        grain.experimental.multithread_prefetch(stage, 3, 1)


@pytest.mark.parametrize("kind", ["map", "sequential"])
def test_a_state_is_small_json_of_fixed_structure(kind):
    parent, _ = parent_of(kind, 3_000)
    dataset = EchoIterDataset(parent, factor=3, shuffle_buffer=500, batch_size=32)
    iterator, structures = iter(dataset), set()
    for state in [iterator.get_state() for _ in iterator]:
        written = json.dumps(state)
        assert json.loads(written) == state
        assert len(written) < 200
        structures.add(str([(k, type(v)) for k, v in sorted(state.items())]))
    assert len(structures) == 1


PROGRAM = """
import json, sys
from echo import EchoIterDataset
from tests.helpers.echo_parents import numbers, parent_of
kind, batch_size = sys.argv[1], json.loads(sys.argv[2])
parent, _ = parent_of(kind, 40)
dataset = EchoIterDataset(parent, factor=2.5, shuffle_buffer=7, seed=4, batch_size=batch_size)
iterator = iter(dataset)
iterator.set_state(json.load(sys.stdin))
print(json.dumps(numbers(iterator)))
"""


@pytest.mark.long
@pytest.mark.multiprocess
@pytest.mark.parametrize(("kind", "batch_size"), [("map", 3), ("sequential", None)])
def test_another_process_resumes_between_copies(kind, batch_size):
    parent, _ = parent_of(kind, 40)
    iterator = iter(
        EchoIterDataset(parent, factor=2.5, shuffle_buffer=7, seed=4, batch_size=batch_size)
    )
    outputs = [next(iterator) for _ in range(17)]
    emitted = numbers(outputs)
    state = iterator.get_state()
    rest = numbers(iterator)
    assert set(emitted) & set(rest), "some item has copies on both sides"
    finished = subprocess.run(
        [sys.executable, "-c", PROGRAM, kind, json.dumps(batch_size)],
        input=json.dumps(state),
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=HANGS,
    )
    assert finished.returncode == 0, finished.stderr
    assert json.loads(finished.stdout) == rest


def test_a_state_can_be_restored_with_another_batch_size():
    parent, _ = parent_of("map", 20)
    options = {"factor": 2, "shuffle_buffer": 4, "seed": 1}
    iterator = iter(EchoIterDataset(parent, batch_size=6, **options))
    next(iterator)
    other = iter(EchoIterDataset(parent, batch_size=4, **options))
    other.set_state(iterator.get_state())
    assert numbers(other) == schedule_says(2, 4, 1, 20)[6:38]


def test_restoring_over_shorter_data_is_an_error():
    parent, _ = parent_of("sequential", 40)
    iterator = iter(EchoIterDataset(parent, factor=1, shuffle_buffer=4))
    for _ in range(30):
        next(iterator)
    shorter, _ = parent_of("sequential", 31)
    in_memory, _ = parent_of("map", 40)
    state = iter(EchoIterDataset(in_memory, factor=1)).get_state() | {"position": 30}
    with pytest.raises(
        ValueError, match="30 is beyond the end: 20 fresh items at factor 1 give 20"
    ):
        iter(EchoIterDataset(in_memory[:20], factor=1)).set_state(state)
    with pytest.raises(ValueError, match="ended after 31 items, but 33 had been read"):
        iter(EchoIterDataset(shorter, factor=1, shuffle_buffer=4)).set_state(iterator.get_state())


@pytest.mark.parametrize("kind", ["map", "chunks", "stacked"])
@pytest.mark.parametrize("options", [NO_THREADS, THREADS])
def test_restoring_rereads_only_pending_items(kind, options):
    parent, source = parent_of(kind, 400)
    dataset = EchoIterDataset(
        parent, factor=4, shuffle_buffer=50, seed=6, batch_size=10, read_options=options
    )
    iterator = iter(dataset)
    for _ in range(70):
        next(iterator)
    state = iterator.get_state()
    iterator.close()
    source.reads.clear()
    restored = iter(dataset)
    restored.set_state(state)
    schedule = EchoSchedule(4, 50, 6)
    cursor = schedule.cursor(700, 400)
    pending, admitted = set(cursor.live()), schedule.admitted(700)
    assert len(pending) < 50
    assert numbers(restored) == cursor.take(10_000)[0].tolist()
    assert sorted(source.reads) == sorted(pending | set(range(admitted, 400)))


def test_restoring_a_sequential_parent_reads_forward_from_near_the_oldest():
    parent, source = parent_of("sequential", 2_000)
    dataset = EchoIterDataset(parent, factor=2, shuffle_buffer=20)
    iterator = iter(dataset)
    for _ in range(3_000):
        next(iterator)
    state = iterator.get_state()
    source.reads.clear()
    iter(dataset).set_state(state)
    cursor = EchoSchedule(2, 20).cursor(3_000)
    assert max(source.reads) == 1_509  # admitted: (3_000 + 20) / 2
    assert cursor.oldest() - 16 < min(source.reads) <= cursor.oldest()
    assert len(source.reads) == len(set(source.reads))


def test_snapshots_do_not_accumulate():
    parent, _ = parent_of("sequential", 6_000)
    iterator = iter(EchoIterDataset(parent, factor=1, shuffle_buffer=4))
    for _ in range(5_000):
        next(iterator)
    assert len(iterator._pass.reader._snapshots) < 100


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("batch_size", [None, 2])
def test_changing_an_emitted_item_changes_nothing_else(kind, batch_size):
    shared = np.arange(12).repeat(3).reshape(12, 3)

    class InMemory(Source):
        def __getitem__(self, index):
            return {"x": shared[index], "y": np.int32(-index)}

    parent, _ = (
        parent_of(kind, 12, InMemory) if kind != "chunks" else parent_of("map", 12, InMemory)
    )
    dataset = EchoIterDataset(parent, factor=3, shuffle_buffer=4, seed=8, batch_size=batch_size)
    iterator = iter(dataset)
    for item in iterator:
        np.testing.assert_array_equal(item["x"], np.asarray(-item["y"])[..., None].repeat(3, -1))
        assert not np.shares_memory(item["x"], shared)
        item["x"][:] = -1
    np.testing.assert_array_equal(shared, np.arange(12)[:, None].repeat(3, 1))


@pytest.mark.parametrize("batch_size", [None, 4])
def test_a_sequential_source_may_reuse_its_buffer(batch_size):
    buffer = np.zeros(3, np.int64)

    def refill(index):
        buffer[:] = index
        return {"x": buffer, "y": np.int32(-index)}

    parent = grain.MapDataset.range(30).to_iter_dataset(grain.ReadOptions(0, 0)).map(refill)
    dataset = EchoIterDataset(parent, factor=2, shuffle_buffer=10, seed=5, batch_size=batch_size)
    for item in dataset:
        np.testing.assert_array_equal(item["x"], np.asarray(-item["y"])[..., None].repeat(3, -1))


@pytest.mark.parametrize("parent", [[1, 2], "data", None, range(3), np.arange(4)])
def test_parents_that_are_not_grain_data_sets_are_refused(parent):
    with pytest.raises(TypeError, match=r"parent has type \w+; allowed: a Grain MapDataset or I"):
        EchoIterDataset(parent, factor=2)


@pytest.mark.parametrize("kind", ["map", "sequential"])
def test_items_of_several_shapes_are_refused_only_in_batches(kind):
    parent = grain.MapDataset.range(8).map(lambda i: {"x": np.zeros(3 + i // 5)})
    if kind == "sequential":
        parent = parent.to_iter_dataset(grain.ReadOptions(0, 0))
    with pytest.raises(
        ValueError, match=r"fresh item 5 has leaves.*\(4,\).*leave batch_size out.*host"
    ):
        drained(EchoIterDataset(parent, factor=2, batch_size=2))
    lengths = [len(item["x"]) for item in EchoIterDataset(parent, factor=2)]
    assert lengths == [3] * 10 + [4] * 6


class Flaky(Source):
    """Fails once at each of some indices, then works."""

    def __init__(self, n, failing=(7,), times=1):
        super().__init__(n)
        self.failures = dict.fromkeys(failing, times)

    def __getitem__(self, index):
        if self.failures.get(index):
            self.failures[index] -= 1
            raise OSError(f"cannot read {index}")
        return super().__getitem__(index)


class FlakyIterator(grain.DatasetIterator):
    """Reads a Flaky source sequentially; after a failure it reads the same item again.

    Its state is one dict that it changes in place.
    """

    def __init__(self, source):
        super().__init__()
        self.source, self.state = source, {"next": 0}

    def __next__(self):
        if self.state["next"] == len(self.source):
            raise StopIteration
        item = self.source[self.state["next"]]
        self.state["next"] += 1
        return item

    def get_state(self):
        return self.state

    def set_state(self, state):
        self.state = dict(state)


class FlakyIterDataset(grain.IterDataset):
    def __init__(self, source):
        super().__init__()
        self.source = source

    def __iter__(self):
        return FlakyIterator(self.source)


def flaky_parent(kind, **options):
    if kind == "sequential":
        return FlakyIterDataset(Flaky(30, **options))
    return parent_of(kind, 30, lambda n: Flaky(n, **options))[0]


def within(seconds: float, function):
    """What `function()` returns or raises; an error instead of a hang."""
    done: queue.SimpleQueue = queue.SimpleQueue()

    def run():
        try:
            done.put((function(), None))
        except Exception as error:
            done.put((None, error))

    threading.Thread(target=run, daemon=True).start()
    value, error = done.get(timeout=seconds)
    if error is not None:
        raise error
    return value


def test_a_parent_may_change_a_state_that_it_returned():
    parent = flaky_parent("sequential", failing=())
    grain.experimental.assert_equal_output_after_checkpoint(EchoIterDataset(parent, factor=2))


def test_a_parent_may_change_a_state_that_it_was_given():
    parts = [grain.MapDataset.range(10 * k, 10 * k + 9).to_iter_dataset() for k in range(3)]
    interleaved = grain.experimental.InterleaveIterDataset(parts, cycle_length=2)
    dataset = EchoIterDataset(interleaved, factor=1.5, shuffle_buffer=4)
    iterator, restored = iter(dataset), iter(dataset)
    for _ in range(20):
        next(iterator)
    state = iterator.get_state()
    restored.set_state(state)
    list(restored)
    assert iterator.get_state() == state
    restored.set_state(state)
    assert list(restored) == list(iterator)


class Misshapen(Source):
    """Item 5 has another shape, as long as it is `wrong`."""

    wrong = True

    def __getitem__(self, index):
        item = super().__getitem__(index)
        return item | {"x": np.zeros(4, np.int64)} if self.wrong and index == 5 else item


@pytest.mark.parametrize("kind", ["map", "sequential"])
@pytest.mark.parametrize("placement", ["host", "device"])
@pytest.mark.parametrize("options", [NO_THREADS, THREADS])
def test_a_refused_item_is_the_same_error_each_time_until_it_is_restored(kind, placement, options):
    parent, source = parent_of(kind, 30, Misshapen)
    dataset = EchoIterDataset(
        parent,
        factor=2,
        shuffle_buffer=3,
        batch_size=2,
        annotate=True,
        read_options=options,
        placement=placement,
    )
    iterator, emitted, lengths = iter(dataset), [], set()
    with pytest.raises(ValueError, match="fresh item 5 has leaves"):
        emitted.extend(i for output in iterator for i in output.index.tolist())
    for _ in range(3):
        with pytest.raises(ValueError, match="fresh item 5 has leaves") as caught:
            next(iterator)
        lengths.add(len(caught.traceback))
    assert len(lengths) == 1
    state = iterator.get_state()
    iterator.set_state(state)
    with pytest.raises(ValueError, match="fresh item 5 has leaves"):
        next(iterator)
    source.wrong = False
    iterator.set_state(state)
    emitted += [i for output in iterator for i in output.index.tolist()]
    iterator.close()
    assert emitted == schedule_says(2, 3, 0, 30)


def reading_threads() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("echo-read")}


def gone(threads: set[threading.Thread]) -> bool:
    for thread in threads:
        thread.join(timeout=HANGS)
    return not any(thread.is_alive() for thread in threads)


@pytest.mark.parametrize("ending", ["closed", "dropped", "drained and closed"])
def test_threads_end(ending):
    before = reading_threads()
    parent, _ = parent_of("map", 500)
    iterator = iter(EchoIterDataset(parent, factor=2, batch_size=4, read_options=THREADS))
    for _ in range(3):
        next(iterator)
    mine = reading_threads() - before
    assert len(mine) == 3
    if ending.startswith("drained"):
        list(iterator)
    if ending.endswith("closed"):
        iterator.close()
        iterator.close()
        with pytest.raises(ValueError, match="closed iterator"):
            next(iterator)
    del iterator
    assert gone(mine)


def test_a_parent_that_cannot_be_iterated_over_is_one_error(monkeypatch):
    class Unreadable(grain.IterDataset):
        def __iter__(self):
            raise OSError("no such data")

    unraisable = []
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)
    with pytest.raises(OSError, match="no such data"):
        iter(EchoIterDataset(Unreadable(), factor=2))
    gc.collect()
    assert not unraisable


@pytest.mark.parametrize("batch_size", [None, 4])
def test_a_parent_that_raises_stop_iteration_does_not_end_the_stream(batch_size):
    def broken(number):
        return next(iter([] if number == 37 else [number]))

    parent = grain.MapDataset.range(100).map(broken)
    iterator = iter(EchoIterDataset(parent, factor=2, batch_size=batch_size, read_options=THREADS))
    with pytest.raises(RuntimeError, match=r"reading items .* raised StopIteration"):
        list(iterator)
    iterator.close()


def test_closing_closes_the_parent_too():
    parent, _ = parent_of("prefetched", 500)
    iterator = iter(EchoIterDataset(parent, factor=2))
    next(iterator)
    mine = {t for t in threading.enumerate() if t.name.startswith("grain-thread-prefetch")}
    assert mine
    iterator.close()
    assert gone(mine)


@pytest.mark.multiprocess
def test_a_program_ends_without_waiting_for_read_ahead():
    program = (
        "import threading, grain, echo\n"
        "held = threading.Event()\n"
        "parent = grain.MapDataset.range(10**6).map(lambda i: held.wait() if i >= 5 else i)\n"
        "iterator = iter(echo.EchoIterDataset(parent, factor=1))\n"
        "print([next(iterator) for _ in range(5)])\n"
    )
    finished = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=HANGS,
    )
    assert finished.stdout == "[0, 1, 2, 3, 4]\n", finished.stderr
    assert finished.returncode == 0, finished.stderr


@pytest.mark.multiprocess
def test_a_program_may_end_while_compiled_code_reads_ahead():
    program = (
        "import grain, jax, numpy as np, echo\n"
        "work = jax.jit(lambda x: x @ x)\n"
        "item = np.ones((500, 500), np.float32)\n"
        "parent = grain.MapDataset.range(10**6).map(lambda i: np.asarray(work(item))[0])\n"
        "iterator = iter(echo.EchoIterDataset(parent, factor=1))\n"
        "print(sum(next(iterator)[0] for _ in range(5)))\n"
    )
    finished = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=HANGS,
    )
    assert finished.stdout == "2500.0\n", finished.stderr
    assert finished.returncode == 0, finished.stderr


class Pictures(grain.transforms.Map):
    """Examples whose shapes and dtypes Grain knows in advance."""

    def map(self, element):
        return {"image": np.full((4, 3), element, np.uint8), "more": (np.float32(element),)}

    def output_spec(self, input_spec):
        del input_spec
        image = grain.experimental.ShapeDtypeStruct((4, 3), np.uint8)
        return {"image": image, "more": (grain.experimental.ShapeDtypeStruct((), np.float32),)}


def fits(spec, item):
    """Whether arrays have the shapes and dtypes of a spec, where None is any length."""
    if isinstance(spec, dict):
        return spec.keys() == item.keys() and all(fits(spec[k], item[k]) for k in spec)
    if isinstance(spec, tuple):
        same = type(spec) is type(item) and len(spec) == len(item)
        return same and all(map(fits, spec, item))
    array = np.asarray(item)
    lengths = zip(spec.shape, array.shape, strict=True)
    return array.dtype == spec.dtype and all(want in (None, length) for want, length in lengths)


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("annotate", [False, True])
@pytest.mark.parametrize(
    "batch", [{}, {"batch_size": 4}, {"batch_size": 4, "drop_remainder": False}]
)
def test_the_element_spec_is_that_of_the_outputs(batch, annotate, placement):
    parent = grain.MapDataset.range(7).map(Pictures())
    given = {"annotate": annotate, "placement": placement}
    stages = [EchoIterDataset(parent, factor=2, shuffle_buffer=3, **batch, **given)]
    if "drop_remainder" not in batch:
        stages.append(
            OpportunisticIterDataset(parent, max_factor=2, shuffle_buffer=3, **batch, **given)
        )
    for stage in stages:
        spec = grain.experimental.get_element_spec(stage)
        outputs = drained(stage)
        assert outputs
        assert all(fits(spec, output) for output in outputs)


def test_the_element_spec_is_unknown_where_that_of_the_parent_is():
    parent = grain.MapDataset.range(7).map(lambda number: number)
    with pytest.raises(ValueError, match="Cannot infer element spec"):
        grain.experimental.get_element_spec(EchoIterDataset(parent, factor=2))


def test_the_element_spec_names_the_batch_as_grains_own_does():
    parent = grain.MapDataset.range(7).map(Pictures())
    for drop in (True, False):
        stage = EchoIterDataset(parent, factor=2, batch_size=4, drop_remainder=drop)
        expected = parent.batch(4, drop_remainder=drop)
        specs = map(grain.experimental.get_element_spec, (stage, expected))
        assert next(specs) == next(specs)


def test_slow_items_are_not_gathered_into_long_chunks(monkeypatch):
    asked, now = [], [0.0]

    class Slow(Source):
        def _getitems(self, indices):
            asked.append(len(indices))
            now[0] += 0.02 * len(indices)
            return [self[index] for index in indices]

    monkeypatch.setattr(readers.time, "perf_counter", lambda: now[0])
    parent = grain.MapDataset.source(Slow(60))
    drained(EchoIterDataset(parent, factor=1, read_options=NO_THREADS))
    assert asked == [1, 2, 4, 8, 16, 16, 13]  # sixteen take more than a quarter of a second


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


@pytest.mark.parametrize("kind", ["map", "sequential"])
def test_an_iterator_frees_its_items_without_the_garbage_collector(kind):
    parent, _ = parent_of(kind, 100)
    iterator = iter(EchoIterDataset(parent, factor=2, shuffle_buffer=9, read_options=NO_THREADS))
    next(iterator)
    store = weakref.ref(iterator._pass.store)
    with no_garbage_collector():
        del iterator
        assert store() is None


def test_read_ahead_of_large_items_is_bounded_in_bytes():
    parent = grain.MapDataset.range(100).map(lambda i: np.zeros(2**20, np.uint8))
    iterator = iter(EchoIterDataset(parent, factor=1))
    next(iterator)
    next(iterator)
    assert 16 < len(iterator._pass.reader._chunks) <= 64  # more than a thread reads at a time
    iterator.close()


def test_by_default_as_many_threads_read_as_with_grain_alone():
    """So a source that waits is read no slower through a stage than without one."""
    assert DEFAULT_READ_OPTIONS.num_threads == grain.ReadOptions().num_threads


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
    while reader.next_index < 500:
        reader.read(1, None)
    while len(reader.read(1, None)[0]) > 5:  # requested before the first large items came
        pass
    assert reader.next_index < 1_500
    while reader.next_index < 2_000:
        assert len(reader.read(1, None)[0]) == 5
        assert sum(len(indices) for indices, _ in reader._chunks) <= 20
    reader.close()
