"""Where repeated items wait: each is kept once, however many of its showings are pending.

`ItemStore` keeps any Python object and hands out single independent copies. `ArrayStore` keeps
items of one fixed shape in contiguous memory and hands out whole batches, each one gather.
`echo.gather_plan.OrderStore` has the same interface, and leaves the keeping to an accelerator.

All take items in as they come, so that an item which was produced in a reused buffer is copied
before the next one is asked for.
"""

import copy
from collections.abc import Iterable
from typing import Any

import numpy as np

from echo.rows import RowAllocator
from echo.tree import Layout


class ItemStore:
    """Items of any kind, by the number of the fresh item. Copies handed out share no memory.

    The store copies an item when it enters, and at each showing but the last, which hands over the
    stored object itself: an item shown n times is copied n times in all.
    """

    def __init__(self):
        self._items: dict[int, list] = {}  # fresh item -> [object, showings left]

    def __len__(self) -> int:
        return len(self._items)

    def put(self, fresh: np.ndarray, items: Iterable[Any], copies: np.ndarray) -> None:
        """Admits items as they come; `copies` says how many each has left, at least 1."""
        for number, left, item in zip(fresh.tolist(), copies.tolist(), items, strict=False):
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
            touched; the memory that the process comes to own is that of the most rows ever in use
            together.
    """

    def __init__(self, rows: int):
        self.rows = RowAllocator(rows)
        self._layout = Layout()  # known from the first item on
        self._leaves: list[np.ndarray] = []  # each [rows, ...]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def item_bytes(self) -> int:
        """Bytes of one item, 0 before the first has been put."""
        return sum(leaf[:1].nbytes for leaf in self._leaves)

    def put(self, fresh: np.ndarray, items: Iterable[Any], copies: np.ndarray) -> None:
        """Admits items as they come.

        Args:
            fresh: their numbers, int64 [n], ascending.
            items: at most n items.
            showings: how many showings each has left, int64 [n], each at least 1.

        Raises:
            ValueError: an item of another structure, shape or dtype than the first one.
        """
        rows = self.rows.free(len(fresh))
        came = 0
        try:
            for number, row, item in zip(fresh.tolist(), rows.tolist(), items, strict=False):
                leaves = self._layout.leaves(number, item)
                for stored, leaf in zip(self._arrays(), leaves, strict=True):
                    stored[row] = leaf
                came += 1
        finally:  # what came before an error stays, so that the stream can go on behind it
            self.rows.occupy(rows[:came], fresh[:came], copies[:came])

    def put_stacked(self, fresh: np.ndarray, items: Any, copies: np.ndarray) -> None:
        """Admits n items that came as one, its leaves stacked along a first axis; else as `put`."""
        leaves = self._layout.leaves(int(fresh[0]), items, stacked=True)
        rows = self.rows.free(len(fresh))
        for stored, leaf in zip(self._arrays(), leaves, strict=True):
            stored[rows] = leaf
        self.rows.occupy(rows, fresh, copies)

    def show(self, fresh: np.ndarray) -> Any:
        """Copies of the items `fresh` (int64 [n], repeats allowed), as one with stacked leaves."""
        rows = self.rows.show(fresh)
        return self._layout.build([leaf.take(rows, axis=0) for leaf in self._leaves])

    def drop(self, fresh: np.ndarray) -> None:
        """Forgets items (int64 [n], each once) whatever showings they have left."""
        self.rows.drop(fresh)

    def _arrays(self) -> list[np.ndarray]:
        if not self._leaves:
            specs = self._layout.specs
            self._leaves = [np.empty((self.rows.capacity, *shape), dtype) for shape, dtype in specs]
        return self._leaves
