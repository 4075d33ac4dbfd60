"""How the showings of an item lie in the batches: distances, duplicates, share of unique items.

All of it follows from the schedule, so that nothing is observed and nothing has to be saved: a
resumed run works out what an uninterrupted one knew.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from echo.schedule import EchoSchedule

_NOTHING = np.empty(0, np.int64)


class EchoedRows(NamedTuple):
    """The echoed stream that fills one block of rows of each batch.

    Attributes:
        schedule: of its items, which are examples, or blocks of rows (batch echoing).
        num_fresh: how many fresh items there are, None without an end.
        outputs_a_batch: its outputs in each batch; 1 where an output is a block of rows.
    """

    schedule: EchoSchedule
    num_fresh: int | None
    outputs_a_batch: int


class CopyDiagnostics:
    """Statistics of repeats over windows of steps.

    Args:
        batch_size: examples a batch.
        streams: what fills the batches; each an equal number of rows.
    """

    def __init__(self, batch_size: int, streams: Sequence[EchoedRows]):
        self._batch_size = batch_size
        self._streams = [(rows.outputs_a_batch, _Showings(rows)) for rows in streams]

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
        for a_batch, showings in self._streams:
            now = np.arange(start * a_batch, stop * a_batch)
            before = showings.before(start * a_batch, stop * a_batch)
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


class _Showings:
    """When the item of each output was shown before; remembers the items still pending alone."""

    def __init__(self, rows: EchoedRows):
        self._schedule, self._num_fresh = rows.schedule, rows.num_fresh
        self._go_to(0)

    def before(self, start: int, stop: int) -> np.ndarray:
        """The output that last showed the item of each output start .. stop-1; -1 for none."""
        if start != self._cursor.position:
            self._go_to(self._first_that_matters(start))
            self._advance(start)
        return self._advance(stop)

    def _go_to(self, position: int) -> None:
        self._cursor = self._schedule.cursor(position, self._num_fresh)
        self._items = self._outputs = _NOTHING  # shown and pending, and which output showed it last

    def _first_that_matters(self, position: int) -> int:
        """An output before which nothing was shown that is pending at `position`."""
        oldest = self._schedule.cursor(position, self._num_fresh).oldest()
        enters = self._schedule.num_outputs(oldest) - self._schedule.slots + 1
        return min(max(enters, 0), position)

    def _advance(self, stop: int) -> np.ndarray:
        start = self._cursor.position
        fresh, _ = self._cursor.take(stop - start)
        items = np.concatenate([self._items, fresh])
        outputs = np.concatenate([self._outputs, np.arange(start, start + len(fresh))])
        order = np.argsort(items, kind="stable")  # by item, and the showings of each in order
        again = items[order[1:]] == items[order[:-1]]
        before = np.full(len(items), -1)
        before[order[1:][again]] = outputs[order[:-1][again]]
        last = order[np.append(~again, True)[: len(order)]]
        pending = last[items[last] >= self._cursor.oldest()]
        known = len(self._items)
        self._items, self._outputs = items[pending], outputs[pending]
        return before[known:]
