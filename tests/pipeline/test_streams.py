"""Streams that are concatenated into batches: what an error in one of them leaves."""

import grain
import numpy as np
import pytest

from pipeline.map_datasets import Batch
from pipeline.streams import ConcatenatedStreams, concatenate

NUM_BATCHES = 6


class Counter:
    """The part of a policy that concatenating uses."""

    read_ahead = True
    asked = 0  # how often `combine` was called

    def ended(self, taken):
        return False  # `combine` finds out

    def combine(self, number, blocks):
        self.asked += 1
        if blocks is None:
            raise StopIteration
        return concatenate(list(blocks.values()))

    def get_state(self):
        return {}

    def set_state(self, state):
        pass


class Flaky:
    """Block i of a stream is `10 * stream + i`. Reading a block fails as often as `failures`
    says."""

    def __init__(self, stream):
        self.stream, self.failures, self.error = stream, {}, OSError

    def __call__(self, i):
        if self.failures.get(i):
            self.failures[i] -= 1
            raise self.error(f"cannot read {i}")
        row = np.array([10 * self.stream + i])
        return Batch({"x": row}, row, np.array([0]), i + 1)


def two_streams():
    """An iterator over the batches of two streams, the first of which has a block more, and what
    each stream reads with."""
    reads = [Flaky(0), Flaky(1)]
    blocks = [grain.MapDataset.range(NUM_BATCHES + 1 - read.stream).map(read) for read in reads]
    parts = dict(enumerate(b.to_iter_dataset(grain.ReadOptions(0, 0)) for b in blocks))
    return iter(ConcatenatedStreams(parts, Counter(), "echo")), reads


def rows(iterator):
    return [batch.data["x"].tolist() for batch in iterator]


BATCHES = 6


class Counter:
    """The part of a policy that concatenating uses."""

    read_ahead = True
    asked = 0  # how often `combine` was called

    def ended(self, taken):
        return False  # `combine` finds out

    def combine(self, number, blocks):
        self.asked += 1
        if blocks is None:
            raise StopIteration
        return concatenate(list(blocks.values()))

    def get_state(self):
        return {}

    def set_state(self, state):
        pass


class Flaky:
    """Block i of a stream is `10 * stream + i`. Reading a block fails as often as `failures`
    says."""

    def __init__(self, stream):
        self.stream, self.failures, self.error = stream, {}, OSError

    def __call__(self, i):
        if self.failures.get(i):
            self.failures[i] -= 1
            raise self.error(f"cannot read {i}")
        row = np.array([10 * self.stream + i])
        return Batch({"x": row}, row, np.array([0]), i + 1)


def two_streams():
    """An iterator over the batches of two streams, the first of which has a block more, and what
    each stream reads with."""
    reads = [Flaky(0), Flaky(1)]
    blocks = [grain.MapDataset.range(NUM_BATCHES + 1 - read.stream).map(read) for read in reads]
    parts = dict(enumerate(b.to_iter_dataset(grain.ReadOptions(0, 0)) for b in blocks))
    return iter(ConcatenatedStreams(parts, Counter(), "echo")), reads


def rows(iterator):
    """The rows of each batch, and the message of each error."""
    while True:
        try:
            yield next(iterator).data["x"].tolist()
        except StopIteration:
            return
        except OSError as error:
            yield str(error)


BATCHES = [[i, 10 + i] for i in range(NUM_BATCHES)]


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
@pytest.mark.parametrize("stream", [0, 1])
def test_after_an_error_the_state_is_that_before_the_batch(stream, error):
    """Also where a stream has taken the index of the block that it could not read."""
    reads = [Flaky(0), Flaky(1)]
    indices = grain.MapDataset.range(NUM_BATCHES).to_iter_dataset(grain.ReadOptions(0, 0))
    parts = {read.stream: indices.map(read) for read in reads}  # reads after the index was taken
    dataset = ConcatenatedStreams(parts, Counter(), "echo")
    iterator, resumed = iter(dataset), iter(dataset)
    assert [next(iterator).data["x"].tolist() for _ in range(2)] == BATCHES[:2]
    reads[stream].failures, reads[stream].error = {2: 1}, error
    with pytest.raises(error):
        next(iterator)
    resumed.set_state(iterator.get_state())
    assert rows(resumed) == BATCHES[2:]


def test_a_stream_that_is_longer_does_not_run_ahead_at_the_end():
    iterator, _ = two_streams()
    assert rows(iterator) == BATCHES
    state = iterator.get_state()
    for _ in range(3):
        assert next(iterator, None) is None
        assert iterator.get_state() == state


def test_after_the_end_nothing_is_asked_again_until_a_state_is_restored():
    iterator, reads = two_streams()
    start = iterator.get_state()
    assert rows(iterator) == BATCHES
    asked = iterator._dataset.policy.asked
    reads[0].failures = {NUM_BATCHES: 1}
    assert next(iterator, None) is next(iterator, None) is None
    assert iterator._dataset.policy.asked == asked == NUM_BATCHES + 1
    iterator.set_state(start)
    assert next(iterator).data["x"].tolist() == BATCHES[0]
