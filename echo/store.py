"""Where repeated items wait: each is kept once, however many of its showings are pending.

`ItemStore` keeps any Python object and hands out single independent copies. `ArrayStore` keeps items
of one fixed shape in contiguous memory and hands out whole batches, each one gather.
"""

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np

from echo import tree


class ItemStore:
    """Items of any kind, by the number of the fresh item. Copies handed out share no memory.

    The store copies an item when it enters, so that a source which reuses its buffers cannot change
    it, and at each showing but the last, which hands over the stored object itself: an item shown
    n times is copied n times in all.
    """

    def __init__(self):
        self._items: dict[int, list] = {}  # fresh item -> [object, showings left]

    def __len__(self) -> int:
        return len(self._items)

    def put(self, fresh: int, item: Any, showings: int) -> None:
        """Admits an item that has `showings` >= 1 showings left."""
        self._items[fresh] = [copy.deepcopy(item), showings]

    def show(self, fresh: int) -> Any:
        """An independent copy of an item; the last one empties its place."""
        entry = self._items[fresh]
        entry[1] -= 1
        if entry[1]:
            return copy.deepcopy(entry[0])
        return self._items.pop(fresh)[0]

    def oldest(self) -> int | None:
        """The earliest fresh item that is still kept."""
        return next(iter(self._items), None)


class ArrayStore:
    """Items of one structure, shape and dtype in one contiguous array a leaf.

    Args:
        rows: the most items that can be pending at once. Memory for all of them is reserved but not
            touched; rows are reused last in, first out, so the memory that the process comes to own
            is that of the most rows ever in use together.
    """

    def __init__(self, rows: int):
        self._capacity = rows
        self._leaves: list[np.ndarray] = []  # each [rows, ...]
        self._rebuild = None
        self._free = np.arange(rows - 1, -1, -1)  # a stack; its top is at _num_free - 1
        self._num_free = rows
        self._left = np.zeros(rows, np.int64)  # showings left, by row
        self._row_of: dict[int, int] = {}  # fresh item -> row, in order of entry
        self.peak_rows = 0

    def __len__(self) -> int:
        return len(self._row_of)

    @property
    def item_bytes(self) -> int:
        """Bytes of one item, 0 before the first has been put."""
        return sum(leaf[:1].nbytes for leaf in self._leaves)

    def put(self, fresh: Sequence[int], items: Any, showings: np.ndarray) -> None:
        """Admits items.

        Args:
            fresh: their numbers, n of them.
            items: one item whose leaves are stacked along a first axis of length n.
            showings: how many showings each has left, int64 [n], each at least 1.

        Raises:
            ValueError: items of another structure, shape or dtype than the first ones.
        """
        leaves, rebuild = tree.flatten(items)
        leaves = [np.asarray(leaf) for leaf in leaves]
        if self._rebuild is None:
            self._rebuild = rebuild
            self._leaves = [np.empty((self._capacity, *x.shape[1:]), x.dtype) for x in leaves]
        self._check(fresh, leaves)
        rows = self._take_rows(len(fresh))
        for stored, new in zip(self._leaves, leaves, strict=True):
            stored[rows] = new
        self._left[rows] = showings
        self._row_of.update(zip(fresh, rows.tolist(), strict=True))

    def show(self, fresh: np.ndarray) -> Any:
        """One item whose leaves are stacked copies of the items `fresh` (int64 [n], repeats allowed)."""
        row_of = self._row_of
        rows = np.fromiter(map(row_of.__getitem__, fresh.tolist()), np.int64, len(fresh))
        batch = self._rebuild([leaf.take(rows, axis=0) for leaf in self._leaves])
        np.subtract.at(self._left, rows, 1)
        spent = self._left[rows] == 0
        if spent.any():
            for item in set(fresh[spent].tolist()):
                self._return_row(row_of.pop(item))
        return batch

    def oldest(self) -> int | None:
        """The earliest fresh item that is still kept."""
        return next(iter(self._row_of), None)

    def _take_rows(self, n: int) -> np.ndarray:
        self._num_free -= n
        rows = self._free[self._num_free : self._num_free + n][::-1].copy()
        self.peak_rows = max(self.peak_rows, self._capacity - self._num_free)
        return rows

    def _return_row(self, row: int) -> None:
        self._free[self._num_free] = row
        self._num_free += 1

    def _check(self, fresh: Sequence[int], leaves: list[np.ndarray]) -> None:
        wanted = [(x.shape[1:], x.dtype) for x in self._leaves]
        came = [(x.shape[1:], x.dtype) for x in leaves]
        if wanted != came:
            raise ValueError(
                f"fresh items {fresh[0]}..{fresh[-1]} have leaves {came}, those before have {wanted}; "
                "batches are gathered from items of one shape and dtype: pad or resize them upstream, "
                "or leave batch_size out and batch after making them equal"
            )
