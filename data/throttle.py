"""Input made slow on purpose: a rate, latency, stalls, single slow examples; and a local cache.

Echoing is for storage that is slower than the accelerator. Here the speed of the storage is a
setting, so that claims about wall-clock time can be tested on any machine.
"""

import contextlib
import dataclasses
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import ml_collections

from data.sources import Source, in_share

# A sleep takes slightly longer than requested. The limiter catches up by at most this much unused
# time, which keeps its average rate. Short waits accumulate: each sleep takes CPU time, which
# a training step on the same cores needs.
_CREDIT_SECONDS = 0.02
_MIN_SLEEP_SECONDS = 0.005
_ROUNDING_SECONDS = 1e-9  # of sums of floats

SLOWNESS = 10  # a slow example takes as long as so many others


@dataclasses.dataclass(frozen=True)
class Limits:
    """How slow an upstream is; 0 = unlimited, or off.

    Attributes:
        examples_per_second: rate, shared by all concurrent requests.
        latency_seconds: latency of each request; concurrent requests wait concurrently.
        stall_every_seconds, stall_seconds: time between two stalls, and their length.
        slow_share: share of the examples that take SLOWNESS times as long as others at this rate,
            and of which one makes the latency of a request as many times as long.
        cached_share: share of the records that a local cache keeps once they are read.
    """

    examples_per_second: float = 0.0
    latency_seconds: float = 0.0
    stall_every_seconds: float = 0.0
    stall_seconds: float = 0.0
    slow_share: float = 0.0
    cached_share: float = 0.0

    @property
    def transfer_seconds(self) -> float:
        """Seconds that a record takes at this rate."""
        return 1 / self.examples_per_second if self.examples_per_second else 0.0

    @property
    def record_seconds(self) -> float:
        """Seconds that a request for one record takes at most, including latency and stalls."""
        slowness = SLOWNESS if self.slow_share else 1
        transfer, every = slowness * self.transfer_seconds, self.stall_every_seconds
        stalls = transfer // every if every else 0
        return slowness * self.latency_seconds + transfer + stalls * self.stall_seconds

    def shared_by(self, processes: int) -> "Limits":
        """The limits of each of several processes that read at the same rate."""
        return dataclasses.replace(self, examples_per_second=self.examples_per_second / processes)

    def is_slow(self, index: int) -> bool:
        """Whether a record is one of the slow ones: a pure function of its index."""
        return self.slow_share > 0 and in_share(self.slow_share, str(index).encode())


class StoppableClock:
    """A clock that can be stopped; thread-safe.

    Limits follow this clock, which is stopped while the run does not train: examples that arrive
    during an evaluation would take no training time, and R would not be what the limits say.
    Therefore nothing that runs while it is stopped may wait for a training example.

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


class RateLimiter:
    """Lets requests pass one after another, at the speed that `limits` allow by a clock."""

    def __init__(self, limits: Limits, clock: StoppableClock | None = None):
        self.limits, self._clock = limits, clock or StoppableClock()
        self._lock = threading.Lock()  # held by the request whose records are passing
        self._free_at = -math.inf  # when the last record has passed
        self._stall_at = math.inf  # when the next stall begins

    def wait(self, records: int, slow: int = 0) -> None:
        """Returns when the `records` of a request, so many of them slow, have passed."""
        if self.limits.latency_seconds:
            self._clock.sleep(self.limits.latency_seconds * (SLOWNESS if slow else 1))
        with self._lock:
            now = self._clock()
            if self._free_at == -math.inf:
                self._free_at = now
                if self.limits.stall_seconds:
                    self._stall_at = now + self.limits.stall_every_seconds
            start = max(self._free_at, now - _CREDIT_SECONDS)
            passing = records + (SLOWNESS - 1) * slow
            self._free_at = self._end(start, passing * self.limits.transfer_seconds)
            if self._free_at - now > _MIN_SLEEP_SECONDS:
                self._clock.sleep(self._free_at - now)

    def _end(self, start: float, seconds: float) -> float:
        """When a transfer of `seconds` that begins at `start` ends, including stalls."""
        while start + seconds > self._stall_at:
            stall_end = self._stall_at + self.limits.stall_seconds
            if start < stall_end:
                seconds -= max(0.0, self._stall_at - start)
                start = stall_end
            self._stall_at = stall_end + self.limits.stall_every_seconds
        return start + seconds


class SlowSource(Source):
    """A source whose records pass a rate limiter, or come from a cache in front of it.

    The cache keeps the first records of the source once they are read. No other choice is better
    where epochs are shuffled: the most recently used half would serve 15% of the next one.
    """

    def __init__(self, source: Source, limiter: RateLimiter):
        self._source, self._limiter = source, limiter
        self.where = source.where
        self._cacheable = round(limiter.limits.cached_share * len(source))
        self._cached: set[int] = set()

    def __len__(self) -> int:
        return len(self._source)

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        records = self._source.__getitems__(indices)
        if far := [index for index in indices if index not in self._cached]:
            self._limiter.wait(len(far), sum(map(self._limiter.limits.is_slow, far)))
            self._cached.update(index for index in far if index < self._cacheable)
        return records

    def bytes_read(self, fresh_examples: int) -> int | None:
        again = max(0, fresh_examples - len(self))  # after the first epoch
        far = fresh_examples - round(again * self._cacheable / len(self))
        return self._source.bytes_read(far)


def limits(config: ml_collections.ConfigDict) -> Limits:
    """The limits of config.upstream on the training examples that this process reads."""
    settings = {field.name: config.upstream[field.name] for field in dataclasses.fields(Limits)}
    return Limits(**settings).shared_by(jax.process_count())


def throttled(
    config: ml_collections.ConfigDict, source: Source, clock: StoppableClock | None = None
) -> Source:
    """`source`, as slow as config.upstream says. A clock of None is never stopped."""
    return SlowSource(source, RateLimiter(limits(config), clock))


def augmentation_limiter(
    config: ml_collections.ConfigDict, clock: StoppableClock | None = None
) -> RateLimiter:
    """The rate limiter of the examples that this process augments."""
    rate = config.upstream.augmented_examples_per_second
    return RateLimiter(Limits(rate).shared_by(jax.process_count()), clock)
