"""Which trial is next: the protocol's rule, for any number of workers and any order of ends.

A search runs its trials in the order of their numbers until N have not diverged, at most 2N. A
trial is started only if it is needed even if none of those under way diverges. So the trials that
have been run at the end are the same ones as one after another, and the first N that did not
diverge are the ones that count.
"""

import dataclasses
import time
from collections.abc import Callable

COUNTED = ("reached", "exhausted")


@dataclasses.dataclass
class Search:
    """How far one condition's search has come.

    Attributes:
        condition, search: its place in the study.
        wanted, most: trials that must not have diverged, and trials at most.
        counted: trials that ended without diverging or failing.
        ended: trials that ended in any way.
        running: trials under way here.
        later: trials to be started again, and when (in seconds of `clock`).
    """

    condition: str
    search: int
    wanted: int
    most: int
    clock: Callable[[], float] = time.monotonic
    counted: int = 0
    ended: int = 0
    running: set[int] = dataclasses.field(default_factory=set)
    later: dict[int, float] = dataclasses.field(default_factory=dict)
    _next: int = 0

    def take(self, at_most: int) -> tuple[int, ...]:
        """Trials to be started now, lowest number first; they are under way from here on."""
        due = sorted(trial for trial, when in self.later.items() if when <= self.clock())[:at_most]
        for trial in due:
            del self.later[trial]
        open_trials = self.wanted - self.counted - len(self.running) - len(self.later) - len(due)
        new = max(0, min(at_most - len(due), open_trials, self.most - self._next))
        taken = (*due, *range(self._next, self._next + new))
        self._next += new
        self.running.update(taken)
        return taken

    def end(self, trial: int, status: str) -> None:
        """Trial `trial` is over."""
        self.running.remove(trial)
        self.ended += 1
        self.counted += status in COUNTED

    def again(self, trial: int, seconds: float = 0.0) -> None:
        """Trial `trial` is not over, and is to be started again after so many seconds."""
        self.running.remove(trial)
        self.later[trial] = self.clock() + seconds

    @property
    def over(self) -> bool:
        """Whether nothing of it is left to do."""
        idle = not self.running and not self.later
        return idle and (self.counted >= self.wanted or self._next >= self.most)

    @property
    def left(self) -> int:
        """Trials that are still to end, if none diverges."""
        return max(0, min(self.wanted - self.counted, self.most - self.ended))
