"""The auto order: its outputs given the decisions, and that it waits only when it should.

A decision of the stage never makes a batch contain an item twice. Recorded ones may, so the order
that follows from decisions is tested with such decisions, too.
"""

import collections
import itertools
import json
import queue
import threading
from concurrent.futures import ThreadPoolExecutor

import grain
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import echo
from echo import readers
from echo.auto import AutoOrder, Repeats
from tests.helpers.echo_parents import KINDS, PlanApplier, parent_of
from tests.helpers.runs import HANGS

# With this short read-ahead each chunk is one item, ready as soon as it has arrived.
READ = grain.ReadOptions(num_threads=2, prefetch_buffer_size=4)


class Reference:
    """The semantics as a person would write them down: lists, one item at a time."""

    def __init__(self, max_factor, capacity, seed):
        self.max_factor, self.capacity, self.seed = max_factor, capacity, seed
        self.store, self.next_fresh, self.batches = {}, 0, 0  # store: item -> copies so far
        self.last = {}  # item -> the last batch that contains it

    def take(self, fresh, size):
        key = self.seed + (self.batches << 64)
        draws = np.random.Philox(key=key).random_raw(len(self.store)).tolist()
        draw_of = dict(zip(sorted(self.store), draws, strict=True))
        batch = [(self.next_fresh + i, 0) for i in range(fresh)]
        in_batch = set()
        while len(batch) < size:
            open_ = [item for item, n in self.store.items() if n < self.max_factor]
            new = [item for item in open_ if item not in in_batch]
            if not new:
                in_batch.clear()
                new = open_
            item = min(
                new, key=lambda item: (-self.rested(item, size), self.store[item], draw_of[item])
            )
            in_batch.add(item)
            batch.append((item, self.store[item]))
            self.store[item] += 1
        for i in range(fresh):
            self.store[self.next_fresh + i] = 1
        self.last |= {item: self.batches for item, _ in batch}
        self.store = {item: n for item, n in self.store.items() if n < self.max_factor}
        while len(self.store) > self.capacity:
            most = max(self.store.values())
            del self.store[min(item for item, n in self.store.items() if n == most)]
        self.next_fresh += fresh
        self.batches += 1
        return batch

    def rested(self, item, size):
        """Batches since the last one with the item, as far as the store has room for them."""
        return min(self.batches - self.last[item], self.capacity // size)


@st.composite
def cases(draw):
    """(max_factor, capacity, size, seed, decisions that can be)."""
    max_factor, capacity = draw(st.integers(1, 5)), draw(st.integers(1, 12))
    size, seed = draw(st.integers(1, 6)), draw(st.integers(0, 2**32))
    reference, decisions = Reference(max_factor, capacity, seed), []
    for wish in draw(st.lists(st.integers(0, 6), max_size=25)):
        left = sum(max_factor - n for n in reference.store.values())
        decisions.append(min(size, max(wish, size - left)))
        reference.take(decisions[-1], size)
    return max_factor, capacity, size, seed, decisions


@given(cases())
@settings(deadline=None)
def test_batches_are_those_of_the_reference(case):
    max_factor, capacity, size, seed, decisions = case
    repeats, reference = Repeats(max_factor, capacity, seed), Reference(max_factor, capacity, seed)
    outputs = []
    for fresh in decisions:
        before = set(repeats.stored()[0].tolist())
        index, copy, dropped = repeats.take(fresh, size)
        batch = list(zip(index.tolist(), copy.tolist(), strict=True))
        assert batch == reference.take(fresh, size)
        numbers, emitted, last = repeats.stored().tolist()
        assert dict(zip(numbers, emitted, strict=True)) == reference.store
        assert last == [reference.last[item] for item in numbers]
        assert len(reference.store) <= capacity
        spent = {item for item, n in batch if n == max_factor - 1}
        new = set(range(repeats.admitted - fresh, repeats.admitted))
        assert set(dropped.tolist()) == (before | new) - set(reference.store) - spent
        outputs += batch
    # The copies of an item are numbered without gaps, up to the maximum.
    assert len(set(outputs)) == len(outputs)
    assert all(n == 0 or (item, n - 1) in outputs for item, n in outputs)
    assert all(n < max_factor for _, n in outputs)


@pytest.mark.parametrize(("size", "capacity"), [(32, 256), (1, 9)])
def test_copies_are_spread_over_as_many_batches_as_are_stored(size, capacity):
    """Half of each batch is fresh, as behind a constant upstream with R = 2."""
    repeats, last, distances = Repeats(8, capacity, seed=0), {}, []
    for batch in range(20 * capacity // size):
        fresh = min(size, max(size - len(repeats), (size + batch % 2) // 2))
        for item in repeats.take(fresh, size)[0].tolist():
            if item in last and batch > 10 * capacity // size:
                distances.append(batch - last[item])
            last[item] = batch
    assert min(distances) >= capacity // size


def items(n):
    """Items with two leaves, whose values are the item's number."""
    return grain.MapDataset.range(n).map(lambda i: {"x": np.full(3, i, np.float32), "i": i})


def stage(parent, max_factor=3, shuffle_buffer=6, batch_size=4, seed=1, **more):
    return echo.OpportunisticIterDataset(
        parent,
        max_factor=max_factor,
        shuffle_buffer=shuffle_buffer,
        batch_size=batch_size,
        seed=seed,
        annotate=True,
        read_options=READ,
        **more,
    )


def ready(iterator):
    """Fresh items that are stored and have not been emitted."""
    return iterator._pass.num_read - iterator._pass.order.admitted


def assert_equal(one, other):
    np.testing.assert_array_equal(one.index, other.index)
    np.testing.assert_array_equal(one.copy, other.copy)
    assert one.fresh == other.fresh
    for key in one.item:
        np.testing.assert_array_equal(one.item[key], other.item[key])


@given(
    case=cases(),
    kind=st.sampled_from(KINDS),
    placement=st.sampled_from(echo.PLACEMENTS),
    cut=st.floats(0, 1),
)
@settings(deadline=None, max_examples=80)
def test_the_stage_emits_what_was_decided_and_resumes_anywhere(case, kind, placement, cut):
    max_factor, capacity, size, seed, decisions = case
    parent, _ = parent_of(kind, sum(decisions) + size)  # an end that is not reached
    options = {"decisions": decisions, "placement": placement}
    dataset = stage(parent, max_factor, capacity, size, seed, **options)
    reference, expected = Reference(max_factor, capacity, seed), []
    for fresh in decisions:
        index, copies = zip(*reference.take(fresh, size), strict=True)
        expected.append((list(index), list(copies), reference.next_fresh))
    cut, outputs, state = round(cut * len(decisions)), [], None
    for count in (cut, None):
        iterator = iter(dataset)
        if state is not None:
            iterator.set_state(json.loads(json.dumps(state)))
            assert iterator.get_state() == state
        store = PlanApplier(dataset.store_rows(), dataset.round_size)
        for output in itertools.islice(iterator, count):
            batch = store.apply(output.item) if placement == "device" else output.item
            assert batch["y"].tolist() == (-output.index).tolist()
            assert batch["x"].tolist() == [[i] * 3 for i in output.index]
            outputs.append((output.index.tolist(), output.copy.tolist(), output.fresh))
            batch["x"][:] = -1  # changes no other copy
        if count is not None:
            state = iterator.get_state()
            assert len(iterator._pass.store) == len(state["stored"][0]) + ready(iterator)
        iterator.close()
    assert outputs == expected


class Gated(grain.MapDataset):
    """Item i is available once `come` exceeds i; from item `dies_at` on reading fails."""

    def __init__(self, n, dies_at=None):
        super().__init__()
        self._n, self.come, self.dies_at = n, 0, dies_at
        self._changed = threading.Condition()

    def __len__(self):
        return self._n

    def __getitem__(self, index):
        with self._changed:
            self._changed.wait_for(lambda: self.come > index)
        if self.dies_at is not None and index >= self.dies_at:
            raise OSError(f"disk lost at {index}")
        return {"i": np.int64(index)}

    def release(self, come):
        with self._changed:
            self.come = come
            self._changed.notify_all()


class Sequence(grain.IterDataset):
    """A `Gated` data set, read sequentially."""

    def __init__(self, gated):
        super().__init__()
        self._gated = gated

    def __iter__(self):
        return _SequenceIterator(self._gated)


class _SequenceIterator(grain.DatasetIterator):
    def __init__(self, gated):
        super().__init__()
        self._gated, self._next = gated, 0

    def __next__(self):
        if self._next == len(self._gated):
            raise StopIteration
        item = self._gated[self._next]
        self._next += 1
        return item

    def get_state(self):
        return {"next": self._next}

    def set_state(self, state):
        self._next = state["next"]


class Run:
    """A stage over a gated parent, whose decisions include every released item."""

    def __init__(self, n, sequential=False, dies_at=None, **options):
        self.gated = Gated(n, dies_at)
        parent = Sequence(self.gated) if sequential else self.gated
        self.iterator = iter(stage(parent, slack=self.slack, **options))
        self.want = 0

    def slack(self):
        return 0.001 if ready(self.iterator) < self.want else 0.0

    def next(self, come=None):
        """The next batch, after `come` items have been released."""
        if come is not None:
            self.gated.release(come)
        there = min(self.gated.come, len(self.gated)) - self.iterator._pass.order.admitted
        self.want = min(there, 4)
        return next(self.iterator)

    def request(self):
        """Requests the next batch in a thread. Returns a queue: the number of items read, each time
        that it has to wait for more, and then the batch, as a future."""
        said, read = queue.Queue(), self.iterator._pass.read

        def waiting(stop, seconds=None):
            if seconds is None:  # without limit
                said.put(self.iterator._pass.num_read)
            return read(stop, seconds)

        self.iterator._pass.read = waiting
        ThreadPoolExecutor(1).submit(next, self.iterator).add_done_callback(said.put)
        return said

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.gated.release(len(self.gated))  # else threads that read would wait forever
        self.iterator.close()


def until_it_waits(said, num_read):
    """Until a requested batch, which must not come, waits with so many items read."""
    while (waits_at := said.get(timeout=HANGS)) != num_read:
        assert isinstance(waits_at, int)


@pytest.mark.parametrize("sequential", [False, True])
def test_it_waits_only_for_the_items_that_a_batch_should_have(sequential):
    waited = []
    options = {"max_factor": 3, "shuffle_buffer": 8, "waited": waited.append}
    with Run(100, sequential, **options) as run:
        assert run.next(come=4).index.tolist() == [0, 1, 2, 3]
        waited.clear()
        run.want = 0  # from now on, each batch is required at once
        # Two batches are 8 copies. Less a reserve of 2.5 items, 5 items have 7 copies, 6 have 10.
        said = run.request()
        for come in (4, 5):
            run.gated.release(come)
            until_it_waits(said, come)
        run.gated.release(6)
        batch = said.get(timeout=HANGS).result()
        assert batch.index.tolist()[:2] == [4, 5]  # new items come first
        assert set(batch.index.tolist()[2:]) < {0, 1, 2, 3}
        assert len(waited) >= 2  # for what came at 4 and at 5
        assert min(waited) > 0


class Arrivals:
    """The intake of items that arrive at given times, on a clock of its own."""

    def __init__(self, times):
        self.times, self.num_items, self.num_read, self.now = times, len(times), 0, 0.0

    def read(self, stop, seconds=None):
        if self.num_read == self.num_items or (seconds == 0.0 and self.next_at() > self.now):
            return False
        assert seconds in (None, 0.0)
        self.now = max(self.now, self.next_at())
        come = int(np.searchsorted(self.times, self.now, side="right"))
        self.num_read = max(self.num_read, min(stop, come))
        return True

    def next_at(self):
        return self.times[self.num_read]


def simulated(intervals, max_factor, capacity, size):
    """Batches of steps that take 1, behind items that follow each other in `intervals`: (index,
    time waited, items stored before)."""
    order = AutoOrder(Repeats(max_factor, capacity, seed=0), size)
    intake, batches = Arrivals(np.cumsum(intervals)), []
    while True:
        stored, start = len(order.pending()), intake.now
        try:
            index = order.next(intake).index[0]
        except StopIteration:
            return batches
        order.emitted(size)
        batches.append((index, intake.now - start, stored))
        intake.now += 1


def distances(batches):
    """How many batches apart the copies of an item are, from the middle of the run on."""
    last, apart = {}, []
    for number, (index, *_) in enumerate(batches):
        for item in index.tolist():
            if item in last and number > len(batches) / 2:
                apart.append(number - last[item])
            last[item] = number
    return apart


@pytest.mark.parametrize("fast", [0, 256, 1000])
@pytest.mark.parametrize(("max_factor", "ratio"), [(2, 2), (2, 9), (8, 8), (8, 20)])
def test_copies_are_spread_even_if_all_of_them_are_emitted(max_factor, ratio, fast):
    """Also if the first items come at once, most of which are evicted with copies left."""
    size, capacity, num_items = 32, 256, 4000
    intervals = np.full(num_items, ratio / size)
    intervals[:fast] = 0
    batches = simulated(intervals, max_factor, capacity, size)
    apart = distances(batches)
    assert np.median(apart) >= 6  # of the 8 batches that the store has room for
    assert min(apart) >= 3
    # All copies are emitted but those of the reserve, which is half the store.
    slow = num_items - fast - size - capacity / 2
    assert len(batches) * size >= max_factor * slow


@pytest.mark.parametrize("max_factor", [2, 8])
def test_the_whole_store_bridges_a_stall_if_copies_are_left_over(max_factor):
    """No batch waits for the reserve then."""
    slow_from, size, capacity = 1500, 32, 256
    intervals = np.full(2000, 0.8 * max_factor / size)
    intervals[slow_from:] *= 10
    batches = simulated(intervals, max_factor, capacity, size)
    waits = [(index.max(), stored) for index, waited, stored in batches if waited > 0]
    assert waits[0] == (size - 1, 0)
    assert waits[1][0] > slow_from
    assert waits[1][1] < size  # too few for a batch


def test_no_batch_contains_an_item_twice():
    with Run(100, max_factor=9, shuffle_buffer=2) as run:
        run.next(come=4)  # 2 of these stay stored, with 8 copies left of each
        run.want = 0  # from now on, each batch is required at once
        said = run.request()
        run.gated.release(5)
        until_it_waits(said, 5)
        run.gated.release(6)
        assert len(set(said.get(timeout=HANGS).result().index.tolist())) == 4


@pytest.mark.parametrize("sequential", [False, True])
@pytest.mark.parametrize("num_items", [0, 3, 4, 40, 43])
def test_with_fast_input_it_is_the_parent_in_batches(sequential, num_items):
    parent = items(num_items).to_iter_dataset() if sequential else items(num_items)
    batches = list(stage(parent, slack=lambda: 1.0))
    expected = list(items(num_items).to_iter_dataset().batch(4, drop_remainder=True))
    assert len(batches) == len(expected)
    for batch, wanted in zip(batches, expected, strict=True):
        assert batch.copy.tolist() == [0] * 4
        for key in wanted:
            np.testing.assert_array_equal(batch.item[key], wanted[key])


@given(
    comes=st.lists(st.integers(0, 9), min_size=5, max_size=30),
    max_factor=st.integers(1, 4),
    capacity=st.integers(1, 10),
)
@settings(deadline=None, max_examples=40)
def test_bursts_fill_batches_and_repeats_bridge_stalls(comes, max_factor, capacity):
    with Run(10_000, max_factor=max_factor, shuffle_buffer=capacity) as run:
        come, num_copies = 0, {}
        for number, more in enumerate(comes, 1):
            come += more
            order = run.iterator._pass.order
            admitted, stored = order.admitted, len(order.pending())
            ready = min(4, come - admitted)
            # otherwise it would have to wait
            come += max(0, 4 - ready - stored)
            reserve = min(2 + admitted / 8, capacity / 2) if admitted else 0
            while come - admitted < 4 and (come - reserve) * max_factor < 4 * number:
                come += 1
            batch = run.next(come)
            assert len(set(batch.index.tolist())) == 4
            fresh = int((batch.copy == 0).sum())
            assert fresh == min(4, come - admitted)
            assert batch.index[:fresh].tolist() == list(range(admitted, admitted + fresh))
            for item in batch.index.tolist():
                num_copies[item] = num_copies.get(item, 0) + 1
            assert len(run.iterator._pass.order.pending()) <= capacity
        assert max(num_copies.values()) <= max_factor


def test_a_limit_holds_back_what_is_ready_unless_stored_items_do_not_suffice():
    with Run(100, max_factor=2, shuffle_buffer=8, limit=lambda: 5) as run:
        fresh = [int((run.next(come=100).copy == 0).sum()) for _ in range(4)]
        # 4 of 5; the fifth, and 3 of the 4 stored ones; then 2 are stored, so 2 beyond the limit
        assert fresh == [4, 1, 2, 2]


def test_a_slow_stream_ends_when_less_than_a_batch_is_left():
    with Run(10, max_factor=9) as run:
        batches = [run.next(come) for come in (4, 5, 6, 7)]
        assert [int((batch.copy == 0).sum()) for batch in batches] == [4, 1, 1, 1]
        with pytest.raises(StopIteration):
            run.next()  # the 3 items that remain are less than a batch


@pytest.mark.parametrize("sequential", [False, True])
def test_an_error_of_the_parent_is_raised_although_repeats_are_left(sequential):
    with Run(100, sequential, dies_at=6, max_factor=9) as run:
        run.next(come=4)
        state = run.iterator.get_state()
        run.gated.release(100)
        run.want = 4
        with pytest.raises(OSError, match="disk lost at"):
            collections.deque(run.iterator, maxlen=0)
        # The earlier state is intact.
        run.gated.dies_at = None
        run.iterator.set_state(state)
        assert run.next().index.tolist() == [4, 5, 6, 7]


@pytest.mark.parametrize("first_bytes", [200, 2])
@pytest.mark.parametrize("read_ahead", [1, 50])
def test_sequential_read_ahead_is_bounded_in_bytes(first_bytes, read_ahead, monkeypatch):
    monkeypatch.setattr(readers, "READ_AHEAD_BYTES", 5 * 200)
    parent = grain.MapDataset.range(200)
    parent = parent.map(lambda i: np.zeros(200 if i else first_bytes, np.uint8))
    parent = parent.to_iter_dataset(grain.ReadOptions(0, 0))
    options = grain.ReadOptions(num_threads=1, prefetch_buffer_size=read_ahead)
    iterator = iter(
        echo.OpportunisticIterDataset(
            parent, max_factor=1, shuffle_buffer=1, read_options=options, decisions=[1] * 90
        )
    )
    for number in range(90):
        next(iterator)
        requested = 0 if first_bytes == 200 else 50 - number  # before the first large item
        assert len(iterator._pass.reader._futures) <= min(read_ahead, max(5, requested))
    iterator.close()


def test_without_batches_items_may_differ_in_shape():
    parent = grain.MapDataset.range(3).map(lambda i: np.arange(i))
    got = list(stage(parent, batch_size=None, decisions=[1, 0, 1, 0, 1]))
    assert [int(x.copy) for x in got] == [0, 1, 0, 2, 0]
    assert all(x.item.tolist() == list(range(int(x.index))) for x in got)
    got[0].item.resize(9, refcheck=False)  # a copy of its own


def test_a_parent_may_reuse_the_memory_of_its_items():
    buffer = np.zeros(3)

    def refill(index):
        buffer[:] = index
        return buffer

    parent = grain.MapDataset.range(8).to_iter_dataset(grain.ReadOptions(0, 0)).map(refill)
    iterator = iter(stage(parent, decisions=[4, 4]))
    assert [next(iterator).item[:, 0].tolist() for _ in range(2)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    iterator.close()


def test_decisions_of_other_settings_are_an_error():
    with pytest.raises(ValueError, match=r"batch 1 of 4 takes 1 fresh .* 0 copies left"):
        list(stage(items(20), max_factor=1, decisions=[4, 1]))


def test_a_replayed_batch_takes_no_more_copies_than_are_left():
    """Also if it contains items twice, as earlier versions decided."""
    repeats = Repeats(max_factor=3, capacity=2, seed=0)
    repeats.take(2, 2)
    with pytest.raises(ValueError, match="0 fresh items, and the stored ones have 4 copies left"):
        repeats.take(0, 5)
    items, copies, _ = repeats.take(0, 4)
    assert sorted(zip(items.tolist(), copies.tolist(), strict=True)) == [
        *((0, 1), (0, 2)),
        *((1, 1), (1, 2)),
    ]


class ReadsTooMuch:
    """An intake that reads three items more than it is asked for."""

    num_read, num_items = 0, None

    def read(self, stop, seconds=None):
        self.num_read = stop + 3
        return True


@pytest.mark.parametrize(
    ("limit", "earlier"),
    [(lambda: np.int64(6), None), (None, lambda batch: np.arange(4, 0, -2)[batch])],
)
def test_numpy_integers_of_its_functions_leave_the_state_json(limit, earlier):
    order, intake = AutoOrder(Repeats(3, 6, 1), 4, limit=limit, earlier=earlier), ReadsTooMuch()
    for admitted in (4, 6):
        order.next(intake)
        order.emitted(4)
        assert order.admitted == admitted
        assert json.loads(json.dumps(order.get_state())) == order.get_state()


@pytest.mark.parametrize("decision", [-1, 5, 4.0, True])
def test_an_earlier_decision_that_no_batch_can_have_is_refused(decision):
    iterator = iter(stage(items(40), earlier=lambda batch: [4, decision][batch]))
    next(iterator)
    with pytest.raises(echo.EchoSpecError, match=r"earlier is .*at least 0 and at most 4"):
        next(iterator)
