"""Augmentation on the host's CPU, compiled before the first step."""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.profiler import TraceAnnotation
from ml_collections import ConfigDict

from data.throttle import StoppableClock, augmentation_limiter
from pipeline.map_datasets import CHUNK, CORES, Arrays, Batch, Stage, in_chunks, on_a_core

# Augmentation is compiled for these numbers of examples, and for multiples of a chunk; others are
# padded up to the next of them.
LENGTHS = (8, CHUNK)

# Examples in the smallest part of a batch that a core augments by itself.
_MIN_CHUNK = 8


def host_augmentation(
    config: ConfigDict, functions: Any, first: Arrays, clock: StoppableClock | None = None
) -> Stage:
    """The augmentation stage on the host's CPU, of all streams; the identity if the devices
    augment.

    Compiles here, for the shapes of `first` and the lengths that this run will use, so that no
    training step waits for the compiler. config.upstream may limit the examples per second.

    Args:
        config: a resolved configuration.
        functions: `pipeline.build.StageFunctions`.
        first: a decoded example, each array [1, ...].
        clock: times the limit; None = a clock that is never stopped.
    """
    if config.augment_on == "device":
        return lambda batch: batch
    seed = np.uint32(config.seed.data)
    apply = _by_workload if getattr(functions, "augment_on_host", None) else _by_xla
    limiter = augmentation_limiter(config, clock)

    def augment(batch: Batch) -> Batch:
        with TraceAnnotation("augment"):
            batch = batch._replace(data=apply(functions, seed, batch))
        if limiter is not None:
            limiter.wait(len(batch.index))
        return batch

    lengths = set(LENGTHS)
    if config.echo.insertion == "before_augmentation":
        lengths = {config.batch_size // config.echo.streams}
    for length in lengths:
        data = {name: array.repeat(length, 0) for name, array in first.items()}
        zeros = np.zeros(length, np.int64)
        apply(functions, seed, Batch(data, zeros, zeros, 0))
    return augment


def _by_workload(functions: Any, seed: np.uint32, batch: Batch) -> Arrays:
    """The batch augmented by the workload's code for the host, in chunks on all cores."""

    def augmented(rows: Sequence[int]) -> Arrays:
        part = slice(rows[0], rows[-1] + 1)
        data = {name: array[part] for name, array in batch.data.items()}
        return functions.augment_on_host(data, seed, batch.index[part], batch.copy[part])

    n = len(batch.index)
    size = max(_MIN_CHUNK, min(CHUNK, -(-n // CORES)))
    return on_a_core(augmented, range(n)) if n <= size else in_chunks(augmented, range(n), size)


def _by_xla(functions: Any, seed: np.uint32, batch: Batch) -> Arrays:
    """The batch augmented by XLA on the host's CPU."""

    def compiled() -> Arrays:
        n = len(batch.index)
        length = next((length for length in LENGTHS if n <= length), -(-n // CHUNK) * CHUNK)
        rows = np.minimum(np.arange(length), n - 1) if n < length else slice(None)
        data = {name: array[rows] for name, array in batch.data.items()}
        index, copy = batch.index[rows].astype(np.uint32), batch.copy[rows].astype(np.uint32)
        with jax.default_device(jax.local_devices(backend="cpu")[0]):
            out = jax.device_get(_jit(functions)(data, seed, index, copy))
        return {name: array[:n] for name, array in out.items()}

    # XLA's CPU client runs in order what one thread dispatches. On the training loop's own thread,
    # which decides batches under echo.policy=auto, augmentation would wait for the running step.
    return on_a_core(compiled)


@functools.lru_cache(maxsize=32)
def _jit(functions: Any) -> Callable[..., Any]:
    return jax.jit(functions.augment)
