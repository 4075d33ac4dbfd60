"""How the showings of an item lie in the batches: distances, duplicates, share of unique items.

All of it follows from the schedule, or from the decisions of opportunistic echoing, so that nothing
else has to be saved: a resumed run works out what an uninterrupted one knew.
"""

import collections
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from echo.auto_order import Repeats
from echo.schedule import EchoSchedule

_NOTHING = np.empty(0, np.int64)


class EchoedRows(NamedTuple):
    """The echoed stream that fills one block of rows of each batch.

    Attributes:
        schedule: of its items, which are examples, or blocks of rows (batch echoing).
        num_fresh: how many fresh items there are, None without an end.
        outputs_per_batch: its outputs in each batch; 1 where an output is a block of rows.
    """

    schedule: EchoSchedule
    num_fresh: int | None
    outputs_per_batch: int


class DecidedRows(NamedTuple):
    """The opportunistic stream that fills one block of rows; else as EchoedRows."""

    repeats: Repeats
    outputs_per_batch: int


class Passes(Protocol):
    """Showings in an order of their own."""

    def __len__(self) -> int:
        """How many there are."""

    def shown(self, indices: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """The items that these show, and which of their copies, int64 [n] each."""

    def oldest(self, copies: int) -> int:
        """The earliest item that is shown again after so many first ones."""


class PassesRows(NamedTuple):
    """Showings in another order; else as EchoedRows."""

    passes: Passes
    outputs_per_batch: int


class CopyDiagnostics:
    """Statistics of repeats over windows of steps.

    Args:
        batch_size: examples a batch.
        streams: what fills the batches; each an equal number of rows.
    """

    def __init__(self, batch_size: int, streams: Sequence[EchoedRows | DecidedRows | PassesRows]):
        self._batch_size = batch_size
        self._streams = [(rows.outputs_per_batch, _COPIES[type(rows)](rows)) for rows in streams]

    def decided(self, fresh: Sequence[int]) -> None:
        """Notes the decisions of the next batch: each stream's fresh examples in it. Opportunistic
        streams need all of them, from the first batch on, before a window is asked for."""
        rows = self._batch_size // len(self._streams)
        for count, (a_batch, copies) in zip(fresh, self._streams, strict=True):
            copies.decisions.append(count * a_batch // rows)

    def repeats(self, number: int) -> np.ndarray:
        """Whether the item of each row of batch `number` was shown by an earlier row, of that batch
        or one before, bool [batch_size]. Opportunistic streams go forward alone."""
        blocks = []
        for a_batch, copies in self._streams:
            before = copies.before(number * a_batch, (number + 1) * a_batch)
            rows = self._batch_size // len(self._streams) // a_batch
            blocks.append(np.repeat(before >= 0, rows))
        return np.concatenate(blocks)

    def window(self, start: int, stop: int) -> dict[str, float]:
        """Statistics of the batches start .. stop-1, fastest where the last window ended at start.

        Returns:
            repeated: share of the rows whose item was shown before, in any batch.
            repeated_in_batch: share of the rows that repeat an earlier row of their own batch.
            unique_fraction: distinct items / rows, over the window.
            copy_distance_mean, copy_distance_p95: mean and 95th percentile of the distance from
                each of those repeated rows to the showing before it, in examples shown, the unit
                of the study's shuffle buffer: a buffer of S examples gives a mean of S. Divide by
                the batch size for steps. Left out where nothing is repeated.
        """
        distances, in_batch, in_window, outputs = [], 0, 0, 0
        for a_batch, copies in self._streams:
            now = np.arange(start * a_batch, stop * a_batch)
            before = copies.before(start * a_batch, stop * a_batch)
            now, before = now[: len(before)], before[: len(now)]
            outputs += len(before)
            now, before = now[before >= 0], before[before >= 0]
            steps, rows = now // a_batch - before // a_batch, now % a_batch - before % a_batch
            distances.append(steps * self._batch_size + rows)
            in_batch += np.count_nonzero(steps == 0)
            in_window += np.count_nonzero(before >= start * a_batch)
        distance = np.concatenate(distances)
        found = {
            "repeated": len(distance) / outputs,
            "repeated_in_batch": in_batch / outputs,
            "unique_fraction": 1 - in_window / outputs,
        }
        if len(distance):
            found["copy_distance_mean"] = float(distance.mean())
            found["copy_distance_p95"] = float(np.percentile(distance, 95, method="inverted_cdf"))
        return found


class _Copies:
    """When the item of each output was shown before; remembers the items still pending alone."""

    def __init__(self):
        self._forget(0)

    def before(self, start: int, stop: int) -> np.ndarray:
        """The output that last showed the item of each output start .. stop-1; -1 for none."""
        if start != self._position:
            self._recall(start)
            self._show(start)
        return self._show(stop)

    def _recall(self, position: int) -> None:
        """Goes back to an output before which nothing was shown that is pending at `position`."""

    def _forget(self, position: int) -> None:
        self._position = position
        self._items = self._outputs = _NOTHING  # shown and pending, and which output showed it last

    def _show(self, stop: int) -> np.ndarray:
        start = self._position
        fresh, oldest = self._take(stop - start)
        items = np.concatenate([self._items, fresh])
        outputs = np.concatenate([self._outputs, np.arange(start, start + len(fresh))])
        order = np.argsort(items, kind="stable")  # by item, and the showings of each in order
        again = items[order[1:]] == items[order[:-1]]
        before = np.full(len(items), -1)
        before[order[1:][again]] = outputs[order[:-1][again]]
        last = order[np.append(~again, True)[: len(order)]]
        pending = last[items[last] >= oldest]
        known = len(self._items)
        self._items, self._outputs = items[pending], outputs[pending]
        self._position = start + len(fresh)
        return before[known:]


class _Scheduled(_Copies):
    def __init__(self, rows: EchoedRows):
        self._schedule, self._num_fresh = rows.schedule, rows.num_fresh
        super().__init__()

    def _take(self, n: int) -> tuple[np.ndarray, int]:
        """The items of the next n outputs, and the earliest that is to be shown after them."""
        fresh, _ = self._cursor.take(n)
        return fresh, self._cursor.oldest()

    def _recall(self, position: int) -> None:
        if 0 <= position - self._position <= self._schedule.slots:
            return  # looking back would take longer than showing what is between
        oldest = self._schedule.cursor(position, self._num_fresh).oldest()
        enters = self._schedule.num_outputs(oldest) - self._schedule.slots + 1
        self._forget(min(max(enters, 0), position))

    def _forget(self, position: int) -> None:
        super()._forget(position)
        self._cursor = self._schedule.cursor(position, self._num_fresh)


class _Decided(_Copies):
    def __init__(self, rows: DecidedRows):
        super().__init__()
        self._repeats, self._size = rows.repeats.fresh_start(), rows.outputs_per_batch
        self.decisions: collections.deque[int] = collections.deque()  # of batches not shown yet

    def _take(self, n: int) -> tuple[np.ndarray, int]:
        shown = [
            self._repeats.take(self.decisions.popleft(), self._size)[0]
            for _ in range(n // self._size)
        ]
        return np.concatenate([_NOTHING, *shown]), self._repeats.oldest()


class _InPasses(_Copies):
    def __init__(self, rows: PassesRows):
        super().__init__()
        self._passes = rows.passes

    def _take(self, n: int) -> tuple[np.ndarray, int]:
        stop = min(self._position + n, len(self._passes))
        fresh, _ = self._passes.shown(range(self._position, stop))
        return fresh, self._passes.oldest(stop)

    def _recall(self, position: int) -> None:
        self._forget(0)


_COPIES = {EchoedRows: _Scheduled, DecidedRows: _Decided, PassesRows: _InPasses}
