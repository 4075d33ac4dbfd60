"""Echoing of plain Python iterables."""

import itertools
import json
import pickle
import re
import threading
import tracemalloc

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from echo import EchoSchedule, auto, echo_iterable
from echo.sequential import SNAPSHOT_EVERY


class Loader:
    """Like a PyTorch DataLoader: a length, and new batches in each iteration."""

    def __init__(self, n):
        self.n, self.produced = n, 0

    def __len__(self):
        return self.n

    def __iter__(self):
        for i in range(self.n):
            self.produced += 1
            yield {"x": np.full((2, 3), i), "y": [i]}


class Indexed:
    """Like a map-style data set of PyTorch: a length, perhaps more than it has items, and perhaps
    no IndexError."""

    def __init__(self, n, items=None):
        self.n, self.items = n, range(10**9) if items is None else items

    def __len__(self):
        if self.n is None:
            raise TypeError
        return self.n

    def __getitem__(self, index):
        return self.items[index]


class StartsOver:
    """Its own iterator, which starts over if it is asked after its end, as NVIDIA DALI's
    with `auto_reset`."""

    def __init__(self, n):
        self.n, self.next = n, 0

    def __iter__(self):
        return self

    def __next__(self):
        self.next = (self.next + 1) % (self.n + 1)
        if not self.next:
            raise StopIteration
        return self.next - 1


def schedule_says(factor, buffer, seed, n):
    return EchoSchedule(factor, buffer, seed).cursor(0, n).take(10_000)[0].tolist()


@hypothesis.settings(max_examples=60, deadline=None)
@hypothesis.given(
    factor=st.sampled_from([1, 2, 1.5, "2.7", 16]),
    buffer=st.integers(0, 30),
    seed=st.integers(0, 99),
    n=st.integers(0, 25),
)
def test_it_emits_what_the_schedule_says(factor, buffer, seed, n):
    expected = schedule_says(factor, buffer, seed, n)
    assert list(echo_iterable((i for i in range(n)), factor, buffer, seed)) == expected
    again = echo_iterable(StartsOver(n), factor, buffer, seed, reshuffle_each_iteration=False)
    for _ in range(2):
        assert list(itertools.islice(again, len(expected) + 1)) == expected
    unechoed = auto(StartsOver(n), max_factor=1, mix=False)  # read ahead, and not past the end
    assert [list(unechoed) for _ in "ab"] == [list(range(n))] * 2
    echoed = echo_iterable(range(n), factor, buffer, seed)
    assert (len(echoed), bool(echoed)) == (len(expected), True)
    iterator = iter(echoed)
    schedule = EchoSchedule(factor, buffer, seed)
    for position, item in enumerate(expected):
        assert iterator.fresh_examples == schedule.admitted(position, n)
        assert next(iterator) == item
    assert next(iterator, None) is None


@pytest.mark.parametrize(
    ("echoed", "words"),
    [
        (echo_iterable(Loader(6), "3/2"), ("Loader", "3/2", "6", "9")),
        (auto(Loader(6), max_factor=1, mix=False), ("Loader", "1", "6", "6")),
    ],
)
def test_an_echoed_iterable_says_what_it_echoes_and_how_far_it_is(echoed, words):
    list(echoed)
    assert re.findall(r"\bLoader|[\d/]+", repr(echoed)) == [*words]


class Stateful:
    """A parent with state, which records what is read."""

    def __init__(self, n):
        self.n, self.epoch, self.loaded, self.reads = n, 0, None, []

    def load_state_dict(self, state):
        self.loaded = state

    def item(self, index):
        self.reads.append(index)
        return 1000 * self.epoch + index


class Lazy(Stateful):
    """Like a Hugging Face data set: passes are generators, whose state is that of the pass before
    until they begin; a loaded state counts for every later pass of its epoch."""

    def __init__(self, n):
        super().__init__(n)
        self.state = {"index": 0, "epoch": 0}

    def set_epoch(self, epoch):
        self.epoch = epoch

    def state_dict(self):
        return dict(self.state)

    def __iter__(self):
        applies = self.loaded and self.loaded["epoch"] == self.epoch
        self.state = {"index": self.loaded["index"] if applies else 0, "epoch": self.epoch}
        while self.state["index"] < self.n:
            self.state["index"] += 1
            yield self.item(self.state["index"] - 1)


class Eager(Stateful):
    """Like the loaders of torchdata: the state is that of the newest iterator; a state that is
    loaded counts for one pass, and if that is at its end, for none."""

    def __iter__(self):
        self.index = self.loaded["index"] if self.loaded else 0
        if self.index == self.n:
            self.index = 0
        self.loaded = None
        return self

    def __next__(self):
        if self.index == self.n:
            raise StopIteration
        self.index += 1
        return self.item(self.index - 1)

    def state_dict(self):
        return {"index": self.index}


class Numbered(list):
    """Is notified of epochs, and has no state."""

    def __init__(self, n):
        super().__init__(range(n))

    def set_epoch(self, epoch):
        self.epoch = epoch


def passes(echoed, parent, told, start, stop, out):
    """Iterates over the rest of three passes; returns the state where `out` has `stop` items."""
    for epoch in range(start, 3):
        if told and hasattr(parent, "set_epoch"):
            echoed.set_epoch(epoch)
            assert parent.epoch == epoch
        if len(out) == stop:
            return epoch, echoed.state_dict()
        for item in echoed:
            out.append(item)
            if len(out) == stop:
                return epoch, echoed.state_dict()
    return None


def nested(n):
    return echo_iterable(range(n), 2, 3)


@pytest.mark.parametrize("kind", [Lazy, Eager, Indexed, Numbered, nested, range])
@hypothesis.settings(max_examples=30, deadline=None)
@hypothesis.given(
    factor=st.sampled_from([1, 2, 1.5, "2.7", 16]),
    buffer=st.integers(0, 60),
    seed=st.integers(0, 2**128 - 1),
    reshuffle=st.booleans(),
    told=st.booleans(),
    n=st.integers(0, 70),
    cuts=st.lists(st.floats(0, 1), max_size=8),
)
def test_a_stream_that_restarts_anywhere_loses_and_repeats_nothing(
    kind, factor, buffer, seed, reshuffle, told, n, cuts
):
    def make():
        parent = kind(n)
        return parent, echo_iterable(parent, factor, buffer, seed, reshuffle)

    parent, echoed = make()
    expected, out = [], []
    passes(echoed, parent, told, 0, None, expected)
    epoch, state = 0, None
    for cut in [*sorted(round(cut * len(expected)) for cut in cuts), None]:
        parent, echoed = make()
        if state is not None:
            echoed.load_state_dict(json.loads(json.dumps(state)))
            assert echoed.epoch == state["epoch"]
            if isinstance(parent, Stateful) and state["num_items"] < 0:
                oldest = echoed._newest.order.oldest()
                assert min(parent.reads, default=oldest) > oldest - 2 * SNAPSHOT_EVERY
        position = passes(echoed, parent, told, epoch, cut, out)
        if position is not None:
            epoch, state = position
            assert len(json.dumps(state | {"parent": None})) <= 200
            assert kind is nested or len(json.dumps(state["parent"])) <= 60
    assert out == expected


def test_an_iterable_whose_state_dict_fails_is_one_without_state():
    class Prepared(Loader):
        """Has the methods of a state: of a part that it lacks."""

        def state_dict(self):
            return self.part.state_dict()

        def load_state_dict(self, state):
            raise AssertionError

    echoed, resumed = echo_iterable(Prepared(100), 2, 10), echo_iterable(Prepared(100), 2, 10)
    head = [item["y"] for item in itertools.islice(echoed, 150)]
    resumed.load_state_dict(json.loads(json.dumps(echoed.state_dict())))
    rest = [item["y"] for item in resumed]
    assert head + rest == [item["y"] for item in echo_iterable(Loader(100), 2, 10)]
    echoed.load_state_dict(echoed.state_dict())  # also over what has been read
    assert [item["y"] for item in echoed] == rest


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda state: None, "state"),
        (lambda state: {"epoch": 0}, "epoch"),
        (lambda state: state | {"parent": None}, "state"),
        (lambda state: state | {"parent": state["parent"] | {"epoch": "x"}}, "epoch"),
        (lambda state: state | {"epoch": -1}, "epoch"),
        (lambda state: state | {"epoch": 1}, "seed"),
        (lambda state: state | {"schedule": "3, 4, 0"}, "schedule|factor"),
        (lambda state: state | {"position": "7"}, "position"),
        (lambda state: state | {"position": 60}, "20 items"),
    ],
)
def test_a_state_of_something_else_is_refused_and_nothing_changes(change, name):
    for parent in (Lazy, Eager):
        echoed, whole = echo_iterable(parent(20), 2, 4), list(echo_iterable(parent(20), 2, 4))
        iterator = iter(echoed)
        out = [next(iterator) for _ in range(7)]
        state = echoed.state_dict()
        with pytest.raises(ValueError, match=name):
            echoed.load_state_dict(change(dict(state)))
        assert echoed.state_dict() == state
        echoed.load_state_dict(state)
        assert [*out, *echoed] == whole
    with pytest.raises(AttributeError, match="list"):
        echo_iterable([*range(20)], 2, 4).load_state_dict(state)  # which has no states


def test_each_pass_has_an_order_of_its_own_unless_asked_otherwise():
    echoed = echo_iterable(range(40), 2, 20)
    orders = [list(echoed) for _ in range(3)]
    assert orders[0] == schedule_says(2, 20, 0, 40)
    assert len({tuple(order) for order in orders}) == 3
    assert all(sorted(order) == sorted(orders[0]) for order in orders)
    echoed.set_epoch(1)
    assert list(echoed) == orders[1]
    same = echo_iterable(range(40), 2, 20, reshuffle_each_iteration=False)
    assert list(same) == list(same) == orders[0]
    other = echo_iterable(range(40), 2, 20, seed=1)
    assert [list(other) not in orders for _ in range(3)] == [True] * 3


@pytest.mark.parametrize("read", [0, 1, 30])
def test_a_state_of_another_epoch_is_discarded(read):
    echoed = echo_iterable(Lazy(40), 2, 20)
    first = [item for item, _ in zip(echoed, range(read), strict=False)]
    assert len(first) == read
    echoed.load_state_dict(echoed.state_dict())
    echoed.set_epoch(1)
    assert sorted(echoed) == sorted([1000 + i for i in range(40)] * 2)


@pytest.mark.parametrize(
    ("source", "n"),
    [
        (Indexed(None, range(9)), 9),
        (Indexed(9), 9),
        (Indexed(9, range(3)), 3),
        (Indexed(0), 0),
        ([0, 1, 2], 3),
    ],
)
def test_any_iterable_works(source, n):
    assert list(itertools.islice(echo_iterable(source, 2), 99)) == [
        i for i in range(n) for _ in "ab"
    ]


def test_an_item_that_cannot_be_copied_is_named_with_its_type_and_a_remedy():
    with pytest.raises(TypeError, match="item 2, of type dict"):
        list(echo_iterable([{}, {}, {"lock": threading.Lock()}], 2))


def test_an_iterable_without_a_length_has_none_and_is_true():
    echoed = echo_iterable(iter([]), 2)
    with pytest.raises(TypeError, match="has no len"):
        len(echoed)
    assert echoed


def test_copies_are_independent_of_each_other_and_of_a_source_that_reuses_its_buffer():
    buffer = {"x": np.zeros(3, int), "y": [0]}

    def reusing():
        for i in range(20):
            buffer["x"][:] = buffer["y"][0] = i
            yield buffer

    numbers = []
    for copy in echo_iterable(reusing(), 3, 6, seed=3):
        numbers.append(copy["y"][0])
        assert copy["x"].tolist() == numbers[-1:] * 3
        copy["x"][:] = -1
        copy["y"].append("changed")
    assert numbers == schedule_says(3, 6, 3, 20)
    assert buffer["y"] == [19]


@pytest.mark.parametrize("loaded", [False, True])
def test_an_iterable_that_has_been_read_can_be_sent_to_a_worker_process(loaded):
    echoed = echo_iterable(Loader(20), 2, 4)  # its passes are generators, which cannot be pickled
    list(itertools.islice(echoed, 7))
    if loaded:
        echoed.load_state_dict(echoed.state_dict())
    sent = pickle.loads(pickle.dumps(echoed))
    assert sent.epoch == echoed.epoch == (0 if loaded else 1)
    assert [item["y"] for item in sent] == [item["y"] for item in echoed]


class Shuffled:
    """Like a seeded PyTorch DataLoader: each iter() draws from its generator at once."""

    def __init__(self):
        self.generator = np.random.default_rng(0)

    def __iter__(self):
        return iter(self.generator.permutation(20).tolist())


@pytest.mark.parametrize("outputs", [0, 7, 40])
def test_a_resumed_pass_iterates_once_as_an_uninterrupted_one_does(outputs):
    whole = echo_iterable(Shuffled(), 2, 4)
    passes = [list(whole), list(whole)]
    echoed, resumed = echo_iterable(Shuffled(), 2, 4), echo_iterable(Shuffled(), 2, 4)
    head = list(itertools.islice(echoed, outputs))
    resumed.load_state_dict(echoed.state_dict())
    assert [head + list(resumed), list(resumed)] == passes


def test_a_state_before_the_first_item_begins_no_second_pass():
    """Loaders of torchdata draw their order in iter()."""
    begun = []

    class Counted(Eager):
        def __iter__(self):
            begun.append(self)
            return super().__iter__()

    echoed = echo_iterable(Counted(9), 2)
    echoed.state_dict()
    assert list(echoed) == schedule_says(2, 0, 0, 9)
    assert len(begun) == 1


@pytest.mark.parametrize("iterate", [iter, lambda items: map(int, items), lambda i: (j for j in i)])
def test_an_iterator_that_has_been_read_takes_no_state(iterate):
    echoed = echo_iterable(iterate(range(9)), 2, 4)
    before = echoed.state_dict()
    echoed.load_state_dict(before)
    list(itertools.islice(echoed, 5))
    after = echoed.state_dict()
    with pytest.raises(ValueError, match="has been read from"):
        echoed.load_state_dict(before)
    again = echo_iterable(iterate(range(9)), 2, 4)
    again.load_state_dict(after)
    assert list(again) == list(echo_iterable(range(9), 2, 4))[5:]


def test_a_buffer_may_be_far_larger_than_the_stream():
    tracemalloc.start()
    outputs = list(echo_iterable(iter(range(50)), 2, 2**40, seed=1))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert outputs == schedule_says(2, 2**40, 1, 50)
    assert peak < 2**22


def test_after_an_error_an_iterable_without_state_is_read_again_only_from_a_state():
    class Failing(Loader):
        def __iter__(self):
            for item in super().__iter__():
                if self.produced == 10:
                    raise OSError("cannot read")
                yield item["y"][0]

    loader = Failing(20)
    echoed = echo_iterable(loader, 2, 4)
    iterator, items = iter(echoed), []
    for _ in range(2):
        with pytest.raises(OSError, match="cannot read"):
            items.extend(iterator)
    assert loader.produced == 10
    assert iterator.fresh_examples <= 9  # those before the one that failed
    assert echoed.state_dict()["num_items"] == -1
    echoed.load_state_dict(echoed.state_dict())
    assert items + list(echoed) == schedule_says(2, 4, 0, 20)


class Batches(Eager):
    """Batches, with a state."""

    def __init__(self, batches):
        super().__init__(len(batches))
        self.batches = batches

    def item(self, index):
        return self.batches[index]


@hypothesis.given(
    sizes=st.lists(st.integers(0, 5), max_size=30),
    rebatch=st.integers(1, 7),
    factor=st.sampled_from([1, "4/3", 2, 3]),
    buffer=st.integers(0, 12),
    position=st.integers(0, 60),
    parent=st.sampled_from([list, Batches]),
)
@hypothesis.settings(max_examples=80, deadline=None)
def test_batches_are_taken_apart_and_their_rows_echoed(
    sizes, rebatch, factor, buffer, position, parent
):
    """As the rows one by one would be, in batches of another size, from any position on."""
    numbers = np.arange(sum(sizes))
    batches = np.split(numbers, np.cumsum(sizes)[:-1]) if sizes else []
    batches = [{"x": x, "y": -x[:, None]} for x in batches]

    def echoed():
        return echo_iterable(parent(batches), factor, buffer, seed=5, rebatch=rebatch)

    expected = [int(x) for x in echo_iterable(numbers.tolist(), factor, buffer, seed=5)]
    whole = list(echoed())
    assert (
        np.concatenate([b["x"] for b in whole], dtype=int).tolist() == expected
        if whole
        else not expected
    )
    assert [len(b["x"]) for b in whole[:-1]] == [rebatch] * (len(whole) - 1)
    assert all((b["y"][:, 0] == -b["x"]).all() for b in whole)
    before, after = echoed(), echoed()
    done = len(list(zip(range(position), before, strict=False)))
    after.load_state_dict(json.loads(json.dumps(before.state_dict())))
    assert [b["x"].tolist() for b in after] == [b["x"].tolist() for b in whole[done:]]
    assert (after.fresh_examples, after.emitted) == (len(numbers), len(expected))
