"""Progress of a command: one live line in a terminal, plain lines elsewhere."""

import dataclasses
import math
import sys
import time

from rich.console import Console
from rich.live import Live
from rich.text import Text

from runs import terminal

# Log files should get a line only now and then.
_PLAIN_EVERY_SECONDS = 10.0


@dataclasses.dataclass
class Status:
    """The state of a run, for display.

    Attributes:
        fresh_examples: fresh examples so far.
        budget: total number of fresh examples.
        metric: the target's metric.
        value: the metric's latest value; None before the first evaluation.
        goal: the target as text.
        examples_per_second: examples per second of training, copies included.
        input_wait_fraction: share of training time spent waiting for input, 0 to 1.
        seconds_left: seconds until the budget is exhausted, or None if unknown.
    """

    fresh_examples: int
    budget: int
    metric: str
    value: float | None
    goal: str
    examples_per_second: float
    input_wait_fraction: float
    seconds_left: float | None

    def __str__(self) -> str:
        value = "-" if self.value is None else f"{self.value:.4g}"
        return (
            f"fresh {self.fresh_examples:,} / {self.budget:,} | {self.metric} {value} "
            f"(target {self.goal}) | {self.examples_per_second:,.0f} examples/s | "
            f"input wait {self.input_wait_fraction:.0%} | {duration(self.seconds_left)} left"
        )


class _Console(Console):
    def on_broken_pipe(self) -> None:
        """Raises the error; Rich would exit the process with code 1."""
        raise


class Progress:
    """Shows a status, at most a few times a second.

    Args:
        prefix: text before every status.
        quiet: show nothing.
    """

    def __init__(self, prefix: str = "", quiet: bool = False):
        self._console = _Console(file=sys.stderr, highlight=False, quiet=quiet)
        self._prefix = prefix
        self._live: Live | None = None
        self._next_line = time.monotonic() + (0.0 if quiet else 2.0)
        self.quiet = quiet

    def update(self, status: object) -> None:
        """Shows `status` (anything with a str) if the last one is old enough."""
        now = time.monotonic()
        if self.quiet or now < self._next_line:
            return
        text = Text(f"{self._prefix}{status}", overflow="ellipsis", no_wrap=True)
        if self._console.is_terminal:
            self._next_line = now + 0.2
            with terminal.reached(self._console.file):
                if self._live is None:
                    self._live = Live(console=self._console, transient=True, auto_refresh=False)
                    self._live.start()
                self._live.update(text, refresh=True)
        else:
            self._next_line = now + _PLAIN_EVERY_SECONDS
            self.say(str(text))

    def say(self, line: str) -> None:
        """Prints a line permanently."""
        with terminal.reached(self._console.file):
            self._console.print(line, soft_wrap=True, markup=False)

    def close(self) -> None:
        """Removes the live line."""
        if self._live is not None:
            with terminal.reached(self._console.file):
                self._live.stop()
            self._live = None


def duration(seconds: float | None) -> str:
    """Seconds for humans: '42 s', '3 min 20 s', '2 h 05 min'."""
    if seconds is None or not math.isfinite(seconds):
        return "?"
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
