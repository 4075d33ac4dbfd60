"""Gather plans: what a store in accelerator memory has to place and to gather for each batch.

The host follows the order of the stage and tracks row allocation, but keeps no item. `PlanStore`
takes the place of `echo.stores.ArrayStore`, and `echo.device.DeviceStore` applies its plans.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from echo.stores import RowAllocator
from echo.tree import Layout, Stacked, Structure

# Rounds are padded with rows from here on. They are past the end of any store, and distinct, so
# that no two entries of a round ever write to the same row.
NOWHERE = 2**30


class GatherPlan(NamedTuple):
    """One batch: first place the items of each round, then gather.

    New items come in rounds of K, which never changes, so that one compiled program places any
    number of them. Each of several streams has a store of its own.

    Attributes:
        items: new items, leaves [rounds, streams, K, ...]; padded with zeros.
        rows: where they go, int32 [rounds, streams, K]; padded with rows from NOWHERE on.
        fresh: their numbers, int64 [rounds, streams, K]; padded with zeros.
        gather: the rows of the output, int32 [streams, n].
    """

    items: Any
    rows: np.ndarray
    fresh: np.ndarray
    gather: np.ndarray


class PlanStore:
    """Accepts items as `ArrayStore` does, and emits plans for a store elsewhere.

    Args:
        rows: the maximum number of items that can be pending at once.
        round_size: new items in each round. Items added after one plan are placed by the next.
    """

    def __init__(self, rows: int, round_size: int):
        self.rows = RowAllocator(rows)
        self._round_size = round_size
        self._layout = Layout()  # known after the first item
        self._new: list[tuple[list[np.ndarray], np.ndarray, np.ndarray]] = []  # leaves, rows, fresh

    def __len__(self) -> int:
        return len(self.rows)

    def put(self, fresh: np.ndarray, items: Iterable[Any] | Stacked, copies: np.ndarray) -> None:
        """Accepts items; see ArrayStore.put."""
        if isinstance(items, Stacked):
            leaves, n = self._layout.leaves(int(fresh[0]), items), len(fresh)
        else:
            accepted = [
                [leaf.copy() for leaf in self._layout.leaves(number, item)]
                for number, item in zip(fresh.tolist(), items, strict=False)
            ]
            leaves, n = [np.stack(column) for column in zip(*accepted, strict=True)], len(accepted)
        rows = self.rows.next_free(n)
        self.rows.occupy(rows, fresh[:n], copies[:n])
        if n:
            self._new.append((leaves, rows, fresh[:n]))

    def take(self, fresh: np.ndarray) -> np.ndarray:
        """The rows of the items `fresh` (int64 [batches, n], repeats allowed); see
        ArrayStore.take."""
        return self.rows.take(fresh)

    def emit(self, taken: np.ndarray) -> GatherPlan:
        """The plan that places all new items and gathers a batch of rows."""
        count = sum(len(rows) for _, rows, _ in self._new)
        rounds = -(-count // self._round_size)
        padded = rounds * self._round_size
        arrays = [np.zeros((padded, *shape), dtype) for shape, dtype in self._layout.specs]
        rows = np.arange(NOWHERE, NOWHERE + padded, dtype=np.int32)
        numbers = np.zeros(padded, np.int64)
        start = 0
        for leaves, new_rows, new_numbers in self._new:
            stop = start + len(new_rows)
            for array, leaf in zip(arrays, leaves, strict=True):
                array[start:stop] = leaf
            rows[start:stop], numbers[start:stop] = new_rows, new_numbers
            start = stop
        self._new = []
        *items, rows, numbers = (
            array.reshape(rounds, 1, self._round_size, *array.shape[1:])
            for array in (*arrays, rows, numbers)
        )
        return GatherPlan(self._layout.build(items), rows, numbers, taken.astype(np.int32)[None])

    def drop(self, fresh: np.ndarray) -> None:
        """Deletes items that have been emitted (int64 [n], each once) and have copies left."""
        self.rows.drop(fresh)


def joined(plans: Sequence[GatherPlan]) -> GatherPlan:
    """Concatenates the plans of several streams; those with fewer rounds are padded."""
    rounds = max(len(plan.rows) for plan in plans)
    structure = Structure(plans[0].items)
    columns = zip(*(_padded_columns(plan, structure, rounds) for plan in plans), strict=True)
    *items, rows, fresh = (np.concatenate(column, axis=1) for column in columns)
    gather = np.concatenate([plan.gather for plan in plans])
    return GatherPlan(structure.build(items), rows, fresh, gather)


def _padded_columns(plan: GatherPlan, structure: Structure, rounds: int) -> list[np.ndarray]:
    """All arrays of a plan that have an axis of rounds, padded to `rounds` of them."""
    columns = [*structure.leaves(plan.items), plan.rows, plan.fresh]
    num_rounds, _, size = plan.rows.shape
    if num_rounds == rounds:
        return columns
    *items, rows, fresh = (
        np.concatenate([column, np.zeros((rounds - num_rounds, *column.shape[1:]), column.dtype)])
        for column in columns
    )
    rows[num_rounds:] = np.arange(NOWHERE, NOWHERE + size)
    return [*items, rows, fresh]
