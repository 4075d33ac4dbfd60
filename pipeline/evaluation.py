"""Batches of a whole split in order, each example once."""

import itertools
from collections.abc import Iterable, Iterator, Sequence

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
    held = range(batch_size) if held is None else held
    batches = _EvaluationBatches(source, functions, batch_size, held)
    return list(batches) if batches.nbytes() <= _CACHE_BYTES else batches


class _EvaluationBatches:
    def __init__(self, source: Source, functions: StageFunctions, batch_size: int, held: range):
        self._source, self._functions = source, functions
        self._batch_size, self._held = batch_size, held

    def nbytes(self) -> int:
        row = self._decode([0])
        return len(self._source) * sum(array.nbytes for array in row.values())

    def __iter__(self) -> Iterator[EvaluationBatch]:
        last = len(self._source) - 1
        rows = [
            np.arange(start + self._held.start, start + self._held.stop)
            for start in range(0, len(self._source), self._batch_size)
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

    def _decode(self, numbers: Sequence[int]) -> Arrays:
        def decode(records, *_):
            return self._functions.decode(records)

        return decode_records(self._source, numbers, decode)
