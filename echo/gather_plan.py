"""Orders: what a store in an accelerator's memory has to place and to gather for each batch.

The host follows the schedule, keeps the books of the store's rows, and holds no item that it has
handed over: `OrderStore` stands where `ArrayStore` would, and `echo.device.DeviceStore` follows.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from echo.rows import RowAllocator
from echo.tree import Layout, Structure

# Rounds are filled up with rows from here on, past the end of any store, and different ones, so
# that no two entries of a round are ever put into the same row.
NOWHERE = 2**30


class GatherPlan(NamedTuple):
    """First place the items of each round, then gather.

    New items come in rounds of K, a number that never changes, so that one compiled program places
    any number of them. Sub-streams side by side have a store of rows each.

    Attributes:
        items: new items, leaves [rounds, streams, K, ...]; zeros where a round is filled up.
        rows: where they go, int32 [rounds, streams, K]; from NOWHERE on where a round is filled up.
        fresh: their numbers, int64 [rounds, streams, K]; 0 where a round is filled up.
        gather: the rows that make up the output, int32 [streams, n].
    """

    items: Any
    rows: np.ndarray
    fresh: np.ndarray
    gather: np.ndarray


class OrderStore:
    """Takes items in as `ArrayStore` does; what it shows are orders for a store elsewhere.

    Args:
        rows: the most items that can be pending at once.
        round_size: new items a round. What is put between two showings is in the second's order.
    """

    def __init__(self, rows: int, round_size: int):
        self.rows = RowAllocator(rows)
        self._round_size = round_size
        self._layout = Layout()  # known from the first item on
        self._new: list[tuple[list[np.ndarray], np.ndarray, np.ndarray]] = []  # leaves, rows, fresh

    def __len__(self) -> int:
        return len(self.rows)

    def put(self, fresh: np.ndarray, items: Iterable[Any], copies: np.ndarray) -> None:
        """Admits items as they come; see ArrayStore.put."""
        came: list[list[np.ndarray]] = []
        try:
            for number, item in zip(fresh.tolist(), items, strict=False):
                came.append([leaf.copy() for leaf in self._layout.leaves(number, item)])
        finally:  # what came before an error stays, so that the stream can go on behind it
            if came:
                leaves = [np.stack(column) for column in zip(*came, strict=True)]
                self._enter(leaves, fresh[: len(came)], copies[: len(came)])

    def put_stacked(self, fresh: np.ndarray, items: Any, copies: np.ndarray) -> None:
        """Admits n items that came as one, its leaves stacked along a first axis; else as `put`."""
        self._enter(self._layout.leaves(int(fresh[0]), items, stacked=True), fresh, copies)

    def show(self, fresh: np.ndarray) -> GatherPlan:
        """The order that gathers the items `fresh` (int64 [n], repeats allowed)."""
        new, self._new = self._new, []
        count = sum(len(rows) for _, rows, _ in new)
        rounds = -(-count // self._round_size)
        filled = rounds * self._round_size
        arrays = [np.zeros((filled, *shape), dtype) for shape, dtype in self._layout.specs]
        rows = np.arange(NOWHERE, NOWHERE + filled, dtype=np.int32)
        numbers = np.zeros(filled, np.int64)
        start = 0
        for leaves, entered, entered_numbers in new:
            stop = start + len(entered)
            for array, leaf in zip(arrays, leaves, strict=True):
                array[start:stop] = leaf
            rows[start:stop], numbers[start:stop] = entered, entered_numbers
            start = stop
        items, rows, numbers = (
            [array.reshape(rounds, 1, self._round_size, *array.shape[1:]) for array in part]
            for part in (arrays, [rows], [numbers])
        )
        gather = self.rows.show(fresh).astype(np.int32)
        return GatherPlan(self._layout.build(items), rows[0], numbers[0], gather[None])

    def drop(self, fresh: np.ndarray) -> None:
        """Forgets items that have been shown (int64 [n], each once), whatever they have left."""
        self.rows.drop(fresh)

    def _enter(self, leaves: list[np.ndarray], fresh: np.ndarray, copies: np.ndarray) -> None:
        rows = self.rows.free(len(fresh))
        self.rows.occupy(rows, fresh, copies)
        self._new.append((leaves, rows, fresh))


def joined(orders: Sequence[GatherPlan]) -> GatherPlan:
    """One order of those of sub-streams, side by side; the fewer rounds of some are filled up."""
    if len(orders) == 1:
        return orders[0]
    rounds = max(len(order.rows) for order in orders)
    structure = Structure(orders[0].items)
    columns = zip(*(_columns(order, structure, rounds) for order in orders), strict=True)
    *items, rows, fresh = (np.concatenate(column, axis=1) for column in columns)
    gather = np.concatenate([order.gather for order in orders])
    return GatherPlan(structure.build(items), rows, fresh, gather)


def _columns(order: GatherPlan, structure: Structure, rounds: int) -> list[np.ndarray]:
    """Everything of an order that comes in rounds, filled up to so many."""
    columns = [*structure.leaves(order.items), order.rows, order.fresh]
    there, _, size = order.rows.shape
    if there == rounds:
        return columns
    *items, rows, fresh = (
        np.concatenate([column, np.zeros((rounds - there, *column.shape[1:]), column.dtype)])
        for column in columns
    )
    rows[there:] = np.arange(NOWHERE, NOWHERE + size)
    return [*items, rows, fresh]
