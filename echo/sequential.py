"""Reads the fresh items of an echo stage from an iterator, with snapshots of its state."""

import collections
import copy
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np

from echo import readers
from echo.stores import nbytes
from echo.threads import DaemonPool, done_within
from echo.torch import copied

# The state of a sequential parent is saved after every so many items. Each snapshot costs a
# get_state() of the parent; restoring discards at most twice that many items.
SNAPSHOT_EVERY = 16

_NOTHING = np.arange(0)


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
    """

    fields = ("num_items", "next_index", "parent")

    def __init__(self, iterator: Any, read_ahead: int = 0):
        self._iterator = iterator
        self._max_ahead, self._ahead = read_ahead, 1  # one until the size of an item is known
        self._item_bytes = 1  # of the largest item so far
        self._pool: DaemonPool | None = None
        self._futures: collections.deque[Future] = collections.deque()  # one per item, in order
        self.next_index = 0
        self.num_items: int | None = None
        # (next index, parent's state), oldest first; none until the parent has to be opened
        self._snapshots: collections.deque[tuple[int, Any]] = collections.deque()
        self._num_taken = 0  # from the iterator
        self._ended = False  # or failed

    def read(self, needed: int, seconds: float | None = None) -> tuple[np.ndarray, Any] | None:
        """The next item, in a list; none at the end, and None if it is not ready in time."""
        if self.num_items is not None:
            return _NOTHING, []
        self._begin()
        items = self._take() if not self._max_ahead else self._taken_ahead(seconds)
        if items is None:
            return None
        if not items:
            self.num_items = self.next_index
        self.next_index += len(items)
        return np.arange(self.next_index - len(items), self.next_index), items

    def state(self, oldest: Callable[[], int]) -> dict[str, Any]:
        self._begin()
        first = oldest()
        while len(self._snapshots) > 1 and self._snapshots[1][0] <= first:
            self._snapshots.popleft()
        index, parent = self._snapshots[0]
        num_items = -1 if self.num_items is None else self.num_items
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
        self._num_taken, self._ended = state["next_index"], False
        still_pending = set(pending)
        while (number := self._num_taken) < stop:
            items = self._take()
            if not items:
                raise ValueError(
                    f"the parent ended after {number} items, but {stop} had been read when "
                    "the state was taken; restore it over the same data"
                )
            if number in still_pending:
                yield np.asarray([number]), items
        self.next_index, self.num_items = stop, self.length(state)

    def _begin(self) -> None:
        """Takes the first snapshot, before a thread reads."""
        if not self._snapshots:
            self._snapshots.append((0, copy.deepcopy(self._iterator.get_state())))

    def close(self, wait: bool = False) -> None:
        """Ends the thread, when it has read what it is reading; returns then if `wait`."""
        for future in self._futures:
            future.cancel()
        self._futures.clear()
        if self._pool is not None:
            if wait:
                self._pool.submit(int).result()
            self._pool.close()
            self._pool = None

    def _taken_ahead(self, seconds: float | None) -> list[Any] | None:
        self._pool = self._pool or DaemonPool(1)
        while len(self._futures) < self._ahead:
            self._futures.append(self._pool.submit(self._take))
        if not done_within(seconds, self._futures[0]):
            return None
        items = self._futures.popleft().result()
        self._item_bytes = max(self._item_bytes, nbytes(items))
        self._ahead = max(1, min(self._max_ahead, readers.READ_AHEAD_BYTES // self._item_bytes))
        return items

    def _take(self) -> list[Any]:
        """The next item of the iterator, in a list; none at the end. Only one thread calls it."""
        if self._ended:  # a parent that is asked after its end may start over
            return []
        self._ended = True  # unless an item follows
        due = self._num_taken - self._snapshots[-1][0] >= SNAPSHOT_EVERY
        state = copy.deepcopy(self._iterator.get_state()) if due else None
        try:
            item = next(self._iterator)
        except StopIteration:
            return []
        if state is not None:  # an item follows: some parents start over from their end
            self._snapshots.append((self._num_taken, state))
        item = copied(item, self._num_taken) if self._max_ahead else item
        self._num_taken, self._ended = self._num_taken + 1, False
        return [item]
