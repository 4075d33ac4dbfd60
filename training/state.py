"""What training changes, and saves in checkpoints: arrays on the devices, counters beside them."""

import dataclasses
from typing import Any

import jax
from flax import nnx


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class TrainState:
    """Everything that a step reads and writes on the device: one value, sharded, donated to it.

    Attributes:
        params: trainable parameters, float32.
        model_state: what the network keeps besides them, such as batch norm's running statistics.
        opt_state: of the optimizer.
    """

    params: nnx.State
    model_state: nnx.State
    opt_state: object


@dataclasses.dataclass
class Counters:
    """Where a run stands; saved with every checkpoint.

    Attributes:
        evaluated, saved: multiples of the cadences that evaluation and saving have dealt with.
        evaluated_step: the step of the last evaluation, -1 before any.
        value: the target's metric there.
        best: the best validation value so far, {metric, value, fresh_examples}, or None.
        best_step: its step, -1 before any.
        initial_loss: the training loss of step 1, which no update has touched; 0.0 before it.
    """

    step: int = 0
    fresh_examples: int = 0
    evaluated: int = 0
    saved: int = 0
    evaluated_step: int = -1
    value: float | None = None
    best: dict[str, Any] | None = None
    best_step: int = -1
    initial_loss: float = 0.0
