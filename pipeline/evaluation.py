"""Batches of a whole split in order, each example once."""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import grain
import numpy as np

from data.sources import Source
from pipeline.map_datasets import CHUNK, CORES, Arrays, Examples, FreshOrder

EvaluationBatch = tuple[Arrays, np.ndarray]  # (arrays [B, ...], mask float32 [B])

# Batches up to this size in total are decoded once and kept in memory.
_CACHE_BYTES = 256 * 2**20


def evaluation_batches(
    source: Source,
    workload: Any,
    batch_size: int,
    held: range | None = None,
    skip: bool = False,
) -> Iterable[EvaluationBatch]:
    """A whole split in order, each example once, as (arrays, mask float32 [B]) pairs.

    The last batch is padded with its last row; the mask is 0 there, and for damaged examples.

    Args:
        source: raw records.
        workload: decodes them.
        batch_size: examples per batch, over all processes.
        held: the rows of each batch that this process decodes; None for all.
        skip: whether damaged examples are left out.
    """
    order = FreshOrder(len(source))
    decode = workload.decode
    examples = Examples(source, None, order, lambda records, *_: decode(records), skip=skip)
    batches = _Batches(examples, batch_size, range(batch_size) if held is None else held)
    nbytes = len(source) * sum(array.nbytes for array in examples.stacked_items([0]).values())
    return list(batches) if nbytes <= _CACHE_BYTES else batches


@dataclasses.dataclass(frozen=True)
class _Batches:
    examples: Examples
    batch_size: int
    held: range

    def __iter__(self) -> Iterator[EvaluationBatch]:
        size, last = len(self.examples), len(self.examples) - 1
        starts = range(0, size, self.batch_size)
        rows = [np.arange(start + self.held.start, start + self.held.stop) for start in starts]
        real = [[number for number in row.tolist() if number <= last] or [last] for row in rows]
        chunks = [numbers[i : i + CHUNK] for numbers in real for i in range(0, len(numbers), CHUNK)]
        # By threads of its own: while a run evaluates, a throttled upstream stands still, and every
        # thread of the training pipeline may be waiting for it.
        per_batch = -(-len(self.held) // CHUNK)
        ahead = grain.ReadOptions(num_threads=CORES, prefetch_buffer_size=CORES + per_batch)
        decoded = grain.MapDataset.source(chunks).map(self.examples.stacked_items)
        parts = iter(decoded.to_iter_dataset(ahead))
        for row, numbers in zip(rows, real, strict=True):
            batch = list(itertools.islice(parts, -(-len(numbers) // CHUNK)))
            data = {name: np.concatenate([part[name] for part in batch]) for name in batch[0]}
            if missing := len(row) - len(numbers):
                data = {k: np.concatenate([v, v[-1:].repeat(missing, 0)]) for k, v in data.items()}
            damaged = np.isin(row, list(self.examples.source.damaged.copy()))
            yield data, ((row <= last) & ~damaged).astype(np.float32)
