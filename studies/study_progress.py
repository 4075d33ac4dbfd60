"""Progress of a whole study, and an estimate of the time left."""

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence

from runs.progress import SEPARATOR, left
from studies.trial_queue import SearchQueue

# A rate that is measured on fewer trials consists of compilation and of trials under way.
_MIN_TRIALS = 3


@dataclasses.dataclass(frozen=True)
class StudyStatus:
    """The state of a study, for display. Two that differ in the time left are equal.

    Attributes:
        counted: trials that count.
        total: trials that will count.
        seconds_left: None if unknown.
        running: trials of this launch that are under way.
        diverged: trials that have diverged.
        held: trials that other launches hold.
    """

    counted: int
    total: int
    seconds_left: float | None = dataclasses.field(compare=False)
    running: int
    diverged: int
    held: int

    def __str__(self) -> str:
        parts = [f"[{self.counted}/{self.total}] trials", left(self.seconds_left)]
        parts += [f"{self.running} running", f"{self.diverged} diverged"]
        parts += [f"{self.held} held by other launches"] if self.held else []
        return SEPARATOR.join(filter(None, parts))


class StudyProgress:
    """Progress over the searches of a study.

    Args:
        queues: the study's searches; only read.
        steps: by condition, the steps of a trial that uses its whole budget. They differ by the
            echo factor, and so does the time of a trial.
        clock: seconds.
    """

    def __init__(
        self,
        queues: Sequence[SearchQueue],
        steps: Mapping[str, int],
        clock: Callable[[], float] = time.monotonic,
    ):
        self._queues, self._steps, self._clock = queues, steps, clock
        self._started = clock()
        self._steps_done = self._trained = 0
        self._diverged = 0

    def trial_ended(self, condition: str, status: str, trained: bool) -> None:
        """Counts a trial; `trained` is false for one that had finished in an earlier launch."""
        self._diverged += status == "diverged"
        if trained:
            self._trained += 1
            self._steps_done += self._steps[condition]

    def seconds_left(self) -> float | None:
        """Seconds at the rate so far; None until as many trials have ended as are running.

        Approximate: diverged trials are replaced, and trials that reach the target end early.
        """
        if self._trained < max(_MIN_TRIALS, self._running()):
            return None
        steps_left = sum(queue.left * self._steps[queue.condition] for queue in self._queues)
        return (self._clock() - self._started) / self._steps_done * steps_left

    def __str__(self) -> str:
        counted, total = self._counts()
        return f"[{counted}/{total}]"

    def status(self) -> StudyStatus:
        """Everything that a line shows."""
        counted, total = self._counts()
        return StudyStatus(
            counted=counted,
            total=total,
            seconds_left=self.seconds_left(),
            running=self._running(),
            diverged=self._diverged,
            held=sum(len(queue.held) for queue in self._queues),
        )

    def _counts(self) -> tuple[int, int]:
        counted = sum(queue.counted for queue in self._queues)
        return counted, counted + sum(queue.left for queue in self._queues)

    def _running(self) -> int:
        return sum(len(queue.running) for queue in self._queues)
