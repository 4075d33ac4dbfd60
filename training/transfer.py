"""How batches reach the step: sent whole, or gathered from a store on the devices (placement)."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from echo.device import DeviceStore, Enter
from echo.gather_plan import NOWHERE
from pipeline import accounting
from pipeline.map_datasets import Arrays, Batch
from training import footprint, memory, sharding
from training.check import ConfigError
from workloads.interface import Workload


class Input:
    """Makes a step's arguments of the pipeline's batches.

    Args:
        mesh: over whose axis `data` batches are split.
        store: keeps echoed items on the devices, None where the pipeline does on the host.

    Attributes:
        bytes_sent: from this process's host to its devices.
    """

    def __init__(self, mesh: Mesh, store: DeviceStore | None):
        self._mesh, self._store = mesh, store
        self.bytes_sent = 0

    def put(self, batch: Batch) -> tuple[Any, jax.Array, jax.Array]:
        """(data, index_B, copy_B) over the whole mesh, the two uint32."""
        rows = (batch.index.astype(np.uint32), batch.copy.astype(np.uint32))
        if self._store is None:
            return self._sent((batch.data, *rows))
        before = self._store.bytes_sent
        data = self._store.follow(batch.data)
        self.bytes_sent += self._store.bytes_sent - before
        return data, *self._sent(rows)

    def _sent(self, arrays: Any) -> Any:
        self.bytes_sent += sum(array.nbytes for array in jax.tree.leaves(arrays))
        return sharding.put_batch(self._mesh, arrays)


def make_input(config, first: Arrays, workload: Workload, mesh: Mesh, held: range) -> Input:
    """The input of a step, with a store for echoed items where the devices keep them.

    Args:
        first: the first example as it is decoded, each array [1, ...], for the size of items.
        held: the streams that this process reads.

    Raises:
        ConfigError: what echoing keeps does not fit into the devices' or this machine's memory.
    """
    if config.echo.insertion == "none":
        return Input(mesh, None)
    item = _item(config, first, workload)
    on_host = config.echo.placement == "host"
    store = None if on_host else _checked_store(config, workload, mesh, held, item)
    _check_host(config, held, footprint.nbytes(item) if on_host else 0)
    if store:
        store.allocate(accounting.store_size(config, held).outputs)
    return Input(mesh, store)


def _checked_store(config, workload: Workload, mesh: Mesh, held: range, item: Any) -> DeviceStore:
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
        enter=_first_copy(workload, config.seed.data) if enters else None,
    )
    available = min(memory.of_device(device) for device in mesh.local_devices)
    if store.device_bytes > available:
        raise ConfigError(
            f"config.echo.placement is 'device', where {store.device_bytes // store.item_bytes:,} "
            f"items of {store.item_bytes:,} bytes take {store.device_bytes:,} of each device's "
            f"{available:,} bytes; lower config.echo.shuffle_buffer or the size of items, use "
            "more devices (config.mesh.data), or keep them on the host (config.echo.placement=host)"
        )
    return store


def _check_host(config, held: range, item_bytes: int) -> None:
    """Checks that this machine's memory holds the stores of the streams `held`.

    Other processes of the machine are not counted: neither those of the same run nor a sweep's.
    """
    size, available = accounting.host_size(config, held), memory.of_machine()
    needed = size.bytes(item_bytes)
    if needed > available:
        raise ConfigError(
            f"config.echo.shuffle_buffer is {config.echo.shuffle_buffer:,}, where echoing keeps "
            f"{size.rows:,} items of {item_bytes:,} bytes on the host, {needed:,} bytes with their "
            f"numbers, of {available:,} available; lower config.echo.shuffle_buffer or the size of "
            "items"
        )


def _item(config, first: Arrays, workload: Workload) -> Any:
    """The shapes of what enters the stage."""
    after = config.echo.insertion.startswith("after")
    arrays = footprint.example_sent(config, first, workload) if after else first
    rows = config.batch_size // config.echo.streams
    lead = (rows,) if config.echo.insertion == "after_batching" else ()
    return {k: jax.ShapeDtypeStruct(lead + v.shape[1:], v.dtype) for k, v in arrays.items()}


@functools.lru_cache(maxsize=32)
def _first_copy(workload: Workload, data_seed: int) -> Enter:
    """Augments fresh examples once, as their copy 0; equal workloads share it."""

    def enter(data, index_m):
        return workload.augment(data, np.uint32(data_seed), index_m, jnp.zeros_like(index_m))

    return enter
