"""Training with echo.policy=auto: times the steps, and records and repeats the decisions.

The echo stage decides per batch how many fresh examples to use: as many as arrive before the device
needs the batch, or fewer if handing them over takes too long. So training has to know when that is
(`Pace`) and how many are too many (`FreshLimit`), to agree on the decisions with the other
processes, and to record them, so that a run can be repeated exactly.
"""

import collections
import dataclasses
import functools
import itertools
import math
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
from runs import cli, processes, records
from runs.exchange import Exchange

# A step may end before it is expected to, so the input asks again after this share of the time
# left, and not sooner than this: asking takes CPU time, which a step on the host needs.
_WAIT_SHARE = 0.75
_MIN_WAIT_SECONDS = 0.001

_REMEMBERED_STEPS = 33

# The limit on fresh examples changes after so many batches, by up to these factors, and may rise as
# long as the host takes less than this share of a step.
_BLOCK = 10
_FEWER, _MORE = 0.6, 1.5
_STEP_SHARE = 0.95
_WORTHWHILE = 0.6  # a power; see `FreshLimit`
_SMALL_CHANGE = 0.1  # of the logarithm of a number
# Late blocks before the first attempt, and at most between two attempts.
_FIRST_WAIT, _MAX_WAIT = 2, 64


class AutoPolicy(FixedPolicy):
    """echo.policy=auto: echoes instead of waiting; see echo.OpportunisticIterDataset.

    The fastest stream could end a run before the others have used their share of the data. A
    stream may therefore be at most one batch ahead of the slowest, as of the previous batch,
    unless it has stored too few examples to fill its rows of a batch.

    Args:
        config: a resolved configuration.
        pace: a `Pace`, which says how long the next batch may wait for fresh examples and, if the
            devices store single examples, how many it may have; None: each is needed at once.
        decisions: the fresh examples of each batch and stream to repeat, int [batches][streams],
            after which the input ends; None to decide.
        exchange: takes this process's contribution (JSON; None if one of its streams has ended)
            and returns those of all processes in the same order everywhere; see
            runs.exchange.Exchange.

    Attributes:
        earlier: decisions by batch number, from 0, that are repeated.
    """

    read_ahead = False  # a prefetched batch would be decided before it is needed
    horizon_steps = None  # `combine` finds the end
    repeats = True

    def __init__(
        self,
        config: ConfigDict,
        pace: Any = None,
        decisions: Sequence[Sequence[int]] | None = None,
        exchange: Any = None,
    ):
        self._config, self._pace = config, pace
        self._exchange, self._num_examples = exchange, 0
        self.total_steps = None if decisions is None else len(decisions)
        self.earlier: dict[int, Sequence[int]] = {}
        if decisions is not None:
            self.earlier.update(enumerate(decisions))
        self._limit = sys.maxsize  # fresh examples per stream after the next batch
        # The same as the pace allows, by stream held here (none: any number), and all that it has
        # allowed so far. If the host stores the examples, it sends whole batches in any case.
        on_device = config.echo.placement == "device"
        self._limits = pace and on_device and config.echo.insertion != "after_batching"
        self._allowed: dict[int, int] = {}
        self._allowed_so_far = 0
        self._recorded = 0  # steps whose decisions are in the file already
        self._file: records.LinesWriter | None = None  # in process 0

    def echo_stage(self, stream: int) -> Callable[..., grain.IterDataset]:
        settings, rows = self._config.echo, self._config.batch_size // self._config.echo.streams
        unit = rows if settings.insertion == "after_batching" else 1  # examples per item
        earlier = self.earlier
        return functools.partial(
            echo.OpportunisticIterDataset,
            max_factor=accounting.max_factor(self._config),
            slack=self._pace,
            limit=lambda: min(self._limit, self._allowed.get(stream, sys.maxsize)) // unit,
            waited=self._pace and self._pace.waited,
            earlier=lambda batch: earlier[batch][stream] // unit if batch in earlier else None,
            **accounting.stage_settings(self._config, stream),
        )

    def combine(self, number: int, blocks: dict[int, Batch] | None) -> Batch:
        counts = None
        if blocks is not None:  # per stream: its fresh examples so far, and those in this batch
            counts = [
                [stream, int(block.fresh_examples), int(np.count_nonzero(block.copy == 0))]
                for stream, block in blocks.items()
            ]
        start = time.perf_counter()
        everywhere: list[Any] = self._exchange(counts) if self._exchange else [counts]
        if counts and self._limits and number - 1 not in self.earlier:
            self._pace.waited(time.perf_counter() - start)
            self._allow(counts, self._pace.decided(sum(fresh for _, _, fresh in counts)))
        if blocks is None or None in everywhere:
            raise StopIteration
        _, admitted, decisions = zip(*sorted(itertools.chain(*everywhere)), strict=True)
        self._limit = min(admitted) + self._config.batch_size // self._config.echo.streams
        batch = concatenate(list(blocks.values()))
        return batch._replace(fresh_examples=sum(admitted), decisions=decisions)

    def get_state(self) -> dict[str, Any]:
        return {"limit": self._limit}

    def set_state(self, state: dict[str, Any]) -> None:
        self._limit, self._allowed = state["limit"], {}

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

    # In the training loop.

    def resume(self, workdir: pathlib.Path, step: int) -> None:
        """Repeats decisions that were recorded after the checkpoint before making new ones."""
        path = workdir / records.DECISIONS
        decisions, length = processes.decided_by_first(lambda: records.read_decisions(path))
        self.earlier.update(enumerate(decisions[step:], start=step))
        self._recorded = len(decisions)
        if processes.is_first():
            self._file = records.LinesWriter(path, length)
            for fresh in decisions[:step]:
                self.copies.decided(fresh)

    def busy(self, seconds: float) -> float:
        return self._pace.busy(seconds)

    def dispatched(self, step: int, batch: Batch, metrics: Any) -> None:
        self._pace.dispatched(metrics)
        if self._file is not None:
            if step > self._recorded:
                self._file.write({"step": step, "fresh": batch.decisions})
            self.copies.decided(batch.decisions)

    def awaits(self, metrics: Any) -> None:
        self._pace.awaits(metrics)

    def sync(self) -> dict[str, records.Extent]:
        return {records.DECISIONS: self._file.sync()} if self._file else {}

    def close(self) -> None:
        if self._exchange:
            self._exchange.close()
        if self._file:
            self._file.close()


def of_run(config: ConfigDict) -> AutoPolicy:
    """The policy of a run, which repeats the decisions in config.echo.replay if it is set.

    Raises:
        InputError: config.echo.replay does not contain the decisions of such a run.
    """
    decisions = processes.decided_by_first(lambda: _read_replay(config))
    return AutoPolicy(config, Pace(), decisions, Exchange())


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
        if length == 0 or length < os.path.getsize(path) or not all(possible):
            raise ValueError("a line is missing, damaged, or of another batch size")
        return decisions
    except (OSError, ValueError) as error:
        raise cli.InputError(
            f"config.echo.replay is {config.echo.replay!r}, which contains no decisions of a run "
            f"with batch_size={config.batch_size} and echo.streams={streams} ({error}); allowed: "
            f"{records.DECISIONS} of a run with echo.policy=auto and schema version "
            f"{records.SCHEMA_VERSION}"
        ) from error


class FreshLimit:
    """Limits the fresh examples of a batch if handing them over takes longer than a step.

    If the devices store the examples, reading and sending large fresh ones may take longer than a
    step. Meanwhile more become ready, so batches that took them all would make the devices wait
    after each step, although stored examples could take their place.

    If the host is late with most batches of two blocks in succession, fewer fresh examples are
    tried, or more again. If it is in time, more are taken as long as there is room. If the time
    changes like their number to a power above 0.6, fewer are better: steps per second rise more
    than fresh examples per second fall. An attempt that does not pay is taken back, and the next
    one waits twice as long, so that a host that is late for other reasons hands over nearly all.

    Attributes:
        most: the maximum number of fresh examples of the next batch.
    """

    def __init__(self):
        self.most = math.inf
        self._block: list[tuple[int, float, bool, float | None]] = []  # what `took` was told
        # Before another limit was tried: `most`, and fresh examples and seconds of a block.
        self._trial: tuple[float, float, float] | None = None
        self._try_more = False
        self._wait, self._next_wait = _FIRST_WAIT, _FIRST_WAIT  # blocks

    def took(
        self, fresh: int, seconds: float, late: bool, step_seconds: float | None = None
    ) -> None:
        """Notes that the host was busy with a batch for `seconds` since the running step began.

        Args:
            fresh: its number of fresh examples, at least 1.
            seconds: without waiting for them.
            late: whether the step had ended by then.
            step_seconds: the duration of a step that was seen to end since the last call.
        """
        self._block.append((fresh, seconds, late, step_seconds))
        if len(self._block) < _BLOCK:
            return
        numbers, times, lates, durations = zip(*self._block, strict=True)
        self._block = []
        seen = [duration for duration in durations if duration is not None]
        number, time_taken = statistics.median(numbers), statistics.median(times)
        mostly_late = 2 * sum(lates) > _BLOCK
        if self._trial is not None:
            self._judge(*self._trial, number, time_taken)
        elif not mostly_late:
            self._wait, self._try_more = max(self._wait, _FIRST_WAIT), False
        elif self._wait:
            self._wait -= 1
        if mostly_late and self._trial is None and not self._wait:
            self._trial = self.most, number, time_taken
            self.most = max(1.0, (1 / _FEWER if self._try_more else _FEWER) * number)
        elif not mostly_late and seen:
            room = _STEP_SHARE * statistics.median(seen) / time_taken
            base = min(self.most, number + 1)  # `number` alone would lose the fraction
            self.most = max(self.most, base * min(_MORE, math.sqrt(room)))  # half the way there

    def _judge(
        self, most: float, fresh_before: float, seconds_before: float, fresh: float, seconds: float
    ) -> None:
        """Keeps or takes back what was tried."""
        more, change, self._trial = self._try_more, math.log(fresh / fresh_before), None
        power = math.log(seconds / seconds_before) / change if change else 0.0
        pays = power < _WORTHWHILE if more else change < -_SMALL_CHANGE and power > _WORTHWHILE
        if more and change < _SMALL_CHANGE:  # no more than before are ready
            self.most, self._try_more = math.inf, False
        elif pays:
            self._wait = 0
        else:
            self.most, self._try_more = most, not more and most < math.inf
            self._next_wait = min(_MAX_WAIT, 2 * self._next_wait)
            self._wait = _FIRST_WAIT if self._try_more else self._next_wait


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
    hand over a batch. It also limits the fresh examples of the input.

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
        # Of the next batch: its fresh examples, and the seconds that it has waited for some and for
        # other processes.
        self._fresh, self._waited = 0, 0.0
        self._limit = FreshLimit()
        self._seen_duration: float | None = None  # of a step whose end was seen since the last one

    def __call__(self) -> float:
        """Seconds to wait before asking again; 0 or less if the batch is needed now."""
        now = self._clock()
        left = self._left(now)
        if left <= 0 and self._needed_at is None:
            self._needed_at = now
        return min(left, max(_WAIT_SHARE * left, _MIN_WAIT_SECONDS))

    def waited(self, seconds: float) -> None:
        """Notes that the next batch has waited for fresh examples, or for other processes."""
        self._waited += seconds

    def decided(self, fresh: int) -> float:
        """Notes that the next batch has so many fresh examples; returns how many the batch after it
        may have."""
        self._fresh = fresh
        return self._limit.most

    def dispatched(self, metrics: dict[str, Any]) -> None:
        """Notes that a step has been dispatched; `metrics` will be passed to `awaits`."""
        now = self._clock()
        running = self._steps[-1] if self._steps else None
        if self._needed_at is not None:
            if running and running.seen_running and running.end is None:
                self._note_unseen_end(running, self._needed_at, now)
            self._leads.append(now - self._needed_at)
        if running and self._fresh:  # how long the host took since the running step began
            seconds = now - running.start - self._waited
            if seconds > self._waited:  # else it may be late because it has waited
                late = running.output.is_ready()
                self._limit.took(self._fresh, seconds, late, self._seen_duration)
                self._seen_duration = None
        self._steps.append(_Step(metrics["loss"], now))
        self._needed_at, self._fresh, self._waited = None, 0, 0.0

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
        self._seen_duration = now - step.start
        self._durations.append(self._seen_duration)
        for later in self._steps:
            if later is not step:
                later.start = max(later.start, now)
