"""The stages before the echo stage: read, decode, augment, batch. All are random access.

`stacked_items(indices)`, which the echo stage calls, returns the examples `indices` of the fresh
stream as one dict of arrays with a leading axis. A vectorized function therefore runs once per
chunk instead of once per example. Several threads may request any index at any time.
"""

import dataclasses
import functools
import hashlib
import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import grain
import numpy as np
from grain.experimental import index_shuffle
from jax.profiler import TraceAnnotation

from data.sources import DamagedError, RecordError, Source, reason
from echo.threads import DaemonPool, usable_cores
from pipeline.workers import Workers

Arrays = dict[str, np.ndarray]  # each [n, ...]

# (raw records, the fresh examples and the copies that they are, int64 [n]) -> stacked arrays
Decode = Callable[[list[dict[str, Any]], np.ndarray, np.ndarray], Arrays]

CHUNK = 32  # examples decoded and augmented per call

CORES = min(16, usable_cores())

_MAX_NAMED = 100  # skipped records of a split

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
            records. With echo.placement=device: JAX arrays; of several streams, a list of them.
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


@dataclasses.dataclass(frozen=True)
class FreshOrder:
    """The order of a stream: fresh examples stream, stream + streams, ..., each once.

    Attributes:
        num_fresh: the number of fresh examples in all streams, which may span many epochs.
    """

    num_fresh: int
    stream: int = 0
    streams: int = 1

    def __len__(self) -> int:
        return len(range(self.stream, self.num_fresh, self.streams))

    def locate(self, positions: Sequence[int] | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The fresh example and the copy number at each position, int64 of their shape."""
        index = self.stream + self.streams * np.asarray(positions, np.int64)
        return index, np.zeros_like(index)

    def admitted(self, positions: int) -> int:
        """The number of fresh examples at the first `positions` positions."""
        return positions


class Examples(grain.MapDataset):
    """The examples of a stream, read, decoded, and perhaps augmented.

    Fresh example i is record i mod n, in the order of epoch i // n.

    Args:
        source: n raw records.
        seed: seeds the order of each epoch, see `record_numbers`; None for the source's own.
        order: a FreshOrder, or what has its members.
        decode: converts raw records to stacked arrays.
        skip: whether an example whose record is damaged consists of the next record of the source
            that is not, so that all others stay where they are; the source notes its number.
        augment: the stage after decoding, which runs with the others in chunks on all cores; None
            for none.
    """

    def __init__(
        self,
        source: Source,
        seed: int | None,
        order: Any,
        decode: Decode,
        *,
        skip: bool = False,
        augment: Stage | None = None,
    ):
        super().__init__()
        self.source, self.order, self._seed = source, order, seed
        self._decode, self._skip, self._augment = decode, skip, augment
        self._workers: tuple[Workers, int, Arrays] | None = None

    def then(self, augment: Stage) -> "Examples":
        """These examples, augmented."""
        arguments = self.source, self._seed, self.order, self._decode
        examples = Examples(*arguments, skip=self._skip, augment=augment)
        if self._workers is not None:
            workers, stream, first = self._workers
            zero = np.zeros(1, np.int64)
            examples.computed_by(workers, stream, examples.augmented(first, zero, zero))
        return examples

    def computed_by(self, workers: Workers | None, stream: int, first: Arrays) -> "Examples":
        """These examples, like `first`, each array [1, ...]; if there are workers, from equal ones
        in their processes."""
        self._workers = workers and (workers, stream, first)
        return self

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, index: int) -> Arrays:
        return {name: array[0] for name, array in self.stacked_items([index]).items()}

    def stacked_items(self, indices: Sequence[int]) -> Arrays:
        augment = self._augment
        if self._workers is not None:
            workers, stream, first = self._workers
            return workers.stacked_items((stream, augment is not None), indices, first)
        if augment is None:
            return self._chunk(indices).data
        return in_chunks(lambda chunk: augment(self._chunk(chunk)).data, indices)

    def augmented(self, data: Arrays, index_n: np.ndarray, copy_n: np.ndarray) -> Arrays:
        """Examples, augmented as these are."""
        assert self._augment is not None
        return self._augment(Batch(data, index_n, copy_n, 0)).data

    def _chunk(self, indices: Sequence[int]) -> Batch:
        return self.decode(self.read(self.rows(indices)))

    def rows(self, indices: Sequence[int]) -> Batch:
        """The numbers of the examples at `indices`, without data."""
        index, copy = self.order.locate(indices)
        return Batch(None, index, copy, 0)

    def read(self, rows: Batch) -> Batch:
        """Reads the raw records of a batch."""
        with TraceAnnotation("read"):
            return rows._replace(data=self.source.__getitems__(self._records(rows)))

    def decode(self, rows: Batch) -> Batch:
        """Decodes the raw records of a batch; raises RecordError for the first that is damaged."""
        with TraceAnnotation("decode"):
            try:
                return rows._replace(data=self._decode(*rows[:3]))
            except Exception:  # a damaged record can make a decoder raise anything
                records = [self._sound_record(rows, row) for row in range(len(rows.data))]
                return rows._replace(data=self._decode(records, rows.index, rows.copy))

    def _sound_record(self, rows: Batch, row: int) -> dict[str, Any]:
        """The record of a row, or of its example if damaged ones are skipped."""
        first, one = self._records(rows)[row], slice(row, row + 1)
        for distance in range(len(self.source)):
            number = (first + distance) % len(self.source)
            record = self.source[number] if distance else rows.data[row]
            try:
                self._decode([record], rows.index[one], rows.copy[one])
                return record
            except Exception as error:
                fields = {k: value for k, value in record.items() if len(repr(value)) <= 64}
                what = f"{self.source.where(number)} {fields} cannot be decoded: {reason(error)}"
                damaged = isinstance(error, DamagedError)
                if not (damaged and self._skip):
                    remedy = ", or set config.dataset.damaged=skip" if damaged else ""
                    raise RecordError(
                        f"{what}; fix it, or leave it out of the split{remedy}"
                    ) from error
                if number not in self.source.damaged:
                    self.source.damaged.add(number)
                    if len(self.source.damaged) <= _MAX_NAMED:
                        warnings.warn(f"{what}; it is skipped", RuntimeWarning, stacklevel=2)
        raise RecordError("every record of the split is damaged")

    def _records(self, rows: Batch) -> list[int]:
        if self._seed is None:
            return (rows.index % len(self.source)).tolist()
        return record_numbers(rows.index, len(self.source), self._seed)


def num_skipped(source: Source, seed: int, batch: Batch) -> int:
    """The number of fresh examples of a batch in whose place others are, since they are damaged."""
    if not source.damaged:
        return 0
    records = record_numbers(batch.index[batch.copy == 0], len(source), seed)
    return sum(number in source.damaged for number in records)


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


_thread = threading.local()  # `of_pool`: whether this is a thread of the pool


def use_this_thread() -> None:
    """Lets this thread do what it would spread over the cores: other processes are on them."""
    _thread.of_pool = True


def _called_by_pool(function: Callable[..., Any], *args: Any) -> Any:
    use_this_thread()
    return function(*args)


def on_a_core(function: Callable[..., Any], *args: Any) -> Any:
    """What `function(*args)` returns on a thread of the pool. Such a thread calls it itself: if
    those of the pool waited for one another, all could wait."""
    if getattr(_thread, "of_pool", False):
        return function(*args)
    return _pool().submit(_called_by_pool, function, *args).result()


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
    if len(starts) <= 1 or getattr(_thread, "of_pool", False):
        return function(indices)
    whole: Arrays | None = None
    first = threading.Lock()

    def part(start: int) -> None:
        nonlocal whole
        chunk = indices[start : start + size]
        arrays = function(chunk)
        with first:
            if whole is None:
                n = len(indices)
                whole = {k: np.empty((n, *x.shape[1:]), x.dtype) for k, x in arrays.items()}
        wanted = {k: (x.dtype, (len(chunk), *x.shape[1:])) for k, x in whole.items()}
        given = {k: (x.dtype, x.shape) for k, x in arrays.items()}
        if given != wanted:
            raise ValueError(
                f"{len(chunk)} examples came as {given} instead of {wanted}; return arrays of the "
                "same names, dtypes, and shapes for all"
            )
        # Each thread copies its own: one that concatenated them would hold up the others.
        for name, array in arrays.items():
            whole[name][start : start + size] = array

    for future in [_pool().submit(_called_by_pool, part, start) for start in starts]:
        future.result()
    assert whole is not None  # there are chunks
    return whole


class Batches(grain.MapDataset):
    """Item j stacks the examples j*B .. (j+1)*B - 1. A partial last batch is dropped."""

    def __init__(self, parent: Examples, batch_size: int):
        super().__init__(parent)
        self._examples, self._batch_size = parent, batch_size

    def __len__(self) -> int:
        return len(self._examples) // self._batch_size

    def __getitem__(self, index: int) -> Arrays:
        start = index * self._batch_size
        return self._examples.stacked_items(range(start, start + self._batch_size))
