"""What the stage reads from: a Grain data set, with random access or front to back.

Both readers hand over fresh items in order, each produced once, and can start again where a
checkpoint stood. They differ in how they come back to items that were read before it.
"""

import atexit
import collections
import concurrent.futures
import copy
import queue
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import grain
import numpy as np

from echo.spec import MAX_POSITION, EchoSpecError, checked_integer
from echo.tree import Structure

# Items are read together in chunks: handing over one item costs more than copying it, and many
# sources are several times faster when asked for many. A chunk begins with one item and doubles as
# long as it takes less than this long, so that a slow source still delivers steadily.
CHUNK_ITEMS = 256
CHUNK_BYTES = 2**20
CHUNK_SECONDS = 0.25

# How long a program that ends waits for reads that are under way.
PROGRAM_ENDS_SECONDS = 2.0

# Read-ahead is given in items, and bounded in bytes for the sake of items that are whole batches.
READ_AHEAD_BYTES = 2**26

# An IterDataset's state is noted every so many items: each note costs a get_state() of the parent,
# and restoring reads at most that many items that it then drops.
SNAPSHOT_EVERY = 16

_NOTHING = np.arange(0)


class RandomAccessReader:
    """Reads a MapDataset in order, in chunks, on threads ahead of the stage.

    Where the stage wants stacked items and the parent has a method `stacked_items(indices)`, that
    is asked for a chunk as one item whose leaves are stacked; `stacked` says so. With `exact` what
    has been read too early is held back, until it is asked for.
    """

    def __init__(
        self,
        parent: grain.MapDataset,
        options: grain.ReadOptions,
        stacked: bool,
        exact: bool = False,
    ):
        self._parent = parent
        self._exact = exact
        self._ahead = options.prefetch_buffer_size  # items
        self._threads = options.num_threads if self._ahead else 0
        self._pool: DaemonPool | None = None
        self._chunks: collections.deque = collections.deque()  # (indices, future), in order
        self._chunk = 1  # items of the next one
        self._largest_chunk: int | None = None  # known from the first item on
        self._growing = True
        self.stacked = stacked and hasattr(parent, "stacked_items")
        self.num_items = len(parent)
        self._seek(0)

    def read(self, needed: int, oldest: Callable[[], int]) -> tuple[np.ndarray, Any]:
        """The next chunk as (indices, list or stacked item), without any indices at the end.

        Being read ahead, a chunk may be smaller than `needed`, and, unless `exact`, larger.
        """
        return self.read_within(needed, None, oldest)

    def read_within(
        self, needed: int, seconds: float | None, oldest: Callable[[], int]
    ) -> tuple[np.ndarray, Any] | None:
        """As `read`, or None where nothing is there within `seconds` (None: waits for it).

        Raises:
            Exception: what the parent raised; asking again reads the same items again.
        """
        del oldest
        try:
            found = self._held_back or self._next_chunk(seconds)
        except BaseException:
            self._seek(self.next_index)
            raise
        if found is None:
            return None
        self._held_back = None
        indices, items = found
        if self._exact and len(indices) > needed:
            items, later = self._split_items(items, needed)
            self._held_back = indices[needed:], later
            indices = indices[:needed]
        self.next_index += len(indices)
        return indices, items

    def state(self, oldest: int) -> dict[str, Any]:
        """Nothing: any item can be read again by its index."""
        del oldest
        return {}

    def checked(self, state: dict[str, Any]) -> int | None:
        """How many items there are where a state was taken, None while no end was known.

        Raises:
            ValueError: `rewind` cannot go there.
        """
        del state
        return self.num_items

    def rewind(self, state: dict[str, Any]) -> None:
        """Nothing: `read_again` goes where it must."""

    def read_again(self, pending: Sequence[int], stop: int) -> Iterator[tuple[np.ndarray, Any]]:
        """Reads the items `pending`, all before item `stop`, from which `read` will go on."""
        self._seek(stop, pending)
        done = 0
        while done < len(pending):
            indices, items = self._next_chunk()
            done += len(indices)
            yield indices, items

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
        self._held_back: tuple[np.ndarray, Any] | None = None
        self.next_index = index
        self._to_read = self._split(before, index)

    def _split(self, before: Sequence[int], start: int) -> Iterator[np.ndarray]:
        """What to read, in chunks: the items `before`, then those from `start` to the end."""
        while len(before):
            chunk, before = before[: self._chunk], before[self._chunk :]
            yield np.asarray(chunk)
        while start < self.num_items:
            stop = min(start + self._chunk, self.num_items)
            yield np.arange(start, stop)
            start = stop

    def _next_chunk(self, seconds: float | None = None) -> tuple[np.ndarray, Any] | None:
        # The first item is read by the caller's own thread: it tells the size of items, and what a
        # Grain data set sets up when first asked is not safe to set up from several threads.
        if self._largest_chunk is None or not self._threads:
            indices = next(self._to_read, _NOTHING)
            items, took = self._read_now(indices)
        else:
            self._read_ahead()
            if not self._chunks:
                return _NOTHING, []
            if not done_within(seconds, self._chunks[0][1]):
                return None
            indices, future = self._chunks.popleft()
            items, took = future.result()
        if self._largest_chunk is None and len(indices):
            self._measure(items)
        if self._growing and len(indices) == self._chunk:
            self._growing = took < CHUNK_SECONDS and self._chunk < self._largest_chunk
            self._chunk = (
                min(2 * self._chunk, self._largest_chunk) if self._growing else self._chunk
            )
        return indices, items

    def _read_ahead(self) -> None:
        """Keeps as many chunks under way or ready as the options ask for."""
        if self._pool is None:
            self._pool = DaemonPool(self._threads)
        wanted = max(self._threads, self._ahead // self._chunk)
        if self._growing:
            wanted = min(wanted, 2 * self._threads)
        while len(self._chunks) < wanted:
            indices = next(self._to_read, None)
            if indices is None:
                return
            self._chunks.append((indices, self._pool.submit(self._read_now, indices)))

    def _split_items(self, items: Any, n: int) -> tuple[Any, Any]:
        """The first n items, and the others."""
        if not self.stacked:
            return items[:n], items[n:]
        structure = Structure(items)
        leaves = structure.leaves(items)
        parts = ([leaf[:n] for leaf in leaves], [leaf[n:] for leaf in leaves])
        return structure.build(parts[0]), structure.build(parts[1])

    def _measure(self, items: Any) -> None:
        """Bounds chunks and read-ahead by the size of the first item."""
        size = memory_of(items)
        self._ahead = min(self._ahead, READ_AHEAD_BYTES // size)
        # With threads at least two chunks each, one that is read while one waits.
        ahead = self._ahead // (2 * self._threads) if self._threads else CHUNK_ITEMS
        self._largest_chunk = max(1, min(ahead, CHUNK_ITEMS, CHUNK_BYTES // size))

    def _read_now(self, indices: np.ndarray) -> tuple[Any, float]:
        """The items, stacked or listed, and the seconds it took."""
        if not len(indices):
            return [], 0.0
        start = time.perf_counter()
        items = (
            self._parent.stacked_items(indices) if self.stacked else self._items(indices.tolist())
        )
        return items, time.perf_counter() - start

    def _items(self, indices: list[int]) -> list[Any]:
        if hasattr(self._parent, "_getitems"):  # Grain's reading in chunks, not public yet
            items = self._parent._getitems(indices)
        else:
            items = [self._parent[index] for index in indices]
        for index, item in zip(indices, items, strict=True):
            if item is None:
                raise ValueError(
                    f"element {index} of {self._parent} is missing (a filter dropped it); "
                    "call .to_iter_dataset() before echoing, which skips missing elements"
                )
        return items


def memory_of(items: Any) -> int:
    """About the bytes that items take, at least 1."""
    leaves = Structure(items).leaves(items)
    return max(1, sum(getattr(leaf, "nbytes", 0) or sys.getsizeof(leaf) for leaf in leaves))


def done_within(seconds: float | None, future: concurrent.futures.Future) -> bool:
    """Whether `future` is done, after waiting for it so long; None = as long as it takes."""
    return bool(future.done() or concurrent.futures.wait([future], seconds).done)


class DaemonPool:
    """Threads that run functions in order of submission.

    Unlike those of concurrent.futures they are daemons, so that a program which ends, by an error
    perhaps, does not first wait for everything that a slow source was asked to read ahead.
    """

    def __init__(self, num_threads: int):
        self._tasks: queue.SimpleQueue = queue.SimpleQueue()
        self._num_threads = num_threads
        for i in range(num_threads):
            thread = threading.Thread(target=_serve, args=(self._tasks,), daemon=True)
            thread.name = f"echo-read-{i}"
            _THREADS[thread] = self._tasks
            thread.start()

    def submit(self, function: Callable, argument: Any) -> concurrent.futures.Future:
        future: concurrent.futures.Future = concurrent.futures.Future()
        self._tasks.put((future, function, argument))
        return future

    def close(self) -> None:
        for _ in range(self._num_threads):
            self._tasks.put(None)


_THREADS: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()  # each with its queue
_program_ends = threading.Event()


@atexit.register
def _let_threads_finish() -> None:
    """Waits a moment for what is being read.

    The interpreter ends daemon threads where they stand, and one that stands below C++ code (a
    compiled function, a decoder) takes the process down with it.
    """
    _program_ends.set()
    until = time.monotonic() + PROGRAM_ENDS_SECONDS
    threads = dict(_THREADS)
    for tasks in threads.values():
        tasks.put(None)  # wakes one that is idle
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))


def _serve(tasks: queue.SimpleQueue) -> None:
    while (task := tasks.get()) is not None and not _program_ends.is_set():
        future, function, argument = task
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(function(argument))
            except BaseException as error:  # is raised where the result is asked for
                future.set_exception(error)
        del task, future, function, argument  # or they would live until the next task


class SequentialReader:
    """Reads an IterDataset front to back, noting its state now and then so as to come back."""

    stacked = False

    def __init__(self, iterator: grain.DatasetIterator):
        self._iterator = iterator
        self._snapshots: collections.deque = collections.deque()  # (next index, parent's state)
        self.next_index = 0
        self.num_items: int | None = None  # known once the parent has ended
        self._note()

    def read(self, needed: int, oldest: Callable[[], int]) -> tuple[np.ndarray, Iterator[Any]]:
        """The next `needed` items, or fewer at the end, as (indices, items as they come).

        `oldest()` is the earliest item that may have to be read again.
        """
        indices = np.arange(self.next_index, self.next_index + needed)
        return indices, self._items(needed, oldest)

    def state(self, oldest: int) -> dict[str, Any]:
        """The newest state from which item `oldest` can be read again."""
        self._forget_before(oldest)
        index, parent = self._snapshots[0]
        return {
            "num_items": -1 if self.num_items is None else self.num_items,
            "next_index": index,
            "parent": parent,
        }

    def checked(self, state: dict[str, Any]) -> int | None:
        """How many items there are where a state was taken, None while no end was known.

        Raises:
            ValueError: `rewind` cannot go there.
        """
        checked_integer("next_index", state["next_index"], 0, MAX_POSITION)
        num_items = checked_integer("num_items", state["num_items"], -1, MAX_POSITION)
        if 0 <= num_items < state["next_index"]:
            raise EchoSpecError("next_index", state["next_index"], f"up to num_items, {num_items}")
        return None if num_items < 0 else num_items

    def rewind(self, state: dict[str, Any]) -> None:
        """Goes back to where a state was taken, which `checked` allows."""
        self._iterator.set_state(state["parent"])
        self.next_index = state["next_index"]
        self.num_items = None if state["num_items"] < 0 else state["num_items"]
        self._snapshots.clear()
        self._note()

    def read_again(self, pending: Sequence[int], stop: int) -> Iterator[tuple[np.ndarray, Any]]:
        """Reads forward to item `stop`, handing over the items `pending` on the way."""
        wanted, start = set(pending), self.next_index
        items = self._items(stop - start, lambda: start)
        yield np.asarray(pending), (x for i, x in enumerate(items, start) if i in wanted)
        collections.deque(items, maxlen=0)  # the rest of the way
        if self.next_index < stop:
            raise ValueError(
                f"the parent ended after {self.next_index} items, but {stop} had been read when "
                "the state was taken; restore it over the same data"
            )

    def _items(self, n: int, oldest: Callable[[], int]) -> Iterator[Any]:
        for _ in range(n):
            try:
                item = next(self._iterator)
            except StopIteration:
                self.num_items = self.next_index
                return
            self.next_index += 1
            if self.next_index % SNAPSHOT_EVERY == 0:
                self._note()
            if self.next_index % (64 * SNAPSHOT_EVERY) == 0:
                self._forget_before(oldest())
            yield item

    def close(self) -> None:
        """Nothing: the parent's iterator is closed with the stage's own."""

    def _note(self) -> None:
        self._snapshots.append((self.next_index, copy.deepcopy(self._iterator.get_state())))

    def _forget_before(self, oldest: int) -> None:
        while len(self._snapshots) > 1 and self._snapshots[1][0] <= oldest:
            self._snapshots.popleft()
