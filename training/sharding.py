"""Where arrays live: a mesh of devices (`data`, `model`), batches split over `data`."""

from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec


class MeshError(Exception):
    """There are not enough devices for the mesh that was asked for."""


def make_mesh(data: int, model: int) -> Mesh:
    """A mesh of data x model devices; data = 0 takes all that there are.

    Raises:
        MeshError: there are fewer devices than that.
    """
    devices = jax.devices()
    data = data or len(devices) // model
    if data < 1 or data * model > len(devices):
        raise MeshError(
            f"config.mesh is data={data}, model={model}; there are {len(devices)} devices, "
            "so allowed: products up to that, or data=0 for all"
        )
    return jax.make_mesh(
        (data, model),
        ("data", "model"),
        axis_types=(AxisType.Auto, AxisType.Auto),
        devices=devices[: data * model],
    )


def replicated(mesh: Mesh) -> NamedSharding:
    """Every device holds all of the array."""
    return NamedSharding(mesh, PartitionSpec())


def over_data(mesh: Mesh) -> NamedSharding:
    """The first axis is split over the mesh's `data` axis."""
    return NamedSharding(mesh, PartitionSpec("data"))


def put_batch(mesh: Mesh, arrays: Any) -> Any:
    """Host arrays with a leading batch axis, as global arrays split over `data`."""
    sharding = over_data(mesh)
    if mesh.size == 1:
        return jax.device_put(arrays, sharding)
    return jax.tree.map(
        lambda array: jax.make_array_from_process_local_data(sharding, np.asarray(array)), arrays
    )
