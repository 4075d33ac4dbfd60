"""Batches made of sub-streams side by side, of which other processes may hold some."""

from collections.abc import Callable, Sequence
from typing import Any

import grain
import numpy as np

from pipeline.stages import Batch


class SideBySide(grain.IterDataset):
    """Batch n is batch n of each sub-stream held here, in a block of rows each.

    The state names the state of each sub-stream, so that those of all processes make up the state
    of the whole input (`merged`), from which any number of processes can go on.

    Args:
        parts: the batches of the sub-streams held here, by number, in ascending order.
        num_batches: where to end, which is where the first of all sub-streams ends. A process that
            went on alone would wait for the others for ever.
        admitted_elsewhere: the fresh examples that sub-streams held elsewhere have admitted once n
            batches have been taken. Closed form: asking the other processes would cost a
            round trip a step.
    """

    def __init__(
        self,
        parts: dict[int, grain.IterDataset[Batch]],
        num_batches: int,
        admitted_elsewhere: Callable[[int], int],
    ):
        super().__init__(list(parts.values()))
        self.streams = tuple(parts)
        self.num_batches = num_batches
        self.admitted_elsewhere = admitted_elsewhere

    def __iter__(self) -> grain.DatasetIterator:
        return _Iterator(self, [iter(part) for part in self._parents])


class _Iterator(grain.DatasetIterator):
    def __init__(self, dataset: SideBySide, parts: list[grain.DatasetIterator]):
        super().__init__(parts)
        self._dataset, self._parts = dataset, parts
        self._taken = 0
        self._before: dict[str, Any] | None = None  # the state before a batch that failed

    def __next__(self) -> Batch:
        if self._taken >= self._dataset.num_batches:
            raise StopIteration
        before = self.get_state() if len(self._parts) > 1 else None
        try:
            batch = joined([next(part) for part in self._parts])
        except Exception:
            self._before = before  # some sub-streams may have moved on
            raise
        self._taken += 1
        elsewhere = self._dataset.admitted_elsewhere(self._taken)
        return batch._replace(fresh_examples=batch.fresh_examples + elsewhere)

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
    data = {k: np.concatenate([b.data[k] for b in blocks]) for k in blocks[0].data}
    index = np.concatenate([block.index for block in blocks])
    copy = np.concatenate([block.copy for block in blocks])
    return Batch(data, index, copy, sum(block.fresh_examples for block in blocks))
