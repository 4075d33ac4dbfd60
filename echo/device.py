"""A store of fresh items in accelerator memory, from which batches are gathered.

    stage = echo.EchoIterDataset(examples, factor=4, batch_size=128, placement="device")
    for batch in stage:  # of JAX arrays
        state = train_step(state, batch)

The thread that reads an item sends it, once, so that whoever asks for a batch waits for nothing but
a gather. The host tracks which item is in which row; items and batches are on the device.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import (
    AbstractMesh,
    NamedSharding,
    Sharding,
    SingleDeviceSharding,
    use_abstract_mesh,
)

from echo.spec import checked_integer
from echo.stores import Layout, RowAllocator, Stacked

# Rows from here on are past the end of any store. Nothing is written there.
NOWHERE = 2**30

# Items are sent and placed in pieces of so many, none larger than a batch. Each has a program. JAX
# takes tens of microseconds per array sent, and photographs come in chunks of 16, 32, or 64.
_PIECES = (64, 32, 16, 4, 1)

# (items with leaves [m, ...], their numbers uint32 [m, ...]) -> the items to store
Enter = Callable[[Any, jax.Array], Any]


@dataclasses.dataclass(frozen=True)
class Sent:
    """Items on the device, in pieces of stacked items; of all of them, `start` to `stop`."""

    pieces: tuple[Any, ...]
    start: int
    stop: int

    def __len__(self) -> int:
        return self.stop - self.start

    def __getitem__(self, part: slice) -> "Sent":
        start, stop, _ = part.indices(len(self))
        return Sent(self.pieces, self.start + start, self.start + stop)


class DeviceStore:
    """The pending items of a stream in accelerator memory, with the methods of
    `echo.stores.ArrayStore`.

    Items are nested mappings, lists, and tuples of arrays; mappings become dicts. Unless
    `jax_enable_x64` is set, 64-bit leaves are stored in 32 bits: floats are rounded, and integers
    must fit. The memory is reserved when the first item comes.

    Args:
        rows: the maximum number of items that can be pending at once.
        batch_size: items in an output; None: outputs are single items.
        sharding: of the store and of what is gathered, each of whose devices holds all of it. None:
            the first device of this process.
        enter: applied on the device to new items before they are stored. It must be hashable; equal
            functions share compiled programs.
        numbered: from numbers of fresh items, int64 [m], to those that `enter` gets; None: these.
    """

    def __init__(
        self,
        rows: int,
        *,
        batch_size: int | None = None,
        sharding: Sharding | None = None,
        enter: Enter | None = None,
        numbered: Callable[[np.ndarray], np.ndarray] | None = None,
    ):
        self.num_rows = checked_integer("rows", rows, 1, NOWHERE - 1)
        self._rows = RowAllocator()
        self.take, self.drop = self._rows.take, self._rows.drop
        self._batch_size = batch_size
        self._pieces = [size for size in _PIECES if size <= (batch_size or 1)]
        self._sharding = sharding or SingleDeviceSharding(jax.local_devices()[0])
        self._enter, self._numbered = enter, numbered or (lambda fresh: fresh)
        self._layout = Layout()  # known after the first item
        self._programs: _Programs | None = None
        self._stored: Any = None  # leaves [rows, *_in_row]
        # Items of an iterator, which come one at a time, as (leaves, numbers, rows), not sent yet.
        self._waiting: list[tuple[list[np.ndarray], np.ndarray, np.ndarray]] = []

    def prepare(self, items: Any) -> None:
        """Compiles for items like the stacked `items`; otherwise the first ones wait for it."""
        programs = self._programs_for(items)
        for size in self._pieces:
            programs.place(size)
        programs.gather(self._batch_size or 1)

    def send(self, fresh: np.ndarray, items: list[Any] | Stacked) -> Sent:
        """Sends items, on any thread, and waits until they are on the device.

        Args:
            fresh: their numbers, int64 [n].
            items: a list of them, or `Stacked`.

        Raises:
            ValueError: an item has another structure, shape or dtype than the first one.
        """
        leaves, n = self._layout.stacked(fresh, items), len(fresh)
        pieces, start = [], 0
        for size in self._pieces:
            while n - start >= size:
                pieces.append(self._layout.build([leaf[start : start + size] for leaf in leaves]))
                start += size
        pieces = jax.block_until_ready(jax.device_put(pieces, self._sharding))
        return Sent(tuple(pieces), 0, n)

    def put(self, fresh: np.ndarray, items: list[Any] | Stacked | Sent, copies: np.ndarray) -> None:
        """Stores items; see `ArrayStore.put`."""
        if not isinstance(items, list):
            sent = items if isinstance(items, Sent) else self.send(fresh, items)
            self._place(sent, fresh, self._rows.add(fresh, copies))
            return
        leaves = self._layout.stacked(fresh, items)
        self._waiting.append((leaves, fresh, self._rows.add(fresh, copies)))
        if len(self._waiting) == self._pieces[0]:
            self._send_waiting()

    def _send_waiting(self) -> None:
        leaves, fresh, rows = zip(*self._waiting, strict=True)
        self._waiting.clear()
        item = self._layout.build([np.concatenate(parts) for parts in zip(*leaves, strict=True)])
        numbers = np.concatenate(fresh)
        self._place(self.send(numbers, Stacked(item)), numbers, np.concatenate(rows))

    def _place(self, sent: Sent, fresh: np.ndarray, rows: np.ndarray) -> None:
        first = -sent.start  # item of a piece, counted from `start`
        for piece in sent.pieces:
            size = len(jax.tree.leaves(piece)[0])
            start, stop = max(first, 0), min(first + size, len(sent))
            if start < stop:
                places = np.arange(NOWHERE, NOWHERE + size, dtype=np.int32)
                numbers = np.zeros(size, np.int64)
                places[start - first : stop - first] = rows[start:stop]
                numbers[start - first : stop - first] = fresh[start:stop]
                programs = self._programs = self._programs or self._programs_for(piece)
                if self._stored is None:
                    self._stored = programs.allocate()
                place = programs.place(size)
                numbers = self._numbered(numbers).astype(np.uint32)
                self._stored = place(self._stored, piece, numbers, places)
            first += size

    def emit(self, taken: np.ndarray) -> Any:
        """The copies of a batch, as one with stacked leaves [n, ...], or a single item."""
        if self._waiting:
            self._send_waiting()
        assert self._programs is not None  # there has been an item
        return self._programs.gather(len(taken))(self._stored, taken.astype(np.int32))

    def _programs_for(self, items: Any) -> "_Programs":
        numbers = self._numbered(np.zeros(1, np.int64)).shape[1:]
        leaves, structure = jax.tree.flatten(jax.tree.map(lambda x: _spec(x, 1), items))
        return _programs(
            tuple(leaves),
            structure,
            self.num_rows,
            self._batch_size is not None,
            self._sharding,
            self._enter,
            numbers,
        )


class _Programs:
    """The compiled programs of equal stores. None communicates between devices.

    Args:
        leaves, structure: of an item as it is sent, as shapes.
        rows, batched, sharding, enter: see `DeviceStore`.
        numbers: the shape of the number of an item.
    """

    def __init__(
        self,
        leaves: tuple[jax.ShapeDtypeStruct, ...],
        structure: Any,
        rows: int,
        batched: bool,
        sharding: Sharding,
        enter: Enter | None,
        numbers: tuple[int, ...],
    ):
        self._sent = jax.tree.unflatten(structure, leaves)
        self._rows, self._batched, self._sharding = rows, batched, sharding
        self._enter, self._numbers = enter or (lambda items, numbers: items), numbers
        entered = jax.eval_shape(self._enter, *self._new(1))
        self._item = jax.tree.map(lambda x: _spec(x, 1), entered)
        self._mesh = AbstractMesh((), ())
        if isinstance(sharding, NamedSharding):
            self._mesh = sharding.mesh.abstract_mesh
        self._compiled: dict[tuple[str, int], Callable[..., Any]] = {}

    def allocate(self) -> Any:
        """An empty store."""

        def allocate():
            return jax.tree.map(
                lambda x: jnp.zeros((self._rows, *_in_row(x.shape)), x.dtype), self._item
            )

        return self._program(allocate, 0, lambda: ())()

    def place(self, size: int) -> Callable[..., Any]:
        """The program that overwrites rows (int32 [size]) of the store by items."""

        def place(stored, items, numbers, rows_K):
            return jax.tree.map(
                lambda leaf, x: _place(leaf, rows_K, x.reshape(size, *leaf.shape[1:])),
                stored,
                self._enter(items, numbers),
            )

        rows = jax.ShapeDtypeStruct((size,), np.int32)
        return self._program(place, size, lambda: (self._stored(), *self._new(size), rows))

    def gather(self, size: int) -> Callable[..., Any]:
        """The program that returns rows (int32 [size]) of the store as a batch, or as an item."""
        batch = (size,) if self._batched else ()

        def gather(stored, rows_N):
            return jax.tree.map(
                lambda leaf, x: _gather(leaf, rows_N).reshape(*batch, *x.shape), stored, self._item
            )

        rows = jax.ShapeDtypeStruct((size,), np.int32)
        return self._program(gather, size, lambda: (self._stored(), rows))

    def _new(self, size: int) -> tuple[Any, jax.ShapeDtypeStruct]:
        """The shapes of new items and their numbers."""
        shapes = jax.tree.map(lambda x: jax.ShapeDtypeStruct((size, *x.shape), x.dtype), self._sent)
        return shapes, jax.ShapeDtypeStruct((size, *self._numbers), np.uint32)

    def _stored(self) -> Any:
        return jax.tree.map(
            lambda x: jax.ShapeDtypeStruct((self._rows, *_in_row(x.shape)), x.dtype), self._item
        )

    def _program(
        self, function: Callable[..., Any], size: int, shapes: Callable[[], tuple[Any, ...]]
    ) -> Callable[..., Any]:
        key = function.__name__, size
        if key not in self._compiled:
            jitted = jax.jit(
                function,
                in_shardings=self._sharding,
                out_shardings=self._sharding,
                donate_argnums=0 if function.__name__ == "place" else (),
            )
            with use_abstract_mesh(self._mesh):  # in place of a mesh that the caller has set
                self._compiled[key] = jitted.lower(*shapes()).compile()
        return self._compiled[key]


_programs = functools.lru_cache(maxsize=32)(_Programs)


def _spec(x: Any, axes: int = 0) -> jax.ShapeDtypeStruct:
    """The shape after the first `axes` axes, and the dtype on a device."""
    return jax.ShapeDtypeStruct(x.shape[axes:], jax.dtypes.canonicalize_dtype(x.dtype))


# Items of so many elements and more keep their axes in the store.
_LARGE = 2**16


def _in_row(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The axes of an item in its row of the store.

    Small items are flat, since a TPU pads an image to tiles of 4 KiB. Large ones keep their axes,
    since a TPU would have to transpose them all for each batch.
    """
    return shape if math.prod(shape) >= _LARGE or not shape else (math.prod(shape),)


def _place(leaf: jax.Array, rows_K: jax.Array, items: jax.Array) -> jax.Array:
    """Overwrites rows of the store [rows, ...] by items [K, ...]."""
    tpu = _place_one_by_one if math.prod(leaf.shape[1:]) >= _LARGE else _scatter
    return jax.lax.platform_dependent(leaf, rows_K, items, tpu=tpu, default=_scatter)


def _gather(leaf: jax.Array, rows_N: jax.Array) -> jax.Array:
    """Rows of the store [rows, ...], as items [N, ...]."""
    tpu = _take_one_by_one if math.prod(leaf.shape[1:]) >= _LARGE else _take
    return jax.lax.platform_dependent(leaf, rows_N, tpu=tpu, default=_take)


def _scatter(leaf: jax.Array, rows_K: jax.Array, items: jax.Array) -> jax.Array:
    return leaf.at[rows_K].set(items, mode="drop", unique_indices=True)


def _take(leaf: jax.Array, rows_N: jax.Array) -> jax.Array:
    return leaf.at[rows_N].get(mode="promise_in_bounds")


# On a TPU a scatter or gather of large items copies the whole store, if it compiles at all. Slices
# are copied alone (results/step.md).


def _place_one_by_one(leaf: jax.Array, rows_K: jax.Array, items: jax.Array) -> jax.Array:
    def place_next(k, leaf):
        def put(leaf):
            return jax.lax.dynamic_update_slice_in_dim(leaf, _slice(items, k), rows_K[k], 0)

        return jax.lax.cond(rows_K[k] < len(leaf), put, lambda leaf: leaf, leaf)

    return jax.lax.fori_loop(0, len(rows_K), place_next, leaf)


def _take_one_by_one(leaf: jax.Array, rows_N: jax.Array) -> jax.Array:
    return jax.lax.map(lambda row: _slice(leaf, row)[0], rows_N)


def _slice(array: jax.Array, row: jax.Array) -> jax.Array:
    """[1, ...] of an array [n, ...]."""
    return jax.lax.dynamic_slice_in_dim(array, row, 1)
