"""Fixed factors against opportunistic echoing where upstream comes in bursts.

    python -m benchmarks.bursty --out=results/bursty.md     about five minutes
    python -m benchmarks.bursty --quick                     to see it work

Upstream is as fast as the step for a while, then nothing comes for as long. No fixed factor fits: a
small one leaves the device waiting in the stalls, a large one throttles upstream in the bursts. The
digits' mini is read through the real pipeline and echoed before augmentation; a step takes a fixed
time, as an accelerator's does. Two numbers count: how busy the device is, and how many of the fresh
examples that upstream could have given were used.
"""

import dataclasses
import functools
import pathlib
import time

from benchmarks import common
from benchmarks.loops import STEP_SECONDS, FixedStep, configuration
from pipeline import build
from training import experiment

FACTORS = (1, 2, 3, 4, 6, 8, "auto")


@dataclasses.dataclass(frozen=True)
class Case:
    """One shape of upstream, in seconds, with its speed in a burst over that of the step."""

    burst: float
    stall: float
    speed: float = 1.0

    @property
    def mean_rate(self) -> float:
        """Fresh examples that it can give, over those that a device without echoing takes."""
        return self.speed * self.burst / (self.burst + self.stall)

    def __str__(self) -> str:
        return f"{self.burst:g} s at {self.speed:g} x the step's speed, {self.stall:g} s of nothing"


CASES = (Case(0.5, 0.5), Case(0.5, 1.5), Case(0.25, 0.75, 2.0))


def measure(case: Case, factor: int | str, seconds: float) -> tuple[float, float]:
    """(share of time in which the device is busy, share of upstream's examples that are used)."""
    config = configuration("limited", 1, STEP_SECONDS)
    config.upstream.examples_per_second *= case.speed
    config.upstream.stall_every_seconds, config.upstream.stall_seconds = case.burst, case.stall
    config.echo.shuffle_buffer = 16 * config.batch_size
    if factor == "auto":
        config.echo.policy = "auto"
    else:
        config.echo.factor = float(factor)
    opened, step = experiment.opened(config), FixedStep(STEP_SECONDS)
    workload = opened.program.task.workload
    iterator = iter(build.build(config, opened.source, workload, slack=step.slack))
    try:
        next(iterator)  # the buffer's filling is not what is compared
        periods = max(1, round(seconds / (case.burst + case.stall)))
        end = time.perf_counter() + periods * (case.burst + case.stall)
        begin, first, steps, fresh = time.perf_counter(), None, 0, 0
        while time.perf_counter() < end:
            batch = next(iterator)
            first = batch.fresh_examples if first is None else first
            fresh, steps = batch.fresh_examples - first, steps + 1
            step(batch)
        elapsed = time.perf_counter() - begin
    finally:
        iterator.close()
    device_rate = config.batch_size / STEP_SECONDS
    return steps * STEP_SECONDS / elapsed, fresh / (elapsed * device_rate * case.mean_rate)


def draw(found: dict[str, dict[int | str, common.Spread]], path: pathlib.Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.0 * len(found), 3.0), layout="constrained")
    for axes, (title, row) in zip(
        figure.subplots(1, len(found), squeeze=False, sharey=True)[0], found.items(), strict=True
    ):
        for place, (factor, spread) in enumerate(row.items()):
            color = "C1" if factor == "auto" else "C0"
            axes.plot([place] * 2, [spread.low, spread.high], color=color)
            axes.plot(place, spread.median, "o", color=color)
        axes.set_xticks(range(len(row)), [str(factor) for factor in row])
        axes.set_title(title.replace(", ", ",\n"), fontsize=8)
        axes.set(xlabel="echoing factor e", ylim=(0, 1.05))
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[0].set_ylabel("share of time in which\nthe device is busy")
    figure.savefig(path, dpi=150)


def main(argv: list[str] | None = None) -> None:
    parser = common.arguments("bursty", __doc__)
    parser.add_argument("--quick", action="store_true", help="a few seconds a case: a smoke run")
    parser.add_argument("--rounds", type=int, default=3, help="in turns (default: %(default)s)")
    options = parser.parse_args(argv)
    cases, factors, rounds, seconds = CASES, FACTORS, options.rounds, 4.0
    if options.quick:
        cases, factors, rounds, seconds = CASES[:1], (1, 4, "auto"), 1, 1.0
    text = [
        "# Echoing behind an upstream that comes in bursts",
        f"Median of {rounds} rounds in turns (smallest to largest); a step takes "
        f"{STEP_SECONDS * 1000:g} ms; a buffer of 16 batches, for `auto` the most that is stored. "
        + common.machine(["jax", "grain", "numpy"]),
    ]
    found = {}
    for case in cases:
        values = {factor: [] for factor in factors}
        for _ in range(rounds):
            for factor in factors:
                values[factor].append(measure(case, factor, seconds))
        busy = {f: common.Spread(tuple(b for b, _ in v)) for f, v in values.items()}
        used = {f: common.Spread(tuple(u for _, u in v)) for f, v in values.items()}
        found[str(case)] = busy
        lines = [[str(f), _shown(busy[f]), _shown(used[f])] for f in factors]
        header = ["e", "device busy", "upstream's examples used"]
        text += [f"## {case}", common.markdown_table(header, lines)]
        common.progress(text[-1])
    common.publish("\n\n".join(text), options.out, functools.partial(draw, found))


def _shown(spread: common.Spread) -> str:
    return f"{spread.median:.2f} ({spread.low:.2f} to {spread.high:.2f})"


if __name__ == "__main__":
    main()
