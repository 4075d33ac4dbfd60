"""What training changes: one value, sharded, donated to the step, and saved in checkpoints."""

import dataclasses

import jax
from flax import nnx


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class TrainState:
    """Everything that a step reads and writes on the device.

    Attributes:
        params: trainable parameters, float32.
        model_state: what the network keeps besides them, such as batch norm's running statistics.
        opt_state: of the optimizer.
    """

    params: nnx.State
    model_state: nnx.State
    opt_state: object
