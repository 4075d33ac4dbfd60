"""Sends batches to the devices, whole or, with echo.placement=device, each echoed item once."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from ml_collections import ConfigDict

from echo.device import DeviceStore, Enter
from echo.gather_plan import NOWHERE
from pipeline import accounting
from pipeline.map_datasets import Arrays, Batch
from runs.cli import InputError
from training import sharding
from training.step import Rows
from workloads.interface import Workload


class Transfer:
    """Sends batches from the host to the devices.

    Args:
        mesh: batches are split over its axis `data`.
        store: keeps the echoed items on the devices; None if the host does. Each item is then sent
            once, and batches are gathered there.

    Attributes:
        bytes_sent: from this process to its devices.
    """

    def __init__(self, mesh: Mesh, store: DeviceStore | None = None):
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


def make_store(
    config: ConfigDict, first: Arrays, workload: Workload, mesh: Mesh, held: range
) -> DeviceStore:
    """The store of a run with echo.placement=device.

    Args:
        config: a resolved configuration.
        first: the first decoded example, each array [1, ...].
        workload: of the run.
        mesh: items are split over its axis `data`.
        held: the streams that this process reads.

    Raises:
        InputError: a store has more items than it can number.
    """
    size = accounting.store_size(config, held)
    if size.rows >= NOWHERE:
        raise InputError(
            f"config.echo.shuffle_buffer is {config.echo.shuffle_buffer:,}, but a stream keeps at "
            f"most {NOWHERE - 1:,} items on a device; give a smaller buffer or more streams"
        )
    after, item = config.echo.insertion.startswith("after"), first
    enters = after and config.augment_on == "device"
    if after and not enters:
        zero = np.zeros(1, np.uint32)
        item = jax.eval_shape(workload.augment, first, zero[0], zero, zero)
    batches = config.echo.insertion == "after_batching"
    rows = (config.batch_size // config.echo.streams,) if batches else ()
    store = DeviceStore(
        {k: jax.ShapeDtypeStruct(rows + v.shape[1:], v.dtype) for k, v in item.items()},
        size.rows,
        size.round_size,
        streams=len(held),
        mesh=mesh,
        batches=batches,
        enter=_augment_on_entry(workload, config.seed.data) if enters else None,
    )
    store.allocate(size.outputs)
    return store


@functools.lru_cache(maxsize=32)  # so that equal workloads share what has been compiled
def _augment_on_entry(workload: Workload, data_seed: int) -> Enter:
    """Augments fresh examples once, as copy 0."""

    def enter(data: Any, index_m: jax.Array) -> Any:
        return workload.augment(data, np.uint32(data_seed), index_m, jnp.zeros_like(index_m))

    return enter
