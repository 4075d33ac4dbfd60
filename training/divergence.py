"""Detects divergence: a check inside the compiled step, and one of the losses it returns."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp

# A run has diverged once its training loss exceeds this multiple of the loss at initialization.
# Much less would end runs that recover: one had up to 515 times that loss (results/coverage.md).
MAX_LOSS_RATIO = 1000.0

_NONFINITE = ("", "a parameter", "a gradient", "the loss")


def nonfinite(loss: jax.Array, grads: Any, params: Any) -> jax.Array:
    """Which result of a step is not finite, as a code for `explanation`, int32 [].

    The code is 3 for the loss, else 2 for a gradient, else 1 for an updated parameter, and 0 if
    all are finite. Checking the loss is not enough: compilers may drop NaN, as XLA's CPU compiler
    does in some fused relus.

    Args:
        loss: float32 [].
        grads: of the loss with respect to the parameters.
        params: updated, in the same structure. Gradient and parameter are reduced together, on the
            devices that hold them.
    """

    def of_leaf(grad, param):
        return jnp.where(jnp.isfinite(grad), jnp.where(jnp.isfinite(param), 0, 1), 2).max()

    leaves = jax.tree.leaves(jax.tree.map(of_leaf, grads, params))
    return functools.reduce(jnp.maximum, leaves, jnp.where(jnp.isfinite(loss), 0, 3))


def explanation(step: int, loss: float, nonfinite: int, initial_loss: float) -> str:
    """Why a run has diverged at `step`; '' if it has not.

    Args:
        step: the number of the step.
        loss: its training loss.
        nonfinite: the code from `nonfinite`.
        initial_loss: the training loss of step 1. If it is 0.0, as for a batch without targets,
            there is no bound.
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
