"""Trials that share their input: each batch is read, decoded and augmented once for all of them.

Lanes are ordinary runs, each in its own directory with its own state, records and checkpoints,
that take turns in one process and call the same compiled step. What a lane computes is therefore
what it would compute alone (to rounding, where their steps are stacked into one call); only its
clocks count the other lanes' turns too.
"""

import dataclasses
import pathlib
from collections.abc import Sequence
from typing import Any

import train as training_loop
from pipeline.map_datasets import Batch
from runs import signals
from runs.progress import Progress
from studies.stacked import Stack


def train(
    configs: Sequence[Any],
    workdirs: Sequence[pathlib.Path],
    progress: Progress,
    stacked: bool = False,
) -> list[dict[str, Any]]:
    """Trains configurations that differ in optimizer, loss and model seed alone, side by side.

    A lane that ends (target, divergence, error) leaves the others running. Lanes that were stopped
    at different steps go on together: the input starts where the lane that is furthest behind
    stands, and the others wait for it there.

    Args:
        stacked: whether one call does the steps of all lanes that are at the same batch (those that
            have their loss in common, as that is compiled); equal to rounding.

    Returns:
        The content of each run's result.json.
    """
    parts = [training_loop.prepare(config) for config in configs]
    if not parts:
        return []
    shared = SharedBatches(parts[0].batches)
    lanes = [Lane(shared) for _ in parts]
    results: dict[Lane, dict[str, Any]] = {}
    stacks: dict[Any, Stack] = {}
    stopping = False
    with signals.stop_requested() as told_to_stop:
        going = {}
        for lane, each, workdir in zip(lanes, parts, workdirs, strict=True):
            alike = {"validation": parts[0].validation, "upstream_clock": parts[0].upstream_clock}
            each = dataclasses.replace(each, batches=lane, **alike)
            if stacked:
                stack = stacks.setdefault(each.program, Stack(each.program))
                each = dataclasses.replace(each, program=stack, pace=stack)
            run = training_loop.turns(each, workdir, progress, lambda step: stopping, locked=True)
            going[lane] = run
        _take_turns(going, going, results)  # empty turns, which find each lane's position
        while going:
            behind = min(lane.position for lane in going)
            stopping = told_to_stop(behind)  # once a round, so that no lane is a step ahead
            # those that wait are told too, so that they save and end
            turn = [lane for lane in going if stopping or lane.position == behind]
            _take_turns(going, turn, results)
            for stack in stacks.values():
                stack.step()
    return [results[lane] for lane in lanes]


def _take_turns(going: dict, lanes, results: dict) -> None:
    """One turn of each of `lanes`; those that end leave `going`."""
    for lane in list(lanes):
        result = next(going[lane])
        if result is not None:
            results[lane] = result
            lane.close()
            del going[lane]


class SharedBatches:
    """Batches that several lanes take one after another, each of them at most one batch ahead.

    Args:
        batches: a Grain IterDataset of pipeline.map_datasets.Batch.
    """

    def __init__(self, batches: Any):
        self._iterator = iter(batches)
        self._lanes: list[Lane] = []
        self._taken: int | None = None  # batches taken so far, None before the first
        self._batch: Batch | None = None
        self._before: Any = None  # the state before `_batch` was taken
        self._ended: Exception | None = None

    def join(self, lane: "Lane") -> None:
        self._lanes.append(lane)

    def leave(self, lane: "Lane") -> None:
        if lane in self._lanes:
            self._lanes.remove(lane)
        if not self._lanes:
            self._iterator.close()

    def batch(self, number: int) -> Batch:
        """Batch `number`: the one taken last, or the next one.

        Raises:
            StopIteration: there is none.
            Exception: what the input ended in, for each lane that asks.
        """
        if self._taken is None:
            self._start()
        if number == self._taken:
            if self._ended is not None:
                raise self._ended
            self._before = self._iterator.get_state()
            try:
                self._batch = next(self._iterator)
            except Exception as error:
                self._ended = error
                raise
            self._taken += 1
        if number != self._taken - 1:
            raise RuntimeError(f"a lane asked for batch {number} when {self._taken} were taken")
        return self._batch

    def state(self, number: int) -> Any:
        """The state before batch `number`, as of `batch`."""
        if self._taken is None or number == self._taken:
            return self._iterator.get_state()
        return self._before

    def _start(self) -> None:
        first = min(self._lanes, key=lambda lane: lane.position)
        if first.restored is not None:
            self._iterator.set_state(first.restored)
        self._taken = first.position


class Lane:
    """One lane's view of shared batches: an iterator that is at a position of its own.

    Attributes:
        position: the number of the batch that it takes next.
        restored: the state that it was set to, None at the start.
    """

    def __init__(self, shared: SharedBatches):
        self._shared = shared
        self.position = 0
        self.restored: Any = None
        shared.join(self)

    def __iter__(self) -> "Lane":
        return self

    def __next__(self) -> Batch:
        batch = self._shared.batch(self.position)
        self.position += 1
        return batch

    def get_state(self) -> Any:
        """As the iterator of a run alone has it here."""
        waits = self.restored is not None and self.restored["batches"] == self.position
        return self.restored if waits else self._shared.state(self.position)

    def set_state(self, state: Any) -> None:
        """Waits for the batch that comes after `state`."""
        self.position, self.restored = state["batches"], state

    def close(self) -> None:
        self._shared.leave(self)
