"""Which stored items an opportunistic batch shows again: index arithmetic, given its decisions."""

import numpy as np

from echo.spec import MAX_BUFFER, MAX_FACTOR, checked_integer

# Separates counts of showings from item numbers in one sort key.
_ITEMS = 2**40


class Repeats:
    """The items that are stored for repeating, by number, and how often each has been shown.

    Args:
        max_factor: the most showings of an item.
        capacity: the most items that stay stored.
        seed: of the choice between equally repeated items.

    Attributes:
        batches: batches so far.
        admitted: fresh items taken so far.

    Raises:
        EchoSpecError: a value that is not allowed; the message names it.
    """

    def __init__(self, max_factor: int, capacity: int, seed: int):
        self.max_factor = checked_integer("max_factor", max_factor, 1, MAX_FACTOR)
        self.capacity = checked_integer("shuffle_buffer", capacity, 1, MAX_BUFFER)
        self.seed = checked_integer("seed", seed, 0, 2**64 - 1)
        self.go_to(0, 0, np.zeros((2, 0), np.int64))

    @property
    def settings(self) -> str:
        return f"max_factor {self.max_factor}, shuffle_buffer {self.capacity}, seed {self.seed}"

    @property
    def copies_left(self) -> int:
        """How many showings the stored items have left in all."""
        return int((self.max_factor - self._shown).sum())

    def oldest(self) -> int:
        """The earliest item that batches to come may show."""
        return int(self._items[0]) if len(self._items) else self.admitted

    def fresh_start(self) -> "Repeats":
        """One with these settings that has seen nothing."""
        return Repeats(self.max_factor, self.capacity, self.seed)

    def go_to(self, batches: int, admitted: int, stored: np.ndarray) -> None:
        """Continues where another stood; `stored` as it gave it."""
        self.batches, self.admitted = batches, admitted
        self._items, self._shown = stored[0], stored[1]

    def stored(self) -> np.ndarray:
        """Numbers, ascending, and showings of the stored items, int64 [2, n]."""
        return np.stack([self._items, self._shown])

    def take(self, fresh: int, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The next batch, with the next `fresh` items first.

        Returns:
            What it shows as (item, copy number), both int64 [size], and the items that leave the
            store with showings left, int64 [n].

        Raises:
            ValueError: the stored items have too few showings left.
        """
        items, shown = self._items, self._shown.copy()
        rows, copies = [], []
        draws = self._draws(len(items))
        missing = size - fresh
        while missing:  # once, unless everything that is stored is in the batch
            left = np.flatnonzero(shown < self.max_factor)
            if not len(left):
                raise ValueError(
                    f"batch {self.batches} of {size} takes {fresh} fresh items, and the stored "
                    f"ones have {self.copies_left} showings left, which is too few; decisions "
                    "can be replayed only over the settings that they were made under"
                )
            chosen = left[np.lexsort((draws[left], shown[left]))[:missing]]
            rows.append(items[chosen])
            copies.append(shown[chosen])
            shown[chosen] += 1
            missing -= len(chosen)
        new = np.arange(self.admitted, self.admitted + fresh)
        self.batches, self.admitted = self.batches + 1, self.admitted + fresh
        leaving = self._keep(np.concatenate([items, new]), np.concatenate([shown, new * 0 + 1]))
        first_copies = np.zeros(fresh, np.int64)
        return np.concatenate([new, *rows]), np.concatenate([first_copies, *copies]), leaving

    def _keep(self, items: np.ndarray, shown: np.ndarray) -> np.ndarray:
        """Stores what may be repeated; the most repeated, of equals the oldest, leave; returned."""
        live = shown < self.max_factor
        items, shown = items[live], shown[live]
        surplus = len(items) - self.capacity
        stays = np.ones(len(items), bool)
        if surplus > 0:
            stays[np.argpartition(items - shown * _ITEMS, surplus - 1)[:surplus]] = False
        self._items, self._shown = items[stays], shown[stays]
        return items[~stays]

    def _draws(self, n: int) -> np.ndarray:
        """64 random bits for each stored item, a function of (seed, batch number)."""
        key = self.seed + (self.batches << 64)
        return np.random.Philox(key=key).random_raw(n)


def store_rows(shuffle_buffer: int, batch_size: int) -> int:
    """Rows of a store that holds what may be repeated and a batch of fresh items."""
    return shuffle_buffer + batch_size


def round_size(batch_size: int) -> int:
    """New items a round of an opportunistic stage's orders.

    How many are new changes from batch to batch, and rounds are filled up: an eighth of a batch
    keeps both what is sent in vain and the number of rounds small.
    """
    return -(-batch_size // 8)
