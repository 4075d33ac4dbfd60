"""Input made slow on purpose: rates, latency, stalls, a connection over HTTP, and a timeout.

Echoing is for storage that is slower than the accelerator. Here the speed of the storage is a
setting, so that claims about wall-clock time can be tested on any machine.
"""

import concurrent.futures
import contextlib
import dataclasses
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import ml_collections
import numpy as np

from data import http_source
from data.sources import Source, UpstreamError

# A sleep takes slightly longer than requested. The limiter catches up by at most this much unused
# time, which keeps its average rate. Short waits accumulate: each sleep takes CPU time, which
# a training step on the same cores needs, and the records of a request arrive together anyway.
_CREDIT_SECONDS = 0.02
_MIN_SLEEP_SECONDS = 0.005
_ROUNDING_SECONDS = 1e-9  # of sums of floats


class Stalled(UpstreamError):
    """No example has arrived for longer than config.upstream.timeout."""


@dataclasses.dataclass(frozen=True)
class Limits:
    """How slow an upstream is; 0 = unlimited, or off.

    Attributes:
        examples_per_second, bytes_per_second: rates, shared by all concurrent requests.
        latency_seconds: latency of each request; concurrent requests wait concurrently.
        stall_every_seconds, stall_seconds: time between two stalls, and their length.
        jitter: share in [0, 1] by which latencies and times between stalls vary.
        seed: seed of the variation.
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

    def transfer_seconds(self, size: int) -> float:
        """Seconds that a record of `size` bytes takes at these rates."""
        of_bytes = size / self.bytes_per_second if self.bytes_per_second else 0.0
        of_example = 1 / self.examples_per_second if self.examples_per_second else 0.0
        return max(of_bytes, of_example)

    def seconds_of(self, size: int) -> float:
        """Seconds that a request for one record of `size` bytes takes, without jitter."""
        transfer = self.transfer_seconds(size)
        stalls = transfer // self.stall_every_seconds if self.stall_every_seconds else 0
        return self.latency_seconds + transfer + stalls * self.stall_seconds

    def shared_by(self, processes: int) -> "Limits":
        """The limits of each of several processes that read at the same rate."""
        return dataclasses.replace(
            self,
            examples_per_second=self.examples_per_second / processes,
            bytes_per_second=self.bytes_per_second / processes,
        )


class StoppableClock:
    """A clock that can be stopped; thread-safe.

    A throttled upstream follows this clock, and so does augmentation with a limit. It is stopped
    while the run does not train: examples that arrive during an evaluation would take no training
    time, and R would not be what the limits say. Therefore nothing that runs while the clock is
    stopped may wait for a training example.

    Args:
        clock: returns the seconds of a clock that never stops.
        sleep: waits that many of its seconds.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ):
        self._clock, self._sleep, self._lock = clock, sleep, threading.Lock()
        self._stops, self._stopped_at, self._stopped_seconds = 0, 0.0, 0.0
        self._running = threading.Event()
        self._running.set()

    def __call__(self) -> float:
        with self._lock:
            return (self._stopped_at if self._stops else self._clock()) - self._stopped_seconds

    def sleep(self, seconds: float) -> None:
        """Returns once that many seconds have passed on this clock."""
        end = self() + seconds
        while (left := end - self()) > _ROUNDING_SECONDS:
            self._running.wait()
            self._sleep(left)

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """Stops the clock within the context."""
        with self._lock:
            if not self._stops:
                self._stopped_at = self._clock()
            self._stops += 1
            self._running.clear()
        try:
            yield
        finally:
            with self._lock:
                self._stops -= 1
                if not self._stops:
                    self._stopped_seconds += self._clock() - self._stopped_at
                    self._running.set()


def limits(config: ml_collections.ConfigDict) -> Limits:
    """The limits of config.upstream on the training examples that this process reads."""
    fields = {field.name for field in dataclasses.fields(Limits)} - {"seed"}
    settings = {name: config.upstream[name] for name in fields}
    return Limits(**settings, seed=config.seed.data).shared_by(jax.process_count())


def throttled(
    config: ml_collections.ConfigDict, source: Source, clock: StoppableClock | None = None
) -> Source:
    """`source`, as slow as config.upstream says; unchanged where nothing is set.

    Args:
        clock: times the limits; None = a clock that is never stopped.
    """
    upstream, slow, timer = config.upstream, limits(config), clock or StoppableClock()

    def open_slow(arrived: Callable[[], None]) -> Source:
        opened = source
        if upstream.http:
            opened = http_source.HttpSource(config.dataset.to_dict(), arrived, source.where)
        if slow.none:
            return opened
        return SlowSource(opened, RateLimiter(slow, timer, timer.sleep), arrived)

    if upstream.timeout:
        return TimeoutSource(open_slow, upstream.timeout, timer)
    return open_slow(lambda: None)


def augmentation_limiter(
    config: ml_collections.ConfigDict, clock: StoppableClock | None = None
) -> "RateLimiter | None":
    """The rate limiter of the examples that this process augments; None if there is no limit."""
    if not (rate := config.upstream.augmented_examples_per_second):
        return None
    slow, timer = Limits(examples_per_second=rate), clock or StoppableClock()
    return RateLimiter(slow.shared_by(jax.process_count()), timer, timer.sleep)


class RateLimiter:
    """Lets records pass one after another, at the speed that `limits` allow.

    Args:
        limits: see `Limits`.
        clock: returns seconds.
        sleep: waits that many of the clock's seconds.
    """

    def __init__(
        self,
        limits: Limits,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ):
        self._limits, self._clock, self._sleep = limits, clock, sleep
        self._latency_rng = np.random.default_rng([limits.seed, 0])
        self._stall_rng = np.random.default_rng([limits.seed, 1])
        self._transfer_lock = threading.Lock()  # held by the request whose records are passing
        self._latency_lock = threading.Lock()
        self._free_at = -math.inf  # when the last record has passed
        self._stall = (math.inf, math.inf)  # start and end of the next stall

    def passed(self, sizes: Sequence[int]) -> Iterator[None]:
        """Yields once for each record of a request, when it has passed; `sizes` are their bytes."""
        with self._latency_lock:
            latency = self._varied(self._limits.latency_seconds, self._latency_rng)
        if latency:
            self._sleep(latency)
        with self._transfer_lock:
            for size in sizes:
                self._wait_for(size)
                yield

    def _wait_for(self, size: int) -> None:
        now = self._clock()
        if self._free_at == -math.inf:
            self._free_at, self._stall = now, self._stall_after(now)
        start = max(self._free_at, now - _CREDIT_SECONDS)
        self._free_at = self._end_of_transfer(start, self._limits.transfer_seconds(size))
        if self._free_at - now > _MIN_SLEEP_SECONDS:
            self._sleep(self._free_at - now)

    def _end_of_transfer(self, start: float, seconds: float) -> float:
        """When a transfer of `seconds` that begins at `start` ends, including stalls."""
        while start + seconds > self._stall[0]:
            stall_start, stall_end = self._stall
            if start < stall_end:
                seconds -= max(0.0, stall_start - start)
                start = stall_end
            self._stall = self._stall_after(stall_end)
        return start + seconds

    def _stall_after(self, moment: float) -> tuple[float, float]:
        if not self._limits.stall_seconds:
            return math.inf, math.inf
        start = moment + self._varied(self._limits.stall_every_seconds, self._stall_rng)
        return start, start + self._limits.stall_seconds

    def _varied(self, seconds: float, rng: np.random.Generator) -> float:
        return seconds * (1 + self._limits.jitter * rng.uniform(-1, 1))


class SlowSource(Source):
    """A source whose records pass a rate limiter.

    Args:
        arrived: called whenever a record arrives.
    """

    def __init__(
        self, source: Source, limiter: RateLimiter, arrived: Callable[[], None] = lambda: None
    ):
        self._source, self._limiter, self._arrived = source, limiter, arrived
        self.where = source.where

    def __len__(self) -> int:
        return len(self._source)

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        records = self._source.__getitems__(indices)
        for _ in self._limiter.passed([record_bytes(record) for record in records]):
            self._arrived()
        return records


class TimeoutSource(Source):
    """A source that raises Stalled when no record has arrived for `timeout` seconds.

    Each request runs on its own daemon thread, which is abandoned after a timeout, since the
    request may never return.

    Args:
        open_source: opens the source; its argument is to be called whenever a record arrives.
        timeout: seconds.
        clock: returns seconds.
    """

    def __init__(
        self,
        open_source: Callable[[Callable[[], None]], Source],
        timeout: float,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._timeout, self._clock = timeout, clock
        self._arrived()
        self._source = open_source(self._arrived)
        self.where = self._source.where

    def __len__(self) -> int:
        return len(self._source)

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        start = self._clock()
        request = _in_daemon_thread(self._source.__getitems__, indices)
        while not request.done():
            left = max(start, self._last_arrival) + self._timeout - self._clock()
            if left <= 0:
                raise Stalled(
                    f"no example has arrived from upstream for {self._timeout:g} s "
                    f"(config.upstream.timeout) while waiting for record {indices[0]} and "
                    f"{len(indices) - 1} others of the training split"
                )
            concurrent.futures.wait([request], left)
        self._arrived()
        return request.result()

    def _arrived(self) -> None:
        self._last_arrival = self._clock()


def _in_daemon_thread(function: Callable, argument: Any) -> concurrent.futures.Future:
    future: concurrent.futures.Future = concurrent.futures.Future()

    def run() -> None:
        try:
            future.set_result(function(argument))
        except BaseException as error:  # raised by future.result()
            future.set_exception(error)

    threading.Thread(target=run, name="upstream", daemon=True).start()
    return future


def record_bytes(value: Any) -> int:
    """Bytes of a record, or of a field of one, as read from the source."""
    if isinstance(value, dict):
        return sum(map(record_bytes, value.values()))
    return len(value) if isinstance(value, bytes | str) else np.asarray(value).nbytes
