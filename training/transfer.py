"""Sends batches to the devices, or, with echo.placement=device, puts together what is there."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pipeline.map_datasets import Arrays, Batch
from training import sharding
from training.step import Rows

_ROW_BYTES = 4  # of the number of a row of the store


class Transfer:
    """Sends batches from the host to the devices.

    Args:
        mesh: batches are split over its axis `data`.
        stores: whether the devices store the echoed items: each is sent once, when it is read, and
            batches are gathered there.
        entering: an example as it is sent, each array [1, ...], if they augment it on entry.

    Attributes:
        bytes_sent: from this process to its devices. A stored example counts in the batch with its
            copy 0.
    """

    def __init__(self, mesh: Mesh, stores: bool = False, entering: Arrays | None = None):
        self._mesh, self._stores, self._entering = mesh, stores, entering
        self.bytes_sent = 0

    def put(self, batch: Batch) -> Rows:
        """(data, index_B, copy_B) of the whole mesh; index_B and copy_B are uint32."""
        numbers = batch.index.astype(np.uint32), batch.copy.astype(np.uint32)
        if not self._stores:
            return self._send((batch.data, *numbers))
        blocks = batch.data if isinstance(batch.data, list) else [batch.data]
        examples = (self._entering or blocks[0]).values()
        example_bytes = sum(x.size * _item_bytes(x) // len(x) for x in examples)
        new = int(np.count_nonzero(batch.copy == 0))
        self.bytes_sent += new * (example_bytes + _ROW_BYTES) + len(batch.copy) * _ROW_BYTES
        return jax.tree.map(self._joined, *blocks), *self._send(numbers)

    def _send(self, arrays: Any) -> Any:
        self.bytes_sent += sum(array.nbytes for array in jax.tree.leaves(arrays))
        return sharding.put_batch(self._mesh, arrays)

    def _joined(self, *blocks: jax.Array) -> jax.Array:
        """The global array of the blocks of the streams held here, which are on their devices."""
        local = self._mesh.local_mesh.shape["data"]
        size = len(blocks) // local  # blocks per device
        parts = [blocks[i : i + size] for i in range(0, len(blocks), size)]
        joined = [part[0] if size == 1 else jnp.concatenate(part) for part in parts]
        length = sum(map(len, joined)) * self._mesh.shape["data"] // local
        shards = [shard.data for array in joined for shard in array.addressable_shards]
        return jax.make_array_from_single_device_arrays(
            (length, *blocks[0].shape[1:]), sharding.over_data(self._mesh), shards
        )


def _item_bytes(array: Any) -> int:
    return jax.dtypes.canonicalize_dtype(array.dtype).itemsize


def stream_devices(mesh: Mesh, held: Sequence[int]) -> dict[int, NamedSharding]:
    """Where to store the items of each stream in `held`: on the devices of the mesh that train on
    its rows of each batch."""
    local = mesh.local_mesh
    axis, size = local.axis_names.index("data"), len(held) // local.shape["data"]
    return {
        stream: NamedSharding(
            Mesh(local.devices.take([number // size], axis), local.axis_names), PartitionSpec()
        )
        for number, stream in enumerate(held)
    }
