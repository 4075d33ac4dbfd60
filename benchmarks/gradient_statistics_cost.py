"""Cost of gradient statistics relative to the training step, by workload.

    python -m benchmarks.gradient_statistics_cost                a GPU or TPU: full size, bfloat16
    python -m benchmarks.gradient_statistics_cost --size=mini    a CPU: five minutes

The step is that of benchmarks.step_time, interleaved with the statistics of the same batch, half
of which is marked as repeats. The share is the time of the statistics over that of the steps
between two of them. In a run the device also idles while their values are fetched, which matters
where a step takes milliseconds.
"""

import argparse
import sys
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

import workloads
from benchmarks import common, step_time
from training import sharding
from training import step as steps


def statistics_side(config: ConfigDict, info: Any, batch: dict[str, np.ndarray]) -> step_time.Side:
    """The gradient statistics of a batch, compiled."""
    mesh = sharding.make_mesh(1, 1)
    task = steps.Task(workloads.make(config, info), config.optimizer.name, False, mesh)
    program, rows = steps.program(task), np.arange(config.batch_size, dtype=np.uint32)
    state = program.init(0)
    inputs, repeated = sharding.put_batch(mesh, ((batch, rows, rows), rows % 2 == 0))
    compiled = program.compile_statistics(state, inputs, repeated, np.uint32(0))

    held: list[Any] = [None]

    def measure() -> None:
        held[:] = [compiled(state.params, state.model_state, inputs, repeated, np.uint32(0))]

    return step_time.Side(measure, lambda: jax.block_until_ready(held), None)


def measured_row(name: str, options: argparse.Namespace) -> list[str]:
    """The table row of one workload."""
    common.progress(f"{name}: compiling")
    config = step_time.configuration(name, options.size, options.batch_size)
    info = step_time.data_set(name, options.size, config)
    batch = step_time.random_batch(config, info)
    sides = {
        "step": step_time.jax_side(config, info, batch)[0],
        "statistics": statistics_side(config, info, batch),
    }
    rates = common.interleaved(
        {k: step_time.measure(side, 1, options.seconds) for k, side in sides.items()},
        options.rounds,
    )
    step_ms, statistics_ms = (1e3 / rates[name].median for name in ("step", "statistics"))
    ratios = [a / b for a, b in zip(rates["step"].values, rates["statistics"].values, strict=True)]
    return [
        f"{name}, batch {config.batch_size}",
        f"{step_ms:,.1f}",
        f"{statistics_ms:,.1f}",
        f"{statistics_ms / step_ms:.2f} ({min(ratios):.2f} to {max(ratios):.2f})",
        f"{statistics_ms / step_ms / options.every:.1%}",
    ]


def report(options: argparse.Namespace) -> str:
    """The report as Markdown."""
    kind = jax.devices()[0].device_kind
    dtype = "float32" if jax.default_backend() == "cpu" else "bfloat16"
    header = ["workload", "ms per step", "ms per statistics", "in steps"]
    header += [f"share, every {options.every} steps"]
    table = common.markdown_table(
        header, [measured_row(name, options) for name in options.workloads]
    )
    about = (
        f"One {kind}, {options.size} size, {dtype}. Medians (smallest to largest) of "
        f"{options.rounds} interleaved rounds of {options.seconds:g} s. "
        f"{common.machine(['jax', 'flax'])}"
    )
    return f"{about}\n\n{table}"


def main(argv: Sequence[str] | None = None) -> int:
    parser = step_time.step_arguments(__spec__.name, __doc__)
    parser.add_argument(
        "--every",
        type=common.number(1),
        default=64,
        help="steps between two statistics (default: %(default)s)",
    )
    options = step_time.parse(parser, argv)
    common.publish(report(options), options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
