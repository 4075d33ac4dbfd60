"""Batches made of sub-streams side by side, of which other processes may hold some."""

import itertools
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import grain
import numpy as np

import echo
from echo import gather_plan
from pipeline.map_datasets import Batch


class ConcatenatedStreams(grain.IterDataset):
    """Batch n is batch n of each sub-stream held here, in a block of rows each.

    The state names the state of each sub-stream, so that those of all processes make up the state
    of the whole input (`merged`), from which any number of processes can go on.

    Args:
        parts: the batches of the sub-streams held here, by number, in ascending order.
        num_streams: how many sub-streams there are in all.
        count: counts the fresh examples of all of them, and ends the batches where the first of
            them ends: a process that went on alone would wait for the others for ever.
    """

    def __init__(
        self,
        parts: dict[int, grain.IterDataset[Batch]],
        num_streams: int,
        count: "ClosedForm | GatheredCount",
    ):
        super().__init__(list(parts.values()))
        self.streams = tuple(parts)
        self.num_streams = num_streams
        self.count = count

    def __iter__(self) -> grain.DatasetIterator:
        return _Iterator(self, [iter(part) for part in self._parents])


class ClosedForm(NamedTuple):
    """How sub-streams are counted whose counts are known: asking would cost a round trip a step.

    Attributes:
        num_batches: of the shortest sub-stream.
        admitted_elsewhere: the fresh examples that sub-streams held elsewhere have admitted once n
            batches have been taken.
    """

    num_batches: int
    admitted_elsewhere: Callable[[int], int]

    def ends(self, taken: int) -> bool:
        """Whether so many batches are all."""
        return taken == self.num_batches

    def whole(self, taken: int, blocks: dict[int, Batch] | None) -> Batch:
        """Batch number `taken`, from 1 on, of these blocks; None where a sub-stream has ended."""
        if blocks is None:
            raise StopIteration
        batch = joined(list(blocks.values()))
        elsewhere = self.admitted_elsewhere(taken)
        return batch._replace(fresh_examples=batch.fresh_examples + elsewhere)


class GatheredCount:
    """How sub-streams are counted that decide as they go: by what all processes tell process 0.

    The fastest sub-stream would end a run before the others have shown their share. So none may be
    further than a batch ahead of the slowest, as of the batch before, unless it has nothing to
    repeat.

    Args:
        exchange: takes what this process tells (JSON; None: a sub-stream has ended), and returns
            what each of them has told, alike in all; see runs.distributed.Exchange.
        rows: of each sub-stream in a batch.
    """

    def __init__(self, exchange: Callable[[Any], list[Any]], rows: int):
        self._exchange, self._rows = exchange, rows
        self._limit = sys.maxsize

    def limit(self) -> int:
        """How many fresh examples a sub-stream may have shown after the next batch."""
        return self._limit

    def ends(self, taken: int) -> bool:
        """Never known before."""
        del taken
        return False

    def whole(self, taken: int, blocks: dict[int, Batch] | None) -> Batch:
        """As ClosedForm does it."""
        del taken
        told = self._exchange(blocks and [_told(*item) for item in blocks.items()])
        if None in told:
            raise StopIteration
        _, admitted, decisions = zip(*sorted(itertools.chain(*told)), strict=True)
        self._limit = min(admitted) + self._rows
        batch = joined(list(blocks.values()))
        return batch._replace(fresh_examples=sum(admitted), decisions=decisions)


def _told(stream: int, block: Batch) -> list[int]:
    """What a process tells of a sub-stream: number, examples admitted, those of them in `block`."""
    return [stream, int(block.fresh_examples), int(np.count_nonzero(block.copy == 0))]


class _Iterator(grain.DatasetIterator):
    def __init__(self, dataset: ConcatenatedStreams, parts: list[grain.DatasetIterator]):
        super().__init__(parts)
        self._dataset, self._parts = dataset, parts
        self._taken = 0
        self._before: dict[str, Any] | None = None  # the state before a batch that failed

    def __next__(self) -> Batch:
        if self._dataset.count.ends(self._taken):
            raise StopIteration
        before = self.get_state() if self._dataset.num_streams > 1 else None
        try:
            batch = self._dataset.count.whole(self._taken + 1, self._blocks())
        except Exception:
            self._before = before  # some sub-streams may have moved on
            raise
        self._taken += 1
        return batch

    def _blocks(self) -> dict[int, Batch] | None:
        """The next batch of each sub-stream held here; None where one has ended."""
        blocks = {}
        for stream, part in zip(self._dataset.streams, self._parts, strict=True):
            block = next(part, None)
            if block is None:
                return None
            blocks[stream] = block
        return blocks

    def get_state(self) -> dict[str, Any]:
        if self._before is not None:
            return self._before
        states = [part.get_state() for part in self._parts]
        names = map(str, self._dataset.streams)  # JSON's keys are text
        return {"batches": self._taken, "streams": dict(zip(names, states, strict=True))}

    def set_state(self, state: dict[str, Any]) -> None:
        """Goes on where `state` was taken; it may be of more sub-streams than are held here."""
        self._taken, self._before = state["batches"], None
        for stream, part in zip(self._dataset.streams, self._parts, strict=True):
            part.set_state(state["streams"][str(stream)])

    def close(self) -> None:
        super().close()
        for part in self._parts:
            part.close()


def merged(states: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The state of the whole input, from those of all processes after the same batch."""
    streams: dict[str, Any] = {}
    for state in states:
        streams |= state["streams"]
    return {"batches": states[0]["batches"], "streams": streams}


def joined(blocks: Sequence[Batch]) -> Batch:
    """One batch of blocks of rows."""
    if len(blocks) == 1:
        return blocks[0]
    if isinstance(blocks[0].data, echo.GatherPlan):
        data = gather_plan.joined([block.data for block in blocks])
    else:
        data = {k: np.concatenate([b.data[k] for b in blocks]) for k in blocks[0].data}
    index = np.concatenate([block.index for block in blocks])
    copy = np.concatenate([block.copy for block in blocks])
    return Batch(data, index, copy, sum(block.fresh_examples for block in blocks))
