"""Sends batches to a mesh of devices with the axes `data` and `model`, and splits parameters.

Batches are always split over `data`. Parameters, and the optimizer state with them, follow one of
three rules, by name and shape:

* replicated: every device holds all of them.
* fsdp: the largest divisible axis is split over `data` (ZeRO, Rajbhandari et al. 2020). The step
  gathers what it uses, so each device does the same arithmetic as with `replicated`.
* tensor: the layers of the Transformer are split over `model` (Megatron-LM, Shoeybi et al. 2019) by
  heads, hidden units, and vocabulary. The rest is replicated.
"""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from pipeline.map_datasets import Arrays, Batch
from runs.cli import InputError
from runs.progress import several

# A batch on the devices: (data, index_B, copy_B), see pipeline.map_datasets.Batch.
Rows = tuple[Any, jax.Array, jax.Array]

_ROW_BYTES = 4  # of the number of a row of the store

# fsdp does not split smaller arrays (norms, biases): gathering them costs more than it saves.
_MIN_SPLIT = 1024  # elements

# The axis that `tensor` splits, by the last two parts of a name. Kernels are [D, N, H] (q, k, v),
# [N, H, D] (out), [D, M] and [M, D] (the MLP's two); the biases of what is split are [N, H]
# and [M]; embeddings [V, D].
_SPLIT_LATER, _SPLIT_FIRST = ("q", "k", "v", "mlp_in"), ("out", "mlp_out")
_TENSOR_AXES: dict[tuple[str, ...], int] = {("embed", "embedding"): 0}
_TENSOR_AXES |= {(name, "kernel"): 1 for name in _SPLIT_LATER}
_TENSOR_AXES |= {(name, "bias"): 0 for name in _SPLIT_LATER}
_TENSOR_AXES |= {(name, "kernel"): 0 for name in _SPLIT_FIRST}


def make_mesh(data: int, model: int) -> Mesh:
    """A mesh of data x model devices; data = 0 uses all devices.

    Raises:
        InputError: there are too few devices, or the processes cannot share them in this way.
    """
    devices, local, processes = jax.devices(), jax.local_device_count(), jax.process_count()
    size = (data or len(devices) // model) * model
    uneven = not data and len(devices) % model  # some would be idle, unasked
    apart = processes > 1 and (size < len(devices) or (local % model and model % local))
    if not 0 < size <= len(devices) or uneven or apart:
        number, among = len(devices), "" if processes == 1 else f" in {processes} processes"
        some = f"data x model of up to {number}" if processes == 1 else "all of them"
        raise InputError(
            f"config.mesh is data={data}, model={model}, with {several(number, 'device')}{among}; "
            f"allowed: {some}, and with data=0 a model that divides {number}"
        )
    names, types = ("data", "model"), (AxisType.Auto, AxisType.Auto)
    shape = (size // model, model)
    if processes == 1:
        return jax.make_mesh(shape, names, axis_types=types, devices=devices[:size])
    # Processes in order along `data`, so that each holds one contiguous block of rows.
    devices = sorted(devices, key=lambda device: (device.process_index, device.id))
    return Mesh(np.asarray(devices).reshape(shape), names, axis_types=types)


def replicated(mesh: Mesh) -> NamedSharding:
    """Every device holds the whole array."""
    return NamedSharding(mesh, PartitionSpec())


def over_data(mesh: Mesh) -> NamedSharding:
    """The first axis is split over the mesh's `data` axis."""
    return NamedSharding(mesh, PartitionSpec("data"))


def local_rows(mesh: Mesh, batch_size: int) -> range:
    """The rows of a global batch that this process's devices hold, one contiguous block."""
    held = over_data(mesh).addressable_devices_indices_map((batch_size,)).values()
    bounds = [index[0].indices(batch_size) for index in held if index]
    return range(min(start for start, _, _ in bounds), max(stop for _, stop, _ in bounds))


def put_batch(mesh: Mesh, arrays: Any) -> Any:
    """Sends host arrays of this process's rows (`local_rows`), as global arrays split over
    `data`."""
    sharding = over_data(mesh)
    if mesh.size == 1:
        return jax.device_put(arrays, sharding)
    return jax.tree.map(
        lambda array: jax.make_array_from_process_local_data(sharding, np.asarray(array)), arrays
    )


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
        return put_batch(self._mesh, arrays)

    def _joined(self, *blocks: jax.Array) -> jax.Array:
        """The global array of the blocks of the streams held here, which are on their devices."""
        local = self._mesh.local_mesh.shape["data"]
        size = len(blocks) // local  # blocks per device
        parts = [blocks[i : i + size] for i in range(0, len(blocks), size)]
        joined = [part[0] if size == 1 else jnp.concatenate(part) for part in parts]
        length = sum(map(len, joined)) * self._mesh.shape["data"] // local
        shards = [shard.data for array in joined for shard in array.addressable_shards]
        return jax.make_array_from_single_device_arrays(
            (length, *blocks[0].shape[1:]), over_data(self._mesh), shards
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


def parameter_shardings(mesh: Mesh, choice: str, shapes: Any) -> Any:
    """The shardings of parameters, or of the optimizer's state for them.

    Args:
        mesh: to shard over.
        choice: a value of config.sharding.
        shapes: a pytree of arrays or shapes; the path of a leaf ends in the parameter's name.

    Raises:
        InputError: the choice does not fit the mesh or the network.
    """
    model = mesh.shape["model"]
    if (choice == "tensor") != (model > 1):
        raise InputError(
            f"config.sharding is {choice!r} with config.mesh.model={model}; allowed: 'tensor' with "
            "2 or more, over which it splits layers, and 'replicated' or 'fsdp' with 1"
        )

    def spec_of(path, leaf) -> PartitionSpec:
        # without the 'value' that NNX appends
        name = jax.tree_util.keystr(path, simple=True, separator="/").split("/")[:-1]
        axis, along = None, "data"
        if choice == "fsdp":
            axis = _largest_axis(leaf.shape, mesh.shape["data"])
        elif choice == "tensor":
            axis, along = _TENSOR_AXES.get(tuple(name[-2:])), "model"
            if axis is not None and leaf.shape[axis] % model:
                raise InputError(
                    f"config.mesh.model is {model}, which does not divide axis {axis} of "
                    f"{'/'.join(name)} {leaf.shape}; allowed: a divisor of {leaf.shape[axis]}"
                )
        return PartitionSpec() if axis is None else PartitionSpec(*[None] * axis, along)

    specs = jax.tree.map_with_path(spec_of, shapes)
    if choice == "tensor" and not any("model" in spec for spec in jax.tree.leaves(specs)):
        raise InputError(
            "config.sharding is 'tensor', which splits a Transformer's layers, and this network "
            "has none; allowed here: 'replicated', 'fsdp'"
        )
    return jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs)


def _largest_axis(shape: tuple[int, ...], parts: int) -> int | None:
    """The largest axis that `parts` divides, the last one of ties; None for a small array."""
    if math.prod(shape) < _MIN_SPLIT:
        return None
    divisible = [axis for axis, size in enumerate(shape) if size % parts == 0]
    return max(divisible, key=lambda axis: (shape[axis], axis), default=None)
