"""Sends batches to the devices, or gathers them from a store there (echo.placement)."""

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
from training import memory, sharding
from training.check import ConfigError
from training.step import Rows
from workloads.interface import Workload


class Transfer:
    """Sends batches from the host to the devices.

    Args:
        mesh: batches are split over its axis `data`.

    Attributes:
        bytes_sent: from this process to its devices.
    """

    def __init__(self, mesh: Mesh):
        self._mesh = mesh
        self.bytes_sent = 0

    def put(self, batch: Batch) -> Rows:
        """(data, index_B, copy_B) of the whole mesh; index_B and copy_B are uint32."""
        return self._send((batch.data, *_numbers(batch)))

    def _send(self, arrays: Any) -> Any:
        self.bytes_sent += sum(array.nbytes for array in jax.tree.leaves(arrays))
        return sharding.put_batch(self._mesh, arrays)


class StoreTransfer(Transfer):
    """Sends each echoed item to the devices once, and gathers batches from a store there.

    Args:
        mesh: batches are split over its axis `data`.
        store: of the echoed items.
    """

    def __init__(self, mesh: Mesh, store: DeviceStore):
        super().__init__(mesh)
        self._store = store

    def put(self, batch: Batch) -> Rows:
        before = self._store.bytes_sent
        data = self._store.apply(batch.data)  # a gather plan
        self.bytes_sent += self._store.bytes_sent - before
        return data, *self._send(_numbers(batch))


def _numbers(batch: Batch) -> tuple[np.ndarray, np.ndarray]:
    return batch.index.astype(np.uint32), batch.copy.astype(np.uint32)


def make_transfer(
    config: ConfigDict, first: Arrays, workload: Workload, mesh: Mesh, held: range
) -> Transfer:
    """The transfer of a run, after a check that the memory suffices for what echoing keeps.

    Args:
        config: a resolved configuration.
        first: the first decoded example, each array [1, ...].
        workload: of the run.
        mesh: batches are split over its axis `data`.
        held: the streams that this process reads.

    Raises:
        ConfigError: echoed items do not fit into the memory of the devices or of this machine.
    """
    if config.echo.insertion == "none":
        return Transfer(mesh)
    item = _item(config, first, workload)
    if config.echo.placement == "host":
        memory.check_host_store(config, held, memory.nbytes(item))
        return Transfer(mesh)
    store = _checked_store(config, workload, mesh, held, item)
    memory.check_host_store(config, held, item_bytes=0)
    store.allocate(accounting.store_size(config, held).outputs)
    return StoreTransfer(mesh, store)


def _checked_store(
    config: ConfigDict, workload: Workload, mesh: Mesh, held: range, item: Any
) -> DeviceStore:
    """The store of the streams `held`, not allocated yet."""
    size = accounting.store_size(config, held)
    enters = config.augment_on == "device" and config.echo.insertion.startswith("after")
    if size.rows >= NOWHERE:
        raise ConfigError(
            f"config.echo.shuffle_buffer is {config.echo.shuffle_buffer:,} with "
            f"config.echo.placement='device', where a stream keeps {size.rows:,} items; allowed: "
            f"below {NOWHERE:,}, by a smaller buffer or more streams (config.echo.streams)"
        )
    store = DeviceStore(
        item,
        size.rows,
        size.round_size,
        streams=len(held),
        mesh=mesh,
        batches=config.echo.insertion == "after_batching",
        enter=_augment_on_entry(workload, config.seed.data) if enters else None,
    )
    available = memory.of_each_device(mesh)
    if store.device_bytes > available:
        raise ConfigError(
            f"config.echo.placement is 'device', where {store.device_bytes // store.item_bytes:,} "
            f"items of {store.item_bytes:,} bytes take {store.device_bytes:,} of each device's "
            f"{available:,} bytes; {memory.smaller_store(config)}, use more devices "
            "(config.mesh.data), or keep them on the host (config.echo.placement=host)"
        )
    return store


def _item(config: ConfigDict, first: Arrays, workload: Workload) -> Any:
    """The shapes of an item that enters the echo stage."""
    after = config.echo.insertion.startswith("after")
    arrays = memory.example_sent(config, first, workload) if after else first
    rows = config.batch_size // config.echo.streams
    lead = (rows,) if config.echo.insertion == "after_batching" else ()
    return {k: jax.ShapeDtypeStruct(lead + v.shape[1:], v.dtype) for k, v in arrays.items()}


@functools.lru_cache(maxsize=32)
def _augment_on_entry(workload: Workload, data_seed: int) -> Enter:
    """Augments fresh examples once, as copy 0. Cached, so that equal workloads share what has been
    compiled."""

    def enter(data: Any, index_m: jax.Array) -> Any:
        return workload.augment(data, np.uint32(data_seed), index_m, jnp.zeros_like(index_m))

    return enter
