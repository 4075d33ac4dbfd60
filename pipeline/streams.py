"""Concatenates the streams of a run into batches; some may belong to other processes."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import grain
import numpy as np
from jax.profiler import TraceAnnotation
from ml_collections import ConfigDict

import echo
from echo import gather_plan
from pipeline import accounting
from pipeline.map_datasets import Batch


class Streams(Protocol):
    """How the streams of a run echo, count fresh examples, and end.

    Attributes:
        read_ahead: whether batches may be prefetched.
    """

    read_ahead: bool

    def echo_stage(self, stream: int) -> Callable[..., grain.IterDataset]:
        """The constructor of a stream's echo stage. It takes a parent data set, and optionally
        `batch_size` and `read_options`."""
        ...

    def ended(self, taken: int) -> bool:
        """Whether the input is known to end after `taken` batches."""
        ...

    def combine(self, number: int, blocks: dict[int, Batch] | None) -> Batch:
        """Batch `number`, from 1, of the blocks of the streams held here.

        Args:
            blocks: by stream; None if one of these streams has ended.

        Raises:
            StopIteration: a stream has ended, here or in another process.
        """
        ...

    def get_state(self) -> dict[str, Any]:
        """What `combine` remembers from one batch to the next, as JSON; equal in all processes."""
        ...

    def set_state(self, state: dict[str, Any]) -> None:
        """Continues from `state`."""
        ...


class FixedStreams:
    """The streams of echo.policy=fixed. Closed forms count those in other processes, so counting
    needs no communication.

    Args:
        config: a resolved configuration.
        held: the streams that this process reads.
    """

    read_ahead = True

    def __init__(self, config: ConfigDict, held: range):
        self._config = config
        self._num_batches = accounting.total_steps(config)
        others = [stream for stream in range(config.echo.streams) if stream not in held]
        self._elsewhere = [accounting.Counts.of(config, stream) for stream in others]

    def echo_stage(self, stream: int) -> Callable[..., grain.IterDataset]:
        settings = accounting.stage_settings(self._config, stream)
        return functools.partial(echo.EchoIterDataset, factor=self._config.echo.factor, **settings)

    def ended(self, taken: int) -> bool:
        return taken == self._num_batches

    def combine(self, number: int, blocks: dict[int, Batch] | None) -> Batch:
        if blocks is None:
            raise StopIteration
        batch = concatenate(list(blocks.values()))
        elsewhere = sum(counts.admitted(number) for counts in self._elsewhere)
        return batch._replace(fresh_examples=batch.fresh_examples + elsewhere)

    def get_state(self) -> dict[str, Any]:
        return {}

    def set_state(self, state: dict[str, Any]) -> None:
        del state


class ConcatenatedStreams(grain.IterDataset):
    """Batch n is the concatenation of batch n of each stream that this process holds.

    The iterator's state names the state of each stream. The states of all processes therefore
    merge into the state of the whole input (`merge_states`), from which any number of processes
    can continue.

    Args:
        parts: the batches of each stream held here, in ascending order of streams.
        policy: combines the streams' blocks, counts the fresh examples of all streams, and ends the
            batches when the first stream ends: a process that continued alone would wait for the
            others forever.
        region: the name of the last stage in a profile.
    """

    def __init__(
        self,
        parts: dict[int, grain.IterDataset[Batch]],
        policy: Streams,
        region: str,
    ):
        super().__init__(list(parts.values()))
        self.streams = tuple(parts)
        self.policy = policy
        self.region = region

    def __iter__(self) -> grain.DatasetIterator:
        return _Iterator(self, [iter(part) for part in self._parents])


class _Iterator(grain.DatasetIterator):
    def __init__(self, dataset: ConcatenatedStreams, parts: list[grain.DatasetIterator]):
        super().__init__(parts)
        self._dataset, self._parts = dataset, parts
        self._taken = 0
        # Where to return to after an error, which some streams, or some stages of one, have passed.
        self._state_before_failure: dict[str, Any] | None = None
        self._ended = False  # until a state is restored

    def __next__(self) -> Batch:
        if self._ended:  # without asking other processes, which may not be asked again
            raise StopIteration
        if self._state_before_failure is not None:
            self.set_state(self._state_before_failure)
        policy = self._dataset.policy
        if policy.ended(self._taken):
            raise StopIteration
        before = self.get_state()
        try:
            batch = policy.combine(self._taken + 1, self._next_blocks())
        except BaseException as error:
            self._state_before_failure = before
            self._ended = isinstance(error, StopIteration)
            raise
        self._taken += 1
        return batch

    def _next_blocks(self) -> dict[int, Batch] | None:
        """The next batch of each stream; None if one has ended."""
        blocks = {}
        for stream, part in zip(self._dataset.streams, self._parts, strict=True):
            with TraceAnnotation(self._dataset.region):
                block = next(part, None)
            if block is None:
                return None
            blocks[stream] = block
        return blocks

    def get_state(self) -> dict[str, Any]:
        if self._state_before_failure is not None:
            return self._state_before_failure
        states = [part.get_state() for part in self._parts]
        names = map(str, self._dataset.streams)  # JSON keys are strings
        streams = dict(zip(names, states, strict=True))
        return {"batches": self._taken, "streams": streams, **self._dataset.policy.get_state()}

    def set_state(self, state: dict[str, Any]) -> None:
        """Continues from `state`, which may contain more streams than this process holds."""
        self._state_before_failure = self.get_state()
        for stream, part in zip(self._dataset.streams, self._parts, strict=True):
            part.set_state(state["streams"][str(stream)])
        self._dataset.policy.set_state(state)
        self._taken, self._state_before_failure = state["batches"], None
        self._ended = False


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
    if isinstance(blocks[0].data, echo.GatherPlan):
        data = gather_plan.joined([block.data for block in blocks])
    else:
        data = {k: np.concatenate([b.data[k] for b in blocks]) for k in blocks[0].data}
    index = np.concatenate([block.index for block in blocks])
    copy = np.concatenate([block.copy for block in blocks])
    return Batch(data, index, copy, sum(block.fresh_examples for block in blocks))
