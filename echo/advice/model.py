"""The timing model: how long a step takes in a pipeline with an echo stage.

Choi et al. (2019) let everything before the stage overlap with everything after it: one upstream
batch and e steps take max(t_upstream, e * t_downstream), so e <= R = t_upstream / t_downstream is
free. `Timing` adds what happens around this on one machine:

* the stages before the echo stage run ahead on `workers` threads, at 1/e of the rate of the steps;
* the host stages after it run at every step, on the one thread that prepares batches;
* whatever follows batching (the transfer) overlaps with the step;
* the CPU time of all of these, and of a step that runs on the same cores, adds up and is
  shared by `cores` cores.

The slowest of these sets the pace. Without workers (`workers=0`, PyTorch's default), one thread
runs everything in turn, so all times of a step add up.
"""

import dataclasses
from collections.abc import Iterable


@dataclasses.dataclass(frozen=True)
class StageTime:
    """The cost of a stage, in seconds per example.

    Attributes:
        seconds: wall time of one worker that has the machine to itself.
        cpu_seconds: CPU time.
        limit: the minimum wall time, with all workers at once. A rate limit shows here, and so does
            Python code that cannot run in parallel; latency shows only in `seconds`.
        low, high: the fastest and the slowest round of the measurement of `seconds`.
        limit_of_more: `limit` with more workers; None if that was not measured.
    """

    name: str
    seconds: float
    cpu_seconds: float
    limit: float
    low: float = 0.0
    high: float = 0.0
    limit_of_more: float | None = None

    def scaled(self, factor: float) -> "StageTime":
        """This stage in `factor` times the time."""
        times = {name: time for name, time in vars(self).items() if name != "name" and time}
        return dataclasses.replace(self, **{name: factor * time for name, time in times.items()})


@dataclasses.dataclass(frozen=True)
class Timing:
    """The costs of a pipeline.

    Attributes:
        stages: on the host, in order; the last one batches.
        transfers: the stages between batching and the step.
        step: the training step, also in seconds per example; its `limit` is not used.
        batch_size: examples per step.
        workers: threads or processes that run the stages before the echo stage; 0 if the thread of
            the step runs them, in turn with it.
        cores: processor cores that all of it shares.
    """

    stages: tuple[StageTime, ...]
    transfers: tuple[StageTime, ...]
    step: StageTime
    batch_size: int
    workers: int
    cores: float

    def upstream_seconds(self, count: int) -> float:
        """Seconds that the first `count` stages alone take for a batch of fresh examples."""
        return self.batch_size * self._ahead(count)

    def downstream_seconds(self, count: int) -> float:
        """Seconds per step of everything after the first `count` stages alone."""
        cpu = self._cpu_per_copy(count) / self.cores if self.workers else 0.0
        return self.batch_size * max(self._copy(count), cpu)

    def ratio(self, count: int) -> float:
        """R of an echo stage after the first `count` stages."""
        return self.upstream_seconds(count) / self.downstream_seconds(count)

    def step_seconds(self, count: int, factor: float) -> float:
        """Seconds per step with an echo stage of `factor` after the first `count` stages."""
        ahead, copy = self._ahead(count) / factor, self._copy(count)
        if not self.workers:
            return self.batch_size * (ahead + copy)
        cpu = self._cpu_per_copy(count) + _cpu(self.stages[:count]) / factor
        return self.batch_size * max(ahead, copy, cpu / self.cores)

    def baseline_seconds(self) -> float:
        """Seconds per step without an echo stage, with all host stages running ahead."""
        return self.step_seconds(len(self.stages), 1)

    def with_workers(self, workers: int) -> "Timing":
        """This timing with more workers, no more than `limit_of_more` was measured with."""
        if workers <= self.workers:
            return self
        limits = [min(stage.limit, stage.limit_of_more or stage.limit) for stage in self.stages]
        pairs = zip(self.stages, limits, strict=True)
        stages = tuple(dataclasses.replace(stage, limit=limit) for stage, limit in pairs)
        return dataclasses.replace(self, stages=stages, workers=workers)

    def changed(self, part: StageTime, factor: float) -> "Timing":
        """This timing with `part`, a stage, transfer, or the step, in `factor` times the time."""
        parts = [
            tuple(other.scaled(factor) if other is part else other for other in group)
            for group in (self.stages, self.transfers, [self.step])
        ]
        return dataclasses.replace(self, stages=parts[0], transfers=parts[1], step=parts[2][0])

    def _ahead(self, count: int) -> float:
        """Seconds per fresh example of stages that the workers run ahead, or run in turn."""
        stages = self.stages[:count]
        in_turn = sum(stage.seconds for stage in stages) / max(1, self.workers)
        limits = [_cpu(stages) / self.cores, *(s.limit for s in stages)] if self.workers else []
        return max([in_turn, *limits])

    def _copy(self, count: int) -> float:
        """Seconds per emitted example of the later stages on one thread, transfers, and step."""
        times = [part.seconds for part in (*self.transfers, self.step)]
        times.append(sum(stage.seconds for stage in self.stages[count:]))
        return max(times) if self.workers else sum(times)

    def _cpu_per_copy(self, count: int) -> float:
        return _cpu((*self.stages[count:], *self.transfers, self.step))


def _cpu(stages: Iterable[StageTime]) -> float:
    return sum(stage.cpu_seconds for stage in stages)
