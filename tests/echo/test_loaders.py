"""`echo.auto`: every example once or more, none twice in a batch, whatever the timing."""

import collections
import itertools
import json
import threading
import time

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

import echo
from tests.helpers.runs import HANGS

ROWS = 8


class Loader:
    """`n` batches, each after one of `pauses`, in turn. The array is reused, as some loaders do."""

    def __init__(self, n, pauses=(0.0,)):
        self.n, self.pauses, self.array = n, pauses, np.zeros(ROWS, np.int64)

    def __iter__(self):
        for i, pause in zip(range(self.n), itertools.cycle(self.pauses), strict=False):
            time.sleep(pause)
            self.array[:] = np.arange(i * ROWS, (i + 1) * ROWS)
            yield {"x": self.array, "pair": (self.array[:, None] * [1, -1], self.array.copy())}


class StatefulLoader(Loader):
    """Continues from its state, in the next pass if that is loaded."""

    done = 0

    def __iter__(self):
        for batch in itertools.islice(super().__iter__(), self.done, None):
            self.done += 1
            yield batch
        self.done = 0

    def state_dict(self):
        return {"done": self.done}

    def load_state_dict(self, state):
        self.done = state["done"]


def examples(batches):
    """The examples of each batch, all of whose leaves must agree."""
    for batch in batches:
        x, (pairs, values) = batch["x"], batch["pair"]
        assert (pairs == x[:, None] * [1, -1]).all()
        assert (values == x).all()
    return [batch["x"].tolist() for batch in batches]


@hypothesis.given(
    n=st.integers(1, 12),
    max_factor=st.integers(1, 5),
    pauses=st.lists(st.sampled_from([0.0, 0.001, 0.004]), min_size=1, max_size=4),
    buffer=st.sampled_from([0, ROWS, 3 * ROWS]),
    position=st.integers(0, 12),
    loader=st.sampled_from([Loader, StatefulLoader]),
)
@hypothesis.settings(max_examples=40, deadline=None)
def test_each_example_comes_and_a_state_continues(n, max_factor, pauses, buffer, position, loader):
    def batches():
        return echo.auto(loader(n, pauses), max_factor, buffer, seed=3)

    before, after = batches(), batches()
    first = list(itertools.islice(before, position))
    state = before.state_dict()
    assert state["shuffle_buffer"] == (buffer or 32 * ROWS) or not first
    after.load_state_dict(json.loads(json.dumps(state)))
    rows = examples(first + list(after))
    assert all(len(set(batch)) == ROWS for batch in rows)  # none twice in a batch
    copies = collections.Counter(itertools.chain.from_iterable(rows))
    assert max(copies.values()) <= max_factor
    # The last ones are left out if they are fewer than a batch.
    assert n * ROWS - ROWS < len(copies) <= n * ROWS
    assert (after.fresh_examples, after.emitted) == (len(copies), copies.total())


@pytest.mark.parametrize(("mix", "rows"), [(True, ROWS), (True, 12_000), (False, ROWS)])
def test_examples_repeat_while_the_loader_stands_still(mix, rows):
    moved_on = threading.Event()

    def loader():
        for i in range(4):
            assert i < 2 or moved_on.wait(HANGS)
            yield np.arange(i * rows, (i + 1) * rows)

    iterator = iter(echo.auto(loader(), max_factor=4, mix=mix))
    batches = [next(iterator) for _ in range(4)]  # two of them repeat, or the next line hangs
    moved_on.set()
    assert {*np.concatenate(batches).tolist()} == {*range(2 * rows)}
    batches += list(iterator)
    assert {*np.concatenate(batches).tolist()} == {*range(4 * rows)}
    assert len({id(batch) for batch in batches}) == len(batches)


def test_each_pass_is_a_pass_over_the_loader():
    batches = echo.auto(Loader(3), max_factor=1)
    assert examples(list(batches)) == examples(list(batches))
    assert (batches.epoch, batches.fresh_examples) == (2, 6 * ROWS)
    list(zip(range(1), batches, strict=False))  # a pass that is left
    assert len(list(batches)) == 3


class Positioned:
    """Has one position, which every pass continues from and moves."""

    done = 0

    def __iter__(self):
        while self.done < 26:
            time.sleep(0.01)
            self.done += 1
            yield np.arange(ROWS) + ROWS * (self.done - 1)

    def state_dict(self):
        return {"done": self.done}

    load_state_dict = StatefulLoader.load_state_dict


def test_a_state_is_loaded_while_the_loader_is_being_read():
    batches = echo.auto(Positioned(), max_factor=1)
    iterator = iter(batches)
    before = list(itertools.islice(iterator, 18))  # past a state of the loader
    state = batches.state_dict()
    next(iterator)  # and reads ahead
    batches.load_state_dict(state)
    rows = np.concatenate(before + list(batches))
    assert rows.tolist() == list(range(26 * ROWS))


def test_a_loader_that_cannot_start_again_is_refused():
    batches = echo.auto(Positioned(), max_factor=1)
    start = json.loads(json.dumps(batches.state_dict()))
    next(iter(batches))
    with pytest.raises(ValueError, match="cannot start again"):
        batches.load_state_dict(start)


def test_a_pass_follows_one_that_is_reading_the_same_generator():
    batches = echo.auto(iter(Loader(8, [0.01])), max_factor=1)
    list(zip(range(4), batches, strict=False))
    assert examples(list(batches))[-1] == list(range(7 * ROWS, 8 * ROWS))


def test_the_pass_before_ends_although_it_had_read_ahead():
    batches = echo.auto(Loader(8), max_factor=1)
    first = iter(batches)
    next(first)
    assert len(list(batches)) == 8
    assert len(list(first)) < 7


@pytest.mark.parametrize("sizes", [[4, 3, 4], [4, 5, 7], [3, 0, 4, 2, 3]])
def test_batches_of_a_loader_may_differ_in_size(sizes):
    numbers = np.arange(sum(sizes))
    batches = list(echo.auto(np.split(numbers, np.cumsum(sizes)[:-1]), max_factor=1))
    assert {len(batch) for batch in batches} == {sizes[0]}
    whole = len(numbers) // sizes[0] * sizes[0]
    assert np.concatenate(batches).tolist() == numbers[:whole].tolist()


def test_an_empty_loader_has_no_batches():
    assert list(echo.auto([])) == []


@pytest.mark.parametrize(
    ("batches", "error"),
    [
        ([np.zeros((4, 2)), np.zeros((4, 3))], ValueError),
        ([np.zeros((4, 2)), np.zeros((4, 2), np.float32)], ValueError),
        ([(np.zeros(4), np.zeros(3))], TypeError),
        ([{"x": np.zeros(4), "name": "a"}], TypeError),
        ([np.asarray([None] * 4)], TypeError),
        ([np.ma.masked_less(np.arange(4), 2)], TypeError),  # the mask would be lost
        (3, TypeError),
    ],
)
def test_batches_that_cannot_be_mixed_are_refused(batches, error):
    with pytest.raises(error, match="mix=False" if batches != 3 else "int"):
        list(echo.auto(batches, max_factor=1))


@pytest.mark.extras
def test_tensors_stay_tensors():
    torch = pytest.importorskip("torch")
    data = torch.utils.data.TensorDataset(torch.arange(32), torch.ones(32, 2, dtype=torch.bfloat16))
    batches = list(echo.auto(torch.utils.data.DataLoader(data, batch_size=8), max_factor=1))
    assert torch.cat([x for x, _ in batches]).tolist() == list(range(32))
    assert {(y.dtype, tuple(y.shape)) for _, y in batches} == {(torch.bfloat16, (8, 2))}
