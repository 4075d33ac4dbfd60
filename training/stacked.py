"""Takes the training steps of several lanes (see lanes.py) in one call.

A `Stack` makes one call per step. Each lane has a `StackedStepper`, with the interface of
`training.step.Stepper`, which an ordinary run uses.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from training import sharding
from training.optimizer import Hyperparameters
from training.step import Program, Rows, TrainState


class Stack:
    """Steps the lanes of one program together: one call per step, on the same batch.

    The states stay stacked on the devices from call to call. A lane's own arrays are taken out of
    the stack only when it evaluates or saves them. The places of lanes that have ended are still
    computed, then discarded, until they make up half of the stack. Each size of a stack is
    compiled, so K lanes that end one by one cost log2(K) + 1 compilations instead of K, for less
    than twice the arithmetic.
    """

    def __init__(self, program: Program):
        self._program = program
        self._train, self._stack, self._unstack = _functions(program)
        self.next, self._last = _Call(), _Call()

    def step(self) -> None:
        """Takes the steps that have been requested since the last call, if any.

        If the call fails, every lane gets the error when it reads its metrics or its state.
        """
        if not self.next.requests:
            return
        call, self.next = self.next, _Call()
        try:
            states = self._stacked_states(call)
            rows, hypers, data_seeds = zip(*call.requests.values(), strict=True)
            by_place = [hypers[0]] * call.size  # any value for the places of lanes that have ended
            for lane, hyper in zip(call.requests, hypers, strict=True):
                by_place[call.places[lane]] = hyper
            hypers_K = jax.tree.map(lambda *values: np.stack(values), *by_place)
            # (states, rows, hypers, data_seed) -> (states, metrics); a metric is float32 [K]
            arguments = (states, rows[0], hypers_K, data_seeds[0])
            train = self._program.compile("stacked", self._train, arguments)
            call.states, call.metrics = train(*arguments)
        except Exception as error:
            call.error = error
        for lane in call.requests:
            lane.stepped(call)
        self._last = call

    def unstacked(self, call: "_Call", lane: "StackedStepper") -> TrainState:
        """The state of one lane after `call`, which is the last one."""
        return self._unstack(call.checked().states, np.int32(call.places[lane]))

    def _stacked_states(self, call: "_Call") -> TrainState:
        """The states to step from, after choosing the place of each lane in them."""
        last, lanes = self._last, list(call.requests)
        if all(lane.call is last for lane in lanes) and 2 * len(lanes) > last.checked().size:
            call.places, call.size = last.places, last.size
            return last.states
        call.places, call.size = {lane: place for place, lane in enumerate(lanes)}, len(lanes)
        return self._stack(tuple(lane.state for lane in lanes))


class StackedStepper:
    """The training steps of one lane of a stack: a `Stepper` whose steps are taken by the stack.

    Attributes:
        call: the stack's call that made the state; None for a state that was set.
    """

    compiled = True  # the stack compiles once it knows how many lanes take part

    def __init__(self, stack: Stack, data_seed: int):
        self._stack, self._data_seed = stack, np.uint32(data_seed)
        self._state: TrainState | None = None  # None: in the stack
        self.call: _Call | None = None

    @property
    def state(self) -> TrainState:
        if self._state is None:
            assert self.call is not None, "set the state first"
            self._state = self._stack.unstacked(self.call, self)
        return self._state

    @state.setter
    def state(self, state: TrainState) -> None:
        self._state, self.call = state, None

    def step(self, rows: Rows, hyper: Hyperparameters) -> "_Call":
        """Requests a step; returns the call in which `Stack.step` takes it."""
        self._stack.next.requests[self] = rows, hyper, self._data_seed
        return self._stack.next

    def stepped(self, call: "_Call") -> None:
        """The stack has taken the step; the new state is in `call`."""
        self._state, self.call = None, call

    def fetch(self, metrics: "_Call") -> dict[str, Any]:
        place = metrics.places[self]
        return {name: values[place] for name, values in metrics.values.items()}


@dataclasses.dataclass(eq=False)
class _Call:
    """One call of the stacked step: what was requested, and what the call returned."""

    requests: dict[StackedStepper, tuple] = dataclasses.field(default_factory=dict)
    places: dict[StackedStepper, int] = dataclasses.field(default_factory=dict)
    size: int = 0
    states: Any = None  # donated to the next call
    metrics: Any = None  # float32 [size] by name
    error: Exception | None = None

    def checked(self) -> "_Call":
        if self.error is not None:
            raise self.error
        return self

    @functools.cached_property
    def values(self) -> dict[str, np.ndarray]:
        return jax.device_get(self.checked().metrics)


@functools.lru_cache(maxsize=8)  # shared by the groups of lanes of a search
def _functions(program: Program) -> tuple[Any, Any, Any]:
    """The training step of stacked states, and what stacks states and takes one out, jitted."""
    stacked, own = jax.tree.map(sharding.stacked, program.state_shardings), program.state_shardings
    step = jax.vmap(program.train_step, in_axes=(0, None, 0, None))

    def stack(states: tuple[TrainState, ...]) -> TrainState:
        return jax.tree.map(lambda *arrays: jnp.stack(arrays), *states)

    def unstack(states: TrainState, place: jax.Array) -> TrainState:
        return jax.tree.map(lambda array: array[place], states)

    return (
        jax.jit(step, donate_argnums=0, out_shardings=(stacked, program.replicated)),
        jax.jit(stack, out_shardings=stacked),
        jax.jit(unstack, out_shardings=own),
    )
