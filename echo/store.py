"""Where repeated items wait: each is kept once, however many of its showings are pending.

`ItemStore` keeps any Python object and hands out single independent copies. `ArrayStore` keeps
items of one fixed shape in contiguous memory and hands out whole batches, each one gather.

Both take items in as they come, so that an item which was produced in a reused buffer is copied
before the next one is asked for.
"""

import copy
from collections.abc import Iterable
from typing import Any

import numpy as np

from echo.tree import Structure


class ItemStore:
    """Items of any kind, by the number of the fresh item. Copies handed out share no memory.

    The store copies an item when it enters, and at each showing but the last, which hands over the
    stored object itself: an item shown n times is copied n times in all.
    """

    def __init__(self):
        self._items: dict[int, list] = {}  # fresh item -> [object, showings left]

    def __len__(self) -> int:
        return len(self._items)

    def put(self, fresh: np.ndarray, items: Iterable[Any], showings: np.ndarray) -> None:
        """Admits items as they come; `showings` says how many each has left, at least 1."""
        for number, left, item in zip(fresh.tolist(), showings.tolist(), items, strict=False):
            self._items[number] = [copy.deepcopy(item), left]

    def show(self, fresh: int) -> Any:
        """An independent copy of an item; the last one empties its place."""
        entry = self._items[fresh]
        if entry[1] == 1:
            return self._items.pop(fresh)[0]
        item = copy.deepcopy(entry[0])
        entry[1] -= 1
        return item

    def drop(self, fresh: int) -> None:
        """Lets go of an item that has showings left."""
        del self._items[fresh]

    def skip(self, fresh: int) -> None:
        """Counts a showing of an item that nobody looks at."""
        self._items[fresh][1] -= 1
        if not self._items[fresh][1]:
            del self._items[fresh]


class ArrayStore:
    """Items of one structure, shape and dtype in one contiguous array a leaf.

    Args:
        rows: the most items that can be pending at once. Memory for all of them is reserved but not
            touched; rows are reused last in, first out, so the memory that the process comes to own
            is that of the most rows ever in use together.
    """

    def __init__(self, rows: int):
        self._capacity = rows
        self._structure: Structure | None = None  # known from the first item on
        self._specs: list[tuple[tuple[int, ...], np.dtype]] = []  # shape and dtype, by leaf
        self._leaves: list[np.ndarray] = []  # each [rows, ...]
        self._free = np.arange(rows - 1, -1, -1)  # a stack; its top is at _num_free - 1
        self._num_free = rows
        self._left = np.zeros(rows, np.int64)  # showings left, by row
        self._fresh = np.zeros(rows, np.int64)  # fresh item, by row
        # The row of fresh item i is noted at i modulo the table's length, a power of two, which is
        # doubled where two pending items would meet. An empty place holds a row that is none.
        self._row_of = np.full(1 << (2 * rows).bit_length(), rows)
        self.peak_rows = 0

    def __len__(self) -> int:
        return self._capacity - self._num_free

    @property
    def item_bytes(self) -> int:
        """Bytes of one item, 0 before the first has been put."""
        return sum(leaf[:1].nbytes for leaf in self._leaves)

    def put(self, fresh: np.ndarray, items: Iterable[Any], showings: np.ndarray) -> None:
        """Admits items as they come.

        Args:
            fresh: their numbers, int64 [n], ascending.
            items: at most n items.
            showings: how many showings each has left, int64 [n], each at least 1.

        Raises:
            ValueError: an item of another structure, shape or dtype than the first one.
        """
        rows = self._free_rows(len(fresh))
        came = 0
        try:
            for number, row, item in zip(fresh.tolist(), rows.tolist(), items, strict=False):
                leaves = self._leaves_of(number, item, 0)
                for stored, leaf in zip(self._leaves, leaves, strict=True):
                    stored[row] = leaf
                came += 1
        finally:  # what came before an error stays, so that the stream can go on behind it
            self._occupy(rows[:came], fresh[:came], showings[:came])

    def put_stacked(self, fresh: np.ndarray, items: Any, showings: np.ndarray) -> None:
        """Admits n items that came as one, its leaves stacked along a first axis; else as `put`."""
        leaves = self._leaves_of(int(fresh[0]), items, 1)
        rows = self._free_rows(len(fresh))
        for stored, leaf in zip(self._leaves, leaves, strict=True):
            stored[rows] = leaf
        self._occupy(rows, fresh, showings)

    def show(self, fresh: np.ndarray) -> Any:
        """Copies of the items `fresh` (int64 [n], repeats allowed), as one with stacked leaves."""
        rows = self._row_of[self._places(fresh)]
        batch = self._structure.build([leaf.take(rows, axis=0) for leaf in self._leaves])
        np.subtract.at(self._left, rows, 1)
        spent = rows[self._left[rows] == 0]
        if len(spent):
            self._vacate(np.unique(spent))
        return batch

    def drop(self, fresh: np.ndarray) -> None:
        """Lets go of items (int64 [n]) that have showings left."""
        rows = self._row_of[self._places(fresh)]
        self._left[rows] = 0
        self._vacate(rows)

    def _leaves_of(self, fresh: int, item: Any, stacked_axes: int) -> list[np.ndarray]:
        """The leaves of an item, checked to be like those of the first one."""
        structure = self._structure or Structure(item)
        leaves = [np.asarray(leaf) for leaf in structure.leaves(item)]
        specs = [(leaf.shape[stacked_axes:], leaf.dtype) for leaf in leaves]
        if self._structure is None:
            self._reserve(structure, specs)
        if specs != self._specs:
            raise ValueError(
                f"fresh item {fresh} has leaves {specs}, those before have {self._specs}; "
                "batches are gathered from items of one shape and dtype: pad or resize them "
                "upstream, or leave batch_size out and batch after making them equal"
            )
        return leaves

    def _reserve(self, structure: Structure, specs: list[tuple[tuple[int, ...], np.dtype]]) -> None:
        if any(dtype.hasobject for _, dtype in specs):
            raise ValueError(
                f"items have leaves {specs}; batches are gathered from numbers, booleans or "
                "strings of one length, not from Python objects: convert them upstream, or leave "
                "batch_size out"
            )
        self._structure, self._specs = structure, specs
        self._leaves = [np.empty((self._capacity, *shape), dtype) for shape, dtype in specs]

    def _free_rows(self, n: int) -> np.ndarray:
        return self._free[self._num_free - n : self._num_free][::-1].copy()

    def _occupy(self, rows: np.ndarray, fresh: np.ndarray, showings: np.ndarray) -> None:
        if not len(rows):
            return
        self._num_free -= len(rows)
        self.peak_rows = max(self.peak_rows, len(self))
        self._left[rows] = showings
        self._fresh[rows] = fresh
        places = self._places(fresh)
        meet = fresh[-1] - fresh[0] >= len(self._row_of)
        if meet or (self._row_of[places] != self._capacity).any():
            self._grow_table()
        else:
            self._row_of[places] = rows

    def _vacate(self, rows: np.ndarray) -> None:
        self._row_of[self._places(self._fresh[rows])] = self._capacity
        self._free[self._num_free : self._num_free + len(rows)] = rows
        self._num_free += len(rows)

    def _places(self, fresh: np.ndarray) -> np.ndarray:
        return fresh & (len(self._row_of) - 1)

    def _grow_table(self) -> None:
        """Doubles the table until every pending item has a place of its own."""
        rows = np.flatnonzero(self._left)
        places = np.empty(0, np.int64)
        while len(np.unique(places)) < len(rows):
            self._row_of = np.full(2 * len(self._row_of), self._capacity)
            places = self._places(self._fresh[rows])
        self._row_of[places] = rows
