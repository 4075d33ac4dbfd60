"""The auto order: fresh items that are ready first, then stored ones, least repeated first.

Stored items that a recent batch contains come last, so that the copies of an item are spread over
as many batches as the store has room for. How many fresh items each batch takes is its *decision*.
Decisions depend on time. Given the decisions, the order is a pure function of its settings. A batch
waits for fresh items rather than contain an item twice, or, if all copies are emitted, use up its
reserve.
"""

import collections
import copy
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from echo.spec import MAX_BUFFER, MAX_FACTOR, EchoSpecError, checked_integer

# Separates copy counts from item numbers in a sort key, and batches from copy counts in another.
_MAX_ITEMS = 2**40
_MAX_COPIES = 2**20

_MAX_INT64 = np.iinfo(np.int64).max

_FIELDS = ("settings", "batches", "admitted", "kept_all_since", "evicted")  # of `Repeats`

# A state has the stored items of up to so many batches ago, and the decisions since: lists of many
# items take long to make, and some pipelines ask for a state before each batch.
_MAX_REPLAYED = 32


class Repeats:
    """The items that are stored for repeating, and how often each has been emitted.

    Args:
        max_factor: the maximum number of copies of an item.
        capacity: the maximum number of items that stay stored.
        seed: seeds the choice between items of equal rank.

    Attributes:
        batches: batches so far.
        admitted: fresh items taken so far.
        kept_all_since: the value of `admitted` after the last eviction of an item with copies left.
        evicted: copies that such items had left and that `rationed` no longer counts on.
    """

    def __init__(self, max_factor: int, capacity: int, seed: int):
        self.max_factor = checked_integer("max_factor", max_factor, 1, MAX_FACTOR)
        self.capacity = checked_integer("shuffle_buffer", capacity, 1, MAX_BUFFER)
        self.seed = checked_integer("seed", seed, 0, 2**64 - 1)
        self.batches, self.admitted, self.kept_all_since, self.evicted = 0, 0, 0, 0
        self.settings = (
            f"max_factor {self.max_factor}, shuffle_buffer {self.capacity}, seed {self.seed}"
        )
        self._items, self._emitted, self._last = np.zeros((3, 0), np.int64)

    def __len__(self) -> int:
        """The number of stored items, each of which has copies left."""
        return len(self._items)

    def oldest(self) -> int:
        """The earliest item that later batches may contain."""
        return int(self._items[0]) if len(self._items) else self.admitted

    def get_state(self) -> dict[str, Any]:
        """The position, in JSON, with the settings to which it belongs."""
        return {name: getattr(self, name) for name in _FIELDS} | {"stored": self.stored().tolist()}

    def at(self, state: dict[str, Any]) -> "Repeats":
        """These settings at the position of `state`; ValueError if it is of others."""
        if state["settings"] != self.settings:
            raise ValueError(
                f"the state is of a stage with {state['settings']}, this one has {self.settings}; "
                "restore it into an equal stage"
            )
        other = copy.copy(self)
        other.__dict__.update({name: state[name] for name in _FIELDS})
        other._items, other._emitted, other._last = np.asarray(state["stored"], np.int64)
        return other

    def required(self, size: int) -> int:
        """The fresh items without which the next batch of `size` rows contains an item twice."""
        return max(0, size - len(self))

    def rationed(self, size: int) -> int:
        """The fresh items, at most `size`, without which the next batch uses up too many copies.

        If fresh items are so slow that all copies are emitted, each item would be used up as soon
        as it comes, and its copies would follow each other closely. So the items so far, less a
        reserve, must have copies for every batch so far and the next one. The reserve is half a
        batch and an eighth of the items so far, at most half the store.

        Copies of evicted items count as left, so after fast input, which evicts many, the whole
        store bridges a stall without a reserve. Only if the store runs out, and as many items as it
        holds have come since the last eviction, the input has become slow, and they no longer
        count. (Behind bursts, which evict items time and again, a reserve would evict more.)
        """
        if not self.admitted:
            return 0
        reserve = min(size / 2 + self.admitted / 8, self.capacity / 2)
        spent = (self.batches + 1) * size + self.evicted
        return min(size, max(0, math.ceil(spent / self.max_factor + reserve) - self.admitted))

    def stored(self) -> np.ndarray:
        """The stored items in ascending order, how often each was emitted, and the last batch that
        contains it, from 0: int64 [3, n]."""
        return np.stack([self._items, self._emitted, self._last])

    def take(self, fresh: int, size: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The next batch of `size` rows, beginning with the next `fresh` items: the fresh items,
        their copy numbers, and the stored items that are dropped.

        Raises:
            ValueError: the stored items have too few copies left.
        """
        items, emitted, last = self._items, self._emitted.copy(), self._last.copy()
        indices, copies = [], []
        missing = size - fresh
        draws = self._draws(len(items) if missing else 0)
        while missing:  # once, unless a replayed decision makes the batch contain an item twice
            is_open = emitted < self.max_factor
            num_open = int(np.count_nonzero(is_open))
            if not num_open:
                copies_left = int((self.max_factor - self._emitted).sum())
                raise ValueError(
                    f"batch {self.batches} of {size} takes {fresh} fresh items, and the stored "
                    f"ones have {copies_left} copies left, which is too few; decisions "
                    "can be replayed only with the settings under which they were made"
                )
            # Items that rested as long as the store has room for precede others, which follow in
            # the order of their last batches.
            rested = np.minimum(self.batches - last, self.capacity // size)
            order = np.where(is_open, emitted - rested * _MAX_COPIES, _MAX_INT64)
            chosen = _first_by(order, draws, min(missing, num_open))
            indices.append(items[chosen])
            copies.append(emitted[chosen])
            emitted[chosen] += 1
            last[chosen] = self.batches
            missing -= len(chosen)
        new = np.arange(self.admitted, self.admitted + fresh)
        new_rows = np.stack([new, np.ones_like(new), np.full_like(new, self.batches)])
        dropped = self._keep(np.concatenate([np.stack([items, emitted, last]), new_rows], axis=1))
        self.batches, self.admitted = self.batches + 1, self.admitted + fresh
        if len(dropped):
            self.kept_all_since = self.admitted
        elif len(self) < size and self.admitted - self.kept_all_since >= self.capacity:
            left = int((self.max_factor - self._emitted).sum())
            self.evicted = self.max_factor * self.admitted - self.batches * size - left
        copies = [np.zeros(fresh, np.int64), *copies]
        return np.concatenate([new, *indices]), np.concatenate(copies), dropped

    def _keep(self, stored: np.ndarray) -> np.ndarray:
        """Stores the items with copies left, up to the capacity, and returns the other ones with
        copies left: the most repeated items, and of equals the oldest."""
        stored = stored.compress(stored[1] < self.max_factor, axis=1)  # faster than an index
        items, emitted, _ = stored
        kept = np.ones(len(items), bool)
        if (surplus := len(items) - self.capacity) > 0:
            keys = items - emitted * _MAX_ITEMS  # all different, like the items
            kept = keys > np.partition(keys, surplus - 1)[surplus - 1]
        self._items, self._emitted, self._last = stored.compress(kept, axis=1)
        return items[~kept]

    def _draws(self, n: int) -> np.ndarray:
        """64 random bits for each stored item, a function of (seed, batch number)."""
        key = self.seed + (self.batches << 64)
        return np.random.Philox(key=key).random_raw(n)


def _first_by(major: np.ndarray, minor: np.ndarray, n: int) -> np.ndarray:
    """The places of the first n, from 1 to all, by `major`, then `minor`, in order."""
    places = np.flatnonzero(major <= np.partition(major, n - 1)[n - 1])
    return places[np.lexsort((minor[places], major[places]))[:n]]


class AutoOrder:
    """Decides how many fresh items each batch takes; see `echo.echo_pass.Order`.

    Args:
        repeats: the stored items; not changed.
        size: outputs to take at a time.
        slack, limit, earlier: see `echo.OpportunisticIterDataset`.
    """

    def __init__(
        self,
        repeats: Repeats,
        size: int,
        *,
        slack: Callable[[], float] | None = None,
        limit: Callable[[], int] | None = None,
        earlier: Callable[[int], int | None] | None = None,
    ):
        self._repeats, self._size = repeats, size
        self._following = repeats  # after the batch that `next` has returned
        self._begin_snapshot(repeats.get_state(), ())
        self._slack, self._limit, self._earlier = slack, limit, earlier

    @property
    def admitted(self) -> int:
        return self._repeats.admitted

    def next(self, intake: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        following = copy.copy(self._repeats)
        index, copies, dropped = following.take(self._decide(intake), self._size)
        self._following = following
        return index[None], copies[None], dropped

    def emitted(self, n: int) -> None:
        self._since.append(self._following.admitted - self._repeats.admitted)
        self._repeats = self._following

    def copies(self, fresh: np.ndarray) -> np.ndarray:
        return np.full(len(fresh), self._repeats.max_factor)

    def pending(self) -> dict[int, int]:
        items, emitted, _ = self._repeats.stored()
        return dict(zip(items.tolist(), (self._repeats.max_factor - emitted).tolist(), strict=True))

    def oldest(self) -> int:
        return self._repeats.oldest()

    def get_state(self) -> dict[str, Any]:
        if len(self._since) > _MAX_REPLAYED:
            self._begin_snapshot(self._repeats.get_state(), ())
        return {**self._snapshot, "batch_size": self._size, "decisions": list(self._since)}

    def at(self, state: dict[str, Any], num_items: int | None) -> "AutoOrder":
        order = copy.copy(self)
        order._repeats = self._repeats.at(state)
        if state["batch_size"] != self._size:
            raise ValueError(
                f"the state has batch_size {state['batch_size']}, this stage {self._size}; restore "
                "it into an equal stage"
            )
        decisions = state["decisions"]
        if not isinstance(decisions, list):
            raise EchoSpecError("decisions", decisions, "a list of integers")
        for decision in decisions:
            decision = checked_integer("decisions", decision, 0, self._size)
            order._repeats.take(decision, self._size)
        order._begin_snapshot({name: state[name] for name in self._snapshot}, decisions)
        if num_items is not None and order.admitted > num_items:
            raise ValueError(
                f"{order.admitted} items had been taken when the state was taken, but the parent "
                f"has {num_items}; restore it over the same data"
            )
        return order

    def _begin_snapshot(self, state: dict[str, Any], decisions: Sequence[int]) -> None:
        """Lets states consist of `state` of `Repeats` and the decisions after it."""
        self._snapshot = state
        self._since = collections.deque(decisions, maxlen=_MAX_REPLAYED + 1)

    def _decide(self, intake: Any) -> int:
        """The number of fresh items that the next batch takes; all of them have been read."""
        repeats, size = self._repeats, self._size
        admitted, required, maximum = repeats.admitted, repeats.required(size), size
        if self._limit is not None:
            maximum = min(size, max(required, self._limit() - admitted))
        minimum = min(maximum, max(required, repeats.rationed(size)))
        decision = self._earlier(repeats.batches) if self._earlier else None
        if decision is not None:
            minimum = maximum = checked_integer("earlier", decision, 0, size)
        while True:
            if intake.num_items is not None and intake.num_items - admitted < size:
                raise StopIteration
            ready = intake.num_read - admitted
            if ready >= maximum:
                return int(maximum)  # a NumPy integer would not be JSON in a state
            if intake.read(admitted + maximum, 0.0):
                continue
            left = self._slack() if self._slack else 0.0
            if left <= 0 and ready >= minimum:
                return ready
            intake.read(admitted + maximum, left if left > 0 else None)


def store_rows(shuffle_buffer: int, batch_size: int) -> int:
    """The rows of a store that holds the items to repeat and a batch of fresh items."""
    return shuffle_buffer + batch_size
