"""A control for echoing: as many showings of each example, but whole passes over the data apart.

k passes over the data are made where an ordinary run makes one, and only the first of them counts
as fresh. They read it again each time, so what they cost in seconds says nothing; what they reach
says what repeating gains where repeats are as far apart as can be.
"""

import functools
from collections.abc import Sequence

import grain
import numpy as np

from pipeline.map_datasets import Arrays, Batch, Batches, MapChunks, Read, Stage


class Passes:
    """Which of N fresh examples each of k*N showings shows, in passes of n.

    The first n examples are shown in their order, then k - 1 times in orders of their own, then the
    next n, and so on. The last pass may be shorter.

    Args:
        num_fresh: N.
        pass_length: n, the examples of the data set.
        passes: k.
        seed: of the orders.
    """

    def __init__(self, num_fresh: int, pass_length: int, passes: int, seed: int):
        self._num_fresh, self._pass_length = num_fresh, pass_length
        self._passes, self._seed = passes, seed
        self._order = functools.lru_cache(maxsize=4)(self._drawn)

    def __len__(self) -> int:
        return self._passes * self._num_fresh

    def shown(self, indices: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """Which fresh example each showing shows, and which of its copies, int64 [n] each."""
        pairs = [self._shown(int(index)) for index in indices]
        fresh_n, copy_n = np.asarray(pairs, np.int64).reshape(-1, 2).T
        return fresh_n, copy_n

    def admitted(self, copies: int) -> int:
        """Fresh examples among so many first showings."""
        group, within = divmod(copies, self._passes * self._pass_length)
        return group * self._pass_length + min(within, self._length(group))

    def oldest(self, copies: int) -> int:
        """The earliest example that is shown again after so many first showings."""
        return copies // (self._passes * self._pass_length) * self._pass_length

    def _shown(self, index: int) -> tuple[int, int]:
        group, within = divmod(index, self._passes * self._pass_length)
        copy, place = divmod(within, self._length(group))
        if copy:
            place = int(self._order(group, copy)[place])
        return group * self._pass_length + place, copy

    def _length(self, group: int) -> int:
        return min(self._pass_length, self._num_fresh - group * self._pass_length)

    def _drawn(self, group: int, copy: int) -> np.ndarray:
        random = np.random.default_rng([self._seed, group, copy])
        return random.permutation(self._length(group))


class EpochRepeats(grain.MapDataset):
    """Showings of a fresh stream, in passes."""

    def __init__(self, read: Read, passes: Passes):
        super().__init__(read)
        self.passes = passes

    def __len__(self) -> int:
        return len(self.passes)

    def __getitem__(self, index: int) -> Arrays:
        return {name: array[0] for name, array in self.stacked_items([index]).items()}

    def stacked_items(self, indices: Sequence[int]) -> Arrays:
        return self._parent.stacked_items(self.passes.shown(indices)[0])


def passes_of(config, pass_length: int) -> Passes:
    """The passes of a run over a data set of so many examples."""
    fresh, times = config.budget.fresh_examples, config.dataset.spaced_epochs
    return Passes(fresh, pass_length, times, config.seed.data)


def batches(spaced: EpochRepeats, augment: Stage, batch_size: int) -> grain.MapDataset[Batch]:
    """Batches of showings, each augmented with a key of its own as a copy is."""
    shown = spaced.passes.shown
    examples = MapChunks(spaced, lambda data, i: augment(Batch(data, *shown(i), 0)).data)

    def batch(number: int, data: Arrays) -> Batch:
        end = (number + 1) * batch_size
        index, copy = shown(range(end - batch_size, end))
        return Batch(data, index, copy, spaced.passes.admitted(end))

    return Batches(examples, batch_size).map_with_index(batch)
