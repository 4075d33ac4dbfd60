"""Batch normalization over groups of examples, used by all convolutional networks; precision."""

import jax
import jax.numpy as jnp
from flax import nnx

_MOMENTUM = 0.9  # share of the running statistics that each step keeps
_EPSILON = 1e-5  # added to the variance


def at_least_float32(x: jax.Array) -> jax.Array:
    """Converts bfloat16 and float16 to float32; returns float32 and float64 unchanged.

    Training never uses float64 (which requires `jax_enable_x64`). Comparisons of a network with
    another implementation do, to avoid float32 rounding.
    """
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


class GhostBatchNorm(nnx.Module):
    """Batch normalization whose training statistics come from contiguous groups of examples.

    With `group_size` 0 the whole batch is one group: ordinary batch normalization. Otherwise
    examples 0..group_size-1 are normalized together, then the next `group_size`, and so on (Hoffer
    et al. 2017, algorithm 1); a batch smaller than a group is one group. Grouping only reshapes the
    batch axis, so a batch that is sharded into whole groups is normalized without communication
    between devices.

    There is one set of running statistics. A training step moves them toward the mean over the
    groups of each group's mean and (biased) variance.

    Args:
        num_features: size C of the last axis.
        group_size: examples in a group; 0 = the whole batch.
        initial_scale: initial value of `scale`; 0 makes a residual branch start as zero.
        dtype: dtype of the output. Parameters and statistics are float32. Arithmetic is float32, or
            wider if the input is.
    """

    def __init__(
        self,
        num_features: int,
        *,
        group_size: int = 0,
        initial_scale: float = 1.0,
        dtype: jnp.dtype = jnp.float32,
    ):
        self.group_size = group_size
        self.dtype = dtype
        self.scale = nnx.Param(jnp.full(num_features, initial_scale, jnp.float32))
        self.bias = nnx.Param(jnp.zeros(num_features, jnp.float32))
        self.mean = nnx.BatchStat(jnp.zeros(num_features, jnp.float32))
        self.var = nnx.BatchStat(jnp.ones(num_features, jnp.float32))

    def __call__(self, x_BxSxC: jax.Array, *, train: bool) -> jax.Array:
        """Normalizes x_BxSxC (S: zero or more axes); returns the same shape in `dtype`.

        With `train`, uses the statistics of each group and updates the running ones; otherwise uses
        the running ones. In training the batch is a whole number of groups.
        """
        if not train:
            return self._normalize(x_BxSxC, self.mean[...], self.var[...])
        batch, *rest = x_BxSxC.shape
        group = min(self.group_size, batch) or batch
        x_GxNxSxC = at_least_float32(x_BxSxC.reshape(-1, group, *rest))
        mean_Gx1xC, var_Gx1xC = _moments(x_GxNxSxC)
        self._update_running(mean_Gx1xC, var_Gx1xC)
        return self._normalize(x_GxNxSxC, mean_Gx1xC, var_Gx1xC).reshape(x_BxSxC.shape)

    def _update_running(self, mean_Gx1xC: jax.Array, var_Gx1xC: jax.Array) -> None:
        for running, new_Gx1xC in ((self.mean, mean_Gx1xC), (self.var, var_Gx1xC)):
            new_C = new_Gx1xC.mean(axis=tuple(range(new_Gx1xC.ndim - 1)))
            running[...] = _MOMENTUM * running[...] + (1 - _MOMENTUM) * new_C

    def _normalize(self, x: jax.Array, mean: jax.Array, var: jax.Array) -> jax.Array:
        factor = jax.lax.rsqrt(var + _EPSILON) * self.scale[...]
        y = (at_least_float32(x) - mean) * factor + self.bias[...]
        return y.astype(self.dtype)


def _moments(x_GxNxSxC: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Mean and biased variance of each group and channel; reduced axes have length 1."""
    axes = tuple(range(1, x_GxNxSxC.ndim - 1))
    mean_Gx1xC = x_GxNxSxC.mean(axes, keepdims=True)
    square_Gx1xC = jnp.square(x_GxNxSxC).mean(axes, keepdims=True)
    # E[x^2] - E[x]^2 needs one pass over the activations; rounding may leave it below zero.
    return mean_Gx1xC, jnp.maximum(square_Gx1xC - jnp.square(mean_Gx1xC), 0)
