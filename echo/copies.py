"""Deep copies that take the memory of the item alone.

PyTorch is recognized without importing it: where it is not loaded, no item holds a tensor of it.
"""

import copy
import functools
import sys
from typing import Any


def copied(item: Any) -> Any:
    """What `copy.deepcopy` returns, but each tensor of PyTorch takes only its own bytes.

    `copy.deepcopy` copies all the memory that a tensor views: for a row of a `TensorDataset`, the
    data set. It also moves pinned memory to memory that is not.
    """
    overrides = sys.modules.get("torch.overrides")
    if not hasattr(overrides, "TorchFunctionMode"):  # a thread may be importing torch
        return copy.deepcopy(item)
    with _copies_of_tensors()():
        return copy.deepcopy(item)


@functools.cache
def _copies_of_tensors() -> type:
    torch: Any = sys.modules["torch"]

    class CopiesOfTensors(sys.modules["torch.overrides"].TorchFunctionMode):
        """Copies tensors where deepcopy meets them, however deep in an item."""

        def __torch_function__(self, func, types, args=(), kwargs=None):
            if func is torch.Tensor.__deepcopy__ and _is_plain(torch, args[0]):
                tensor, memo = args
                try:
                    pinned = tensor.is_pinned()
                except RuntimeError:  # in a process forked from one that uses CUDA
                    pinned = False
                if pinned or tensor.untyped_storage().nbytes() > tensor.nbytes:
                    source = tensor.detach()
                    if pinned:
                        made = torch.empty_like(source, pin_memory=True).copy_(source)
                    else:
                        made = source.clone()
                    memo[id(tensor)] = made.requires_grad_(tensor.requires_grad)
                    made.__dict__ = copy.deepcopy(tensor.__dict__, memo)
                    return made
            return func(*args, **(kwargs or {}))

    return CopiesOfTensors


def _is_plain(torch: Any, tensor: Any) -> bool:
    """Whether a tensor is only numbers in memory: no subclass, and no result or sum of gradients,
    for which deepcopy has rules of its own."""
    return (
        type(tensor) is torch.Tensor
        and tensor.device.type in ("cpu", "cuda")
        and tensor.layout is torch.strided
        and not (tensor.is_quantized or tensor.is_nested)
        and tensor.is_leaf
        and tensor.grad is None
    )
