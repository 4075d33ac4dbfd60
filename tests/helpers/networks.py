"""What tests of networks share."""

import jax
from flax import nnx


def abstract(network, **arguments) -> nnx.Module:
    """The network's shapes, with nothing computed."""
    return nnx.eval_shape(lambda: network(**arguments, rngs=nnx.Rngs(0)))


def parameter_count(model: nnx.Module) -> int:
    """The number of parameters, without running statistics."""
    return sum(leaf.size for leaf in jax.tree.leaves(nnx.state(model, nnx.Param)))
