"""Reads an IterDataset on a thread, ahead of a stage that will not wait for it."""

import collections
import copy
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import grain
import numpy as np

from echo.readers import (
    READ_AHEAD_BYTES,
    SNAPSHOT_EVERY,
    DaemonPool,
    SequentialReader,
    done_within,
    memory_of,
)


class BackgroundReader:
    """A SequentialReader on a thread of its own; items are copied, as the parent may reuse them.

    Args:
        iterator: of the parent.
        ahead: items to read before they are asked for, and at most 64 MiB of them.
    """

    stacked = False

    def __init__(self, iterator: grain.DatasetIterator, ahead: int):
        self._reader = SequentialReader(iterator)  # ahead of this one; the thread's alone
        self._max_ahead = self._ahead = ahead
        self._pool: DaemonPool | None = None
        self._coming: collections.deque = collections.deque()  # a future an item, in order
        self._error: BaseException | None = None
        self.next_index = 0
        self.num_items: int | None = None  # known once the end has been handed over

    def read_within(
        self, needed: int, seconds: float | None, oldest: Callable[[], int]
    ) -> tuple[np.ndarray, list[Any]] | None:
        """The next item as (index, [item]), nothing in both at the end; None where it is not there
        within `seconds` (None: waits for it)."""
        del needed
        if self.num_items is not None:
            return np.arange(0), []
        self._pool = self._pool or DaemonPool(1)
        while len(self._coming) < self._ahead:
            self._coming.append(self._pool.submit(self._read_one, None))
        if not done_within(seconds, self._coming[0]):
            return None
        items = self._coming.popleft().result()
        if not items:
            self.num_items = self.next_index
            return np.arange(0), []
        if self.next_index % (64 * SNAPSHOT_EVERY) == 0:
            self._ahead = max(1, min(self._max_ahead, READ_AHEAD_BYTES // memory_of(items)))
            self._reader.state(oldest())  # which forgets what is older
        self.next_index += 1
        return np.arange(self.next_index - 1, self.next_index), items

    def state(self, oldest: int) -> dict[str, Any]:
        """The newest state from which item `oldest` can be read again."""
        length = -1 if self.num_items is None else self.num_items
        return self._reader.state(oldest) | {"num_items": length}

    def checked(self, state: dict[str, Any]) -> int | None:
        """As SequentialReader does it."""
        return self._reader.checked(state)

    def rewind(self, state: dict[str, Any]) -> None:
        """Goes back to where a state was taken."""
        self._halt()
        self._reader.rewind(state)
        self.num_items, self._reader.num_items = self._reader.num_items, None
        self.next_index, self._error = self._reader.next_index, None

    def read_again(self, pending: Sequence[int], stop: int) -> Iterator[tuple[np.ndarray, Any]]:
        """Reads forward to item `stop`, handing over the items `pending` on the way."""
        self.next_index = stop
        return self._reader.read_again(pending, stop)

    def close(self) -> None:
        """Ends the thread when it has read what it is reading."""
        for future in self._coming:
            future.cancel()
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def _halt(self) -> None:
        """Waits until the thread is idle; what it has read ahead is dropped."""
        for future in self._coming:
            future.cancel()
        for future in self._coming:
            if not future.cancelled():
                done_within(None, future)
        self._coming.clear()

    def _read_one(self, _) -> list[Any]:
        if self._error is not None:
            raise self._error  # what comes behind an error is not the next item
        if self._reader.num_items is not None:
            return []
        try:
            _, items = self._reader.read(1, lambda: 0)
            return [copy.deepcopy(item) for item in items]
        except BaseException as error:
            self._error = error
            raise
