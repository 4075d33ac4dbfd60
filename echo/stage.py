"""The echo stage as a Grain data set: `EchoIterDataset`."""

from typing import Any, NamedTuple

import grain
import numpy as np

from echo.gather_plan import OrderStore
from echo.readers import CHUNK_ITEMS, RandomAccessReader, SequentialReader
from echo.schedule import EchoCursor, EchoSchedule
from echo.spec import MAX_BATCH, PLACEMENTS, EchoSpecError, checked_integer, one_of
from echo.stores import ArrayStore, ItemStore

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
        placement: "host" keeps items here and emits them. "device" emits a `GatherPlan` in place of
            each output, which an `echo.device.DeviceStore` applies: each item is then sent to the
            accelerator once. Needs items of one shape.

    Raises:
        EchoSpecError: a factor, buffer, seed, batch size or placement that is not allowed.
        TypeError: a parent that is no Grain data set, or read options of another kind.
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
        placement: str = "host",
    ):
        if not isinstance(parent, grain.MapDataset | grain.IterDataset):
            raise TypeError(
                f"parent is a {type(parent).__name__}; allowed: a Grain MapDataset or IterDataset "
                "(for another iterable use echo.echo_iterable)"
            )
        batch_size = checked_settings(batch_size, read_options, placement)
        super().__init__(parent)
        self.schedule = EchoSchedule(factor, shuffle_buffer, seed)
        self.batch_size = batch_size
        self.drop_remainder = drop_remainder
        self.annotate = annotate
        self.read_options = read_options
        self.placement = placement

    @property
    def round_size(self) -> int:
        """New items a round of each `GatherPlan`: those that a batch lets in, ceil(batch / e)."""
        return self.schedule.max_admitted(self.batch_size or 1)

    def store_rows(self, num_items: int | None = None) -> int:
        """Rows that a store needs which follows the orders, for so many fresh items or any."""
        return self.schedule.max_pending(self.batch_size or 1, num_items)

    def __str__(self) -> str:
        return f"EchoIterDataset({self.schedule}, batch_size={self.batch_size})"

    def __iter__(self) -> grain.DatasetIterator:
        return _EchoIterator(self)


def checked_settings(batch_size: int | None, read_options: Any, placement: str) -> int | None:
    """The batch size of a stage, after a check of it and of two other settings."""
    if placement not in PLACEMENTS:
        raise EchoSpecError("placement", placement, one_of(PLACEMENTS))
    if not isinstance(read_options, grain.ReadOptions):
        raise TypeError(
            f"read_options is a {type(read_options).__name__}; allowed: a grain.ReadOptions"
        )
    return None if batch_size is None else checked_integer("batch_size", batch_size, 1, MAX_BATCH)


def check_fields(state: Any, own: dict[str, Any]) -> None:
    """Checks that `state` has the fields of a stage's own one; ValueError if not."""
    if not isinstance(state, dict) or state.keys() != own.keys():
        is_dict = isinstance(state, dict)
        given = f"has the fields {sorted(map(str, state))}" if is_dict else f"is a {type(state)}"
        raise ValueError(
            f"the state {given}, one of this echo stage has the fields {sorted(own)}; restore "
            "it into a pipeline equal to the one it is of"
        )


def check_reaches(state: dict[str, Any], oldest: int) -> None:
    """Checks that a parent that resumes where `state` says still gives item `oldest`."""
    if state.get("next_index", 0) > oldest:
        raise EchoSpecError("next_index", state["next_index"], f"up to {oldest}, an item to come")


class _EchoIterator(grain.DatasetIterator):
    """One pass over the echoed stream."""

    def __init__(self, dataset: EchoIterDataset):
        self._dataset = dataset
        self._schedule = dataset.schedule
        self._batched = dataset.batch_size is not None
        self._take = dataset.batch_size or 1
        self._orders = dataset.placement == "device"
        parent = dataset._parent
        if isinstance(parent, grain.MapDataset):
            super().__init__()
            self._reader = RandomAccessReader(
                parent, dataset.read_options, stacked=self._batched, exact=self._orders
            )
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
        item = self._store.show(index if self._batched or self._orders else int(index[0]))
        if not self._batched:
            index, copy = index[0], copy[0]
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
            ValueError: the state is of another stage, or of other data; this iterator still stands
                where it did.
        """
        before = self.get_state()
        check_fields(state, before)
        if state["schedule"] != self._identity():
            raise ValueError(
                f"the state is of an echo stage with (factor, shuffle_buffer, seed) = "
                f"({state['schedule']}), this one has ({self._identity()}); "
                "restore it into an equal stage"
            )
        num_items = self._reader.checked(state)
        cursor = self._schedule.cursor(state["position"], num_items)
        check_reaches(state, cursor.oldest())
        try:
            self._go_to(state, cursor)
        except Exception:  # the parent has less, or refuses its part
            self._go_to(
                before, self._schedule.cursor(before["position"], self._reader.checked(before))
            )
            raise

    def _go_to(self, state: dict[str, Any], cursor: EchoCursor) -> None:
        self._reader.rewind(state)
        self._cursor = cursor
        self._store = self._empty_store()
        left = self._cursor.live()
        for indices, items in self._reader.read_again(list(left), self._admitted()):
            self._put(indices, items, np.asarray([left[index] for index in indices.tolist()]))

    def close(self) -> None:
        """Ends the threads that read ahead; asking for more is an error from then on."""
        super().close()
        self._reader.close()

    def _empty_store(self) -> ItemStore | ArrayStore | OrderStore:
        if self._orders:
            rows = self._dataset.store_rows(self._reader.num_items)
            return OrderStore(rows, self._dataset.round_size)
        if not self._batched:
            return ItemStore()
        # Items are read in chunks, and stored as they come.
        ahead = self._take + CHUNK_ITEMS
        return ArrayStore(self._schedule.max_pending(ahead, self._reader.num_items))

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

    def _put(self, indices: np.ndarray, items: Any, copies: np.ndarray) -> None:
        if self._reader.stacked:
            self._store.put_stacked(indices, items, copies)
        else:
            self._store.put(indices, items, copies)

    def _ends_short_of(self, position: int) -> bool:
        """Whether the stream ends before `position` outputs and its last batch is to be dropped."""
        num_fresh = self._cursor.num_fresh
        return (
            self._dataset.drop_remainder
            and num_fresh is not None
            and self._schedule.num_outputs(num_fresh) < position
        )
