"""Stages between the source and the echo stage: random-access, and a chunk of examples at a time.

A stage gives the examples `indices` of the fresh stream as one dict of arrays with a leading axis
(`stacked_items`, which the echo stage reads through), so that a vectorised function runs once a
chunk rather than once an example. Any index can be asked for at any time, by several threads.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import grain
import numpy as np

from pipeline.sources import Source, SourceError

Arrays = dict[str, np.ndarray]  # each [n, ...]


class Batch(NamedTuple):
    """What the pipeline hands to the step.

    Attributes:
        data: the examples, arrays with a leading axis of length B.
        index: which fresh example each row shows, int64 [B].
        copy: which of its showings this is, 0 for the first, int64 [B].
        fresh_examples: fresh examples admitted up to and with this batch.
    """

    data: Arrays
    index: np.ndarray
    copy: np.ndarray
    fresh_examples: int


class Read(grain.MapDataset):
    """The fresh stream: example i of it is record order[i] of the source, without end.

    Args:
        source: raw records.
        seed: of the order; every pass over the source is a new permutation of it.
        num_fresh: length of the stream, which may span many passes.
        stream, streams: this sub-stream takes examples stream, stream + streams, ... of the whole.
        decode: turns a list of raw records into stacked arrays.
    """

    def __init__(
        self,
        source: Source,
        seed: int,
        num_fresh: int,
        decode: Callable[[list[dict[str, Any]]], Arrays],
        stream: int = 0,
        streams: int = 1,
    ):
        super().__init__()
        self._source = source
        self._order = grain.MapDataset.range(len(source)).shuffle(seed=seed).repeat()
        self._decode = decode
        self._places = range(stream, num_fresh, streams)

    def __len__(self) -> int:
        return len(self._places)

    def __getitem__(self, index: int) -> Arrays:
        return _only_row(self.stacked_items([index]))

    def fresh_index(self, indices: Sequence[int]) -> np.ndarray:
        """The places of this sub-stream's examples in the whole fresh stream, int64 [n]."""
        return self._places.start + self._places.step * np.asarray(indices, np.int64)

    def stacked_items(self, indices: Sequence[int]) -> Arrays:
        places = self._order._getitems(self.fresh_index(indices).tolist())
        return read_and_decode(self._source, places, self._decode)


class RecordError(SourceError):
    """A record that cannot be decoded; the message says which."""


def read_and_decode(source: Source, places: Sequence[int], decode) -> Arrays:
    """The records at `places` of the source, decoded together.

    Raises:
        RecordError: one of them cannot be decoded.
    """
    records = source.__getitems__(places)
    try:
        return decode(records)
    except Exception:
        for place, record in zip(places, records, strict=True):
            _decode_alone(place, record, decode)
        raise  # each alone is fine


def _decode_alone(place: int, record: dict[str, Any], decode) -> None:
    try:
        decode([record])
    except Exception as error:
        names = [f"{key} {record[key]!r}" for key in ("image/id", "image/filename") if key in record]
        known = f" ({', '.join(names)})" if names else ""
        raise RecordError(f"record {place} of the split{known} cannot be decoded: {error}") from error


class MapChunks(grain.MapDataset):
    """Applies `function(arrays, indices) -> arrays` to chunks of the parent's examples."""

    def __init__(self, parent, function: Callable[[Arrays, Sequence[int]], Arrays]):
        super().__init__(parent)
        self._function = function

    def __len__(self) -> int:
        return len(self._parent)

    def __getitem__(self, index: int) -> Arrays:
        return _only_row(self.stacked_items([index]))

    def stacked_items(self, indices: Sequence[int]) -> Arrays:
        return self._function(self._parent.stacked_items(indices), indices)


class Batches(grain.MapDataset):
    """Item j is the stacked examples j*B .. (j+1)*B - 1; a last partial batch is left out."""

    def __init__(self, parent, batch_size: int):
        super().__init__(parent)
        self._batch_size = batch_size

    def __len__(self) -> int:
        return len(self._parent) // self._batch_size

    def __getitem__(self, index: int) -> Arrays:
        start = index * self._batch_size
        return self._parent.stacked_items(range(start, start + self._batch_size))


def _only_row(arrays: Arrays) -> Arrays:
    return {name: array[0] for name, array in arrays.items()}
