"""Optimizers and learning-rate schedules.

Hyperparameters are arguments of the compiled step, not constants in it, so all trials of a search
share one compilation.
"""

import math
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
from ml_collections import ConfigDict


class Hyperparameters(NamedTuple):
    """The optimizer's hyperparameters at one step, float32 scalars. Only AdamW uses `beta2`."""

    learning_rate: Any
    momentum: Any
    weight_decay: Any
    beta2: Any = 0.0


def transformation(name: str, hyper: Hyperparameters) -> optax.GradientTransformation:
    """Momentum SGD as in the paper, or AdamW.

    'momentum' is heavy ball: m <- momentum * m + g, p <- p - lr * m. 'nesterov' moves by
    g + momentum * m instead (Sutskever et al. 2013). For both, weight decay is an L2 penalty, added
    to the gradient. For 'adamw' (Loshchilov & Hutter 2019) it is added to the update, before the
    multiplication by the learning rate. Weight decay acts on kernels only. Gradients are not
    clipped.

    Args:
        name: a value of config.optimizer.name.
        hyper: may be traced.
    """
    decay = optax.add_decayed_weights(hyper.weight_decay, mask=_kernels)
    if name == "adamw":
        moving = optax.scale_by_adam(b1=hyper.momentum, b2=hyper.beta2)
        parts = (moving, decay)
    else:
        parts = (decay, optax.trace(decay=hyper.momentum, nesterov=name == "nesterov"))
    return optax.chain(*parts, optax.scale_by_learning_rate(hyper.learning_rate))


def _kernels(params):
    return jax.tree.map_with_path(
        lambda path, _: any(getattr(part, "key", None) == "kernel" for part in path), params
    )


def hyperparameters(config: ConfigDict, progress: float) -> Hyperparameters:
    """The hyperparameters at `progress` in [0, 1] of the schedule's horizon."""
    own = config.optimizer
    rate = own.learning_rate * schedule_factor(own.schedule, progress)
    with np.errstate(over="ignore"):  # an infinite rate ends the run as diverged
        values = map(np.float32, (rate, own.momentum, own.weight_decay, own.beta2))
        return Hyperparameters(*values)


def schedule_factor(schedule: ConfigDict, progress: float) -> float:
    """The learning rate over its peak, at `progress` in [0, 1] of the schedule's horizon."""
    warmup = schedule.warmup_progress
    if progress < warmup:
        return progress / warmup
    if schedule.name == "constant":
        return 1.0
    if schedule.name == "two_steps":
        steps = (schedule.first_step_progress, schedule.second_step_progress)
        return schedule.step_factor ** sum(progress >= step for step in steps)
    share = (progress - warmup) / (1.0 - warmup)
    if schedule.name == "cosine":
        share = (1.0 - math.cos(math.pi * share)) / 2
    return 1.0 - (1.0 - schedule.final_factor) * share
