"""Checks that a run fits into memory, from the shapes of its arrays, before it starts.

The checks count what a run cannot do without: state, gradients, batches, and the examples that
echoing keeps. Activations come on top. A run that passes may still run out of memory, which
`exhaustion` puts into words; one that does not pass certainly would.
"""

import contextlib
import functools
import math
import os
import pathlib
import re
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh
from ml_collections import ConfigDict

from pipeline import accounting
from pipeline.map_datasets import CHUNK, Arrays
from training.check import ConfigError
from training.step import Program
from workloads.interface import Workload

# Evaluation keeps no gradients, so its batches are larger than those of training by this factor.
EVALUATION_BATCHES = 4

_CGROUPS = pathlib.Path("/sys/fs/cgroup")

# How JAX begins the message of an error if there is no memory left, on every platform.
_EXHAUSTED = "RESOURCE_EXHAUSTED"


def check_state(program: Program) -> None:
    """Checks that each device has room for its part of the state and of the gradients.

    Raises:
        ConfigError: it does not.
    """
    needed = program.state_bytes + program.gradient_bytes
    available = of_each_device(program.task.mesh)
    if needed > available:
        raise ConfigError(
            f"the network of config.model takes {needed:,} bytes of each device's {available:,}, "
            "with its gradients and the optimizer's state; make it smaller, or split it "
            "(config.sharding)"
        )


def check_batches(
    config: ConfigDict, first: Arrays, evaluated: Arrays, program: Program, held_rows: range
) -> None:
    """Checks that batches fit on this machine, and next to the state on its devices.

    Args:
        config: a resolved configuration.
        first: the first decoded training example, each array [1, ...].
        evaluated: an example decoded for evaluation, likewise.
        program: of the run.
        held_rows: the rows of each batch that this process prepares.

    Raises:
        ConfigError: they do not.
    """
    mesh = program.task.mesh
    decoded, sent = nbytes(first), nbytes(example_sent(config, first, program.task.workload))
    devices = mesh.local_mesh.shape["data"]
    train, evaluate = len(held_rows) * sent, EVALUATION_BATCHES * len(held_rows) * nbytes(evaluated)
    ahead = 0  # under auto, batches are not read ahead
    if config.echo.policy == "fixed":
        ahead = min(config.prefetch, accounting.total_steps(config))
    on_host = max(train * (1 + ahead), evaluate, CHUNK * decoded)
    fields = "config.batch_size, config.prefetch" if ahead else "config.batch_size"
    _check_batches(config, on_host, of_machine(), "this machine's", fields)
    batches = max(program.gradient_bytes + train // devices, evaluate // devices)
    on_device = program.state_bytes + batches
    _check_batches(config, on_device, of_each_device(mesh), "each device's", "config.batch_size")


def _check_batches(
    config: ConfigDict, needed: int, available: int, whose: str, fields: str
) -> None:
    if needed > available:
        raise ConfigError(
            f"config.batch_size is {config.batch_size:,}, where batches and what they are made of "
            f"take {needed:,} of {whose} {available:,} bytes of memory; lower {fields} or the "
            "size of examples"
        )


def check_host_store(config: ConfigDict, held: range, item_bytes: int) -> None:
    """Checks that this machine's memory holds what echoing keeps of the streams `held`.

    Other processes on the machine are not counted, whether of the same run or of a sweep.

    Args:
        config: a resolved configuration.
        held: the streams that this process reads.
        item_bytes: the size of an item; 0 if the devices keep the items.

    Raises:
        ConfigError: it does not.
    """
    size, available = accounting.host_size(config, held, item_bytes), of_machine()
    needed = size.bytes(item_bytes)
    if needed > available:
        raise ConfigError(
            f"config.echo.shuffle_buffer is {config.echo.shuffle_buffer:,}, where echoing keeps "
            f"{size.rows:,} items of {item_bytes:,} bytes on the host, {needed:,} bytes with their "
            f"numbers, of {available:,} available; {smaller_store(config)}"
        )


def smaller_store(config: ConfigDict) -> str:
    """What to do so that what echoing keeps is smaller."""
    if config.echo.shuffle_buffer:
        return "lower config.echo.shuffle_buffer or the size of items"
    if slots := accounting.shuffle_buffer(config):
        default = f"set config.echo.shuffle_buffer below its default, {slots:,}"
        return f"{default}, or lower the size of items"
    return "lower config.batch_size or the size of items"


def exhaustion(error: BaseException, config: ConfigDict, mesh: Mesh) -> str | None:
    """A sentence about an error of JAX that a device has no memory left; None for other errors."""
    if not isinstance(error, jax.errors.JaxRuntimeError) or _EXHAUSTED not in str(error):
        return None
    size = re.search(r"allocat(?:ing|e) ([\d.]+ ?\w+)", str(error))
    needed = "more than"
    if size:
        needed = re.sub(r"\d{4,}", lambda digits: f"{int(digits[0]):,}", size[1]) + " at once, of"
    remedy = "lower config.batch_size or make the network smaller"
    if config.dtype == "float32":
        remedy = "lower config.batch_size, make the network smaller, or set config.dtype=bfloat16"
    return (
        f"config.batch_size is {config.batch_size:,}, where the network of config.model in "
        f"{config.dtype} needs {needed} each device's {of_each_device(mesh):,} bytes of memory; "
        f"{remedy}"
    )


@contextlib.contextmanager
def exhaustion_explained(config: ConfigDict, mesh: Mesh) -> Iterator[None]:
    """Replaces an error of JAX that a device has no memory left by ConfigError."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        explanation = exhaustion(error, config, mesh)
        if explanation is None:
            raise
        raise ConfigError(explanation) from error


def example_sent(config: ConfigDict, first: Arrays, workload: Workload) -> Any:
    """The shapes of an example, each [1, ...], after the last stage on the host."""
    if config.augment_on == "device":
        return first
    return _augmented(workload, tuple((k, x.shape, np.dtype(x.dtype)) for k, x in first.items()))


@functools.lru_cache(maxsize=32)
def _augmented(workload: Workload, example: tuple[tuple[str, tuple[int, ...], Any], ...]) -> Any:
    """The shapes that augmentation makes of an example. Cached, since tracing photographs' takes
    longer than the rest of what precedes a run, and a study's trials have the same."""
    zero = np.zeros(1, np.uint32)
    shapes = {name: jax.ShapeDtypeStruct(shape, dtype) for name, shape, dtype in example}
    return jax.eval_shape(workload.augment, shapes, zero[0], zero, zero)


def nbytes(arrays: Any) -> int:
    """The size in bytes of arrays, or of their shapes."""
    leaves = jax.tree.leaves(arrays)
    return sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in leaves)


def of_each_device(mesh: Mesh) -> int:
    """Bytes of memory of the smallest of this process's devices."""
    return min(of_device(device) for device in mesh.local_devices)


def of_device(device: Any) -> int:
    """Bytes that a JAX device can use, for parameters, activations, and everything else."""
    stats = device.memory_stats() or {}
    if "bytes_limit" in stats:
        return stats["bytes_limit"]
    # CPU devices do not report a limit. They share the machine's memory.
    return of_machine() // jax.local_device_count()


def of_machine() -> int:
    """Bytes available to this process: the machine's, or its cgroup's limit if that is lower."""
    try:
        meminfo = pathlib.Path("/proc/meminfo").read_text()
        groups = pathlib.Path("/proc/self/cgroup").read_text()
    except OSError:  # not Linux
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    (kilobytes,) = re.findall(r"MemAvailable: +(\d+) kB", meminfo)
    return min([1024 * int(kilobytes), *cgroup_limits(groups)])


def cgroup_limits(groups: str, root: pathlib.Path = _CGROUPS) -> list[int]:
    """The limits of a process's cgroup and of its ancestors that are set, in bytes.

    Args:
        groups: the content of /proc/self/cgroup.
        root: where cgroups (version 2) are mounted. A container mounts its own cgroup there, and
            the path in `groups` may be missing.
    """
    path = re.search(r"^0::/(.*)$", groups, re.MULTILINE)
    folder = root / path[1] if path else root
    limits = []
    for place in (folder, *folder.parents):
        file = place / "memory.max"
        if place.is_relative_to(root) and file.is_file():
            limits += [int(text) for text in [file.read_text().strip()] if text.isdigit()]
    return limits
