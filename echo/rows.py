"""Which row of a store holds which fresh item, and how many of its showings are left."""

import numpy as np


class RowAllocator:
    """Gives out the rows of a store, and takes each back once its item has been shown in full.

    Rows are reused last in, first out, so that as few as possible are ever in use.

    Args:
        capacity: the most items that can be pending at once.

    Attributes:
        peak: the most rows ever in use together.
    """

    def __init__(self, capacity: int):
        self.capacity = capacity
        self.peak = 0
        self._free = np.arange(capacity - 1, -1, -1)  # a stack; its top is at _num_free - 1
        self._num_free = capacity
        self._left = np.zeros(capacity, np.int64)  # showings left, by row
        self._fresh = np.zeros(capacity, np.int64)  # fresh item, by row
        # The row of fresh item i is noted at i modulo the table's length, a power of two, which is
        # doubled where two pending items would meet. An empty place holds a row that is none.
        self._row_of = np.full(1 << (2 * capacity).bit_length(), capacity)

    def __len__(self) -> int:
        return self.capacity - self._num_free

    def free(self, n: int) -> np.ndarray:
        """The next n rows to use, int64 [n]; they stay free until they are occupied."""
        return self._free[self._num_free - n : self._num_free][::-1].copy()

    def occupy(self, rows: np.ndarray, fresh: np.ndarray, copies: np.ndarray) -> None:
        """Puts items into the first of the free rows.

        Args:
            rows: as `free` gave them, or the first ones of those, int64 [n].
            fresh: the items' numbers, int64 [n], ascending.
            showings: how many showings each has left, int64 [n], each at least 1.
        """
        if not len(rows):
            return
        self._num_free -= len(rows)
        self.peak = max(self.peak, len(self))
        self._left[rows] = copies
        self._fresh[rows] = fresh
        places = self._places(fresh)
        meet = fresh[-1] - fresh[0] >= len(self._row_of)
        if meet or (self._row_of[places] != self.capacity).any():
            self._grow_table()
        else:
            self._row_of[places] = rows

    def show(self, fresh: np.ndarray) -> np.ndarray:
        """The rows of items (int64 [n], repeats allowed); counts a showing of each mention."""
        rows = self._row_of[self._places(fresh)]
        np.subtract.at(self._left, rows, 1)
        spent = rows[self._left[rows] == 0]
        if len(spent):
            self._vacate(np.unique(spent))
        return rows

    def drop(self, fresh: np.ndarray) -> None:
        """Frees the rows of items (int64 [n], each once) whatever showings they had left."""
        rows = self._row_of[self._places(fresh)]
        self._left[rows] = 0
        self._vacate(rows)

    def _vacate(self, rows: np.ndarray) -> None:
        self._row_of[self._places(self._fresh[rows])] = self.capacity
        self._free[self._num_free : self._num_free + len(rows)] = rows
        self._num_free += len(rows)

    def _places(self, fresh: np.ndarray) -> np.ndarray:
        return fresh & (len(self._row_of) - 1)

    def _grow_table(self) -> None:
        """Doubles the table until every pending item has a place of its own."""
        rows = np.flatnonzero(self._left)
        places = np.empty(0, np.int64)
        while len(np.unique(places)) < len(rows):
            self._row_of = np.full(2 * len(self._row_of), self.capacity)
            places = self._places(self._fresh[rows])
        self._row_of[places] = rows
