"""Whether the advice is right: predicted against measured steps a second over a grid of R and e.

    python -m benchmarks.advice_grid --out=results/advice_grid.md       about 20 minutes
    python -m benchmarks.advice_grid --quick                            a minute, to see it work

The digits' mini is read through the real pipeline, echoed before augmentation. Its upstream is
limited (a rate), HTTP (the same over a connection, from another process), or CPU-bound: hashing on
the cores that everything else needs too. The step takes a fixed time, as an accelerator's does, or
is the real training step on those same cores. For each R the advice measures the stages once and
predicts every factor; then the factors are run in turns.
"""

import argparse
import dataclasses
import hashlib
import pathlib
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import advise
import echo
from benchmarks import common
from configs import cifar10
from echo.measure import wait_for
from pipeline import build
from training import parts

WITHIN = 0.05
STEP_SECONDS = 0.016  # of the step that takes a fixed time


@dataclasses.dataclass(frozen=True)
class Grid:
    """What is measured."""

    ratios: tuple[int, ...] = (1, 2, 4, 6, 8)
    factors: tuple[int, ...] = echo.advice.FACTORS
    seconds: float = 1.5  # a cell, each round
    rounds: int = 3
    advice_seconds: float = 1.0  # a stage


QUICK = Grid(ratios=(1, 4), factors=(1, 4), seconds=0.5, rounds=1, advice_seconds=0.2)

# name: (upstream, whether the step is the real one)
KINDS = {
    "limited": ("limited", False),
    "http": ("http", False),
    "cpu": ("cpu", False),
    "cpu+step": ("cpu", True),  # on the same cores
}


class FixedStep:
    """A device that needs `seconds` a step, and is fed as training feeds one: the next step is
    handed over while the last one runs."""

    def __init__(self, seconds: float):
        self._seconds, self._ends = seconds, 0.0

    def __call__(self, batch: Any) -> None:
        now, runs_until = time.perf_counter(), self._ends
        self._ends = max(now, runs_until) + self._seconds
        if runs_until > now:
            time.sleep(runs_until - now)


class Hashing:
    """A source whose records cost processor time, on as many cores as threads ask for them."""

    def __init__(self, source, seconds: float):
        self._source = source
        start = time.process_time()
        _hash(100_000)
        self._count = max(1, round(100_000 * seconds / (time.process_time() - start)))

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices) -> list[dict[str, Any]]:
        for _ in indices:
            _hash(self._count)
        return self._source.__getitems__(indices)


def _hash(count: int) -> None:
    hashlib.pbkdf2_hmac("sha256", b"upstream", b"salt", count)  # lets other threads run


def configuration(upstream: str, ratio: int, step_seconds: float):
    config = cifar10.get_config("mini")
    config.budget.fresh_examples = 10**8
    config.echo.insertion = "before_augmentation"
    if upstream != "cpu":
        config.upstream.examples_per_second = config.batch_size / (ratio * step_seconds)
        config.upstream.http = upstream == "http"
    return config


def measured(config, opened: parts.Opened, transfer, step, seconds: float) -> float:
    """Steps a second once the pipeline runs steadily."""
    batches = build.build(config, opened.source, _of(opened))
    iterator, ends = iter(batches), []
    try:
        begin = time.perf_counter()
        while (now := time.perf_counter()) < begin + 1.3 * seconds or len(ends) < 12:
            if now > begin + 0.3 * seconds:
                ends.append(now)
            step(transfer(next(iterator)))
    finally:
        iterator.close()
    # The slope, since chunks of examples make steps come in bursts.
    return float(np.polyfit(ends, np.arange(len(ends)), 1)[0])


def row(
    upstream: str, real: bool, ratio: int, grid: Grid, report: Callable[[str], None]
) -> list[tuple[float, float]]:
    """(predicted, measured) steps a second of each factor at one R."""
    config = configuration(upstream, ratio, STEP_SECONDS)
    opened = parts.opened(config)
    transfer, step = advise.step_functions(config, opened.program)
    if not real:
        step = FixedStep(STEP_SECONDS)
    if upstream == "cpu":
        seconds = STEP_SECONDS
        if real:
            batches = iter(build.build(config, opened.source, _of(opened)))
            rows = wait_for(transfer(next(batches)))
            batches.close()
            rounds = echo.measure.rounds(lambda: step(rows), grid.advice_seconds)
            seconds = float(np.median([wall for wall, _ in rounds]))
        an_example = ratio * seconds / config.batch_size * advise.CORES
        opened = dataclasses.replace(opened, source=Hashing(opened.source, an_example))
    advice = advise.measured(config, opened, transfer, step, grid.advice_seconds, grid.factors)
    point = advice.points[0]
    found = {factor: [] for factor in grid.factors}
    for _ in range(grid.rounds):
        for factor in grid.factors:
            config.echo.factor = float(factor)
            found[factor].append(measured(config, opened, transfer, step, grid.seconds))
    cells = [(1 / point.step_seconds[e], statistics.median(rates)) for e, rates in found.items()]
    report(f"R = {ratio}, measured as {point.ratio:.2f}; predicted and measured: {cells}")
    return cells


def _of(opened: parts.Opened):
    return opened.program.task.workload


def table(grid: Grid, rows: dict[int, list[tuple[float, float]]]) -> str:
    """Measured steps a second and, in brackets, measured / predicted."""
    header = ["R", *(f"e = {factor}" for factor in grid.factors)]
    lines = [
        [str(ratio), *(f"{found:.1f} ({found / predicted:.2f})" for predicted, found in cells)]
        for ratio, cells in rows.items()
    ]
    return common.markdown_table(header, lines)


def share_within(rows: dict[int, list[tuple[float, float]]]) -> tuple[int, int]:
    cells = [cell for row in rows.values() for cell in row]
    return sum(abs(found / predicted - 1) <= WITHIN for predicted, found in cells), len(cells)


def draw(found: dict[str, dict[int, list[tuple[float, float]]]], path: pathlib.Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.2 * len(found), 3.4), layout="constrained")
    for axes, (kind, rows) in zip(
        figure.subplots(1, len(found), squeeze=False)[0], found.items(), strict=True
    ):
        for ratio, cells in rows.items():
            axes.plot(*zip(*cells, strict=True), "o", label=f"R = {ratio}", markersize=4)
        limit = max(max(cell) for cells in rows.values() for cell in cells) * 1.05
        axes.plot([0, limit], [0, limit], color="gray", linewidth=0.8)
        axes.set(title=kind, xlabel="predicted steps a second", ylabel="measured")
    axes.legend()
    figure.savefig(path, dpi=150)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.advice_grid",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="four cells a kind: a smoke run")
    parser.add_argument(
        "--kinds", default=",".join(KINDS), help="which upstreams (default: %(default)s)"
    )
    parser.add_argument(
        "--out", type=pathlib.Path, metavar="FILE", help="the report; its figure goes beside it"
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
        f"Measured, in brackets measured / predicted; median of {grid.rounds} rounds. "
        + common.machine(["jax", "grain", "numpy"]),
    ]
    for kind, rows in found.items():
        text += [f"## {kind}", table(grid, rows)]
        text += ["{} of {} cells within 5 %.".format(*share_within(rows))]
    report = "\n\n".join(text)
    print(report)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(report + "\n")
        draw(found, options.out.with_suffix(".png"))


if __name__ == "__main__":
    main()
