"""A slow upstream on purpose: limits, latency and stalls before a source, and a watch over it.

Storage that is slower than the accelerator is what echoing is for. Here its speed is a setting, so
that a claim about wall-clock time can be tried anywhere.
"""

import concurrent.futures
import contextlib
import dataclasses
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from data import sources
from data.sources import Source
from echo.tree import Structure

# A sleep takes a little longer than asked for. So much of the time that a line was not used is
# made up for, which keeps its rate; and waits too short to sleep for are left to add up.
_CREDIT_SECONDS = 0.02
_SHORTEST_SLEEP = 0.001
_ROUNDING = 1e-9  # seconds that may be left by adding up floats


class UpstreamError(Exception):
    """The upstream gives no more examples; the message says why."""


class Stalled(UpstreamError):
    """No example has come for longer than config.upstream.timeout."""


@dataclasses.dataclass(frozen=True)
class Limits:
    """How slow an upstream is; 0 = unlimited, or off.

    Attributes:
        examples_per_second, bytes_per_second: of all that ask together.
        latency_seconds: of each request; those of several requests pass side by side.
        stall_every_seconds, stall_seconds: after so many seconds nothing comes for so many.
        jitter: share, in [0, 1], by which latencies and the times between stalls vary.
        seed: of that.
    """

    examples_per_second: float = 0.0
    bytes_per_second: float = 0.0
    latency_seconds: float = 0.0
    stall_every_seconds: float = 0.0
    stall_seconds: float = 0.0
    jitter: float = 0.0
    seed: int = 0

    @property
    def none(self) -> bool:
        """Whether nothing is limited."""
        return self == Limits(jitter=self.jitter, seed=self.seed)

    def seconds_of(self, size: int) -> float:
        """How long a record of `size` bytes takes at least, without jitter."""
        of_bytes = size / self.bytes_per_second if self.bytes_per_second else 0.0
        of_example = 1 / self.examples_per_second if self.examples_per_second else 0.0
        passing = max(of_bytes, of_example)
        stalls = passing // self.stall_every_seconds if self.stall_every_seconds else 0
        return self.latency_seconds + passing + stalls * self.stall_seconds

    def shared_by(self, processes: int) -> "Limits":
        """The part of each of several processes that read equally much."""
        return dataclasses.replace(
            self,
            examples_per_second=self.examples_per_second / processes,
            bytes_per_second=self.bytes_per_second / processes,
        )


class StoppableClock:
    """Seconds that pass unless it is stopped; several threads may ask it and stop it.

    A limited upstream goes by it and stands still while its run does not train: what came during an
    evaluation would cost no seconds of training, and R would not be what the limits say. So nothing
    that is done while it is stopped may wait for a training example.

    Args:
        clock, sleep: seconds that always pass, and waiting for some to.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ):
        self._clock, self._sleep, self._lock = clock, sleep, threading.Lock()
        self._stops, self._stopped_at, self._left_out = 0, 0.0, 0.0
        self._passes = threading.Event()  # unless it is stopped
        self._passes.set()

    def __call__(self) -> float:
        with self._lock:
            return (self._stopped_at if self._stops else self._clock()) - self._left_out

    def sleep(self, seconds: float) -> None:
        """Returns once so many of its seconds have passed."""
        until = self() + seconds
        while (left := until - self()) > _ROUNDING:
            self._passes.wait()
            self._sleep(left)

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """Time in here does not pass."""
        with self._lock:
            if not self._stops:
                self._stopped_at = self._clock()
            self._stops += 1
            self._passes.clear()
        try:
            yield
        finally:
            with self._lock:
                self._stops -= 1
                if not self._stops:
                    self._left_out += self._clock() - self._stopped_at
                    self._passes.set()


class RateLimiter:
    """What all records pass, one after another, at the speed that `limits` allow.

    Args:
        clock, sleep: seconds that pass, and waiting for some to.
    """

    def __init__(
        self,
        limits: Limits,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ):
        self._limits, self._clock, self._sleep = limits, clock, sleep
        self._latencies = np.random.default_rng([limits.seed, 0])
        self._stalls = np.random.default_rng([limits.seed, 1])
        self._line = threading.Lock()  # held by the request whose records are passing
        self._latency_lock = threading.Lock()
        self._free = -math.inf  # when the last record is through
        self._stall = (math.inf, math.inf)  # the next one, from and to

    def passed(self, sizes: Sequence[int]) -> Iterator[int]:
        """The numbers 0, 1, ... of a request's records, each when it has come through.

        Args:
            sizes: the records' bytes.
        """
        latency = self._latency()
        if latency:
            self._sleep(latency)
        with self._line:
            for number, size in enumerate(sizes):
                self._wait_for(size)
                yield number

    def _wait_for(self, size: int) -> None:
        now = self._clock()
        if self._free == -math.inf:
            self._free, self._stall = now, self._stall_after(now)
        limits = self._limits
        seconds = 1 / limits.examples_per_second if limits.examples_per_second else 0.0
        if limits.bytes_per_second:
            seconds = max(seconds, size / limits.bytes_per_second)
        self._free = self._served(max(self._free, now - _CREDIT_SECONDS), seconds)
        if self._free - now > _SHORTEST_SLEEP:
            self._sleep(self._free - now)

    def _served(self, start: float, seconds: float) -> float:
        """When `seconds` of work that begin at `start` are done, stalls in between."""
        while start + seconds > self._stall[0]:
            begin, end = self._stall
            if start < end:
                seconds -= max(0.0, begin - start)
                start = end
            self._stall = self._stall_after(end)
        return start + seconds

    def _stall_after(self, moment: float) -> tuple[float, float]:
        if not self._limits.stall_seconds:
            return math.inf, math.inf
        begin = moment + self._varied(self._limits.stall_every_seconds, self._stalls)
        return begin, begin + self._limits.stall_seconds

    def _latency(self) -> float:
        with self._latency_lock:
            return self._varied(self._limits.latency_seconds, self._latencies)

    def _varied(self, seconds: float, random: np.random.Generator) -> float:
        return seconds * (1 + self._limits.jitter * random.uniform(-1, 1))


class SlowSource:
    """A source whose records pass a rate limiter.

    Args:
        arrived: is called as each record comes through.
    """

    def __init__(
        self, source: Source, limiter: RateLimiter, arrived: Callable[[], None] = lambda: None
    ):
        self._source, self._limiter, self._arrived = source, limiter, arrived

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        records = self._source.__getitems__(indices)
        for _ in self._limiter.passed([record_bytes(record) for record in records]):
            self._arrived()
        return records

    def where(self, number: int) -> str:
        """How a sentence names record `number`."""
        return sources.where(self._source, number)


class TimeoutSource:
    """A source that raises Stalled once nothing has come for `timeout` seconds.

    A request that is late is left to itself, on a thread of its own: it may never come back.

    Args:
        opened: makes the source; its argument is a function to call whenever an example arrives.
        timeout: seconds.
        clock: of those.
    """

    def __init__(
        self,
        opened: Callable[[Callable[[], None]], Source],
        timeout: float,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._timeout, self._clock = timeout, clock
        self._arrived()
        self._source = opened(self._arrived)

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        began = self._clock()
        request = _on_a_thread(self._source.__getitems__, indices)
        while not request.done():
            left = max(began, self._last) + self._timeout - self._clock()
            if left <= 0:
                raise Stalled(
                    f"no example has come from upstream for {self._timeout:g} s "
                    f"(config.upstream.timeout) while record {indices[0]} and "
                    f"{len(indices) - 1} others of the training split were waited for"
                )
            concurrent.futures.wait([request], left)
        self._arrived()
        return request.result()

    def where(self, number: int) -> str:
        """How a sentence names record `number`."""
        return sources.where(self._source, number)

    def _arrived(self) -> None:
        self._last = self._clock()


def _on_a_thread(function: Callable, argument: Any) -> concurrent.futures.Future:
    future: concurrent.futures.Future = concurrent.futures.Future()

    def run():
        try:
            future.set_result(function(argument))
        except BaseException as error:  # is raised where the result is asked for
            future.set_exception(error)

    threading.Thread(target=run, name="upstream", daemon=True).start()
    return future


def record_bytes(record: dict[str, Any]) -> int:
    """Bytes of a record's fields."""
    leaves = Structure(record).leaves(record)
    return sum(len(x) if isinstance(x, bytes | str) else np.asarray(x).nbytes for x in leaves)
