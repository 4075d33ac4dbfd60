"""Echoing for any Python iterable: a generator, a list, a PyTorch DataLoader."""

from collections.abc import Iterable, Iterator
from typing import TypeVar

import numpy as np

from echo.schedule import EchoSchedule, FixedOrder
from echo.spec import MAX_POSITION, checked_integer
from echo.stores import ItemStore

T = TypeVar("T")


def echo_iterable(
    iterable: Iterable[T], factor, shuffle_buffer: int = 0, seed: int = 0
) -> "EchoIterable[T]":
    """Repeats each item of `iterable` about `factor` times, mixed by a streaming shuffle buffer.

    Over examples this is example echoing; over a loader's batches it is batch echoing. The result
    can be iterated over as often as `iterable` can, each time from the start.

    Args:
        iterable: yields items of any kind that `copy.deepcopy` can copy.
        factor: the echoing factor e >= 1; k items give floor(k*e) outputs.
        shuffle_buffer: slots of the shuffle buffer, in items; 0 leaves copies adjacent.
        seed: seeds the buffer's choices.

    Raises:
        EchoSpecError: a factor, buffer or seed that is not allowed.
        TypeError: `iterable` cannot be iterated over.
    """
    return EchoIterable(iterable, EchoSchedule(factor, shuffle_buffer, seed))


class EchoIterable(Iterable[T]):
    """An iterable whose items are echoed by `schedule`; see `echo_iterable`."""

    def __init__(self, iterable: Iterable[T], schedule: EchoSchedule):
        if not (hasattr(iterable, "__iter__") or hasattr(iterable, "__getitem__")):
            raise TypeError(f"iterable is a {type(iterable).__name__}; allowed: an iterable")
        if not isinstance(schedule, EchoSchedule):
            raise TypeError(f"schedule is a {type(schedule).__name__}; allowed: an EchoSchedule")
        self._iterable = iterable
        self._schedule = schedule

    def __iter__(self) -> "EchoIterator[T]":
        return EchoIterator(iter(self._iterable), self._schedule)

    def __len__(self) -> int:
        num_items = len(self._iterable)  # pyright: ignore[reportArgumentType] # or a TypeError
        return self._schedule.num_outputs(num_items)


class EchoIterator(Iterator[T]):
    """One pass over an echoed iterable.

    Attributes:
        position: outputs so far. To resume, make the same iterable again and `skip(position)`.
        fresh_examples: items taken from the iterable so far, each counted once.
    """

    num_items = None  # unknown to the order until the source ends

    def __init__(self, source: Iterator[T], schedule: EchoSchedule):
        self._source = source
        self._order = FixedOrder(schedule.cursor(), 1, drop_remainder=True)
        self._store = ItemStore()
        self.position = 0
        self.fresh_examples = 0

    def __next__(self) -> T:
        return self._store.emit(self._next_fresh())

    def skip(self, outputs: int) -> None:
        """Skips outputs by replaying the source, as a resumed run must.

        Raises:
            ValueError: there are fewer outputs, or `outputs` is not a count.
        """
        outputs = checked_integer("outputs", outputs, 0, MAX_POSITION)
        for _ in range(outputs):
            try:
                fresh = self._next_fresh()
            except StopIteration:
                raise ValueError(
                    f"cannot skip {outputs} outputs: the stream ends at {self.position}"
                ) from None
            self._store.skip(fresh)

    @property
    def num_read(self) -> int:
        """The number of items read from the source; see `echo.order.Intake`."""
        return self.fresh_examples

    def read(self, stop: int, seconds: float | None = None) -> bool:
        """Moves one item from the source to the store; False at the end of the source."""
        del stop, seconds
        try:
            item = next(self._source)
        except StopIteration:
            return False
        fresh = np.asarray([self.fresh_examples])
        self._store.put(fresh, [item], self._order.copies(fresh))
        self.fresh_examples += 1
        return True

    def _next_fresh(self) -> np.ndarray:
        """The item of the next output, which is in the store, int64 [1]."""
        fresh = self._order.next(self).index
        self.position += 1
        return fresh
