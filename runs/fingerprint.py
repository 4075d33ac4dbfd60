"""Checksums of arrays, computed on their devices and independent of their sharding.

Sums of integers modulo 2^32 do not depend on the order of summation. Each device sums its own part,
and a checkpoint has the same checksums when it is restored with another sharding.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

_GOLDEN = 0x9E3779B9  # 2^32 over the golden ratio: neighboring positions map to distant numbers
_SEEDS = (0, 0x7F4A7C15)  # two sums, 64 bits together


def of_arrays(arrays: dict[str, Any]) -> dict[str, str]:
    """16 hexadecimal digits for each array, by name.

    They detect every change of a single element, and other changes except with probability 2^-64.
    They detect damage, not malice.
    """
    # One at a time. The sums of an array that processes share wait for one another, and a client
    # runs a limited number of programs at once: if each process filled it with others, all would
    # wait forever.
    sums = {name: jax.device_get(_sums(array)) for name, array in arrays.items()}
    return {name: "".join(f"{int(part):08x}" for part in both) for name, both in sums.items()}


@jax.jit
def _sums(array: jax.Array) -> tuple[jax.Array, ...]:
    """For each seed, the sum over elements of mix(bits + position * golden); uint32 scalars."""
    words = _words(array)
    position, stride = jnp.uint32(0), 1
    for axis in reversed(range(words.ndim)):
        along = lax.broadcasted_iota(jnp.uint32, words.shape, axis)
        position = position + along * np.uint32(stride % 2**32)
        stride *= words.shape[axis]
    numbered = words + position * np.uint32(_GOLDEN)
    return tuple(jnp.sum(_mixed(numbered ^ np.uint32(seed)), dtype=jnp.uint32) for seed in _SEEDS)


def _words(array: jax.Array) -> jax.Array:
    """The bits of each element, as one uint32 or two."""
    if array.dtype == jnp.bool_:
        return array.astype(jnp.uint32)
    bits = min(32, 8 * array.dtype.itemsize)
    return lax.bitcast_convert_type(array, jnp.dtype(f"uint{bits}")).astype(jnp.uint32)


def _mixed(x: jax.Array) -> jax.Array:
    """The finalizer of MurmurHash3, a bijection of uint32 that mixes all bits."""
    x = (x ^ (x >> 16)) * np.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * np.uint32(0xC2B2AE35)
    return x ^ (x >> 16)
