"""Batches of a loader taken apart: their rows are the fresh items that are stored and repeated."""

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from echo.sequential import SequentialReader
from echo.spec import MAX_BATCH, checked_integer
from echo.stores import RowAllocator, Stacked, Structure, nbytes

_NOTHING = np.arange(0)


class RowReader:
    """Reads the rows of batches; the interface is that of `echo.readers.RandomAccessReader`.

    Attributes:
        rows: rows of a batch, known after the first; only the last may have fewer.
    """

    fields = (*SequentialReader.fields, "rows")

    def __init__(self, batches: SequentialReader):
        self._batches = batches
        self.close = batches.close
        self.rows = self.next_index = 0
        self.num_items: int | None = None
        self._later: Stacked | None = None  # rows that have been read, from `next_index` on

    def first(self) -> tuple[int, int]:
        """Reads the first batch: its rows, and bytes per row; StopIteration if there is none."""
        chunk = self.read(0, None)
        if chunk is None or not len(chunk[0]):
            raise StopIteration
        self._later, self.next_index = chunk[1], 0
        return self.rows, max(1, nbytes(chunk[1].item) // self.rows)

    def read(self, needed: int, seconds: float | None) -> tuple[np.ndarray, Any] | None:
        rows, self._later = self._later, None
        if rows is None:
            chunk = self._batches.read(1, seconds)
            if chunk is None:
                return None
            if not (batches := list(chunk[1])):
                self.num_items = self.next_index
                return _NOTHING, []
            number = int(chunk[0][0])
            rows = _rows_of(number, batches[0])
            self.rows = self.rows or len(rows)
            if self.next_index != number * self.rows or len(rows) > self.rows:
                raise ValueError(
                    f"batch {number} of the loader, or the one before it, does not have "
                    f"{self.rows} examples as the first one; drop or pad those that differ, or "
                    "echo whole batches (mix=False, or rebatch=0)"
                )
        start, self.next_index = self.next_index, self.next_index + len(rows)
        return np.arange(start, self.next_index), rows

    def state(self, oldest: Callable[[], int]) -> dict[str, Any]:
        own = {"num_items": -1 if self.num_items is None else self.num_items, "rows": self.rows}
        return self._batches.state(lambda: oldest() // max(1, self.rows)) | own

    def length(self, state: dict[str, Any]) -> int | None:
        return self._batches.length(state)

    def restore(
        self, state: dict[str, Any], pending: Sequence[int], stop: int
    ) -> Iterator[tuple[np.ndarray, Any]]:
        self._later, self.next_index, self.num_items = None, stop, self.length(state)
        self.rows = checked_integer("rows", state["rows"], 1 if stop else 0, MAX_BATCH)
        inner = {key: value for key, value in state.items() if key != "rows"} | {"num_items": -1}
        pending_rows, last = np.asarray(pending, np.int64), stop // max(1, self.rows)
        wanted = np.unique(pending_rows // max(1, self.rows)).tolist()
        if stop > last * self.rows and last not in wanted:
            wanted.append(last)
        again = self._batches.restore(inner, wanted, last + (stop > last * self.rows))
        for numbers, batches in again:
            for number, batch in zip(numbers.tolist(), batches, strict=False):
                rows, start = _rows_of(number, batch), number * self.rows
                index = pending_rows[pending_rows // self.rows == number]
                if len(index):
                    yield index, rows[index - start]
                if number == last and stop > start:  # the rest has not been admitted
                    self._later = rows[slice(stop - start, None)]


class RowStore:
    """Rows of batches, one buffer per leaf; the interface is that of `echo.stores.ArrayStore`.

    A tensor's buffer is on its device. Buffers double when they do not suffice.
    """

    def __init__(self):
        self._rows = RowAllocator()
        self.take, self.drop = self._rows.take, self._rows.drop
        self._structure: Structure | None = None
        self._buffers: list[Any] = []  # each [rows, ...]

    def put(self, fresh: np.ndarray, items: Any, copies: np.ndarray) -> None:
        """Stores stacked items; ValueError if their leaves are not like those of the first."""
        self._structure = self._structure or Structure(items.item)
        leaves = self._structure.leaves(items.item)
        self._buffers = self._buffers or [leaf[:0] for leaf in leaves]
        specs = [[(x.shape[1:], x.dtype) for x in xs] for xs in (leaves, self._buffers)]
        if specs[0] != specs[1]:
            raise ValueError(
                f"a batch has leaves {specs[0]}, the first one {specs[1]}; pad or resize "
                "upstream, or echo whole batches (mix=False, or rebatch=0)"
            )
        rows = self._rows.add(fresh, copies)
        if (size := int(rows.max(initial=-1)) + 1) > len(self._buffers[0]):
            size = max(size, 2 * len(self._buffers[0]))
            self._buffers = [_longer(buffer, size) for buffer in self._buffers]
        for buffer, leaf in zip(self._buffers, leaves, strict=True):
            buffer[rows] = leaf

    def emit(self, taken: np.ndarray) -> Any:
        assert self._structure is not None  # something was stored
        return self._structure.build(buffer[taken] for buffer in self._buffers)


def _rows_of(number: int, batch: Any) -> Stacked:
    """The rows of batch `number`, as arrays and tensors."""
    structure = Structure(batch)
    leaves = [x if _is_tensor(x) else np.asarray(x) for x in structure.leaves(batch)]
    sizes = {len(x) if x.ndim else -1 for x in leaves}
    if len(sizes) != 1 or -1 in sizes or any(map(_is_object, leaves)):
        raise TypeError(
            f"batch {number} has leaves of shapes {[tuple(x.shape) for x in leaves]}; "
            "allowed: arrays or tensors of one leading size, or echo whole batches (mix=False, or "
            "rebatch=0)"
        )
    return Stacked(structure.build(leaves))


def _is_object(leaf: Any) -> bool:
    return isinstance(leaf, np.ndarray) and leaf.dtype.hasobject


def _is_tensor(leaf: Any) -> bool:
    torch: Any = sys.modules.get("torch")
    return torch is not None and isinstance(leaf, torch.Tensor)


def _longer(buffer: Any, rows: int) -> Any:
    shape = (rows, *buffer.shape[1:])
    new = buffer.new_empty(shape) if _is_tensor(buffer) else np.empty(shape, buffer.dtype)
    new[: len(buffer)] = buffer
    return new
