"""Lanes: trials that share their input, which is read, decoded, augmented, and sent once for all.

A lane is an ordinary run with its own directory, state, records, and checkpoints. Lanes take turns
in one process and call the same compiled step, so a lane computes what it would compute alone. Only
its clocks include the other lanes' turns.
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
from training.sharding import Rows, Transfer


@processes.fixed_settings()
def train(
    configs: Sequence[ConfigDict],
    workdirs: Sequence[pathlib.Path],
    progress: Progress,
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
        on_step: called after each step of each lane.
        tools: see `train.train`.

    Returns:
        The content of each run's result.json.
    """
    if not configs:
        return []
    first = make_experiment(configs[0])
    experiments = [first, *(sharing_input(config, first) for config in configs[1:])]
    shared = SharedInput(first.batches, first.transfer)
    lanes = [Lane(shared) for _ in experiments]
    runs: list[Run] = []
    stopping = False

    with signals.stop_requested() as stop_requested, contextlib.ExitStack() as held:
        held.callback(shared.close)

        def asked_to_stop() -> bool:
            nonlocal stopping
            stopping = stopping or stop_requested()
            return stopping

        for lane, experiment, workdir in zip(lanes, experiments, workdirs, strict=True):
            run = Run(
                experiment.config,
                workdir,
                progress,
                experiment=dataclasses.replace(experiment, batches=lane, transfer=lane),
                interrupt=asked_to_stop,
                locked=True,
                on_step=on_step,
                tools=tools,
            )
            held.callback(run.close)
            runs.append(run)
        running = {lane: run for lane, run in zip(lanes, runs, strict=True) if not run.result}
        while running:
            behind = min(lane.position for lane in running)
            asked_to_stop()  # before a round, so that all stop at the same step
            # Lanes that wait stop too: they save and end.
            for lane in [lane for lane in running if stopping or lane.position == behind]:
                if not running[lane].step(stop=stopping):
                    del running[lane]
    return [run.result for run in runs if run.result is not None]  # of all


class SharedInput:
    """Batches that several lanes take one after another, none more than one batch ahead. Each is
    sent once: the lanes can share its rows, which no step donates.

    Args:
        batches: the input of the lanes.
        transfer: sends the batches.
    """

    def __init__(self, batches: grain.IterDataset[Batch], transfer: Transfer):
        self._iterator, self._transfer = iter(batches), transfer
        self._taken = 0  # batches
        self._batch: Batch | Exception | None = None  # the last one, or what the input ended with
        self._state_before: Any = None  # before `_batch` was taken
        self._sent: tuple[Batch, Rows, int] | None = None  # what `put` returned for a batch

    def close(self) -> None:
        self._iterator.close()

    def batch(self, lane: "Lane") -> Batch:
        """The next batch of a lane that no other is behind: the last one that was taken, or the
        one after it.

        Raises:
            StopIteration: the input has ended.
            Exception: the error that the input ended with, for every lane that asks.
        """
        number = lane.position
        if number not in (self._taken - 1, self._taken):  # all lanes resume, or those behind ended
            self._iterator.set_state(lane.restored)
            self._taken, self._batch = number, None
        if number == self._taken and not isinstance(self._batch, Exception):
            self._state_before = self._iterator.get_state()
            try:
                self._batch = next(self._iterator)
                self._taken += 1
            except Exception as error:
                self._batch = error
        if isinstance(self._batch, Exception):
            raise self._batch
        assert self._batch is not None
        return self._batch

    def state(self, number: int) -> Any:
        """The state of the input before batch `number`."""
        return self._iterator.get_state() if number == self._taken else self._state_before

    def put(self, batch: Batch) -> tuple[Rows, int]:
        """The rows of a batch on the devices, and the bytes that were sent for them."""
        if self._sent is None or self._sent[0] is not batch:
            before = self._transfer.bytes_sent
            rows = self._transfer.put(batch)
            self._sent = batch, rows, self._transfer.bytes_sent - before
        return self._sent[1:]


class Lane:
    """One lane's batches and transfer, at its own position in the shared input.

    Attributes:
        position: the number of the batch that it takes next.
        restored: the state that it was set to; None at the start.
        bytes_sent: what the transfer of a run alone would have here.
    """

    def __init__(self, shared: SharedInput):
        self._shared = shared
        self.position = self.bytes_sent = 0
        self.restored: Any = None

    def __iter__(self) -> "Lane":
        return self

    def __next__(self) -> Batch:
        batch = self._shared.batch(self)
        self.position += 1
        return batch

    def put(self, batch: Batch) -> Rows:
        rows, sent = self._shared.put(batch)
        self.bytes_sent += sent
        return rows

    def get_state(self) -> Any:
        """The state that the iterator of a run alone would have here; a lane that waits is at its
        checkpoint, and saves none."""
        return self._shared.state(self.position)

    def set_state(self, state: Any) -> None:
        """Waits for the batch after `state`."""
        self.position, self.restored = state["batches"], state

    def close(self) -> None:
        """Leaves the input to the other lanes."""
