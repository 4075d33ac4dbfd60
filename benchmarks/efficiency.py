"""Steps per second of an echoed pipeline as a share of min(e, R), over a grid of R and e.

    python -m benchmarks.efficiency --out=results/efficiency.md     about a quarter of an hour
    python -m benchmarks.efficiency --quick                         a one-minute smoke run

Behind an upstream R times slower than the step, echoing by e can at best multiply the steps per
second by min(e, R). Upstreams and step are those of benchmarks/grid.py. `auto` is opportunistic
echoing, which is given neither R nor e; its bound is R.

A rate limit sets R exactly. Processor speed drifts by tens of percent on a shared machine, so the
bound of the CPU-bound upstream is derived from e = 1 of the same round.

`limited+step` is the training loop of train.py (ResNet-8 on the digits mini, batches of 512) behind
a rate limit, with its real step, on the cores that prepare the batches too. Its bound is derived
from the steps per second of the same loop on batches in memory, measured first and last in each
round. The limit is R times slower than the first.
"""

import dataclasses
import functools
import itertools
import pathlib
import statistics
import tempfile
import time
from collections.abc import Callable

import grain
import numpy as np
from ml_collections import ConfigDict

import echo
import train
from benchmarks import common, grid, wall_time
from echo.advice import recommend
from runs.progress import Progress
from training.experiment import Experiment, make_experiment

GOAL = 0.97
AUTO_BUFFER_BATCHES = 8
REAL_STEP = "limited+step"


@dataclasses.dataclass(frozen=True)
class Grid:
    """What is measured."""

    ratios: tuple[int, ...] = (1, 2, 4, 6, 8)
    factors: tuple[grid.Factor, ...] = (*recommend.FACTORS, "auto")
    seconds: float = 1.5  # per cell and round
    rounds: int = 2
    step_ratios: tuple[int, ...] = (6,)  # of the real step
    step_factors: tuple[grid.Factor, ...] = (1, 2, 4, 5, 6, 7, 8, "auto")


QUICK = Grid(
    ratios=(1, 4), factors=(1, 4, "auto"), seconds=0.5, rounds=1, step_factors=(1, 4, "auto")
)

Rows = dict[int, dict[grid.Factor, float]]


def prepare_row(
    upstream: str, placement: str, plan: Grid, ratio: int
) -> Callable[[], dict[grid.Factor, float]]:
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

    def one_round() -> dict[grid.Factor, float]:
        baseline, shares = 1 / (ratio * grid.STEP_SECONDS), {}
        for factor, (config, opened) in cells.items():
            rate = grid.steps_per_second(config, opened, grid.FixedStep(), plan.seconds)
            if upstream == "cpu" and factor == 1:
                baseline = rate
            shares[factor] = rate / upper_bound(factor, baseline)
        return shares

    return one_round


def upper_bound(factor: grid.Factor, baseline: float) -> float:
    """The highest possible steps per second, given those without echoing."""
    limit = 1 / grid.STEP_SECONDS
    return limit if isinstance(factor, str) else min(factor * baseline, limit)


def prepare_real_row(
    placement: str, plan: Grid, ratio: int
) -> Callable[[], dict[grid.Factor, float]]:
    """Like `prepare_row`, with the training loop and its step."""

    def one_round() -> dict[grid.Factor, float]:
        stored = functools.partial(trained_per_second, plan, placement, "stored")
        first = stored()
        limit = first / ratio * wall_time.Plan.batch_size
        rates = {
            factor: trained_per_second(plan, placement, factor, limit)
            for factor in plan.step_factors
        }
        highest = statistics.mean((first, stored()))
        bounds = {
            factor: highest if isinstance(factor, str) else min(factor * first / ratio, highest)
            for factor in rates
        }
        return {factor: rate / bounds[factor] for factor, rate in rates.items()}

    return one_round


def trained_per_second(
    plan: Grid, placement: str, factor: grid.Factor, examples_per_second: float = 0.0
) -> float:
    """Steps per second of train.py in steady state.

    Args:
        plan: for how long to measure; the warm-up takes half as long.
        placement: of the echoed items, and of augmentation.
        factor: an echo factor, "auto", or "stored" for batches in memory.
        examples_per_second: of the upstream; 0 for no limit.
    """
    experiment = make_experiment(real_configuration(placement, factor, examples_per_second))
    if factor == "stored":
        experiment = dataclasses.replace(experiment, batches=StoredBatches(experiment))
    times: list[float] = []
    with tempfile.TemporaryDirectory() as scratch:
        workdir = pathlib.Path(scratch) / "run"
        loop = train.step_by_step(experiment, workdir, Progress(quiet=True), lambda step: False)
        for _ in itertools.takewhile(
            lambda _: not times or times[-1] < times[0] + 1.5 * plan.seconds, loop
        ):
            if experiment.stepper.compiled:
                times.append(time.perf_counter())
        loop.close()
    times = [moment for moment in times if moment > times[0] + 0.5 * plan.seconds]
    return float(np.polyfit(times, np.arange(len(times)), 1)[0])


def real_configuration(
    placement: str, factor: grid.Factor, examples_per_second: float
) -> ConfigDict:
    """The configuration of benchmarks/wall_time.py, which never evaluates nor ends."""
    config = wall_time.configuration(wall_time.Plan())
    config.target.value = 2.0
    config.budget.fresh_examples = config.evaluate_every_fresh_examples = 10**8
    config.upstream.examples_per_second = examples_per_second
    config.echo.placement = config.augment_on = placement
    if factor in (1, "stored"):
        config.echo.placement = "host"
        return config
    config.echo.insertion = "before_augmentation"
    if factor == "auto":
        config.echo.policy = "auto"
        config.echo.shuffle_buffer = AUTO_BUFFER_BATCHES * config.batch_size
    else:
        config.echo.factor = float(factor)
        config.echo.shuffle_buffer = 4 * config.batch_size
    return config


class StoredBatches(grain.IterDataset):
    """A few batches of an experiment, over and over."""

    def __init__(self, experiment: Experiment, count: int = 8):
        super().__init__()
        iterator = iter(experiment.batches)
        self._batches = [next(iterator) for _ in range(count)]
        iterator.close()

    def __iter__(self) -> grain.DatasetIterator:
        repeated = grain.MapDataset.source(self._batches).repeat()
        return iter(repeated.to_iter_dataset(grain.ReadOptions(0, 0)))


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
    parser = common.arguments(
        "efficiency", __doc__, Grid(), QUICK, rounds="rounds", seconds="seconds per cell and round"
    )
    upstreams = (*grid.UPSTREAMS, REAL_STEP)
    for flag, allowed in (("upstreams", upstreams), ("placements", echo.PLACEMENTS)):
        common.add_list(parser, f"--{flag}", common.one_of(allowed), ",".join(allowed))
    options = parser.parse_args(argv)
    plan = common.plan(options, Grid(), QUICK)
    text = [
        "# Steps per second as a share of min(e, R)",
        f"A step takes {grid.STEP_SECONDS * 1000:g} ms; median of {plan.rounds} rounds of "
        f"{plan.seconds:g} s. `auto`: a share of R, at most 16 copies. "
        + common.machine(["jax", "grain", "numpy"]),
    ]
    panels: dict[str, Rows] = {}
    for upstream in options.upstreams:
        for placement in options.placements:
            title = f"{upstream}, {placement}"
            prepare, ratios = functools.partial(prepare_row, upstream, placement, plan), plan.ratios
            if upstream == REAL_STEP:
                prepare = functools.partial(prepare_real_row, placement, plan)
                ratios = plan.step_ratios
            measured = grid.measure(ratios, plan.rounds, prepare, f"{title}, R =")
            panels[title] = rows = {
                ratio: {factor: statistics.median(shares) for factor, shares in row.items()}
                for ratio, row in measured.items()
            }
            shares = [share for row in rows.values() for share in row.values()]
            reached = sum(share >= GOAL for share in shares)
            text += [f"## Upstream {title} placement", grid.table(rows, "{:.3f}".format)]
            text += [f"{reached} of {len(shares)} cells at {GOAL} or more."]
    ylabel = "steps per second over those\nwithout echoing (lines: min(e, R))"
    save = functools.partial(common.save_panels, panels, draw, ylabel=ylabel)
    common.publish("\n\n".join(text), options.out, save)


if __name__ == "__main__":
    main()
