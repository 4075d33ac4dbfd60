"""Precision of statistics and outputs, which must not be rounded to the activations' dtype."""

import jax
import jax.numpy as jnp


def at_least_float32(x: jax.Array) -> jax.Array:
    """Converts bfloat16 and float16 to float32; returns float32 and float64 unchanged.

    Training never uses float64 (which requires `jax_enable_x64`). Comparisons of a network with
    another implementation do, to avoid float32 rounding.
    """
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))
