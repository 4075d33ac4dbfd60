"""Batches of a loader taken apart: their rows are the fresh items that are stored and repeated."""

import sys
from typing import Any

import numpy as np

from echo.stores import RowAllocator, Stacked, Structure, loses

_FIRST_BATCHES = 8  # for which there is room at first


class RowStore:
    """Rows of batches, one buffer per leaf; the interface is that of `echo.stores.ArrayStore`.

    A tensor's buffer is on its device. Buffers double when they do not suffice.
    """

    def __init__(self):
        self._rows = RowAllocator()
        self.take, self.drop = self._rows.take, self._rows.drop
        self._structure: Structure | None = None
        self._buffers: list[Any] = []  # each [rows, ...]

    def put(self, fresh: np.ndarray, items: Stacked, copies: np.ndarray) -> None:
        """Stores rows; ValueError if their leaves are not like those of the first."""
        self._structure = self._structure or Structure(items.item)
        leaves = self._structure.leaves(items.item)
        self._buffers = self._buffers or [leaf[:0] for leaf in leaves]
        for buffer, leaf in zip(self._buffers, leaves, strict=True):
            if (leaf.shape[1:], leaf.dtype) != (buffer.shape[1:], buffer.dtype):
                raise ValueError(
                    f"a batch has a leaf {leaf.dtype}{list(leaf.shape)}, the first one "
                    f"{buffer.dtype}{list(buffer.shape)}; pad or resize upstream, or echo whole "
                    "batches (mix=False, or rebatch=0)"
                )
        rows = self._rows.add(fresh, copies)
        if (size := int(rows.max()) + 1) > len(self._buffers[0]):
            size = max(size, 2 * len(self._buffers[0]), _FIRST_BATCHES * len(rows))
            self._buffers = [_longer(buffer, size) for buffer in self._buffers]
        for buffer, leaf in zip(self._buffers, leaves, strict=True):
            if _is_tensor(buffer):  # indexing takes ten times as long
                buffer.index_copy_(0, _places(rows, buffer), leaf)
            else:
                buffer[rows] = leaf

    def emit(self, taken: np.ndarray) -> Any:
        assert self._structure is not None  # something was stored
        return self._structure.build(
            buffer.index_select(0, _places(taken, buffer))
            if _is_tensor(buffer)
            else buffer.take(taken, axis=0)
            for buffer in self._buffers
        )


def rows_of(batch: Any) -> Stacked:
    """The rows of a batch, as arrays and tensors."""
    structure = Structure(batch)
    given = structure.leaves(batch)
    leaves = [x.detach() if _is_tensor(x) else np.asarray(x) for x in given]
    shapes = [tuple(x.shape) for x in leaves]
    lost = any(
        not _is_tensor(x) and loses([x], leaf) for x, leaf in zip(given, leaves, strict=True)
    )
    if lost or () in shapes or len({shape[:1] for shape in shapes}) != 1:
        raise TypeError(
            f"a batch has leaves of shapes {shapes}; allowed: arrays or tensors of one leading "
            "size, without masks or objects, or echo whole batches (mix=False, or rebatch=0)"
        )
    return Stacked(structure.build(leaves))


def _is_tensor(leaf: Any) -> bool:
    torch: Any = sys.modules.get("torch")
    return torch is not None and isinstance(leaf, torch.Tensor)


def _places(rows: np.ndarray, buffer: Any) -> Any:
    """Rows of a tensor, where it is."""
    return sys.modules["torch"].as_tensor(rows, device=buffer.device)


def _longer(buffer: Any, rows: int) -> Any:
    shape = (rows, *buffer.shape[1:])
    new = buffer.new_empty(shape) if _is_tensor(buffer) else np.empty(shape, buffer.dtype)
    new[: len(buffer)] = buffer
    return new
