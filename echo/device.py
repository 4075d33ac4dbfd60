"""A store of fresh items in accelerator memory, which applies the plans of the echo stage.

    stage = echo.EchoIterDataset(examples, factor=4, batch_size=128, placement="device")
    store = echo.DeviceStore(item, stage.store_rows(len(examples)), stage.round_size)
    for plan in stage:
        batch = store.apply(plan)

Each fresh item is sent once and stored; each batch is gathered from the stored items. Over a mesh
the store is split like the batches: the device that holds a stream's rows of each batch also holds
the stream's items, so no data moves between devices.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from echo.gather_plan import NOWHERE, GatherPlan
from echo.spec import checked_integer
from echo.stores import Structure

AXIS = "data"  # of the mesh

# (examples with leaves [m, ...], their numbers uint32 [m]) -> the examples to store
Enter = Callable[[Any, jax.Array], Any]


class DeviceStore:
    """The pending items of one or several streams, and the batches gathered from them.

    Args:
        item: an item as it is sent: nested mappings, lists, and tuples of anything with a shape and
            a dtype. Mappings become dicts. Unless `jax_enable_x64` is set, 64-bit leaves are stored
            in 32 bits: floats are rounded, and integers must fit.
        capacity: items per stream (`EchoIterDataset.store_rows`).
        round_size: new items in each round (`EchoIterDataset.round_size`).
        streams: the number of streams, whose plans `gather_plan.joined` concatenates; a multiple of
            the devices that this process has along the mesh axis `data`.
        mesh: None uses one device. Each process stores the items of its own streams; the batches
            are global.
        batches: whether an item is itself a batch, with examples along a first axis.
        enter: applied on the device to new items before they are stored. It must be hashable; equal
            functions share compiled programs.

    Attributes:
        bytes_sent: bytes sent from this process's host to its devices so far, including indices and
            padding.
    """

    def __init__(
        self,
        item: Any,
        capacity: int,
        round_size: int,
        *,
        streams: int = 1,
        mesh: Mesh | None = None,
        batches: bool = False,
        enter: Enter | None = None,
    ):
        capacity = checked_integer("capacity", capacity, 1, NOWHERE - 1)
        round_size = checked_integer("round_size", round_size, 1, NOWHERE - 1)
        streams = checked_integer("streams", streams, 1, NOWHERE - 1)
        if mesh is not None and AXIS not in getattr(mesh, "axis_names", ()):
            raise ValueError(f"mesh is {mesh}; allowed: a jax.sharding.Mesh with an axis {AXIS!r}")
        self._mesh = mesh or Mesh(np.asarray(jax.local_devices()[:1]), (AXIS,))
        # Programs run only on this process's devices, since processes differ in their numbers of
        # rounds.
        local = self._local_mesh = self._mesh.local_mesh
        if streams % local.shape[AXIS]:
            raise ValueError(
                f"streams is {streams}, which {local.shape[AXIS]} devices cannot share evenly; "
                f"allowed: a multiple of {local.shape[AXIS]}"
            )
        self._streams, self._capacity, self._round_size = streams, capacity, round_size
        self._sharding = NamedSharding(local, PartitionSpec(AXIS))
        self._batches, self._enter = batches, enter
        structure = Structure(item)
        self._sent_item = structure.build([_spec(leaf) for leaf in structure.leaves(item)])
        self._stored_item = self._entered_item()
        shapes = tuple(leaf.shape for leaf in jax.tree.leaves(self._stored_item))
        self._place, self._gather = _programs(local, shapes, batches, enter)
        self._leaves: Any = None  # of the store, [streams, capacity, *_in_row]
        self.bytes_sent = 0

    def allocate(self, outputs: int) -> None:
        """Reserves the memory, and compiles for plans with `outputs` per stream.

        Otherwise the first `apply` does so. The store is empty afterwards.
        """

        def zeros(x):
            return jnp.zeros((self._streams, self._capacity, *_in_row(x.shape)), x.dtype)

        with jax.set_mesh(self._local_mesh):
            empty = jax.jit(
                lambda: jax.tree.map(zeros, self._stored_item), out_shardings=self._sharding
            )
            self._leaves = empty()
        jax.block_until_ready(self.apply(self._empty_plan(outputs)))
        self.bytes_sent = 0

    def apply(self, plan: GatherPlan) -> Any:
        """Places the new items of a plan, then gathers its output.

        Returns:
            A batch of B examples over the whole mesh, leaves [B, ...] split over `data`.

        Raises:
            ValueError: the plan is of a stage with other items, more rows, or another number of
                streams.
            TypeError: it is not a plan.
        """
        self._check(plan)
        if self._leaves is None:
            self.allocate(plan.gather.shape[1])
        with jax.set_mesh(self._local_mesh):  # in place of a mesh that the caller has set
            for number, rows in enumerate(plan.rows):
                items = jax.tree.map(lambda leaf, i=number: leaf[i], plan.items)
                fresh = plan.fresh[number].astype(np.uint32) if self._enter else None
                self._leaves = self._place(self._leaves, *self._put((items, rows, fresh)))
            gathered = self._gather(self._leaves, self._put(plan.gather))
        return jax.tree.map(self._global, gathered)

    def _check(self, plan: GatherPlan) -> None:
        """Refuses what the programs would convert or drop without an error, and what is no plan."""
        if not isinstance(plan, GatherPlan):
            raise TypeError(
                f"plan has type {type(plan).__name__}; allowed: a GatherPlan, which a stage with "
                "placement='device' emits (with annotate=True, as the item of Echoed)"
            )
        items = jax.tree.map(lambda x: _spec(x, axes=3), plan.items)
        rows = int(plan.gather.max(initial=-1)) + 1
        for name, has, wants, fits in (
            ("streams", len(plan.gather), self._streams, len(plan.gather) == self._streams),
            ("items", items, self._sent_item, items == self._sent_item),
            ("rows", rows, self._capacity, rows <= self._capacity),
        ):
            if not fits:
                raise ValueError(
                    f"the plan has {name} {has}, the store {wants}; make the store from the stage "
                    "that makes the plans: an item of its parent, its store_rows, its streams"
                )

    def _put(self, arrays: Any) -> Any:
        arrays = jax.device_put(arrays, self._sharding)
        self.bytes_sent += sum(array.nbytes for array in jax.tree.leaves(arrays))
        return arrays

    def _global(self, array: jax.Array) -> jax.Array:
        """The array over the whole mesh of which `array` is this process's part."""
        if self._local_mesh == self._mesh:
            return array
        processes = self._mesh.shape[AXIS] // self._local_mesh.shape[AXIS]
        return jax.make_array_from_single_device_arrays(
            (processes * len(array), *array.shape[1:]),
            NamedSharding(self._mesh, PartitionSpec(AXIS)),
            [shard.data for shard in array.addressable_shards],
        )

    def _entered_item(self) -> Any:
        """The shapes of an item after `enter`."""
        if self._enter is None:
            return self._sent_item
        empty = self._empty_plan(1)
        first = jax.tree.map(lambda x: x[0], (empty.items, empty.fresh.astype(np.uint32)))
        stored = jax.eval_shape(functools.partial(_entered, self._enter), *first)
        return jax.tree.map(lambda x: _spec(x, axes=2), stored)

    def _empty_plan(self, outputs: int) -> GatherPlan:
        """A plan with one round that contains only padding."""
        shape = (1, self._streams, self._round_size)
        rows = np.broadcast_to(
            np.arange(NOWHERE, NOWHERE + self._round_size, dtype=np.int32), shape
        )
        examples = jax.tree.leaves(self._sent_item)[0].shape[:1] if self._batches else ()
        items = jax.tree.map(lambda x: np.zeros(shape + x.shape, x.dtype), self._sent_item)
        gather = np.zeros((self._streams, outputs), np.int32)
        return GatherPlan(items, rows, np.zeros(shape + examples, np.int64), gather)


@functools.lru_cache(maxsize=8)
def _programs(mesh: Mesh, shapes: tuple, batches: bool, enter: Enter | None):
    """(place, gather) over the mesh, for stored items whose leaves have these shapes.

    Neither program communicates.
    """
    merged = 1 if batches else 0  # axes of an item that a batch joins with those of the outputs

    def place(stored, items, rows, fresh):
        items = _entered(enter, items, fresh) if enter else items
        return jax.tree.map(
            lambda leaf, x: _place(leaf, rows, x.reshape(*rows.shape, *leaf.shape[2:])),
            stored,
            items,
        )

    def gather(stored, rows):
        def whole(leaf, shape):
            length = rows.size * math.prod(shape[:merged])
            return _gather(leaf, rows).reshape(length, *shape[merged:])

        leaves, structure = jax.tree.flatten(stored)
        return jax.tree.unflatten(structure, map(whole, leaves, shapes))

    split = PartitionSpec(AXIS)
    over = functools.partial(jax.shard_map, mesh=mesh, in_specs=split, out_specs=split)
    return jax.jit(over(place), donate_argnums=0), jax.jit(over(gather))


def _entered(enter: Enter, items: Any, fresh: jax.Array) -> Any:
    """Applies `enter` to items whose first axes are those of `fresh`."""
    axes = fresh.ndim
    examples = jax.tree.map(lambda x: x.reshape(fresh.size, *x.shape[axes:]), items)
    entered = enter(examples, fresh.reshape(-1))
    return jax.tree.map(lambda x: x.reshape(*fresh.shape, *x.shape[1:]), entered)


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


def _place(leaf: jax.Array, rows_SxK: jax.Array, items: jax.Array) -> jax.Array:
    """Overwrites rows of the store [S, capacity, ...] by items [S, K, ...]."""
    tpu = _place_one_by_one if math.prod(leaf.shape[2:]) >= _LARGE else _scatter
    return jax.lax.platform_dependent(leaf, rows_SxK, items, tpu=tpu, default=_scatter)


def _gather(leaf: jax.Array, rows_SxN: jax.Array) -> jax.Array:
    """Rows of the store [S, capacity, ...], as items [S, N, ...]."""
    tpu = _take_one_by_one if math.prod(leaf.shape[2:]) >= _LARGE else _take
    return jax.lax.platform_dependent(leaf, rows_SxN, tpu=tpu, default=_take)


def _scatter(leaf: jax.Array, rows_SxK: jax.Array, items: jax.Array) -> jax.Array:
    def put(leaf, rows_K, items):
        return leaf.at[rows_K].set(items, mode="drop", unique_indices=True)

    return jax.vmap(put)(leaf, rows_SxK, items)


def _take(leaf: jax.Array, rows_SxN: jax.Array) -> jax.Array:
    return jax.vmap(lambda leaf, r: leaf.at[r].get(mode="promise_in_bounds"))(leaf, rows_SxN)


# On a TPU a scatter or gather of large items copies the whole store, if it compiles at all. Slices
# are copied alone (results/step.md).


def _place_one_by_one(leaf: jax.Array, rows_SxK: jax.Array, items: jax.Array) -> jax.Array:
    streams, round_size = rows_SxK.shape

    def place_next(number, leaf):
        stream, k = number // round_size, number % round_size
        row, item = rows_SxK[stream, k], _slice(items, stream, k)

        def put(leaf):
            start = (stream, row, *[0] * (leaf.ndim - 2))
            return jax.lax.dynamic_update_slice(leaf, item, start)

        return jax.lax.cond(row < leaf.shape[1], put, lambda leaf: leaf, leaf)  # else padding

    return jax.lax.fori_loop(0, streams * round_size, place_next, leaf)


def _take_one_by_one(leaf: jax.Array, rows_SxN: jax.Array) -> jax.Array:
    streams = jnp.broadcast_to(jnp.arange(len(rows_SxN))[:, None], rows_SxN.shape)
    places = (streams.reshape(-1), rows_SxN.reshape(-1))
    items = jax.lax.map(lambda place: _slice(leaf, *place)[0, 0], places)
    return items.reshape(*rows_SxN.shape, *leaf.shape[2:])


def _slice(array: jax.Array, stream: jax.Array, row: jax.Array) -> jax.Array:
    """[1, 1, ...] of an array [S, n, ...]."""
    start = (stream, row, *[0] * (array.ndim - 2))
    return jax.lax.dynamic_slice(array, start, (1, 1, *array.shape[2:]))
