"""What the benchmarks of wall time share: upstreams of a known speed, and a device of one."""

import hashlib
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from configs import cifar10
from pipeline import build
from training import experiment
from training import transfer as inputs

STEP_SECONDS = 0.016  # of the step that takes a fixed time
HAND_OVER_SECONDS = 0.001  # for a batch to be made and handed over


class FixedStep:
    """A device that needs `seconds` a step, and is fed as training feeds one: the next step is
    handed over while the last one runs."""

    def __init__(self, seconds: float):
        self._seconds, self._ends = seconds, 0.0

    def __call__(self, batch: Any) -> None:
        now, runs_until = time.perf_counter(), self._ends
        self._ends = max(now, runs_until) + self._seconds
        if runs_until > now:
            time.sleep(runs_until - now)

    def slack(self) -> float:
        """Seconds until the next batch is needed; see training/auto_policy.py."""
        return min(0.001, self._ends - HAND_OVER_SECONDS - time.perf_counter())


class Hashing:
    """A source whose records cost processor time, on as many cores as threads ask for them."""

    def __init__(self, source, seconds: float):
        self._source = source
        took = []
        for _ in range(7):  # the first one is slow
            start = time.process_time()
            _hash(100_000)
            took.append(time.process_time() - start)
        self._count = max(1, round(100_000 * seconds / statistics.median(took)))

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices) -> list[dict[str, Any]]:
        for _ in indices:
            _hash(self._count)
        return self._source.__getitems__(indices)


def _hash(count: int) -> None:
    hashlib.pbkdf2_hmac("sha256", b"upstream", b"salt", count)  # lets other threads run


def configuration(upstream: str, ratio: int, step_seconds: float):
    config = cifar10.get_config("mini")
    config.budget.fresh_examples = 10**8
    config.echo.insertion = "before_augmentation"
    if upstream != "cpu":
        config.upstream.examples_per_second = config.batch_size / (ratio * step_seconds)
        config.upstream.http = upstream == "http"
    return config


def measured(
    config,
    opened: experiment.Opened,
    step: Callable[[Any], Any],
    seconds: float,
    transfer: Callable[[Any], Any] | None = None,
) -> float:
    """Steps a second once the pipeline runs steadily.

    Args:
        transfer: brings a batch to the devices; None does it as training does.
    """
    workload, mesh, held = (
        opened.program.task.workload,
        opened.program.task.mesh,
        opened.held_streams,
    )
    slack = step.slack if isinstance(step, FixedStep) else None
    batches = build.build(config, opened.source, workload, held, slack)
    if transfer is None:
        first = build.first_example(config, opened.source, workload)
        transfer = inputs.make_input(config, first, workload, mesh, held).put
    iterator, ends = iter(batches), []
    try:
        begin = time.perf_counter()
        while (now := time.perf_counter()) < begin + 1.3 * seconds or len(ends) < 12:
            if now > begin + 0.3 * seconds:
                ends.append(now)
            step(transfer(next(iterator)))
    finally:
        iterator.close()
    # The slope, since chunks of examples make steps come in bursts.
    return float(np.polyfit(ends, np.arange(len(ends)), 1)[0])
