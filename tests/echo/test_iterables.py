"""Echoing of plain Python iterables."""

import collections

import hypothesis
import hypothesis.strategies as st
import numpy as np
import pytest

from echo import EchoSchedule, echo_iterable


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


def schedule_says(factor, buffer, seed, n):
    return EchoSchedule(factor, buffer, seed).cursor(0, n).take(10_000)[0].tolist()


@hypothesis.settings(max_examples=100, deadline=None)
@hypothesis.given(
    factor=st.sampled_from([1, 2, 1.5, "2.7", 16]),
    buffer=st.integers(0, 30),
    seed=st.integers(0, 99),
    n=st.integers(0, 25),
    skipped=st.integers(0, 40),
)
def test_it_emits_what_the_schedule_says_and_resumes_by_skipping(factor, buffer, seed, n, skipped):
    expected = schedule_says(factor, buffer, seed, n)
    assert list(echo_iterable(range(n), factor, buffer, seed)) == expected
    assert list(echo_iterable((i for i in range(n)), factor, buffer, seed)) == expected
    resumed = iter(echo_iterable(range(n), factor, buffer, seed))
    if skipped > len(expected):
        with pytest.raises(ValueError, match=f"cannot skip {skipped} .* ends at {len(expected)}"):
            resumed.skip(skipped)
        return
    resumed.skip(skipped)
    schedule = EchoSchedule(factor, buffer, seed)
    assert len(resumed._store) == len(schedule.cursor(skipped, n).live())
    for position in range(skipped, len(expected) + 1):
        assert resumed.position == position
        assert resumed.fresh_examples == schedule.admitted(position, n)
        assert next(resumed, None) == (expected[position] if position < len(expected) else None)


def test_the_length_is_the_number_of_outputs():
    echoed = echo_iterable(Loader(7), 1.5, 3)
    assert len(echoed) == len(list(echoed)) == 10
    assert len(echo_iterable([], 2)) == 0
    with pytest.raises(TypeError, match="has no len"):
        len(echo_iterable((i for i in range(3)), 2))


@pytest.mark.parametrize(("source", "n"), [([0, 1, 2], 3), (OneByOne(), 9), ((i for i in "ab"), 2)])
def test_any_iterable_works(source, n):
    outputs = list(echo_iterable(source, 2))
    assert len(outputs) == 2 * n
    assert outputs[::2] == outputs[1::2]


def test_a_loader_makes_each_batch_once_and_can_be_iterated_over_again():
    loader = Loader(12)
    echoed = echo_iterable(loader, 3, 4, seed=1)
    first = [batch["y"][0] for batch in echoed]
    assert loader.produced == 12
    assert [batch["y"][0] for batch in echoed] == first
    assert loader.produced == 24
    assert collections.Counter(first) == dict.fromkeys(range(12), 3)


def test_no_more_items_are_read_than_admitted():
    loader = Loader(1_000)
    iterator = iter(echo_iterable(loader, 2, 10))
    assert iterator.fresh_examples == loader.produced == 0
    for outputs in range(1, 50):
        next(iterator)
        assert loader.produced == iterator.fresh_examples == (outputs + 10) // 2


def test_copies_are_independent_of_each_other_and_of_the_source():
    batches = [{"x": np.full(3, i), "y": [i]} for i in range(8)]
    for copy in echo_iterable(batches, 3, 5, seed=2):
        (number,) = copy["y"]
        assert copy["x"].tolist() == [number] * 3
        copy["x"][:] = -1
        copy["y"].append("changed")
    assert [batch["y"] for batch in batches] == [[i] for i in range(8)]
    assert all(batch["x"].tolist() == [i] * 3 for i, batch in enumerate(batches))


def test_a_source_may_reuse_its_buffer():
    def reusing():
        buffer = np.zeros(3, int)
        for i in range(20):
            buffer[:] = i
            yield buffer

    outputs = [array.tolist() for array in echo_iterable(reusing(), 2, 6, seed=3)]
    assert outputs == [[i] * 3 for i in schedule_says(2, 6, 3, 20)]


def test_an_error_of_the_source_is_raised_when_its_item_is_due():
    def breaking():
        yield from range(3)
        raise OSError("the network is gone")

    iterator = iter(echo_iterable(breaking(), 2))
    assert [next(iterator) for _ in range(6)] == [0, 0, 1, 1, 2, 2]
    with pytest.raises(OSError, match="the network is gone"):
        next(iterator)
