"""The stages before the echo stage: read, decode, augment, batch. All are random access.

`stacked_items(indices)`, which the echo stage calls, returns the examples `indices` of the fresh
stream as one dict of arrays with a leading axis. A vectorized function therefore runs once per
chunk instead of once per example. Several threads may request any index at any time.
"""

import functools
import hashlib
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import grain
import numpy as np
from grain.experimental import index_shuffle
from jax.profiler import TraceAnnotation

from data.sources import RecordError, Source, reason
from echo.threads import DaemonPool, usable_cores

Arrays = dict[str, np.ndarray]  # each [n, ...]

# (raw records, the fresh examples and the copies that they are, int64 [n]) -> stacked arrays
Decode = Callable[[list[dict[str, Any]], np.ndarray, np.ndarray], Arrays]

# Examples decoded and augmented per call.
CHUNK = 32

CORES = min(16, usable_cores())

# The order of an epoch of up to this many records is drawn at once, in 8 MiB at most, and the last
# few are kept. The order of a longer epoch is computed one index at a time.
_MAX_CACHED_ORDER = 2**20

# Rounds of the block cipher behind a computed order. With Grain's default of 4, 14 of 2,500 orders
# of 512 records were visibly regular (correlations of up to 12 standard errors with the unshuffled
# order or between neighbors). With 6, none was; 8 leaves a margin.
_CIPHER_ROUNDS = 8


class Batch(NamedTuple):
    """What the pipeline passes to the training step, and from stage to stage.

    Attributes:
        data: the examples, `Arrays` with a leading axis of length B. Before decoding: a list of raw
            records. With echo.placement=device: the `echo.GatherPlan` that gathers them.
        index: the fresh example in each row, int64 [B].
        copy: the number of the copy of that example, int64 [B]; 0 before the echo stage. It seeds
            augmentation. Under echo.policy=fixed with a shuffle buffer, copies are emitted in any
            order, so copy 0 need not come first.
        fresh_examples: fresh examples admitted up to and including this batch; 0 before the echo
            stage.
        decisions: under echo.policy=auto, the fresh examples in this batch by stream.
    """

    data: Any
    index: np.ndarray
    copy: np.ndarray
    fresh_examples: int
    decisions: tuple[int, ...] = ()


Stage = Callable[[Batch], Batch]


def decode_records(source: Source, numbers: Sequence[int], decode: Decode) -> Arrays:
    """Reads the records `numbers` and decodes them together, as copy 0 of the fresh examples of
    these numbers; raises RecordError for the first that cannot be read or decoded."""
    index_n = np.asarray(numbers, np.int64)
    rows = Batch(source.__getitems__(numbers), index_n, np.zeros_like(index_n), 0)
    return decode_rows(rows, decode, lambda row: source.where(numbers[row]))


def decode_rows(rows: Batch, decode: Decode, where: Callable[[int], str]) -> Arrays:
    """Decodes raw records, the data of `rows`; raises RecordError for the first that cannot be
    decoded. `where` names the record of a row."""
    try:
        return decode(rows.data, rows.index, rows.copy)
    except Exception:  # a damaged record can make a decoder raise anything
        for row, record in enumerate(rows.data):
            try:
                decode([record], rows.index[row : row + 1], rows.copy[row : row + 1])
            except Exception as error:
                fields = {k: value for k, value in record.items() if len(repr(value)) <= 64}
                raise RecordError(
                    f"{where(row)} {fields} cannot be decoded: {reason(error)}; fix it, or leave "
                    "it out of the split"
                ) from error
        raise


class StackedItems(grain.MapDataset):
    """A data set of examples of which `stacked_items` returns any number at once."""

    def __getitem__(self, index: int) -> Arrays:
        return {name: array[0] for name, array in self.stacked_items([index]).items()}

    def stacked_items(self, indices: Sequence[int]) -> Arrays:
        raise NotImplementedError


class Read(StackedItems):
    """The fresh examples of a stream, read and decoded.

    Fresh example i is record i mod n, in the order of epoch i // n.

    Args:
        source: n raw records.
        seed: seeds the order of each epoch; see `record_numbers`.
        num_fresh: the number of fresh examples in all streams, which may span many epochs.
        decode: converts raw records to stacked arrays.
        stream, streams: this stream takes the fresh examples stream, stream + streams, ...
    """

    def __init__(
        self, source: Source, seed: int, num_fresh: int, decode: Decode, stream=0, streams=1
    ):
        super().__init__()
        self._source, self._decode = source, decode
        self._indices = range(stream, num_fresh, streams)
        self.num_records = len(source)
        self._record_numbers = functools.partial(record_numbers, num_records=len(source), seed=seed)

    def __len__(self) -> int:
        return len(self._indices)

    def fresh_index(self, indices: Sequence[int] | np.ndarray) -> np.ndarray:
        """Converts indices of this stream to indices of the whole fresh stream, int64 [n]."""
        return self._indices.start + self._indices.step * np.asarray(indices, np.int64)

    def stacked_items(self, indices: Sequence[int]) -> Arrays:
        return self.decode(self.read(self.first_copy(None, indices))).data

    def first_copy(self, data: Any, indices: Sequence[int] | np.ndarray) -> Batch:
        """`data` as copy 0 of the examples `indices`, which is what `read` and `decode` take."""
        index_n = self.fresh_index(indices)
        return Batch(data, index_n, np.zeros_like(index_n), 0)

    def read(self, batch: Batch) -> Batch:
        """Reads the raw records of a batch."""
        with TraceAnnotation("read"):
            return batch._replace(data=self._source.__getitems__(self._record_numbers(batch.index)))

    def decode(self, batch: Batch) -> Batch:
        """Decodes the raw records of a batch; raises RecordError for one that is damaged."""

        def where(row: int) -> str:
            return self._source.where(self._record_numbers(batch.index)[row])

        with TraceAnnotation("decode"):
            return batch._replace(data=decode_rows(batch, self._decode, where))


def record_numbers(index_n: np.ndarray, num_records: int, seed: int) -> list[int]:
    """The records that the fresh examples `index_n` (int64 [n]) consist of.

    Every epoch is a permutation of the data set. That of epoch k of data seed s is seeded by a hash
    of (s, k). For a computed order the hash has 32 bits, so two of m epochs have equal orders with
    a probability of about m**2 / 2**33.
    """
    epoch_n, place_n = np.divmod(index_n, num_records)
    number_n = np.empty_like(index_n)
    for epoch in np.unique(epoch_n).tolist():
        rows = epoch_n == epoch
        number_n[rows] = _epoch_order(place_n[rows], num_records, seed, epoch)
    return number_n.tolist()


def _epoch_order(place_n: np.ndarray, num_records: int, seed: int, epoch: int) -> Any:
    if num_records <= _MAX_CACHED_ORDER:
        return _cached_order(num_records, seed, epoch)[place_n]
    key = derived_seed("computed order", seed, epoch, bits=32)
    return [
        index_shuffle(place, num_records - 1, key, _CIPHER_ROUNDS) for place in place_n.tolist()
    ]


@functools.lru_cache(maxsize=4)
def _cached_order(num_records: int, seed: int, epoch: int) -> np.ndarray:
    return np.random.default_rng(derived_seed("order", seed, epoch)).permutation(num_records)


def derived_seed(use: str, *numbers: int, bits: int = 64) -> int:
    """A seed in [0, 2**bits) for `use`, such as an epoch's order, and numbers such as (data seed,
    epoch).

    It is the BLAKE2b hash of the text "use/number/number", so it depends on no library's version.
    Sums of seeds would collide: epoch 1 of data seed 0 would get the seed of epoch 0 of data seed
    1, and the searches of a study, whose data seeds are consecutive, would not be independent.
    """
    text = "/".join([use, *(str(int(number)) for number in numbers)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=bits // 8).digest(), "little")


@functools.cache
def _pool() -> DaemonPool:
    """Threads that share the work on a batch. A program that ends does not wait for them."""
    return DaemonPool(CORES)


_on_a_core = threading.local()  # `now`: whether this is a thread of the pool


def _called(function: Callable[..., Any], *args: Any) -> Any:
    _on_a_core.now = True
    return function(*args)


def on_a_core(function: Callable[..., Any], *args: Any) -> Any:
    """What `function(*args)` returns on a thread of the pool. Such a thread calls it itself: if
    those of the pool waited for one another, all could wait."""
    if getattr(_on_a_core, "now", False):
        return function(*args)
    return _pool().submit(_called, function, *args).result()


def in_chunks(
    function: Callable[[Sequence[int]], Arrays], indices: Sequence[int], size: int = CHUNK
) -> Arrays:
    """`function(indices)`, called on chunks of `size` of the indices on all cores.

    A batch of large images takes gigabytes, so all cores work on one batch instead of each on its
    own.

    Raises:
        ValueError: arrays of two chunks do not fit together, or have not one row per index.
    """
    starts = range(0, len(indices), size)
    if len(starts) <= 1 or getattr(_on_a_core, "now", False):
        return function(indices)
    whole: Arrays | None = None
    first = threading.Lock()

    def part(start: int) -> None:
        nonlocal whole
        chunk = indices[start : start + size]
        arrays = function(chunk)
        shapes = {name: (x.dtype, x.shape[1:]) for name, x in arrays.items()}
        with first:
            if whole is None:
                whole = {n: np.empty((len(indices), *s), dtype) for n, (dtype, s) in shapes.items()}
        wanted = {name: (x.dtype, x.shape[1:]) for name, x in whole.items()}
        if shapes != wanted or any(len(x) != len(chunk) for x in arrays.values()):
            raise ValueError(
                f"{len(chunk)} examples came as {[x.shape for x in arrays.values()]}, {shapes}; "
                f"others as {wanted}; return arrays of the same names, dtypes, and shapes for all"
            )
        # Each thread copies its own: one that concatenated them would hold up the others.
        for name, array in arrays.items():
            whole[name][start : start + size] = array

    for future in [_pool().submit(_called, part, start) for start in starts]:
        future.result()
    assert whole is not None  # there are chunks
    return whole


class MapChunks(StackedItems):
    """Applies `function(arrays, indices) -> arrays` to chunks of the parent's examples."""

    def __init__(self, parent: Any, function: Callable[[Arrays, Sequence[int]], Arrays]):
        super().__init__(parent)
        self._examples, self._function = parent, function

    def __len__(self) -> int:
        return len(self._examples)

    def stacked_items(self, indices: Sequence[int]) -> Arrays:
        return in_chunks(
            lambda chunk: self._function(self._examples.stacked_items(chunk), chunk), indices
        )


class Batches(grain.MapDataset):
    """Item j stacks the examples j*B .. (j+1)*B - 1. A partial last batch is dropped."""

    def __init__(self, parent: Any, batch_size: int):
        super().__init__(parent)
        self._examples, self._batch_size = parent, batch_size

    def __len__(self) -> int:
        return len(self._examples) // self._batch_size

    def __getitem__(self, index: int) -> Arrays:
        start = index * self._batch_size
        return self._examples.stacked_items(range(start, start + self._batch_size))
