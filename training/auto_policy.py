"""When the device will want its next batch, told from the steps before."""

import collections
import dataclasses
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax

# How long the input may wait before it asks again: a step may be done before it is expected.
_ASK_AGAIN_SECONDS = 0.001

_REMEMBERED = 33  # steps


@dataclasses.dataclass
class _Step:
    done: jax.Array  # an output; it is ready when the step is done
    start: float
    seen_running: bool = False
    end: float | None = None  # where it was seen


class Pace:
    """Follows the steps of a loop that dispatches step k, then fetches the metrics of step k-1.

    Called, it says how long the next batch may still be waited for without the device waiting too:
    until the running step is expected to end (a median over the last ones), less the time that the
    host then needs to hand over the batch.

    Args:
        clock: in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter):
        self._clock = clock
        self._steps: collections.deque[_Step] = collections.deque()
        self._durations: collections.deque[float] = collections.deque(maxlen=_REMEMBERED)
        self._leads: collections.deque[float] = collections.deque(maxlen=_REMEMBERED)
        self._needed_at: float | None = None  # when it last said so

    def __call__(self) -> float:
        """Seconds that may be waited before asking again; 0 or less: the batch is needed now."""
        now = self._clock()
        left = self._left(now)
        if left <= 0 and self._needed_at is None:
            self._needed_at = now
        return min(left, _ASK_AGAIN_SECONDS)

    def dispatched(self, metrics: dict[str, jax.Array]) -> None:
        """A step has been handed to the device; `metrics` are what `fetch` is called with."""
        now = self._clock()
        if self._needed_at is not None:
            self._leads.append(now - self._needed_at)
        self._steps.append(_Step(metrics["loss"], now))
        self._needed_at = None

    def fetch(self, metrics: dict[str, jax.Array]) -> dict[str, Any]:
        """The values of a step's metrics, once it is done; its time is noted."""
        waits = not all(value.is_ready() for value in metrics.values())
        values = jax.device_get(metrics)
        step = self._steps.popleft() if self._steps else None
        if waits and step is not None:
            self._ended(step)
        return values

    def busy(self, seconds: float) -> float:
        """In how many of the last `seconds` the device was running; as expected, if not seen."""
        now = self._clock()
        if not self._steps:
            return 0.0
        step = self._steps[-1]
        if not step.done.is_ready():
            return seconds
        expected = step.start + statistics.median(self._durations) if self._durations else now
        end = min(now, expected) if step.end is None else step.end
        return min(seconds, max(0.0, end - (now - seconds)))

    def _left(self, now: float) -> float:
        if not self._steps:
            return 0.0
        step = self._steps[-1]
        if step.done.is_ready():
            if step.seen_running:  # so it has ended just now
                step.seen_running = False
                self._ended(step)
            return 0.0
        step.seen_running = True
        if not self._durations:
            return _ASK_AGAIN_SECONDS
        return step.start + statistics.median(self._durations) - self._lead() - now

    def _lead(self) -> float:
        """Seconds that the host needs; some of those noted include a wait for more to come."""
        return sorted(self._leads)[len(self._leads) // 4] if self._leads else 0.0

    def _ended(self, step: _Step) -> None:
        now = step.end = self._clock()
        self._durations.append(now - step.start)
        for later in self._steps:
            if later is not step:
                later.start = max(later.start, now)
