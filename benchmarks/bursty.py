"""Fixed factors and opportunistic echoing behind an upstream that stalls.

    python -m benchmarks.bursty --out=results/bursty.md     about five minutes
    python -m benchmarks.bursty --quick                     a short smoke run

The upstream delivers for a while at the speed of the step, or faster, and then stalls. No fixed
factor fits: a small one leaves the device waiting during stalls, a large one throttles the upstream
during bursts. Pipeline and step are those of benchmarks/grid.py. The benchmark reports how busy the
device is, and what share of the upstream's fresh examples is used.
"""

import dataclasses
import functools
import time

from benchmarks import common, grid
from pipeline import build
from pipeline.streams import AutoPolicy
from training.experiment import make_experiment

BUFFER_BATCHES = 16


@dataclasses.dataclass(frozen=True)
class Case:
    """How an upstream stalls.

    Attributes:
        burst: seconds of delivery.
        stall: seconds of nothing.
        speed: fresh examples per second in a burst over examples per second of the step.
    """

    burst: float
    stall: float
    speed: float = 1.0

    @property
    def mean_rate(self) -> float:
        """Mean fresh examples per second over examples per second of the step."""
        return self.speed * self.burst / (self.burst + self.stall)

    def __str__(self) -> str:
        return f"{self.burst:g} s at {self.speed:g} x the step's speed, {self.stall:g} s of nothing"


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is measured."""

    cases: tuple[Case, ...] = (Case(0.5, 0.5), Case(0.5, 1.5), Case(0.25, 0.75, 2.0))
    factors: tuple[grid.Factor, ...] = (1, 2, 3, 4, 6, 8, "auto")
    seconds: float = 4.0  # per cell and round
    rounds: int = 3


QUICK = Plan(cases=(Case(0.5, 0.5),), factors=(1, 4, "auto"), seconds=1.0, rounds=1)


def measure_row(plan: Plan, case: Case, number: int) -> dict[grid.Factor, tuple[float, float]]:
    """Measures every factor once, in round `number`."""
    return common.in_shuffled_order(
        plan.factors, lambda factor: measure(case, factor, plan.seconds), number
    )


def measure(case: Case, factor: grid.Factor, seconds: float) -> tuple[float, float]:
    """(share of time that the device is busy, share of the upstream's examples that is used)."""
    config = grid.configuration("limited", 1 / case.speed, factor, BUFFER_BATCHES)
    config.upstream.stall_every_seconds, config.upstream.stall_seconds = case.burst, case.stall
    opened, step = make_experiment(config), grid.FixedStep()
    workload = opened.program.task.workload
    streams = AutoPolicy(config, step.slack) if factor == "auto" else None
    iterator = iter(build.build(config, opened.source, workload, policy=streams))
    try:
        next(iterator)  # fills the buffer, outside the measurement
        period = case.burst + case.stall
        begin, first, steps, fresh = time.perf_counter(), None, 0, 0
        end = begin + max(1, round(seconds / period)) * period
        while time.perf_counter() < end:
            batch = next(iterator)
            first = batch.fresh_examples if first is None else first
            fresh, steps = batch.fresh_examples - first, steps + 1
            step(batch)
        elapsed = time.perf_counter() - begin
    finally:
        iterator.close()
    device_rate = config.batch_size / grid.STEP_SECONDS
    return steps * grid.STEP_SECONDS / elapsed, fresh / (elapsed * device_rate * case.mean_rate)


def draw(axes, busy: dict[grid.Factor, common.Spread]) -> None:
    """How busy the device is, by factor."""
    for place, (factor, spread) in enumerate(busy.items()):
        color = "C1" if factor == "auto" else "C0"
        axes.plot([place] * 2, [spread.low, spread.high], color=color)
        axes.plot(place, spread.median, "o", color=color)
    axes.set_xticks(range(len(busy)), [str(factor) for factor in busy])
    axes.set(xlabel="echo factor e", ylim=(0, 1.05))


def main(argv: list[str] | None = None) -> None:
    parser = common.arguments(__spec__.name, __doc__, Plan(), QUICK, rounds="number of rounds")
    options = parser.parse_args(argv)
    plan = common.plan(options, Plan(), QUICK)
    text = [
        "# Echoing behind an upstream that stalls",
        "How busy do fixed factors and `auto` keep the device if the upstream stalls? A fixed "
        "factor leaves it idle during stalls, or slows the upstream during bursts. Measured by "
        "`python -m benchmarks.bursty` on " + common.machine(["jax", "grain", "numpy"]),
        f"Median of {plan.rounds} interleaved rounds (smallest to largest). A step takes "
        f"{grid.STEP_SECONDS * 1000:g} ms. The buffer holds {BUFFER_BATCHES} batches; under `auto` "
        "that is the maximum.",
    ]
    panels = {}
    rows = grid.measure(
        plan.cases, plan.rounds, lambda case: functools.partial(measure_row, plan, case)
    )
    for case, row in rows.items():
        columns = {factor: list(zip(*rounds, strict=True)) for factor, rounds in row.items()}
        spreads = {f: [common.Spread(values) for values in both] for f, both in columns.items()}
        panels[str(case).replace(", ", ",\n")] = {f: busy for f, (busy, _) in spreads.items()}
        lines = [[str(f), f"{busy:.2f}", f"{used:.2f}"] for f, (busy, used) in spreads.items()]
        header = ["e", "device busy", "upstream's examples used"]
        text += [f"## {case}", common.markdown_table(header, lines)]
    ylabel = "share of time in which\nthe device is busy"
    figure = functools.partial(common.drawn_panels, panels, draw, ylabel=ylabel)
    common.publish("\n\n".join(text), options.out, figure)


if __name__ == "__main__":
    main()
