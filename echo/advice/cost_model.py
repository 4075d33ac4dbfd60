"""The timing model: how long a step takes in a pipeline with an echo stage.

Choi et al. (2019) take everything before the stage and everything after it to overlap: one upstream
batch and e steps take max(t_upstream, e * t_downstream), so that e <= R = t_upstream / t_downstream
is free (`study_step_seconds`). `Timing` keeps that and adds what happens around it on one machine:

* what comes before the stage runs ahead on `workers` threads, at 1/e of the pace of the steps;
* what comes after it on the host runs at every step, on the one thread that makes batches ready;
* what follows batching (the transfer) overlaps with the step;
* processor time of all of these, and of a step that runs on the same cores, adds up, and `cores`
  cores have to find it, which find less of it when all is run at once (`under_contention`).

The slowest of these sets the pace.
"""

import dataclasses


def study_step_seconds(upstream: float, downstream: float, factor: float) -> float:
    """Seconds a step by the study's formula, of seconds a batch upstream and a step downstream."""
    return max(upstream / factor, downstream)


@dataclasses.dataclass(frozen=True)
class StageTime:
    """What a stage costs, in seconds an example.

    Attributes:
        seconds: wall clock, of one worker that has the machine to itself.
        cpu_seconds: processor time.
        limit: wall clock at best, all workers asking at once. A rate limit shows here, and so does
            Python that cannot run side by side; mere latency shows in `seconds` alone.
        low, high: of `seconds`, the fastest and the slowest round of the measurement.
    """

    name: str
    seconds: float
    cpu_seconds: float
    limit: float
    low: float = 0.0
    high: float = 0.0


@dataclasses.dataclass(frozen=True)
class Timing:
    """A pipeline's costs.

    Attributes:
        stages: on the host, in order; the last one batches.
        transfers: what follows batching on its way to the step.
        step: likewise in seconds an example; its `limit` is not used.
        batch_size: examples a step.
        workers: threads or processes that run what comes before the echo stage.
        cores: processor cores that all of it shares: a fraction where others use them too, or where
            work done side by side takes longer.
    """

    stages: tuple[StageTime, ...]
    transfers: tuple[StageTime, ...]
    step: StageTime
    batch_size: int
    workers: int
    cores: float

    def upstream_seconds(self, count: int) -> float:
        """Seconds that the first `count` stages need for a batch of fresh examples, alone."""
        return self.batch_size * self._ahead(self.stages[:count])

    def downstream_seconds(self, count: int) -> float:
        """Seconds that a step needs with all that follows the first `count` stages, alone."""
        after = self.stages[count:]
        return self.batch_size * max(self._each_step(after), self._cpu(after, ()) / self.cores)

    def ratio(self, count: int) -> float:
        """R of an echo stage behind the first `count` stages."""
        return self.upstream_seconds(count) / self.downstream_seconds(count)

    def step_seconds(self, count: int, factor: float) -> float:
        """Seconds a step with an echo stage of `factor` behind the first `count` stages."""
        before, after = self.stages[:count], self.stages[count:]
        upstream = self._ahead(before) / factor
        shared = self._cpu(after, before, 1 / factor) / self.cores
        return self.batch_size * max(upstream, self._each_step(after), shared)

    def baseline_seconds(self) -> float:
        """Seconds a step without an echo stage, all of the host's stages running ahead."""
        return self.step_seconds(len(self.stages), 1)

    def under_contention(self, used: float, found: float) -> "Timing":
        """The same with the cores that are left once everything runs at once.

        Stages and step are measured one at a time. Side by side the same work takes more processor
        time (caches, memory, hardware threads of one core), and threads that share a task wait for
        each other. So what is lost is taken off the cores: processor time beyond what its work is
        worth, and time that the two sides would use, each at its own pace, and do not get. If they
        can fill the cores, what is left is `found`. If not (a step on an accelerator, an upstream
        that waits), idle cores are no loss, and little can be lost of the little that is used: a
        difference, unlike a ratio, leaves such cores as they are whatever the noise.

        Args:
            used: processor seconds a second while all stages and the step run as fast as they can.
            found: processor seconds that the same calls take alone, a second.
        """
        behind = (*self.transfers, self.step)  # of one thread, one after another
        upstream = sum(stage.cpu_seconds for stage in self.stages) / self._ahead(self.stages)
        downstream = self._cpu((), ()) / sum(stage.seconds for stage in behind)
        wanted = min(self.cores, max(used, upstream + downstream))
        return dataclasses.replace(self, cores=self.cores - max(0.0, wanted - found))

    def _ahead(self, stages: tuple[StageTime, ...]) -> float:
        """Seconds a fresh example, of stages that workers run ahead."""
        in_turn = sum(stage.seconds for stage in stages) / self.workers
        cpu = sum(stage.cpu_seconds for stage in stages) / self.cores
        return max([in_turn, cpu, *(stage.limit for stage in stages)])

    def _each_step(self, stages: tuple[StageTime, ...]) -> float:
        """Seconds an example shown, of what no worker runs ahead."""
        one_thread = sum(stage.seconds for stage in stages)
        return max([one_thread, self.step.seconds, *(stage.seconds for stage in self.transfers)])

    def _cpu(
        self,
        each_step: tuple[StageTime, ...],
        fresh: tuple[StageTime, ...],
        fresh_share: float = 0.0,
    ) -> float:
        """Processor seconds an example shown."""
        shown = (*each_step, *self.transfers, self.step)
        return sum(stage.cpu_seconds for stage in shown) + fresh_share * sum(
            stage.cpu_seconds for stage in fresh
        )
