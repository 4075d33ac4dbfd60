"""The store that keeps echoed items on the devices (echo.placement=device)."""

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
from pipeline.map_datasets import Arrays
from training import check
from workloads.interface import Workload


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
        ConfigError: a store has more items than it can number.
    """
    size = accounting.store_size(config, held)
    if size.rows >= NOWHERE:
        raise check.ConfigError(
            f"config.echo.shuffle_buffer is {config.echo.shuffle_buffer:,} with "
            f"config.echo.placement='device', where a stream keeps {size.rows:,} items; allowed: "
            f"below {NOWHERE:,}, by a smaller buffer or more streams (config.echo.streams)"
        )
    after = config.echo.insertion.startswith("after")
    enters = after and config.augment_on == "device"
    item = first
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


@functools.lru_cache(maxsize=32)
def _augment_on_entry(workload: Workload, data_seed: int) -> Enter:
    """Augments fresh examples once, as copy 0. Cached, so that equal workloads share what has been
    compiled."""

    def enter(data: Any, index_m: jax.Array) -> Any:
        return workload.augment(data, np.uint32(data_seed), index_m, jnp.zeros_like(index_m))

    return enter
