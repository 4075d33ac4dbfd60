"""Where an echo stage reads fresh items: with random access, sequentially, or in the background.

All readers hand over fresh items in order, each produced once, and can resume from a checkpoint.
They differ in how they return to items that were read before it.
"""

import collections
import copy
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import numpy as np

from echo.stores import Stacked, nbytes
from echo.threads import DaemonPool, done_within
from echo.torch import copied

if TYPE_CHECKING:  # a plain iterable is read without Grain
    import grain

# Items are read together in chunks: handing over one item costs more than copying it, and many
# sources are several times faster when asked for many. Chunks start at one item and double as long
# as one takes less than CHUNK_SECONDS, so that a slow source still delivers steadily. Chunks of few
# large items, such as photographs, would cost more than reading them.
CHUNK_ITEMS = 1024
CHUNK_BYTES = 2**23
CHUNK_SECONDS = 0.25

# Seconds per item are averaged over about so many chunks.
_AVERAGED_CHUNKS = 8

# Read-ahead is given in items. This bounds it in bytes, since an item may be a whole batch. The
# size of an item is known only after it was read, so items that were requested before the first
# large one has been handed over may exceed it.
READ_AHEAD_BYTES = 2**28

# The state of a sequential parent is saved after every so many items. Each snapshot costs a
# get_state() of the parent; restoring discards at most twice that many items.
SNAPSHOT_EVERY = 16
# Snapshots that are no longer required are deleted after every so many items.
FORGET_EVERY = 64 * SNAPSHOT_EVERY

_NOTHING = np.arange(0)


class RandomAccessReader:
    """Reads a MapDataset in order, in chunks, on threads ahead of the stage.

    Args:
        parent: the data set. If it has a method `stacked_items(indices)`, that returns a chunk of
            items as one with stacked leaves.
        num_threads: 0 reads when the stage asks.
        read_ahead: items to read ahead; 0 is without threads.
        stacked: whether the stage takes `Stacked` items.
        exact: whether to hold back what was read beyond `needed`.

    Attributes:
        next_index: the number of items handed over so far.
        num_items: the length of the stream. Other readers know it only after the end (None).
    """

    def __init__(
        self,
        parent: "grain.MapDataset",
        num_threads: int,
        read_ahead: int,
        *,
        stacked: bool,
        exact: bool = False,
    ):
        self._parent = parent
        self._exact = exact
        self._max_ahead = self._ahead = read_ahead
        self._num_threads = num_threads if read_ahead else 0
        self._pool: DaemonPool | None = None
        # (indices, future of (items, seconds)), in order
        self._chunks: collections.deque[tuple[np.ndarray, Future]] = collections.deque()
        self._chunk_size = 1  # items of the next chunk
        self._item_bytes = 0  # of the largest items so far, the largest average of a chunk
        self._item_seconds = 0.0
        self._growing = True  # whether larger chunks may follow
        self._stacked = stacked and hasattr(parent, "stacked_items")
        self.num_items: int | None = len(parent)
        self._seek(0)

    def read(self, needed: int, seconds: float | None) -> tuple[np.ndarray, Any] | None:
        """The next items as (indices, items), which are a list, or `Stacked`.

        Args:
            needed: the number of items to read, at least 1. There may be fewer, and, if they are
                read ahead, more. There are none at the end.
            seconds: how long to wait for items that are read ahead (None: without limit). If none
                are ready by then, the result is None.

        Raises:
            Exception: the parent's; then `restore` before the next call.
        """
        chunk = self._held_back or self._next_chunk(seconds)
        if chunk is None:
            return None
        self._held_back = None
        indices, items = chunk
        if self._exact and len(indices) > needed:
            self._held_back = indices[needed:], items[needed:]
            indices, items = indices[:needed], items[:needed]
        self.next_index += len(indices)
        return indices, items

    def state(self, oldest: Callable[[], int]) -> dict[str, Any]:
        """The newest state from which items from `oldest()` on can be read again: here, any."""
        return {}

    def forget_before(self, oldest: Callable[[], int]) -> None:
        """Deletes what is not required to read items from `oldest()` on: here, nothing."""

    def length(self, state: dict[str, Any]) -> int | None:
        """The length of the stream according to `state`."""
        return self.num_items

    def restore(
        self, state: dict[str, Any], pending: Sequence[int], stop: int
    ) -> Iterator[tuple[np.ndarray, Any]]:
        """Returns to `state`, and reads the items `pending` again, all before item `stop`, where
        `read` then continues."""
        self._seek(stop, pending)
        done = 0
        while done < len(pending) and (chunk := self._next_chunk(None)):
            done += len(chunk[0])
            yield chunk

    def close(self) -> None:
        """Ends the threads, each when it has read what it is reading."""
        self._seek(self.next_index)
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def _seek(self, index: int, before: Sequence[int] = ()) -> None:
        for _, future in self._chunks:
            future.cancel()
        self._chunks.clear()
        self._num_ahead = 0  # items in self._chunks
        self._held_back: tuple[np.ndarray, Any] | None = None
        self.next_index = index
        self._indices_to_read = self._split_indices(before, index)

    def _split_indices(self, before: Sequence[int], start: int) -> Iterator[np.ndarray]:
        """Chunks of indices: the items `before`, then those from `start` to the end."""
        while len(before):
            chunk, before = before[: self._chunk_size], before[self._chunk_size :]
            yield np.asarray(chunk)
        num_items = len(self._parent)
        while start < num_items:
            stop = min(start + self._chunk_size, num_items)
            yield np.arange(start, stop)
            start = stop

    def _next_chunk(self, seconds: float | None) -> tuple[np.ndarray, Any] | None:
        # The caller's thread reads the first item: its size bounds the chunks, and a Grain data set
        # sets up things on first use, which is not safe from several threads.
        if not self._item_bytes or not self._num_threads:
            indices = next(self._indices_to_read, _NOTHING)
            if not len(indices):
                return _NOTHING, []
            items, duration = self._read_now(indices)
        else:
            self._read_ahead()
            if not self._chunks:
                return _NOTHING, []
            if not done_within(seconds, self._chunks[0][1]):
                return None
            indices, future = self._chunks.popleft()
            self._num_ahead -= len(indices)
            items, duration = future.result()
        self._resize_chunks(items, len(indices), duration)
        return indices, items

    def _read_ahead(self) -> None:
        """Keeps as many chunks in progress or ready as the options ask for."""
        self._pool = self._pool or DaemonPool(self._num_threads)
        max_chunks = 2 * self._num_threads if self._growing else self._ahead
        while len(self._chunks) < self._num_threads or (
            len(self._chunks) < max_chunks and self._num_ahead + self._chunk_size <= self._ahead
        ):
            indices = next(self._indices_to_read, None)
            if indices is None:
                return
            self._num_ahead += len(indices)
            self._chunks.append((indices, self._pool.submit(self._read_now, indices)))

    def _resize_chunks(self, items: Any, n: int, seconds: float) -> None:
        """Bounds chunks and read-ahead by the largest items so far and by the time of a chunk."""
        if not isinstance(items, Stacked):  # measuring all of them takes long
            self._item_bytes = max(1, self._item_bytes, nbytes([items[0], items[-1]]) // 2)
        else:
            self._item_bytes = max(1, self._item_bytes, nbytes(items) // n)
        self._ahead = min(self._max_ahead, READ_AHEAD_BYTES // self._item_bytes)
        # At least two chunks per thread: one in progress while another one waits.
        ahead = self._ahead // (2 * self._num_threads) if self._num_threads else CHUNK_ITEMS
        largest = max(1, min(ahead, CHUNK_ITEMS, CHUNK_BYTES // self._item_bytes))
        # An average, since the first chunks may wait for workers to start, or for a cold disk.
        weight = 1 / _AVERAGED_CHUNKS if self._item_seconds else 1.0
        self._item_seconds += weight * (seconds / n - self._item_seconds)
        quick = self._item_seconds * self._chunk_size < CHUNK_SECONDS
        self._growing = quick and self._chunk_size < largest
        if self._growing and n == self._chunk_size:
            self._chunk_size *= 2
        self._chunk_size = min(self._chunk_size, largest)

    def _read_now(self, indices: np.ndarray) -> tuple[Any, float]:
        """The items, `Stacked` or as a list, and the seconds it took."""
        start = time.perf_counter()
        parent: Any = self._parent
        try:
            if self._stacked:
                items = Stacked(parent.stacked_items(indices))
            elif hasattr(parent, "_getitems"):  # Grain reads chunks with it; not public yet
                items = list(parent._getitems(indices.tolist()))
            else:
                items = [parent[index] for index in indices.tolist()]
        except StopIteration as error:  # would end the stream as if there were no more items
            raise RuntimeError(
                f"reading items {indices[0]} to {indices[-1]} raised StopIteration"
            ) from error
        if isinstance(items, list) and any(item is None for item in items):
            raise ValueError(
                f"an element of {parent} from {indices[0]} to {indices[-1]} is missing (a filter "
                "dropped it); call .to_iter_dataset() before echoing, which skips missing elements"
            )
        return items, time.perf_counter() - start


class SequentialReader:
    """Reads an iterator when the stage asks, with snapshots of its state to return to.

    The interface is that of `RandomAccessReader`.

    Args:
        iterator: has `get_state` and `set_state`, as those of Grain. The state may be None, after
            the start, where `set_state` could not return to.
    """

    def __init__(self, iterator: Any):
        self._iterator = iterator
        # (next index, parent's state), oldest first
        self._snapshots = collections.deque([(0, copy.deepcopy(iterator.get_state()))])
        self.next_index = 0
        self.num_items: int | None = None

    def read(self, needed: int, seconds: float | None = None) -> tuple[np.ndarray, Iterator[Any]]:
        """The next items, which are read while they are iterated over, without a limit of time."""
        needed = min(needed, CHUNK_ITEMS)  # there may be far fewer than a large buffer asks for
        if self.num_items is not None:  # a parent that is asked after its end may start over
            needed = min(needed, self.num_items - self.next_index)
        return np.arange(self.next_index, self.next_index + needed), self._items(needed)

    def state(self, oldest: Callable[[], int]) -> dict[str, Any]:
        self.forget_before(oldest)
        index, parent = self._snapshots[0]
        num_items = -1 if self.num_items is None else self.num_items
        return {"num_items": num_items, "next_index": index, "parent": parent}

    def length(self, state: dict[str, Any]) -> int | None:
        return None if state["num_items"] < 0 else state["num_items"]

    def restore(
        self, state: dict[str, Any], pending: Sequence[int], stop: int
    ) -> Iterator[tuple[np.ndarray, Any]]:
        # Some parents change the state that they were given as they continue.
        self._iterator.set_state(copy.deepcopy(state["parent"]))
        self.next_index, self.num_items = state["next_index"], self.length(state)
        # Not what the parent reports now: some report the state only after the next item.
        self._snapshots = collections.deque([(self.next_index, copy.deepcopy(state["parent"]))])
        still_pending, start = set(pending), self.next_index
        items = self._items(stop - start)
        yield np.asarray(pending), (x for i, x in enumerate(items, start) if i in still_pending)
        collections.deque(items, maxlen=0)  # advances to `stop`
        if self.next_index < stop:
            raise ValueError(
                f"the parent ended after {self.next_index} items, but {stop} had been read when "
                "the state was taken; restore it over the same data"
            )

    def close(self) -> None:
        """Does nothing: the stage's iterator closes the parent's."""

    def forget_before(self, oldest: Callable[[], int]) -> None:
        """Deletes the snapshots that are not required to read items from `oldest()` on."""
        first = oldest()
        while len(self._snapshots) > 1 and self._snapshots[1][0] <= first:
            self._snapshots.popleft()

    def _items(self, n: int) -> Iterator[Any]:
        for _ in range(n):
            due = self.next_index - self._snapshots[-1][0] >= SNAPSHOT_EVERY
            try:
                state = copy.deepcopy(self._iterator.get_state()) if due else None
                item = next(self._iterator)
            except StopIteration:
                self.num_items = self.next_index
                return
            if state is not None:  # an item follows: some parents start over from their end
                self._snapshots.append((self.next_index, state))
            self.next_index += 1
            yield item


class BackgroundReader:
    """Reads an IterDataset on a thread, ahead of a stage that does not wait for it.

    Items are copied, since the parent may reuse their memory. The interface is that of
    `RandomAccessReader`.

    Args:
        iterator: the parent's.
        read_ahead: items to read ahead, at most 256 MiB of them if all are as large as the largest
            so far.
    """

    def __init__(self, iterator: Any, read_ahead: int):
        self._reader = SequentialReader(iterator)  # only the thread reads with it
        self.length, self.forget_before = self._reader.length, self._reader.forget_before
        self._max_ahead, self._ahead = read_ahead, 1  # one until the size of an item is known
        self._item_bytes = 1  # of the largest item so far
        self._pool: DaemonPool | None = None
        self._futures: collections.deque[Future] = collections.deque()  # one per item, in order
        self.next_index = 0
        self.num_items: int | None = None  # known when the end has been handed over

    def read(self, needed: int, seconds: float | None) -> tuple[np.ndarray, list[Any]] | None:
        """The next item; none at the end, and None if it is not ready within `seconds`."""
        if self.num_items is not None:
            return _NOTHING, []
        self._pool = self._pool or DaemonPool(1)
        while len(self._futures) < self._ahead:
            self._futures.append(self._pool.submit(self._read_one))
        if not done_within(seconds, self._futures[0]):
            return None
        items = self._futures.popleft().result()
        if not items:
            self.num_items = self.next_index
            return _NOTHING, []
        self._item_bytes = max(self._item_bytes, nbytes(items))
        self._ahead = max(1, min(self._max_ahead, READ_AHEAD_BYTES // self._item_bytes))
        self.next_index += 1
        return np.arange(self.next_index - 1, self.next_index), items

    def state(self, oldest: Callable[[], int]) -> dict[str, Any]:
        num_items = -1 if self.num_items is None else self.num_items
        return self._reader.state(oldest) | {"num_items": num_items}

    def restore(
        self, state: dict[str, Any], pending: Sequence[int], stop: int
    ) -> Iterator[tuple[np.ndarray, Any]]:
        pool = self._pool
        self.close()
        if pool is not None:
            pool.join()  # it may be reading
        again = self._reader.restore(state | {"num_items": -1}, pending, stop)
        self.next_index, self.num_items = stop, self.length(state)
        return again

    def close(self) -> None:
        for future in self._futures:
            future.cancel()
        self._futures.clear()
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def _read_one(self) -> list[Any]:
        """The next item, in a list; none at the end."""
        return [copied(item, self._reader.next_index - 1) for item in self._reader.read(1)[1]]


Reader = RandomAccessReader | SequentialReader | BackgroundReader
