"""When a run is diverged: looked for in the compiled step and in the losses that it returns."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp

# A run is diverged once its training loss exceeds this many times the loss at initialization. That
# is far from what training comes back from: of the 2,698 trials of results/studies, none that was
# not diverged recorded a training loss of even 3 times that of a fresh network.
MAX_LOSS_RATIO = 1000.0

_NONFINITE = ("", "a parameter", "a gradient", "the loss")


def nonfinite(loss: jax.Array, grads: Any, params: Any) -> jax.Array:
    """What a step found or left that is not finite, int32 []; `explanation` takes it.

    It is 3 for the loss, else 2 for a gradient, else 1 for an updated parameter, 0 for nothing. The
    loss alone does not tell: compilers may drop NaN, as XLA's for CPUs does in some fused relus.

    Args:
        loss: float32 [].
        grads, params: pytrees of one structure. Each leaf is reduced once, where it lies, gradient
            and parameter together.
    """

    def of_leaf(grad, param):
        return jnp.where(jnp.isfinite(grad), jnp.where(jnp.isfinite(param), 0, 1), 2).max()

    leaves = jax.tree.leaves(jax.tree.map(of_leaf, grads, params))
    return functools.reduce(jnp.maximum, leaves, jnp.where(jnp.isfinite(loss), 0, 3))


def explanation(step: int, loss: float, nonfinite: int, initial_loss: float) -> str:
    """Why a run is diverged at `step`, '' if it is not.

    Args:
        loss: the training loss of this step.
        nonfinite: as returned by the function of that name.
        initial_loss: the training loss of step 1; 0.0, of a batch without a target, sets no bound.
    """
    if nonfinite:
        return f"{_NONFINITE[nonfinite]} is not finite at step {step} (training loss {loss:g})"
    bound = MAX_LOSS_RATIO * initial_loss if initial_loss else math.inf
    if not loss <= bound:
        return (
            f"the training loss is {loss:g} at step {step}, more than {MAX_LOSS_RATIO:g} times "
            f"that of step 1, {initial_loss:g}"
        )
    return ""
