"""The streams of a run, concatenated into batches, and the policy: how streams echo and end.

`FixedPolicy`, or `training.auto_policy` in its place, is all that depends on echo.policy: in the
pipeline the stages, the count of fresh examples, and the end; in the training loop what each step
is reported to.
"""

import functools
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import grain
import numpy as np
from jax.profiler import TraceAnnotation
from ml_collections import ConfigDict

import echo
from pipeline import accounting
from pipeline.map_datasets import Batch


class FixedPolicy:
    """echo.policy=fixed: the order of the batches is known in advance. Closed forms count the fresh
    examples of streams in other processes, so counting needs no communication, and the training
    loop has nothing to time, to record, or to repeat.

    Args:
        config: a resolved configuration.
        held: the streams that this process reads.

    Attributes:
        read_ahead: whether batches may be prefetched.
        total_steps: in the budget; None if not known in advance.
        horizon_steps: in the horizon of the learning-rate schedule; None likewise.
    """

    read_ahead = True
    total_steps: int | None
    horizon_steps: int | None

    def __init__(self, config: ConfigDict, held: range):
        self._config = config
        self.total_steps = accounting.total_steps(config)
        horizon = config.optimizer.schedule.horizon_fresh_examples
        self.horizon_steps = accounting.total_steps(config, horizon)
        others = [stream for stream in range(config.echo.streams) if stream not in held]
        self._elsewhere = [accounting.Counts.of(config, stream) for stream in others]

    # In the pipeline.

    def echo_stage(self, stream: int) -> Callable[..., grain.IterDataset]:
        """The constructor of a stream's echo stage. It takes a parent data set, and optionally
        `batch_size` and `read_options`."""
        settings = accounting.stage_settings(self._config, stream)
        return functools.partial(echo.EchoIterDataset, factor=self._config.echo.factor, **settings)

    def combine(self, number: int, blocks: dict[int, Batch] | None) -> Batch:
        """Batch `number`, from 1, of the blocks of the streams held here.

        Args:
            blocks: by stream; None if one of these streams has ended.

        Raises:
            StopIteration: a stream has ended, here or in another process.
        """
        if blocks is None:
            raise StopIteration
        batch = concatenate(list(blocks.values()))
        elsewhere = sum(counts.admitted(number) for counts in self._elsewhere)
        return batch._replace(fresh_examples=batch.fresh_examples + elsewhere)

    def get_state(self) -> dict[str, Any]:
        """What `combine` remembers from one batch to the next, as JSON."""
        return {}

    def set_state(self, state: dict[str, Any]) -> None:
        """Continues from `state`."""

    # In the training loop.

    def resume(self, workdir: pathlib.Path, step: int) -> None:
        """Called once before the first batch, with the step of the checkpoint or 0."""

    def busy(self, seconds: float) -> float:
        """For how many of the `seconds` that the loop just waited for input the device was
        running because the policy chose to wait."""
        return 0.0

    def dispatched(self, step: int, batch: Batch, metrics: Any) -> None:
        """Called once a step has been dispatched, with its number, batch, and metrics."""

    def awaits(self, metrics: Any) -> None:
        """Called before the metrics of each step are read, in the order of the steps."""

    def sync(self) -> dict[str, Any]:
        """Forces records to disk; by file name, the `runs.records.Extent` that a checkpoint
        covers."""
        return {}

    def close(self) -> None:
        """Called once at the end of the run."""


class ConcatenatedStreams(grain.IterDataset):
    """Batch n is the concatenation of batch n of each stream that this process holds.

    The states of the iterators of all processes merge into that of the whole input
    (`merge_states`), from which any number of processes can continue. Batches end with the first
    stream that ends: a process that continued alone would wait for the others forever.

    Args:
        parts: the batches of each stream held here, in ascending order of streams.
        policy: combines the streams' blocks.
        region: the name of the last stage in a profile.
    """

    def __init__(
        self, parts: dict[int, grain.IterDataset[Batch]], policy: FixedPolicy, region: str
    ):
        super().__init__(list(parts.values()))
        self.streams, self.policy, self.region = tuple(parts), policy, region

    def __iter__(self) -> grain.DatasetIterator:
        return _Iterator(self, [iter(part) for part in self._parents])


class _Iterator(grain.DatasetIterator):
    def __init__(self, dataset: ConcatenatedStreams, parts: list[grain.DatasetIterator]):
        super().__init__(parts)
        self._dataset, self._parts = dataset, parts
        self._taken = 0
        self._ended = False  # until a state is restored
        # Before the batch that is being taken, and after an error, which some streams have passed.
        self._before: dict[str, Any] | None = None

    def __next__(self) -> Batch:
        policy = self._dataset.policy
        if self._ended or self._taken == policy.total_steps:
            raise StopIteration
        self._before = self.get_state()
        blocks: dict[int, Batch] | None = {}
        for stream, part in zip(self._dataset.streams, self._parts, strict=True):
            with TraceAnnotation(self._dataset.region):
                block = next(part, None)
            if block is None:
                blocks = None
                break
            blocks[stream] = block
        try:
            batch = policy.combine(self._taken + 1, blocks)
        except StopIteration:
            self._ended = True
            raise
        self._taken, self._before = self._taken + 1, None
        return batch

    def get_state(self) -> dict[str, Any]:
        """The position after the last batch. An iterator that has failed can be saved there, but
        not continue."""
        if self._before is not None:
            return self._before
        names = map(str, self._dataset.streams)  # JSON keys are strings
        streams = {n: part.get_state() for n, part in zip(names, self._parts, strict=True)}
        return {"batches": self._taken, "streams": streams, **self._dataset.policy.get_state()}

    def set_state(self, state: dict[str, Any]) -> None:
        """Continues from `state`, which may contain more streams than this process holds."""
        for stream, part in zip(self._dataset.streams, self._parts, strict=True):
            part.set_state(state["streams"][str(stream)])
        self._dataset.policy.set_state(state)
        self._taken, self._before, self._ended = state["batches"], None, False


def merge_states(states: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The state of the whole input from the states of all processes after the same batch."""
    streams: dict[str, Any] = {}
    for state in states:
        streams |= state["streams"]
    return states[0] | {"streams": streams}


def concatenate(blocks: Sequence[Batch]) -> Batch:
    """Concatenates blocks of rows into one batch and adds up their fresh examples."""
    if len(blocks) == 1:
        return blocks[0]
    data: Any = [block.data for block in blocks]
    if isinstance(next(iter(data[0].values())), np.ndarray):  # those on devices stay there
        data = {k: np.concatenate([b.data[k] for b in blocks]) for k in blocks[0].data}
    index = np.concatenate([block.index for block in blocks])
    copy = np.concatenate([block.copy for block in blocks])
    return Batch(data, index, copy, sum(block.fresh_examples for block in blocks))
