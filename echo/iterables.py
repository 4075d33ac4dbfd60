"""Echoing for any Python iterable: a generator, a list, a PyTorch or Hugging Face loader."""

import contextlib
import inspect
import itertools
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import numpy as np

from echo import torch
from echo.echo_pass import EchoPass, check_fields
from echo.rows import RowReader, RowStore
from echo.schedule import EchoCursor, EchoSchedule
from echo.sequential import SequentialReader
from echo.spec import MAX_BATCH, MAX_POSITION, Factor, checked_integer, checked_switch
from echo.stores import ItemStore

T = TypeVar("T")


def echo_iterable(
    iterable: Iterable[T],
    factor: Factor,
    shuffle_buffer: int = 0,
    seed: int = 0,
    reshuffle_each_iteration: bool = True,
    rebatch: int = 0,
) -> "EchoIterable[T]":
    """Repeats each item of `iterable` about `factor` times, mixed by a streaming shuffle buffer.

    Over examples this is example echoing; over a loader's batches it is batch echoing, or, with
    `rebatch`, example echoing. The result can be iterated over as often as `iterable` can, and
    resumed at any item.

    Args:
        iterable: yields items of any kind that `copy.deepcopy` can copy. One that is only indexed,
            without `__iter__`, ends at its length or at an IndexError.
        factor: the echo factor e >= 1; k items give floor(k*e) outputs. A float is read as its
            decimal, so give 4/3 as "4/3" or fractions.Fraction(4, 3).
        shuffle_buffer: slots of the shuffle buffer, in items; 0 leaves copies adjacent.
        seed: seeds the buffer's choices.
        reshuffle_each_iteration: whether these choices differ from one pass to the next.
        rebatch: examples in each batch to emit; the last one may have fewer. The batches of
            `iterable`, of arrays or tensors with one leading size, are taken apart, and the buffer
            holds and mixes their examples. 0 echoes what `iterable` yields.

    Raises:
        EchoSpecError: a factor, buffer, seed, switch, or size that is not allowed.
        TypeError: `iterable` cannot be iterated over.
    """
    schedule = EchoSchedule(factor, shuffle_buffer, seed)
    return EchoIterable(iterable, schedule, reshuffle_each_iteration, rebatch)


class EchoIterable(Iterable[T]):
    """An iterable whose items are echoed by `schedule`; see `echo_iterable`.

    PyTorch's loaders treat it as an IterableDataset if torch is imported before it is created.

    Attributes:
        epoch: the number of the next pass, from 0.
    """

    def __init__(
        self,
        iterable: Iterable[T],
        schedule: EchoSchedule,
        reshuffle_each_iteration: bool = True,
        rebatch: int = 0,
    ):
        if not (hasattr(iterable, "__iter__") or hasattr(iterable, "__getitem__")):
            raise TypeError(f"iterable has type {type(iterable).__name__}; allowed: an iterable")
        self._parent = Parent(iterable)
        self._schedule = schedule
        self._reshuffle = checked_switch("reshuffle_each_iteration", reshuffle_each_iteration)
        self._rebatch = checked_integer("rebatch", rebatch, 0, MAX_BATCH)
        self.epoch = 0
        self._newest: EchoIterator[T] | None = None
        self._waiting: EchoIterator[T] | None = None  # what the next iter() returns, if any
        torch.register(EchoIterable)

    def __iter__(self) -> "EchoIterator[T]":
        torch.check_worker(self._parent.iterable)
        iterator = self._waiting or self._begin(self.epoch)
        iterator.open()
        self._newest, self._waiting = iterator, None
        self.epoch = iterator.epoch + 1
        return iterator

    def __len__(self) -> int:
        if self._rebatch:
            raise TypeError("the number of examples in the batches of the iterable is not known")
        return self._schedule.num_outputs(len(self._parent.iterable))  # or a TypeError

    def __bool__(self) -> bool:
        try:
            return len(self) > 0
        except TypeError:  # without a length an iterable is true
            return True

    def set_epoch(self, epoch: int) -> None:
        """Numbers the next pass, here and in the iterable if that has a `set_epoch` too, or, if it
        is a DataLoader, in its samplers that have one.

        With worker processes call it before each pass: PyTorch starts new ones, which cannot count
        passes. A loaded state is discarded if it belongs to another epoch.
        """
        self.epoch = checked_integer("epoch", epoch, 0, MAX_POSITION)
        if self._waiting is not None and self._waiting.epoch != epoch:
            self._newest = self._waiting = None
        torch.set_epoch(self._parent.iterable, epoch)

    def state_dict(self) -> dict[str, Any]:
        """The position of the newest pass: small, plus one state of the iterable.

        A resumed pass reads the iterable from just before the oldest pending item if it has a
        `state_dict` that works, otherwise from its start. It must then yield the same items.
        """
        if self._newest is None:
            self._newest = self._waiting = self._begin(self.epoch)
        return self._newest.state()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Lets the next pass continue from `state`; the items that are pending there are read.

        Nothing is left of a pass whose state was taken at its end: the next one is empty.

        Raises:
            ValueError: the state is not one of an equal EchoIterable, or the iterable has fewer
                items than were read, or has been read from here and cannot start again.
        """
        reader = RowReader if self._rebatch else SequentialReader
        check_fields(state, ("epoch", "position", "schedule", *reader.fields))
        position = dict(state)
        epoch = checked_integer("epoch", position.pop("epoch"), 0, MAX_POSITION)
        self._order(epoch).at(position, None)  # refuses other settings before the iterable changes
        iterator = self._begin(epoch)
        iterator._pass.set_state(position)
        self._newest = self._waiting = iterator
        self.epoch = epoch

    def __getstate__(self) -> tuple[dict[str, Any], dict[str, Any] | None]:
        # Worker processes continue from a loaded state, but get no pass: generators, and the
        # iterators of many loaders, cannot be pickled.
        settings = self.__dict__ | {"_newest": None, "_waiting": None}
        return settings, self._waiting and self._waiting.state()

    def __setstate__(self, pickled: tuple[dict[str, Any], dict[str, Any] | None]) -> None:
        settings, state = pickled
        self.__dict__.update(settings)
        if state is not None:
            self.load_state_dict(state)

    def _begin(self, epoch: int) -> "EchoIterator[T]":
        """A new pass from the start."""
        self._parent.discard_loaded()
        return EchoIterator(Source(self._parent), self._order(epoch), epoch, bool(self._rebatch))

    def _order(self, epoch: int) -> EchoCursor:
        """The order of a pass, at its start."""
        schedule = self._schedule
        if self._reshuffle and epoch:
            seed = np.random.SeedSequence([schedule.seed, epoch]).generate_state(1, np.uint64)
            schedule = EchoSchedule(schedule.factor, schedule.shuffle_buffer, int(seed[0]))
        return EchoCursor(schedule, size=self._rebatch or 1, drop_remainder=False)


class EchoIterator(Iterator[T]):
    """One pass over an echoed iterable. Several threads may share it.

    Attributes:
        epoch: the number of the pass.
    """

    def __init__(self, source: "Source", order: EchoCursor, epoch: int, rows: bool):
        self.epoch = epoch
        self.open = source.open  # iter() of the iterable, which the first item does, too
        reader, store = SequentialReader(source), RowStore if rows else ItemStore
        self._pass = EchoPass(RowReader(reader) if rows else reader, order, store)

    def __next__(self) -> T:
        with self._pass.lock:
            item, _, _ = self._pass.next()
            return item

    @property
    def fresh_examples(self) -> int:
        """The number of items taken from the iterable in this pass, each counted once."""
        return self._pass.num_read

    def state(self) -> dict[str, Any]:
        """The state of the `EchoIterable` at this position."""
        with self._pass.lock:
            return {"epoch": self.epoch, **self._pass.get_state()}


class Parent:
    """The iterable that is echoed, and what has been done to it here.

    Attributes:
        has_state: whether it has `state_dict` and `load_state_dict`, and the former works.
        keeps_loaded: whether it starts every pass of an epoch from the last state that was loaded,
            as data sets of Hugging Face do. They start over after the state {}.
        changed: whether items have been read, or a state has been loaded.
    """

    def __init__(self, iterable: Any):
        self.iterable = iterable
        methods = (getattr(iterable, name, None) for name in ("state_dict", "load_state_dict"))
        self.has_state = all(map(callable, methods))
        nested = isinstance(iterable, EchoIterable)
        self.keeps_loaded = self.has_state and hasattr(iterable, "set_epoch") and not nested
        self.changed = self._was_loaded = False

    def load(self, state: Any) -> None:
        self.changed = self._was_loaded = True
        self.iterable.load_state_dict(state)

    def discard_loaded(self) -> None:
        """Lets later passes ignore a state that was loaded."""
        if self._was_loaded and self.keeps_loaded:
            self.iterable.load_state_dict({})
            self._was_loaded = False


class Source:
    """A pass over an iterable, as `echo.sequential.SequentialReader` reads it.

    A state holds that of the iterable, and its epoch: that of a Hugging Face data set, or of the
    sampler of a PyTorch loader.
    """

    def __init__(self, parent: Parent):
        self._parent = parent
        self._start()

    def __next__(self) -> Any:
        self.open()
        # Before `next`, since an iterable without state cannot return to an item that failed.
        self._read = self._parent.changed = True
        return next(self._iterator)

    def open(self) -> None:
        if self._iterator is not None:
            return
        iterable = self._parent.iterable
        torch.warn_unprepared(iterable)
        self._iterator = iter(iterable)
        if not hasattr(iterable, "__iter__"):  # indexed, perhaps without an IndexError at its end
            with contextlib.suppress(TypeError, NotImplementedError):  # without a length
                self._iterator = itertools.islice(self._iterator, len(iterable))

    def get_state(self) -> dict[str, Any] | None:
        parent, state = self._parent, None
        if parent.has_state:  # otherwise later: iter() may draw a permutation
            self.open()
        # A generator runs from the first `next` on. Until then its iterable has an old state.
        if parent.has_state and (self._read or not inspect.isgenerator(self._iterator)):
            try:
                state = parent.iterable.state_dict()
            # Accelerate's loaders have the method in any case; MosaicML's requires arguments.
            except (AttributeError, NotImplementedError, TypeError):
                parent.has_state = parent.keeps_loaded = False
        if self._read and state is None:
            return None
        parts = torch.parts_with_epochs(parent.iterable)
        epochs = [part.epoch for part in parts if getattr(part, "epoch", None) is not None]
        return {"epoch": int(epochs[0]) if epochs else None, "state": state}

    def set_state(self, state: dict[str, Any]) -> None:
        check_fields(state, ("epoch", "state"))
        parent, kind = self._parent, type(self._parent.iterable).__name__
        if state["epoch"] is not None:  # in another one Hugging Face ignores states
            epoch = checked_integer("epoch", state["epoch"], 0, MAX_POSITION)
            torch.set_epoch(parent.iterable, epoch)
        if state["state"] is None:  # that of the start
            parent.discard_loaded()
            once = parent.has_state or isinstance(parent.iterable, Iterator)
            if parent.changed and once and not parent.keeps_loaded:
                raise ValueError(
                    f"the iterable, a {kind}, has been read from and cannot start again; restore "
                    "the state over a new one, or an object that makes one for each iter()"
                )
        elif parent.has_state:
            parent.load(state["state"])
        else:
            raise ValueError(
                "the state holds that of an iterable with state_dict and load_state_dict, which a "
                f"{kind} does not have; restore it over an equal iterable"
            )
        self._start()

    def _start(self) -> None:
        self._iterator: Any = None
        self._read = False
