"""The interface between a workload and the pipeline and training."""

from typing import Any, Protocol, Self

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from runs import cli
from runs.records import nested

Arrays = dict[str, Any]  # JAX or NumPy arrays by name


class WorkloadError(cli.InputError):
    """The workload does not support this configuration; the message says what is allowed."""


def lacks(config, info, what: str) -> WorkloadError:
    """The error for a data set without what the configured workload needs."""
    return WorkloadError(
        f"data set {info.name!r} has no {what}, which workload {config.workload!r} needs (its "
        f"image_shape is {info.image_shape}, channels {info.channels}, num_classes "
        f"{info.num_classes}); choose another config.dataset.name, or the --config of another "
        "workload"
    )


def require(possible: bool, config, name: str, allowed: str) -> None:
    """Raises WorkloadError for the field `name` of `config` unless its value is possible."""
    if not possible:
        raise WorkloadError(f"config.{name} is {nested(config, name)!r}; allowed: {allowed}")


class Workload(Protocol):
    """A task. Hashable, so that equal workloads share one compilation.

    Attributes:
        metrics: names of the metrics that an evaluation reports.
    """

    metrics: tuple[str, ...]

    @classmethod
    def from_config(cls, config: Any, info: Any) -> Self:
        """The workload of a configuration on a data set (data.sources.DatasetInfo).

        Raises:
            WorkloadError: it does not support the data set or the model.
        """
        ...

    def decode(self, records: list[dict[str, Any]]) -> Arrays:
        """Decodes raw records to stacked arrays, on the host.

        Raises a ValueError with the reason if a record cannot be decoded, a
        data.sources.DamagedError if it may be skipped; the pipeline adds which record it is, as it
        does for any other exception.
        """
        ...

    def augment(self, data: Arrays, seed, index_B, copy_B) -> Arrays:
        """Transforms stacked arrays at random (JAX), with one `copy_keys` key per row.

        A workload may also have `augment_on_host`, which does the same to NumPy arrays, for where
        XLA is slow on a CPU; the pipeline then uses it for config.augment_on=host. One that
        supports dataset.fused_decode has `decode_cropped(records, seed, index_n, copy_n)`, which
        decodes and crops at random; `augment` then skips the crop.
        """
        ...

    def model(self, rngs: nnx.Rngs) -> nnx.Module:
        """The network with initial parameters.

        It may keep streams of `rngs`, as nnx.Dropout does: they are derived from config.seed.model,
        advance with each step, and are saved in checkpoints.
        """
        ...

    def loss(self, model: nnx.Module, data: Arrays) -> tuple[jax.Array, Arrays]:
        """The mean training loss over a batch, and metrics to log (all float32 scalars)."""
        ...

    def evaluate(self, model: nnx.Module, data: Arrays, mask_B: jax.Array) -> Arrays:
        """Statistics of a batch for the metrics, such as sums over the rows whose mask is 1.

        `model.eval()` has been called: nnx.Dropout drops nothing.
        """
        ...

    def summarize(self, outputs: list[dict[str, np.ndarray]]) -> dict[str, float]:
        """The metrics of a split, from the outputs of `evaluate` for each batch, in order."""
        ...


def field(record: dict[str, Any], name: str) -> Any:
    """A field of a raw record; raises ValueError if it is missing (TFDS fills in None)."""
    value = record.get(name)
    if value is None:
        raise ValueError(f"it has no {name!r}")
    return value


def total(outputs: list[dict[str, np.ndarray]]) -> dict[str, float]:
    """Sums of scalar outputs over batches, added in order and in double precision."""
    return {name: float(sum(float(output[name]) for output in outputs)) for name in outputs[0]}


def copy_keys(seed, index_B, copy_B) -> jax.Array:
    """One random key per row, folded from (data seed, fresh index, copy number), all uint32.

    The key does not depend on batches or conditions: copy 0 of an example is augmented identically
    wherever echoing is inserted. A run has at most 2**32 fresh examples.
    """
    return jax.vmap(jax.random.fold_in)(_example_keys(seed, index_B), copy_B)


def strata(seed, index_B, copy_B, number: int, use: int) -> jax.Array:
    """The part of a partition into `number` parts from which each row's augmentation is drawn,
    int32 [B], for `config.echo.copies=stratified`.

    The copies of an example take every part once, in a random order, before any part again. Like
    `copy_keys`, a pure function of (data seed, fresh index, copy number); draws for different
    `use`s, below 2**32, are independent.
    """

    def part(key, copy):
        for data in (np.uint32(2**32 - 1), use, copy // number):  # no copy has the first number
            key = jax.random.fold_in(key, data)
        return jax.random.permutation(key, number)[copy % number]

    return jax.vmap(part)(_example_keys(seed, index_B), copy_B)


def in_quarter(key: jax.Array, quarter) -> jax.Array:
    """A random point of one of the quarters of the unit square, numbered from 0, float32 [2]."""
    return (jnp.stack([quarter // 2, quarter % 2]) + jax.random.uniform(key, (2,))) / 2


def _example_keys(seed, index_B) -> jax.Array:
    return jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(seed), index_B)
