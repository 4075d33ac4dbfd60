"""The echo stage as a Grain data set: `EchoIterDataset`."""

from typing import Any, NamedTuple

import grain
import numpy as np

from echo import upstream
from echo.schedule import EchoSchedule
from echo.spec import checked_integer
from echo.store import ArrayStore, ItemStore

_DEFAULT_READ_OPTIONS = grain.ReadOptions(num_threads=4, prefetch_buffer_size=256)


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
    IterDataset as it comes (end it with Grain's own prefetch). Copies share no memory. The state is
    a handful of integers (and the parent's own state, for an IterDataset) wherever it is taken.

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
        read_options: threads and read-ahead for a MapDataset, in items.

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
        read_options: grain.ReadOptions = _DEFAULT_READ_OPTIONS,
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
        super().__init__()
        self._dataset = dataset
        self._schedule = dataset.schedule
        self._batched = dataset.batch_size is not None
        self._take = dataset.batch_size or 1
        parent = dataset._parent
        if isinstance(parent, grain.MapDataset):
            self._reader = upstream.RandomAccessReader(parent, dataset.read_options, self._batched)
        else:
            self._reader = upstream.SequentialReader(parent, self._batched)
        self._cursor = self._schedule.cursor(0, self._reader.num_items)
        self._store = self._empty_store()

    def __next__(self):
        position = self._cursor.position
        self._admit(self._schedule.admitted(position + self._take, self._cursor.num_fresh))
        if self._batched and self._ends_short_of(position + self._take):
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
        schedule = self._schedule
        state = {
            "position": self._cursor.position,
            "schedule": f"{schedule.factor}, {schedule.shuffle_buffer}, {schedule.seed}",
        }
        if isinstance(self._reader, upstream.SequentialReader):
            oldest = self._store.oldest()
            index, parent = self._reader.snapshot(self._admitted() if oldest is None else oldest)
            ended = self._cursor.num_fresh
            state |= {"num_fresh": -1 if ended is None else ended, "index": index, "parent": parent}
        return state

    def set_state(self, state: dict[str, Any]) -> None:
        """Continues where `state` was taken.

        Raises:
            ValueError: the state is of a stage with another factor, shuffle buffer or seed.
        """
        schedule = self._schedule
        mine = f"{schedule.factor}, {schedule.shuffle_buffer}, {schedule.seed}"
        if state["schedule"] != mine:
            raise ValueError(
                f"the state is of an echo stage with (factor, shuffle_buffer, seed) = "
                f"({state['schedule']}), this one has ({mine}); restore it into an equal stage"
            )
        num_fresh = self._reader.num_items
        if isinstance(self._reader, upstream.SequentialReader):
            num_fresh = None if state["num_fresh"] < 0 else state["num_fresh"]
            self._reader.rewind(state["index"], state["parent"])
        self._cursor = schedule.cursor(state["position"], num_fresh)
        self._store = self._empty_store()
        live = self._cursor.live()
        if isinstance(self._reader, upstream.SequentialReader):
            self._read_forward(live)
        else:
            if live:
                self._put(list(live), self._reader.read_again(list(live)), live)
            self._reader.seek(self._admitted())

    def close(self) -> None:
        """Ends the threads that read ahead."""
        self._reader.close()

    def _empty_store(self) -> ItemStore | ArrayStore:
        if not self._batched:
            return ItemStore()
        # Every slot may hold another item, and one batch's items enter before any leaves.
        rows = self._schedule.slots + self._take + 1
        if self._reader.num_items is not None:
            rows = min(rows, max(1, self._reader.num_items))
        return ArrayStore(rows)

    def _admitted(self) -> int:
        return self._schedule.admitted(self._cursor.position, self._cursor.num_fresh)

    def _admit(self, count: int) -> None:
        """Reads fresh items until `count` have entered the store, or there are no more."""
        while self._reader.next_index < count:
            try:
                indices, items = self._reader.read(count - self._reader.next_index)
            except StopIteration:
                self._cursor = self._cursor.ending(self._reader.next_index)
                return
            self._put(indices, items, None)

    def _put(self, indices, items: Any, left: dict[int, int] | None) -> None:
        """Stores items; `left` gives their showings where some are already behind."""
        if left is None:
            showings = self._schedule.copies(indices[0], indices[-1] + 1)
        else:
            showings = np.asarray([left[i] for i in indices], np.int64)
        if self._batched:
            self._store.put(indices, items, showings)
        else:
            for index, item, showing in zip(indices, items, showings.tolist(), strict=True):
                self._store.put(index, item, showing)

    def _read_forward(self, live: dict[int, int]) -> None:
        """Reads from a snapshot up to where the stage stood, keeping what is still pending."""
        target = self._admitted()
        while self._reader.next_index < target:
            indices, items = self._reader.read(1)
            if indices[0] in live:
                self._put(indices, items, live)

    def _ends_short_of(self, position: int) -> bool:
        """Whether the stream ends before `position` outputs and its last batch is to be dropped."""
        num_fresh = self._cursor.num_fresh
        return (
            self._dataset.drop_remainder
            and num_fresh is not None
            and self._schedule.num_outputs(num_fresh) < position
        )
