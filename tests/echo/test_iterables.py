"""Echoing of plain Python iterables."""

import collections
import itertools
import json
import pickle
import tracemalloc
import weakref

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from echo import EchoSchedule, echo_iterable
from echo.readers import SNAPSHOT_EVERY
from tests.helpers.echo_parents import no_garbage_collector


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


class OneByOne:
    """The oldest protocol: __getitem__ until IndexError."""

    def __getitem__(self, index):
        if index == 9:
            raise IndexError
        return index


class Indexed:
    """Like a map-style data set of PyTorch: a length, and no IndexError."""

    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        return index


class Shorter(Indexed):
    """Has fewer items than its length."""

    def __getitem__(self, index):
        return [0, 1, 2][index]


class StartsOver:
    """Its own iterator, which starts over if it is asked after its end, as NVIDIA DALI's
    with `auto_reset`."""

    def __init__(self, n):
        self.n, self.next = n, 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.next == self.n:
            self.next = 0
            raise StopIteration
        self.next += 1
        return self.next - 1


def schedule_says(factor, buffer, seed, n):
    return EchoSchedule(factor, buffer, seed).cursor(0, n).take(10_000)[0].tolist()


SCHEDULES = {
    "factor": st.sampled_from([1, 2, 1.5, "2.7", 16]),
    "buffer": st.integers(0, 30),
    "seed": st.integers(0, 99),
    "n": st.integers(0, 25),
}


@hypothesis.settings(max_examples=60)
@hypothesis.given(**SCHEDULES)
def test_it_emits_what_the_schedule_says(factor, buffer, seed, n):
    expected = schedule_says(factor, buffer, seed, n)
    assert list(echo_iterable((i for i in range(n)), factor, buffer, seed)) == expected
    iterator = iter(echo_iterable(range(n), factor, buffer, seed))
    schedule = EchoSchedule(factor, buffer, seed)
    for position, item in enumerate(expected):
        assert iterator.fresh_examples == schedule.admitted(position, n)
        assert next(iterator) == item
    assert next(iterator, None) is None


@hypothesis.settings(max_examples=60)
@hypothesis.given(**SCHEDULES)
def test_a_pass_ends_with_a_loader_that_starts_over(factor, buffer, seed, n):
    expected = schedule_says(factor, buffer, seed, n)
    echoed = echo_iterable(StartsOver(n), factor, buffer, seed, reshuffle_each_iteration=False)
    for _ in range(2):
        assert list(itertools.islice(echoed, len(expected) + 1)) == expected


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
        return Items(self)

    def state_dict(self):
        return {"index": self.index}


class Items:
    def __init__(self, parent):
        self.parent = parent

    def __iter__(self):
        return self

    def __next__(self):
        if self.parent.index == self.parent.n:
            raise StopIteration
        self.parent.index += 1
        return self.parent.item(self.parent.index - 1)


class Continuing(Stateful):
    """Its passes are generators that begin where its state is."""

    index = 0

    def state_dict(self):
        return {"index": self.index}

    def load_state_dict(self, state):
        self.index = state["index"]

    def __iter__(self):
        while self.index < self.n:
            self.index += 1
            yield self.item(self.index - 1)
        self.index = 0


def passes(echoed, parent, start, stop, epochs, out):
    """Iterates over the rest of `epochs` passes; returns the state where `out` has `stop` items."""
    for epoch in range(start, epochs):
        if epochs_are_set := hasattr(parent, "set_epoch"):
            echoed.set_epoch(epoch)
        assert not epochs_are_set or parent.epoch == epoch
        if len(out) == stop:
            return epoch, echoed.state_dict()
        for item in echoed:
            out.append(item)
            if len(out) == stop:
                return epoch, echoed.state_dict()
    return None


@pytest.mark.parametrize("kind", [Lazy, Eager, Indexed, range])
@hypothesis.settings(max_examples=30, deadline=None)
@hypothesis.given(
    factor=st.sampled_from([1, 2, 1.5, "2.7", 16]),
    buffer=st.integers(0, 60),
    seed=st.integers(0, 2**128 - 1),
    n=st.integers(0, 70),
    cuts=st.lists(st.floats(0, 1), max_size=8),
)
def test_a_stream_that_restarts_anywhere_loses_and_repeats_nothing(
    kind, factor, buffer, seed, n, cuts
):
    def make():
        parent = kind(n)
        return parent, echo_iterable(parent, factor, buffer, seed)

    parent, echoed = make()
    expected, out = [], []
    passes(echoed, parent, 0, None, 3, expected)
    epoch, state = 0, None
    for cut in [*sorted(round(cut * len(expected)) for cut in cuts), None]:
        parent, echoed = make()
        if state is not None:
            echoed.load_state_dict(json.loads(json.dumps(state)))
            if issubclass(kind, Stateful) and state["num_items"] < 0:
                oldest = echoed._newest._pass.order.oldest()
                assert min(parent.reads, default=oldest) > oldest - 2 * SNAPSHOT_EVERY
        position = passes(echoed, parent, epoch, cut, 3, out)
        if position is not None:
            epoch, state = position
            assert len(json.dumps(state | {"parent": None})) <= 200
            assert len(json.dumps(state["parent"])) <= 60
    assert out == expected


@pytest.mark.parametrize("cut", [0, 7, 50, 80])
def test_generators_that_continue_where_their_iterable_is_resume_only_over_a_new_one(cut):
    echoed, again = (echo_iterable(Continuing(40), 2) for _ in range(2))
    head = list(itertools.islice(echoed, cut))
    state = echoed.state_dict()
    again.load_state_dict(state)
    assert head + list(again) == [i for i in range(40) for _ in "ab"]
    if cut == 7:  # before the first state of the iterable
        with pytest.raises(ValueError, match="Continuing"):
            echoed.load_state_dict(state)


def test_an_iterable_whose_state_dict_fails_is_one_without_state():
    class Prepared(Loader):
        """Has the methods of a state: of a part that it lacks."""

        def state_dict(self):
            return self.part.state_dict()

        def load_state_dict(self, state):
            raise AssertionError

    echoed, resumed = echo_iterable(Prepared(100), 2, 10), echo_iterable(Prepared(100), 2, 10)
    with pytest.warns(UserWarning, match="state_dict"):
        head = [item["y"] for item in itertools.islice(echoed, 150)]
    with pytest.warns(UserWarning, match="state_dict"):
        resumed.load_state_dict(json.loads(json.dumps(echoed.state_dict())))
    rest = [item["y"] for item in resumed]
    assert head + rest == [item["y"] for item in echo_iterable(Loader(100), 2, 10)]


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
    with pytest.raises(ValueError, match="list"):
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


def test_the_same_order_on_each_pass_resumes_too():
    parent = Lazy(40)
    echoed = echo_iterable(parent, 2, 20, reshuffle_each_iteration=False)
    whole = list(echoed)
    iterator = iter(echoed)
    assert [next(iterator) for _ in range(30)] == whole[:30]
    state = echoed.state_dict()
    for kept in (echoed, echo_iterable(Lazy(40), 2, 20, reshuffle_each_iteration=False)):
        kept.load_state_dict(state)
        assert list(kept) == whole[30:]
        assert list(kept) == whole  # the loaded state does not count again


class Numbered(list):
    """Is notified of epochs, and has no state."""

    def set_epoch(self, epoch):
        """Changes nothing."""


@pytest.mark.parametrize("parent", [Numbered, lambda items: echo_iterable(items, 2, 3)])
@pytest.mark.parametrize("first", [0, 1])
def test_the_passes_after_one_that_was_resumed_begin_at_the_start(parent, first):
    def make():
        return echo_iterable(parent(range(6)), 2, 3)

    echoed = make()
    passes = [list(echoed) for _ in range(3)]
    for cut in range(len(passes[0]) + 1):
        echoed = make()
        assert [list(echoed) for _ in range(first)] == passes[:first]
        iterator = iter(echoed)
        head = [next(iterator) for _ in range(cut)]
        resumed = make()
        resumed.load_state_dict(json.loads(json.dumps(echoed.state_dict())))
        assert [head + list(resumed), list(resumed)] == passes[first : first + 2]


@pytest.mark.parametrize("read", [0, 1, 30])
def test_a_state_of_another_epoch_is_discarded(read):
    echoed = echo_iterable(Lazy(40), 2, 20)
    first = [item for item, _ in zip(echoed, range(read), strict=False)]
    assert len(first) == read
    echoed.load_state_dict(echoed.state_dict())
    echoed.set_epoch(1)
    assert sorted(echoed) == sorted([1000 + i for i in range(40)] * 2)


def test_the_length_is_the_number_of_outputs():
    echoed = echo_iterable(Loader(7), 1.5, 3)
    assert len(echoed) == len(list(echoed)) == 10
    assert len(echo_iterable([], 2)) == 0
    with pytest.raises(TypeError, match="has no len"):
        len(echo_iterable((i for i in range(3)), 2))
    assert echoed
    assert echo_iterable(iter([]), 2)
    assert not echo_iterable([], 2)


@pytest.mark.parametrize(
    ("source", "n"),
    [
        ([0, 1, 2], 3),
        (OneByOne(), 9),
        (Indexed(9), 9),
        (Shorter(9), 3),
        (Indexed(0), 0),
        ((i for i in "ab"), 2),
    ],
)
def test_any_iterable_works(source, n):
    outputs = list(itertools.islice(echo_iterable(source, 2), 99))
    assert len(outputs) == 2 * n
    assert outputs[::2] == outputs[1::2]


def test_a_loader_makes_each_batch_once_and_can_be_iterated_over_again():
    loader = Loader(12)
    echoed = echo_iterable(loader, 3, 4, seed=1)
    first = [batch["y"][0] for batch in echoed]
    assert loader.produced == 12
    assert sorted(batch["y"][0] for batch in echoed) == sorted(first)
    assert loader.produced == 24
    assert collections.Counter(first) == dict.fromkeys(range(12), 3)


def test_copies_are_independent_of_each_other_and_of_the_source():
    batches = [{"x": np.full(3, i), "y": [i]} for i in range(8)]
    for copy in echo_iterable(batches, 3, 5, seed=2):
        (number,) = copy["y"]
        assert copy["x"].tolist() == [number] * 3
        copy["x"][:] = -1
        copy["y"].append("changed")
    assert [batch["y"] for batch in batches] == [[i] for i in range(8)]
    assert all(batch["x"].tolist() == [i] * 3 for i, batch in enumerate(batches))


def test_an_iterator_frees_its_items_without_the_garbage_collector():
    iterator = iter(echo_iterable(Loader(100), 2, 9))
    next(iterator)
    store = weakref.ref(iterator._pass.store)
    with no_garbage_collector():
        del iterator
        assert store() is None


@pytest.mark.parametrize("loaded", [False, True])
def test_an_iterable_that_has_been_read_can_be_sent_to_a_worker_process(loaded):
    echoed = echo_iterable(Loader(20), 2, 4)  # its passes are generators, which cannot be pickled
    list(itertools.islice(echoed, 7))
    if loaded:
        echoed.load_state_dict(echoed.state_dict())
    sent = pickle.loads(pickle.dumps(echoed))
    assert sent.epoch == echoed.epoch == (0 if loaded else 1)
    assert [item["y"] for item in sent] == [item["y"] for item in echoed]


def test_after_a_state_is_loaded_the_next_pass_is_that_of_the_state():
    echoed = echo_iterable(range(9), 2, 4)
    list(echoed)
    iterator = iter(echoed)
    list(itertools.islice(iterator, 5))
    state, rest = echoed.state_dict(), list(iterator)
    resumed = echo_iterable(range(9), 2, 4)
    resumed.load_state_dict(state)
    assert resumed.epoch == 1
    resumed.set_epoch(resumed.epoch)  # as in a loop over epochs
    assert list(resumed) == rest


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


@pytest.mark.parametrize("iterate", [iter, lambda items: map(int, items), lambda i: (j for j in i)])
def test_an_iterator_that_has_been_read_takes_no_state(iterate):
    echoed = echo_iterable(iterate(range(9)), 2, 4)
    before = echoed.state_dict()
    echoed.load_state_dict(before)
    list(itertools.islice(echoed, 5))
    after = echoed.state_dict()
    with pytest.raises(ValueError, match=r"has type .*, has been read from"):
        echoed.load_state_dict(before)
    again = echo_iterable(iterate(range(9)), 2, 4)
    again.load_state_dict(after)
    again.set_epoch(3)  # discards the state, for which items have been read
    with pytest.raises(ValueError, match=r"has type .*, has been read from"):
        again.load_state_dict(after)
    again = echo_iterable(iterate(range(9)), 2, 4)
    again.load_state_dict(after)
    assert list(again) == list(echo_iterable(range(9), 2, 4))[5:]


def test_a_source_may_reuse_its_buffer():
    def reusing():
        buffer = np.zeros(3, int)
        for i in range(20):
            buffer[:] = i
            yield buffer

    outputs = [array.tolist() for array in echo_iterable(reusing(), 2, 6, seed=3)]
    assert outputs == [[i] * 3 for i in schedule_says(2, 6, 3, 20)]


def test_a_buffer_may_be_far_larger_than_the_stream():
    tracemalloc.start()
    outputs = list(echo_iterable(iter(range(50)), 2, 2**40, seed=1))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert outputs == schedule_says(2, 2**40, 1, 50)
    assert peak < 2**22


def test_an_error_of_the_source_is_raised_when_its_item_is_due():
    def breaking():
        yield from range(3)
        raise OSError("the network is gone")

    iterator = iter(echo_iterable(breaking(), 2))
    assert [next(iterator) for _ in range(6)] == [0, 0, 1, 1, 2, 2]
    for _ in range(3):  # the generator has ended, but the data have not
        with pytest.raises(OSError, match="the network is gone"):
            next(iterator)
    assert iterator.state()["num_items"] == -1


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
    echoed.load_state_dict(echoed.state_dict())
    assert items + list(echoed) == schedule_says(2, 4, 0, 20)
