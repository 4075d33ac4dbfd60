"""A control for echoing: the same number of copies of each example, but whole epochs apart.

Where an ordinary run passes over the data once, this one passes over it k times and counts only
the first pass as fresh. Each pass reads the data again, so its wall time is meaningless. Its
training curve shows what repetition gains when repeats are as far apart as possible.
"""

import functools
from collections.abc import Sequence

import grain
import numpy as np
from ml_collections import ConfigDict

from pipeline.map_datasets import Arrays, Batch, Batches, MapChunks, Read, StackedItems, Stage


class Passes:
    """The order of the k*N copies of N fresh examples, in passes over n examples each.

    The first n examples come in their own order, then k - 1 times in other orders, then the next n
    examples, and so on. The last group may be shorter.

    Args:
        num_fresh: N.
        pass_length: n, the size of the data set.
        passes: k.
        seed: of the orders.
    """

    def __init__(self, num_fresh: int, pass_length: int, passes: int, seed: int):
        self._num_fresh, self._pass_length = num_fresh, pass_length
        self._passes, self._seed = passes, seed
        self._order = functools.lru_cache(maxsize=4)(self._drawn_order)

    def __len__(self) -> int:
        return self._passes * self._num_fresh

    def fresh_and_copy(self, positions: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """The fresh example and the copy number at each position, int64 [n] each."""
        pairs = [self._at(int(position)) for position in positions]
        fresh_n, copy_n = np.asarray(pairs, np.int64).reshape(-1, 2).T
        return fresh_n, copy_n

    def admitted(self, positions: int) -> int:
        """The number of fresh examples among the first `positions` copies."""
        group, within = divmod(positions, self._passes * self._pass_length)
        return group * self._pass_length + min(within, self._length(group))

    def oldest(self, positions: int) -> int:
        """An example before which none occurs again after the first `positions` copies."""
        return positions // (self._passes * self._pass_length) * self._pass_length

    def _at(self, position: int) -> tuple[int, int]:
        group, within = divmod(position, self._passes * self._pass_length)
        copy, place = divmod(within, self._length(group))
        if copy:
            place = int(self._order(group, copy)[place])
        return group * self._pass_length + place, copy

    def _length(self, group: int) -> int:
        return min(self._pass_length, self._num_fresh - group * self._pass_length)

    def _drawn_order(self, group: int, copy: int) -> np.ndarray:
        random = np.random.default_rng([self._seed, group, copy])
        return random.permutation(self._length(group))


class PassesOrder:
    """The copies of `passes` in order, as `echo.diagnostics` takes them."""

    def __init__(self, passes: Passes):
        self._passes, self.position = passes, 0

    def take(self, n: int) -> tuple[np.ndarray, np.ndarray]:
        stop = min(self.position + n, len(self._passes))
        copies = self._passes.fresh_and_copy(range(self.position, stop))
        self.position = stop
        return copies

    def oldest(self) -> int:
        return self._passes.oldest(self.position)

    def rewound(self, position: int) -> "PassesOrder":
        return PassesOrder(self._passes)


class EpochRepeats(StackedItems):
    """The copies of a fresh stream, in the order of `passes`."""

    def __init__(self, read: Read, passes: Passes):
        super().__init__(read)
        self._read, self.passes = read, passes

    def __len__(self) -> int:
        return len(self.passes)

    def stacked_items(self, indices: Sequence[int]) -> Arrays:
        rows = Batch(None, *self.passes.fresh_and_copy(indices), 0)
        return self._read.decode(self._read.read(rows)).data


def passes_of(config: ConfigDict, num_examples: int) -> Passes:
    """The passes of a run over a data set of `num_examples` examples."""
    times, seed = config.dataset.spaced_epochs, config.seed.data
    return Passes(config.budget.fresh_examples, num_examples, times, seed)


def batches(
    config: ConfigDict, read: Read, augment: Stage, batch_size: int
) -> grain.MapDataset[Batch]:
    """Batches of repeated epochs; each copy is augmented independently."""
    passes = passes_of(config, read.num_records)
    locate = passes.fresh_and_copy
    repeats = EpochRepeats(read, passes)
    examples = MapChunks(repeats, lambda data, i: augment(Batch(data, *locate(i), 0)).data)

    def batch(number: int, data: Arrays) -> Batch:
        end = (number + 1) * batch_size
        index, copy = locate(range(end - batch_size, end))
        return Batch(data, index, copy, passes.admitted(end))

    return Batches(examples, batch_size).map_with_index(batch)
