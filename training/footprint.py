"""Whether a run's state and batches fit into memory, told from their shapes alone.

What is counted is what a run cannot do without: its state, gradients, and batches. Activations come
on top, so a run that passes may still need more than there is; one that does not cannot run.
"""

import math
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from pipeline import accounting
from pipeline.map_datasets import CHUNK, Arrays
from training import memory
from training.check import ConfigError
from training.step import Program
from workloads.interface import Workload

# Evaluation has no gradients to keep, so it takes larger batches than training.
EVALUATION_BATCHES = 4


def check_state(program: Program) -> None:
    """Checks that each device has room for its part of the state and of the gradients.

    Raises:
        ConfigError: it does not.
    """
    needed, available = program.state_bytes + program.gradient_bytes, _of_devices(program.task.mesh)
    if needed > available:
        raise ConfigError(
            f"the network of config.model takes {needed:,} bytes of each device's {available:,}, "
            "with its gradients and the optimizer's state; make it smaller, or split it "
            "(config.sharding)"
        )


def check_batches(
    config, first: Arrays, workload: Workload, program: Program, held_rows: range
) -> None:
    """Checks that batches fit on this machine, and beside the state on its devices.

    Args:
        first: the first example as it is decoded, each array [1, ...], for the size of examples.
        held_rows: those of each batch that this process makes ready.

    Raises:
        ConfigError: they do not.
    """
    mesh = program.task.mesh
    decoded, sent = nbytes(first), nbytes(example_sent(config, first, workload))
    devices = mesh.local_mesh.shape["data"]
    train, evaluate = len(held_rows) * sent, EVALUATION_BATCHES * len(held_rows) * decoded
    ahead = min(config.prefetch, accounting.total_steps(config))
    on_host = max(train * (1 + ahead), evaluate, CHUNK * decoded)
    _check(config, on_host, memory.of_machine(), "this machine's")
    batches = max(program.gradient_bytes + train // devices, evaluate // devices)
    _check(config, program.state_bytes + batches, _of_devices(mesh), "each device's")


def example_sent(config, first: Arrays, workload: Workload) -> Arrays:
    """The shapes of an example, each [1, ...], as the host's last stage leaves it."""
    if config.augment_on == "device":
        return first
    zero = np.zeros(1, np.uint32)
    return jax.eval_shape(workload.augment, first, zero[0], zero, zero)


def nbytes(arrays: Any) -> int:
    """Bytes of arrays, or of what has their shapes."""
    leaves = jax.tree.leaves(arrays)
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in leaves)


def _check(config, needed: int, available: int, whose: str) -> None:
    if needed > available:
        raise ConfigError(
            f"config.batch_size is {config.batch_size:,}, where batches and what they are made of "
            f"take {needed:,} of {whose} {available:,} bytes of memory; lower config.batch_size, "
            "config.prefetch or the size of examples"
        )


def _of_devices(mesh: Mesh) -> int:
    return min(memory.of_device(device) for device in mesh.local_devices)
