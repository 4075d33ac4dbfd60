"""Batches of a whole split in order, each example once."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence

import grain
import numpy as np

from data.sources import Source
from pipeline.build import StageFunctions
from pipeline.map_datasets import CHUNK, CORES, Arrays, decode_records

EvaluationBatch = tuple[Arrays, np.ndarray]  # (arrays [B, ...], mask float32 [B])

# Batches up to this size in total are decoded once and kept in memory.
_CACHE_BYTES = 256 * 2**20


def evaluation_batches(
    source: Source, functions: StageFunctions, batch_size: int, held: range | None = None
) -> Iterable[EvaluationBatch]:
    """A whole split in order, each example once, as (arrays, mask float32 [B]) pairs.

    The last batch is padded with its last row; the mask is 0 there.

    Args:
        source: raw records.
        functions: the workload's decode.
        batch_size: examples per batch, over all processes.
        held: the rows of each batch that this process decodes; None for all.
    """

    def decode(numbers: Sequence[int]) -> Arrays:
        return decode_records(source, numbers, lambda records, *_: functions.decode(records))

    held = range(batch_size) if held is None else held
    batches = _EvaluationBatches(len(source), decode, batch_size, held)
    nbytes = len(source) * sum(array.nbytes for array in decode([0]).values())
    return list(batches) if nbytes <= _CACHE_BYTES else batches


class _EvaluationBatches:
    def __init__(
        self, size: int, decode: Callable[[Sequence[int]], Arrays], batch_size: int, held: range
    ):
        self._size, self._decode = size, decode
        self._batch_size, self._held = batch_size, held

    def __iter__(self) -> Iterator[EvaluationBatch]:
        last = self._size - 1
        rows = [
            np.arange(start + self._held.start, start + self._held.stop)
            for start in range(0, self._size, self._batch_size)
        ]
        real = [[number for number in row.tolist() if number <= last] or [last] for row in rows]
        chunks = [numbers[i : i + CHUNK] for numbers in real for i in range(0, len(numbers), CHUNK)]
        # By threads of its own: while a run evaluates, a throttled upstream stands still, and every
        # thread of the training pipeline may be waiting for it.
        per_batch = -(-len(self._held) // CHUNK)
        ahead = grain.ReadOptions(num_threads=CORES, prefetch_buffer_size=CORES + per_batch)
        parts = iter(grain.MapDataset.source(chunks).map(self._decode).to_iter_dataset(ahead))
        for row, numbers in zip(rows, real, strict=True):
            batch = list(itertools.islice(parts, -(-len(numbers) // CHUNK)))
            data = {name: np.concatenate([part[name] for part in batch]) for name in batch[0]}
            if missing := len(row) - len(numbers):
                data = {k: np.concatenate([v, v[-1:].repeat(missing, 0)]) for k, v in data.items()}
            yield data, (row <= last).astype(np.float32)
