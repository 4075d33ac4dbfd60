"""The compiled programs of a run: initialization, training step, evaluation; and divergence.

`program(task)` returns the same object for equal tasks, so all trials of a search share one
compilation.
"""

import dataclasses
import functools
import math
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh

from training import optimizer, sharding
from training.optimizer import Hyperparameters
from training.sharding import Rows
from workloads.interface import Arrays, Workload

# Folded into the key of the parameters, which stays what it is without such a stream.
_DEFAULT_STREAM = 1

# A run has diverged once its training loss exceeds this multiple of the loss at initialization.
# Much less would end runs that recover: one had up to 515 times that loss (results/coverage.md).
MAX_LOSS_RATIO = 1000.0

_NONFINITE = ("", "a parameter", "a gradient", "the loss")


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class TrainState:
    """Everything on the devices that a step reads and writes. It is donated to the step."""

    params: nnx.State  # trainable, float32
    # Other variables, such as batch norm's running statistics. Random keys are held as their bits,
    # uint32, which NumPy, checksums, and checkpoints support.
    model_state: nnx.State
    opt_state: Any


@dataclasses.dataclass(frozen=True)
class Task:
    """Everything that determines the compiled programs. Equal tasks share them."""

    workload: Workload  # the network, loss, and metrics
    optimizer: str  # a value of config.optimizer.name
    augment_on_device: bool  # whether the step augments its batch before the loss
    mesh: Mesh
    sharding: str = "replicated"  # of the parameters, a value of config.sharding


class Program:
    """Compiled functions for one task; see `program`.

    Attributes:
        state_shapes: a TrainState of shapes.
        state_shardings: a TrainState of shardings.
        replicated: the sharding of what every device holds whole.
        train: the training step, jitted; see `train_step`.

    Raises:
        InputError: the mesh does not allow the task's sharding of the network.
    """

    def __init__(self, task: Task):
        self.task = task
        abstract = nnx.eval_shape(self._new_model, np.uint32(0))
        self._graphdef, _, self._model_variables = nnx.split(abstract, nnx.Param, ...)
        self.replicated = sharding.replicated(task.mesh)
        self.state_shapes = shapes = jax.eval_shape(self._init_arrays, np.uint32(0))
        split = functools.partial(sharding.parameter_shardings, task.mesh, task.sharding)
        small = jax.tree.map(lambda _: self.replicated, shapes.model_state)  # batch statistics
        self.state_shardings = state = TrainState(
            split(shapes.params), small, split(shapes.opt_state)
        )
        # Initialization runs once, and would take most of the CPU compiler's time if optimized.
        on_cpu = task.mesh.devices.flat[0].platform == "cpu"
        options = {"xla_backend_optimization_level": 0} if on_cpu else None
        self._init = jax.jit(self._init_arrays, out_shardings=state, compiler_options=options)
        both = state, self.replicated
        self.train = jax.jit(self.train_step, donate_argnums=0, out_shardings=both)
        self._evaluate = jax.jit(self._evaluate_arrays, out_shardings=self.replicated)
        self._compiled: dict[Any, Any] = {}

    def init(self, seed: int) -> TrainState:
        """A fresh state. The parameters depend on `seed` only, not on the sharding."""
        return self._init(np.uint32(seed))

    def evaluate(
        self, state: TrainState, batches: Iterable[tuple[Arrays, np.ndarray]]
    ) -> dict[str, float]:
        """Metrics by name over `batches` of (arrays, mask float32 [B])."""
        outputs = []
        for data, mask_B in batches:
            # Otherwise, if decoding is faster, batches would accumulate in the devices' memory.
            jax.block_until_ready(outputs[-2:-1])
            data, mask_B = sharding.put_batch(self.task.mesh, (data, mask_B))
            arguments = (state.params, state.model_state, data, mask_B)
            outputs.append(self.compile("evaluate", self._evaluate, arguments)(*arguments))
        return self.task.workload.summarize(jax.device_get(outputs))

    def compile(self, name: str, function: Any, arguments: tuple) -> Any:
        """`function`, jitted, compiled for the shapes of `arguments`, so that clocks can exclude
        compilation; cached under `name`."""
        leaves, structure = jax.tree.flatten(arguments)
        key = (name, structure, tuple((jnp.shape(x), jnp.result_type(x)) for x in leaves))
        if key not in self._compiled:
            self._compiled[key] = function.lower(*arguments).compile()
        return self._compiled[key]

    def _new_model(self, seed) -> nnx.Module:
        key = jax.random.key(seed)
        # Streams of any other name, such as Dropout's, are drawn from the default.
        default = jax.random.fold_in(key, _DEFAULT_STREAM)
        return self.task.workload.model(nnx.Rngs(default, params=key))

    def _init_arrays(self, seed) -> TrainState:
        _, params, model_state = nnx.split(self._new_model(seed), nnx.Param, ...)
        zeros = optimizer.Hyperparameters(0.0, 0.0, 0.0)
        opt_state = optimizer.transformation(self.task.optimizer, zeros).init(params)
        return TrainState(params, _key_bits(model_state), opt_state)

    def model(self, params, model_state) -> nnx.Module:
        """The network with these variables; it may change its own, not those."""
        if self.task.sharding == "fsdp":
            # Gathered first, or the compiler might split activations the way the parameters are
            # split, instead of by examples. In a function that is differentiated this makes the
            # gradients whole, and the compiler finds out where each device needs its own part only.
            # Asked for parts, it scatters the gradient of an embedding once for each group of
            # positions (results/step.md).
            params = jax.lax.with_sharding_constraint(params, self.replicated)
        model_state = jax.tree.map(_with_keys, self._model_variables, model_state)
        # copy=True, because batch norm writes its statistics inside this trace.
        return nnx.merge(self._graphdef, params, model_state, copy=True)

    def train_step(
        self, state: TrainState, rows: Rows, hyper: Hyperparameters, data_seed: Any
    ) -> tuple[TrainState, dict[str, jax.Array]]:
        """The training step as a pure function, to be transformed by JAX. Metrics are the
        workload's, its loss, and `nonfinite`."""
        task, (data, index_B, copy_B) = self.task, rows
        if task.augment_on_device:  # else the host has done so
            data = task.workload.augment(data, data_seed, index_B, copy_B)

        def loss_of(params):
            model = self.model(params, state.model_state)
            loss, metrics = task.workload.loss(model, data)
            return loss, (metrics, _key_bits(nnx.state(model, nnx.Not(nnx.Param))))

        differentiate = jax.value_and_grad(loss_of, has_aux=True)
        (loss, (metrics, model_state)), grads = differentiate(state.params)
        update = optimizer.transformation(task.optimizer, hyper)
        updates, opt_state = update.update(grads, state.opt_state, state.params)
        params: Any = optax.apply_updates(state.params, updates)
        metrics = {"loss": loss} | metrics | {"nonfinite": nonfinite(loss, grads, params)}
        return TrainState(params, model_state, opt_state), metrics

    def _evaluate_arrays(self, params, model_state, data, mask_B):
        model = self.model(params, model_state)
        model.eval()
        return self.task.workload.evaluate(model, data, mask_B)


def _key_bits(variables: Any) -> Any:
    """Variables with the bits of random keys in place of the keys."""
    return jax.tree.map(lambda x: jax.random.key_data(x) if _is_key(x) else x, variables)


def _with_keys(like: Any, bits: Any) -> Any:
    """The inverse of `_key_bits` for one array, of which `like` tells whether it held keys."""
    return jax.random.wrap_key_data(bits) if _is_key(like) else bits


def _is_key(array: Any) -> bool:
    return jnp.issubdtype(jnp.result_type(array), jax.dtypes.prng_key)


@functools.lru_cache(maxsize=8)
def program(task: Task) -> Program:
    """The compiled programs of `task`; those of the last eight tasks are kept."""
    return Program(task)


def nonfinite(loss: jax.Array, grads: Any, params: Any) -> jax.Array:
    """Which result of a step is not finite, as a code for `why_diverged`, int32 [].

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


def why_diverged(step: int, loss: float, code: int, initial_loss: float) -> str:
    """Why a run has diverged at `step`; '' if it has not.

    Args:
        step: the number of the step.
        loss: its training loss.
        code: from `nonfinite`.
        initial_loss: the training loss of step 1. If it is 0.0, as for a batch without targets,
            there is no bound.
    """
    if code:
        return f"{_NONFINITE[code]} is not finite at step {step} (training loss {loss:g})"
    bound = MAX_LOSS_RATIO * initial_loss if initial_loss else math.inf
    if not loss <= bound:
        return (
            f"the training loss is {loss:g} at step {step}, more than {MAX_LOSS_RATIO:g} times "
            f"that of step 1, {initial_loss:g}"
        )
    return ""
