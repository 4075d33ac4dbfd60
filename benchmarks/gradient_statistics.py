"""What gradient statistics cost: their time beside that of the training step, by workload.

    python -m benchmarks.gradient_statistics                     a GPU or TPU: full size, bfloat16
    python -m benchmarks.gradient_statistics --size=mini         a CPU: minutes

The step is that of benchmarks.step_time. It takes turns with the statistics of the same batch, half
of it repeats. The share is their time over that of the steps between two of them. In a run the
device idles besides while their values are fetched, which tells where a step takes milliseconds.
"""

import argparse
import sys
from collections.abc import Sequence

import jax
import numpy as np

import workloads
from benchmarks import common, step_time
from training import sharding
from training import step as steps


def statistics(config, info, batch: dict[str, np.ndarray]) -> step_time.Side:
    """Gradient statistics of a batch."""
    mesh = sharding.make_mesh(1, 1)
    task = steps.Task(workloads.make(config, info), config.optimizer.name, False, mesh)
    program, rows = steps.program(task), np.arange(config.batch_size, dtype=np.uint32)
    state = program.init(0)
    inputs = sharding.put_batch(mesh, ((batch, rows, rows), rows % 2 == 0))
    compiled = program.compile_statistics(state, *inputs, np.uint32(0))

    held = [None]

    def measure():
        held[:] = [compiled(state.params, state.model_state, *inputs, np.uint32(0))]

    return step_time.Side(measure, lambda: jax.block_until_ready(held), None)


def row(name: str, options) -> list[str]:
    """One workload's row of the table."""
    common.progress(f"{name}: compiling")
    config = step_time.configuration(name, options.size, options.batch_size)
    info = step_time.data_set(name, options.size, config)
    batch = step_time.random_batch(config, info)
    sides = {
        "step": step_time.ours(config, info, batch)[0],
        "statistics": statistics(config, info, batch),
    }
    rates = common.interleaved(
        {k: step_time.measure(side, 1, options.seconds) for k, side in sides.items()},
        options.rounds,
    )
    step, taken = (1e3 / rates[name].median for name in ("step", "statistics"))
    ratios = [a / b for a, b in zip(rates["step"].values, rates["statistics"].values, strict=True)]
    return [
        f"{name}, batch {config.batch_size}",
        f"{step:,.1f}",
        f"{taken:,.1f}",
        f"{taken / step:.2f} ({min(ratios):.2f} to {max(ratios):.2f})",
        f"{taken / step / options.every:.1%}",
    ]


def report(options) -> str:
    """The whole comparison as Markdown."""
    kind = jax.devices()[0].device_kind
    dtype = "float32" if jax.default_backend() == "cpu" else "bfloat16"
    header = ["workload", "ms a step", "ms of statistics", "in steps"]
    header += [f"share, every {options.every} steps"]
    table = common.markdown_table(header, [row(name, options) for name in options.workloads])
    about = (
        f"One {kind}, {options.size} size, {dtype}. Medians (smallest to largest) of "
        f"{options.rounds} rounds of {options.seconds:g} s in turns. "
        f"{common.machine(['jax', 'flax'])}"
    )
    return f"{about}\n\n{table}\n"


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = step_time.parser("gradient_statistics", __doc__)
    parser.add_argument("--every", type=int, default=64, help="steps (default: %(default)s)")
    options = step_time.parsed(parser, argv)
    if options.every < 1:
        parser.error(f"--every is {options.every}; allowed: 1 or more")
    return options


def main(argv: Sequence[str] | None = None) -> int:
    options = parse(argv)
    common.publish(report(options), options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
