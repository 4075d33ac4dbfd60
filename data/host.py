"""JAX functions of examples on the host's CPU, compiled for a few numbers of rows."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

LENGTHS = (8, 32)  # numbers of rows for which `on_host` compiles, with the multiples of the last


def on_host(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compiles `function(workload, seed, rows)` for the host's CPU.

    `rows` and the result are trees of arrays with one leading axis, NumPy's outside of the
    function. Rows are padded to one of few lengths, each of which is compiled.
    """
    compiled = jax.jit(function, static_argnums=0)

    def call(workload, seed, rows):
        few, many = LENGTHS
        n = len(jax.tree.leaves(rows)[0])
        length = few if n <= few else -(-n // many) * many
        if n < length:
            padded = np.minimum(np.arange(length), n - 1)
            rows = jax.tree.map(lambda array: array[padded], rows)
        with jax.default_device(jax.local_devices(backend="cpu")[0]):
            out = compiled(workload, np.uint32(seed), rows)
        # jax.device_get would hold the interpreter's lock for three times as long.
        return jax.tree.map(lambda array: np.asarray(array)[:n], out)

    return call
