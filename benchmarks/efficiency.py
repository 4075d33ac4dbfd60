"""How much of min(e, R) echoing really buys: steps a second over a grid of R and e.

    python -m benchmarks.efficiency --out=results/efficiency.md     about a quarter of an hour
    python -m benchmarks.efficiency --quick                         a minute, to see it work

Behind an upstream R times slower than the step, echoing by e cannot make more than min(e, R) times
the steps a second of no echoing. The digits' mini is read through the real pipeline and echoed
before augmentation; a step takes a fixed time, as an accelerator's does. Upstream is limited (a
rate), HTTP (the same from another process, over a connection), or CPU-bound, on the cores that the
pipeline needs too. `auto` is opportunistic echoing, which is told neither R nor e; its bound is R.

A limit sets R exactly. How fast processor time is spent drifts by tens of per cent on a shared
machine, so the bound of a CPU-bound upstream is taken from the e = 1 of the same round.
"""

import dataclasses
import functools
import pathlib
import statistics

import echo
from benchmarks import common
from benchmarks.loops import STEP_SECONDS, FixedStep, Hashing, configuration, measured
from pipeline.map_datasets import CORES
from training import experiment

GOAL = 0.97
UPSTREAMS = ("limited", "http", "cpu")


@dataclasses.dataclass(frozen=True)
class Grid:
    """What is measured."""

    ratios: tuple[int, ...] = (1, 2, 4, 6, 8)
    factors: tuple[int | str, ...] = (*echo.advice.recommend.FACTORS, "auto")
    seconds: float = 1.5  # a cell, each round
    rounds: int = 2


QUICK = Grid(ratios=(1, 4), factors=(1, 4, "auto"), seconds=0.5, rounds=1)


def cell_configuration(upstream: str, placement: str, ratio: int, factor: int | str):
    """The configuration of one cell."""
    config = configuration(upstream, ratio, STEP_SECONDS)
    config.echo.placement = placement
    config.augment_on = placement
    if factor == "auto":
        config.echo.policy = "auto"
        config.echo.shuffle_buffer = 8 * config.batch_size
    else:
        config.echo.factor = float(factor)
    return config


def shares(upstream: str, placement: str, ratio: int, grid: Grid) -> dict[int | str, float]:
    """Steps a second over the bound, by factor, at one R; the median of the rounds."""
    cells = {f: cell_configuration(upstream, placement, ratio, f) for f in grid.factors}
    opened = {factor: experiment.opened(config) for factor, config in cells.items()}
    if upstream == "cpu":
        first = cells[grid.factors[0]]
        slow = Hashing(
            opened[grid.factors[0]].source, ratio * STEP_SECONDS / first.batch_size * CORES
        )
        opened = {f: dataclasses.replace(each, source=slow) for f, each in opened.items()}
    found = {factor: [] for factor in cells}
    for _ in range(grid.rounds):
        alone = 1 / (ratio * STEP_SECONDS)
        for factor, config in cells.items():
            rate = measured(config, opened[factor], FixedStep(STEP_SECONDS), grid.seconds)
            if upstream == "cpu" and factor == 1:
                alone = rate
            found[factor].append(rate / bound(factor, alone))
    return {factor: statistics.median(shares) for factor, shares in found.items()}


def bound(factor: int | str, alone: float) -> float:
    """The most steps a second, where no echoing makes `alone`."""
    return 1 / STEP_SECONDS if factor == "auto" else min(factor * alone, 1 / STEP_SECONDS)


def table(grid: Grid, rows: dict[int, dict[int | str, float]]) -> str:
    header = ["R", *(f if f == "auto" else f"e = {f}" for f in grid.factors)]
    lines = [[str(r), *(f"{share:.3f}" for share in row.values())] for r, row in rows.items()]
    return common.markdown_table(header, lines)


def draw(found: dict[str, dict[int, dict[int | str, float]]], path: pathlib.Path) -> None:
    """Speedup over no echoing against e, beside min(e, R)."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.2 * len(found), 3.2), layout="constrained")
    for axes, (title, rows) in zip(
        figure.subplots(1, len(found), squeeze=False, sharey=True)[0], found.items(), strict=True
    ):
        for number, (ratio, row) in enumerate(rows.items()):
            factors = [factor for factor in row if factor != "auto"]
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
        axes.set(title=title, xlabel="echoing factor e")
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[0].set_ylabel("times the steps a second\nof no echoing (lines: min(e, R))")
    figure.savefig(path, dpi=150)


def main(argv: list[str] | None = None) -> None:
    parser = common.arguments("efficiency", __doc__)
    parser.add_argument("--quick", action="store_true", help="a few cells: a smoke run")
    parser.add_argument(
        "--upstreams", default=",".join(UPSTREAMS), help="which ones (default: %(default)s)"
    )
    parser.add_argument(
        "--placements", default="host,device", help="where items are kept (default: %(default)s)"
    )
    options = parser.parse_args(argv)
    for name, allowed in (("upstreams", UPSTREAMS), ("placements", echo.PLACEMENTS)):
        for value in getattr(options, name).split(","):
            if value not in allowed:
                parser.error(f"--{name} has {value!r}; allowed: {', '.join(allowed)}")
    grid, found = QUICK if options.quick else Grid(), {}
    for upstream in options.upstreams.split(","):
        for placement in options.placements.split(","):
            rows = found[f"{upstream}, {placement}"] = {}
            for ratio in grid.ratios:
                rows[ratio] = shares(upstream, placement, ratio, grid)
                common.progress(f"{upstream}, {placement}, R = {ratio}: {rows[ratio]}")
    text = [
        "# Steps a second as a share of min(e, R)",
        f"A step takes {STEP_SECONDS * 1000:g} ms; median of {grid.rounds} rounds of "
        f"{grid.seconds:g} s. `auto`: a share of R, at most 16 showings. "
        + common.machine(["jax", "grain", "numpy"]),
    ]
    for title, rows in found.items():
        cells = [share for row in rows.values() for share in row.values()]
        reached = sum(share >= GOAL for share in cells)
        text += [f"## Upstream {title} placement", table(grid, rows)]
        text += [f"{reached} of {len(cells)} cells at {GOAL} or more."]
    common.publish("\n\n".join(text), options.out, functools.partial(draw, found))


if __name__ == "__main__":
    main()
