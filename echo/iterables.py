"""Echoing for any Python iterable: a generator, a list, a PyTorch or Hugging Face loader."""

import inspect
import sys
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import numpy as np

from echo.echo_pass import EchoPass, check_fields
from echo.readers import SequentialReader
from echo.schedule import EchoSchedule, FixedOrder
from echo.spec import MAX_POSITION, checked_integer
from echo.stores import ItemStore

T = TypeVar("T")

_STATE_FIELDS = ("epoch", "position", "schedule", "num_items", "next_index", "parent")


def echo_iterable(
    iterable: Iterable[T],
    factor,
    shuffle_buffer: int = 0,
    seed: int = 0,
    reshuffle_each_iteration: bool = True,
) -> "EchoIterable[T]":
    """Repeats each item of `iterable` about `factor` times, mixed by a streaming shuffle buffer.

    Over examples this is example echoing; over a loader's batches it is batch echoing. The result
    can be iterated over as often as `iterable` can, and resumed at any item.

    Args:
        iterable: yields items of any kind that `copy.deepcopy` can copy.
        factor: the echo factor e >= 1; k items give floor(k*e) outputs.
        shuffle_buffer: slots of the shuffle buffer, in items; 0 leaves copies adjacent.
        seed: seeds the buffer's choices.
        reshuffle_each_iteration: whether these choices differ from one pass to the next.

    Raises:
        EchoSpecError: a factor, buffer or seed that is not allowed.
        TypeError: `iterable` cannot be iterated over.
    """
    schedule = EchoSchedule(factor, shuffle_buffer, seed)
    return EchoIterable(iterable, schedule, reshuffle_each_iteration)


class EchoIterable(Iterable[T]):
    """An iterable whose items are echoed by `schedule`; see `echo_iterable`.

    PyTorch's loaders take it for an IterableDataset if torch is imported before it is made.

    Attributes:
        epoch: the number of the next pass, from 0.
    """

    def __init__(
        self,
        iterable: Iterable[T],
        schedule: EchoSchedule,
        reshuffle_each_iteration: bool = True,
    ):
        if not (hasattr(iterable, "__iter__") or hasattr(iterable, "__getitem__")):
            raise TypeError(f"iterable is a {type(iterable).__name__}; allowed: an iterable")
        if not isinstance(schedule, EchoSchedule):
            raise TypeError(f"schedule is a {type(schedule).__name__}; allowed: an EchoSchedule")
        self._iterable: Any = iterable
        self._schedule = schedule
        self._reshuffle = reshuffle_each_iteration
        self.epoch = 0
        self._newest: EchoIterator[T] | None = None
        self._waiting: EchoIterator[T] | None = None  # what the next iter() returns, if any
        self._parent_was_loaded = self._parent_was_read = False
        torch_data = sys.modules.get("torch.utils.data")
        if torch_data is not None:
            torch_data.IterableDataset.register(EchoIterable)

    def __iter__(self) -> "EchoIterator[T]":
        iterator = self._waiting or self._begin(self.epoch)
        self._newest, self._waiting = iterator, None
        self.epoch = iterator.epoch + 1
        return iterator

    def __len__(self) -> int:
        return self._schedule.num_outputs(len(self._iterable))  # or a TypeError

    def set_epoch(self, epoch: int) -> None:
        """Numbers the next pass, here and in the iterable if that has a `set_epoch` too.

        With worker processes call it before each pass: PyTorch starts new ones, which cannot count
        passes. A loaded state is discarded if it belongs to another epoch.
        """
        self.epoch = checked_integer("epoch", epoch, 0, MAX_POSITION)
        if self._waiting is not None and self._waiting.epoch != epoch:
            self._parent_was_read |= self._waiting.fresh_examples > 0
            self._newest = self._waiting = None
        if hasattr(self._iterable, "set_epoch"):
            self._iterable.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """The position of the newest pass: small, plus one state of the iterable.

        If the iterable has a `state_dict`, a resumed pass reads it again from just before the
        oldest pending item, otherwise from its start. It must then yield the same items.
        """
        if self._newest is None:
            self._newest = self._waiting = self._begin(self.epoch)
        return self._newest.state()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Lets the next pass continue from `state`; the items that are pending there are read.

        Raises:
            ValueError: the state is not one of an equal EchoIterable, or the iterable has fewer
                items than were read, or is an iterator from which items have been read here.
        """
        check_fields(state, dict.fromkeys(_STATE_FIELDS))
        if self._newest is not None:
            self._parent_was_read |= self._newest.fresh_examples > 0
        if self._parent_was_read and _cannot_restart(self._iterable):
            raise ValueError(
                f"iterable is a {type(self._iterable).__name__} that has been read from, and "
                "cannot start again; restore the state over a new one, or over an object that "
                "makes one for each iter()"
            )
        position = dict(state)
        iterator = self._begin(checked_integer("epoch", position.pop("epoch"), 0, MAX_POSITION))
        self._parent_was_loaded = True
        iterator.set_position(position)
        self._newest = self._waiting = iterator
        self.epoch = iterator.epoch

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
        parent = self._iterable
        # Hugging Face starts every pass of an epoch from the last state that was loaded.
        keeps_state = hasattr(parent, "set_epoch") and hasattr(parent, "load_state_dict")
        if self._parent_was_loaded and keeps_state and not isinstance(parent, EchoIterable):
            parent.load_state_dict({})
        self._parent_was_loaded = False
        schedule = self._schedule
        if self._reshuffle and epoch:
            seed = np.random.SeedSequence([schedule.seed, epoch]).generate_state(1, np.uint64)
            schedule = EchoSchedule(schedule.factor, schedule.shuffle_buffer, int(seed[0]))
        return EchoIterator(_Source(self._iterable), schedule, epoch)


def _cannot_restart(iterable: Any) -> bool:
    """Whether an iterable is an iterator without a way back: `reset` (NVIDIA DALI) or a state."""
    ways_back = ("reset", "load_state_dict")
    return isinstance(iterable, Iterator) and not any(hasattr(iterable, way) for way in ways_back)


class EchoIterator(Iterator[T]):
    """One pass over an echoed iterable.

    Attributes:
        epoch: the number of the pass.
    """

    def __init__(self, source: "_Source", schedule: EchoSchedule, epoch: int):
        self.epoch = epoch
        order = FixedOrder(schedule.cursor(), 1, drop_remainder=True)
        self._pass = EchoPass(SequentialReader(source), order, ItemStore)

    def __next__(self) -> T:
        item, _, _ = self._pass.next()
        return item

    @property
    def fresh_examples(self) -> int:
        """The number of items taken from the iterable in this pass, each counted once."""
        return self._pass.num_read

    def state(self) -> dict[str, Any]:
        """The state of the `EchoIterable` at this position."""
        return {"epoch": self.epoch, **self._pass.get_state()}

    def set_position(self, state: dict[str, Any]) -> None:
        """Continues from a `state` of this epoch, which is left out; see `EchoPass.set_state`."""
        self._pass.set_state(state)


class _Source:
    """A pass over an iterable, with its states, if it has any; see `readers.ResumableIterator`."""

    def __init__(self, iterable: Any):
        self._iterable = iterable
        methods = (getattr(iterable, name, None) for name in ("state_dict", "load_state_dict"))
        self._has_state = all(map(callable, methods))
        self._start()

    def __next__(self) -> Any:
        item = next(self._iterator)
        self._started = True
        return item

    def get_state(self) -> dict[str, Any] | None:
        if self._started and not self._has_state:
            return None
        state = self._iterable.state_dict() if self._started else None
        return {"epoch": self._epoch(), "state": state}

    def set_state(self, state: dict[str, Any]) -> None:
        check_fields(state, {"epoch": None, "state": None})
        epoch = state["epoch"]
        if epoch is not None:
            checked_integer("epoch", epoch, 0, MAX_POSITION)
        elif self._epoch() is not None:
            raise ValueError(
                f"the state is of an iterable without epochs, a {type(self._iterable).__name__} is "
                f"at epoch {self._epoch()}; restore it over an equal iterable"
            )
        if state["state"] is not None and not self._has_state:
            raise ValueError(
                "the state holds that of an iterable with state_dict and load_state_dict, which a "
                f"{type(self._iterable).__name__} does not have; restore it over an equal iterable"
            )
        if epoch != self._epoch() and hasattr(self._iterable, "set_epoch"):
            self._iterable.set_epoch(epoch)  # in another one Hugging Face ignores states
        if epoch != self._epoch():
            raise ValueError(
                f"the state is of epoch {epoch} of the {type(self._iterable).__name__}, which is "
                f"at epoch {self._epoch()}; call set_epoch({epoch}) before"
            )
        if state["state"] is not None:
            self._iterable.load_state_dict(state["state"])
        self._start()

    def _start(self) -> None:
        self._iterator = iter(self._iterable)
        # A generator runs from the first `next` on. Until then its iterable has an old state.
        self._started = self._has_state and not inspect.isgenerator(self._iterator)

    def _epoch(self) -> int | None:
        """The epoch of a Hugging Face data set."""
        epoch = getattr(self._iterable, "epoch", None)
        return int(epoch) if hasattr(self._iterable, "set_epoch") and epoch is not None else None
