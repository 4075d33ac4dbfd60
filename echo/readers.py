"""Reads the fresh items of an echo stage with random access, in chunks, on threads ahead of it.

As `echo.sequential.SequentialReader`, which reads an iterator, it hands over fresh items in order,
each produced once, and can resume from a checkpoint.
"""

import collections
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import numpy as np

from echo.stores import Stacked, nbytes
from echo.threads import DaemonPool, done_within

if TYPE_CHECKING:  # a plain iterable is read without Grain
    import grain

# Items are read together in chunks: handing over one item costs more than copying it, and many
# sources are several times faster when asked for many. Chunks start at one item and double, up to
# what takes CHUNK_SECONDS, so that a slow source still delivers steadily. Chunks of few large
# items, such as photographs, would cost more than reading them; a device gets those of a power of
# two in few pieces.
CHUNK_ITEMS = 1024
CHUNK_BYTES = 2**25
CHUNK_SECONDS = 0.25

# Seconds per item are averaged over about so many chunks.
_AVERAGED_CHUNKS = 8

# Read-ahead is given in items. This bounds it in bytes, since an item may be a whole batch. The
# size of an item is known only after it was read, so items that were requested before the first
# large one has been handed over may exceed it.
READ_AHEAD_BYTES = 2**28

_NOTHING = np.arange(0)


class RandomAccessReader:
    """Reads a MapDataset in order, in chunks, on threads ahead of the stage.

    Args:
        parent: the data set. If it has a method `stacked_items(indices)`, that returns a chunk of
            items as one with stacked leaves.
        num_threads: 0 reads when the stage asks.
        read_ahead: items to read ahead; 0 is without threads.
        stacked: whether the stage takes `Stacked` items.
        send: called with indices and items by the thread that has read them; returns the items on
            a device. Those beyond `needed` are then held back, since the store there has no more
            rows than it must.

    Attributes:
        next_index: the number of items handed over so far.
        num_items: the length of the stream. A `SequentialReader` knows it only after the end; until
            then it is None.
    """

    fields = ()  # of its state

    def __init__(
        self,
        parent: "grain.MapDataset",
        num_threads: int,
        read_ahead: int,
        *,
        stacked: bool,
        send: Callable[[np.ndarray, Any], Any] | None = None,
    ):
        self._parent, self._send = parent, send
        self._max_ahead = self._ahead = read_ahead
        self._num_threads = num_threads if read_ahead else 0
        self._pool: DaemonPool | None = None
        # (indices, future of (items, bytes of an item, seconds)), in order
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
        indices, items = chunk
        self._held_back = None
        if self._send and len(indices) > needed:
            self._held_back = indices[needed:], items[needed:]
            indices, items = indices[:needed], items[:needed]
        self.next_index += len(indices)
        return indices, items

    def state(self, oldest: Callable[[], int]) -> dict[str, Any]:
        """The newest state from which items from `oldest()` on can be read again: here, any. Older
        ones are forgotten."""
        return {}

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
        for _, future in self._chunks:
            future.cancel()
        self._chunks.clear()
        if self._pool is not None:
            self._pool.close()
            self._pool = None

    def _seek(self, index: int, before: Sequence[int] = ()) -> None:
        self.close()
        self._num_ahead = 0  # items in self._chunks
        self._held_back: tuple[np.ndarray, Any] | None = None
        self.next_index = index
        self._indices_to_read = itertools.chain(
            self._split(np.asarray(before, np.int64)), self._split(range(index, len(self._parent)))
        )

    def _split(self, indices: Any) -> Iterator[np.ndarray]:
        start = 0
        while len(chunk := indices[start : start + self._chunk_size]):
            yield np.asarray(chunk)
            start += len(chunk)

    def _next_chunk(self, seconds: float | None) -> tuple[np.ndarray, Any] | None:
        # The caller's thread reads the first item: its size bounds the chunks, and a Grain data set
        # sets up things on first use, which is not safe from several threads.
        if not self._item_bytes or not self._num_threads:
            indices = next(self._indices_to_read, _NOTHING)
            if not len(indices):
                return _NOTHING, []
            items, item_bytes, duration = self._read_now(indices)
        else:
            self._read_ahead()
            if not self._chunks:
                return _NOTHING, []
            if not done_within(seconds, self._chunks[0][1]):
                return None
            indices, future = self._chunks.popleft()
            self._num_ahead -= len(indices)
            items, item_bytes, duration = future.result()
        self._resize_chunks(len(indices), item_bytes, duration)
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

    def _resize_chunks(self, n: int, item_bytes: int, seconds: float) -> None:
        """Bounds chunks and read-ahead by the largest items so far and by the time of a chunk."""
        if self._item_bytes:  # the first item may wait for workers to start, or for a cold disk
            weight = 1 / _AVERAGED_CHUNKS if self._item_seconds else 1.0
            self._item_seconds += weight * (seconds / n - self._item_seconds)
        self._item_bytes = max(1, self._item_bytes, item_bytes)
        self._ahead = min(self._max_ahead, READ_AHEAD_BYTES // self._item_bytes)
        in_time = int(CHUNK_SECONDS / max(self._item_seconds, 1e-9))
        # At least two chunks per thread: one in progress while another one waits.
        ahead = self._ahead // (2 * self._num_threads) if self._num_threads else CHUNK_ITEMS
        largest = max(1, min(ahead, CHUNK_ITEMS, CHUNK_BYTES // self._item_bytes, in_time))
        if n == self._chunk_size:
            self._chunk_size *= 2
        largest = 1 << largest.bit_length() - 1  # a power of two
        self._growing = self._chunk_size < largest
        self._chunk_size = min(self._chunk_size, largest)

    def _read_now(self, indices: np.ndarray) -> tuple[Any, int, float]:
        """The items, `Stacked`, as a list, or sent, the bytes of one, and the seconds it took."""
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
        if isinstance(items, Stacked):
            item_bytes = nbytes(items.item) // len(indices)
        else:  # the ends: measuring all of them takes long
            item_bytes = nbytes([items[0], items[-1]]) // 2
        if self._send:
            items = self._send(indices, items)
        return items, item_bytes, time.perf_counter() - start
