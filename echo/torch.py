"""What the library knows about PyTorch: copies of its tensors, and the samplers of its loaders.

PyTorch is not imported: where it is not loaded, no item holds a tensor of it.
"""

import copy
import sys
import warnings
from typing import Any


def copied(item: Any, fresh: int) -> Any:
    """A copy of fresh item number `fresh`; TypeError if it cannot be copied."""
    try:
        return _copied(item)
    except Exception as error:
        raise TypeError(
            f"fresh item {fresh}, of type {type(item).__name__}, cannot be copied ({error}); yield "
            "arrays, detached tensors, or plain Python objects"
        ) from error


def _copied(item: Any) -> Any:
    """What `copy.deepcopy` returns, but a tensor of PyTorch takes only its own bytes.

    `copy.deepcopy` copies all the memory that a tensor views: for a row of a `TensorDataset`, the
    data set. Tensors are found in dicts, lists, and tuples.
    """
    torch: Any = sys.modules.get("torch")
    if not hasattr(torch, "Tensor"):  # a thread may be importing torch
        return copy.deepcopy(item)
    if type(item) is dict:
        return {key: _copied(value) for key, value in item.items()}
    if type(item) in (list, tuple):
        return type(item)(map(_copied, item))
    if hasattr(item, "_make") and not getattr(item, "__dict__", None):  # a plain named tuple
        return type(item)._make(map(_copied, item))
    plain = type(item) is torch.Tensor and item.layout is torch.strided and not item.is_quantized
    if not plain or not item.is_leaf or item.grad is not None:  # deepcopy has rules for these
        return copy.deepcopy(item)
    if item.untyped_storage().nbytes() <= item.nbytes:  # such as an expanded one
        return copy.deepcopy(item)
    return torch.empty_like(item).copy_(item.detach()).requires_grad_(item.requires_grad)


def register(iterable: type) -> None:
    """Lets PyTorch's loaders treat a class as an IterableDataset, if torch is imported."""
    if data := sys.modules.get("torch.utils.data"):
        data.IterableDataset.register(iterable)


def check_worker(iterable: Any) -> None:
    """Refuses to read `iterable` in a worker process of a DataLoader (RuntimeError), if each of
    several workers would read all of it, or it would start workers of its own."""
    data: Any = sys.modules.get("torch.utils.data")
    worker = data and data.get_worker_info()
    if worker is None:
        return
    starts_workers = getattr(iterable, "num_workers", 0) > 0
    source = iterable.dataset if isinstance(iterable, data.DataLoader) else iterable
    takes_share = worker.num_workers == 1 or isinstance(source, data.IterableDataset)
    if starts_workers or not takes_share:
        raise RuntimeError(
            f"each of {worker.num_workers} worker(s) of a DataLoader would read all of a "
            f"{type(iterable).__name__}, or start workers of its own; set num_workers=0 there, and "
            "give workers to the DataLoader inside echo_iterable, or echo an IterableDataset that "
            "takes its share of each worker"
        )


def warn_unprepared(iterable: Any) -> None:
    """Warns if each process of Accelerate would read all of a DataLoader: `prepare` returns an
    echoed one as it is."""
    state, loaders = map(sys.modules.get, ("accelerate.state", "accelerate.data_loader"))
    data: Any = sys.modules.get("torch.utils.data")
    if not (state and loaders and data and isinstance(iterable, data.DataLoader)):
        return
    shared = state.is_initialized() and state.PartialState().num_processes > 1
    prepared = isinstance(iterable, loaders.DataLoaderStateMixin) or parts_with_epochs(iterable)
    if shared and not prepared and not isinstance(iterable.dataset, data.IterableDataset):
        warnings.warn(
            "each process of Accelerate reads all of the DataLoader that is echoed; echo what "
            "prepare returns: echo.echo_iterable(accelerator.prepare(loader), ...)",
            stacklevel=2,
        )


def warn_unseeded(iterable: Any) -> None:
    """Warns if a loader without a state draws a new order each time that it is read."""
    sampler = getattr(iterable, "sampler", iterable)
    sampler = getattr(getattr(iterable, "batch_sampler", None), "sampler", sampler)
    if getattr(sampler, "generator", iterable) is None:
        warnings.warn(
            "a DataLoader that shuffles without a generator is read again from its start in "
            "another order, so some examples are lost and others repeated; give it "
            "generator=torch.Generator().manual_seed(epoch), seeded so before each pass",
            stacklevel=3,
        )


def parts_with_epochs(iterable: Any) -> list[Any]:
    """What has a `set_epoch`: the iterable, and what samples for a PyTorch loader."""
    batch_sampler = getattr(iterable, "batch_sampler", None)
    samplers = getattr(iterable, "sampler", None), getattr(batch_sampler, "sampler", None)
    parts = {id(part): part for part in (iterable, batch_sampler, *samplers)}
    return [part for part in parts.values() if hasattr(part, "set_epoch")]


def set_epoch(iterable: Any, epoch: int) -> None:
    """Sets the epoch of the iterable and its samplers, as far as they have epochs."""
    for part in parts_with_epochs(iterable):
        part.set_epoch(epoch)
