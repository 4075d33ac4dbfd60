"""The compiled programs of a run: fresh state, a training step, a step of evaluation.

`program(...)` hands out the same object for equal tasks, so that a search compiles once for all of
its trials.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh

from training import divergence, gradient_statistics, optimizer, sharding
from training.state import TrainState
from workloads.interface import Workload


@dataclasses.dataclass(frozen=True)
class Task:
    """All that shapes the compiled programs. Equal tasks share them.

    Attributes:
        augment_on_device: whether the step augments its batch before the loss.
        sharding: how parameters lie on the mesh: one of those of config.sharding.
    """

    workload: Workload
    optimizer: str
    augment_on_device: bool
    mesh: Mesh
    sharding: str = "replicated"


class Program:
    """Compiled functions for one task; see `program`.

    Attributes:
        state_bytes, gradient_bytes: of each device's part of a state, and of its gradients.

    Raises:
        sharding.MeshError: the network cannot lie on the mesh as the task says.
    """

    def __init__(self, task: Task):
        self.task = task
        self._graphdef = nnx.graphdef(nnx.eval_shape(lambda: task.workload.model(nnx.Rngs(0))))
        self._replicated = sharding.replicated(task.mesh)
        shapes = jax.eval_shape(self._init_arrays, np.uint32(0))
        state = self._state_shardings(shapes)
        self.gradient_bytes = _device_bytes(shapes.params, state.params)
        self.state_bytes = _device_bytes(shapes, state)
        # Drawing parameters runs once, and is most of what XLA's CPU compiler has to do otherwise.
        on_cpu = task.mesh.devices.flat[0].platform == "cpu"
        options = {"xla_backend_optimization_level": 0} if on_cpu else None
        self._init = jax.jit(self._init_arrays, out_shardings=state, compiler_options=options)
        self._train = jax.jit(
            self._train_arrays, donate_argnums=0, out_shardings=(state, self._replicated)
        )
        self._evaluate = jax.jit(self._evaluate_arrays, out_shardings=self._replicated)
        self._statistics = jax.jit(self._statistics_arrays, out_shardings=self._replicated)
        stacked = jax.tree.map(sharding.stacked, state)
        self._train_stacked = jax.jit(
            jax.vmap(self._train_arrays, in_axes=(0, None, 0, None)),
            donate_argnums=0,
            out_shardings=(stacked, self._replicated),
        )
        self._stack = jax.jit(
            lambda states: jax.tree.map(lambda *arrays: jnp.stack(arrays), *states),
            out_shardings=stacked,
        )
        self._unstack = jax.jit(
            lambda states, number: jax.tree.map(lambda array: array[number], states),
            out_shardings=state,
        )
        self._compiled: dict[Any, Any] = {}

    def init(self, seed: int) -> TrainState:
        """Fresh state: parameters drawn from `seed`, the same ones however they are sharded."""
        return self._init(np.uint32(seed))

    def lower_train(self, state: TrainState, batch: Any, hyper: Any, data_seed: Any) -> Any:
        """The training step as written, for its `cost_analysis` before the compiler's work."""
        return self._train.lower(state, batch, hyper, data_seed)

    def compile_train(self, state: TrainState, batch: Any, hyper: Any, data_seed: Any) -> Any:
        """The training step compiled for these shapes: (state, batch, hyper, data_seed) ->
        (state, metrics). Ahead of time, so that a clock can leave compilation out.

        Metrics are the workload's, and `nonfinite`, see training/divergence.py."""
        arguments = (state, batch, hyper, data_seed)
        return self._compile("train", self._train, arguments)

    def compile_stacked(self, states: TrainState, batch: Any, hypers: Any, data_seed: Any) -> Any:
        """The training step of several states, stacked as by `stack`, on one batch; each field of
        `hypers` and each metric is float32 [states]."""
        return self._compile("stacked", self._train_stacked, (states, batch, hypers, data_seed))

    def stack(self, states: Sequence[TrainState]) -> TrainState:
        """States along a new first axis of each array."""
        return self._stack(tuple(states))

    def unstack(self, states: TrainState, number: int) -> TrainState:
        """State `number` of a stack."""
        return self._unstack(states, np.int32(number))

    def compile_evaluate(self, state: TrainState, batch: Any, mask_B: Any) -> Any:
        """The same for evaluation: (params, model_state, batch, mask) -> outputs."""
        arguments = (state.params, state.model_state, batch, mask_B)
        return self._compile("evaluate", self._evaluate, arguments)

    def compile_statistics(
        self, state: TrainState, batch: Any, repeat_B: Any, data_seed: Any
    ) -> Any:
        """The statistics of a training batch's gradient: (params, model_state, batch, repeat_B,
        data_seed) -> values by name; see gradient_statistics.statistics. Nothing is donated."""
        arguments = (state.params, state.model_state, batch, repeat_B, data_seed)
        return self._compile("statistics", self._statistics, arguments)

    def _compile(self, name: str, function, arguments) -> Any:
        leaves, structure = jax.tree.flatten(arguments)
        key = (name, structure, tuple((jnp.shape(x), jnp.result_type(x)) for x in leaves))
        if key not in self._compiled:
            self._compiled[key] = function.lower(*arguments).compile()
        return self._compiled[key]

    def _state_shardings(self, shapes: TrainState) -> TrainState:
        """Where a state's arrays live. Batch statistics are small, and replicated always."""
        mesh, choice = self.task.mesh, self.task.sharding
        return TrainState(
            params=sharding.parameter_shardings(mesh, choice, shapes.params),
            model_state=jax.tree.map(lambda _: self._replicated, shapes.model_state),
            opt_state=sharding.parameter_shardings(mesh, choice, shapes.opt_state),
        )

    def _init_arrays(self, seed) -> TrainState:
        model = self.task.workload.model(nnx.Rngs(params=jax.random.key(seed)))
        _, params, model_state = nnx.split(model, nnx.Param, ...)
        zeros = optimizer.Hyperparameters(0.0, 0.0, 0.0)
        opt_state = optimizer.transformation(self.task.optimizer, zeros).init(params)
        return TrainState(params, model_state, opt_state)

    def _train_arrays(self, state: TrainState, batch, hyper, data_seed):
        task, data = self.task, self._augmented(batch, data_seed)

        def loss_of(params):
            params = self._gathered(params)
            # copy=True: batch norm's statistics are written inside this trace
            model = nnx.merge(self._graphdef, params, state.model_state, copy=True)
            loss, metrics = task.workload.loss(model, data)
            return loss, (metrics, nnx.state(model, nnx.Not(nnx.Param)))

        differentiate = jax.value_and_grad(loss_of, has_aux=True)
        (loss, (metrics, model_state)), grads = differentiate(state.params)
        update = optimizer.transformation(task.optimizer, hyper)
        updates, opt_state = update.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        metrics = metrics | {"nonfinite": divergence.nonfinite(loss, grads, params)}
        return TrainState(params, model_state, opt_state), metrics

    def _statistics_arrays(self, params, model_state, batch, repeat_B, data_seed):
        _, index_B, _ = batch
        data = self._augmented(batch, data_seed)

        def row_losses(params):
            model = nnx.merge(self._graphdef, self._gathered(params), model_state, copy=True)
            return self.task.workload.row_losses(model, data)

        return gradient_statistics.statistics(row_losses, params, index_B, repeat_B, data_seed)

    def _evaluate_arrays(self, params, model_state, data, mask_B):
        model = nnx.merge(self._graphdef, self._gathered(params), model_state, copy=True)
        return self.task.workload.evaluate(model, data, mask_B)

    def _augmented(self, batch, data_seed):
        data, index_B, copy_B = batch
        if not self.task.augment_on_device:
            return data
        return self.task.workload.augment(data, data_seed, index_B, copy_B)

    def _gathered(self, params):
        """Parameters as the network's arithmetic takes them.

        Under fsdp they are whole there; left to itself, the compiler may split activations as it
        finds the parameters split, and then examples are no longer each device's own.
        """
        if self.task.sharding != "fsdp":
            return params
        return jax.lax.with_sharding_constraint(params, self._replicated)


def _device_bytes(shapes: Any, shardings: Any) -> int:
    """Bytes of each device's part of arrays."""
    pairs = zip(jax.tree.leaves(shapes), jax.tree.leaves(shardings), strict=True)
    return sum(math.prod(s.shard_shape(x.shape)) * x.dtype.itemsize for x, s in pairs)


@functools.lru_cache(maxsize=8)
def program(task: Task) -> Program:
    """The compiled programs of `task`, made once a process."""
    return Program(task)
