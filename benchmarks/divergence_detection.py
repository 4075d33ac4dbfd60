"""Whether training detects divergence at the right step, by workload, learning rate, and momentum.

    # about 10 minutes on two cores
    python -m benchmarks.divergence_detection --out=results/divergence_detection.md
    # less than a minute
    python -m benchmarks.divergence_detection --workloads=cifar10

For each cell a separate loop takes the training steps, fetches all parameters after each step, and
checks them and the loss with NumPy; it ignores what the compiled step reports. The result is
compared with the step at which `train.train` ends, once as shipped and once without the bound on
the loss, which is exceeded before numbers overflow. The learning rate is constant.

Exits with 1 if a cell disagrees.
"""

import argparse
import dataclasses
import itertools
import math
import pathlib
import sys
import tempfile
from collections.abc import Callable
from unittest import mock

import jax
import numpy as np
from ml_collections import ConfigDict

import train
from benchmarks import common
from benchmarks.step import CONFIGS
from training import divergence, optimizer
from training.experiment import make_experiment

# Enough for learning rates of 10 and more to overflow; all of them take a few minutes.
STEPS = {"cifar10": 60, "imagenet": 20, "vit": 20, "lm1b": 12, "common_crawl": 12, "coco": 10}

HEADER = ("workload", "learning rate", "momentum", "parameter not finite after")
HEADER += ("loss not finite at", "loss above bound at", "largest loss / first", "last / first")
HEADER += ("train ends, no bound", "train ends", "agree")


@dataclasses.dataclass(frozen=True)
class HostView:
    """A run as observed on the host.

    Attributes:
        losses: the loss of every step taken.
        nonfinite_params: the first step after which a parameter is not finite; None if there is
            none.
    """

    losses: tuple[float, ...]
    nonfinite_params: int | None

    @property
    def nonfinite_loss(self) -> int | None:
        """The first step with a loss that is not finite, counted from 1."""
        return self._first(lambda loss: not math.isfinite(loss))

    @property
    def above_bound(self) -> int | None:
        """The first step with a loss above the bound, counted from 1."""
        return self._first(lambda loss: loss > divergence.MAX_LOSS_RATIO * self.losses[0])

    def _first(self, bad: Callable[[float], bool]) -> int | None:
        return next((step for step, loss in enumerate(self.losses, 1) if bad(loss)), None)


def configuration(workload: str, steps: int, rate: float, momentum: float) -> ConfigDict:
    config = CONFIGS[workload].get_config("mini")
    config.optimizer.learning_rate, config.optimizer.momentum = rate, momentum
    config.optimizer.schedule.name = "constant"
    config.optimizer.schedule.warmup_progress = 0.0
    config.budget.fresh_examples = steps * config.batch_size
    config.evaluate_every_fresh_examples = config.checkpoint_every_fresh_examples = 0
    return config


def observe(config: ConfigDict) -> HostView:
    """Takes the steps of a run until a parameter is not finite or the run ends."""
    parts = make_experiment(config)
    state, losses = parts.program.init(config.seed.model), []
    hyper, seed = optimizer.hyperparameters(config, 0.0), np.uint32(config.seed.data)
    batches = iter(parts.batches)
    try:
        for step, batch in enumerate(batches, 1):
            arguments = (state, parts.transfer.put(batch), hyper, seed)
            state, metrics = parts.program.compile_train(*arguments)(*arguments)
            losses.append(float(metrics["loss"]))
            arrays = jax.tree.leaves(jax.device_get(state.params))
            if not all(np.isfinite(array).all() for array in arrays):
                return HostView(tuple(losses), step)
    finally:
        batches.close()
    return HostView(tuple(losses), None)


def detected_step(config: ConfigDict, ratio: float = divergence.MAX_LOSS_RATIO) -> int | None:
    """The step at which `train.train` ends a run as diverged; None if it does not."""
    with (
        tempfile.TemporaryDirectory() as directory,
        mock.patch.object(divergence, "MAX_LOSS_RATIO", ratio),
    ):
        result = train.train(config, pathlib.Path(directory) / "run")
    if result["status"] == "failed":
        sys.exit(f"a run failed: {result['error']}")
    return result["step"] if result["status"] == "diverged" else None


def measured_columns(config: ConfigDict) -> list[str]:
    """The columns of a table row after workload, learning rate, and momentum."""
    host, unbounded, run = observe(config), detected_step(config, math.inf), detected_step(config)
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


def measure(options: argparse.Namespace) -> list[list[str]]:
    """The rows of the table."""
    rows = []
    for workload, rate, momentum in itertools.product(
        options.workloads, options.learning_rates, options.momenta
    ):
        config = configuration(workload, options.steps or STEPS[workload], rate, momentum)
        rows.append([workload, f"{rate:g}", f"{momentum:g}", *measured_columns(config)])
        common.progress(", ".join(rows[-1]))
    return rows


def main(argv: list[str] | None = None) -> int:
    parser = common.arguments(__spec__.name, __doc__)
    common.add_list(parser, "--workloads", common.one_of(CONFIGS), ",".join(CONFIGS))
    common.add_list(parser, "--learning_rates", common.number(0.0), "0.1,1,10,100,1e4")
    common.add_list(parser, "--momenta", common.number(0.0, 1.0), "0.9,0.99")
    parser.add_argument("--steps", type=common.number(0), default=0, help=f"0 = {STEPS}")
    options = parser.parse_args(argv)
    rows = measure(options)
    disagreeing = sum(row[-1] != "yes" for row in rows)
    steps = options.steps or ", ".join(f"{STEPS[name]} ({name})" for name in options.workloads)
    text = [
        "# Where runs diverge",
        "Does `train.py` stop at the step at which a run diverges? "
        f"{len(rows) - disagreeing} of {len(rows)} cells agree with what the host observes. "
        "Measured by `python -m benchmarks.divergence_detection` on "
        + common.machine(["jax", "flax", "numpy"]),
        common.markdown_table(HEADER, rows),
        f"The minis train with a constant learning rate for {steps} steps; a dash: not within "
        "these. The first three columns of steps come from the host: it reads the losses and "
        "checks every parameter after each step. The bound is "
        f"{divergence.MAX_LOSS_RATIO:g} times the first loss.",
    ]
    common.publish("\n\n".join(text), options.out)
    return 1 if disagreeing else 0


if __name__ == "__main__":
    sys.exit(main())
