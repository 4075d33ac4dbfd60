"""Augmentation before the training step: on the host's CPU, or on entry to a device's store."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.profiler import TraceAnnotation
from ml_collections import ConfigDict

from data.host import LENGTHS, on_host
from data.throttle import StoppableClock, augmentation_limiter
from pipeline.map_datasets import CHUNK, CORES, Arrays, Batch, Stage, in_chunks, on_a_core

# Examples in the smallest part of a batch that a core augments by itself.
_MIN_CHUNK = 8


def host_augmentation(
    config: ConfigDict, workload: Any, first: Arrays, clock: StoppableClock | None = None
) -> Stage:
    """The augmentation stage on the host's CPU, of all streams; the identity if the devices
    augment.

    Compiles here, for the shapes of `first` and the lengths that this run will use, so that no
    training step waits for the compiler. config.upstream may limit the examples per second.

    Args:
        config: a resolved configuration.
        workload: augments.
        first: a decoded example, each array [1, ...].
        clock: times the limit; None = a clock that is never stopped.
    """
    if config.augment_on == "device":
        return lambda batch: batch
    seed, limiter = np.uint32(config.seed.data), None
    if config.upstream.augmented_examples_per_second:
        limiter = augmentation_limiter(config, clock)
    augmented = _by_workload if getattr(workload, "augment_on_host", None) else _by_xla

    def augment(batch: Batch) -> Batch:
        with TraceAnnotation("augment"):
            batch = batch._replace(data=augmented(workload, seed, batch))
        if limiter is not None:
            limiter.wait(len(batch.index))
        return batch

    whole = config.echo.insertion == "before_augmentation"  # batches; otherwise chunks
    for length in [config.batch_size // config.echo.streams] if whole else LENGTHS:
        data = {name: array.repeat(length, 0) for name, array in first.items()}
        zeros = np.zeros(length, np.int64)
        augmented(workload, seed, Batch(data, zeros, zeros, 0))
    return augment


def _by_workload(workload: Any, seed: np.uint32, batch: Batch) -> Arrays:
    """The batch augmented by the workload's code for the host, in chunks on all cores."""

    def augmented(rows: Sequence[int]) -> Arrays:
        part = slice(rows[0], rows[-1] + 1)
        data = {name: array[part] for name, array in batch.data.items()}
        return workload.augment_on_host(data, seed, batch.index[part], batch.copy[part])

    n = len(batch.index)
    size = max(_MIN_CHUNK, min(CHUNK, -(-n // CORES)))
    return on_a_core(augmented, range(n)) if n <= size else in_chunks(augmented, range(n), size)


def _by_xla(workload: Any, seed: np.uint32, batch: Batch) -> Arrays:
    """The batch augmented by XLA on the host's CPU."""
    rows = batch.data, batch.index.astype(np.uint32), batch.copy.astype(np.uint32)
    # XLA's CPU client runs in order what one thread dispatches. On the training loop's own thread,
    # which decides batches under echo.policy=auto, augmentation would wait for the running step.
    return on_a_core(_augmented, workload, seed, rows)


@on_host
def _augmented(workload: Any, seed, rows):
    data, index_B, copy_B = rows
    return workload.augment(data, seed, index_B, copy_B)


@functools.lru_cache(maxsize=32)  # so that equal workloads share what has been compiled
def augmentation_on_entry(workload: Any, data_seed: int) -> Any:
    """The `echo.device.Enter` that augments fresh examples once, as copy 0. Items are examples, or
    blocks of them, whose numbers then have two axes."""

    def enter(items: Any, index: jax.Array) -> Any:
        index_n = index.reshape(-1)
        examples = jax.tree.map(lambda x: x.reshape(-1, *x.shape[index.ndim :]), items)
        seed = np.uint32(data_seed)
        augmented = workload.augment(examples, seed, index_n, jnp.zeros_like(index_n))
        return jax.tree.map(lambda x: x.reshape(*index.shape, *x.shape[1:]), augmented)

    return enter
