"""The metrics of a state over a whole split, each example counted exactly once."""

from collections.abc import Iterable

import jax

from training import sharding
from training.state import TrainState
from training.step import Program


def evaluate(program: Program, state: TrainState, batches: Iterable) -> dict[str, float]:
    """Metrics by name, over `batches` of (arrays, mask float32 [B])."""
    mesh, workload = program.task.mesh, program.task.workload
    outputs = []
    for data, mask_B in batches:
        data, mask_B = sharding.put_batch(mesh, (data, mask_B))
        step = program.compile_evaluate(state, data, mask_B)
        outputs.append(step(state.params, state.model_state, data, mask_B))
    return workload.summarize(jax.device_get(outputs))
