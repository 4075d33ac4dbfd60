"""Where the copies of an item lie in the batches: distances, duplicates, share of unique items.

Everything follows from the order of the copies, so nothing has to be saved: a resumed run derives
what an uninterrupted one has.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from echo.auto_order import DecidedOrder

_NO_ITEMS = np.empty(0, np.int64)


class CopyDiagnostics:
    """Statistics of repeats over windows of steps.

    Args:
        batch_size: examples per batch.
        streams: what fills the batches; each stream has the same number of rows.
    """

    def __init__(self, batch_size: int, streams: Sequence["Stream"]):
        self._batch_size, self._streams = batch_size, streams

    def decided(self, fresh: Sequence[int]) -> None:
        """Adds the decisions of the next batch: the number of fresh examples of each stream.

        Streams with an auto order require those of all batches, from the first one on, before a
        window that contains them.
        """
        rows = self._batch_size // len(self._streams)
        for count, stream in zip(fresh, self._streams, strict=True):
            assert isinstance(stream.order, DecidedOrder)
            stream.order.decisions.append(count * stream.outputs_per_batch // rows)

    def window(self, start: int, stop: int) -> dict[str, float]:
        """Statistics of the batches start .. stop-1, fastest if the last window ended at `start`.

        Returns:
            repeated: share of the rows whose item occurs earlier, in any batch.
            repeated_in_batch: share of the rows that repeat an earlier row of their own batch.
            unique_fraction: distinct items / rows, over the window.
            copy_distance_mean, copy_distance_p95: mean and 95th percentile of the distance from
                each of those repeated rows to the previous copy of its item, in examples (a shuffle
                buffer of S examples has a mean of S). Missing if nothing is repeated.
        """
        distances, in_batch, in_window, outputs = [], 0, 0, 0
        for stream in self._streams:
            size = stream.outputs_per_batch
            before = stream.last_emissions(start, stop)
            now = np.arange(start * size, start * size + len(before))
            outputs += len(before)
            now, before = now[before >= 0], before[before >= 0]
            steps, rows = now // size - before // size, now % size - before % size
            distances.append(steps * self._batch_size + rows)
            in_batch += np.count_nonzero(steps == 0)
            in_window += np.count_nonzero(before >= start * size)
        distance = np.concatenate(distances)
        statistics = {
            "repeated": len(distance) / outputs,
            "repeated_in_batch": in_batch / outputs,
            "unique_fraction": 1 - in_window / outputs,
        }
        if len(distance):
            p95 = np.percentile(distance, 95, method="inverted_cdf")
            statistics["copy_distance_mean"] = float(distance.mean())
            statistics["copy_distance_p95"] = float(p95)
        return statistics


class Stream:
    """The rows of each batch that one stream fills.

    It finds the previous copy of the item of each output, and remembers only pending items.

    Args:
        order: of the copies of the stream's items, which are examples, or blocks of rows (batch
            echoing): an `EchoCursor`, or what has its `position`, `take`, `oldest`, and `rewound`.
        outputs_per_batch: its outputs in each batch; 1 if an output is a block of rows.
    """

    def __init__(self, order: Any, outputs_per_batch: int):
        self.order = order
        self.outputs_per_batch = outputs_per_batch
        self._items = self._outputs = _NO_ITEMS  # pending items, and the last output of each

    def last_emissions(self, start: int, stop: int) -> np.ndarray:
        """For each output of the batches start .. stop-1, the previous output of the same item, or
        -1."""
        start, stop = start * self.outputs_per_batch, stop * self.outputs_per_batch
        if start != self.order.position:
            order = self.order.rewound(start)
            if order is not self.order:
                self.order, self._items, self._outputs = order, _NO_ITEMS, _NO_ITEMS
            self._advance(start)
        return self._advance(stop)

    def _advance(self, stop: int) -> np.ndarray:
        start = self.order.position
        fresh, _ = self.order.take(stop - start)
        items = np.concatenate([self._items, fresh])
        outputs = np.concatenate([self._outputs, np.arange(start, start + len(fresh))])
        by_item = np.argsort(items, kind="stable")  # and by output within each item
        again = items[by_item[1:]] == items[by_item[:-1]]
        before = np.full(len(items), -1)
        before[by_item[1:][again]] = outputs[by_item[:-1][again]]
        last = by_item[np.append(~again, True)[: len(by_item)]]
        pending = last[items[last] >= self.order.oldest()]
        num_known = len(self._items)
        self._items, self._outputs = items[pending], outputs[pending]
        return before[num_known:]
