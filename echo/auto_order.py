"""The auto order: fresh items that are ready first, then stored ones, least repeated first.

Stored items that a recent batch contains come last, so that the copies of an item are spread over
as many batches as the store has room for. How many fresh items each batch takes is its *decision*.
Decisions depend on time. Given the decisions, the order is a pure function of its settings. A batch
waits for fresh items rather than contain an item twice, or, if all copies are emitted, use up its
reserve.
"""

import base64
import copy
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from echo.spec import MAX_BATCH, MAX_BUFFER, MAX_FACTOR, checked_integer

# Separates copy counts from item numbers in a sort key, and batches from copy counts in another.
_MAX_ITEMS = 2**40
_MAX_COPIES = 2**20

_MAX_INT64 = np.iinfo(np.int64).max

_SETTINGS = ("max_factor", "shuffle_buffer", "seed", "batch_size")
_COUNTS = ("batches", "admitted", "kept_all_since", "evicted")

# The buffer for a loader, by default: batches, at most so many bytes, but at least so many batches.
_BUFFER_BATCHES, _BUFFER_BYTES, _MIN_BUFFER_BATCHES = 32, 2**30, 4


class AutoOrder:
    """The items that are stored for repeating, and the order of an echo pass.

    Args:
        max_factor: the maximum number of copies of an item.
        shuffle_buffer: the maximum number of items that stay stored.
        seed: seeds the choice between items of equal rank.
        batch_size: outputs to take at a time. 0: as many as the reader reads first; then a
            `shuffle_buffer` of 0 is as many batches as are useful and fit into memory.
        slack, limit, earlier: see `echo.OpportunisticIterDataset`.

    Attributes:
        batches: batches so far.
        admitted: fresh items taken so far.
        kept_all_since: the value of `admitted` after the last eviction of an item with copies left.
        evicted: copies that such items had left and that `rationed` no longer counts on.
        stored: the stored items in ascending order, how often each was emitted, and the last batch
            that contains it, from 0: int64 [3, n]. Each has copies left.
    """

    def __init__(
        self,
        max_factor: int,
        shuffle_buffer: int,
        seed: int,
        batch_size: int,
        *,
        slack: Callable[[], float] | None = None,
        limit: Callable[[], int] | None = None,
        earlier: Callable[[int], int | None] | None = None,
    ):
        self.max_factor = checked_integer("max_factor", max_factor, 1, MAX_FACTOR)
        self.seed = checked_integer("seed", seed, 0, 2**64 - 1)
        self.batch_size = checked_integer("batch_size", batch_size, 0, MAX_BATCH)
        least = min(1, self.batch_size)
        self.shuffle_buffer = checked_integer("shuffle_buffer", shuffle_buffer, least, MAX_BUFFER)
        self._slack, self._limit, self._earlier = slack, limit, earlier
        self.batches, self.admitted, self.kept_all_since, self.evicted = 0, 0, 0, 0
        self.stored = np.zeros((3, 0), np.int64)

    @property
    def position(self) -> int:
        return self.batches * self.batch_size

    def next(self, intake: Any) -> tuple[np.ndarray, np.ndarray]:
        if not self.batch_size:
            self.batch_size, item_bytes = intake.reader.first()
            rows = min(_BUFFER_BATCHES * self.batch_size, _BUFFER_BYTES // item_bytes)
            rows = max(_MIN_BUFFER_BATCHES * self.batch_size, rows)
            self.shuffle_buffer = self.shuffle_buffer or rows
        fresh = self._decide(intake)
        index, copies, self._rounds = self._choose(fresh)
        self._fresh = fresh
        return index[None], copies[None]

    def emitted(self, n: int) -> np.ndarray:
        fresh, (_, emitted, last) = self._fresh, self.stored
        dropped, most = np.arange(0), 0
        for places, copies in self._rounds:
            emitted[places] = copies + 1
            last[places] = self.batches
            most = max(most, int(copies.max()) + 1)
        if fresh or most == self.max_factor:
            dropped = self._keep(fresh)
        self.batches, self.admitted = self.batches + 1, self.admitted + fresh
        if len(dropped):
            self.kept_all_since = self.admitted
        elif (
            self.stored.shape[1] < self.batch_size
            and self.admitted - self.kept_all_since >= self.shuffle_buffer
        ):
            self.evicted = self.max_factor * self.admitted - self.position - self._copies_left()
        return dropped

    def copies(self, fresh: np.ndarray) -> np.ndarray:
        return np.full(len(fresh), self.max_factor)

    def pending(self) -> dict[int, int]:
        items, emitted, _ = self.stored.tolist()
        return {item: self.max_factor - n for item, n in zip(items, emitted, strict=True)}

    def max_pending(self, num_outputs: int) -> int:
        return self.shuffle_buffer + num_outputs

    def oldest(self) -> int:
        return int(self.stored[0].min(initial=self.admitted))

    def get_state(self) -> dict[str, Any]:
        # Training asks before each batch: small numbers take few bytes, and bytes little time.
        items, emitted, last = self.stored
        near = np.diff(items, append=self.admitted), emitted, self.batches - last
        dtype = np.min_scalar_type(max(int(x.max(initial=0)) for x in near))
        narrow = np.stack(near, dtype=dtype, casting="unsafe").tobytes()
        stored = f"{dtype.str} {base64.b64encode(narrow).decode()}"
        return {x: getattr(self, x) for x in (*_SETTINGS, *_COUNTS)} | {"stored": stored}

    def at(self, state: dict[str, Any], num_items: int | None) -> "AutoOrder":
        other = copy.copy(self)
        if not self.batch_size:  # the size is that of the first batch, which has been read there
            other.batch_size = checked_integer("batch_size", state["batch_size"], 0, MAX_BATCH)
            other.shuffle_buffer = self.shuffle_buffer or checked_integer(
                "shuffle_buffer", state["shuffle_buffer"], 0, MAX_BUFFER
            )
        of_state, own = ({x: get(x) for x in _SETTINGS} for get in (state.get, vars(other).get))
        if of_state != own:
            raise ValueError(
                f"the state is of a stage with {of_state}, this one has {own}; restore it into an "
                "equal stage"
            )
        for name in _COUNTS:
            setattr(other, name, checked_integer(name, state[name], 0, _MAX_ITEMS))
        dtype, _, near = state["stored"].partition(" ")
        near = np.frombuffer(base64.b64decode(near), dtype).reshape(3, -1).astype(np.int64)
        items = other.admitted - near[0, ::-1].cumsum()[::-1]
        other.stored = np.stack([items, near[1], other.batches - near[2]])
        if num_items is not None and other.admitted > num_items:
            raise ValueError(
                f"{other.admitted} items had been taken when the state was taken, but the parent "
                f"has {num_items}; restore it over the same data"
            )
        return other

    def _decide(self, intake: Any) -> int:
        """The number of fresh items that the next batch takes; all of them have been read."""
        size, admitted = self.batch_size, self.admitted
        required = max(0, size - self.stored.shape[1])  # otherwise it contains an item twice
        maximum = size
        if self._limit is not None:
            maximum = min(size, max(required, self._limit() - admitted))
        minimum = min(maximum, max(required, self._rationed()))
        decision = self._earlier(self.batches) if self._earlier else None
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

    def _rationed(self) -> int:
        """The fresh items, at most a batch, without which the next one uses up too many copies.

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
        size = self.batch_size
        reserve = min(size / 2 + self.admitted / 8, self.shuffle_buffer / 2)
        spent = (self.batches + 1) * size + self.evicted
        return min(size, max(0, math.ceil(spent / self.max_factor + reserve) - self.admitted))

    def _choose(self, fresh: int) -> tuple[np.ndarray, np.ndarray, list[Any]]:
        """The next batch, beginning with the next `fresh` items: its items, their copy numbers, and
        for `emitted`, in turn, places of stored items and their copy numbers; ValueError if these
        have too few copies."""
        items, emitted, last = self.stored
        missing, rounds = self.batch_size - fresh, []
        if missing:
            # Items that rested as long as the store has room for precede others, which follow in
            # the order of their last batches.
            rested = np.maximum(last, self.batches - self.shuffle_buffer // self.batch_size)
            # 64 random bits for each item, a function of (seed, batch number)
            philox = np.random.Philox(key=self.seed + (self.batches << 64))
            draws = philox.random_raw(len(items))
            places = _first_by(emitted + rested * _MAX_COPIES, draws, missing)
            rounds.append((places, emitted[places]))
            missing -= len(places)
        while missing:  # a replayed decision makes the batch contain items once more
            left = np.flatnonzero(emitted + len(rounds) < self.max_factor)
            if not len(left):
                raise ValueError(
                    f"batch {self.batches} of {self.batch_size} takes {fresh} fresh items, and the "
                    f"stored ones have {self._copies_left()} copies left, which is too few; "
                    "decisions can be replayed only with the settings under which they were made"
                )
            places = left[_first_by(emitted[left], draws[left], missing)]
            rounds.append((places, emitted[places] + len(rounds)))
            missing -= len(places)
        parts = [(items[places], copies) for places, copies in rounds]
        if fresh:
            new = np.arange(self.admitted, self.admitted + fresh)
            parts.insert(0, (new, np.zeros_like(new)))
        index, copies = (
            parts[0] if len(parts) == 1 else map(np.concatenate, zip(*parts, strict=True))
        )
        return index, copies, rounds

    def _keep(self, fresh: int) -> np.ndarray:
        """Stores new items, and of all those with copies left as many as there is room for. Returns
        the others: the most repeated items, and of equals the oldest."""
        new = np.ones((3, fresh), np.int64)
        new[0], new[2] = range(self.admitted, self.admitted + fresh), self.batches
        stored = np.concatenate([self.stored, new], axis=1)
        items, emitted, _ = stored
        kept, dropped = emitted < self.max_factor, np.arange(0)
        if (surplus := int(np.count_nonzero(kept)) - self.shuffle_buffer) > 0:
            # all different, like the items
            keys = np.where(kept, items - emitted * _MAX_ITEMS, _MAX_INT64)
            leaves = keys <= np.partition(keys, surplus - 1)[surplus - 1]
            dropped, kept = items[leaves], kept & ~leaves
        self.stored = stored.compress(kept, axis=1)  # faster than an index
        return dropped

    def _copies_left(self) -> int:
        return int((self.max_factor - self.stored[1]).sum())


def _first_by(major: np.ndarray, minor: np.ndarray, n: int) -> np.ndarray:
    """The places of the first n, or of all, by `major`, then `minor`, in order."""
    places = np.arange(len(major))
    if n < len(major):
        places = np.flatnonzero(major <= np.partition(major, n - 1)[n - 1])
    return places[np.lexsort((minor[places], major[places]))[:n]]
