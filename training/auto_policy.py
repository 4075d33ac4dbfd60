"""Training with echo.policy=auto: times the steps, and records and repeats the decisions.

The echo stage decides per batch how many fresh examples to use: as many as arrive before the device
needs the batch. So training has to know when that is (`Pace`), and to record the decisions, so that
a run can be repeated exactly. Several processes would have to agree on them, so `auto` has one.
"""

import collections
import dataclasses
import functools
import os
import pathlib
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import grain
import jax
import numpy as np
from ml_collections import ConfigDict

import echo
from pipeline import accounting
from pipeline.map_datasets import Batch
from pipeline.streams import FixedPolicy, concatenate
from runs import cli, records

# A step may end before it is expected to, so the input asks again after this share of the time
# left, and not sooner than this: asking takes CPU time, which a step on the host needs.
_WAIT_SHARE = 0.75
_MIN_WAIT_SECONDS = 0.001

_REMEMBERED_STEPS = 33


class AutoPolicy(FixedPolicy):
    """echo.policy=auto: echoes instead of waiting; see echo.OpportunisticIterDataset.

    The fastest stream could end a run before the others have used their share of the data. A
    stream may therefore be at most one batch ahead of the slowest, as of the previous batch,
    unless it has stored too few examples to fill its rows of a batch.

    Args:
        config: a resolved configuration.
        pace: a `Pace`, which says how long the next batch may wait for fresh examples; None: each
            is needed at once.
        decisions: the fresh examples of each batch and stream to repeat, int [batches][streams],
            after which the input ends; None to decide.

    Attributes:
        earlier: decisions by batch number, from 0, that are repeated.
    """

    read_ahead = False  # a prefetched batch would be decided before it is needed
    horizon_steps = None  # `combine` finds the end

    def __init__(
        self,
        config: ConfigDict,
        pace: Any = None,
        decisions: Sequence[Sequence[int]] | None = None,
    ):
        self._config, self._pace = config, pace
        self.total_steps = None if decisions is None else len(decisions)
        self.earlier: dict[int, Sequence[int]] = dict(enumerate(decisions or ()))
        self._limit = sys.maxsize  # fresh examples per stream after the next batch
        self._recorded = 0  # steps whose decisions are in the file already
        self._file: records.LinesWriter | None = None

    def echo_stage(self, stream: int) -> Callable[..., grain.IterDataset]:
        settings, rows = self._config.echo, self._config.batch_size // self._config.echo.streams
        unit = rows if settings.insertion == "after_batching" else 1  # examples per item
        earlier = self.earlier
        return functools.partial(
            echo.OpportunisticIterDataset,
            max_factor=accounting.max_factor(self._config),
            slack=self._pace,
            limit=lambda: self._limit // unit,
            earlier=lambda batch: earlier[batch][stream] // unit if batch in earlier else None,
            **accounting.stage_settings(self._config, stream),
        )

    def combine(self, number: int, blocks: dict[int, Batch] | None) -> Batch:
        if blocks is None:
            raise StopIteration
        streams = list(blocks.values())
        slowest = min(int(block.fresh_examples) for block in streams)
        self._limit = slowest + self._config.batch_size // len(streams)
        decisions = tuple(int(np.count_nonzero(block.copy == 0)) for block in streams)
        return concatenate(streams)._replace(decisions=decisions)

    def get_state(self) -> dict[str, Any]:
        return {"limit": self._limit}

    def set_state(self, state: dict[str, Any]) -> None:
        self._limit = state["limit"]

    # In the training loop.

    def resume(self, workdir: pathlib.Path, step: int) -> None:
        """Repeats decisions that were recorded after the checkpoint before making new ones."""
        path = workdir / records.DECISIONS
        decisions, length = records.read_decisions(path)
        self.earlier.update(enumerate(decisions[step:], start=step))
        self._recorded = len(decisions)
        self._file = records.LinesWriter(path, length)

    def busy(self, seconds: float) -> float:
        return self._pace.busy(seconds)

    def dispatched(self, step: int, batch: Batch, metrics: Any) -> None:
        self._pace.dispatched(metrics)
        if self._file and step > self._recorded:
            self._file.write({"step": step, "fresh": batch.decisions})

    def awaits(self, metrics: Any) -> None:
        self._pace.awaits(metrics)

    def sync(self) -> dict[str, records.Extent]:
        return {records.DECISIONS: self._file.sync()} if self._file else {}

    def close(self) -> None:
        if self._file:
            self._file.close()


def of_run(config: ConfigDict) -> AutoPolicy:
    """The policy of a run, which repeats the decisions in config.echo.replay if it is set.

    Raises:
        InputError: config.echo.replay does not contain the decisions of such a run.
    """
    return AutoPolicy(config, Pace(), _read_replay(config))


def _read_replay(config: ConfigDict) -> list[list[int]] | None:
    """The fresh examples of each stream in config.echo.replay, for each step; None if unset."""
    if not config.echo.replay:
        return None
    rows, streams = config.batch_size // config.echo.streams, config.echo.streams
    allowed = (0, rows) if config.echo.insertion == "after_batching" else range(rows + 1)
    path = cli.expanded(config.echo.replay)
    try:
        decisions, length = records.read_decisions(path)
        run = records.read_json(path.with_name(records.CONFIG))
        if run.get("schema_version", records.SCHEMA_VERSION) != records.SCHEMA_VERSION:
            raise ValueError(f"the run is of schema version {run['schema_version']}")
        possible = (len(fresh) == streams and {*fresh} <= {*allowed} for fresh in decisions)
        if length < os.path.getsize(path) or not decisions or not all(possible):
            raise ValueError("a line is missing, damaged, or of another batch size")
        return decisions
    except (OSError, ValueError) as error:
        raise cli.InputError(
            f"config.echo.replay is {config.echo.replay!r}, which contains no decisions of a run "
            f"with batch_size={config.batch_size} and echo.streams={streams} ({error}); allowed: "
            f"{records.DECISIONS} of a run with echo.policy=auto and schema version "
            f"{records.SCHEMA_VERSION}"
        ) from error


@dataclasses.dataclass
class _Step:
    output: Any  # an array, ready when the step has ended
    start: float
    seen_running: bool = False
    end: float | None = None  # when it was seen to have ended


class Pace:
    """Predicts when the device needs its next batch.

    It follows a loop that dispatches step k, then fetches the metrics of step k-1. A call returns
    for how long the next batch can wait without making the device wait: until the earliest end of
    the running step (from the shortest of the last steps), minus the time that the host needs to
    hand over a batch.

    Args:
        clock: returns seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter):
        self._clock = clock
        self._steps: collections.deque[_Step] = collections.deque()
        # Of the last steps: how long they took, and how long the host handed over a batch.
        self._durations, self._leads = (
            collections.deque[float](maxlen=_REMEMBERED_STEPS) for _ in range(2)
        )
        self._needed_at: float | None = None  # when a call first returned 0 or less

    def __call__(self) -> float:
        """Seconds to wait before asking again; 0 or less if the batch is needed now."""
        now = self._clock()
        left = self._left(now)
        if left <= 0 and self._needed_at is None:
            self._needed_at = now
        return min(left, max(_WAIT_SHARE * left, _MIN_WAIT_SECONDS))

    def dispatched(self, metrics: dict[str, Any]) -> None:
        """Notes that a step has been dispatched; `metrics` will be passed to `awaits`."""
        now = self._clock()
        running = self._steps[-1] if self._steps else None
        if self._needed_at is not None:
            if running and running.seen_running and running.end is None:
                self._note_unseen_end(running, self._needed_at, now)
            self._leads.append(now - self._needed_at)
        self._steps.append(_Step(metrics["loss"], now))
        self._needed_at = None

    def awaits(self, metrics: dict[str, Any]) -> None:
        """Waits for the step of these metrics, and notes when it ended."""
        waits = not all(value.is_ready() for value in metrics.values())
        jax.block_until_ready(metrics)
        step = self._steps.popleft()
        if waits:
            self._ended(step)

    def busy(self, seconds: float) -> float:
        """For how many of the last `seconds` the device was running; an estimate if not
        observed."""
        now = self._clock()
        if not self._steps:
            return 0.0
        step = self._steps[-1]
        if not step.output.is_ready():
            return seconds
        # A step whose end no one has seen counts as waiting: nothing says that it took long.
        expected = step.start + statistics.median(self._durations or [0.0])
        end = min(now, expected) if step.end is None else step.end
        return min(seconds, max(0.0, end - (now - seconds)))

    def _left(self, now: float) -> float:
        if not self._steps:
            return 0.0
        step = self._steps[-1]
        if step.output.is_ready():
            # It has just ended if it was seen running, unless a stream has been waiting since.
            if step.seen_running and self._needed_at is None:
                self._ended(step)
            step.seen_running = False
            return 0.0
        step.seen_running = True
        if not self._durations:
            return _MIN_WAIT_SECONDS
        # A batch that is decided early costs neither time nor fresh examples, since what arrives
        # later is in the next one. A late one costs device time.
        return step.start + min(self._durations) - self._lead() - now

    def _lead(self) -> float:
        """Seconds that the host needs. The median, since some leads include a wait for upstream."""
        return statistics.median(self._leads) if self._leads else 0.0

    def _note_unseen_end(self, step: _Step, needed_at: float, now: float) -> None:
        """Estimates the duration of a step whose end no one saw, since it ended while the next
        batch was prepared. Otherwise steps that are a little shorter than all others seen would
        never count, and the device would wait after each of them."""
        waited_for_upstream = now - needed_at > 2 * self._lead()
        if step.output.is_ready() and not waited_for_upstream:
            self._durations.append((needed_at + now) / 2 - step.start)

    def _ended(self, step: _Step) -> None:
        now = step.end = self._clock()
        self._durations.append(now - step.start)
        for later in self._steps:
            if later is not step:
                later.start = max(later.start, now)
