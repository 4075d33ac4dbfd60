"""Measures the cost of stages: wall time, CPU time, and throughput with all workers."""

import copy
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from echo.advice.inputs import Input
from echo.advice.model import StageTime
from echo.spec import abbreviated

# A measurement is a median over rounds. A round is long enough for the clock's resolution and for
# the small credit that rate limits give.
ROUNDS = 9


def caller(name: str, function: Callable[[Any], Any], inputs: Iterator[Any]) -> Callable[[], Any]:
    """Calls a stage with the next of `inputs`, which have no end, from any thread. It returns once
    the result is computed: JAX and CUDA return before."""
    lock = threading.Lock()

    def call() -> Any:
        with lock:
            item = next(inputs)
        try:
            result = function(item)
            if jax := sys.modules.get("jax"):
                jax.block_until_ready(result)
            if (torch := sys.modules.get("torch")) and torch.cuda.is_initialized():
                torch.cuda.synchronize()
            return result
        except Exception as error:
            error.add_note(
                f"Raised by the stage {name!r}, called with {abbreviated(item)}. Several threads "
                "call a stage; the calls of the first one are numbered without end."
            )
            raise

    return call


def stage_time(
    name: str, call: Callable[[], Any], seconds: float, outputs: int, source: Input | None = None
) -> tuple[StageTime, list[Any]]:
    """The cost of a call by one thread and, for a stage of `source`, by the most workers at once
    (those that it has, if a call takes long), in about `seconds`, or a few calls; and the results
    of the first calls: as many as `outputs`, or fewer if one thread made fewer.

    Workers that are processes share no lock: what computes takes each as long as one alone.
    """
    workers, most = (source.workers or 1, source.max_workers) if source else (1, 1)
    results, share = [], seconds / 2 if most > 1 else seconds

    def once() -> None:
        result = call()
        if len(results) < outputs:
            results.append(result)

    walls, cpus = zip(*rounds(once, share, outputs), strict=True)
    median, cpu = statistics.median(walls), statistics.median(cpus)
    limit, threads = median, workers if median > share else most
    if source and source.processes and cpu > median / 2:
        limit = median / most
    elif threads > 1:
        limit = min(median, seconds_at_once(call, threads, share))
    return StageTime(name, median, cpu, limit, min(walls), max(walls)), results


def rounds(call: Callable[[], Any], seconds: float, warm_up: int = 1) -> list[tuple[float, float]]:
    """(wall seconds, processor seconds) per call in each round, which all take about `seconds`, or
    two calls. As long take up to `warm_up` calls before, which are not measured: the first may
    compile or fill a cache, and some may have been read ahead.
    """
    clock, results = time.perf_counter, []
    end = clock() + seconds
    for _ in range(warm_up):
        call()
        if clock() > end:
            break
    end = clock() + 2 * seconds
    while len(results) < ROUNDS and (len(results) < 2 or clock() < end):
        count, start, cpu = 0, clock(), time.process_time()
        while (wall := clock() - start) < seconds / ROUNDS or not count:
            call()
            count += 1
        results.append((wall / count, (time.process_time() - cpu) / count))
    return results


def seconds_at_once(call: Callable[[], Any], threads: int, seconds: float) -> float:
    """Seconds per call with so many threads, which call for `seconds` and at least once each."""
    begun, start = threading.Barrier(threads), time.perf_counter()

    def run(_: int) -> int:
        begun.wait()  # or a thread could take the turn of another one, too
        count = 0
        while not count or time.perf_counter() < start + seconds:
            call()
            count += 1
        return count

    with ThreadPoolExecutor(threads) as pool:
        counts = list(pool.map(run, range(threads)))
    return (time.perf_counter() - start) / sum(counts)


def renewed(item: Any) -> Any:
    """`item` in a new dict or list, for a function that changes its argument."""
    return copy.copy(item) if isinstance(item, dict | list) else item
