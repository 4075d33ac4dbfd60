"""Steps per second of an echoed pipeline as a share of min(e, R), over a grid of R and e.

    python -m benchmarks.efficiency --out=results/efficiency.md     about an hour
    python -m benchmarks.efficiency --quick                         a one-minute smoke run

Behind an upstream R times slower than the step, echoing by e can at best multiply the steps per
second by min(e, R). Upstreams and step are those of benchmarks/grid.py. `auto` is opportunistic
echoing, which is given neither R nor e; its bound is R.

A rate limit sets R exactly. Processor speed drifts by tens of percent on a shared machine, so the
bound of the CPU-bound upstream is derived from e = 1 of the same round.
"""

import dataclasses
import functools
import statistics
from collections.abc import Callable

import echo
from benchmarks import common, grid
from training.experiment import make_experiment

GOAL = 0.97
AUTO_BUFFER_BATCHES = 8


@dataclasses.dataclass(frozen=True)
class Grid:
    """What is measured."""

    ratios: tuple[int, ...] = (1, 2, 4, 6, 8)
    factors: tuple[grid.Factor, ...] = (*grid.FACTORS, "auto")
    seconds: float = 6.0  # per cell and round; the rate limit holds on average, not at once
    rounds: int = 2


QUICK = Grid(ratios=(1, 4), factors=(1, 4, "auto"), seconds=0.5, rounds=1)

Rows = dict[int, dict[grid.Factor, float]]


def prepare_row(
    upstream: str, placement: str, plan: Grid, ratio: int
) -> Callable[[int], dict[grid.Factor, float]]:
    """A function that measures one round of a row: steps per second over their bound, by factor."""
    cells, source = {}, None
    for factor in plan.factors:
        buffer = AUTO_BUFFER_BATCHES if factor == "auto" else 0
        config = grid.configuration(upstream, ratio, factor, buffer)
        config.echo.placement = config.augment_on = placement
        opened = make_experiment(config)
        if upstream == "cpu":  # one source for all factors, so that they hash equally long
            if source is None:
                source = grid.cpu_bound(opened, config, ratio * grid.STEP_SECONDS).source
            opened = dataclasses.replace(opened, source=source)
        cells[factor] = config, opened

    def rate(factor: grid.Factor) -> float:
        config, opened = cells[factor]
        return grid.steps_per_second(config, opened, grid.FixedStep(), plan.seconds)

    def one_round(number: int) -> dict[grid.Factor, float]:
        rates = common.in_shuffled_order(cells, rate, number)
        baseline = rates[1] if upstream == "cpu" else 1 / (ratio * grid.STEP_SECONDS)
        return {factor: rate / upper_bound(factor, baseline) for factor, rate in rates.items()}

    return one_round


def upper_bound(factor: grid.Factor, baseline: float) -> float:
    """The highest possible steps per second, given those without echoing."""
    limit = 1 / grid.STEP_SECONDS
    return limit if isinstance(factor, str) else min(factor * baseline, limit)


def draw(axes, rows: Rows) -> None:
    """Speedup over no echoing by factor, with min(e, R) as a line."""
    for number, (ratio, row) in enumerate(rows.items()):
        factors = [factor for factor in row if not isinstance(factor, str)]
        color = f"C{number}"
        axes.plot(factors, [min(f, ratio) for f in factors], color=color, linewidth=0.8)
        axes.plot(factors, [row[f] * min(f, ratio) for f in factors], "o", color=color)
        axes.annotate(
            f"R = {ratio}",
            (factors[-1], ratio),
            (4, -3),
            color=color,
            textcoords="offset points",
            fontsize=8,
            annotation_clip=False,
        )
    axes.set_xlabel("echo factor e")


def main(argv: list[str] | None = None) -> None:
    parser = common.arguments(__spec__.name, __doc__, Grid(), QUICK)
    for flag, allowed in (("upstreams", grid.UPSTREAMS), ("placements", echo.PLACEMENTS)):
        common.add_list(parser, f"--{flag}", common.one_of(allowed), ",".join(allowed))
    options = parser.parse_args(argv)
    plan = common.plan(options, Grid(), QUICK)
    text = [
        "# Steps per second as a share of min(e, R)",
        "Does echoing run as many steps per second as it could? Measured by "
        "`python -m benchmarks.efficiency` on " + common.machine(["jax", "grain", "numpy"]),
        f"A step takes {grid.STEP_SECONDS * 1000:g} ms. Cells are medians of {plan.rounds} rounds "
        f"of {plan.seconds:g} s. `auto`: a share of R, at most 16 copies.",
    ]
    panels: dict[str, Rows] = {}
    for upstream in options.upstreams:
        for placement in options.placements:
            title = f"{upstream}, {placement}"
            prepare = functools.partial(prepare_row, upstream, placement, plan)
            measured = grid.measure(plan.ratios, plan.rounds, prepare, f"{title}, R =")
            panels[title] = rows = {
                ratio: {factor: statistics.median(shares) for factor, shares in row.items()}
                for ratio, row in measured.items()
            }
            shares = [share for row in rows.values() for share in row.values()]
            reached = sum(share >= GOAL for share in shares)
            text += [f"## Upstream {title} placement", grid.table(rows, "{:.3f}".format)]
            text += [f"{reached} of {len(shares)} cells at {GOAL} or more."]
    ylabel = "steps per second over those\nwithout echoing (lines: min(e, R))"
    figure = functools.partial(common.drawn_panels, panels, draw, ylabel=ylabel)
    common.publish("\n\n".join(text), options.out, figure)


if __name__ == "__main__":
    main()
