"""Gather plans: what a store in accelerator memory has to place and to gather for each batch.

The host follows the order of the stage and tracks row allocation, but keeps no item. `PlanStore`
takes the place of `echo.stores.ArrayStore`, and `echo.device.DeviceStore` applies its plans.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from echo.stores import Layout, RowAllocator, Stacked, Structure

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
        self.rows = RowAllocator()
        self.take, self.drop = self.rows.take, self.rows.drop
        self._round_size = round_size
        self._layout = Layout()  # known after the first item
        self._new: list[list[np.ndarray]] = []  # leaves, rows, numbers of items

    def __len__(self) -> int:
        return len(self.rows)

    def put(self, fresh: np.ndarray, items: list[Any] | Stacked, copies: np.ndarray) -> None:
        """Accepts items; see ArrayStore.put."""
        leaves = self._layout.stacked(fresh, items)
        rows = self.rows.add(fresh, copies)
        self._new.append([*leaves, rows.astype(np.int32), fresh])

    def emit(self, taken: np.ndarray) -> GatherPlan:
        """The plan that places all new items and gathers a batch of rows."""
        if self._new:
            columns = [np.concatenate(column) for column in zip(*self._new, strict=True)]
        else:
            specs = [*self._layout.specs, ((), np.int32), ((), np.int64)]
            columns = [np.zeros((0, *shape), dtype) for shape, dtype in specs]
        rounds = -(-len(columns[-1]) // self._round_size)
        columns = _padded(columns, rounds * self._round_size)
        *items, rows, numbers = (
            column.reshape(rounds, 1, self._round_size, *column.shape[1:]) for column in columns
        )
        self._new = []
        return GatherPlan(self._layout.build(items), rows, numbers, taken.astype(np.int32)[None])


def joined(plans: Sequence[GatherPlan]) -> GatherPlan:
    """Concatenates the plans of several streams; those with fewer rounds are padded."""
    rounds = max(len(plan.rows) for plan in plans)
    structure = Structure(plans[0].items)
    columns = zip(
        *(_padded([*structure.leaves(p.items), p.rows, p.fresh], rounds) for p in plans),
        strict=True,
    )
    *items, rows, fresh = (np.concatenate(column, axis=1) for column in columns)
    gather = np.concatenate([plan.gather for plan in plans])
    return GatherPlan(structure.build(items), rows, fresh, gather)


def _padded(columns: list[np.ndarray], length: int) -> list[np.ndarray]:
    """Leaves of items, rows, and numbers, whose first axes are padded to `length`."""
    missing = length - len(columns[-1])
    if not missing:
        return columns
    *items, rows, fresh = (
        np.concatenate([column, np.zeros((missing, *column.shape[1:]), column.dtype)])
        for column in columns
    )
    shape = rows[length - missing :].shape
    rows[length - missing :] = np.arange(NOWHERE, NOWHERE + math.prod(shape)).reshape(shape)
    return [*items, rows, fresh]
