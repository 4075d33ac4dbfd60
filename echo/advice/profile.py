"""Measures the cost of stages: wall time, CPU time, and throughput with all workers."""

import collections
import copy
import dataclasses
import hashlib
import itertools
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from echo import threads
from echo.advice.cost_model import StageTime

# A measurement is a median over rounds. A round is long enough for the clock's resolution and for
# the small credit that rate limits give.
ROUNDS = 9

# Twice as many threads that make a call cheaper by less than this factor wait for each other.
_WORTH_DOUBLING = 1.2

_NUMBERED = (
    "If this is the number of a call: it grows without end, so an index into a list needs a "
    "modulo, as in files[i % len(files)]."
)
_IN_THREAD = (
    "The stages are called from several threads. If one can only be used in the thread that made "
    "it, give (batch for _ in itertools.count() for batch in loader), and the number of cores "
    "(cores=N): this measures R without threads."
)


@dataclasses.dataclass(frozen=True)
class Call:
    """A stage that can be called repeatedly.

    Attributes:
        inputs: endless arguments.
        examples: examples per call.
        time: its measured cost.
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
    max_workers: int = 0,
    num_outputs: int = 0,
) -> tuple[StageTime, list[Any]]:
    """Measures `function`, called by one thread and then by `workers` threads at once.

    Args:
        name: of the stage.
        function: thread-safe; if it returns JAX arrays, they are waited for.
        inputs: endless arguments.
        examples: examples per call.
        workers: threads.
        seconds: how long to measure, approximately; longer only if three calls take longer.
        max_workers: threads with which to measure once more, if there are more than `workers`.
        num_outputs: results to return.

    Returns:
        The cost, and the results of the first calls: `num_outputs`, or those of all calls by one
        thread if there were fewer.
    """
    counts = [workers] * (workers > 1) + [max_workers] * (max_workers > workers)
    share = seconds / (1 + len(counts))
    outputs = []

    def call() -> None:
        result = called(name, function, next(inputs))
        if len(outputs) < num_outputs:
            outputs.append(result)

    alone = rounds(call, share, max(1, num_outputs))
    wall = sorted(seconds for seconds, _ in alone)
    median_wall = statistics.median(wall)
    cpu = statistics.median(cpu for _, cpu in alone)
    parallel = _seconds_by_threads(name, function, inputs, counts, median_wall, share)
    of_more = parallel.get(max_workers) if max_workers > workers else None
    cost = StageTime(
        name=name,
        seconds=median_wall / examples,
        cpu_seconds=cpu / examples,
        limit=min(wall for count, wall in parallel.items() if count <= workers) / examples,
        low=wall[0] / examples,
        high=wall[-1] / examples,
        limit_of_more=None if of_more is None else of_more / examples,
    )
    return cost, outputs


def rounds(call: Callable[[], Any], seconds: float, warm_up: int = 1) -> list[tuple[float, float]]:
    """(wall seconds, processor seconds) per call in each round, after `warm_up` calls that are not
    measured.

    All rounds together take about `seconds`. After three calls in succession of which each takes
    longer than that, there are no more; the last two of them are then among the rounds, since only
    the first may be slow because it compiles or fills a cache.
    """
    results = []
    while len(results) < warm_up + ROUNDS:
        results.append(_round(call, 0 if len(results) < warm_up else seconds / ROUNDS))
        if len(results) >= 3 and min(wall for wall, _ in results[-3:]) > seconds:
            break
    return results[min(warm_up, len(results) - 2) :]


def available_cores(seconds: float) -> float:
    """Measures how many processor cores this process gets if it uses all. A quota or other
    processes make that fewer than the machine has; it is at least 1."""
    count = threads.usable_cores()
    block, start, cpu = bytes(2**18), time.perf_counter(), time.process_time()

    def burn(number: int) -> None:
        while time.perf_counter() < start + seconds:
            hashlib.sha256(block)  # releases the interpreter's lock

    with threads.running(burn, count):
        pass
    used = (time.process_time() - cpu) / (time.perf_counter() - start)
    return min(max(used, 1.0), float(count))


def contention(
    ahead: Sequence[Call], behind: Sequence[Call], workers: int, seconds: float
) -> tuple[float, float]:
    """Measures (used, useful) for Timing.under_contention, while everything runs at full speed.

    Args:
        ahead: what each of `workers` threads calls in turn, in proportion to the examples per call.
        behind: what this thread calls meanwhile, in the same proportion.
        workers: threads.
        seconds: how long to measure, approximately; in any case until each thread has completed a
            call. A longer call that completes after the others have stopped counts too.
    """
    lock, over = threading.Lock(), threading.Event()
    start, cpu = time.perf_counter(), time.process_time()
    # For each thread, this one last: when its last call ended, seconds that its calls take alone.
    progress = [(start, 0.0)] * (workers + 1)

    def run(number: int, calls: Sequence[Call], is_over: Callable[[], bool]) -> None:
        for turn in itertools.count():
            for call in calls:
                if turn % (call.examples // calls[0].examples):
                    continue
                with lock:
                    item = next(call.inputs)
                called(call.time.name, call.function, item, in_thread=number < workers)
                alone = progress[number][1] + call.examples * call.time.cpu_seconds
                progress[number] = time.perf_counter(), alone
                if is_over():
                    return

    with threads.running(lambda number: run(number, ahead, over.is_set), workers) as workers_done:

        def enough() -> bool:
            failed = any(future.done() for future in workers_done)  # they end only by an error
            late = time.perf_counter() > start + seconds
            return failed or (late and all(ended > start for ended, _ in progress))

        try:
            run(workers, behind, enough)
            used = (time.process_time() - cpu) / (time.perf_counter() - start)
        finally:
            over.set()
    return used, sum(alone / (ended - start) for ended, alone in progress)


def called(name: str, function: Callable[[Any], Any], item: Any, in_thread: bool = False) -> Any:
    """The result of a stage, once it is computed. An error gets a note that says where it arose."""
    try:
        return wait_for(function(item))
    except Exception as error:
        number = isinstance(item, int)
        explained = bool(getattr(error, "__notes__", ()))  # by a stage that knows its example
        error.add_note(f"Raised by the stage {name!r}" + f", called with {item}" * number)
        if number and isinstance(error, LookupError) and not explained:
            error.add_note(_NUMBERED)
        if in_thread:
            error.add_note(_IN_THREAD)
        raise


def wait_for(result: Any) -> Any:
    """Waits until `result` is computed: JAX returns arrays before they are, and PIL images that it
    has only opened, which would be decoded once however often they are used."""
    if "PIL" in sys.modules:
        _load_images(result)
    if jax := sys.modules.get("jax"):
        try:
            leaves = jax.tree.leaves(result)
        except Exception:  # JAX made no such thing, for example a dict with keys of several types
            return result
        jax.block_until_ready(leaves)
    return result


def _load_images(item: Any) -> None:
    if isinstance(item, Mapping):
        item = tuple(item.values())
    if isinstance(item, tuple | list):
        for part in item:
            _load_images(part)
    elif hasattr(item, "getbands"):
        item.load()


def renewed(item: Any) -> Any:
    """`item` in new dicts and lists, for a function that changes its argument; their leaves are
    shared."""
    if type(item) is dict:
        return {key: renewed(value) for key, value in item.items()}
    if type(item) in (list, tuple):
        return type(item)(map(renewed, item))
    if isinstance(item, tuple) and hasattr(item, "_fields"):
        return type(item)(*map(renewed, item))
    if isinstance(item, dict | collections.UserDict):
        copied = copy.copy(item)
        for key, value in item.items():
            copied[key] = renewed(value)
        return copied
    return item


def _round(call: Callable[[], Any], seconds: float) -> tuple[float, float]:
    """(wall seconds, processor seconds) per call while calling for so long, at least once."""
    count, start, cpu = 0, time.perf_counter(), time.process_time()
    while (wall := time.perf_counter() - start) < seconds or not count:
        call()
        count += 1
    return wall / count, (time.process_time() - cpu) / count


def _seconds_by_threads(
    name: str,
    function: Callable[[Any], Any],
    inputs: Iterator[Any],
    counts: Sequence[int],
    alone: float,
    seconds: float,
) -> dict[int, float]:
    """Seconds per call by the number of threads: `alone` for one, and measured for `counts`.

    Where a call takes longer than `seconds`, each thread makes one, and their number doubles until
    that gains too little; further numbers are left out. Behind a rate limit, all threads at once
    would take as long as that many calls in turn.
    """
    slow, measured = alone > seconds, {1: alone}
    if slow and counts:
        counts = sorted({2**n for n in range(1, counts[-1].bit_length())}.union(counts))
    for count in counts:
        per_call = _seconds_per_parallel_call(name, function, inputs, count, seconds)
        half = measured[max(earlier for earlier in measured if 2 * earlier <= count)]
        measured[count] = per_call
        if slow and per_call * _WORTH_DOUBLING > half:
            break
    return measured


def _seconds_per_parallel_call(
    name: str, function: Callable[[Any], Any], inputs: Iterator[Any], workers: int, seconds: float
) -> float:
    """Seconds per call while `workers` threads call without pause."""
    lock, ends, start = threading.Lock(), [], time.perf_counter()

    def work(number: int) -> None:
        for turn in itertools.count():
            if turn and time.perf_counter() > start + seconds:
                return
            with lock:
                item = next(inputs)
            called(name, function, item, in_thread=True)
            ends.append(time.perf_counter())

    with threads.running(work, workers):
        pass
    return (max(ends) - start) / len(ends)
