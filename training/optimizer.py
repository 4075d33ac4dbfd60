"""Optimizers whose hyperparameters are inputs of the compiled step, and learning-rate schedules.

A search changes learning rate and momentum from trial to trial. Since they are arguments of the
step, and not constants in it, all trials of a condition share one compilation.
"""

from typing import NamedTuple

import jax
import numpy as np
import optax

NAMES = ("nesterov", "momentum")
SCHEDULES = ("linear", "two_steps", "constant")


class Hyperparameters(NamedTuple):
    """What the optimizer needs at one step, float32 scalars."""

    learning_rate: float
    momentum: float
    weight_decay: float


def transformation(name: str, hyper: Hyperparameters) -> optax.GradientTransformation:
    """Momentum SGD as in the study; `hyper` may be traced.

    'momentum' is heavy ball, m <- momentum * m + g, p <- p - lr * m; 'nesterov' moves by
    g + momentum * m instead (Sutskever et al. 2013). The weight decay is an L2 penalty: it is added
    to the gradient, on kernels only.
    """
    return optax.chain(
        optax.add_decayed_weights(hyper.weight_decay, mask=_kernels),
        optax.trace(decay=hyper.momentum, nesterov=name == "nesterov"),
        optax.scale_by_learning_rate(hyper.learning_rate),
    )


def _kernels(params):
    def is_kernel(path, _):
        return any(getattr(part, "key", None) == "kernel" for part in path)

    return jax.tree_util.tree_map_with_path(is_kernel, params)


def hyperparameters(config, step: int, total_steps: int) -> Hyperparameters:
    """The hyperparameters of step `step` (0, 1, ...) of a run of `total_steps`."""
    optimizer = config.optimizer
    rate = optimizer.learning_rate * schedule_factor(optimizer.schedule, step / max(total_steps, 1))
    return Hyperparameters(
        np.float32(rate), np.float32(optimizer.momentum), np.float32(optimizer.weight_decay)
    )


def schedule_factor(schedule, progress: float) -> float:
    """Learning rate relative to its peak at `progress` in [0, 1] of the run."""
    warm = min(progress / schedule.warmup_progress, 1.0) if schedule.warmup_progress else 1.0
    if schedule.name == "constant":
        return warm
    if schedule.name == "two_steps":
        decays = (schedule.first_step_progress, schedule.second_step_progress)
        return warm * schedule.step_factor ** sum(progress >= decay for decay in decays)
    share = min(progress / schedule.decay_progress, 1.0)
    return warm * (1.0 - (1.0 - schedule.final_factor) * share)
