"""How long a training loop waits for its loader, measured while it trains: `watch(loader)`."""

import contextlib
import copy
import itertools
import json
import math
import os
import statistics
import sys
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from echo.advice.recommend import FRESH_SHARES, time_text
from echo.spec import checked_integer
from echo.stores import nbytes
from echo.threads import usable_cores

T = TypeVar("T")

# Left out of the measurement: the first steps, which compile; pauses, which are evaluations and
# checkpoints and take this many times the median of the steps before them; and the steps after a
# pause or a replay, for which a loader has batches ready.
FIRST_STEPS, PAUSE, SETTLING_STEPS = 5, 10, 16

_RECENT = 256  # steps whose median says what a pause is
_SECONDS_BETWEEN_BOXES = 300
_COPIED_BYTES = 2**30  # of the batches that a replay hands out
_REPLAY_SHARE = 20  # fresh steps per repeated one
_WAITING = 0.05  # a smaller share of time waited is not worth a change


class Watched:
    """What has been measured so far; str() of it is a box of at most six lines.

    Attributes:
        steps: steps measured, without the first ones, pauses, and repeats.
        repeated: steps that were taken on repeats, to measure the step.
        workers: `num_workers` of the loader, or None.
    """

    def __init__(self, replay: int, workers: int | None):
        self._replay = checked_integer("replay", replay, 0, 10_000)
        self.steps, self.repeated, self.workers = 0, 0, workers
        self._seen, self._next_replay = 0, 4 * FIRST_STEPS
        self._settled = FIRST_STEPS  # the steps seen when measuring continues
        self._waited, self._rested = 0.0, 0.0
        self._recent: deque[float] = deque(maxlen=_RECENT)
        self._pause = float("inf")
        # Of each replay: seconds per step where this thread does not see them end, and seconds of
        # the wait for the first fresh batch after it, which a loader that works during steps has
        # ready.
        self._step_seconds: list[float] = []
        self._wait_after: list[float] = []
        self._idle, self._since = _idle_seconds(), time.perf_counter()
        self._shown, self._shown_steps = self._since, 0  # of the last box

    @property
    def seconds(self) -> float:
        """Wall time of the steps measured."""
        return self._waited + self._rested

    @property
    def waited(self) -> float:
        """The share of `seconds` blocked in the loader's `next`, from 0 to 1."""
        step = statistics.mean(self._steps_alone())
        return max(0.0, 1 - step * self.steps / self.seconds) if self.seconds else 0.0

    @property
    def step_seconds(self) -> tuple[float, float]:
        """(low, high) of the step's own time."""
        return min(self._steps_alone()), max(self._steps_alone())

    def _steps_alone(self) -> list[float]:
        return self._step_seconds or [self._rested / max(1, self.steps)]

    @property
    def loader_seconds(self) -> tuple[float, float]:
        """(low, high) of the loader's time per batch. Without workers to tell, or a replay, low
        holds if the loader stands still during steps, and high if it works on."""
        steps = max(1, self.steps)
        # A loader that works during steps takes a whole step of the loop, one that stands still
        # only the wait.
        low, high = self._waited / steps, self.seconds / steps
        if self._stands_still:
            return low, low
        if self._stands_still is None or self.waited < _WAITING:  # one that keeps up may be faster
            return low, high
        return high, high

    @property
    def _stands_still(self) -> bool | None:
        """Whether the loader stands still during steps; None if unknown."""
        if self.workers is not None:
            return self.workers == 0
        if not (self._wait_after and self._waited):
            return None
        # After a replay, a loader that works during steps has a batch ready.
        return statistics.median(self._wait_after) > self._waited / self.steps / 2

    @property
    def ratio(self) -> tuple[float, float]:
        """(low, high) of R, the loader's time per batch / the step's."""
        (low, high), (least, most) = self.loader_seconds, self.step_seconds
        return (low / most, high / least) if self.steps else (0.0, 0.0)

    @property
    def idle_cores(self) -> float | None:
        """Cores of the machine that were idle meanwhile, or None if unknown."""
        idle, since = _idle_seconds(), time.perf_counter() - self._since
        if idle is None or self._idle is None or since <= 0:
            return None
        return min((idle - self._idle) / since, usable_cores())

    @property
    def factor(self) -> int:
        """The echo factor that ends the wait; 1 if there is none to end."""
        return 1 if self.waited < _WAITING else max(1, min(16, round(sum(self.ratio) / 2)))

    @property
    def saved(self) -> tuple[float, float]:
        """(low, high) of the share of the time to a target that echoing would save, if repeats are
        worth what they were on the registered problems; negative where it would cost time."""
        if self.factor == 1 or not self.steps:
            return 0.0, 0.0
        factor = max(e for e in FRESH_SHARES if e <= self.factor)
        loader, step = (sum(pair) / 2 for pair in (self.loader_seconds, self.step_seconds))
        pace = max(loader, factor * step) * self.steps / self.seconds  # time per fresh example
        low, high = FRESH_SHARES[factor]
        return 1 - high * pace, 1 - low * pace

    def to_json(self) -> str:
        """One line of JSON with every attribute."""
        names = (name for name in dir(self) if not name.startswith("_") and name != "to_json")
        return json.dumps({name: getattr(self, name) for name in names})

    def __str__(self) -> str:
        if not self.steps:
            return f"\n| echo.watch: no step measured yet; the first {FIRST_STEPS} do not count"
        keeps_up = self.waited < _WAITING
        lines = [
            f"The loop waited {self.waited:.0%} of {_duration(self.seconds)} for its loader"
            f" ({self.steps:,} steps).",
            f"R = {'at most 1' if keeps_up else _span(self.ratio, '{:.2g}'.format)}: a batch takes"
            f" {_span(self.loader_seconds, time_text)} to load and"
            f" {_span(self.step_seconds, time_text)} to train on.",
        ]
        if keeps_up:
            lines.append("Nothing to gain: the loader keeps up.")
        elif self.factor == 1 and self._stands_still:
            lines.append("Read ahead, since the loader stands still during steps: num_workers=1.")
        elif self.workers is not None and (idle := self.idle_cores or 0) >= 1:
            enough = math.ceil((self.workers or 1) * self.ratio[1])
            workers = min(enough, self.workers + int(idle))
            lines.append(f"First try num_workers={workers}: {idle:.1f} cores are idle.")
        elif self.factor == 1:
            lines.append("Little to gain: a batch takes hardly longer to load than to train on.")
        if self.factor > 1:
            saved = [max(0.0, share) for share in self.saved]
            hours = [share * self.seconds for share in saved]
            lines.append(
                f"Echo with factor {self.factor}, or echo.auto(loader): "
                f"{_span(saved, '{:.0%}'.format)} less time to the same quality, "
                f"{_span(hours, _duration)} of what ran so far."
            )
        if not self.repeated and not keeps_up:
            lines.append("The step's time is what this thread saw; replay=16 measures it.")
        return "\n".join(["", *(f"| {line}" for line in lines)])

    def _measured(self, iterator: Iterator[T]) -> Iterator[T]:
        """The items of `iterator`, and replays."""
        clock, replayed = time.perf_counter, False
        start = clock()
        try:
            for batch in iterator:
                waited = clock() - start
                copies = self._copies(batch)
                given = clock()
                yield batch
                start = clock()
                self._count(waited, start - given, replayed)
                if replayed := bool(copies):
                    yield from self._replayed(copies)
                if clock() - self._shown > _SECONDS_BETWEEN_BOXES:
                    self._show()
                start = clock()
        finally:
            if not self._shown_steps:
                self._show()

    def _count(self, waited: float, rest: float, replayed: bool) -> None:
        self._seen += 1
        if replayed:
            self._wait_after.append(waited)
        self._recent.append(rest)
        if self._seen % 32 == FIRST_STEPS:
            self._pause = PAUSE * statistics.median(self._recent)
        if replayed or rest > self._pause:
            self._settled = self._seen + SETTLING_STEPS
        elif self._seen > self._settled:
            self.steps, self._waited = self.steps + 1, self._waited + waited
            self._rested += rest

    def _copies(self, batch: T) -> list[T]:
        """Copies of a batch that will be repeated, made before a step can change or donate it."""
        if not self._replay or self._seen < self._next_replay:
            return []
        self._next_replay += max(1, _REPLAY_SHARE * self._replay)
        count = min(self._replay, max(4, _COPIED_BYTES // max(1, nbytes(batch))))
        return [copy.deepcopy(batch) for _ in range(count)]

    def _replayed(self, copies: list[T]) -> Iterator[T]:
        """Hands out copies, and measures the step: the device is idle at both ends."""
        self.repeated += len(copies)
        _synchronize()
        times = [time.perf_counter()]
        while copies:
            yield copies.pop()
            times.append(time.perf_counter())
        _synchronize()
        end = time.perf_counter()
        # If next to nothing was left to do, this thread sees each step end, and all steps count.
        seen = statistics.median(after - before for before, after in itertools.pairwise(times))
        if end - times[-1] > 2 * seen:
            self._step_seconds.append((end - times[0]) / (len(times) - 1))

    def _show(self) -> None:
        if self.steps > self._shown_steps or (self._seen and not self._shown_steps):
            with contextlib.suppress(OSError, ValueError):  # as of a terminal that is gone
                print(self, file=sys.stderr, flush=True)
        self._shown, self._shown_steps = time.perf_counter(), self.steps


class Watch(Generic[T]):
    """An iterable with the items of `loader`; see `watch`.

    Attributes:
        loader: the iterable that is watched, whose other attributes are this one's too.
        report: what was measured so far. It does not refer to the loader, so that a loop's end can
            release that.
    """

    def __init__(self, loader: Iterable[T], replay: int):
        if not hasattr(loader, "__iter__"):
            raise TypeError(f"loader has type {type(loader).__name__}; allowed: an iterable")
        self.loader = loader
        self.report = Watched(replay, getattr(loader, "num_workers", None))
        weakref.finalize(self, self.report._show)  # also at the end of the program

    def __len__(self) -> int:
        return len(self.loader)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:  # state_dict, sampler, dataset, ...
        if name == "loader":  # not there yet, as while this is unpickled
            raise AttributeError(name)
        return getattr(self.loader, name)

    def __iter__(self) -> Iterator[T]:
        return self.report._measured(iter(self.loader))


def watch(loader: Iterable[T], replay: int = 0) -> Watch[T]:
    """Measures how long a loop waits for `loader`; changes nothing unless `replay` is given.

        for batch in echo.watch(loader):
            step(batch)

    The result yields the items of `loader`; all else, such as its length and `state_dict`, is the
    loader's. A box of at most six lines goes to standard error after the first pass, every five
    minutes, and at the end of the program, also after Ctrl-C: the share of time waited, R, and what
    to do. `report` has the same as data, for a test such as `assert batches.report.waited < 0.1`.

    The step's time is what this thread sees. A loop that never waits for the accelerator sees
    only how long sending work to it takes: with `replay`, the step is measured by itself.

    Args:
        loader: any iterable of batches.
        replay: measures the step on so many repeats of a batch, soon after the start and then once
            per 20 times as many fresh batches; 0 repeats nothing. These are real steps.

    Raises:
        TypeError: `loader` cannot be iterated over.
        EchoSpecError: `replay` is not a whole number from 0 to 10,000.
    """
    return Watch(loader, replay)


def _synchronize() -> None:
    """Waits until accelerators have done what was sent to them so far."""
    if (torch := sys.modules.get("torch")) and torch.cuda.is_available():
        torch.cuda.synchronize()
    if jax := sys.modules.get("jax"):  # a device computes in the order that it was asked to
        jax.block_until_ready([jax.device_put(0.0, d) + 1 for d in jax.local_devices()])


def _idle_seconds() -> float | None:
    """Seconds that the machine's cores have been idle, summed; None if the system does not say."""
    try:
        with open("/proc/stat") as file:
            return int(file.readline().split()[4]) / os.sysconf("SC_CLK_TCK")
    except OSError:
        return None


def _span(pair: Sequence[float], text: Callable[[float], str]) -> str:
    low, high = map(text, pair)
    return low if low == high else f"{low} to {high}"


def _duration(seconds: float) -> str:
    unit, scale = next(u for u in (("h", 3600), ("min", 60), ("s", 0)) if seconds >= u[1])
    return f"{seconds / (scale or 1):.1f} {unit}"
