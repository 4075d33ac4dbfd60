"""The precision of what must not be rounded to the activations' dtype: statistics and outputs."""

import jax
import jax.numpy as jnp


def at_least_float32(x: jax.Array) -> jax.Array:
    """`x` as float32 if its dtype has fewer digits (bfloat16); float32 and float64 unchanged.

    Training never uses float64 (JAX makes it only under `jax_enable_x64`); comparisons of a network
    with another implementation do, where float32 would leave the rounding of the machine.
    """
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))
