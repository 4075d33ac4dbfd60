"""Whether runs end as diverged where they do: every mini, by learning rate and momentum.

    python -m benchmarks.divergence --out=results/divergence.md      about 10 minutes on two cores
    python -m benchmarks.divergence --workloads=cifar10              less than a minute

For each cell a loop of its own takes the training steps, fetches all parameters to the host after
each and looks for one that is not finite with NumPy; it also has the losses, and ignores what the
compiled step says of either. Beside that stands where `train.train` ends, once as it is and once
with no bound on the loss, which is passed before numbers overflow. The learning rate is constant.

Exits with 1 if a cell does not agree.
"""

import dataclasses
import functools
import math
import pathlib
import sys
import tempfile
from collections.abc import Callable
from typing import Any
from unittest import mock

import jax
import numpy as np

import train
from benchmarks import common
from benchmarks.step_time import CONFIGS
from training import divergence, optimizer

# Enough for learning rates of 10 and more to overflow, and together for some minutes.
STEPS = {"cifar10": 60, "imagenet": 20, "lm1b": 12, "common_crawl": 12, "coco": 10}

HEADER = ("workload", "learning rate", "momentum", "parameter not finite after")
HEADER += ("loss not finite at", "loss above bound at", "largest loss / first", "last / first")
HEADER += ("train ends, no bound", "train ends", "agree")


@dataclasses.dataclass(frozen=True)
class Seen:
    """What the host saw of a run: the losses of its steps, and its first bad parameters.

    Attributes:
        nonfinite_params: the first step after which a parameter is not finite, None: none is.
    """

    losses: tuple[float, ...]
    nonfinite_params: int | None

    @property
    def nonfinite_loss(self) -> int | None:
        """The first step with a loss that is not finite, from 1 on."""
        return self._first(lambda loss: not math.isfinite(loss))

    @property
    def above_bound(self) -> int | None:
        """The first step with a loss above the bound, from 1 on."""
        return self._first(lambda loss: loss > divergence.MAX_LOSS_RATIO * self.losses[0])

    def _first(self, bad: Callable[[float], bool]) -> int | None:
        return next((step for step, loss in enumerate(self.losses, 1) if bad(loss)), None)


def configuration(workload: str, steps: int, rate: float, momentum: float):
    config = CONFIGS[workload].get_config("mini")
    config.optimizer.learning_rate, config.optimizer.momentum = rate, momentum
    config.optimizer.schedule.name = "constant"
    config.optimizer.schedule.warmup_progress = 0.0
    config.budget.fresh_examples = steps * config.batch_size
    config.evaluate_every_fresh_examples = config.checkpoint_every_fresh_examples = 0
    return config


def seen(config) -> Seen:
    """Takes the steps of a run until a parameter is not finite, or to its end."""
    parts = train.prepare(config)
    state, losses = parts.program.init(config.seed.model), []
    hyper, seed = optimizer.hyperparameters(config, 0.0), np.uint32(config.seed.data)
    batches = iter(parts.batches)
    try:
        for step, batch in enumerate(batches, 1):
            arguments = (state, parts.input.put(batch), hyper, seed)
            state, metrics = parts.program.compile_train(*arguments)(*arguments)
            losses.append(float(metrics["loss"]))
            arrays = jax.tree.leaves(jax.device_get(state.params))
            if not all(np.isfinite(array).all() for array in arrays):
                return Seen(tuple(losses), step)
    finally:
        batches.close()
    return Seen(tuple(losses), None)


def ended(config, ratio: float = divergence.MAX_LOSS_RATIO) -> int | None:
    """The step at which `train.train` ends a run as diverged, None if it trains to its end."""
    with (
        tempfile.TemporaryDirectory() as directory,
        mock.patch.object(divergence, "MAX_LOSS_RATIO", ratio),
    ):
        result = train.train(config, pathlib.Path(directory) / "run")
    if result["status"] == "failed":
        sys.exit(f"a run failed, so nothing is known: {result['error']}")
    return result["step"] if result["status"] == "diverged" else None


def row(config) -> list[str]:
    """What a cell's table row says after workload, learning rate and momentum."""
    host, unbounded, run = seen(config), ended(config, math.inf), ended(config)
    nonfinite = _earliest(host.nonfinite_params, host.nonfinite_loss)
    agree = (unbounded, run) == (nonfinite, _earliest(nonfinite, host.above_bound))
    largest = max(filter(math.isfinite, host.losses))
    return [
        *map(_step, (host.nonfinite_params, host.nonfinite_loss, host.above_bound)),
        f"{largest / host.losses[0]:.3g}",
        f"{host.losses[-1] / host.losses[0]:.3g}",
        *(_step(step) if step is None else f"diverged, {step}" for step in (unbounded, run)),
        "yes" if agree else "NO",
    ]


def _earliest(*steps: int | None) -> int | None:
    return min((step for step in steps if step is not None), default=None)


def _step(step: int | None) -> str:
    return "-" if step is None else str(step)


def table(workloads: list[str], steps: int, rates: list[float], momenta: list[float]) -> Any:
    rows = []
    for workload in workloads:
        for rate in rates:
            for momentum in momenta:
                config = configuration(workload, steps or STEPS[workload], rate, momentum)
                rows.append([workload, f"{rate:g}", f"{momentum:g}", *row(config)])
                common.progress(", ".join(rows[-1]))
    return rows


def parse(argv):
    parser = common.arguments("divergence", __doc__)
    numbers = functools.partial(_numbers, parser)
    parser.add_argument("--workloads", default=",".join(CONFIGS), help="default: %(default)s")
    parser.add_argument("--steps", type=int, default=0, help=f"0 = {STEPS}")
    parser.add_argument("--learning_rates", default="0.1,1,10,100,1e4", help="default: %(default)s")
    parser.add_argument("--momenta", default="0.9,0.99", help="default: %(default)s")
    arguments = parser.parse_args(argv)
    arguments.workloads = arguments.workloads.split(",")
    for name in arguments.workloads:
        if name not in CONFIGS:
            parser.error(f"--workloads has {name!r}; allowed: {', '.join(CONFIGS)}")
    if arguments.steps < 0:
        parser.error(f"--steps is {arguments.steps}; allowed: 0 or more")
    arguments.learning_rates = numbers("learning_rates", arguments.learning_rates, math.inf)
    arguments.momenta = numbers("momenta", arguments.momenta, 1.0)
    return arguments


def _numbers(parser, name: str, text: str, below: float) -> list[float]:
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        values = [math.nan]
    if not all(0 <= value < below for value in values):
        parser.error(f"--{name} is {text!r}; allowed: numbers in [0, {below}), with commas between")
    return values


def main(argv=None) -> int:
    arguments = parse(argv)
    rows = table(arguments.workloads, arguments.steps, arguments.learning_rates, arguments.momenta)
    disagree = sum(found[-1] != "yes" for found in rows)
    steps = arguments.steps or ", ".join(f"{STEPS[name]} ({name})" for name in arguments.workloads)
    text = [
        "# Where runs diverge",
        f"The minis with a constant learning rate, for {steps} steps; a dash: not in that many. "
        "The first three steps were found on the host, from the losses and by looking at every "
        f"parameter after each step. The bound is {divergence.MAX_LOSS_RATIO:g} times the first "
        f"loss. {len(rows) - disagree} of {len(rows)} cells agree. "
        + common.machine(["jax", "flax", "numpy"]),
        common.markdown_table(HEADER, rows),
    ]
    common.publish("\n\n".join(text), arguments.out)
    return 1 if disagree else 0


if __name__ == "__main__":
    sys.exit(main())
