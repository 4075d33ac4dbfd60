"""The streams of echo.policy=auto, which decide per batch how many fresh examples to use."""

import functools
import itertools
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import grain
import numpy as np
from ml_collections import ConfigDict

import echo
from pipeline import accounting
from pipeline.map_datasets import Batch
from pipeline.streams import concatenate


class HandOver(Protocol):
    """Limits the fresh examples of a batch if handing them over takes too long."""

    def waited(self, seconds: float) -> None:
        """Notes that the next batch has waited so long for fresh examples."""
        ...

    def decided(self, fresh: int, exchange_seconds: float) -> None:
        """Notes the number of fresh examples that the next batch has in the streams held here, and
        how long it took to exchange it with other processes."""
        ...

    def most_fresh(self) -> float:
        """The maximum number of fresh examples in the streams held here for the batch after the one
        that was decided last."""
        ...


class AutoStreams:
    """Echoes instead of waiting; see echo.OpportunisticIterDataset.

    The fastest stream could end a run before the others have used their share of the data. A
    stream may therefore be at most one batch ahead of the slowest, as of the previous batch,
    unless it has stored too few examples to fill its rows of a batch.

    Args:
        config: a resolved configuration.
        slack: seconds for which the next batch may wait for fresh examples before it asks again;
            0 or less if the batch is needed now. None: it is always needed now.
        decisions: the fresh examples of each batch and stream to repeat, int [batches, streams];
            None to decide.
        earlier: decisions by batch number, from 0, that were made before an interruption. They
            are looked up when the batch is taken, and repeated.
        exchange: takes this process's contribution (JSON; None if one of its streams has ended)
            and returns those of all processes in the same order everywhere; see
            runs.processes.Exchange.
        hand_over: limits the fresh examples of a batch; None: no limit below the size of a batch.
            Ignored after batching, where items are whole batches.
    """

    read_ahead = False  # a prefetched batch would be decided before it is needed

    def __init__(
        self,
        config: ConfigDict,
        slack: Callable[[], float] | None = None,
        decisions: np.ndarray | None = None,
        earlier: Mapping[int, Sequence[int]] | None = None,
        exchange: Callable[[Any], list[Any]] = lambda contribution: [contribution],
        hand_over: HandOver | None = None,
    ):
        self._config, self._slack, self._decisions = config, slack, decisions
        self._earlier = {} if earlier is None else earlier
        self._exchange, self._hand_over = exchange, hand_over
        self._limit = sys.maxsize  # fresh examples per stream after the next batch
        # What `hand_over` allows: by stream held here, fresh examples after the next batch (none:
        # any number), and all that it has allowed so far.
        self._allowed: dict[int, int] = {}
        self._allowed_so_far = 0

    def echo_stage(self, stream: int) -> Callable[..., grain.IterDataset]:
        settings, rows = self._config.echo, self._config.batch_size // self._config.echo.streams
        unit = rows if settings.insertion == "after_batching" else 1  # examples per item
        decisions, earlier = self._decisions, self._earlier
        return functools.partial(
            echo.OpportunisticIterDataset,
            max_factor=accounting.max_factor(self._config),
            slack=self._slack,
            limit=lambda: min(self._limit, self._allowed.get(stream, sys.maxsize)) // unit,
            waited=self._hand_over and self._hand_over.waited,
            decisions=None if decisions is None else decisions[:, stream] // unit,
            earlier=lambda batch: earlier[batch][stream] // unit if batch in earlier else None,
            **accounting.stage_settings(self._config, stream),
        )

    def ended(self, taken: int) -> bool:
        del taken
        return False  # `combine` finds out

    def combine(self, number: int, blocks: dict[int, Batch] | None) -> Batch:
        counts = None if blocks is None else [_counts(*item) for item in blocks.items()]
        start = time.perf_counter()
        everywhere = self._exchange(counts)
        if counts and self._hand_over and self._decides(number - 1):
            fresh = sum(fresh for _, _, fresh in counts)
            self._hand_over.decided(fresh, time.perf_counter() - start)
            self._allow(counts, self._hand_over.most_fresh())
        if blocks is None or None in everywhere:
            raise StopIteration
        _, admitted, decisions = zip(*sorted(itertools.chain(*everywhere)), strict=True)
        self._limit = min(admitted) + self._config.batch_size // self._config.echo.streams
        batch = concatenate(list(blocks.values()))
        return batch._replace(fresh_examples=sum(admitted), decisions=decisions)

    def get_state(self) -> dict[str, Any]:
        return {"limit": self._limit}

    def set_state(self, state: dict[str, Any]) -> None:
        self._limit = state.get("limit", sys.maxsize)  # earlier versions saved none
        self._allowed = {}

    def _decides(self, batch: int) -> bool:
        """Whether the number of fresh examples of a batch, from 0, is decided now, in parts."""
        repeated = self._decisions is not None or batch in self._earlier
        return not repeated and self._config.echo.insertion != "after_batching"

    def _allow(self, counts: list[list[int]], most: float) -> None:
        """Divides `most` fresh examples of the next batch among the streams held here, in turn: one
        that never got any would soon hold up the others."""
        self._allowed, n = {}, len(counts)
        if math.isinf(most):
            return
        before, self._allowed_so_far = self._allowed_so_far, self._allowed_so_far + int(most)
        for rank, (stream, admitted, _) in enumerate(counts):
            share = (self._allowed_so_far + rank) // n - (before + rank) // n
            self._allowed[stream] = admitted + share


def _counts(stream: int, block: Batch) -> list[int]:
    """The stream, its fresh examples so far, and those of them that are in `block`."""
    return [stream, int(block.fresh_examples), int(np.count_nonzero(block.copy == 0))]
