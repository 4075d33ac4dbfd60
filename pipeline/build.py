"""The input pipeline, in the order of its stages. This is the file to read first.

    read -> decode -> [echo] -> augment -> [echo] -> batch -> [echo] -> device
              before_augmentation   after_augmentation   after_batching

At most one of the three slots is filled; nothing else differs between conditions.
"""

import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

import grain
import jax
import numpy as np

import echo
from pipeline import spaced
from pipeline.side_by_side import SideBySide
from pipeline.sources import Source
from pipeline.stages import (
    CHUNK,
    CORES,
    Arrays,
    Batch,
    Batches,
    Decode,
    MapChunks,
    Read,
    decode_records,
    in_chunks,
)

# The few lengths that fewer examples are filled up to, so that augmentation is compiled for these
# alone.
_LENGTHS = (8, CHUNK)

# Evaluation batches are kept in memory between evaluations up to this size.
_CACHE_BYTES = 256 * 2**20


class StageFunctions(Protocol):
    """What a workload hands to the pipeline."""

    def decode(self, records: list[dict[str, Any]]) -> Arrays:
        """Raw records to stacked arrays, on the host."""

    def augment(self, data, seed, index_B, copy_B):
        """A JAX function of stacked arrays; what is random in row b is a function of
        (seed, index_B[b], copy_B[b]) alone, all uint32."""

    # Where dataset.fused_decode is allowed, also
    # decode_cropped(records, seed, index_n, copy_n): decodes only what the random crop needs;
    # `augment` then finds its cropping done.


def build(
    config, source: Source, functions: StageFunctions, held: range | None = None
) -> grain.IterDataset[Batch]:
    """The batches of a run; iterate it, and checkpoint its iterator's get_state().

    Args:
        config: a resolved configuration.
        source: raw records of the training split.
        functions: the workload's decode and augment.
        held: the sub-streams that this process reads, None for all. Batches have their rows alone,
            and count the fresh examples of all.
    """
    streams = range(config.echo.streams)
    held = streams if held is None else held
    elsewhere = [_Counts.of(config, stream) for stream in streams if stream not in held]
    batches = SideBySide(
        {stream: _sub_stream(config, source, functions, stream) for stream in held},
        total_steps(config),
        lambda taken: sum(counts.admitted(taken) for counts in elsewhere),
    )
    if config.prefetch:
        batches = grain.experimental.ThreadPrefetchIterDataset(
            batches, prefetch_buffer_size=config.prefetch
        )
    return batches


def _sub_stream(config, source, functions, stream: int) -> grain.IterDataset[Batch]:
    """One sub-stream: every `streams`-th fresh example, and its block of rows of each batch."""
    streams, slot = config.echo.streams, config.echo.insertion
    rows = config.batch_size // streams
    augment = host_augment(config, functions, source)
    stage = functools.partial(
        echo.EchoIterDataset,
        factor=config.echo.factor,
        shuffle_buffer=config.echo.shuffle_buffer,
        seed=config.seed.data * streams + stream,
        annotate=True,
    )

    decode = training_decode(config, functions)
    read = Read(source, config.seed.data, config.budget.fresh_examples, decode, stream, streams)
    if config.dataset.spaced_epochs > 1:  # a control, in place of any echo
        passes = spaced.Spaced(read, len(source), config.dataset.spaced_epochs, config.seed.data)
        return spaced.batches(passes, augment, rows).to_iter_dataset(_threads(1))
    examples = read
    if slot == "before_augmentation":
        echoed = stage(examples, batch_size=rows, read_options=_threads(rows))
        batches = echoed.map(functools.partial(_from_examples, read))
        return batches.map(lambda batch: _augmented(batch, augment))

    examples = MapChunks(
        examples,
        lambda data, i: augment(data, read.fresh_index(i), np.zeros(len(i), np.int64)),
    )
    if slot == "after_augmentation":
        echoed = stage(examples, batch_size=rows, read_options=_threads(rows))
        return echoed.map(functools.partial(_from_examples, read))

    batches = Batches(examples, rows)
    if slot == "after_batching":
        echoed = stage(batches, read_options=_threads(1))
        return echoed.map(functools.partial(_from_batches, read, rows))

    # insertion 'none': no stage and no buffer
    once = batches.map_with_index(lambda i, data: echo.Echoed(data, i, 0, i + 1))
    return once.to_iter_dataset(_threads(1)).map(functools.partial(_from_batches, read, rows))


def training_decode(config, functions: StageFunctions) -> Decode:
    """How training examples are decoded.

    Raises:
        ValueError: the workload has no fused decoding, which was asked for.
    """
    if not config.dataset.fused_decode:
        return lambda records, index_n: functions.decode(records)
    if not hasattr(functions, "decode_cropped"):
        raise ValueError(
            f"config.dataset.fused_decode is true, which workload {config.workload!r} does not "
            "have; allowed: false"
        )
    # Each fresh example is decoded once, so what is cropped is always its copy 0.
    return lambda records, index_n: functions.decode_cropped(
        records, config.seed.data, index_n, np.zeros_like(index_n)
    )


def total_steps(config) -> int:
    """How many batches a run's budget gives: as many as the shortest sub-stream has."""
    return min(_Counts.of(config, stream).batches for stream in range(config.echo.streams))


class _Counts(NamedTuple):
    """What a sub-stream gives, in closed form. An item of its slot is an example, or a batch.

    Attributes:
        schedule: of the slot's items.
        items: how many fresh ones there are.
        examples_an_item, outputs_a_batch: one of the two is 1.
    """

    schedule: echo.EchoSchedule
    items: int
    examples_an_item: int
    outputs_a_batch: int

    @classmethod
    def of(cls, config, stream: int) -> "_Counts":
        rows = config.batch_size // config.echo.streams
        fresh = len(range(stream, config.budget.fresh_examples, config.echo.streams))
        if config.dataset.spaced_epochs > 1:
            return cls(echo.EchoSchedule(config.dataset.spaced_epochs), fresh, 1, rows)
        if config.echo.insertion == "none":
            return cls(echo.EchoSchedule(1), fresh // rows, rows, 1)
        schedule = echo.EchoSchedule(config.echo.factor, config.echo.shuffle_buffer)
        if config.echo.insertion == "after_batching":
            return cls(schedule, fresh // rows, rows, 1)
        return cls(schedule, fresh, 1, rows)

    @property
    def batches(self) -> int:
        return self.schedule.num_outputs(self.items) // self.outputs_a_batch

    def admitted(self, batches: int) -> int:
        """Fresh examples that have been admitted once so many batches have been given."""
        outputs = batches * self.outputs_a_batch
        return self.schedule.admitted(outputs, self.items) * self.examples_an_item


def evaluation_batches(
    source: Source, functions: StageFunctions, batch_size: int, held: range | None = None
) -> Iterable:
    """A whole split in order, each example once, as (arrays, mask float32 [B]) pairs.

    The last batch is filled up with repeats of its last row, which the mask leaves out.

    Args:
        source, functions: raw records, and the workload's decode.
        batch_size: examples a batch, over all processes.
        held: the rows of each batch that this process decodes and gives, None for all.
    """
    batches = _EvaluationBatches(source, functions, batch_size, held or range(batch_size))
    return list(batches) if batches.nbytes() <= _CACHE_BYTES else batches


class _EvaluationBatches:
    def __init__(self, source: Source, functions: StageFunctions, batch_size: int, held: range):
        self._source, self._functions, self._batch_size = source, functions, batch_size
        self._held = held

    def nbytes(self) -> int:
        row = self._decode(range(1))
        return len(self._source) * sum(array.nbytes for array in row.values())

    def __iter__(self):
        batches = grain.MapDataset.range(0, len(self._source), self._batch_size)
        return iter(batches.map(self._batch).to_iter_dataset(_threads(1)))

    def _batch(self, start: int) -> tuple[Arrays, np.ndarray]:
        last = len(self._source) - 1
        wanted = range(start + self._held.start, start + self._held.stop)
        real = [number for number in wanted if number <= last] or [last]
        data = in_chunks(self._decode, real)
        missing = len(wanted) - len(real)
        mask_B = (np.asarray(wanted) <= last).astype(np.float32)
        if missing:
            data = {k: np.concatenate([v, v[-1:].repeat(missing, 0)]) for k, v in data.items()}
        return data, mask_B

    def _decode(self, numbers: Sequence[int]) -> Arrays:
        return decode_records(
            self._source,
            list(numbers),
            lambda records, _: self._functions.decode(records),
            np.asarray(numbers),
        )


def host_augment(config, functions: StageFunctions, source: Source) -> Callable[..., Arrays]:
    """`augment(data, index, copy)` on the host's CPU; the identity where the device augments.

    It is compiled here, for the lengths that this run will use, so that no step waits for that.
    """
    if config.augment_on == "device":
        return lambda data, index, copy: data
    run, seed = _compiled_augment(functions), np.uint32(config.seed.data)

    def augment(data: Arrays, index: np.ndarray, copy: np.ndarray) -> Arrays:
        n = len(index)
        full = next((length for length in _LENGTHS if n <= length), -(-n // CHUNK) * CHUNK)
        rows = np.minimum(np.arange(full), n - 1)
        padded = {name: array[rows] for name, array in data.items()}
        with jax.default_device(jax.local_devices(backend="cpu")[0]):
            out = run(padded, seed, index[rows].astype(np.uint32), copy[rows].astype(np.uint32))
        return {name: np.asarray(array)[:n] for name, array in out.items()}

    lengths = set(_LENGTHS)
    if config.echo.insertion == "before_augmentation":
        lengths = {config.batch_size // config.echo.streams}
    zero = np.zeros(1, np.int64)
    first = decode_records(source, [0], training_decode(config, functions), zero)
    for length in lengths:
        data = {name: array.repeat(length, 0) for name, array in first.items()}
        augment(data, zero.repeat(length), zero.repeat(length))
    return augment


@functools.lru_cache(maxsize=32)
def _compiled_augment(functions: StageFunctions):
    return jax.jit(functions.augment)


def _augmented(batch: Batch, augment) -> Batch:
    return batch._replace(data=augment(batch.data, batch.index, batch.copy))


def _from_examples(read: Read, echoed: echo.Echoed) -> Batch:
    return Batch(echoed.item, read.fresh_index(echoed.index), echoed.copy, echoed.fresh)


def _from_batches(read: Read, rows: int, echoed: echo.Echoed) -> Batch:
    start = int(echoed.index) * rows
    index = read.fresh_index(np.arange(start, start + rows))
    return Batch(echoed.item, index, np.full(rows, int(echoed.copy)), echoed.fresh * rows)


def _threads(items_a_batch: int) -> grain.ReadOptions:
    """Read-ahead of two batches: of examples on all cores; whole batches are spread over the cores
    as they are made."""
    threads = CORES if items_a_batch > 1 else 2
    return grain.ReadOptions(num_threads=threads, prefetch_buffer_size=2 * items_a_batch)
