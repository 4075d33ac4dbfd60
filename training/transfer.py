"""Sends batches to the devices."""

from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.sharding import Mesh

from pipeline.map_datasets import Batch
from training import sharding
from training.step import Rows

if TYPE_CHECKING:
    from echo.device import DeviceStore


class Transfer:
    """Sends batches from the host to the devices.

    Args:
        mesh: batches are split over its axis `data`.
        store: keeps the echoed items on the devices; None if the host does. Each item is then sent
            once, and batches are gathered there.

    Attributes:
        bytes_sent: from this process to its devices.
    """

    def __init__(self, mesh: Mesh, store: "DeviceStore | None" = None):
        self._mesh, self._store = mesh, store
        self.bytes_sent = 0

    def put(self, batch: Batch) -> Rows:
        """(data, index_B, copy_B) of the whole mesh; index_B and copy_B are uint32."""
        numbers = batch.index.astype(np.uint32), batch.copy.astype(np.uint32)
        if self._store is None:
            return self._send((batch.data, *numbers))
        before = self._store.bytes_sent
        data = self._store.apply(batch.data)  # a gather plan
        self.bytes_sent += self._store.bytes_sent - before
        return data, *self._send(numbers)

    def _send(self, arrays: Any) -> Any:
        self.bytes_sent += sum(array.nbytes for array in jax.tree.leaves(arrays))
        return sharding.put_batch(self._mesh, arrays)
