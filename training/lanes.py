"""Lanes: trials that share their input, which is read, decoded, augmented, and sent once for all.

A lane is an ordinary run with its own directory, state, records, and checkpoints. Lanes take turns
in one process and call the same compiled step, so a lane computes what it would compute alone (to
rounding, if their steps are stacked into one call). Only its clocks include the other lanes' turns.
"""

import contextlib
import dataclasses
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import grain
from ml_collections import ConfigDict

from pipeline.map_datasets import Batch
from runs import processes, signals
from runs.progress import Progress
from runs.tracking import Tools
from training.experiment import make_experiment, sharing_input
from training.run import Run
from training.stacked import Stack, StackedStepper
from training.step import Program, Rows
from training.transfer import Transfer


def train(
    configs: Sequence[ConfigDict],
    workdirs: Sequence[pathlib.Path],
    progress: Progress,
    stacked: bool = False,
    on_step: Callable[[int], None] | None = None,
    tools: Tools | None = None,
) -> list[dict[str, Any]]:
    """Trains configurations that differ only in optimizer, loss, and model seed on one input.

    A lane that ends (target, divergence, error) leaves the others running. Lanes that were stopped
    at different steps resume together: the input starts at the position of the lane that is
    furthest behind, and the others wait for it. If it ends before it has caught up, the input skips
    to the position of the next one.

    Args:
        configs: resolved configurations.
        workdirs: a directory per configuration; the caller holds their locks.
        progress: displays the progress.
        stacked: whether one call takes the steps of all lanes at the same batch. It is compiled
            with their loss, so lanes with different losses are separate stacks. Results equal those
            of separate runs up to rounding.
        on_step: called after each step of each lane.
        tools: see `train.train`.

    Returns:
        The content of each run's result.json.
    """
    if not configs:
        return []
    first = make_experiment(configs[0])
    experiments = [first, *(sharing_input(config, first) for config in configs[1:])]
    shared, sent = SharedBatches(first.batches), {}
    lanes = [Lane(shared) for _ in experiments]
    stacks: dict[Program, Stack] = {}
    runs: list[Run] = []
    stopping = False

    with signals.stop_requested() as stop_requested, contextlib.ExitStack() as held:

        def asked_to_stop() -> bool:
            nonlocal stopping
            stopping = stopping or stop_requested()
            return stopping

        for lane, experiment, workdir in zip(lanes, experiments, workdirs, strict=True):
            stepper = None
            if stacked:
                stack = stacks.setdefault(experiment.program, Stack(experiment.program))
                stepper = StackedStepper(stack, experiment.config.seed.data)
            transfer = LaneTransfer(first.transfer, sent)
            run = Run(
                experiment.config,
                workdir,
                progress,
                experiment=dataclasses.replace(experiment, batches=lane, transfer=transfer),
                interrupt=asked_to_stop,
                locked=True,
                on_step=on_step,
                tools=tools,
                stepper=stepper,
            )
            held.callback(run.close)
            runs.append(run)
        running = dict(zip(lanes, runs, strict=True))
        for lane in [lane for lane, run in running.items() if run.result]:  # ended before
            _leave(running, lane)
        while running:
            behind = min(lane.position for lane in running)
            asked_to_stop()  # before a round, so that all stop at the same step
            # Lanes that wait stop too: they save and end.
            for lane in [lane for lane in running if stopping or lane.position == behind]:
                if not running[lane].step(stop=stopping):
                    _leave(running, lane)
            for stack in stacks.values():
                stack.step()
    return [run.result for run in runs if run.result is not None]  # of all


def _leave(running: dict["Lane", Run], lane: "Lane") -> None:
    run = running.pop(lane)
    assert run.result is not None  # it has ended
    processes.raise_if_failed(run.result, run.workdir)
    lane.close()


class SharedBatches:
    """Batches that several lanes take one after another, none more than one batch ahead.

    Args:
        batches: the input of the lanes.
    """

    def __init__(self, batches: grain.IterDataset[Batch]):
        self._iterator = iter(batches)
        self._lanes: list[Lane] = []
        self._started, self._taken = False, 0  # batches taken
        self._batch: Batch | None = None
        self._state_before: Any = None  # before `_batch` was taken
        self._error: Exception | None = None  # what the input ended with

    def join(self, lane: "Lane") -> None:
        self._lanes.append(lane)

    def leave(self, lane: "Lane") -> None:
        if lane in self._lanes:
            self._lanes.remove(lane)
            if not self._lanes:
                self._iterator.close()

    def batch(self, number: int) -> Batch:
        """Batch `number`: the last one that was taken, or the next one.

        Raises:
            StopIteration: the input has ended.
            Exception: the error that the input ended with, for every lane that asks.
        """
        first = min(self._lanes, key=lambda lane: lane.position)
        if not self._started or first.position > self._taken:  # the lanes behind `first` have ended
            self._start(first)
        if number == self._taken:
            if self._error is not None:
                raise self._error
            self._state_before = self._iterator.get_state()
            try:
                self._batch = next(self._iterator)
            except Exception as error:
                self._error = error
                raise
            self._taken += 1
        if number != self._taken - 1 or self._batch is None:
            raise RuntimeError(f"a lane asked for batch {number} when {self._taken} were taken")
        return self._batch

    def state(self, number: int) -> Any:
        """The state of the input before batch `number`."""
        if not self._started or number == self._taken:
            return self._iterator.get_state()
        return self._state_before

    def _start(self, first: "Lane") -> None:
        """Moves the input to the position of `first`, which has not taken a batch yet."""
        if first.restored is not None:
            self._iterator.set_state(first.restored)
        self._started, self._taken = True, first.position
        self._batch, self._error = None, None


class Lane:
    """One lane's iterator over shared batches, at its own position.

    Attributes:
        position: the number of the batch that it takes next.
        restored: the state that it was set to; None at the start.
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
        """The state that the iterator of a run alone would have here."""
        waits = self.restored is not None and self.restored["batches"] == self.position
        return self.restored if waits else self._shared.state(self.position)

    def set_state(self, state: Any) -> None:
        """Waits for the batch after `state`."""
        self.position, self.restored = state["batches"], state

    def close(self) -> None:
        self._shared.leave(self)


class LaneTransfer:
    """One lane's `Transfer`. Each batch is sent once, for the lanes that take it one after another:
    they can share the rows, which no step donates.

    Args:
        transfer: sends the batches.
        last: shared by the lanes; what `transfer` returned for the last batch, and its bytes.

    Attributes:
        bytes_sent: what the transfer of a run alone would have here.
    """

    def __init__(self, transfer: Transfer, last: dict[str, Any]):
        self._transfer, self._last = transfer, last
        self.bytes_sent = 0

    def put(self, batch: Batch) -> Rows:
        if batch is not self._last.get("batch"):
            before = self._transfer.bytes_sent
            rows = self._transfer.put(batch)
            self._last |= {"batch": batch, "rows": rows}
            self._last["bytes"] = self._transfer.bytes_sent - before
        self.bytes_sent += self._last["bytes"]
        return self._last["rows"]
