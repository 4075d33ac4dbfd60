"""Streams that are concatenated into batches: what an error in one of them leaves, and the end."""

import grain
import numpy as np
import pytest

from pipeline.map_datasets import Batch
from pipeline.streams import ConcatenatedStreams, concatenate

NUM_BATCHES = 6


class Counter:
    """The part of a policy that concatenating uses."""

    asked = 0  # how often `combine` was called
    total_steps = None  # `combine` finds the end

    def combine(self, number, blocks):
        self.asked += 1
        if blocks is None:
            raise StopIteration
        return concatenate(list(blocks.values()))

    def get_state(self):
        return {}

    def set_state(self, state):
        pass


def block(stream, i):
    """Block i of a stream is `10 * stream + i`."""
    row = np.array([10 * stream + i])
    return Batch({"x": row}, row, np.array([0]), i + 1)


def two_streams(read=block):
    """The batches of two streams, the first of which has a block more."""
    parts = {}
    for stream in (0, 1):
        indices = grain.MapDataset.range(NUM_BATCHES + 1 - stream)
        indices = indices.to_iter_dataset(grain.ReadOptions(0, 0))
        # reads after the index was taken
        parts[stream] = indices.map(lambda i, stream=stream: read(stream, i))
    return ConcatenatedStreams(parts, Counter(), "echo")


def rows(iterator):
    return [batch.data["x"].tolist() for batch in iterator]


BATCHES = [[i, 10 + i] for i in range(NUM_BATCHES)]


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
@pytest.mark.parametrize("failing", [0, 1])
def test_after_an_error_the_state_is_that_before_the_batch(failing, error):
    failures = {failing: 1}

    def read(stream, i):
        if i == 2 and failures.pop(stream, 0):
            raise error
        return block(stream, i)

    dataset = two_streams(read)
    iterator, resumed = iter(dataset), iter(dataset)
    assert rows(next(iterator) for _ in range(2)) == BATCHES[:2]
    with pytest.raises(error):
        next(iterator)
    resumed.set_state(iterator.get_state())
    assert rows(resumed) == BATCHES[2:]


def test_a_stream_that_is_longer_does_not_run_ahead_at_the_end():
    iterator = iter(two_streams())
    assert rows(iterator) == BATCHES
    state = iterator.get_state()
    for _ in range(3):
        assert next(iterator, None) is None
        assert iterator.get_state() == state


def test_after_the_end_nothing_is_asked_again_until_a_state_is_restored():
    dataset = two_streams()
    iterator = iter(dataset)
    start = iterator.get_state()
    assert rows(iterator) == BATCHES
    assert dataset.policy.asked == NUM_BATCHES + 1
    assert next(iterator, None) is next(iterator, None) is None
    assert dataset.policy.asked == NUM_BATCHES + 1
    iterator.set_state(start)
    assert next(iterator).data["x"].tolist() == BATCHES[0]
