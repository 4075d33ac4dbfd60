"""Stages between the source and the echo stage: random-access, and a chunk of examples at a time.

A stage gives the examples `indices` of the fresh stream as one dict of arrays with a leading axis
(`stacked_items`, which the echo stage reads through), so that a vectorised function runs once a
chunk rather than once an example. Any index can be asked for at any time, by several threads.
"""

import concurrent.futures
import functools
import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import grain
import numpy as np
from grain.experimental import index_shuffle

import echo
from data.errors import RecordError, reason
from data.sources import Source, where
from pipeline import seeds

Arrays = dict[str, np.ndarray]  # each [n, ...]

# Raw records, and where they are in the fresh stream (int64 [n]), to stacked arrays.
Decode = Callable[[list[dict[str, Any]], np.ndarray], Arrays]

# Examples that are decoded and augmented in one call.
CHUNK = 32

CORES = min(16, os.cpu_count() or 1)

# The order of an epoch of so many records is drawn at once and kept, in 8 MiB at most; that of a
# longer one is computed for one index at a time.
_ORDER_KEPT = 2**20

# Of the block cipher behind a computed order. With Grain's default of 4, 14 of 2,500 orders of 512
# records were visibly regular (correlations of up to 12 standard errors with the unshuffled order
# or between neighbors); with 6 none was.
_ROUNDS = 8

# A record's short fields tell what its number may not: a file's name, a label.
_SHORT = 64


def decode_records(
    source: Source, numbers: Sequence[int], decode: Decode, index_n: np.ndarray
) -> Arrays:
    """Reads the records `numbers` and decodes them together.

    Raises:
        RecordError: for the first that cannot be read or decoded.
    """
    return decode_read(source, source.__getitems__(numbers), numbers, decode, index_n)


def decode_read(
    source: Source,
    records: list[dict[str, Any]],
    numbers: Sequence[int],
    decode: Decode,
    index_n: np.ndarray,
) -> Arrays:
    """Decodes records that have been read from `source`; raises RecordError for the first that
    cannot be."""
    try:
        return decode(records, index_n)
    except Exception:  # whatever a damaged record makes a decoder raise
        for row, number in enumerate(numbers):
            _check_decodes(source, number, records[row], decode, index_n[row : row + 1])
        raise


def _check_decodes(source: Source, number: int, record: dict[str, Any], decode: Decode, index_1):
    try:
        decode([record], index_1)
    except Exception as error:
        fields = {name: value for name, value in record.items() if len(repr(value)) <= _SHORT}
        raise RecordError(
            f"{where(source, number)} {fields} cannot be decoded: {reason(error)}; fix it, or "
            "leave it out of the split"
        ) from error


class Batch(NamedTuple):
    """What the pipeline hands to the step, and its stages to each other.

    Attributes:
        data: the examples, arrays with a leading axis of length B; before decoding raw records;
            where they are kept on the device, the order that gathers them.
        index: which fresh example each row shows, int64 [B].
        copy: which of its showings this is, 0 for the first, int64 [B].
        fresh_examples: fresh examples admitted up to and with this batch; 0 before the echo stage.
        decisions: of echo.policy=auto: the fresh examples in this batch, of each sub-stream.
    """

    data: Arrays | echo.GatherPlan
    index: np.ndarray
    copy: np.ndarray
    fresh_examples: int
    decisions: tuple[int, ...] = ()


Stage = Callable[[Batch], Batch]


class Read(grain.MapDataset):
    """The fresh stream: example i is record i mod n of epoch i // n, each epoch in its own order.

    Args:
        source: raw records.
        seed: of the epochs' orders, see `record_numbers`.
        num_fresh: length of the stream, which may span many passes.
        stream, streams: this sub-stream takes examples stream, stream + streams, ... of the whole.
        decode: turns raw records into stacked arrays.
    """

    def __init__(
        self,
        source: Source,
        seed: int,
        num_fresh: int,
        decode: Decode,
        stream: int = 0,
        streams: int = 1,
    ):
        super().__init__()
        self._source = source
        self._seed = seed
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
        return self.decode(self.read(self.first_copy(None, indices))).data

    def first_copy(self, data: Any, indices: Sequence[int]) -> Batch:
        """`data` of these examples, as the stages before the echo stage take it."""
        index_n = self.fresh_index(indices)
        return Batch(data, index_n, np.zeros_like(index_n), 0)

    def read(self, batch: Batch) -> Batch:
        """Puts in the raw records."""
        return batch._replace(data=self._source.__getitems__(self._numbers(batch)))

    def decode(self, batch: Batch) -> Batch:
        """Raw records to stacked arrays; RecordError for one that cannot be decoded."""
        numbers = self._numbers(batch)
        data = decode_read(self._source, batch.data, numbers, self._decode, batch.index)
        return batch._replace(data=data)

    def _numbers(self, batch: Batch) -> list[int]:
        return record_numbers(batch.index, len(self._source), self._seed)


def record_numbers(index_n: np.ndarray, num_records: int, seed: int) -> list[int]:
    """Which records the fresh examples `index_n` (int64 [n]) are: one permutation an epoch.

    Epoch k of data seed s is permuted by a hash of (s, k). That of a computed order has 32 bits, so
    two of m epochs have equal orders with a probability of about m**2 / 2**33.
    """
    epoch_n, place_n = np.divmod(index_n, num_records)
    number_n = np.empty_like(index_n)
    for epoch in np.unique(epoch_n).tolist():
        rows = epoch_n == epoch
        number_n[rows] = _of_epoch(place_n[rows], num_records, seed, epoch)
    return number_n.tolist()


def _of_epoch(place_n: np.ndarray, num_records: int, seed: int, epoch: int) -> Any:
    if num_records <= _ORDER_KEPT:
        return _kept_order(num_records, seed, epoch)[place_n]
    key = seeds.derived("computed order", seed, epoch, bits=32)
    return [index_shuffle(place, num_records - 1, key, _ROUNDS) for place in place_n.tolist()]


@functools.lru_cache(maxsize=4)
def _kept_order(num_records: int, seed: int, epoch: int) -> np.ndarray:
    return np.random.default_rng(seeds.derived("order", seed, epoch)).permutation(num_records)


# Threads that share the work on one batch; they end with the process.
_POOL = concurrent.futures.ThreadPoolExecutor(CORES, thread_name_prefix="chunks")


def in_chunks(function: Callable[[Sequence[int]], Arrays], indices: Sequence[int]) -> Arrays:
    """`function(indices)`, asked for a chunk at a time, on all cores where there are several.

    The batches of large images are gigabytes: better all cores at one than each at its own.
    """
    chunks = [indices[i : i + CHUNK] for i in range(0, len(indices), CHUNK)]
    if len(chunks) == 1:
        return function(indices)
    parts = list(_POOL.map(function, chunks))
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


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
        return in_chunks(
            lambda chunk: self._function(self._parent.stacked_items(chunk), chunk), indices
        )


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
