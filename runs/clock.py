"""A run's clocks, saved in checkpoints: training time, apart from evaluation and compilation."""

import contextlib
import time
from collections.abc import Iterator


class Clock:
    """Measures a run in seconds; a resumed run continues from saved readings.

    Attributes:
        waited: seconds of training time spent waiting for input.
    """

    def __init__(self, train: float = 0.0, wall: float = 0.0, waited: float = 0.0):
        self.waited = waited
        self._train, self._wall = train, wall
        self._started = self._train_started = time.perf_counter()
        self._paused = 0

    @property
    def train(self) -> float:
        """Seconds of training."""
        return self._train + (0.0 if self._paused else time.perf_counter() - self._train_started)

    @property
    def wall(self) -> float:
        """Seconds since the run began, without the time between interruption and resumption."""
        return self._wall + time.perf_counter() - self._started

    @property
    def input_wait_fraction(self) -> float:
        """The share of training time that was spent waiting for input, 0 to 1."""
        return min(1.0, self.waited / self.train) if self.train > 0 else 0.0

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Excludes the context from the training time."""
        self._train = self.train
        self._paused += 1
        try:
            yield
        finally:
            self._paused -= 1
            self._train_started = time.perf_counter()

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Counts the context as time spent waiting for input, which is training time."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.waited += time.perf_counter() - start

    def readings(self) -> dict[str, float]:
        """Arguments for a Clock that continues from here."""
        return {"train": self.train, "wall": self.wall, "waited": self.waited}
