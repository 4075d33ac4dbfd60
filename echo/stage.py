"""The echo stage as a Grain data set: `EchoIterDataset` and `OpportunisticIterDataset`.

Both read, store, emit and restore items alike. They differ in the order of the copies, which is
`echo.schedule.EchoCursor` or `echo.auto_order.AutoOrder`.
"""

import copy
import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import grain
import numpy as np

from echo.auto_order import AutoOrder
from echo.echo_pass import EchoPass
from echo.readers import CHUNK_ITEMS, RandomAccessReader
from echo.schedule import EchoCursor, EchoSchedule
from echo.sequential import SequentialReader
from echo.spec import MAX_BATCH, PLACEMENTS, EchoSpecError, Factor, checked_integer, checked_switch
from echo.stores import ArrayStore, ItemStore

if TYPE_CHECKING:
    from echo.device import DeviceStore

# As many threads as Grain reads with by default, so that an echo stage reads no slower.
DEFAULT_READ_OPTIONS = grain.ReadOptions(num_threads=16, prefetch_buffer_size=2048)


class Echoed(NamedTuple):
    """What an annotating stage emits.

    Attributes:
        item: the example; with `batch_size` B, examples stacked along a first axis of length B.
        index: the number of the fresh item, int64 scalar or [B].
        copy: the copy number of the item, from 0, int64 scalar or [B]. It identifies the
            copy and seeds augmentation. `EchoIterDataset` with a shuffle buffer emits copies in any
            order, so copy 0 need not come first.
        fresh: fresh items admitted to the stage so far, prefill included and read-ahead excluded.

    Each worker of Grain's `mp_prefetch` numbers and counts its own items.
    """

    item: Any
    index: np.ndarray
    copy: np.ndarray
    fresh: int


class _EchoStage(grain.IterDataset):
    """What both stages share; the arguments are documented there.

    Attributes:
        outputs: the number of items emitted at a time.
        reads_ahead: whether an IterDataset is read on a thread.
        new_order: the order of a pass over so many fresh items (None: unknown).
    """

    reads_ahead = False
    new_order: Callable[[int | None], EchoCursor | AutoOrder]

    def __init__(
        self,
        parent: grain.MapDataset | grain.IterDataset,
        batch_size: int | None,
        annotate: bool,
        read_options: grain.ReadOptions,
        placement: "str | Callable[..., DeviceStore]",
    ):
        if not isinstance(parent, grain.MapDataset | grain.IterDataset):
            raise TypeError(
                f"parent has type {type(parent).__name__}; allowed: a Grain MapDataset or "
                "IterDataset (for another iterable use echo.echo_iterable)"
            )
        super().__init__(parent)
        if batch_size is not None:
            batch_size = checked_integer("batch_size", batch_size, 1, MAX_BATCH)
        self.batch_size = batch_size
        self.outputs = batch_size or 1
        self.annotate = checked_switch("annotate", annotate)
        self.read_options: Any = read_options
        named = isinstance(placement, str) and placement in PLACEMENTS
        if not (named or callable(placement)):
            raise EchoSpecError("placement", placement, ", ".join(map(repr, PLACEMENTS)))
        self.placement = placement

    def set_slice(self, sl: slice, sequential_slice: bool = False) -> None:
        """Restricts the stage to a slice of the fresh items, in place. Grain calls this on the copy
        that each worker of `mp_prefetch` has."""
        parent = self._parent
        if isinstance(parent, grain.MapDataset) and not sequential_slice:
            self._parents = (parent.slice(sl),)
            return
        ancestors: list[Any] = [parent]
        for dataset in ancestors:  # which grows
            if hasattr(dataset, "set_slice"):
                dataset.set_slice(sl, sequential_slice)
            elif not dataset.parents:
                raise TypeError(f"a {type(dataset).__name__} has no set_slice to share its items")
            else:
                ancestors += dataset.parents

    def device_store(self, num_items: int | None) -> "DeviceStore":
        """An empty store on the device for a pass over `num_items` fresh items (None: unknown)."""
        from echo.device import DeviceStore

        make = self.placement if callable(self.placement) else DeviceStore
        rows = self.new_order(num_items).max_pending(self.outputs)
        return make(rows, batch_size=self.batch_size)

    def __iter__(self) -> grain.DatasetIterator:
        return _EchoIterator(self)


class EchoIterDataset(_EchoStage):
    """Repeats each item of a Grain data set about `factor` times, mixed by a shuffle buffer.

    The parent produces each fresh item once. A MapDataset is read ahead on threads, an IterDataset
    when an item is required (append Grain's own prefetch to it). Copies share no memory with each
    other or with the parent's items. The state is a position and the stage's settings (and an
    IterDataset's own state).

    Args:
        parent: a MapDataset or IterDataset. Over batches this is batch echoing.
        factor: the echo factor e >= 1; k items give floor(k*e) outputs. A float is read as its
            decimal, so give 4/3 as "4/3" or fractions.Fraction(4, 3).
        shuffle_buffer: slots of the streaming shuffle buffer, in items; 0 leaves copies adjacent.
        seed: seeds the buffer's choices.
        batch_size: gathers batches of this many examples, of one shape, directly from the store,
            many times faster than batching afterwards. Mappings of any kind become dicts. None
            emits items one by one.
        drop_remainder: with `batch_size`, whether to drop a last batch with fewer examples.
        annotate: whether to emit `Echoed` tuples, which add item and copy numbers and the count of
            fresh items.
        read_options: threads and read-ahead for a MapDataset, in items (and at most 256 MiB, or
            one item per thread, by the largest items so far). Without threads the caller's thread
            reads, in chunks of up to 1,024 items or 32 MiB, which is best for a parent that runs
            Python code over data in memory.
        placement: where items are stored, and outputs gathered: "host", or "device", which sends
            each item once, when it has been read, and emits JAX arrays on the first device; items
            have one shape. For another place give a function that returns an `echo.DeviceStore`,
            such as functools.partial(echo.DeviceStore, sharding=...).

    Raises:
        EchoSpecError: an argument that is not allowed.
        TypeError: `parent` is not a Grain data set.
    """

    def __init__(
        self,
        parent: grain.MapDataset | grain.IterDataset,
        *,
        factor: Factor,
        shuffle_buffer: int = 0,
        seed: int = 0,
        batch_size: int | None = None,
        drop_remainder: bool = True,
        annotate: bool = False,
        read_options: grain.ReadOptions = DEFAULT_READ_OPTIONS,
        placement: "str | Callable[..., DeviceStore]" = "host",
    ):
        super().__init__(parent, batch_size, annotate, read_options, placement)
        self.schedule = EchoSchedule(factor, shuffle_buffer, seed)
        self._drop_remainder = checked_switch("drop_remainder", drop_remainder)

    def new_order(self, num_items: int | None) -> EchoCursor:
        return EchoCursor(self.schedule, 0, num_items, self.outputs, self._drop_remainder)


class OpportunisticIterDataset(_EchoStage):
    """Emits each fresh item of a Grain data set at once; repeats stored ones instead of waiting.
    This is the stage of `echo.policy=auto`.

    Fresh items that are ready fill a batch first, in order. Stored ones, least repeated first, fill
    the rest, up to `max_factor` copies of each. Items of recent batches come after all others,
    latest last, so that copies are spread. A batch contains no item twice: if the stored items do
    not suffice, it waits for more fresh ones. If the input is so slow that all copies are emitted,
    batches wait a little earlier, for a reserve of up to half the buffer. With fast input the
    output is exactly the parent in batches.

    The stream ends when less than a batch of fresh items is left. Do not put a prefetch thread
    after it: it would request, and so decide, a batch before it is required.

    Args:
        parent: a MapDataset or IterDataset. Over batches this is batch echoing.
        max_factor: the maximum number of copies of an item; 1 repeats nothing.
        shuffle_buffer: the number of items stored for repeating, best at least `batch_size`. The
            most repeated one leaves first, the oldest of several.
        batch_size: examples per batch, of one shape; None emits items one by one.
        seed: seeds the choice between items of equal rank.
        annotate: whether to emit `Echoed` tuples. The number of rows whose copy is 0 is the batch's
            decision.
        read_options: threads and read-ahead, in items; both at least 1.
        slack: returns the seconds that a batch may wait for more fresh items before it asks again;
            0 or less if it is required now. None: it is always required at once.
        limit: returns the maximum number of fresh items to emit up to and including the next batch,
            so that one of several streams does not run ahead. A batch exceeds it only if stored
            items do not suffice. None: no limit.
        earlier: called with the number of a batch, from 0, returns its number of fresh items in an
            earlier run that the stream repeats, and None if it is to be decided now.
        placement: where items are stored, and batches gathered: "host", or "device", which sends
            each item once, when it has been read, and emits JAX arrays on the first device. For
            another place give a function that returns an `echo.DeviceStore`, such as
            functools.partial(echo.DeviceStore, sharding=...).

    Raises:
        EchoSpecError: a setting that is not allowed.
        TypeError: `parent` is not a Grain data set.
    """

    reads_ahead = True

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
        earlier: Callable[[int], int | None] | None = None,
        placement: "str | Callable[..., DeviceStore]" = "host",
    ):
        super().__init__(parent, batch_size, annotate, read_options, placement)
        if not (read_options.num_threads and read_options.prefetch_buffer_size):
            raise EchoSpecError(
                "read_options", read_options, "threads and a buffer, both at least 1, to read ahead"
            )
        self._order = AutoOrder(
            max_factor,
            shuffle_buffer,
            seed,
            self.outputs,
            slack=slack,
            limit=limit,
            earlier=earlier,
        )

    def new_order(self, num_items: int | None) -> AutoOrder:
        return copy.copy(self._order)


class _EchoIterator(grain.DatasetIterator):
    """One pass over an echoed stream, as a Grain iterator."""

    def __init__(self, dataset: _EchoStage):
        self._dataset = dataset
        parent, options = dataset._parent, dataset.read_options
        num_items = len(parent) if isinstance(parent, grain.MapDataset) else None
        order, new_store, send = dataset.new_order(num_items), ItemStore, None
        if dataset.placement != "host":
            new_store = functools.partial(dataset.device_store, num_items)
            send = new_store().send
        elif dataset.batch_size is not None:  # items are read and stored in chunks
            rows = order.max_pending(dataset.batch_size + CHUNK_ITEMS)
            new_store = functools.partial(ArrayStore, rows)
        if isinstance(parent, grain.MapDataset):
            super().__init__()
            reader = RandomAccessReader(
                parent,
                options.num_threads,
                options.prefetch_buffer_size,
                stacked=dataset.batch_size is not None,
                send=send,
            )
        else:
            iterator = iter(parent)
            super().__init__(iterator)
            ahead = options.prefetch_buffer_size if dataset.reads_ahead else 0
            reader = SequentialReader(iterator, ahead)
        self._pass = EchoPass(reader, order, new_store)

    def __next__(self) -> Any:
        self._assert_not_closed()
        item, index, copy, fresh = self._pass.next()
        if not self._dataset.annotate:
            return item
        if self._dataset.batch_size is None:
            index, copy = index[0], copy[0]
        return Echoed(item, index, copy, fresh)

    def get_state(self) -> dict[str, Any]:
        """The position of this iterator: small, in JSON, valid in any process."""
        return self._pass.get_state()

    def set_state(self, state: dict[str, Any]) -> None:
        """Continues from `state`.

        Raises:
            ValueError: the state is of other settings or another kind of parent; this iterator
                remains at its position. Or the parent ends before it; then set another state. Other
                data of sufficient length is not detected, and another batch size only by an
                `OpportunisticIterDataset`.
        """
        self._pass.set_state(state)

    def close(self) -> None:
        """Ends the threads that read ahead; `next` is an error from then on."""
        if hasattr(self, "_pass"):  # not if the parent could not be iterated over
            super().close()
            self._pass.reader.close()
