"""A store of fresh items in accelerator memory, which follows the orders of the echo stage.

    stage = echo.EchoIterDataset(examples, factor=4, batch_size=128, placement="device")
    store = echo.DeviceStore(item, stage.store_rows(len(examples)), stage.round_size)
    for order in stage:
        batch = store.follow(order)

Each fresh item is sent once and kept; each batch is gathered from what is there. Over a mesh the
store is split as batches are: the device that holds a sub-stream's rows of each batch holds its
items too, so that nothing crosses devices.
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

AXIS = "data"  # of the mesh

# (examples with leaves [m, ...], their numbers uint32 [m]) -> examples as they are stored
Enter = Callable[[Any, jax.Array], Any]


class DeviceStore:
    """The pending items of several sub-streams, and the batches gathered from them.

    Args:
        item: an item as it is sent, a pytree of anything with a shape and a dtype.
        capacity: items a sub-stream (`EchoIterDataset.store_rows`).
        round_size: new items a round (`EchoIterDataset.round_size`).
        streams: sub-streams whose orders come joined; a multiple of the devices that this process
            has along the mesh's axis `data`.
        mesh: of devices; None is one device. Of several processes each has the store of its own
            sub-streams, and the batches are of all.
        batches: whether an item is a batch itself, with examples along a first axis.
        enter: applied on the device to new items before they are stored. Hashable; equal ones share
            what has been compiled.

    Raises:
        ValueError: a count or a mesh that is not allowed.
        TypeError: an item with a leaf that has no shape and dtype.

    Attributes:
        bytes_sent: from this process's host to its devices so far, indices and what rounds are
            filled up with included.
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
        # Programs run on this process's devices alone: how many rounds its sub-streams have to
        # place is its own affair.
        local = self._mesh.local_mesh
        if streams % local.shape[AXIS]:
            raise ValueError(
                f"streams is {streams}, which {local.shape[AXIS]} devices cannot share evenly; "
                f"allowed: a multiple of {local.shape[AXIS]}"
            )
        self._streams, self._capacity, self._round_size = streams, capacity, round_size
        self._sharding = NamedSharding(local, PartitionSpec(AXIS))
        self._batches, self._enter = batches, enter
        self._sent = jax.tree.map(_spec, item)
        self._stored = self._stored_item()
        shapes = tuple(leaf.shape for leaf in jax.tree.leaves(self._stored))
        self._place, self._gather = _programs(local, shapes, batches, enter)
        self._leaves: Any = None  # of the store, [streams, capacity, elements]
        self.bytes_sent = 0

    @property
    def item_bytes(self) -> int:
        """Bytes of one stored item."""
        return sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(self._stored))

    @property
    def device_bytes(self) -> int:
        """Bytes that the store takes of each device's memory."""
        return self._streams // self._sharding.mesh.shape[AXIS] * self._capacity * self.item_bytes

    def allocate(self, outputs: int) -> None:
        """Reserves the memory, and compiles for orders of `outputs` a sub-stream.

        Without it the first order does, which then takes longer. The store is empty afterwards.
        """

        def empty():
            shape = (self._streams, self._capacity)
            return jax.tree.map(lambda x: jnp.zeros(_flat(shape, x.shape), x.dtype), self._stored)

        self._leaves = jax.jit(empty, out_shardings=self._sharding)()
        jax.block_until_ready(self.follow(self._nothing(outputs)))
        self.bytes_sent = 0

    def follow(self, order: GatherPlan) -> Any:
        """Places the order's new items, then gathers what it shows.

        Returns:
            B examples over the whole mesh, leaves [B, ...] split over `data`.
        """
        if self._leaves is None:
            self.allocate(order.gather.shape[1])
        for number, rows in enumerate(order.rows):
            items = jax.tree.map(lambda leaf, i=number: leaf[i], order.items)
            fresh = order.fresh[number].astype(np.uint32) if self._enter else None
            self._leaves = self._place(self._leaves, *self._put((items, rows, fresh)))
        return jax.tree.map(self._whole, self._gather(self._leaves, self._put(order.gather)))

    def _put(self, arrays: Any) -> Any:
        arrays = jax.device_put(arrays, self._sharding)
        self.bytes_sent += sum(array.nbytes for array in jax.tree.leaves(arrays))
        return arrays

    def _whole(self, array: jax.Array) -> jax.Array:
        """This process's part of an array as one over the whole mesh."""
        if self._sharding.mesh == self._mesh:
            return array
        processes = self._mesh.shape[AXIS] // self._sharding.mesh.shape[AXIS]
        return jax.make_array_from_single_device_arrays(
            (processes * len(array), *array.shape[1:]),
            NamedSharding(self._mesh, PartitionSpec(AXIS)),
            [shard.data for shard in array.addressable_shards],
        )

    def _stored_item(self) -> Any:
        """What `enter` makes of the shapes of an item."""
        if self._enter is None:
            return self._sent
        nothing = self._nothing(1)
        first = jax.tree.map(
            lambda x: _spec(x[0]), (nothing.items, nothing.fresh.astype(np.uint32))
        )
        stored = jax.eval_shape(functools.partial(_entered, self._enter), *first)
        return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[2:], x.dtype), stored)

    def _nothing(self, outputs: int) -> GatherPlan:
        """An order of one round of no items."""
        shape = (1, self._streams, self._round_size)
        rows = np.broadcast_to(
            np.arange(NOWHERE, NOWHERE + self._round_size, dtype=np.int32), shape
        )
        examples = jax.tree.leaves(self._sent)[0].shape[:1] if self._batches else ()
        items = jax.tree.map(lambda x: np.zeros(shape + x.shape, x.dtype), self._sent)
        gather = np.zeros((self._streams, outputs), np.int32)
        return GatherPlan(items, rows, np.zeros(shape + examples, np.int64), gather)


@functools.lru_cache(maxsize=8)
def _programs(mesh: Mesh, shapes: tuple, batches: bool, enter: Enter | None):
    """(place, gather) over the mesh, for stored items of these shapes, by leaf.

    An item lies flat in its row: on some accelerators, what ends in small axes takes many times its
    bytes. Neither communicates.
    """
    merged = 3 if batches else 2  # axes of the gathered examples: streams, outputs, their examples

    def place(stored, items, rows, fresh):
        items = _entered(enter, items, fresh) if enter else items
        put = jax.vmap(lambda leaf, r, x: leaf.at[r].set(x, mode="drop", unique_indices=True))
        return jax.tree.map(
            lambda leaf, x: put(leaf, rows, x.reshape(_flat(rows.shape, x.shape[2:]))),
            stored,
            items,
        )

    def gather(stored, rows):
        take = jax.vmap(lambda leaf, r: leaf.at[r].get(mode="promise_in_bounds"))
        leaves, structure = jax.tree.flatten(stored)
        gathered = [
            take(leaf, rows).reshape(-1, *shape[merged - 2 :])
            for leaf, shape in zip(leaves, shapes, strict=True)
        ]
        return jax.tree.unflatten(structure, gathered)

    split = PartitionSpec(AXIS)
    over = functools.partial(jax.shard_map, mesh=mesh, in_specs=split, out_specs=split)
    return jax.jit(over(place), donate_argnums=0), jax.jit(over(gather))


def _entered(enter: Enter, items: Any, fresh: jax.Array) -> Any:
    """`enter` of examples whose first axes are those of `fresh`."""
    axes = fresh.ndim
    examples = jax.tree.map(lambda x: x.reshape(-1, *x.shape[axes:]), items)
    entered = enter(examples, fresh.reshape(-1))
    return jax.tree.map(lambda x: x.reshape(*fresh.shape, *x.shape[1:]), entered)


def _spec(x: Any) -> jax.ShapeDtypeStruct:
    if not (hasattr(x, "shape") and hasattr(x, "dtype")):
        raise TypeError(f"item has a leaf {x!r}; allowed: leaves with a shape and a dtype")
    return jax.ShapeDtypeStruct(x.shape, jax.dtypes.canonicalize_dtype(x.dtype))


def _flat(first: tuple[int, ...], shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of items that lie flat behind the axes `first`."""
    return (*first, math.prod(shape)) if shape else first
