"""How far a whole study has come, and how long the rest will take at the pace so far."""

import time
from collections.abc import Callable, Mapping, Sequence

from runs.progress import duration
from studies.trial_queue import Search


class StudyProgress:
    """Progress over the searches of a study.

    Args:
        searches: of the study; they are read, not changed.
        steps: by condition, the steps of a trial that uses its whole budget. Conditions differ in
            them by the echoing factor, and so in seconds.
        clock: seconds that pass.
    """

    def __init__(
        self,
        searches: Sequence[Search],
        steps: Mapping[str, int],
        clock: Callable[[], float] = time.monotonic,
    ):
        self._searches, self._steps, self._clock = searches, steps, clock
        self._began = clock()
        self._steps_done = 0
        self._diverged = 0

    def trial_done(self, condition: str, status: str, trained: bool) -> None:
        """A trial ended; `trained` unless it was finished before."""
        self._diverged += status == "diverged"
        if trained:
            self._steps_done += self._steps[condition]

    def seconds_left(self) -> float | None:
        """About: those that diverge are tried again, and those that get to the target end sooner.
        None before anything is known."""
        if not self._steps_done:
            return None
        left = sum(search.left * self._steps[search.condition] for search in self._searches)
        return (self._clock() - self._began) / self._steps_done * left

    def __str__(self) -> str:
        counted = sum(search.counted for search in self._searches)
        total = counted + sum(search.left for search in self._searches)
        return f"[{counted}/{total}]"

    def status(self) -> str:
        """Everything in one line."""
        running = sum(len(search.running) for search in self._searches)
        elsewhere = sum(len(search.later) for search in self._searches)
        waiting = f" | {elsewhere} held by other launches" if elsewhere else ""
        return (
            f"{self} trials | {running} running{waiting} | {self._diverged} diverged | "
            f"{duration(self.seconds_left())} left"
        )
