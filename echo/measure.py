"""Measuring what stages cost: wall clock, processor time, and pace with all workers at it."""

import hashlib
import itertools
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

from echo.timing import StageTime

# A measurement is a median over rounds; a round is long enough for a clock and for the small
# credit that rate limits give.
ROUNDS = 9


def stage_time(
    name: str,
    function: Callable[[Any], Any],
    inputs: Iterator[Any],
    examples: int,
    workers: int,
    seconds: float,
) -> StageTime:
    """What `function` costs, called on `inputs` one after another and then by `workers` at once.

    Args:
        function: is called from several threads; what it returns is waited for if JAX made it.
        inputs: arguments without end.
        examples: how many examples go through one call.
        seconds: to spend, about.
    """
    share = seconds if workers == 1 else seconds / 2
    alone = rounds(lambda: wait_for(function(next(inputs))), share)
    wall = sorted(seconds for seconds, _ in alone)
    one = statistics.median(wall)
    cpu = statistics.median(cpu for _, cpu in alone)
    together = one if workers == 1 else _together(function, inputs, workers, share)
    return StageTime(
        name=name,
        seconds=one / examples,
        cpu_seconds=cpu / examples,
        limit=min(one, together) / examples,
        low=wall[0] / examples,
        high=wall[-1] / examples,
    )


def rounds(call: Callable[[], Any], seconds: float) -> list[tuple[float, float]]:
    """(wall-clock seconds, processor seconds) a call, of each round, after a first call."""
    call()
    found = []
    for _ in range(ROUNDS):
        count, start, cpu = 0, time.perf_counter(), time.process_time()
        while (wall := time.perf_counter() - start) < seconds / ROUNDS or not count:
            call()
            count += 1
        found.append((wall / count, (time.process_time() - cpu) / count))
    return found


def available_cores(seconds: float) -> float:
    """Processor cores that this process gets when it asks for all: fewer than the machine has
    where a quota or other processes take some, and at least one."""
    has_affinity = hasattr(os, "sched_getaffinity")
    count = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    block, start, cpu = bytes(2**18), time.perf_counter(), time.process_time()

    def burn() -> None:
        while time.perf_counter() < start + seconds:
            hashlib.sha256(block)  # which lets other threads run

    threads = [threading.Thread(target=burn, daemon=True) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    used = (time.process_time() - cpu) / (time.perf_counter() - start)
    return min(max(used, 1.0), float(count))


def wait_for(result: Any) -> Any:
    """`result`, once it is there: JAX hands out arrays that are still being computed."""
    jax = sys.modules.get("jax")
    return jax.block_until_ready(result) if jax else result


def _together(
    function: Callable[[Any], Any], inputs: Iterator[Any], workers: int, seconds: float
) -> float:
    """Seconds a call when `workers` threads call at once, without end."""
    lock, ends, errors = threading.Lock(), [], []
    stop = time.perf_counter() + seconds

    def work() -> None:
        try:
            for turn in itertools.count():
                if turn and time.perf_counter() > stop:
                    return
                with lock:
                    item = next(inputs)
                wait_for(function(item))
                ends.append(time.perf_counter())
        except BaseException as error:  # is raised below
            errors.append(error)

    threads = [threading.Thread(target=work, daemon=True) for _ in range(workers)]
    start = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return (max(ends) - start) / len(ends)
