"""The timing model: how long a step takes in a pipeline with an echo stage.

The slowest of these sets the pace: the stages before the echo stage, which `workers` run ahead at
1/e of the rate of the steps; the host stages after it, of one batch after another;
whatever follows batching (the transfer); the step; and the CPU time of them all, on `cores` cores.
Without workers (PyTorch's default), one thread runs all of it in turn. Where input and step
overlap, this is max(t_upstream / e, t_downstream) of Choi et al. (2019), so that e <= R is free.
"""

import dataclasses
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True)
class StageTime:
    """The cost of a stage, in seconds per example.

    Attributes:
        seconds: wall time of one worker that has the machine to itself.
        cpu_seconds: CPU time.
        limit: the minimum wall time, with all workers at once. A rate limit shows here, and so does
            Python code that cannot run in parallel; latency shows only in `seconds`.
        low, high: the fastest and the slowest round of the measurement of `seconds`.
    """

    name: str
    seconds: float
    cpu_seconds: float
    limit: float
    low: float = 0.0
    high: float = 0.0

    def scaled(self, factor: float) -> "StageTime":
        """This stage in `factor` times the time."""
        return StageTime(self.name, *(factor * time for time in [*vars(self).values()][1:]))


@dataclasses.dataclass(frozen=True)
class Timing:
    """The costs of a pipeline.

    Attributes:
        parts: the stages on the host in order, the last of which batches; those between batching
            and the step (transfers); the training step, whose `limit` is not used.
        num_stages: how many of them are on the host.
        batch_size: examples per step.
        workers: threads or processes that run the stages before the echo stage; 0 if the thread of
            the step runs them, in turn with it.
        cores: processor cores that all of it shares.
    """

    parts: tuple[StageTime, ...]
    num_stages: int
    batch_size: int
    workers: int
    cores: float

    def upstream_seconds(self, count: int) -> float:
        """Seconds that the first `count` stages alone take for a batch of fresh examples."""
        stages = self.parts[:count]
        times = [sum(stage.seconds for stage in stages) / max(1, self.workers)]
        if self.workers:
            times += [_cpu(stages) / self.cores, *(stage.limit for stage in stages)]
        return self.batch_size * max(times)

    def downstream_seconds(self, count: int) -> float:
        """Seconds per step of everything after the first `count` stages alone."""
        times = [part.seconds for part in self.parts[self.num_stages :]]
        times.append(sum(stage.seconds for stage in self.parts[count : self.num_stages]))
        cpu = _cpu(self.parts[count:]) / self.cores
        return self.batch_size * (max(cpu, *times) if self.workers else sum(times))

    def ratio(self, count: int) -> float:
        """R of an echo stage after the first `count` stages."""
        return self.upstream_seconds(count) / self.downstream_seconds(count)

    def step_seconds(self, count: int, factor: float) -> float:
        """Seconds per step with an echo stage of `factor` after the first `count` stages."""
        upstream, downstream = self.upstream_seconds(count) / factor, self.downstream_seconds(count)
        cpu = _cpu(self.parts[count:]) + _cpu(self.parts[:count]) / factor
        if not self.workers:
            return upstream + downstream
        return max(upstream, downstream, self.batch_size * cpu / self.cores)

    def baseline_seconds(self) -> float:
        """Seconds per step without an echo stage, with all host stages running ahead."""
        return self.step_seconds(self.num_stages, 1)

    def with_workers(self, workers: int) -> "Timing":
        """This timing with at least so many workers."""
        return dataclasses.replace(self, workers=max(workers, self.workers))

    def changed(self, part: StageTime, factor: float) -> "Timing":
        """This timing with one of its parts in `factor` times the time."""
        parts = tuple(p.scaled(factor) if p is part else p for p in self.parts)
        return dataclasses.replace(self, parts=parts)


def _cpu(parts: Sequence[StageTime]) -> float:
    return sum(part.cpu_seconds for part in parts)
