"""Stored examples that worker processes augment: the echo stage's rows are in their shared memory.

A batch consists of the numbers of its rows until workers cut its crops from them.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from jax.profiler import TraceAnnotation

from echo.stores import RowAllocator, Stacked
from pipeline.map_datasets import Arrays, Batch, Stage
from pipeline.workers import Place, Workers


class Stored(NamedTuple):
    """The data of a batch: rows (int64 [B]) of a store, until the next examples are put there."""

    place: Place
    rows: np.ndarray


class SharedStore:
    """The pending items of a stream, with the methods of `echo.device.DeviceStore`.

    Args:
        workers: the processes.
        first: an example, each array [1, ...].
        rows: the maximum number of items that can be pending at once.
    """

    def __init__(self, workers: Workers, first: Arrays, rows: int, batch_size: int | None = None):
        self._place, self._arrays, _ = workers.empty(first, rows)
        self._rows = RowAllocator()
        self.take, self.drop = self._rows.take, self._rows.drop

    def send(self, fresh: np.ndarray, items: Stacked) -> Stacked:
        return items

    def put(self, fresh: np.ndarray, items: Stacked, copies: np.ndarray) -> None:
        rows = self._rows.add(fresh, copies)
        for name, array in self._arrays.items():
            array[rows] = items.item[name]

    def emit(self, taken: np.ndarray) -> Stored:
        return Stored(self._place, taken)


def augmented_by(
    workers: Workers, stream: int, first: Arrays, augment: Stage, echo_stage: Callable[..., Any]
) -> tuple[Stage, Callable[..., Any]]:
    """`augment` and `echo_stage` of a stream, done by workers and in their memory. The example
    `first` has arrays [1, ...]."""
    zero = np.zeros(1, np.int64)
    like = augment(Batch(first, zero, zero, 0)).data

    def augmented(batch: Batch) -> Batch:
        rows_Bx3 = np.stack([batch.data.rows, batch.index, batch.copy], axis=1)
        with TraceAnnotation("augment"):
            data = workers.stacked_items((stream, True), rows_Bx3, like, batch.data.place)
        return batch._replace(data=data)

    placement = functools.partial(SharedStore, workers, first)
    return augmented, functools.partial(echo_stage, placement=placement)
