"""Which trials of a search run next, for any number of workers and any order of completion.

A search runs its trials in order of their numbers until N have ended without diverging or failing,
at most 2N. A trial starts only if it is needed even if no running trial diverges. Any number of
workers therefore runs the same trials as one worker, and the first N of those trials count.
"""

import dataclasses
import time
from collections.abc import Callable

from runs import records


@dataclasses.dataclass
class SearchQueue:
    """The trials of one condition's search.

    Attributes:
        condition, search: the condition's name and the search's number.
        needed: trials that must not diverge (N).
        max_trials: trials that may start.
        counted: trials that ended without diverging or failing.
        running: trials that this launch is running.
        postponed: trials to start again, and when (in seconds of `clock`).
    """

    condition: str
    search: int
    needed: int
    max_trials: int
    clock: Callable[[], float] = time.monotonic
    counted: int = 0
    running: set[int] = dataclasses.field(default_factory=set)
    postponed: dict[int, float] = dataclasses.field(default_factory=dict)
    _next: int = 0

    def take(self, max_count: int) -> tuple[int, ...]:
        """Up to `max_count` trials to start now, lowest number first; they count as running."""
        now = self.clock()
        due = sorted(trial for trial, when in self.postponed.items() if when <= now)[:max_count]
        for trial in due:
            del self.postponed[trial]
        pending = len(self.running) + len(self.postponed) + len(due)
        still_needed = self.needed - self.counted - pending
        new = max(0, min(max_count - len(due), still_needed, self.max_trials - self._next))
        taken = (*due, *range(self._next, self._next + new))
        self._next += new
        self.running.update(taken)
        return taken

    def end(self, trial: int, status: str) -> None:
        """Records that `trial` has ended."""
        self.running.remove(trial)
        self.counted += status in records.COUNTABLE

    def postpone(self, trial: int, seconds: float = 0.0) -> None:
        """Records that `trial` stopped before its end, to start again after `seconds`."""
        self.running.remove(trial)
        self.postponed[trial] = self.clock() + seconds

    @property
    def over(self) -> bool:
        """Whether no trial is left to run."""
        idle = not self.running and not self.postponed
        return idle and (self.counted >= self.needed or self._next >= self.max_trials)
