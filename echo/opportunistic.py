"""Echoing only instead of waiting: a Grain stage that repeats stored items while upstream is late.

A batch takes the fresh items that are ready, and fills up with stored ones. The one thing that
depends on time is how many fresh items it took: with these numbers, its *decisions*, the stream is
a pure function of (data, seed, settings).
"""

import base64
import binascii
import zlib
from collections.abc import Callable, Sequence
from typing import Any

import grain
import numpy as np

from echo.auto_order import Repeats, round_size, store_rows
from echo.background import BackgroundReader
from echo.gather_plan import OrderStore
from echo.readers import CHUNK_ITEMS, RandomAccessReader
from echo.spec import MAX_POSITION, EchoSpecError, checked_integer
from echo.stage import (
    DEFAULT_READ_OPTIONS,
    Echoed,
    check_fields,
    check_reaches,
    checked_settings,
)
from echo.stores import ArrayStore, ItemStore


class OpportunisticIterDataset(grain.IterDataset):
    """Shows each fresh item of a Grain data set at once, and stored ones again instead of waiting.

    Fresh items that are ready fill a batch first, in order. Stored ones, least repeated first, fill
    the rest, each up to `max_factor` showings in all; only where they do not suffice are more fresh
    ones waited for. An item is in a batch twice only when every stored one is in it already. With
    fast input this is exactly the parent in batches.

    The stream ends when fewer than a batch of fresh items are left. Iterate it without a prefetch
    thread behind it: that would ask, and so decide, before a batch is needed.

    Args:
        parent: a MapDataset, or an IterDataset. Over batches this is batch echoing.
        max_factor: the most showings of an item; 1 repeats nothing.
        shuffle_buffer: items that are stored for repeating; the most repeated leaves first, the
            older of equals.
        batch_size: examples a batch, of one shape; None emits items one by one.
        seed: of the choice between equally repeated items.
        annotate: emit `Echoed` tuples. Rows whose copy is 0 are the fresh ones, so that their
            number is the batch's decision.
        read_options: threads and read-ahead, in items; both at least 1.
        slack: seconds for which a batch may wait for more fresh items before asking again, 0 or
            less when it is needed now; None: it is always needed at once.
        limit: the most fresh items that may have been shown after the next batch, so that one of
            several streams does not run ahead; more only where stored ones do not suffice. None:
            any number.
        decisions: fresh items of each batch from the first on, as an earlier run took them; the
            stream repeats that run's, and ends with them.
        earlier: called with the number of a batch, from 0, says how many fresh items it took when
            it was emitted before an interruption, which is repeated; None: it is decided now.
        placement: "host" memory keeps the stored items, or "device" memory: the stage emits an
            `GatherPlan` for each batch then, as `EchoIterDataset` does.

    Raises:
        EchoSpecError: a setting that is not allowed.
        TypeError: a parent that is no Grain data set; read options, slack or limit of another kind.
    """

    def __init__(
        self,
        parent: grain.MapDataset | grain.IterDataset,
        *,
        max_factor: int,
        shuffle_buffer: int,
        batch_size: int | None = None,
        seed: int = 0,
        annotate: bool = False,
        read_options: grain.ReadOptions = DEFAULT_READ_OPTIONS,
        slack: Callable[[], float] | None = None,
        limit: Callable[[], int] | None = None,
        decisions: Sequence[int] | None = None,
        earlier: Callable[[int], int | None] | None = None,
        placement: str = "host",
    ):
        if not isinstance(parent, grain.MapDataset | grain.IterDataset):
            raise TypeError(
                f"parent is a {type(parent).__name__}; allowed: a Grain MapDataset or IterDataset"
            )
        batch_size = checked_settings(batch_size, read_options, placement)
        for name, function in (("slack", slack), ("limit", limit)):
            if function is not None and not callable(function):
                raise TypeError(f"{name} is {function!r}; allowed: a function, or None")
        if decisions is not None:
            decisions = _checked_decisions(decisions, batch_size or 1)
        super().__init__(parent)
        if not (read_options.num_threads and read_options.prefetch_buffer_size):
            raise EchoSpecError(
                "read_options", read_options, "threads and a buffer, both at least 1, to read ahead"
            )
        self.repeats = Repeats(max_factor, shuffle_buffer, seed)
        self.batch_size = batch_size
        self.annotate = annotate
        self.read_options = read_options
        self.slack = slack or (lambda: 0.0)
        self.limit = limit
        self.decisions = decisions
        self.earlier = earlier or (lambda batch: None)
        self.placement = placement

    @property
    def round_size(self) -> int:
        """New items a round of each `GatherPlan`."""
        return round_size(self.batch_size or 1)

    def store_rows(self) -> int:
        """Rows that a store needs which follows the orders."""
        return store_rows(self.repeats.capacity, self.batch_size or 1)

    def __str__(self) -> str:
        return f"OpportunisticIterDataset({self.repeats.settings}, batch_size={self.batch_size})"

    def __iter__(self) -> grain.DatasetIterator:
        return _Iterator(self)


class _Iterator(grain.DatasetIterator):
    """One pass over the stream."""

    def __init__(self, dataset: OpportunisticIterDataset):
        self._dataset = dataset
        self._batched = dataset.batch_size is not None
        self._size = dataset.batch_size or 1
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
            self._reader = BackgroundReader(iterator, dataset.read_options.prefetch_buffer_size)
        self._repeats = dataset.repeats.fresh_start()
        self._store = self._empty_store()

    def __next__(self):
        self._assert_not_closed()
        index, copy, leaving = self._repeats.take(self._decision(), self._size)
        if self._batched or self._orders:
            item = self._store.show(index)
            self._store.drop(leaving)
        else:
            item = self._store.show(int(index[0]))
            for number in leaving.tolist():
                self._store.drop(number)
        if not self._batched:
            index, copy = index[0], copy[0]
        fresh = self._repeats.admitted
        return Echoed(item, index, copy, fresh) if self._dataset.annotate else item

    def get_state(self) -> dict[str, Any]:
        """Where this iterator stands: two counts, and which items are stored, how often shown."""
        return {
            "batches": self._repeats.batches,
            "admitted": self._repeats.admitted,
            "stored": _packed(self._repeats.stored()),
            "settings": self._repeats.settings,
            **self._reader.state(self._repeats.oldest()),
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Continues where `state` was taken.

        Raises:
            ValueError: the state is of another stage, or of other data; this iterator still stands
                where it did.
        """
        before, stored_before = self.get_state(), self._repeats.stored()
        check_fields(state, before)
        if state["settings"] != self._repeats.settings:
            raise ValueError(
                f"the state is of a stage with {state['settings']}, this one has "
                f"{self._repeats.settings}; restore it into an equal stage"
            )
        checked_integer("batches", state["batches"], 0, MAX_POSITION)
        num_items = self._reader.checked(state)
        most = MAX_POSITION if num_items is None else num_items
        checked_integer("admitted", state["admitted"], 0, most)
        stored = self._checked_stored(state)
        check_reaches(state, int(stored[0][0]) if stored.size else state["admitted"])
        try:
            self._go_to(state, stored)
        except Exception:  # the parent has less, or refuses its part
            self._go_to(before, stored_before)
            raise

    def _go_to(self, state: dict[str, Any], stored: np.ndarray) -> None:
        self._reader.rewind(state)
        self._repeats.go_to(state["batches"], state["admitted"], stored)
        self._store = self._empty_store()
        shown = dict(zip(*stored.tolist(), strict=True))
        for indices, items in self._reader.read_again(list(shown), state["admitted"]):
            self._put(indices, items, np.asarray([shown[index] for index in indices.tolist()]))

    def _checked_stored(self, state: dict[str, Any]) -> np.ndarray:
        """Numbers and showings of the items that a state says are stored, int64 [2, n]."""
        most, capacity = self._dataset.repeats.max_factor, self._dataset.repeats.capacity
        try:
            stored = _unpacked(state["stored"], capacity)
        except (TypeError, ValueError, binascii.Error, zlib.error) as error:
            raise ValueError(f"the state's stored items cannot be read: {error}") from error
        items, shown = stored
        ascending = (np.diff(items, prepend=-1) > 0).all() and (items < state["admitted"]).all()
        if not (ascending and ((shown > 0) & (shown < most)).all()):
            raise ValueError(
                f"the state's stored items are no ascending numbers below {state['admitted']}, "
                f"each shown less than {most} times; take the state from an equal stage"
            )
        return stored

    def close(self) -> None:
        """Ends the threads that read ahead; asking for more is an error from then on."""
        super().close()
        self._reader.close()

    def _empty_store(self) -> ItemStore | ArrayStore | OrderStore:
        if self._orders:
            return OrderStore(self._dataset.store_rows(), self._dataset.round_size)
        if not self._batched:
            return ItemStore()
        # What is stored, and what is ready: less than a batch, when a chunk comes.
        return ArrayStore(self._dataset.store_rows() + CHUNK_ITEMS)

    @property
    def _ready(self) -> int:
        """Fresh items that are there and have not been shown."""
        return self._reader.next_index - self._repeats.admitted

    def _decision(self) -> int:
        """How many fresh items the next batch takes, all of which are there."""
        least, most = max(0, self._size - self._repeats.copies_left), self._size
        if self._dataset.limit is not None:
            most = min(most, max(least, self._dataset.limit() - self._repeats.admitted))
        if (given := self._given()) is not None:
            least = most = given
        self._read(0.0, most)
        while self._ready < most and not self._ends() and (seconds := self._dataset.slack()) > 0:
            self._read(seconds, most)
        while self._ready < least and not self._ends():
            self._read(None, most)
        if self._ends():
            raise StopIteration
        return min(self._ready, most)

    def _given(self) -> int | None:
        """How many fresh items an earlier run took for the next batch; None: it is decided now."""
        batch, decisions = self._repeats.batches, self._dataset.decisions
        if decisions is None:
            return self._dataset.earlier(batch)
        if batch == len(decisions):
            raise StopIteration
        return int(decisions[batch])

    def _ends(self) -> bool:
        """Whether less than a batch of fresh items is left of the stream."""
        length = self._reader.num_items
        return length is not None and length - self._repeats.admitted < self._size

    def _read(self, seconds: float | None, wanted: int) -> None:
        """Takes in what is read, up to `wanted` items; waits so long for the first. None: ever."""
        while self._ready < wanted:
            found = self._reader.read_within(wanted - self._ready, seconds, self._repeats.oldest)
            if found is None or not len(found[0]):
                return
            self._put(*found, np.zeros(len(found[0]), np.int64))
            seconds = 0.0

    def _put(self, indices: np.ndarray, items: Any, shown: np.ndarray) -> None:
        put = self._store.put_stacked if self._reader.stacked else self._store.put
        put(indices, items, self._repeats.max_factor - shown)


def _packed(stored: np.ndarray) -> str:
    """Ascending numbers and small ones, int64 [2, n], as text: about two bytes an item."""
    steps = np.diff(stored, axis=1, prepend=0)
    return base64.b64encode(zlib.compress(steps.tobytes())).decode()


def _unpacked(text: str, capacity: int) -> np.ndarray:
    """What `_packed` made, of `capacity` items at most: damaged text must not fill memory."""
    unpacking, most = zlib.decompressobj(), 2 * np.dtype(np.int64).itemsize * capacity
    content = unpacking.decompress(base64.b64decode(text, validate=True), most + 1)
    if not unpacking.eof or len(content) > most:
        raise ValueError(f"it is not the whole of up to {capacity} items")
    return np.frombuffer(content, np.int64).reshape(2, -1).cumsum(axis=1)


def _checked_decisions(decisions: Sequence[int], size: int) -> np.ndarray:
    """Fresh items of each batch, int64 [n]."""
    taken = np.asarray(decisions)
    if not taken.size:
        return np.zeros(0, np.int64)
    if taken.ndim != 1 or taken.dtype.kind not in "iu" or taken.min() < 0 or taken.max() > size:
        raise EchoSpecError(
            "decisions", decisions, f"integers from 0 to {size}, one for each batch"
        )
    return taken
