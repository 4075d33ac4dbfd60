"""Steps per second over a grid of upstreams and echo factors: the pipeline, the loop, the tables.

The digits mini is read through the real pipeline and echoed before augmentation. Its upstream is
`limited` (a rate limit) or `cpu` (hashing, on the cores that everything else needs too). A step
takes a fixed time, like a step on an accelerator.
"""

import collections
import dataclasses
import hashlib
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import numpy as np
from ml_collections import ConfigDict

from benchmarks import common
from configs import catalog, cifar10
from pipeline import build
from pipeline.map_datasets import CORES
from pipeline.streams import AutoPolicy
from training.experiment import Experiment
from training.transfer import make_transfer

UPSTREAMS = ("limited", "cpu")
FACTORS = (1, 2, 3, 4, 5, 6, 8)
STEP_SECONDS = 0.016  # of the step that takes a fixed time
MAX_FACTOR = 16  # of `auto`: steps per second count, whatever a repeat is worth
HANDOVER_SECONDS = 0.001  # to assemble a batch and hand it to the step, before it is measured

Factor = int | str  # an echo factor, or "auto"
Row = TypeVar("Row")
Value = TypeVar("Value")


# --- an upstream and a step of known speed


def configuration(
    upstream: str, ratio: float, factor: Factor = 1, buffer_batches: int = 0
) -> ConfigDict:
    """The digits mini behind an upstream that is `ratio` times slower than the step.

    For `cpu` the limit is set by `cpu_bound`.
    """
    config = cifar10.get_config("mini")
    config.budget.fresh_examples = 10**8
    buffer = buffer_batches * config.batch_size
    config.update_from_flattened_dict(
        catalog.auto(MAX_FACTOR, buffer)
        if factor == "auto"
        else catalog.echo("before_augmentation", float(factor), buffer)
    )
    if upstream != "cpu":
        config.upstream.examples_per_second = config.batch_size / (ratio * STEP_SECONDS)
    return config


def cpu_bound(opened: Experiment, config: ConfigDict, seconds_per_batch: float) -> Experiment:
    """`opened`, with a source that needs so long for a batch when it has all cores."""
    seconds = seconds_per_batch / config.batch_size * CORES
    return dataclasses.replace(opened, source=HashingSource(opened.source, seconds))


class HashingSource:
    """A source that spends CPU time on every record, in the thread that reads it."""

    def __init__(self, source: Any, seconds_per_record: float):
        self._source = source
        seconds = []
        for _ in range(7):  # the first one is slow
            start = time.process_time()
            _hash(100_000)
            seconds.append(time.process_time() - start)
        self._count = max(1, round(100_000 * seconds_per_record / statistics.median(seconds)))

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices) -> list[dict[str, Any]]:
        for _ in indices:
            _hash(self._count)
        return self._source.__getitems__(indices)


def _hash(count: int) -> None:
    hashlib.pbkdf2_hmac("sha256", b"upstream", b"salt", count)  # releases the GIL


class FixedStep:
    """A device whose step takes `seconds`. As in training, the next step is dispatched while the
    current one runs, and the time that the host needs to hand over a batch is measured."""

    def __init__(self, seconds: float = STEP_SECONDS):
        self._seconds, self._busy_until = seconds, 0.0
        self._needed_at: float | None = None  # when a batch was first required at once
        self._leads = collections.deque([HANDOVER_SECONDS], maxlen=33)

    def __call__(self, batch: Any) -> None:
        now, busy_until = time.perf_counter(), self._busy_until
        if self._needed_at is not None:
            self._leads.append(now - self._needed_at)
            self._needed_at = None
        self._busy_until = max(now, busy_until) + self._seconds
        if busy_until > now:
            time.sleep(busy_until - now)

    def slack(self) -> float:
        """Seconds until the next batch is needed; see training/auto_policy.py."""
        now = time.perf_counter()
        left = self._busy_until - statistics.median(self._leads) - now
        if left <= 0 and self._needed_at is None:
            self._needed_at = now
        return min(0.001, left)


def steps_per_second(
    config: ConfigDict,
    opened: Experiment,
    step: Callable[[Any], Any],
    seconds: float,
    send: Callable[[Any], Any] | None = None,
) -> float:
    """Steps per second in steady state.

    Args:
        config: the configuration.
        opened: its data and programs.
        step: trains on a batch on the devices.
        seconds: duration of the measurement, after 0.3 times as long to warm up.
        send: brings a batch to the devices; None for what training uses.
    """
    task, held = opened.program.task, opened.held_streams
    slack = step.slack if isinstance(step, FixedStep) else None
    streams = AutoPolicy(config, slack) if config.echo.policy == "auto" else None
    batches = build.build(config, opened.source, task.workload, held, streams)
    if send is None:
        send = make_transfer(config, opened.first, task.workload, task.mesh, held).put
    iterator, times = iter(batches), []
    try:
        begin = time.perf_counter()
        while (now := time.perf_counter()) < begin + 1.3 * seconds or len(times) < 12:
            if now > begin + 0.3 * seconds:
                times.append(now)
            step(send(next(iterator)))
    finally:
        iterator.close()
    # The slope of a line: examples arrive in chunks, so steps come in bursts.
    return float(np.polyfit(times, np.arange(len(times)), 1)[0])


# --- the grid


def measure(
    rows: Iterable[Row],
    rounds: int,
    prepare: Callable[[Row], Callable[[int], Mapping[Factor, Value]]],
    title: str = "",
) -> dict[Row, dict[Factor, list[Value]]]:
    """Measures a grid row by row; within a row, each round measures every factor once.

    Args:
        rows: values of R, or other descriptions of the upstream.
        rounds: rounds per row.
        prepare: given a row, returns a function that measures one round: its values by factor,
            given the round's number among those of all rows.
        title: for progress messages.

    Returns:
        The values of all rounds, by row and factor.
    """
    grid = {}
    for row in rows:
        one_round, results = prepare(row), []
        for number in range(rounds):
            results.append(one_round(rounds * len(grid) + number))
            common.progress(f"{title} {row}, round {number + 1} of {rounds}: {results[-1]}")
        grid[row] = {factor: [result[factor] for result in results] for factor in results[0]}
    return grid


def table(grid: Mapping[int, Mapping[Factor, Any]], text: Callable[[Any], str]) -> str:
    """A row per R and a column per factor, as Markdown."""
    factors = next(iter(grid.values()))
    header = ["R", *(f if isinstance(f, str) else f"e = {f}" for f in factors)]
    rows = [[str(ratio), *map(text, cells.values())] for ratio, cells in grid.items()]
    return common.markdown_table(header, rows)
