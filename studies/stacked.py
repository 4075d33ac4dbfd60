"""Lanes stacked into one call: the training steps of several networks on one batch, all at once.

A lane's loop (train.py) is what it is alone, with a `Stack` in place of its program. When a lane
calls its step it is given a promise, and its turn ends; when all lanes have had their turn, one
call does the steps of all of them. The states stay stacked on the devices from call to call: a
lane's own arrays are taken out of the stack only where it evaluates or saves them.
"""

import dataclasses
import functools
from concurrent.futures import Future
from typing import Any

import jax
import numpy as np

from training.state import TrainState
from training.step import Program


class Stack:
    """The lanes of one program; in place of the `Program` of each of them, and of its `Pace`.

    A lane that leaves is computed on, for nobody, until half of the stack is such: each size of a
    stack is compiled anew, so K lanes that leave one by one cost log2(K) + 1 compilations instead
    of K, for less than twice the arithmetic.
    """

    def __init__(self, program: Program):
        self.task, self.init = program.task, program.init
        self.compile_evaluate = program.compile_evaluate
        self.compile_statistics = program.compile_statistics
        self._program = program
        self._asked: list[tuple[Promise, tuple]] = []  # since the last call
        self._last: Future | None = None
        self._next: Future = Future()  # becomes a _Called

    def compile_train(self, *arguments: Any) -> Any:
        """As Program's; the step promises what it returns. Compiled when it is known for whom."""
        return self._ask

    def step(self) -> None:
        """Does the steps that were asked for since the last time, on the same batch, in one call.

        An error is each lane's own, which meets it where it reads its metrics.
        """
        if not self._asked:
            return
        asked, self._asked = self._asked, []
        call, self._next = self._next, Future()
        try:
            call.set_result(self._called(asked))
        except Exception as error:
            call.set_exception(error)
        self._last = call

    def dispatched(self, metrics: "Promise") -> None:
        """Nothing: batches that are shared do not go by the pace of one lane."""

    def fetch(self, metrics: "Promise") -> dict[str, Any]:
        """The values of a lane's metrics, once its step is done."""
        return metrics.values()

    def _ask(self, *arguments: Any) -> tuple["Promise", "Promise"]:
        promise = Promise(self._program, self._next)
        self._asked.append((promise, arguments))
        return promise, promise

    def _called(self, asked: list[tuple["Promise", tuple]]) -> "_Called":
        promises, arguments = zip(*asked, strict=True)
        states, batches, hypers, data_seeds = zip(*arguments, strict=True)
        stack, places, size = self._stacked(states)
        by_place = [hypers[0]] * size  # also of those that have left
        for promise, place, hyper in zip(promises, places, hypers, strict=True):
            promise.place, by_place[place] = place, hyper
        hypers_K = jax.tree.map(lambda *values: np.stack(values), *by_place)
        together = (stack, batches[0], hypers_K, data_seeds[0])
        return _Called(*self._program.compile_stacked(*together)(*together), size)

    def _stacked(self, states: tuple) -> tuple[TrainState, list[int], int]:
        """The stack to call the step with, the place of each state in it, and its size."""
        if all(isinstance(state, Promise) and state.call is self._last for state in states):
            last = self._last.result()
            if 2 * len(states) > last.size:
                return last.states, [state.place for state in states], last.size
        return self._program.stack(states), list(range(len(states))), len(states)


@dataclasses.dataclass
class _Called:
    """What a call of the stacked step returned."""

    states: TrainState  # donated to the call after it
    metrics: dict[str, jax.Array]  # float32 [size]
    size: int

    @functools.cached_property
    def values(self) -> dict[str, np.ndarray]:
        return jax.device_get(self.metrics)


@jax.tree_util.register_pytree_with_keys_class
class Promise:
    """What a lane's step returns, state and metrics both: its place in a call that is yet to come.

    JAX's functions find the arrays of the lane's TrainState in it, from that call to the next.
    """

    def __init__(self, program: Program, call: Future):
        self._program, self.call = program, call
        self.place = -1  # set by the call

    def values(self) -> dict[str, Any]:
        return {name: values[self.place] for name, values in self.call.result().values.items()}

    @functools.cached_property
    def arrays(self) -> TrainState:
        return self._program.unstack(self.call.result().states, self.place)

    @property
    def params(self) -> Any:
        return self.arrays.params

    @property
    def model_state(self) -> Any:
        return self.arrays.model_state

    def tree_flatten_with_keys(self) -> tuple:
        fields = [field.name for field in dataclasses.fields(TrainState)]
        keys = [jax.tree_util.GetAttrKey(name) for name in fields]
        return list(zip(keys, (getattr(self.arrays, name) for name in fields), strict=True)), None

    @classmethod
    def tree_unflatten(cls, _, children) -> TrainState:
        return TrainState(*children)
