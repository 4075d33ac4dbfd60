"""Trials an hour when trials share their input, behind a slow upstream.

    python -m benchmarks.sweep_throughput

The upstream gives so many examples a second, however many processes ask, so trials in processes of
their own share it and are no faster together than one after another: that is the side measured for
them. K lanes train on each example that comes. R is the upstream's time for an example over the
step's, which is measured first, so that the ideal is min(K, R) times as many trials. Compilation is
left out, evaluation at the end of each trial is not.
"""

import functools
import pathlib
import sys
import tempfile
import time

from benchmarks import common
from configs import base, cifar10
from runs import cli
from runs.progress import Progress
from studies import lanes

RATIOS = (1, 4, 8)
LANES = (1, 4, 8)
GOAL = 0.9
_QUIET = Progress(quiet=True)


def main() -> None:
    parser = common.arguments("sweep_throughput", __doc__)
    parser.add_argument("--steps", type=int, default=100, help="steps of a trial")
    parser.add_argument("--rounds", type=int, default=3, help="rounds that count")
    parser.add_argument(
        "--width", type=int, default=16, help="channels of the ResNet-8's first stage"
    )
    parser.add_argument("--stacked", action="store_true", help="all lanes' steps in one call")
    options = parser.parse_args()
    seconds = functools.partial(_seconds, options.stacked, options.steps, options.width)
    seconds(1, 0.0)  # compiles
    alone = min(seconds(1, 0.0) for _ in range(3))
    config = cifar10.get_config("mini")
    rate = options.steps * config.batch_size / alone
    common.progress(f"one trial without a limit: {rate:,.0f} examples/s")
    sides = {
        f"{r} {k}": functools.partial(_trials_per_hour, seconds, k, rate / r)
        for r in RATIOS
        for k in LANES
    }
    found = common.interleaved(sides, options.rounds)
    rows = []
    for r in RATIOS:
        one = found[f"{r} 1"].median
        for k in LANES:
            trials = found[f"{r} {k}"]
            spread = f"{trials.median:,.0f} ({trials.low:,.0f} to {trials.high:,.0f})"
            times, ideal = trials.median / one, min(k, r)
            rows.append(
                [f"{r}", f"{k}", spread, f"{times:.2f}", f"{ideal}", f"{times / ideal:.2f}"]
            )
    header = ["R", "lanes K", "trials an hour", "times one process a trial", "min(K, R)", "share"]
    text = [
        "# Trials an hour by lanes" + (", stacked" if options.stacked else ""),
        f"Median (smallest to largest) of {options.rounds} rounds in turns. ResNet-8 of width "
        f"{options.width} on digits, batch size {config.batch_size}, {options.steps} steps a "
        f"trial; one trial alone takes {rate:,.0f} examples a second, and upstream gives 1/R of "
        f"it. The goal is a share of {GOAL}. " + common.machine(["jax", "flax", "grain"]),
        common.markdown_table(header, rows),
    ]
    common.publish("\n\n".join(text), options.out)


def _trials_per_hour(seconds, number: int, examples_per_second: float) -> float:
    return number * 3600 / seconds(number, examples_per_second)


def _seconds(
    stacked: bool, steps: int, width: int, number: int, examples_per_second: float
) -> float:
    """Seconds that `number` lanes take to train to their end."""
    with tempfile.TemporaryDirectory() as directory:
        workdirs = [pathlib.Path(directory) / str(lane) for lane in range(number)]
        configs = [_config(steps, width, lane, examples_per_second) for lane in range(number)]
        start = time.perf_counter()
        results = lanes.train(configs, workdirs, _QUIET, stacked)
        elapsed = time.perf_counter() - start
    ended = {result["status"] for result in results}
    if ended != {"exhausted"}:
        sys.exit(f"trials ended as {', '.join(sorted(ended))}, so the time says nothing")
    return elapsed


def _config(steps: int, width: int, lane: int, examples_per_second: float):
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
    for name, value in values.items():
        cli.set_field(config, name, value, base.FIELDS)
    return config


if __name__ == "__main__":
    main()
