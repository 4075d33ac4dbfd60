"""The auto order: its outputs given the decisions, and that it waits only when it should.

A decision of the stage never makes a batch contain an item twice. Recorded ones may, so the order
that follows from decisions is tested with such decisions, too.
"""

import collections
import itertools
import json
import threading
import time

import grain
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import echo
from echo import readers
from echo.auto_order import AutoOrder
from tests.helpers.echo_parents import KINDS, on_device, parent_of
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
    order = AutoOrder(max_factor, capacity, seed, size, earlier=decisions.__getitem__)
    reference, intake = (
        Reference(max_factor, capacity, seed),
        Arrivals([0] * (size + sum(decisions))),
    )
    outputs = []
    for fresh in decisions:
        before = set(order.stored[0].tolist())
        (index,), (copy,) = order.next(intake)
        batch = list(zip(index.tolist(), copy.tolist(), strict=True))
        assert batch == reference.take(fresh, size)
        dropped = order.emitted(size)
        numbers, emitted, last = order.stored.tolist()
        assert dict(zip(numbers, emitted, strict=True)) == reference.store
        assert last == [reference.last[item] for item in numbers]
        assert len(reference.store) <= capacity
        spent = {item for item, n in batch if n == max_factor - 1}
        new = set(range(order.admitted - fresh, order.admitted))
        assert set(dropped.tolist()) == (before | new) - set(reference.store) - spent
        outputs += batch
    # The copies of an item are numbered without gaps, up to the maximum.
    assert len(set(outputs)) == len(outputs)
    assert all(n == 0 or (item, n - 1) in outputs for item, n in outputs)
    assert all(n < max_factor for _, n in outputs)


def items(n):
    """Items with two leaves, whose values are the item's number."""
    return grain.MapDataset.range(n).map(lambda i: {"x": np.full(3, i, np.float32), "i": i})


def stage(parent, **given):
    usual = {"max_factor": 3, "shuffle_buffer": 6, "batch_size": 4, "seed": 1}
    options = usual | {"annotate": True, "read_options": READ} | given
    return echo.OpportunisticIterDataset(parent, **options)


@given(
    case=cases(),
    kind=st.sampled_from(KINDS),
    placement=st.sampled_from(["host", on_device]),
    cut=st.floats(0, 1),
)
@settings(deadline=None, max_examples=80)
def test_the_stage_emits_what_was_decided_and_resumes_anywhere(case, kind, placement, cut):
    max_factor, capacity, size, seed, decisions = case
    parent, _ = parent_of(kind, sum(decisions) + size)  # an end that is not reached
    dataset = stage(
        parent,
        max_factor=max_factor,
        shuffle_buffer=capacity,
        batch_size=size,
        seed=seed,
        earlier=dict(enumerate(decisions)).get,
        placement=placement,
    )
    reference, expected = Reference(max_factor, capacity, seed), []
    for fresh in decisions:
        index, copies = zip(*reference.take(fresh, size), strict=True)
        expected.append((list(index), list(copies), reference.next_fresh))
    cut, outputs, state = round(cut * len(decisions)), [], None
    for count in (cut, len(decisions) - cut):
        iterator = iter(dataset)
        if state is not None:
            iterator.set_state(json.loads(json.dumps(state)))
            assert iterator.get_state() == state
        for output in itertools.islice(iterator, count):
            batch = output.item
            assert batch["y"].tolist() == (-output.index).tolist()
            assert batch["x"].tolist() == [[i] * 3 for i in output.index]
            outputs.append((output.index.tolist(), output.copy.tolist(), output.fresh))
            if placement == "host":
                batch["x"][:] = -1  # changes no other copy
        state = iterator.get_state()
        iterator.close()
    assert outputs == expected


class Arrivals:
    """The intake of items that arrive at given times, on a clock of its own, one per call."""

    def __init__(self, times):
        self.times, self.num_items, self.num_read, self.now = times, len(times), 0, 0

    def read(self, stop, seconds=None):
        assert stop > self.num_read
        if self.num_read == self.num_items:
            return False
        arrives = self.times[self.num_read]
        if seconds is not None and arrives > self.now + seconds:
            self.now += seconds
            return False
        self.now = max(self.now, arrives)
        self.num_read += 1
        return True


@given(
    intervals=st.lists(st.integers(0, 3), max_size=60),
    max_factor=st.integers(1, 4),
    capacity=st.integers(1, 10),
    size=st.integers(1, 5),
    patience=st.integers(0, 3),
    lead=st.none() | st.integers(0, 5),
)
@settings(deadline=None, max_examples=200)
def test_a_batch_takes_what_is_ready_and_waits_for_no_more_than_it_should_have(
    intervals, max_factor, capacity, size, patience, lead
):
    """A batch may wait for `patience`; at most `lead` items more than it requires are allowed."""
    due, allowed = 0, 0
    order = AutoOrder(
        max_factor,
        capacity,
        0,
        size,
        slack=lambda: due - intake.now,
        limit=None if lead is None else lambda: np.int64(allowed),
    )
    times = np.cumsum(np.asarray(intervals, int)).tolist()
    intake, emitted = Arrivals(times), collections.Counter()
    while len(times) - order.admitted >= size:
        admitted, start = order.admitted, intake.now
        due, required = start + patience, max(0, size - order.stored.shape[1])
        most = size if lead is None else min(size, max(required, lead))
        allowed = admitted + (lead or 0)
        least, reserve = required, min(size / 2 + admitted / 8, capacity / 2)
        copies_due = size * (order.batches + 1) + order.evicted
        while admitted and least < most and max_factor * (admitted + least - reserve) < copies_due:
            least += 1
        now = start
        if most:
            now = max(now, min(due, times[admitted + most - 1]))
        if least:
            now = max(now, times[admitted + least - 1])
        fresh = min(most, sum(time <= now for time in times) - admitted)
        (index,), (copy,) = order.next(intake)
        assert np.count_nonzero(copy == 0) == fresh
        assert index[:fresh].tolist() == list(range(admitted, admitted + fresh))
        assert len(set(index.tolist())) == size
        assert intake.now == now
        emitted.update(index.tolist())
        order.emitted(size)
        assert order.admitted == admitted + fresh
        assert len(order.pending()) <= capacity
        assert json.loads(json.dumps(order.get_state())) == order.get_state()
    with pytest.raises(StopIteration):
        order.next(intake)
    assert max(emitted.values(), default=1) <= max_factor


def simulated(intervals, max_factor, capacity, size):
    """Batches of steps that take 1, behind items that follow each other in `intervals`: (index,
    time waited, items stored before)."""
    order = AutoOrder(max_factor, capacity, 0, size)
    intake, batches = Arrivals(np.cumsum(intervals)), []
    while True:
        stored, start = len(order.pending()), intake.now
        try:
            index = order.next(intake)[0][0]
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


@pytest.mark.parametrize("sequential", [False, True])
def test_an_error_of_the_parent_is_raised_although_repeats_are_left(sequential):
    broken = [True]

    def read(index):
        if broken[0] and index >= 6:
            raise OSError(f"disk lost at {index}")
        return {"i": np.int64(index)}

    parent = grain.MapDataset.range(100).map(read)
    parent = parent.to_iter_dataset(grain.ReadOptions(0, 0)) if sequential else parent
    iterator = iter(stage(parent, max_factor=9, slack=lambda: 1.0))
    next(iterator)
    state = iterator.get_state()
    with pytest.raises(OSError, match="disk lost at"):
        collections.deque(iterator, maxlen=0)
    broken[0] = False
    iterator.set_state(state)
    assert next(iterator).index.tolist() == [4, 5, 6, 7]
    iterator.close()


def test_restoring_waits_for_the_item_that_is_being_read():
    reading, held = threading.Event(), threading.Event()

    def read(index):
        if index == 6 and not reading.is_set():
            reading.set()
            held.wait(HANGS)
        return {"i": np.int64(index)}

    parent = grain.MapDataset.range(40).map(read).to_iter_dataset(grain.ReadOptions(0, 0))
    iterator = iter(stage(parent, earlier=lambda _: 4))
    state = iterator.get_state()
    next(iterator)
    reading.wait(HANGS)
    threading.Timer(0.1, held.set).start()
    iterator.set_state(state)
    numbers = []
    for batch in iterator:  # which would be read on while that item still is
        numbers += batch.item["i"].tolist()
        time.sleep(0.03)
    assert numbers == list(range(40))
    iterator.close()


@pytest.mark.parametrize("first_bytes", [200, 2])
@pytest.mark.parametrize("read_ahead", [1, 50])
def test_sequential_read_ahead_is_bounded_in_bytes(first_bytes, read_ahead, monkeypatch):
    monkeypatch.setattr(readers, "READ_AHEAD_BYTES", 5 * 200)
    parent = grain.MapDataset.range(200)
    parent = parent.map(lambda i: np.zeros(200 if i else first_bytes, np.uint8))
    parent = parent.to_iter_dataset(grain.ReadOptions(0, 0))
    options = {"max_factor": 1, "shuffle_buffer": 1, "batch_size": None}
    options["read_options"] = grain.ReadOptions(num_threads=1, prefetch_buffer_size=read_ahead)
    iterator = iter(stage(parent, **options, earlier=lambda _: 1))
    for number in range(90):
        next(iterator)
        requested = 0 if first_bytes == 200 else 50 - number  # before the first large item
        assert len(iterator._pass.reader._futures) <= min(read_ahead, max(5, requested))
    iterator.close()


def test_without_batches_items_may_differ_in_shape():
    parent = grain.MapDataset.range(3).map(lambda i: np.arange(i))
    batches = stage(parent, batch_size=None, earlier=[1, 0, 1, 0, 1].__getitem__)
    got = list(itertools.islice(batches, 5))
    assert [int(x.copy) for x in got] == [0, 1, 0, 2, 0]
    assert all(x.item.tolist() == list(range(int(x.index))) for x in got)
    got[0].item.resize(9, refcheck=False)  # a copy of its own


def test_a_replayed_batch_takes_no_more_copies_than_are_left():
    """Also if it contains items twice."""
    for size in (5, 4):
        order = AutoOrder(3, 2, seed=0, batch_size=size, earlier=[size, 0].__getitem__)
        intake = Arrivals([0] * 20)
        order.next(intake)
        order.emitted(size)
        if size == 5:
            with pytest.raises(ValueError, match=r"0 fresh items.* 4 copies left"):
                order.next(intake)
    (items,), (copies,) = order.next(intake)
    pairs = sorted(zip(items.tolist(), copies.tolist(), strict=True))
    assert pairs == [(2, 1), (2, 2), (3, 1), (3, 2)]


def test_a_state_has_numbers_of_any_size():
    order = AutoOrder(1000, 8, 0, 4, earlier=lambda batch: 4 * (batch == 0))
    intake = Arrivals([0] * 8)
    for _ in range(300):
        order.next(intake)
        order.emitted(4)
    state = json.loads(json.dumps(order.get_state()))
    assert order.at(state, None).stored.tolist() == order.stored.tolist()


@pytest.mark.parametrize("decision", [-1, 5, 4.0, True, np.int64(2)])
def test_earlier_decisions_are_repeated_if_a_batch_can_have_them(decision):
    iterator = iter(stage(items(40), earlier=lambda batch: [np.int64(4), decision][batch]))
    next(iterator)
    if isinstance(decision, np.int64):
        assert np.count_nonzero(next(iterator).copy == 0) == decision
        assert json.loads(json.dumps(iterator.get_state())) == iterator.get_state()
    else:
        with pytest.raises(echo.EchoSpecError, match="earlier"):
            next(iterator)
    iterator.close()
