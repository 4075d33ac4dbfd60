"""Measures the cost of stages: wall time, CPU time, and throughput with all workers."""

import copy
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from echo.advice.model import StageTime
from echo.spec import abbreviated

# A measurement is a median over rounds. A round is long enough for the clock's resolution and for
# the small credit that rate limits give.
ROUNDS = 9

# Threads that make a call cheaper by less than this factor wait for each other.
_WORTH_MORE_THREADS = 1.2


class Call(NamedTuple):
    """A stage that can be called repeatedly.

    Attributes:
        inputs: arguments without end.
        examples: examples per call.
    """

    name: str
    function: Callable[[Any], Any]
    inputs: Iterator[Any]
    examples: int

    def once(self, lock: threading.Lock) -> Any:
        """The result, once it is computed: JAX and CUDA return before it is."""
        with lock:
            item = next(self.inputs)
        try:
            result = self.function(item)
            if jax := sys.modules.get("jax"):
                jax.block_until_ready(result)
            if (torch := sys.modules.get("torch")) and torch.cuda.is_initialized():
                torch.cuda.synchronize()
            return result
        except Exception as error:
            error.add_note(
                f"Raised by the stage {self.name!r}, called with {abbreviated(item)}. Stages are "
                "called from several threads; the calls of the first one are numbered without end."
            )
            raise


def stage_time(
    call: Call, seconds: float, workers: int = 1, max_workers: int = 0, num_outputs: int = 1
) -> tuple[StageTime, list[Any]]:
    """Measures a stage, called by one thread and then by `workers` and `max_workers` at once.

    It takes about `seconds`, and more only if three calls take longer. Returns the cost and the
    results of the first calls: `num_outputs`, or fewer if one thread made fewer calls.
    """
    counts = [workers] * (workers > 1) + [max_workers] * (max_workers > workers)
    share = seconds / (1 + len(counts))
    outputs, lock = [], threading.Lock()

    def once() -> None:
        result = call.once(lock)
        if len(outputs) < num_outputs:
            outputs.append(result)

    alone = rounds(once, share, num_outputs)
    wall = sorted(seconds for seconds, _ in alone)
    cpu = statistics.median(cpu for _, cpu in alone)
    by_count = {1: statistics.median(wall)}
    for count in counts:
        by_count[count] = seconds_at_once(call, count, share)
        # Behind a rate limit, many threads would take as long as that many long calls in turn.
        if by_count[1] > share and by_count[count] * _WORTH_MORE_THREADS > by_count[1]:
            break
    limit = min(wall for count, wall in by_count.items() if count <= max(1, workers))
    more = by_count.get(max_workers) if max_workers > workers else None
    cost = StageTime(call.name, by_count[1], cpu, limit, wall[0], wall[-1], more)
    return cost.scaled(1 / call.examples), outputs


def rounds(call: Callable[[], Any], seconds: float, warm_up: int = 1) -> list[tuple[float, float]]:
    """(wall seconds, processor seconds) per call in each round, after `warm_up` calls that are not
    measured.

    All rounds together take about `seconds`. After three calls in succession of which each takes
    longer than that, there are no more; the last two of them are then among the rounds, since only
    the first may be slow because it compiles or fills a cache.
    """
    results = []
    while len(results) < warm_up + ROUNDS:
        length = 0 if len(results) < warm_up else seconds / ROUNDS
        count, start, cpu = 0, time.perf_counter(), time.process_time()
        while (wall := time.perf_counter() - start) < length or not count:
            call()
            count += 1
        results.append((wall / count, (time.process_time() - cpu) / count))
        if len(results) >= 3 and min(wall for wall, _ in results[-3:]) > seconds:
            break
    return results[min(warm_up, len(results) - 2) :]


def seconds_at_once(call: Call, threads: int, seconds: float) -> float:
    """Seconds per call with so many threads, which call for `seconds` and at least once each."""
    lock, begun, start = threading.Lock(), threading.Barrier(threads), time.perf_counter()

    def run(_: int) -> tuple[int, float]:
        begun.wait()  # or a thread could take the turn of another one, too
        count = 0
        while not count or time.perf_counter() < start + seconds:
            call.once(lock)
            count += 1
        return count, time.perf_counter()

    with ThreadPoolExecutor(threads) as pool:
        counts, ends = zip(*pool.map(run, range(threads)), strict=True)
    return (max(ends) - start) / sum(counts)


def renewed(item: Any) -> Any:
    """`item` in new dicts, lists, and tuples, for a function that changes its argument; their
    leaves are shared."""
    if isinstance(item, dict):
        new = copy.copy(item)
        for key, value in item.items():
            new[key] = renewed(value)
        return new
    if isinstance(item, list | tuple):
        return getattr(type(item), "_make", type(item))(map(renewed, item))  # of a named tuple
    return item
