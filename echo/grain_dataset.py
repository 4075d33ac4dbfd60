"""The echo stage as a Grain data set: `EchoIterDataset`."""

from typing import Any, NamedTuple

import grain
import numpy as np

from echo.schedule import EchoSchedule
from echo.spec import checked_integer
from echo.store import ArrayStore, ItemStore
from echo.upstream import CHUNK_ITEMS, RandomAccessReader, SequentialReader

DEFAULT_READ_OPTIONS = grain.ReadOptions(num_threads=4, prefetch_buffer_size=2048)


class Echoed(NamedTuple):
    """What an annotating stage emits.

    Attributes:
        item: the example; with `batch_size` B, examples stacked along a first axis of length B.
        index: the number of the fresh item that is shown, int64 scalar or [B].
        copy: which of its copies this is, 0 for the first, int64 scalar or [B].
        fresh: fresh items admitted to the stage so far, prefill included and read-ahead excluded.
    """

    item: Any
    index: np.ndarray
    copy: np.ndarray
    fresh: int


class EchoIterDataset(grain.IterDataset):
    """Repeats each item of a Grain data set about `factor` times, mixed by a shuffle buffer.

    The parent's work is done once a fresh item: a MapDataset is read ahead on threads, an
    IterDataset as it comes (end it with Grain's own prefetch). Copies share no memory, with each
    other or with what the parent made; an IterDataset may even reuse the memory of its last item.
    The state is a handful of integers (and the parent's own, for an IterDataset) at any point.

    Args:
        parent: a MapDataset, or an IterDataset. Over batches this is batch echoing.
        factor: the echoing factor e >= 1; k items give floor(k*e) outputs.
        shuffle_buffer: slots of the streaming shuffle buffer, in items; 0 leaves copies adjacent.
        seed: of the buffer's choices.
        batch_size: gathers batches of this many examples straight from the store, which is many
            times faster than batching afterwards. Needs items of one shape; otherwise items are
            emitted one by one.
        drop_remainder: with `batch_size`, whether a last batch with fewer examples is left out.
        annotate: emit `Echoed` tuples, which say what is shown and how much is fresh so far.
        read_options: threads and read-ahead for a MapDataset, in items (and at most 64 MiB, or an
            item a thread). Without threads it is read when needed, which is best for a parent that
            does Python's work over data in memory.

    Raises:
        EchoSpecError: a factor, buffer, seed or batch size that is not allowed.
        TypeError: a parent that is no Grain data set.
    """

    def __init__(
        self,
        parent: grain.MapDataset | grain.IterDataset,
        *,
        factor,
        shuffle_buffer: int = 0,
        seed: int = 0,
        batch_size: int | None = None,
        drop_remainder: bool = True,
        annotate: bool = False,
        read_options: grain.ReadOptions = DEFAULT_READ_OPTIONS,
    ):
        if not isinstance(parent, grain.MapDataset | grain.IterDataset):
            raise TypeError(
                f"parent is a {type(parent).__name__}; allowed: a Grain MapDataset or IterDataset "
                "(for another iterable use echo.echo_iterable)"
            )
        super().__init__(parent)
        if batch_size is not None:
            batch_size = checked_integer("batch_size", batch_size, minimum=1)
        self.schedule = EchoSchedule(factor, shuffle_buffer, seed)
        self.batch_size = batch_size
        self.drop_remainder = drop_remainder
        self.annotate = annotate
        self.read_options = read_options

    def __str__(self) -> str:
        return f"EchoIterDataset({self.schedule}, batch_size={self.batch_size})"

    def __iter__(self) -> grain.DatasetIterator:
        return _EchoIterator(self)


class _EchoIterator(grain.DatasetIterator):
    """One pass over the echoed stream."""

    def __init__(self, dataset: EchoIterDataset):
        self._dataset = dataset
        self._schedule = dataset.schedule
        self._batched = dataset.batch_size is not None
        self._take = dataset.batch_size or 1
        parent = dataset._parent
        if isinstance(parent, grain.MapDataset):
            super().__init__()
            self._reader = RandomAccessReader(parent, dataset.read_options, self._batched)
        else:
            iterator = iter(parent)
            super().__init__(iterator)
            self._reader = SequentialReader(iterator)
        self._cursor = self._schedule.cursor(0, self._reader.num_items)
        self._store = self._empty_store()

    def __next__(self):
        self._assert_not_closed()
        stop = self._cursor.position + self._take
        self._admit(self._schedule.admitted(stop, self._cursor.num_fresh))
        if self._batched and self._ends_short_of(stop):
            raise StopIteration
        index, copy = self._cursor.take(self._take)
        if not len(index):
            raise StopIteration
        if self._batched:
            item = self._store.show(index)
        else:
            index, copy = index[0], copy[0]
            item = self._store.show(int(index))
        return Echoed(item, index, copy, self._admitted()) if self._dataset.annotate else item

    def get_state(self) -> dict[str, Any]:
        """Where this iterator stands: small, of one structure throughout, valid in any process."""
        return {
            "position": self._cursor.position,
            "schedule": self._identity(),
            **self._reader.state(self._cursor.oldest()),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Continues where `state` was taken.

        Raises:
            ValueError: the state is of another stage, or of other data.
        """
        if state.keys() != self.get_state().keys():
            raise ValueError(
                f"the state has the fields {sorted(state)}, one of this echo stage has "
                f"{sorted(self.get_state())}; restore it into a pipeline equal to the one it is of"
            )
        if state["schedule"] != self._identity():
            raise ValueError(
                f"the state is of an echo stage with (factor, shuffle_buffer, seed) = "
                f"({state['schedule']}), this one has ({self._identity()}); "
                "restore it into an equal stage"
            )
        self._reader.rewind(state)
        self._cursor = self._schedule.cursor(state["position"], self._reader.num_items)
        self._store = self._empty_store()
        left = self._cursor.live()
        for indices, items in self._reader.read_again(list(left), self._admitted()):
            self._put(indices, items, np.asarray([left[index] for index in indices.tolist()]))

    def close(self) -> None:
        """Ends the threads that read ahead; asking for more is an error from then on."""
        super().close()
        self._reader.close()

    def _empty_store(self) -> ItemStore | ArrayStore:
        if not self._batched:
            return ItemStore()
        # Every slot may hold another item, and a batch's items, read in chunks, enter before any
        # leaves.
        rows = self._schedule.slots + self._take + CHUNK_ITEMS
        if self._reader.num_items is not None:
            rows = min(rows, max(1, self._reader.num_items))
        return ArrayStore(rows)

    def _identity(self) -> str:
        return f"{self._schedule.factor}, {self._schedule.shuffle_buffer}, {self._schedule.seed}"

    def _admitted(self) -> int:
        return self._schedule.admitted(self._cursor.position, self._cursor.num_fresh)

    def _admit(self, count: int) -> None:
        """Reads fresh items until `count` have entered the store, or there are no more."""
        while (start := self._reader.next_index) < count:
            indices, items = self._reader.read(count - start, self._cursor.oldest)
            if len(indices):
                self._put(indices, items, self._schedule.copies(start, start + len(indices)))
            if self._reader.next_index == start:
                self._cursor = self._cursor.ending(start)
                return

    def _put(self, indices: np.ndarray, items: Any, showings: np.ndarray) -> None:
        if self._reader.stacked:
            self._store.put_stacked(indices, items, showings)
        else:
            self._store.put(indices, items, showings)

    def _ends_short_of(self, position: int) -> bool:
        """Whether the stream ends before `position` outputs and its last batch is to be dropped."""
        num_fresh = self._cursor.num_fresh
        return (
            self._dataset.drop_remainder
            and num_fresh is not None
            and self._schedule.num_outputs(num_fresh) < position
        )
