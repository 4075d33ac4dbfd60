"""Echoing for any Python iterable: a generator, a list, a PyTorch or Hugging Face loader."""

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import numpy as np

from echo import torch
from echo.auto_order import AutoOrder
from echo.echo_pass import EchoPass, check_fields
from echo.loaders import Parent, Source
from echo.rows import RowStore
from echo.schedule import EchoCursor, EchoSchedule
from echo.sequential import SequentialReader
from echo.spec import MAX_BATCH, MAX_BUFFER, MAX_POSITION, Factor, checked_integer, checked_switch
from echo.stores import ItemStore

T = TypeVar("T")

_AHEAD = 4  # batches that `auto` reads ahead
_BUFFER_BATCHES = 4  # of `auto`, by default, if whole batches repeat


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
    reshuffle = checked_switch("reshuffle_each_iteration", reshuffle_each_iteration)
    rebatch = checked_integer("rebatch", rebatch, 0, MAX_BATCH)
    new_order = functools.partial(_fixed_order, factor, shuffle_buffer, rebatch or 1)
    return EchoIterable(iterable, new_order, seed, reshuffle, rows=rebatch > 0)


def auto(
    loader: Iterable[T],
    max_factor: int = 16,
    buffer: int = 0,
    mix: bool = True,
    seed: int = 0,
) -> "EchoIterable[T]":
    """Batches of `loader`, and repeated examples where the loop would otherwise wait.

        for batch in echo.auto(loader):
            step(batch)

    A thread reads the loader ahead. If it has fewer fresh examples ready than a batch takes when
    the loop asks for one, examples that it delivered before fill the rest: the least repeated ones
    first, and of those the ones that rested longest. A batch contains no example twice. A loader
    that keeps up is passed on unchanged. The order is that of `echo.OpportunisticIterDataset`.
    Decisions depend on time: what follows a state is not promised to be what followed it before.

    Args:
        loader: yields batches: nested dicts, lists, and tuples of arrays or tensors with one
            leading size. Tensors stay on their device; arrays of JAX become NumPy's. All batches
            that are emitted have the size of the first. For other batches give mix=False.
        max_factor: the maximum number of copies of an example. 16 is the largest that was studied.
        buffer: examples stored for repeating; 0 is 32 batches of them, or as many as 1 GiB holds,
            and at least four batches. With mix=False, batches; 0 is four.
        mix: whether to mix examples into batches. Otherwise whole batches repeat, of any kind that
            `copy.deepcopy` can copy.
        seed: seeds the choice between examples of equal rank.

    Raises:
        EchoSpecError: a value that is not allowed.
        TypeError: `loader` cannot be iterated over.
    """
    buffer = checked_integer("buffer", buffer, 0, MAX_BUFFER)
    mix = checked_switch("mix", mix)
    buffer = buffer if mix else buffer or _BUFFER_BATCHES
    new_order = functools.partial(AutoOrder, max_factor, buffer, batch_size=0 if mix else 1)
    return EchoIterable(loader, new_order, seed, rows=mix, read_ahead=_AHEAD)


def _fixed_order(factor: Factor, shuffle_buffer: int, size: int, seed: int) -> EchoCursor:
    schedule = EchoSchedule(factor, shuffle_buffer, seed)
    return EchoCursor(schedule, size=size, drop_remainder=False)


class EchoIterable(Iterable[T]):
    """An iterable whose items are echoed; what `echo_iterable` and `auto` return.

    PyTorch's loaders treat it as an IterableDataset if torch is imported before it is created.

    Attributes:
        epoch: the number of the next pass, from 0.
    """

    def __init__(
        self,
        iterable: Iterable[T],
        new_order: Callable[..., Any],
        seed: int,
        reshuffle: bool = True,
        *,
        rows: bool,
        read_ahead: int = 0,
    ):
        if not (hasattr(iterable, "__iter__") or hasattr(iterable, "__getitem__")):
            raise TypeError(f"iterable has type {type(iterable).__name__}; allowed: an iterable")
        has_epochs = hasattr(iterable, "set_epoch") and not isinstance(iterable, EchoIterable)
        self._parent = Parent(iterable, has_epochs)
        self._new_order, self._seed, self._reshuffle = new_order, seed, reshuffle
        self._order(0)  # refuses what is not allowed
        self._rows, self._read_ahead = rows, read_ahead
        self.epoch = 0
        self._counts = [0, 0]  # of the passes before the newest: fresh examples, and emitted ones
        self._newest: EchoIterator[T] | None = None
        self._waiting: EchoIterator[T] | None = None  # what the next iter() returns, if any
        torch.register(EchoIterable)

    def __iter__(self) -> "EchoIterator[T]":
        torch.check_worker(self._parent.iterable)
        iterator = self._waiting
        if iterator is None:
            iterator, self._counts = self._begin(self.epoch), [self.fresh_examples, self.emitted]
        self._newest, self._waiting = iterator, None
        self.epoch = iterator.epoch + 1
        return iterator

    def __repr__(self) -> str:
        kind, order = type(self._parent.iterable).__name__, self._order(0)
        copies = f"up to {order.max_factor}" if self._read_ahead else order.schedule.factor
        counts = f"{self.fresh_examples:,} fresh examples, {self.emitted:,} emitted"
        return f"<echoed {kind}, {copies} copies of each: {counts}>"

    def __len__(self) -> int:
        if self._rows or self._read_ahead:
            raise TypeError("how many batches there will be is not known")
        return self._order(0).schedule.num_outputs(len(self._parent.iterable))  # or a TypeError

    def __bool__(self) -> bool:
        return True  # also without a length

    @property
    def fresh_examples(self) -> int:
        """Examples admitted in all passes, each counted once per pass; of batches that are not
        taken apart, batches."""
        return self._counts[0] + (self._newest.fresh_examples if self._newest else 0)

    @property
    def emitted(self) -> int:
        """Examples emitted in all passes, repeats included."""
        return self._counts[1] + (self._newest.order.position if self._newest else 0)

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
        own = {"earlier": list(self._counts), "epoch": self._newest.epoch}
        return own | self._newest.get_state()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Lets the next pass continue from `state`; the items that are pending there are read.

        Nothing is left of a pass whose state was taken at its end: the next one is empty. Over a
        DataLoader that shuffles without a generator of its own there is a warning.

        Raises:
            ValueError: the state is not one of an equal EchoIterable, or the iterable has fewer
                items than were read, or has been read from here and cannot start again.
        """
        fields = ("earlier", "epoch", *self._order(0).get_state(), *SequentialReader.fields)
        check_fields(state, fields)
        position = dict(state)
        counts, epoch = position.pop("earlier"), position.pop("epoch")
        epoch = checked_integer("epoch", epoch, 0, MAX_POSITION)
        self._order(epoch).at(position, None)  # refuses others before the iterable changes
        iterator = self._begin(epoch)
        iterator.set_state(position)
        if iterator.order.position and position["parent"]["state"] is None:
            torch.warn_unseeded(self._parent.iterable)
        self._newest = self._waiting = iterator
        self.epoch, self._counts = epoch, list(counts)

    def __getstate__(self) -> tuple[dict[str, Any], dict[str, Any] | None]:
        # Worker processes continue from a loaded state, but get no pass: generators, and the
        # iterators of many loaders, cannot be pickled.
        settings = self.__dict__ | {"_newest": None, "_waiting": None}
        return settings, self._waiting and self.state_dict()

    def __setstate__(self, pickled: tuple[dict[str, Any], dict[str, Any] | None]) -> None:
        self.__dict__, state = pickled
        if state is not None:
            self.load_state_dict(state)

    def _begin(self, epoch: int) -> "EchoIterator[T]":
        """A new pass from the start."""
        if self._newest is not None:  # one pass at a time reads ahead
            self._newest.reader.close(wait=True)
        reader = SequentialReader(Source(self._parent), self._read_ahead, self._rows)
        store = RowStore if self._rows else ItemStore
        return EchoIterator(epoch, reader, self._order(epoch), store)

    def _order(self, epoch: int) -> Any:
        """The order of a pass, at its start."""
        seed = self._seed
        if self._reshuffle and epoch:
            seed = int(np.random.SeedSequence([seed, epoch]).generate_state(1, np.uint64)[0])
        return self._new_order(seed=seed)


class EchoIterator(EchoPass, Iterator[T]):
    """One pass over an echoed iterable. Several threads may share it.

    Attributes:
        epoch: the number of the pass.
    """

    def __init__(self, epoch: int, *parts: Any):
        super().__init__(*parts)
        self.epoch = epoch

    def __next__(self) -> T:
        try:
            return self.next()[0]
        except StopIteration:
            self.reader.close()
            raise

    @property
    def fresh_examples(self) -> int:
        """The number of items taken from the iterable in this pass, each counted once: those that
        fill the buffer included, those that are read ahead excluded."""
        return self.order.admitted
