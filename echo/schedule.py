"""The fixed order: which fresh item each output of an echo stage repeats, in closed form.

Two integer sequences describe it:

* The *echoed stream*: fresh item i fills the echoed positions floor(i*e) .. floor((i+1)*e) - 1, so
  that any first k items have floor(k*e) copies in all (error diffusion, no coin flips).
* The *output stream*: the echoed stream after a streaming shuffle buffer of S slots. Before output
  t the buffer is filled. Then the item in slot r_t is emitted, and its slot is the next one to
  fill.

The copies of an item are numbered from 0 in the echoed stream. A buffer emits them in any order, so
a copy number identifies a copy, but is not its place in the order of emission.

r_t depends only on (seed, t): Philox is counter-based, so draw number t is computed without the
draws before it. The state of the whole stage is therefore one number, the count of outputs. What a
slot holds at output t is the echoed position that the last earlier draw of that slot put there. It
is recovered by looking back about S*ln(S) draws.
"""

import functools
import sys
from typing import Any, Self

import numpy as np

from echo.spec import MAX_BUFFER, MAX_POSITION, MAX_SEED, Factor, checked_integer, exact_factor

# Outputs computed in one vectorized block. Larger blocks amortize numpy's call overhead; the
# outputs do not depend on it.
_BLOCK = 16384

_MAX_INT64 = np.iinfo(np.int64).max
_NO_ITEMS = np.empty(0, np.int64)


class EchoSchedule:
    """The order in which copies of fresh items are emitted.

    Args:
        factor: the echo factor e >= 1, read as the exact decimal that was written, or as a
            fraction: "4/3" or fractions.Fraction(4, 3).
        shuffle_buffer: slots S of the streaming shuffle buffer; 0 leaves copies adjacent.
        seed: seeds the buffer's choices.

    Raises:
        EchoSpecError: a value that is not allowed; the message names it.
    """

    def __init__(self, factor: Factor, shuffle_buffer: int = 0, seed: int = 0):
        self.factor = exact_factor(factor)
        # A Fraction computes these whenever they are read, which is for every batch.
        self._numerator, self._denominator = self.factor.as_integer_ratio()
        self.shuffle_buffer = checked_integer("shuffle_buffer", shuffle_buffer, 0, MAX_BUFFER)
        self.seed = checked_integer("seed", seed, 0, MAX_SEED)
        self.slots = max(1, self.shuffle_buffer)  # one slot changes no order

    def num_outputs(self, num_fresh: int) -> int:
        """The number of outputs of `num_fresh` items: floor(num_fresh * e)."""
        num_fresh = checked_integer("num_fresh", num_fresh, 0, sys.maxsize)
        return num_fresh * self._numerator // self._denominator

    def copies(self, start: int, stop: int) -> np.ndarray:
        """The number of copies of each fresh item start .. stop-1, floor(e) or ceil(e), int64."""
        return np.diff(self._first_echoed(np.arange(start, stop + 1)))

    def admitted(self, num_outputs: int, num_fresh: int | None = None) -> int:
        """The number of fresh items that have entered the stage after `num_outputs` outputs.

        It includes the prefill of the buffer. This is the count by which echoing is judged.

        Args:
            num_outputs: outputs so far.
            num_fresh: the length of the fresh stream; None if it has no known end.
        """
        echoed = self._echoed_admitted(num_outputs, num_fresh)
        return self._fresh_of(echoed - 1) + 1 if echoed else 0

    def cursor(self, position: int = 0, num_fresh: int | None = None) -> "EchoCursor":
        """A reader of the outputs from `position` on, over `num_fresh` items (None: endless)."""
        return EchoCursor(self, position, num_fresh)

    def _echoed_admitted(self, num_outputs: int, num_fresh: int | None) -> int:
        if num_outputs == 0:
            return 0
        echoed = num_outputs + self.slots - 1
        return echoed if num_fresh is None else min(echoed, self.num_outputs(num_fresh))

    def _fresh_of(self, echoed) -> Any:
        """The fresh item at an echoed position p (or array): the largest i with floor(i*e) <= p."""
        return _scale(echoed + 1, self._denominator, self._numerator, -1)

    def _first_echoed(self, fresh) -> Any:
        """The first echoed position of fresh item i (or array): floor(i*e)."""
        return _scale(fresh, self._numerator, self._denominator)

    def _draws(self, start: int, stop: int) -> np.ndarray:
        """64 random bits for each of the outputs start .. stop-1, as uint64 [stop - start]."""
        per_counter = 4  # Philox yields four words per counter value
        philox = np.random.Philox(key=self.seed, counter=start // per_counter)
        skip = start % per_counter
        return philox.random_raw(skip + stop - start)[skip:]


class EchoCursor:
    """Reads a schedule's output stream from any position; as an order of an echo pass, in batches.

    Args:
        schedule: the order of the outputs.
        position: outputs taken before.
        num_fresh: length of the fresh stream, or None while no end is known.
        size: outputs of a batch.
        drop_remainder: whether `next` drops the last outputs if there are fewer than `size`.

    Attributes:
        position: outputs taken so far; with the schedule, this is the entire state.
        total: the number of outputs of the stream, or None while no end is known.

    Raises:
        ValueError: `num_fresh` items have fewer outputs than `position`, or one of the two is not a
            count.
    """

    def __init__(
        self,
        schedule: EchoSchedule,
        position: int = 0,
        num_fresh: int | None = None,
        size: int = 1,
        drop_remainder: bool = True,
    ):
        self.schedule = schedule
        self.position = checked_integer("position", position, 0, MAX_POSITION)
        self._size, self._drop_remainder = size, drop_remainder
        self._settings = f"{schedule.factor}, {schedule.shuffle_buffer}, {schedule.seed}"
        self.end(num_fresh)

    def end(self, num_fresh: int | None) -> None:
        """Lets the fresh stream end after `num_fresh` items (None: no end is known)."""
        self.num_fresh = num_fresh
        self.total = None if num_fresh is None else self.schedule.num_outputs(num_fresh)
        if self.total is not None and self.position > self.total:
            raise ValueError(
                f"output {self.position} is beyond the end: {num_fresh} fresh items at factor "
                f"{self.schedule.factor} give {self.total}"
            )
        # Outputs computed ahead, of which `position` is at place `_taken`.
        self._fresh = self._copy = _NO_ITEMS
        self._taken = 0
        self.__dict__.pop("_contents", None)

    @property
    def admitted(self) -> int:
        """The number of fresh items that have entered the stage so far."""
        return self.schedule.admitted(self.position, self.num_fresh)

    def take(self, n: int) -> tuple[np.ndarray, np.ndarray]:
        """The next n outputs (fewer at the end) as (fresh item, copy number), both int64 [n].

        Raises:
            EchoSpecError: n is not a count.
        """
        fresh, copy = self.peek(n)
        self.emitted(len(fresh))
        return fresh, copy

    def peek(self, n: int) -> tuple[np.ndarray, np.ndarray]:
        """What `take` would return."""
        n = checked_integer("n", n, 0, MAX_POSITION)
        start, stop = self._taken, self._taken + n
        if stop > len(self._fresh):
            blocks = [(self._fresh[start:], self._copy[start:])]
            num_ahead = len(self._fresh) - start
            while num_ahead < n and len((block := self._block(self.position + num_ahead))[0]):
                blocks.append(block)
                num_ahead += len(block[0])
            self._fresh, self._copy = map(np.concatenate, zip(*blocks, strict=True))
            self._taken, start, stop = 0, 0, n
        return self._fresh[start:stop], self._copy[start:stop]

    def emitted(self, n: int) -> np.ndarray:
        """Takes n outputs that `peek` or `next` has returned. No item is dropped."""
        self._taken += n
        self.position += n
        return _NO_ITEMS

    def next(self, intake: Any) -> tuple[np.ndarray, np.ndarray]:
        """The next batches, read as far as required; see `echo.echo_pass`."""
        required = self.schedule.admitted(self.position + self._size, self.num_fresh)
        while intake.num_read < required and intake.read(required):
            pass
        if intake.num_read < required:
            self.end(intake.num_read)
        # All batches that consist of the items read so far are computed together, because a numpy
        # call on few outputs is all overhead.
        settled = self.schedule.num_outputs(intake.num_read) - self.schedule.slots + 1
        batches = max(1, min(settled - self.position, _BLOCK) // self._size)
        index, copy = self.peek(self._size * batches)
        size = min(self._size, len(index))
        if not size or (self._drop_remainder and size < self._size):
            raise StopIteration
        stop = len(index) // size * size
        return index[:stop].reshape(-1, size), copy[:stop].reshape(-1, size)

    def copies(self, fresh: np.ndarray) -> np.ndarray:
        """The number of copies of consecutive fresh items, int64 [n]."""
        return self.schedule.copies(int(fresh[0]), int(fresh[-1]) + 1)

    def max_pending(self, num_outputs: int) -> int:
        """The maximum number of stored items, if outputs are taken `num_outputs` at a time.

        Each slot may hold a different item, and the items that those outputs admit enter before
        any of them leaves.
        """
        bound = self.schedule.slots + num_outputs
        return bound if self.num_fresh is None else min(bound, max(1, self.num_fresh))

    def get_state(self) -> dict[str, Any]:
        return {"position": self.position, "schedule": self._settings}

    def at(self, state: dict[str, Any], num_items: int | None) -> Self:
        if state["schedule"] != self._settings:
            raise ValueError(
                f"the state is of (factor, shuffle_buffer, seed) = ({state['schedule']}), this "
                f"stage has ({self._settings}); restore it into an equal stage"
            )
        position, size = state["position"], self._size
        return type(self)(self.schedule, position, num_items, size, self._drop_remainder)

    def pending(self) -> dict[int, int]:
        """Fresh items that have entered the stage, in order, with the number of copies left if not
        0: what a store must contain at this position."""
        schedule = self.schedule
        admitted = schedule._echoed_admitted(self.position, self.num_fresh)
        if admitted == 0:
            return {}
        slots = self._look_back(self.position)
        pending = np.sort(slots[slots < admitted])
        items, counts = np.unique(schedule._fresh_of(pending), return_counts=True)
        left = dict(zip(items.tolist(), counts.tolist(), strict=True))
        # The newest item may have copies that have not entered the buffer yet.
        newest = schedule._fresh_of(admitted - 1)
        outside = schedule.num_outputs(newest + 1) - admitted
        if outside:
            left[newest] = left.pop(newest, 0) + outside
        return left

    def oldest(self) -> int:
        """The earliest fresh item among the remaining outputs; past every item if none remain."""
        if self.position == 0 and self.total != 0:
            return 0
        waiting = self.schedule._fresh_of(int(self._contents.min(initial=_MAX_INT64)))
        return min(waiting, int(self._fresh[self._taken :].min(initial=_MAX_INT64)))

    @functools.cached_property
    def _contents(self) -> np.ndarray:
        """Echoed position in each slot. The slot that is drawn next is already refilled. Made on
        first use, since a stream may end before it has filled the slots."""
        return self._look_back(self.position)

    def _block(self, start: int) -> tuple[np.ndarray, np.ndarray]:
        """The fresh items and copy numbers of the next outputs, from `start` on, which have not
        been computed yet; empty at the end of a finite stream."""
        drain_from = None if self.total is None else max(0, self.total - self.schedule.slots)
        if drain_from is not None and start >= drain_from:
            echoed = self._drain(start)
        else:
            stop = start + _BLOCK if drain_from is None else min(start + _BLOCK, drain_from)
            echoed = self._stream(start, stop)
        fresh = self.schedule._fresh_of(echoed)
        return fresh, echoed - self.schedule._first_echoed(fresh)

    def _stream(self, start: int, stop: int) -> np.ndarray:
        """Echoed positions of outputs while the buffer is refilled: draw a slot, emit, refill."""
        size = self.schedule.slots
        slots = (self.schedule._draws(start, stop) % np.uint64(size)).astype(np.int64)
        refills = np.arange(start + size, stop + size)
        emitted = self._contents[slots]
        # A later draw of a slot within the block emits what the draw before it put there.
        by_slot = np.argsort(slots, kind="stable")
        again = slots[by_slot[1:]] == slots[by_slot[:-1]]
        emitted[by_slot[1:][again]] = refills[by_slot[:-1][again]]
        self._contents[slots] = refills  # of equal slots, the last one wins
        return emitted

    def _drain(self, start: int) -> np.ndarray:
        """Echoed positions of the outputs after the last refill, as the buffer shrinks."""
        draws = self.schedule._draws(start, self.total or 0)
        emitted, self._contents = _draw_without_refill(self._contents[: len(draws)], draws)
        return emitted

    def _look_back(self, position: int) -> np.ndarray:
        """The echoed position in each slot just before output `position`.

        The last draw of a slot refilled it. A slot that was never drawn has its first filling.
        """
        size = self.schedule.slots
        steady = position
        if self.total is not None:
            size = min(size, self.total)
            steady = min(position, self.total - size)
        contents = np.full(size, -1, np.int64)
        stop = steady
        while stop > 0 and (contents < 0).any():
            start = max(0, stop - 2 * size)
            drawn = np.full(size, -1, np.int64)
            slots = (self.schedule._draws(start, stop) % np.uint64(size)).astype(np.int64)
            drawn[slots] = np.arange(start, stop) + size
            contents = np.where(contents < 0, drawn, contents)
            stop = start
        contents = np.where(contents < 0, np.arange(size), contents)
        _, contents = _draw_without_refill(contents, self.schedule._draws(steady, position))
        return contents


def _scale(number, numerator: int, denominator: int, offset: int = 0):
    """(number * numerator + offset) // denominator, exactly, for an int or an int64 array."""
    if isinstance(number, int):
        return (number * numerator + offset) // denominator
    largest = (int(number.max(initial=0)) + 1) * numerator
    if max(largest, denominator) > _MAX_INT64:  # a factor with many decimals
        number = number.astype(object)
    return ((number * numerator + offset) // denominator).astype(np.int64, copy=False)


def _draw_without_refill(contents: np.ndarray, draws: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Draws from a buffer that shrinks with each draw; returns (emitted, left)."""
    left, emitted = contents.tolist(), []
    for draw in draws.tolist():
        slot = draw % len(left)
        emitted.append(left[slot])
        left[slot] = left[-1]  # the last slot moves into the hole
        left.pop()
    return np.asarray(emitted, np.int64), np.asarray(left, np.int64)
