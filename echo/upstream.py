"""What the stage reads from: a Grain data set, with random access or front to back.

Both readers hand over fresh items in order, each produced once, and can start again at a place that
a checkpoint names. They differ in how they come back to items that were read before it.
"""

import collections
import concurrent.futures
import copy
from collections.abc import Iterator, Sequence
from typing import Any

import grain

from echo import tree

# Items that one task of the thread pool reads together. Sources that read in chunks are several
# times faster that way; a source that does not loses nothing but the first chunk's latency.
CHUNK = 32

# An IterDataset's state is noted every so many items: each note costs a get_state() of the parent,
# and restoring reads at most that many items that it then drops.
SNAPSHOT_EVERY = 16


class RandomAccessReader:
    """Reads a MapDataset in order, in chunks, on threads ahead of the stage.

    A parent may offer `stacked_items(indices)`: the items of a chunk as one item whose leaves are
    stacked. It is used where the stage wants stacked items.
    """

    def __init__(self, parent: grain.MapDataset, options: grain.ReadOptions, stacked: bool):
        self._parent = parent
        self._stacked = stacked
        self._options = options
        self._length = len(parent)
        self._chunks: collections.deque = collections.deque()  # (first index, count, future)
        self._pool: concurrent.futures.ThreadPoolExecutor | None = None
        self._open_chunk: Any = None  # what is left of the chunk that is being handed out
        self.next_index = 0

    @property
    def num_items(self) -> int:
        return self._length

    def read(self, limit: int) -> tuple[range, Any]:
        """The next items, at most `limit` and at least one: (indices, items).

        Items come as a list, or, for a stacked reader, as one stacked item.

        Raises:
            StopIteration: there are no more.
        """
        if self.next_index >= self._length:
            raise StopIteration
        if self._open_chunk is None:
            self._open_chunk = self._next_chunk()
        start, chunk = self._open_chunk
        end = min(start + self._count(chunk), self.next_index + limit)
        items = self._part(chunk, self.next_index - start, end - start)
        self._open_chunk = None if end == start + self._count(chunk) else (start, chunk)
        indices = range(self.next_index, end)
        self.next_index = end
        return indices, items

    def read_again(self, indices: Sequence[int]) -> Any:
        """The items `indices`, out of order, for a restored store."""
        return self._read_now(list(indices))

    def seek(self, index: int) -> None:
        """Continues at item `index`."""
        for _, future in self._chunks:
            future.cancel()
        self._chunks.clear()
        self._open_chunk = None
        self.next_index = index

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None

    def _next_chunk(self) -> tuple[int, Any]:
        if not self._options.num_threads or not self._options.prefetch_buffer_size:
            stop = min(self.next_index + CHUNK, self._length)
            return self.next_index, self._read_now(range(self.next_index, stop))
        self._read_ahead()
        start, future = self._chunks.popleft()
        chunk = future.result()
        self._read_ahead()
        return start, chunk

    def _read_ahead(self) -> None:
        """Keeps about `prefetch_buffer_size` items under way or ready."""
        if self._pool is None:
            self._pool = concurrent.futures.ThreadPoolExecutor(
                self._options.num_threads, thread_name_prefix="echo-read"
            )
        wanted = max(1, self._options.prefetch_buffer_size // CHUNK)
        begin = self._chunks[-1][0] + CHUNK if self._chunks else self.next_index
        while len(self._chunks) < wanted and begin < self._length:
            indices = range(begin, min(begin + CHUNK, self._length))
            self._chunks.append((begin, self._pool.submit(self._read_now, indices)))
            begin += CHUNK

    def _read_now(self, indices: Sequence[int]) -> Any:
        if self._stacked and hasattr(self._parent, "stacked_items"):
            return self._parent.stacked_items(indices)
        if hasattr(self._parent, "_getitems"):  # Grain's reading in chunks, not public yet
            items = self._parent._getitems(list(indices))
        else:
            items = [self._parent[i] for i in indices]
        for index, item in zip(indices, items, strict=True):
            if item is None:
                raise ValueError(
                    f"element {index} of {self._parent} is missing (a filter dropped it); "
                    "call .to_iter_dataset() before echoing, which skips missing elements"
                )
        return tree.stack(items) if self._stacked else items

    def _count(self, chunk: Any) -> int:
        return len(tree.flatten(chunk)[0][0]) if self._stacked else len(chunk)

    def _part(self, chunk: Any, start: int, stop: int) -> Any:
        if self._stacked:
            return tree.map_leaves(lambda leaf: leaf[start:stop], chunk)
        return chunk[start:stop]


class SequentialReader:
    """Reads an IterDataset front to back, noting its state now and then so that it can come back."""

    def __init__(self, parent: grain.IterDataset, stacked: bool):
        self._iterator: Iterator = iter(parent)
        self._stacked = stacked
        self._snapshots: collections.deque = collections.deque()  # (next index, parent's state)
        self.next_index = 0
        self.num_items: int | None = None  # known once the parent has ended
        self._note()

    def read(self, limit: int) -> tuple[range, Any]:
        """The next items, at most `limit` and at least one: (indices, items); see above."""
        start, items = self.next_index, []
        while len(items) < limit:
            try:
                items.append(next(self._iterator))
            except StopIteration:
                self.num_items = self.next_index
                if not items:
                    raise
                break
            self.next_index += 1
            if self.next_index % SNAPSHOT_EVERY == 0:
                self._note()
        return range(start, self.next_index), tree.stack(items) if self._stacked else items

    def snapshot(self, oldest_needed: int) -> tuple[int, Any]:
        """The newest noted (index, state) from which item `oldest_needed` can be read again."""
        while len(self._snapshots) > 1 and self._snapshots[1][0] <= oldest_needed:
            self._snapshots.popleft()
        return self._snapshots[0]

    def rewind(self, index: int, state: Any) -> None:
        """Goes back to a snapshot."""
        self._iterator.set_state(state)
        self.next_index = index
        self._snapshots.clear()
        self._note()

    def close(self) -> None:
        close = getattr(self._iterator, "close", None)
        if close:
            close()

    def _note(self) -> None:
        self._snapshots.append((self.next_index, copy.deepcopy(self._iterator.get_state())))
