"""Progress of a whole study, and an estimate of the time left."""

import time
from collections.abc import Callable, Mapping, Sequence

from runs.progress import duration
from studies.trial_queue import SearchQueue


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
        self._steps_done = 0
        self._diverged = 0

    def trial_ended(self, condition: str, status: str, trained: bool) -> None:
        """Counts a trial; `trained` is false for one that had finished in an earlier launch."""
        self._diverged += status == "diverged"
        if trained:
            self._steps_done += self._steps[condition]

    def seconds_left(self) -> float | None:
        """Seconds at the rate so far; None before the first trial has ended.

        Approximate: diverged trials are replaced, and trials that reach the target end early.
        """
        if not self._steps_done:
            return None
        steps_left = sum(queue.left * self._steps[queue.condition] for queue in self._queues)
        return (self._clock() - self._started) / self._steps_done * steps_left

    def __str__(self) -> str:
        counted = sum(queue.counted for queue in self._queues)
        total = counted + sum(queue.left for queue in self._queues)
        return f"[{counted}/{total}]"

    def status(self) -> str:
        """Everything in one line."""
        running = sum(len(queue.running) for queue in self._queues)
        held = sum(len(queue.postponed) for queue in self._queues)
        return (
            f"{self} trials | {running} running"
            f"{f' | {held} held by other launches' if held else ''} | {self._diverged} diverged | "
            f"{duration(self.seconds_left())} left"
        )
