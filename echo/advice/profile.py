"""Measuring what stages cost: wall clock, processor time, and pace with all workers at it."""

import contextlib
import dataclasses
import hashlib
import itertools
import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from echo.advice.cost_model import StageTime

# A measurement is a median over rounds; a round is long enough for a clock and for the small
# credit that rate limits give.
ROUNDS = 9


@dataclasses.dataclass(frozen=True)
class Call:
    """A stage that can be called again and again.

    Attributes:
        inputs: arguments without end.
        examples: that go through one call.
        time: what it was found to cost.
    """

    function: Callable[[Any], Any]
    inputs: Iterator[Any]
    examples: int
    time: StageTime


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

    def burn(number: int) -> None:
        while time.perf_counter() < start + seconds:
            hashlib.sha256(block)  # which lets other threads run

    with _threads(burn, count):
        pass
    used = (time.process_time() - cpu) / (time.perf_counter() - start)
    return min(max(used, 1.0), float(count))


def at_once(
    ahead: Sequence[Call], behind: Sequence[Call], workers: int, seconds: float
) -> tuple[float, float]:
    """(used, found) for Timing.under_contention, while everything runs as fast as it can.

    Args:
        ahead: what `workers` threads call in turn, each of these threads as often as examples go
            through it.
        behind: what this thread calls meanwhile, likewise.
        seconds: to spend, about, and at least until each thread has ended a call; what a call that
            takes longer than this does when the others have stopped is counted as well.
    """
    lock, over = threading.Lock(), threading.Event()
    start, cpu = time.perf_counter(), time.process_time()
    # of each thread, this one last: when its last call ended, what its calls take alone
    ended = [(start, 0.0)] * (workers + 1)

    def run(number: int, calls: Sequence[Call], is_over: Callable[[], bool]) -> None:
        for turn in itertools.count():
            for call in calls:
                if turn % (call.examples // calls[0].examples):
                    continue
                with lock:
                    item = next(call.inputs)
                wait_for(call.function(item))
                worth = ended[number][1] + call.examples * call.time.cpu_seconds
                ended[number] = time.perf_counter(), worth
                if is_over():
                    return

    def enough() -> bool:
        late = time.perf_counter() > start + seconds
        return bool(errors) or (late and all(when > start for when, _ in ended))

    with _threads(lambda number: run(number, ahead, over.is_set), workers) as errors:
        try:
            run(workers, behind, enough)
            used = (time.process_time() - cpu) / (time.perf_counter() - start)
        finally:
            over.set()
    return used, sum(worth / (when - start) for when, worth in ended)


def wait_for(result: Any) -> Any:
    """`result`, once it is there: JAX hands out arrays that are still being computed."""
    jax = sys.modules.get("jax")
    return jax.block_until_ready(result) if jax else result


def _together(
    function: Callable[[Any], Any], inputs: Iterator[Any], workers: int, seconds: float
) -> float:
    """Seconds a call when `workers` threads call at once, without end."""
    lock, ends, start = threading.Lock(), [], time.perf_counter()

    def work(number: int) -> None:
        for turn in itertools.count():
            if turn and time.perf_counter() > start + seconds:
                return
            with lock:
                item = next(inputs)
            wait_for(function(item))
            ends.append(time.perf_counter())

    with _threads(work, workers):
        pass
    return (max(ends) - start) / len(ends)


@contextlib.contextmanager
def _threads(work: Callable[[int], None], count: int) -> Iterator[list[BaseException]]:
    """Runs work(0), work(1), ... each on a thread, and waits for them; gives the list of errors so
    far, the first of which it raises at the end."""
    errors = []

    def guarded(number: int) -> None:
        try:
            work(number)
        except BaseException as error:  # is raised below
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(n,), daemon=True) for n in range(count)]
    for thread in threads:
        thread.start()
    try:
        yield errors
    finally:
        for thread in threads:
            thread.join()
    if errors:
        raise errors[0]
