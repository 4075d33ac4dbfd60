"""Training with echo.policy=auto: times the steps, and records and repeats the decisions.

The echo stage decides per batch how many fresh examples to use: as many as arrive before the device
needs the batch, and can be handed over by then. So training has to know when that is (`Pace`), how
long the host takes (`HandOverTimes`), to agree on the number with the other processes, and to
record the decisions, from which a run can be repeated exactly.
"""

import collections
import dataclasses
import math
import pathlib
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from echo.diagnostics import CopyDiagnostics
from pipeline.auto_streams import AutoStreams
from pipeline.map_datasets import Batch
from runs import cli, distributed, records
from runs.study import short
from training.optimizer import Hyperparameters
from training.step import Program, Rows
from training.stepper import Stepper

# A step may end before it is expected to, so the input asks again after this share of the time
# left, and not sooner than this: asking takes CPU time, which a step on the host needs.
_WAIT_SHARE = 0.5
_MIN_WAIT_SECONDS = 0.001

_REMEMBERED_STEPS = 33

# Batches from which it is learned how long handing over takes. Once none of them has been late, all
# fresh examples that are ready are tried again.
_REMEMBERED_BATCHES = 99
# They are tallied together if their fresh examples differ by less than about this factor.
_ALIKE = 2**0.5


class AutoPolicy:
    """The counterpart of `training.experiment.FixedPolicy` for echo.policy=auto.

    Args:
        config: a resolved configuration.
        copies: the run's diagnostics, which need the decisions.
        clock: returns seconds; stopped while the run does not train.

    Raises:
        InputError: config.echo.replay does not contain the decisions of such a run.
    """

    total_steps = horizon_steps = None  # not known in advance
    repeats = True

    def __init__(self, config: ConfigDict, copies: CopyDiagnostics, clock: Callable[[], float]):
        self._copies = copies
        self._pace, self._exchange = Pace(clock), distributed.Exchange()
        self._earlier: dict[int, list[int]] = {}  # decisions to repeat, by batch number
        self._recorded = 0  # steps whose decisions are in the file already
        self._file: records.LinesWriter | None = None  # in process 0
        self.streams = AutoStreams(
            config,
            self._pace,
            _decisions_to_replay(config),
            self._earlier,
            self._exchange,
            hand_over=self._pace,
        )

    def stepper(self, program: Program, data_seed: int) -> Stepper:
        return _PacedStepper(program, data_seed, self._pace)

    def busy(self, seconds: float) -> float:
        return self._pace.busy(seconds)

    def resume(self, workdir: pathlib.Path, step: int) -> None:
        """Repeats decisions that were recorded after the checkpoint before making new ones."""
        path = workdir / records.DECISIONS
        decisions, length = distributed.decided_by_first(lambda: records.read_decisions(path))
        self._earlier.update(enumerate(decisions[step:], start=step))
        self._recorded = len(decisions)
        if distributed.is_first():
            self._file = records.LinesWriter(path, length)
            for fresh in decisions[:step]:
                self._copies.decided(fresh)

    def stepped(self, step: int, batch: Batch) -> None:
        if self._file is None:
            return
        if step > self._recorded:
            self._file.write({"step": step, "fresh": batch.decisions})
        self._copies.decided(batch.decisions)

    def sync(self) -> dict[str, records.Extent]:
        return {records.DECISIONS: self._file.sync()} if self._file else {}

    def close(self) -> None:
        self._exchange.close()
        if self._file:
            self._file.close()


def _decisions_to_replay(config: ConfigDict) -> np.ndarray | None:
    """The decisions in config.echo.replay, in examples, int64 [steps, streams]; None if unset."""
    path = config.echo.replay
    if not path:
        return None
    try:
        lines = records.read_lines(path)
        if not lines:
            raise ValueError("it is empty")
        _check_version(pathlib.Path(path).with_name(records.CONFIG))
        for step, line in enumerate(lines, start=1):
            _check_decision(config, step, line)
        return np.asarray([line["fresh"] for line in lines], np.int64)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise cli.InputError(
            f"config.echo.replay is {path!r}, which contains no decisions of a run with batch_size="
            f"{config.batch_size} and echo.streams={config.echo.streams} ({error}); allowed: "
            f"{records.DECISIONS} of a run with echo.policy=auto and schema version "
            f"{records.SCHEMA_VERSION}"
        ) from error


def _check_version(path: pathlib.Path) -> None:
    """Raises ValueError if a run's config.json exists and is of another schema version."""
    record = records.read_object(path)
    if record is not None and records.schema_version(record) != records.SCHEMA_VERSION:
        raise ValueError(f"the run is of schema version {records.schema_version(record)}")


def _check_decision(config: ConfigDict, step: int, line: dict[str, Any]) -> None:
    """Raises ValueError or KeyError unless it is a decision for that step of such a run."""
    rows, fresh = config.batch_size // config.echo.streams, line["fresh"]
    in_parts = config.echo.insertion != "after_batching"
    allowed = range(rows + 1) if in_parts else (0, rows)
    if line["step"] != step:
        raise ValueError(f"line {step} is of step {short(line['step'])}")
    if not isinstance(fresh, list) or len(fresh) != config.echo.streams:
        raise ValueError(f"step {step} takes {short(fresh)}")
    for number in fresh:
        if type(number) is not int or number not in allowed:
            raise ValueError(
                f"step {step} takes {short(number)} fresh examples in a stream, not 0 "
                f"{'to' if in_parts else 'or'} {rows}"
            )


class _PacedStepper(Stepper):
    """A `Stepper` whose steps a `Pace` times."""

    def __init__(self, program: Program, data_seed: int, pace: "Pace"):
        super().__init__(program, data_seed)
        self._pace = pace

    def step(self, rows: Rows, hyper: Hyperparameters) -> Any:
        metrics = super().step(rows, hyper)
        self._pace.dispatched(metrics)
        return metrics

    def fetch(self, metrics: Any) -> dict[str, Any]:
        return self._pace.fetch(metrics)


@dataclasses.dataclass
class _Step:
    output: Any  # an array, ready when the step has ended
    start: float
    seen_running: bool = False
    end: float | None = None  # when it was seen to have ended


class HandOverTimes:
    """How many fresh examples the host can hand over while a step runs.

    Reading what is ready, storing it, and sending it to the devices takes time. If examples are
    large, that may be longer than a step. While the host is busy, more of them become ready, so
    batches that took them all would make the device wait after each step.
    """

    def __init__(self):
        # Of the last batches: fresh examples, rounded to a power of _ALIKE; their number; seconds.
        self._taken: collections.deque[tuple[int, int, float]] = collections.deque(
            maxlen=_REMEMBERED_BATCHES
        )
        self._medians: list[tuple[float, float]] | None = None  # see `_tally`; None: not yet

    def took(self, seconds: float, fresh: int) -> None:
        """Notes what a batch has taken of the host, without waiting for anything."""
        if fresh:
            self._taken.append((int(math.log(fresh, _ALIKE)), fresh, seconds))
            self._medians = None

    def most(self, step_seconds: float) -> int:
        """The maximum number of fresh examples of a batch during a step of this duration."""
        if all(seconds <= step_seconds for _, _, seconds in self._taken):
            return sys.maxsize
        if self._medians is None:
            self._medians = self._tally()
        in_time = [i for i, (_, seconds) in enumerate(self._medians) if seconds <= step_seconds]
        if not in_time:
            return self._fewer(self._medians, step_seconds)
        if in_time[-1] + 1 == len(self._medians):
            return sys.maxsize
        (n, seconds), (more, longer) = self._medians[in_time[-1] :][:2]
        return int(n + (more - n) * (step_seconds - seconds) / (longer - seconds))

    def _tally(self) -> list[tuple[float, float]]:
        """Median number of fresh examples, and of seconds, of batches with about as many, in
        ascending order."""
        alike: dict[int, tuple[list[int], list[float]]] = {}
        for kind, fresh, seconds in self._taken:
            batches = alike.setdefault(kind, ([], []))
            batches[0].append(fresh)
            batches[1].append(seconds)
        return sorted((statistics.median(n), statistics.median(s)) for n, s in alike.values())

    def _fewer(self, medians: list[tuple[float, float]], step_seconds: float) -> int:
        """A number that may be in time, where none of `medians` has been; at least what takes half
        a step by itself, since a host that takes longer than a step in any case gains little by
        handing over less."""
        fixed, each = 0.0, medians[0][1] / medians[0][0]
        if len(medians) > 1:
            each, fixed = statistics.linear_regression(*zip(*medians, strict=True))
        if each <= 0:
            return sys.maxsize
        return max(1, int(max(step_seconds - max(0.0, fixed), step_seconds / 2) / each))


class Pace:
    """Predicts when the device needs its next batch.

    It follows a loop that dispatches step k, then fetches the metrics of step k-1. A call returns
    for how long the next batch can wait without making the device wait: until the earliest end of
    the running step (from the shortest of the last steps), minus the time that the host needs to
    hand over a batch. It is also the `pipeline.auto_streams.HandOver` of the input.

    Args:
        clock: returns seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter):
        self._clock = clock
        self._steps: collections.deque[_Step] = collections.deque()
        self._durations: collections.deque[float] = collections.deque(maxlen=_REMEMBERED_STEPS)
        self._earliest: collections.deque[float] = collections.deque(maxlen=_REMEMBERED_STEPS)
        self._leads: collections.deque[float] = collections.deque(maxlen=_REMEMBERED_STEPS)
        self._needed_at: float | None = None  # when a call first returned 0 or less
        self._hand_over = HandOverTimes()
        # Of the next batch: when the host began it, its fresh examples, and the seconds that it has
        # waited, in all and since it was needed.
        self._begun_at: float | None = None
        self._fresh, self._waited, self._waited_late = 0, 0.0, 0.0

    def __call__(self) -> float:
        """Seconds to wait before asking again; 0 or less if the batch is needed now."""
        now = self._clock()
        left = self._left(now)
        if left <= 0 and self._needed_at is None:
            self._needed_at = now
        return min(left, max(_WAIT_SHARE * left, _MIN_WAIT_SECONDS))

    def most_fresh(self) -> int:
        if self._begun_at is None:
            self._begun_at = self._clock()
            if self._steps and not self._steps[-1].output.is_ready():
                self._steps[-1].seen_running = True
        durations = self._durations or self._earliest
        return self._hand_over.most(statistics.median(durations)) if durations else sys.maxsize

    def waited(self, seconds: float) -> None:
        self._waited += seconds
        if self._needed_at is not None:
            self._waited_late += seconds

    def decided(self, fresh: int) -> None:
        self._fresh = fresh

    def dispatched(self, metrics: dict[str, Any]) -> None:
        """Notes that a step has been dispatched; `metrics` will be passed to `fetch`."""
        now = self._clock()
        needed_at = self._begun_at if self._needed_at is None else self._needed_at
        if needed_at is not None and self._waited_late <= self._lead():
            self._note_unseen_end(needed_at, now)  # else it may have been at any time
        if self._begun_at is not None and self._steps:  # nothing runs during the first batch
            self._hand_over.took(now - self._begun_at - self._waited, self._fresh)
        if self._needed_at is not None:
            self._leads.append(now - self._needed_at)
        self._steps.append(_Step(metrics["loss"], now))
        self._needed_at = self._begun_at = None
        self._waited = self._waited_late = 0.0

    def fetch(self, metrics: dict[str, Any]) -> dict[str, Any]:
        """The values of a step's metrics; waits for the step, and notes when it ended."""
        waits = not all(value.is_ready() for value in metrics.values())
        values = jax.device_get(metrics)
        step = self._steps.popleft()
        if waits:
            self._ended(step)
        return values

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
        if not self._earliest:
            return _MIN_WAIT_SECONDS
        # A batch that is decided early costs neither time nor fresh examples, since what arrives
        # later is in the next one. A late one costs device time.
        return step.start + min(self._earliest) - self._lead() - now

    def _lead(self) -> float:
        """Seconds that the host needs. The median, since some leads include a wait for upstream."""
        return statistics.median(self._leads) if self._leads else 0.0

    def _note_unseen_end(self, needed_at: float, now: float) -> None:
        """Estimates the duration of a step whose end no one saw, since it ended while the next
        batch was prepared. Otherwise steps that are a little shorter than all others seen would
        never count, and the device would wait after each of them."""
        step = self._steps[-1] if self._steps else None
        if step is None or step.end is not None or not step.seen_running:
            return
        if step.output.is_ready():
            self._earliest.append((needed_at + now) / 2 - step.start)

    def _ended(self, step: _Step) -> None:
        now = step.end = self._clock()
        self._durations.append(now - step.start)
        self._earliest.append(now - step.start)
        for later in self._steps:
            if later is not step:
                later.start = max(later.start, now)
