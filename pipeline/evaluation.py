"""Batches of a whole split in order, each example once."""

import concurrent.futures
from collections.abc import Iterable, Iterator, Sequence

import grain
import numpy as np

from data.sources import Source
from pipeline.build import StageFunctions, batch_options
from pipeline.map_datasets import CHUNK, CORES, Arrays, decode_records

EvaluationBatch = tuple[Arrays, np.ndarray]  # (arrays [B, ...], mask float32 [B])

# Batches up to this size in total are decoded once and kept in memory.
_CACHE_BYTES = 256 * 2**20

# A separate pool: while a run evaluates, a throttled upstream stands still, and every thread of
# the training pipeline may be waiting for it.
_POOL = concurrent.futures.ThreadPoolExecutor(CORES, thread_name_prefix="evaluation")


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


def decode_for_evaluation(
    source: Source, functions: StageFunctions, numbers: Sequence[int]
) -> Arrays:
    """Reads and decodes records by number, as stacked arrays."""
    return decode_records(source, list(numbers), lambda records, *_: functions.decode(records))


class _EvaluationBatches:
    def __init__(self, source: Source, functions: StageFunctions, batch_size: int, held: range):
        self._source, self._functions, self._batch_size = source, functions, batch_size
        self._held = held

    def nbytes(self) -> int:
        row = self._decode(range(1))
        return len(self._source) * sum(array.nbytes for array in row.values())

    def __iter__(self) -> Iterator[EvaluationBatch]:
        batches = grain.MapDataset.range(0, len(self._source), self._batch_size)
        ahead = batch_options(len(self._held), 1, self.nbytes() // len(self._source))
        return iter(batches.map(self._batch).to_iter_dataset(ahead))

    def _batch(self, start: int) -> EvaluationBatch:
        last = len(self._source) - 1
        rows = np.arange(start + self._held.start, start + self._held.stop)
        real = [number for number in rows.tolist() if number <= last] or [last]
        chunks = [real[i : i + CHUNK] for i in range(0, len(real), CHUNK)]
        parts = list(_POOL.map(self._decode, chunks))
        data = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        if missing := len(rows) - len(real):
            data = {k: np.concatenate([v, v[-1:].repeat(missing, 0)]) for k, v in data.items()}
        return data, (rows <= last).astype(np.float32)

    def _decode(self, numbers: Sequence[int]) -> Arrays:
        return decode_for_evaluation(self._source, self._functions, numbers)
