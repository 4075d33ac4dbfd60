"""`auto(loader)`: repeats examples of any loader of batches instead of waiting for it."""

from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import numpy as np

from echo.auto_order import AutoOrder, Repeats
from echo.echo_pass import EchoPass, check_fields
from echo.iterables import Parent, Source
from echo.rows import RowReader, RowStore
from echo.sequential import SequentialReader
from echo.spec import (
    MAX_BATCH,
    MAX_BUFFER,
    MAX_FACTOR,
    MAX_POSITION,
    checked_integer,
    checked_switch,
)
from echo.stores import ItemStore

T = TypeVar("T")

_AHEAD = 4  # batches to read ahead
_BUFFER_ROWS, _BUFFER_BYTES, _BUFFER_BATCHES = 10_000, 2**30, 4  # of the default buffer


def auto(
    loader: Iterable[T],
    max_factor: int = 16,
    buffer: int = 0,
    mix: bool = True,
    seed: int = 0,
) -> "AutoIterable[T]":
    """Batches of `loader`, and repeated examples where the loop would otherwise wait.

        for batch in echo.auto(loader):
            step(batch)

    A thread reads the loader ahead. If it has fewer fresh examples ready than a batch takes when
    the loop asks for one, examples that it delivered before fill the rest: the least repeated ones
    first, and of those the ones that rested longest. A batch contains no example twice. A loader
    that keeps up is passed on unchanged. The order is that of `echo.OpportunisticIterDataset`.

    Args:
        loader: yields batches: nested dicts, lists, and tuples of arrays or tensors with one
            leading size, which only the last batch may not have. Tensors stay on their device;
            arrays of JAX become NumPy's. For other batches give mix=False.
        max_factor: the maximum number of copies of an example. 16 is the largest that was studied.
        buffer: examples stored for repeating; 0 is as many as 1 GiB holds, up to 10,000, and at
            least four batches. With mix=False, batches.
        mix: whether to mix examples into batches. Otherwise whole batches repeat, of any kind that
            `copy.deepcopy` can copy.
        seed: seeds the choice between examples of equal rank.

    Raises:
        EchoSpecError: a value that is not allowed.
        TypeError: `loader` cannot be iterated over.
    """
    return AutoIterable(loader, max_factor, buffer, mix, seed)


class AutoIterable(Iterable[T]):
    """The batches of a loader, with repeats; see `auto`. It has as many passes as the loader.

    Attributes:
        epoch: the number of the next pass, from 0.
        fresh_examples: examples emitted in all passes, each counted once per pass (with mix=False,
            batches).
        emitted: examples emitted in all passes, repeats included.
    """

    def __init__(self, loader: Iterable[T], max_factor: int, buffer: int, mix: bool, seed: int):
        if not hasattr(loader, "__iter__"):
            raise TypeError(f"loader has type {type(loader).__name__}; allowed: an iterable")
        self._parent = Parent(loader)
        self._max_factor = checked_integer("max_factor", max_factor, 1, MAX_FACTOR)
        self._buffer = checked_integer("buffer", buffer, 0, MAX_BUFFER)
        self._mix = checked_switch("mix", mix)
        self._seed = checked_integer("seed", seed, 0, 2**64 - 1)
        self.epoch = self.fresh_examples = self.emitted = 0
        self._newest: _Pass | None = None
        self._waiting: _Pass | None = None  # what the next iter() returns, if any

    def __repr__(self) -> str:
        return (
            f"echo.auto({type(self._parent.iterable).__name__}, max_factor={self._max_factor}): "
            f"{self.fresh_examples:,} fresh examples, {self.emitted:,} emitted"
        )

    def __iter__(self) -> Iterator[T]:
        self._newest, self._waiting = self._waiting or self._begin(self.epoch), None
        self.epoch = self._newest.epoch + 1
        return self._items(self._newest)

    def _items(self, one: "_Pass") -> Iterator[T]:
        while True:
            before = one.admitted
            try:
                item, rows = one.next()
            except StopIteration:
                one.reader.close()
                return
            self.fresh_examples += one.admitted - before
            self.emitted += rows
            yield item

    def state_dict(self) -> dict[str, Any]:
        """The position of the newest pass, in JSON if the loader's own state is. Decisions depend
        on time: what follows the position is not promised to be what followed it before."""
        if self._newest is None:
            self._newest = self._waiting = self._begin(self.epoch)
        counts = {"fresh_examples": self.fresh_examples, "emitted": self.emitted}
        return counts | self._newest.state()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Lets the next pass continue from `state`. Examples stored there are read again: from just
        before the oldest of them if the loader has a `state_dict`, otherwise from its start, and it
        must then yield the same batches.

        Raises:
            ValueError: the state is of other settings, or the loader cannot return to it.
        """
        check_fields(state, ("fresh_examples", "emitted", "epoch", "buffer", "position"))
        epoch = checked_integer("epoch", state["epoch"], 0, MAX_POSITION)
        one = self._begin(epoch)
        one.restore(state)
        self._newest = self._waiting = one
        self.epoch = epoch
        self.fresh_examples, self.emitted = state["fresh_examples"], state["emitted"]

    def _begin(self, epoch: int) -> "_Pass":
        if self._newest is not None:  # one pass at a time reads the loader
            self._newest.reader.close(wait=True)
        self._parent.discard_loaded()
        reader = SequentialReader(Source(self._parent), _AHEAD)
        key = np.random.SeedSequence([self._seed, epoch]).generate_state(1, np.uint64)
        return _Pass(
            RowReader(reader) if self._mix else reader,
            self._max_factor,
            self._buffer,
            int(key[0]) if epoch else self._seed,
            epoch,
        )


class _Pass:
    """One pass. Its store and order depend on the size of a batch, and so begin with the first.

    Attributes:
        epoch: its number.
        reader: reads the loader.
    """

    def __init__(
        self,
        reader: RowReader | SequentialReader,
        max_factor: int,
        buffer: int,
        seed: int,
        epoch: int,
    ):
        self.epoch, self.reader = epoch, reader
        self._max_factor, self._buffer, self._seed = max_factor, buffer, seed
        self._pass: EchoPass | None = None

    def next(self) -> tuple[Any, int]:
        """The next batch, and the number of its rows; StopIteration at the end."""
        if self._pass is None:
            self._pass = self._started(*self._sizes())
        item, index, _ = self._pass.next()
        return item, len(index)

    @property
    def admitted(self) -> int:
        """Fresh examples emitted."""
        return 0 if self._pass is None else self._pass.order.admitted

    def state(self) -> dict[str, Any]:
        one = self._pass  # before the first batch the state is the reader's
        position = self.reader.state(lambda: 0) if one is None else one.get_state()
        return {"epoch": self.epoch, "buffer": self._buffer, "position": position}

    def restore(self, state: dict[str, Any]) -> None:
        """Moves to a state of `state()`."""
        if "batch_size" not in (position := state["position"]):
            list(self.reader.restore(position, [], 0))
            return
        size = checked_integer("batch_size", position["batch_size"], 1, MAX_BATCH)
        self._pass = self._started(size, state["buffer"])
        self._pass.set_state(position)

    def _sizes(self) -> tuple[int, int]:
        """The rows of a batch, and the capacity of the buffer."""
        if not isinstance(self.reader, RowReader):
            return 1, self._buffer or _BUFFER_BATCHES
        rows, row_bytes = self.reader.first()
        default = max(_BUFFER_BATCHES * rows, min(_BUFFER_ROWS, _BUFFER_BYTES // row_bytes))
        return rows, self._buffer or default

    def _started(self, size: int, buffer: int) -> EchoPass:
        self._buffer = buffer
        order = AutoOrder(Repeats(self._max_factor, buffer, self._seed), size)
        store = RowStore if isinstance(self.reader, RowReader) else ItemStore
        return EchoPass(self.reader, order, store)
