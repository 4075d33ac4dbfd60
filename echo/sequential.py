"""Reads the fresh items of an echo stage from an iterator, with snapshots of its state."""

import collections
import copy
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np

from echo import readers
from echo.rows import rows_of
from echo.stores import nbytes
from echo.threads import DaemonPool, done_within
from echo.torch import copied

# The state of a sequential parent is saved after every so many of its items. Each snapshot costs a
# get_state() of the parent; restoring discards at most twice that many items.
SNAPSHOT_EVERY = 16

_NOTHING = np.arange(0)

Chunk = tuple[np.ndarray, Any]  # the numbers of fresh items, and these, in a list or `Stacked`


class SequentialReader:
    """Reads an iterator one item at a time, with snapshots of its state to return to.

    The interface is that of `echo.readers.RandomAccessReader`.

    Attributes:
        fields: those of its state.

    Args:
        iterator: has `get_state` and `set_state`, as those of Grain. The state may be None, after
            the start, where `set_state` could not return to.
        read_ahead: items that a thread reads ahead, in at most 256 MiB if all are as large as the
            largest so far; it copies them, since the parent may reuse their memory. 0 reads an item
            when the stage asks for it, in a time without limit.
        rows: whether the items are batches, whose rows are the fresh items.
    """

    fields = ("num_items", "next_index", "parent")

    def __init__(self, iterator: Any, read_ahead: int = 0, rows: bool = False):
        self._iterator, self._rows = iterator, rows
        self._max_ahead, self._ahead = read_ahead, 1  # one until the size of an item is known
        self._item_bytes = 1  # of the largest item so far
        self._pool: DaemonPool | None = None
        self._futures: collections.deque[Future] = collections.deque()  # one per item, in order
        self._later: Chunk | None = None  # has been read, and comes next
        self.next_index = 0
        self.num_items: int | None = None
        # (next index, parent's state), oldest first; none until the parent has to be opened
        self._snapshots: collections.deque[tuple[int, Any]] = collections.deque()
        self._num_taken = 0  # fresh items from the iterator
        self._since_snapshot = 0  # items from the iterator
        self._ended = False  # or failed

    def read(self, needed: int, seconds: float | None = None) -> Chunk | None:
        """The fresh items of the next item; none at the end, and None if it is not ready in
        time."""
        chunk, self._later = self._later, None
        if chunk is None:
            if self.next_index == self.num_items:
                return _NOTHING, []
            self._begin()
            chunk = self._take() if not self._max_ahead else self._taken_ahead(seconds)
            if chunk is None:
                return None
        if not len(chunk[0]):
            self.num_items = self.next_index
        self.next_index += len(chunk[0])
        return chunk

    def first(self) -> tuple[int, int]:
        """The number of the next fresh items, and the bytes of one; `read` then returns them.
        StopIteration if there are none."""
        chunk = self.read(1)
        if chunk is None or not (n := len(chunk[0])):
            raise StopIteration
        self._later, self.next_index = chunk, self.next_index - n
        return n, max(1, nbytes(chunk[1]) // n)

    def state(self, oldest: Callable[[], int]) -> dict[str, Any]:
        self._begin()
        first = oldest()
        while len(self._snapshots) > 1 and self._snapshots[1][0] <= first:
            self._snapshots.popleft()
        index, parent = self._snapshots[0]
        num_items = -1 if self.num_items is None else self.num_items  # Grain wants one type
        return {"num_items": num_items, "next_index": index, "parent": parent}

    def length(self, state: dict[str, Any]) -> int | None:
        return None if state["num_items"] < 0 else state["num_items"]

    def restore(
        self, state: dict[str, Any], pending: Sequence[int], stop: int
    ) -> Iterator[tuple[np.ndarray, Any]]:
        self.close(wait=True)
        # Some parents change the state that they were given as they continue.
        self._iterator.set_state(copy.deepcopy(state["parent"]))
        # Not what the parent reports now: some report the state only after the next item.
        self._snapshots = collections.deque([(state["next_index"], copy.deepcopy(state["parent"]))])
        self._num_taken, self._since_snapshot = state["next_index"], 0
        self._ended, self._later = False, None
        wanted = set(pending)
        while self._num_taken < stop:
            index, items = self._take()
            if not len(index):
                raise ValueError(
                    f"the parent ended after {self._num_taken} items, but {stop} had been read "
                    "when the state was taken; restore it over the same data"
                )
            places = [place for place, number in enumerate(index.tolist()) if number in wanted]
            if len(places) == len(index):
                yield index, items
            elif places:
                yield index[places], items[places]
            if index[-1] >= stop:
                rest = slice(stop - int(index[0]), None)
                self._later = index[rest], items[rest]
        self.next_index, self.num_items = stop, self.length(state)

    def _begin(self) -> None:
        """Takes the first snapshot, before a thread reads."""
        if not self._snapshots:
            self._snapshots.append((0, copy.deepcopy(self._iterator.get_state())))

    def close(self, wait: bool = False) -> None:
        """Ends the thread, when it has read what it is reading; returns then if `wait`. What it
        read ahead is lost, so that the stream ends, unless `restore` follows."""
        for future in self._futures:
            future.cancel()
        self._futures.clear()
        if self._pool is not None:
            if wait:
                self._pool.submit(int).result()
                self._ended = True
            self._pool.close()
            self._pool = None

    def _taken_ahead(self, seconds: float | None) -> Chunk | None:
        self._pool = self._pool or DaemonPool(1)
        while len(self._futures) < self._ahead:
            self._futures.append(self._pool.submit(self._take))
        if not done_within(seconds, self._futures[0]):
            return None
        index, items = self._futures.popleft().result()
        self._item_bytes = max(self._item_bytes, nbytes(items))
        self._ahead = max(1, min(self._max_ahead, readers.READ_AHEAD_BYTES // self._item_bytes))
        return index, items

    def _take(self) -> Chunk:
        """The fresh items of the iterator's next item; none at its end. Only one thread calls
        it."""
        if self._ended:  # a parent that is asked after its end may start over
            return _NOTHING, []
        self._ended = True  # unless an item follows
        due = self._since_snapshot == SNAPSHOT_EVERY
        state = copy.deepcopy(self._iterator.get_state()) if due else None
        try:
            item = next(self._iterator)
        except StopIteration:
            return _NOTHING, []
        if due:  # an item follows: some parents start over from their end
            self._since_snapshot = 0
            if state is not None:
                self._snapshots.append((self._num_taken, state))
        item = copied(item, self._num_taken) if self._max_ahead else item
        items = rows_of(item) if self._rows else [item]
        start, self._num_taken = self._num_taken, self._num_taken + len(items)
        self._since_snapshot, self._ended = self._since_snapshot + 1, False
        return (np.arange(start, self._num_taken), items) if len(items) else self._take()
