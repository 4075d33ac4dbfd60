"""A whole split in order, each example once, in batches of one size."""

import concurrent.futures
from collections.abc import Iterable, Sequence

import grain
import numpy as np

from data.sources import Source
from pipeline.build import StageFunctions, read_options
from pipeline.map_datasets import CHUNK, CORES, Arrays, decode_records

# Batches are kept in memory between evaluations up to this size.
_CACHE_BYTES = 256 * 2**20

# Of its own: while a run evaluates, a limited upstream stands still, and each thread of the
# training pipeline may be waiting for it.
_POOL = concurrent.futures.ThreadPoolExecutor(CORES, thread_name_prefix="evaluation")


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
        return iter(batches.map(self._batch).to_iter_dataset(read_options(1)))

    def _batch(self, start: int) -> tuple[Arrays, np.ndarray]:
        last = len(self._source) - 1
        wanted = range(start + self._held.start, start + self._held.stop)
        real = [number for number in wanted if number <= last] or [last]
        chunks = [real[i : i + CHUNK] for i in range(0, len(real), CHUNK)]
        parts = list(_POOL.map(self._decode, chunks))
        data = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
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
