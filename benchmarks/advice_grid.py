"""Whether the advice is right: predicted against measured steps a second over a grid of R and e.

    python -m benchmarks.advice_grid --out=results/advice_grid.md       about 5 minutes a kind
    python -m benchmarks.advice_grid --quick                            a minute, to see it work

The digits' mini is read through the real pipeline, echoed before augmentation. Its upstream is
limited (a rate), HTTP (the same over a connection, from another process), or CPU-bound: hashing on
the cores that everything else needs too. The step takes a fixed time, as an accelerator's does, or
is the real training step on those same cores.

A processor's speed drifts by 10 to 20 % within minutes, so for each R every round takes the advice
anew, which predicts all factors, and runs all factors right after it; a ratio is of one round.
"""

import dataclasses
import functools
import pathlib
import statistics
from collections.abc import Callable, Sequence

import numpy as np

import advise
import echo
from benchmarks import common
from benchmarks.loops import STEP_SECONDS, FixedStep, Hashing, configuration, measured
from echo.advice.profile import wait_for
from pipeline import build
from training import experiment

WITHIN = 0.05


@dataclasses.dataclass(frozen=True)
class Grid:
    """What is measured."""

    ratios: tuple[int, ...] = (1, 2, 4, 6, 8)
    factors: tuple[int, ...] = echo.advice.recommend.FACTORS
    seconds: float = 1.3  # a cell, each round
    rounds: int = 3
    advice_seconds: float = 0.7  # a stage, each round


QUICK = Grid(ratios=(1, 4), factors=(1, 4), seconds=0.5, rounds=1, advice_seconds=0.2)

# name: (upstream, whether the step is the real one)
KINDS = {
    "limited": ("limited", False),
    "http": ("http", False),
    "cpu": ("cpu", False),
    "cpu+step": ("cpu", True),  # on the same cores
}


@dataclasses.dataclass(frozen=True)
class Cell:
    """Steps a second of one factor at one R, and that over what was predicted: medians."""

    rate: float
    ratio: float

    @classmethod
    def of(cls, rounds: Sequence[tuple[float, float]]) -> "Cell":
        """Of (predicted, measured) in each round."""
        rates, ratios = zip(*((rate, rate / predicted) for predicted, rate in rounds), strict=True)
        return cls(statistics.median(rates), statistics.median(ratios))


def row(
    upstream: str, real: bool, ratio: int, grid: Grid, report: Callable[[str], None]
) -> list[Cell]:
    """The cells of one R."""
    config = configuration(upstream, ratio, STEP_SECONDS)
    opened = experiment.opened(config)
    transfer, step = advise.step_functions(config, opened.program)
    if not real:
        step = FixedStep(STEP_SECONDS)
    if upstream == "cpu":
        seconds = STEP_SECONDS
        if real:
            batches = iter(build.build(config, opened.source, opened.program.task.workload))
            rows = wait_for(transfer(next(batches)))
            batches.close()
            rounds = echo.advice.profile.rounds(lambda: step(rows), grid.advice_seconds)
            seconds = float(np.median([wall for wall, _ in rounds]))
        an_example = ratio * seconds / config.batch_size * advise.CORES
        opened = dataclasses.replace(opened, source=Hashing(opened.source, an_example))
    found = {factor: [] for factor in grid.factors}
    for number in range(grid.rounds):
        advice = advise.measured(config, opened, transfer, step, grid.advice_seconds, grid.factors)
        point = advice.points[0]
        for factor in grid.factors:
            config.echo.factor = float(factor)
            rate = measured(config, opened, step, grid.seconds, transfer)
            found[factor].append((1 / point.step_seconds[factor], rate))
        report(
            f"R = {ratio}, round {number + 1}: measured as {point.ratio:.2f}, with the work of "
            f"{advice.timing.cores:.2f} cores; predicted and measured: "
            + ", ".join("{:.1f} {:.1f}".format(*rounds[-1]) for rounds in found.values())
        )
    return [Cell.of(rounds) for rounds in found.values()]


def table(grid: Grid, rows: dict[int, list[Cell]]) -> str:
    """Measured steps a second and, in brackets, measured / predicted."""
    header = ["R", *(f"e = {factor}" for factor in grid.factors)]
    lines = [
        [str(ratio), *(f"{cell.rate:.1f} ({cell.ratio:.2f})" for cell in cells)]
        for ratio, cells in rows.items()
    ]
    return common.markdown_table(header, lines)


def share_within(rows: dict[int, list[Cell]]) -> tuple[int, int]:
    cells = [cell for row in rows.values() for cell in row]
    return sum(abs(cell.ratio - 1) <= WITHIN for cell in cells), len(cells)


def draw(found: dict[str, dict[int, list[Cell]]], path: pathlib.Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.2 * len(found), 3.4), layout="constrained")
    for axes, (kind, rows) in zip(
        figure.subplots(1, len(found), squeeze=False)[0], found.items(), strict=True
    ):
        for ratio, cells in rows.items():
            predicted = [cell.rate / cell.ratio for cell in cells]
            rates = [cell.rate for cell in cells]
            axes.plot(predicted, rates, "o", label=f"R = {ratio}", markersize=4)
        limit = 1.05 * max(max(c.rate, c.rate / c.ratio) for cells in rows.values() for c in cells)
        axes.plot([0, limit], [0, limit], color="gray", linewidth=0.8)
        axes.set(title=kind, xlabel="predicted steps a second", ylabel="measured")
    axes.legend()
    figure.savefig(path, dpi=150)


def main(argv: list[str] | None = None) -> None:
    parser = common.arguments("advice_grid", __doc__)
    parser.add_argument("--quick", action="store_true", help="four cells a kind: a smoke run")
    parser.add_argument(
        "--kinds", default=",".join(KINDS), help="which upstreams (default: %(default)s)"
    )
    options = parser.parse_args(argv)
    kinds = options.kinds.split(",")
    for kind in kinds:
        if kind not in KINDS:
            parser.error(f"--kinds has {kind!r}; allowed: {parser.get_default('kinds')}")
    grid = QUICK if options.quick else Grid()
    found = {}
    for kind in kinds:
        common.progress(kind)
        found[kind] = {r: row(*KINDS[kind], r, grid, common.progress) for r in grid.ratios}
    text = [
        "# Predicted and measured steps a second",
        f"Measured, in brackets measured / predicted; median of {grid.rounds} rounds, "
        "each with its own prediction. " + common.machine(["jax", "grain", "numpy"]),
    ]
    for kind, rows in found.items():
        text += [f"## {kind}", table(grid, rows)]
        text += ["{} of {} cells within 5 %.".format(*share_within(rows))]
    common.publish("\n\n".join(text), options.out, functools.partial(draw, found))


if __name__ == "__main__":
    main()
