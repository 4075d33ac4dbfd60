"""A control for echoing: the same number of copies of each example, but whole epochs apart.

Where an ordinary run passes over the data once, this one passes over it k times and counts only
the first pass as fresh. Each pass reads the data again, so its wall time is meaningless. Its
training curve shows what repetition gains when repeats are as far apart as possible.
"""

import functools
from collections.abc import Sequence

import numpy as np


class Passes:
    """The order of the k*N copies of N fresh examples, in passes over n examples each.

    The first n examples come in their own order, then k - 1 times in other orders, then the next n
    examples, and so on. The last group may be shorter. `pipeline.map_datasets.Examples` takes it
    in place of a FreshOrder.

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

    def locate(self, positions: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """The fresh example and the copy number at each position, int64 [n] each."""
        pairs = [self._at(int(position)) for position in positions]
        fresh_n, copy_n = np.asarray(pairs, np.int64).reshape(-1, 2).T
        return fresh_n, copy_n

    def admitted(self, positions: int) -> int:
        """The number of fresh examples among the first `positions` copies."""
        group, within = divmod(positions, self._passes * self._pass_length)
        return group * self._pass_length + min(within, self._length(group))

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
