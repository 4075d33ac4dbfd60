"""What the library knows about PyTorch: copies of its tensors, and the samplers of its loaders.

PyTorch is not imported: where it is not loaded, no item holds a tensor of it.
"""

import copy
import sys
from typing import Any


def copied(item: Any) -> Any:
    """What `copy.deepcopy` returns, but a tensor of PyTorch takes only its own bytes.

    `copy.deepcopy` copies all the memory that a tensor views: for a row of a `TensorDataset`, the
    data set. Tensors are found in dicts, lists, and tuples.
    """
    torch: Any = sys.modules.get("torch")
    if not hasattr(torch, "Tensor"):  # a thread may be importing torch
        return copy.deepcopy(item)
    if type(item) is dict:
        return {key: copied(value) for key, value in item.items()}
    if type(item) in (list, tuple):
        return type(item)(map(copied, item))
    if hasattr(item, "_fields"):  # a named tuple
        return type(item)(*map(copied, item))
    plain = type(item) is torch.Tensor and item.layout is torch.strided and not item.is_quantized
    if not plain or not item.is_leaf or item.grad is not None:  # deepcopy has rules for these
        return copy.deepcopy(item)
    pinned = torch.cuda.is_initialized() and item.is_pinned()
    if not pinned and item.untyped_storage().nbytes() <= item.nbytes:
        return copy.deepcopy(item)
    made = torch.empty_like(item, requires_grad=False, pin_memory=pinned).copy_(item.detach())
    return made.requires_grad_(item.requires_grad)


def register(iterable: type) -> None:
    """Lets PyTorch's loaders treat a class as an IterableDataset, if torch is imported."""
    if data := sys.modules.get("torch.utils.data"):
        data.IterableDataset.register(iterable)


def parts_with_epochs(iterable: Any) -> list[Any]:
    """What has a `set_epoch`: the iterable, and what samples for a PyTorch loader."""
    batch_sampler = getattr(iterable, "batch_sampler", None)
    samplers = getattr(iterable, "sampler", None), getattr(batch_sampler, "sampler", None)
    parts = {id(part): part for part in (iterable, batch_sampler, *samplers)}
    return [part for part in parts.values() if hasattr(part, "set_epoch")]


def shuffles_unseeded(iterable: Any) -> bool:
    """Whether it is a PyTorch loader whose sampler draws a seed from the global generator for each
    pass."""
    data: Any = sys.modules.get("torch.utils.data")
    if data is None or not isinstance(iterable, data.DataLoader):
        return False
    sampler = iterable.batch_sampler or iterable.sampler
    sampler = getattr(sampler, "sampler", sampler)
    random = data.RandomSampler, data.SubsetRandomSampler, data.WeightedRandomSampler
    return isinstance(sampler, random) and sampler.generator is None
