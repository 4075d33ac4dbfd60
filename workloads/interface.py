"""What every workload offers to the pipeline and to training."""

from typing import Any, Protocol

import jax
import numpy as np
from flax import nnx

Arrays = dict[str, jax.Array]


class WorkloadError(Exception):
    """A configuration that the workload cannot be made from; the message says what is allowed."""


class Workload(Protocol):
    """A task. Hashable, so that what was compiled for one run serves the next equal one.

    Attributes:
        metrics: the names that an evaluation reports.
    """

    metrics: tuple[str, ...]

    def decode(self, records: list[dict[str, Any]]) -> Arrays:
        """Raw records to stacked arrays, on the host. A record that cannot be decoded raises a
        ValueError that says why; the pipeline adds which one it is, as it does to any other
        exception."""

    def augment(self, data: Arrays, seed, index_B, copy_B) -> Arrays:
        """Random transformations of stacked arrays (JAX), one `copy_keys` key a row."""

    def model(self, rngs: nnx.Rngs) -> nnx.Module:
        """The network with fresh parameters."""

    def loss(self, model: nnx.Module, data: Arrays) -> tuple[jax.Array, Arrays]:
        """The mean training loss over a batch, and metrics to log (all float32 scalars)."""

    def row_losses(self, model: nnx.Module, data: Arrays) -> tuple[jax.Array, jax.Array]:
        """What each row adds to the training loss, and its weight, both float32 [B].

        `loss` is the sum of the former over the sum of the latter, or over 1 where that is more.
        The weights depend on the data alone.
        """

    def evaluate(self, model: nnx.Module, data: Arrays, mask_B: jax.Array) -> Arrays:
        """What the metrics need of a batch, such as sums over the rows whose mask is 1."""

    def summarize(self, outputs: list[dict[str, np.ndarray]]) -> dict[str, float]:
        """The metrics, from what `evaluate` gave for each batch of the split, in order."""


def field(record: dict[str, Any], name: str) -> Any:
    """A field of a raw record; ValueError where it has none (TFDS fills in None)."""
    value = record.get(name)
    if value is None:
        raise ValueError(f"it has no {name!r}")
    return value


def total(outputs: list[dict[str, np.ndarray]]) -> dict[str, float]:
    """Sums of scalar outputs over batches, added in order and in double precision."""
    return {name: float(sum(float(output[name]) for output in outputs)) for name in outputs[0]}


def copy_keys(seed, index_B, copy_B):
    """One random key a row, folded from (data seed, fresh index, copy number), all uint32.

    The key knows nothing of batches or conditions: copy 0 of an example is augmented alike wherever
    echoing is put. A stream has at most 2**32 fresh examples.
    """
    of_seed = jax.random.key(seed)
    fold = jax.vmap(lambda i, c: jax.random.fold_in(jax.random.fold_in(of_seed, i), c))
    return fold(index_B, copy_B)
