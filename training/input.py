"""How batches reach the step: sent whole, or gathered from a store on the devices (placement)."""

import functools
import os
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from echo.device import DeviceStore, Enter
from pipeline import build, counts
from pipeline.sources import Source
from pipeline.stages import Batch, decode_records
from training import sharding
from training.check import ConfigError
from workloads.base import Workload


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


def device_store(
    config, source: Source, workload: Workload, mesh: Mesh, held: range
) -> DeviceStore | None:
    """The store of the sub-streams `held` here; None where echoing keeps nothing on the devices.

    Raises:
        ConfigError: it does not fit into the devices' memory.
        RecordError: the first record, which tells the size of items, cannot be decoded.
    """
    if config.echo.placement == "host" or config.echo.insertion == "none":
        return None
    outputs, rows, round_size = counts.store_size(config, held.start)
    enters = config.augment_on == "device" and config.echo.insertion.startswith("after")
    store = DeviceStore(
        _item(config, source, workload),
        rows,
        round_size,
        streams=len(held),
        mesh=mesh,
        batches=config.echo.insertion == "after_batching",
        enter=_first_copy(workload, config.seed.data) if enters else None,
    )
    _check_memory(store, mesh)
    store.allocate(outputs)
    return store


def _item(config, source: Source, workload: Workload) -> Any:
    """The shapes of what enters the stage, told by the first record."""
    zero = np.zeros(1, np.uint32)
    decode = build.training_decode(config, workload)
    arrays = decode_records(source, [0], decode, zero.astype(np.int64))
    if config.augment_on == "host" and config.echo.insertion.startswith("after"):
        arrays = jax.eval_shape(workload.augment, arrays, zero[0], zero, zero)
    rows = config.batch_size // config.echo.streams
    first = (rows,) if config.echo.insertion == "after_batching" else ()
    return {k: jax.ShapeDtypeStruct(first + v.shape[1:], v.dtype) for k, v in arrays.items()}


@functools.lru_cache(maxsize=32)
def _first_copy(workload: Workload, data_seed: int) -> Enter:
    """Augments fresh examples once, as their copy 0; equal workloads share it."""

    def enter(data, index_m):
        return workload.augment(data, np.uint32(data_seed), index_m, jnp.zeros_like(index_m))

    return enter


def _check_memory(store: DeviceStore, mesh: Mesh) -> None:
    available = min(_memory(device) for device in mesh.local_devices)
    if store.device_bytes > available:
        raise ConfigError(
            f"config.echo.placement is 'device', where {store.device_bytes // store.item_bytes:,} "
            f"items of {store.item_bytes:,} bytes take {store.device_bytes:,} of each device's "
            f"{available:,} bytes; lower config.echo.shuffle_buffer or the size of items, use "
            "more devices (config.mesh.data), or keep them on the host (config.echo.placement=host)"
        )


def _memory(device: jax.Device) -> int:
    """Bytes of memory that a device can use, parameters and activations among them."""
    stats = device.memory_stats() or {}
    if "bytes_limit" in stats:
        return stats["bytes_limit"]
    # A CPU device does not say; what the machine has is shared by all of them.
    try:
        with open("/proc/meminfo") as file:
            machine = 1024 * int(re.search(r"MemAvailable: +(\d+) kB", file.read())[1])
    except OSError:  # not Linux
        machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return machine // jax.local_device_count()
