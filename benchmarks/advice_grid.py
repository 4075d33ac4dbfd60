"""Accuracy of the advice: predicted and measured steps per second over a grid of R and e.

    python -m benchmarks.advice_grid --out=results/advice_grid.md       about 5 minutes per kind
    python -m benchmarks.advice_grid --quick                            a one-minute smoke run

Kinds are the upstreams of benchmarks/grid.py with a step of fixed time, and `cpu+step`, a CPU-bound
upstream with the real training step on the same cores.

Processor speed drifts by 10 to 20% within minutes. Every round of a row therefore asks for advice,
which predicts all factors, and then measures all factors; a ratio compares values of one round.
"""

import dataclasses
import functools
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

import advise
from benchmarks import common, grid
from echo.advice import profile
from pipeline import build
from training.experiment import make_experiment

TOLERANCE = 0.05


@dataclasses.dataclass(frozen=True)
class Grid:
    """What is measured."""

    ratios: tuple[int, ...] = (1, 2, 4, 6, 8)
    factors: tuple[int, ...] = grid.FACTORS
    seconds: float = 1.3  # per cell and round
    rounds: int = 3
    advice_seconds: float = 0.7  # per stage and round


QUICK = Grid(ratios=(1, 4), factors=(1, 4), seconds=0.5, rounds=1, advice_seconds=0.2)

# name: (upstream, whether the step is the real one)
KINDS = {name: (name, False) for name in grid.UPSTREAMS} | {"cpu+step": ("cpu", True)}


@dataclasses.dataclass(frozen=True)
class Cell:
    """Medians over rounds of measured steps per second, and of measured over predicted."""

    rate: float
    ratio: float

    @classmethod
    def from_rounds(cls, rounds: Sequence[tuple[float, float]]) -> "Cell":
        """Makes a cell of the (predicted, measured) steps per second of each round."""
        rates, ratios = zip(*((rate, rate / predicted) for predicted, rate in rounds), strict=True)
        return cls(statistics.median(rates), statistics.median(ratios))


Rows = dict[int, dict[grid.Factor, Cell]]


def prepare_row(
    upstream: str, real_step: bool, plan: Grid, ratio: int
) -> Callable[[int], dict[grid.Factor, tuple[float, float]]]:
    """A function that measures one round of a row: (predicted, measured) by factor."""
    config = grid.configuration(upstream, ratio)
    opened = make_experiment(config)
    send, step = advise.step_functions(config, opened.program)
    if not real_step:
        step = grid.FixedStep()
    if upstream == "cpu":
        seconds = grid.STEP_SECONDS
        if real_step:
            batches = iter(build.build(config, opened.source, opened.program.task.workload))
            rows = jax.block_until_ready(send(next(batches)))
            batches.close()
            rounds = profile.rounds(lambda: step(rows), plan.advice_seconds)
            seconds = float(np.median([wall for wall, _ in rounds]))
        opened = grid.cpu_bound(opened, config, ratio * seconds)

    def one_round(number: int) -> dict[grid.Factor, tuple[float, float]]:
        advice = advise.measured(config, opened, send, step, plan.advice_seconds, plan.factors)
        point = advice.points[0]
        common.progress(f"R = {point.ratio:.2f}, work of {advice.timing.cores:.2f} cores")

        def predicted_and_measured(factor: Any) -> tuple[float, float]:
            config.echo.factor = float(factor)
            rate = grid.steps_per_second(config, opened, step, plan.seconds, send)
            return 1 / point.step_seconds[factor], rate

        return common.in_shuffled_order(plan.factors, predicted_and_measured, number)

    return one_round


def cells_within_tolerance(rows: Rows) -> tuple[int, int]:
    """(cells within tolerance of the prediction, all cells)."""
    cells = [cell for row in rows.values() for cell in row.values()]
    return sum(abs(cell.ratio - 1) <= TOLERANCE for cell in cells), len(cells)


def draw(axes, rows: Rows) -> None:
    """Measured against predicted steps per second."""
    limit = 0.0
    for ratio, row in rows.items():
        rates = [cell.rate for cell in row.values()]
        predicted = [cell.rate / cell.ratio for cell in row.values()]
        axes.plot(predicted, rates, "o", label=f"R = {ratio}", markersize=4)
        limit = max(limit, *rates, *predicted)
    axes.plot([0, 1.05 * limit], [0, 1.05 * limit], color="gray", linewidth=0.8)
    axes.set(xlabel="predicted steps per second", ylabel="measured")
    axes.legend(fontsize=7)


def main(argv: list[str] | None = None) -> None:
    parser = common.arguments(__spec__.name, __doc__, Grid(), QUICK)
    common.add_list(parser, "--kinds", common.one_of(KINDS), ",".join(KINDS))
    options = parser.parse_args(argv)
    plan = common.plan(options, Grid(), QUICK)
    text = [
        "# Predicted and measured steps per second",
        "How well does the advice predict steps per second? Measured by "
        "`python -m benchmarks.advice_grid` on " + common.machine(["jax", "grain", "numpy"]),
        "Cells are measured steps per second and, in brackets, measured / predicted: medians of "
        f"{plan.rounds} rounds, with a prediction in every round.",
    ]
    kinds: dict[str, Rows] = {}
    for kind in options.kinds:
        prepare = functools.partial(prepare_row, *KINDS[kind], plan)
        measured = grid.measure(plan.ratios, plan.rounds, prepare, f"{kind}, R =")
        kinds[kind] = {
            ratio: {factor: Cell.from_rounds(rounds) for factor, rounds in row.items()}
            for ratio, row in measured.items()
        }
        table = grid.table(kinds[kind], lambda cell: f"{cell.rate:.1f} ({cell.ratio:.2f})")
        text += [f"## {kind}", table]
        text += ["{} of {} cells within 5%.".format(*cells_within_tolerance(kinds[kind]))]
    common.publish(
        "\n\n".join(text), options.out, functools.partial(common.drawn_panels, kinds, draw)
    )


if __name__ == "__main__":
    main()
