"""Which fresh item each output of the echo stage shows, as pure index arithmetic.

Everything else in this library asks this file. Two integer sequences describe the stage:

* The *echoed stream*: fresh item i fills the echoed positions floor(i*e) .. floor((i+1)*e) - 1, so
  that any k items are repeated floor(k*e) times in all (error diffusion, no coin flips).
* The *output stream*: the echoed stream behind a streaming shuffle buffer of S slots. Before output
  t the buffer is filled; then the item of slot r_t is shown and its slot is the next to be filled.

r_t depends on (seed, t) alone: Philox is counter-based, so draw number t is computed without the
draws before it. That makes the state of the whole stage one number, the count of outputs: what a
slot holds at output t is the echoed position that was put there by the last earlier draw of that
slot, and is found again by looking back, in about S*ln(S) draws.
"""

import dataclasses
import sys
from collections.abc import Iterator

import numpy as np

from echo.spec import MAX_BUFFER, MAX_POSITION, MAX_SEED, checked_integer, exact_factor

# Outputs planned ahead in one vectorised go. Larger amortises numpy's call overhead, and nothing
# outside this file can tell.
_PLAN = 4096

_LARGEST = np.iinfo(np.int64).max


class EchoSchedule:
    """The order in which fresh items are shown.

    Args:
        factor: the echoing factor e >= 1, read as the exact decimal that was written.
        shuffle_buffer: slots S of the streaming shuffle buffer; 0 leaves copies adjacent.
        seed: of the buffer's choices.

    Raises:
        EchoSpecError: a value that is not allowed; the message names it.
    """

    def __init__(self, factor, shuffle_buffer: int = 0, seed: int = 0):
        self.factor = exact_factor(factor)
        self.shuffle_buffer = checked_integer("shuffle_buffer", shuffle_buffer, 0, MAX_BUFFER)
        self.seed = checked_integer("seed", seed, 0, MAX_SEED)
        # A buffer of one slot shows each item as it comes, which is what no buffer does.
        self.slots = max(1, self.shuffle_buffer)

    def __repr__(self) -> str:
        return (
            f"EchoSchedule({self.factor}, shuffle_buffer={self.shuffle_buffer}, seed={self.seed})"
        )

    def num_outputs(self, num_fresh: int) -> int:
        """How many outputs `num_fresh` items give in all: floor(num_fresh * e)."""
        return num_fresh * self.factor.numerator // self.factor.denominator

    def copies(self, start: int, stop: int) -> np.ndarray:
        """How often each of the fresh items start .. stop-1 is shown: floor(e) or ceil(e)."""
        return np.diff(self._first_echoed(np.arange(start, stop + 1)))

    def admitted(self, num_outputs: int, num_fresh: int | None = None) -> int:
        """How many fresh items have entered the stage once `num_outputs` outputs have left it.

        Includes the prefill of the buffer. This is the count of fresh items that echoing is judged
        by. `num_fresh` is the length of the fresh stream, None while it is not known to end.
        """
        echoed = self._echoed_admitted(num_outputs, num_fresh)
        return self._fresh_of(echoed - 1) + 1 if echoed else 0

    def max_pending(self, num_outputs: int, num_fresh: int | None = None) -> int:
        """The most items that wait at once, where outputs are taken `num_outputs` at a time.

        Every slot may hold another item, and what those outputs let in enters before any leaves.
        """
        most = self.slots + num_outputs
        return most if num_fresh is None else min(most, max(1, num_fresh))

    def max_admitted(self, num_outputs: int) -> int:
        """The most items that so many outputs let in, the first ones aside: ceil(n / e)."""
        return -(-num_outputs * self.factor.denominator // self.factor.numerator)

    def cursor(self, position: int = 0, num_fresh: int | None = None) -> "EchoCursor":
        """A reader of the outputs from `position` on, for `num_fresh` items or without an end.

        Raises:
            ValueError: `num_fresh` items give fewer outputs than `position`, or one of the two is
                no count.
        """
        position = checked_integer("position", position, 0, MAX_POSITION)
        if num_fresh is not None:
            num_fresh = checked_integer("num_fresh", num_fresh, 0, sys.maxsize)
        return EchoCursor(self, position, num_fresh)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        """The endless output stream as (fresh item, copy) pairs."""
        cursor = self.cursor()
        while True:
            fresh, copy = cursor.take(_PLAN)
            yield from zip(fresh.tolist(), copy.tolist(), strict=True)

    def _echoed_admitted(self, num_outputs: int, num_fresh: int | None) -> int:
        if num_outputs == 0:
            return 0
        echoed = num_outputs + self.slots - 1
        return echoed if num_fresh is None else min(echoed, self.num_outputs(num_fresh))

    def _fresh_of(self, echoed):
        """The fresh item at an echoed position, or at each: the largest i with floor(i*e) <= it."""
        e = self.factor
        return _scale(echoed + 1, e.denominator, e.numerator, -1)

    def _first_echoed(self, fresh):
        """The first echoed position of a fresh item, or of each: floor(i*e)."""
        return _scale(fresh, self.factor.numerator, self.factor.denominator)

    def _draws(self, start: int, stop: int) -> np.ndarray:
        """64 random bits for each of the outputs start .. stop-1, as uint64 [stop - start]."""
        per_counter = 4  # Philox gives four words a counter value
        philox = np.random.Philox(key=self.seed, counter=start // per_counter)
        skip = start % per_counter
        return philox.random_raw(skip + stop - start)[skip:]


@dataclasses.dataclass
class _Plan:
    """Outputs worked out ahead of `EchoCursor.position`: outputs start .. start + len - 1."""

    start: int
    fresh: np.ndarray
    copy: np.ndarray

    @property
    def stop(self) -> int:
        return self.start + len(self.fresh)


class EchoCursor:
    """Reads a schedule's output stream from any position.

    Attributes:
        position: outputs taken so far; with the schedule, the whole of the state.
        num_fresh: length of the fresh stream, or None while no end is known.
    """

    def __init__(self, schedule: EchoSchedule, position: int, num_fresh: int | None):
        self.schedule = schedule
        self.num_fresh = num_fresh
        self.position = position
        self._total = None if num_fresh is None else schedule.num_outputs(num_fresh)
        if self._total is not None and position > self._total:
            raise ValueError(
                f"output {position} is beyond the end: {num_fresh} fresh items at factor "
                f"{schedule.factor} give {self._total}"
            )
        self._contents = self._look_back(position)  # echoed position in each slot; drawn = refilled
        self._plan = _Plan(position, np.empty(0, np.int64), np.empty(0, np.int64))

    def take(self, n: int) -> tuple[np.ndarray, np.ndarray]:
        """The next n outputs (fewer at the end) as (fresh item, copy number), both int64 [n]."""
        while self._plan.stop < self.position + n and self._extend_plan():
            pass
        start = self.position - self._plan.start
        fresh = self._plan.fresh[start : start + n]
        self.position += len(fresh)
        return fresh, self._plan.copy[start : start + n]

    def ending(self, num_fresh: int) -> "EchoCursor":
        """The same cursor, now knowing that the fresh stream ends after `num_fresh` items."""
        return EchoCursor(self.schedule, self.position, num_fresh)

    def live(self) -> dict[int, int]:
        """Fresh items that have entered the stage and have showings left, with how many.

        This is what a store must hold at this position; in order of entry.
        """
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
        to_come = schedule.num_outputs(newest + 1) - admitted
        if to_come:
            left[newest] = left.pop(newest, 0) + to_come
        return left

    def oldest(self) -> int:
        """The earliest fresh item that the outputs to come show; past every item if none come."""
        planned = self._plan.fresh[self.position - self._plan.start :]
        waiting = self.schedule._fresh_of(int(self._contents.min(initial=_LARGEST)))
        return min(waiting, int(planned.min(initial=_LARGEST)))

    def _extend_plan(self) -> bool:
        """Works out the next block of outputs; False at the end of a finite stream."""
        start = self._plan.stop
        drain_from = None if self._total is None else max(0, self._total - self.schedule.slots)
        if drain_from is not None and start >= drain_from:
            block = self._drain(start)
        else:
            stop = start + _PLAN if drain_from is None else min(start + _PLAN, drain_from)
            block = self._stream(start, stop)
        fresh = self.schedule._fresh_of(block)
        copy = block - self.schedule._first_echoed(fresh)
        taken = self.position - self._plan.start
        self._plan = _Plan(
            self.position,
            np.concatenate([self._plan.fresh[taken:], fresh]),
            np.concatenate([self._plan.copy[taken:], copy]),
        )
        return len(block) > 0

    def _stream(self, start: int, stop: int) -> np.ndarray:
        """Outputs while the buffer is refilled: draw a slot, show it, refill it."""
        size = self.schedule.slots
        slots = (self.schedule._draws(start, stop) % np.uint64(size)).astype(np.int64)
        refills = np.arange(start, stop) + size
        # A slot drawn twice within the block shows, the second time, what the first draw put there.
        # (numpy sorts 16-bit integers many times faster than wider ones.)
        order = np.argsort(slots.astype(np.min_scalar_type(size - 1)), kind="stable")
        again = slots[order[1:]] == slots[order[:-1]]
        shown = self._contents[slots]
        shown[order[1:][again]] = refills[order[:-1][again]]
        self._contents[slots] = refills  # the last of equal slots wins
        return shown

    def _drain(self, start: int) -> np.ndarray:
        """All outputs that are left once nothing is refilled: the shrinking buffer, drawn empty."""
        draws = self.schedule._draws(start, self._total)
        shown, self._contents = _draw_without_refill(self._contents[: len(draws)], draws)
        return shown

    def _look_back(self, position: int) -> np.ndarray:
        """What each slot holds just before output `position`, as echoed positions.

        A slot holds what its last draw refilled it with, or, if never drawn, its first filling.
        """
        size = self.schedule.slots
        steady = position
        if self._total is not None:
            size = min(size, self._total)
            steady = min(position, self._total - size)
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
    """(number * numerator + offset) // denominator, exact, of an int or an int64 array."""
    if isinstance(number, int):
        return (number * numerator + offset) // denominator
    largest = (int(number.max(initial=0)) + 1) * numerator
    if max(largest, denominator) > _LARGEST:  # a factor of many decimals
        number = number.astype(object)
    return ((number * numerator + offset) // denominator).astype(np.int64)


def _draw_without_refill(contents: np.ndarray, draws: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What is shown by `draws` from a buffer that shrinks with each, and what is left in it."""
    left, shown = contents.tolist(), []
    for draw in draws.tolist():
        slot = draw % len(left)
        shown.append(left[slot])
        left[slot] = left[-1]  # the last slot moves into the hole
        left.pop()
    return np.asarray(shown, np.int64), np.asarray(left, np.int64)
