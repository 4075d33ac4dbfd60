"""Echoing for any Python iterable: a generator, a list, someone's PyTorch DataLoader."""

from collections.abc import Iterable, Iterator
from typing import TypeVar

import numpy as np

from echo.schedule import EchoSchedule
from echo.spec import MAX_POSITION, checked_integer
from echo.stores import ItemStore

T = TypeVar("T")


def echo_iterable(
    iterable: Iterable[T], factor, shuffle_buffer: int = 0, seed: int = 0
) -> "EchoIterable[T]":
    """Repeats each item of `iterable` about `factor` times, mixed by a streaming shuffle buffer.

    Over examples this is example echoing; over a loader's batches it is batch echoing. The result
    can be iterated as often as `iterable` can, each time from the start.

    Args:
        iterable: yields items of any kind that `copy.deepcopy` can copy.
        factor: the echoing factor e >= 1; k items give floor(k*e) outputs.
        shuffle_buffer: slots of the shuffle buffer, in items; 0 leaves copies adjacent.
        seed: of the buffer's choices.

    Raises:
        EchoSpecError: a factor, buffer or seed that is not allowed.
        TypeError: `iterable` cannot be iterated.
    """
    return EchoIterable(iterable, EchoSchedule(factor, shuffle_buffer, seed))


class EchoIterable(Iterable[T]):
    """An iterable whose items are echoed by `schedule`; see `echo_iterable`."""

    def __init__(self, iterable: Iterable[T], schedule: EchoSchedule):
        if not (hasattr(iterable, "__iter__") or hasattr(iterable, "__getitem__")):
            raise TypeError(
                f"iterable is a {type(iterable).__name__}; allowed: what can be iterated"
            )
        if not isinstance(schedule, EchoSchedule):
            raise TypeError(f"schedule is a {type(schedule).__name__}; allowed: an EchoSchedule")
        self._iterable = iterable
        self._schedule = schedule

    def __iter__(self) -> "EchoIterator[T]":
        return EchoIterator(iter(self._iterable), self._schedule)

    def __len__(self) -> int:
        return self._schedule.num_outputs(len(self._iterable))


class EchoIterator(Iterator[T]):
    """One pass over an echoed iterable.

    Attributes:
        position: outputs so far. To resume, make the same iterable again and `skip(position)`.
        fresh_examples: items taken from the iterable so far, each counted once.
    """

    def __init__(self, source: Iterator[T], schedule: EchoSchedule):
        self._source = source
        self._schedule = schedule
        self._cursor = schedule.cursor()
        self._store = ItemStore()
        self.position = 0
        self.fresh_examples = 0

    def __next__(self) -> T:
        fresh = self._next_fresh()
        if fresh is None:
            raise StopIteration
        return self._store.show(fresh)

    def skip(self, outputs: int) -> None:
        """Passes over outputs by replaying the source, as a resumed run must.

        Raises:
            ValueError: there are fewer outputs, or `outputs` is no count.
        """
        outputs = checked_integer("outputs", outputs, 0, MAX_POSITION)
        for _ in range(outputs):
            fresh = self._next_fresh()
            if fresh is None:
                raise ValueError(
                    f"cannot skip {outputs} outputs: the stream ends at {self.position}"
                )
            self._store.skip(fresh)

    def _next_fresh(self) -> int | None:
        """The item that the next output shows, in the store; None at the end."""
        self._admit(self._schedule.admitted(self.position + 1, self._cursor.num_fresh))
        fresh, _ = self._cursor.take(1)
        if not len(fresh):
            return None
        self.position += 1
        return int(fresh[0])

    def _admit(self, count: int) -> None:
        """Takes items from the source until `count` have entered the store, or the source ends."""
        while self.fresh_examples < count:
            try:
                item = next(self._source)
            except StopIteration:
                self._cursor = self._cursor.ending(self.fresh_examples)
                return
            fresh = self.fresh_examples
            self._store.put(np.asarray([fresh]), [item], self._schedule.copies(fresh, fresh + 1))
            self.fresh_examples += 1
