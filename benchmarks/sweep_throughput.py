"""Trials per hour of lanes, which share one input pipeline, behind a slow upstream.

    python -m benchmarks.sweep_throughput --out=results/sweep_throughput.md     five minutes

The upstream delivers a fixed number of examples per second to all processes together. Trials in
separate processes share it and finish no sooner together than one after another, so one lane stands
for them. K lanes all train on every example that arrives. R is the upstream's time per example over
the step's, which is measured first; ideally, K lanes finish min(K, R) times as many trials.
Compilation is not measured; the evaluation at the end of a trial is.
"""

import functools
import pathlib
import sys
import tempfile
import time

from ml_collections import ConfigDict

from benchmarks import common
from configs import cifar10
from runs.progress import Progress
from training import lanes

RATIOS = (1, 4, 8)
LANES = (1, 4, 8)
GOAL = 0.9
QUIET = Progress(quiet=True)


def main(argv: list[str] | None = None) -> None:
    parser = common.arguments(__spec__.name, __doc__)
    for flag, default, about in (
        ("steps", 100, "steps per trial"),
        ("rounds", 3, "number of rounds"),
        ("width", 16, "channels of the ResNet-8's first stage"),
    ):
        about += " (default: %(default)s)"
        parser.add_argument(f"--{flag}", type=common.number(1), default=default, help=about)
    parser.add_argument("--stacked", action="store_true", help="step all lanes in one call")
    options = parser.parse_args(argv)
    measure = functools.partial(seconds, options.stacked, options.steps, options.width)
    measure(1, 0.0)  # compiles
    alone = min(measure(1, 0.0) for _ in range(3))
    batch_size = cifar10.get_config("mini").batch_size
    rate = options.steps * batch_size / alone
    common.progress(f"one trial without a limit: {rate:,.0f} examples/s")
    sides = {
        f"{r} {k}": functools.partial(trials_per_hour, measure, k, rate / r)
        for r in RATIOS
        for k in LANES
    }
    spreads = common.interleaved(sides, options.rounds)
    rows = []
    for r in RATIOS:
        for k in LANES:
            trials, ideal = spreads[f"{r} {k}"], min(k, r)
            speedup = trials.median / spreads[f"{r} 1"].median
            row = [str(r), str(k), f"{trials:,.0f}", f"{speedup:.2f}", str(ideal)]
            rows.append([*row, f"{speedup / ideal:.2f}"])
    header = ["R", "lanes K", "trials per hour", "speedup over one lane", "min(K, R)", "share"]
    text = [
        "# Trials per hour by lanes" + (", stacked" if options.stacked else ""),
        f"Median (smallest to largest) of {options.rounds} interleaved rounds. ResNet-8 of width "
        f"{options.width} on digits, batch size {batch_size}, {options.steps} steps per trial; one "
        f"trial alone processes {rate:,.0f} examples per second, and the upstream delivers 1/R of "
        f"that. The goal is a share of {GOAL}. " + common.machine(["jax", "flax", "grain"]),
        common.markdown_table(header, rows),
    ]
    common.publish("\n\n".join(text), options.out)


def trials_per_hour(measure, number: int, examples_per_second: float) -> float:
    return number * 3600 / measure(number, examples_per_second)


def seconds(
    stacked: bool, steps: int, width: int, number: int, examples_per_second: float
) -> float:
    """Seconds in which `number` lanes train to the end of their budget."""
    with tempfile.TemporaryDirectory() as directory:
        workdirs = [pathlib.Path(directory) / str(lane) for lane in range(number)]
        configs = [configuration(steps, width, lane, examples_per_second) for lane in range(number)]
        start = time.perf_counter()
        results = lanes.train(configs, workdirs, QUIET, stacked)
        elapsed = time.perf_counter() - start
    statuses = {result["status"] for result in results}
    if statuses != {"exhausted"}:
        sys.exit(f"trials ended as {', '.join(sorted(statuses))}, so their time means nothing")
    return elapsed


def configuration(steps: int, width: int, lane: int, examples_per_second: float) -> ConfigDict:
    config = cifar10.get_config("mini")
    values = {
        "model.width": width,
        "budget.fresh_examples": steps * config.batch_size,
        "evaluate_every_fresh_examples": 0,
        "checkpoint_every_fresh_examples": 0,
        "target.value": 2.0,
        "optimizer.learning_rate": 0.01,
        "upstream.examples_per_second": examples_per_second,
        "seed.model": lane,
    }
    return common.overridden(config, values)


if __name__ == "__main__":
    main()
