"""Measures networks."""

import math

import jax
from flax import nnx


def parameter_count(model: nnx.Module) -> int:
    """Number of trainable parameters; `model` may be abstract (the result of nnx.eval_shape)."""
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(nnx.state(model, nnx.Param)))
