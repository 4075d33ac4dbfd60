"""Nested dicts, tuples and lists of arrays: taking examples apart and putting them together."""

import dataclasses
import itertools
import sys
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np


class Structure:
    """How an example nests mappings, lists, tuples and named tuples; everything else is a leaf.

    Made from a first example, it takes apart others of the same structure. Keys are looked up by
    name, so mappings may be in another order than the first one. They are built as dicts.
    """

    def __init__(self, example: Any):
        self._type = type(example)
        self._keys: tuple | None = None  # of a leaf
        if isinstance(example, Mapping):
            self._keys = tuple(example)
        elif isinstance(example, tuple | list):
            self._keys = tuple(range(len(example)))
        self._parts = [Structure(example[key]) for key in self._keys or ()]

    def leaves(self, item: Any) -> list[Any]:
        """The leaves of `item`, in the order of the first example; ValueError if it has another
        structure."""
        return [column[0] for column in self.columns([item])]

    def columns(self, items: list[Any]) -> list[list[Any]]:
        """The leaves of several items, one list per leaf, many times faster than item by item."""
        if self._keys is None:
            return [items]
        try:
            if set(map(type, items)) != {self._type} or set(map(len, items)) != {len(self._keys)}:
                raise LookupError
            rows = [[item[key] for item in items] for key in self._keys]
        except LookupError:
            name, keys = self._type.__name__, list(self._keys)
            raise ValueError(f"an item is not a {name} of {keys}, as the first one is") from None
        columns = (part.columns(row) for part, row in zip(self._parts, rows, strict=True))
        return list(itertools.chain.from_iterable(columns))

    def build(self, leaves: Iterable[Any]) -> Any:
        """An item of this structure with these leaves."""
        leaves = iter(leaves)
        if self._keys is None:
            return next(leaves)
        values = [part.build(leaves) for part in self._parts]
        if issubclass(self._type, Mapping):
            return dict(zip(self._keys, values, strict=True))
        return self._type(*values) if hasattr(self._type, "_fields") else self._type(values)


@dataclasses.dataclass(frozen=True)
class Stacked:
    """Several items as one, whose leaves are stacked along a first axis."""

    item: Any

    def __getitem__(self, rows: slice) -> "Stacked":
        structure = Structure(self.item)
        return Stacked(structure.build(leaf[rows] for leaf in structure.leaves(self.item)))


class Layout:
    """The structure, shapes and dtypes that all items of a store share, set by the first one.

    Attributes:
        specs: shape and dtype of each leaf of an item; empty before the first item.
    """

    def __init__(self):
        self._structure: Structure | None = None
        self.specs: list[tuple[tuple[int, ...], np.dtype]] = []

    def leaves(self, fresh: int, item: Any) -> list[np.ndarray]:
        """The leaves of fresh item number `fresh`, or of several `Stacked` items from there on.

        Raises:
            ValueError: they differ from those of the first item, are Python objects, or would lose
                a mask or trailing zero bytes.
        """
        item, axes = (item.item, 1) if isinstance(item, Stacked) else (item, 0)
        structure = self._structure or Structure(item)
        parts = structure.leaves(item)
        leaves = [np.asarray(part) for part in parts]
        specs = [(leaf.shape[axes:], leaf.dtype) for leaf in leaves]
        if any(map(_loses, parts, leaves)) or specs != (self.specs if self._structure else specs):
            raise ValueError(
                f"fresh item {fresh} has leaves {specs}, those before have {self.specs}; batches "
                "are gathered from plain arrays of one shape and dtype, without objects, masks, "
                "or strings that end in a zero byte: pad, resize, or convert upstream, or leave "
                "batch_size out, with placement='host', and batch afterwards"
            )
        self._structure, self.specs = structure, specs
        return leaves

    def columns(self, items: Any) -> list[list[np.ndarray]] | None:
        """The leaves of a list of items, one list per leaf; None if `leaves` has to look at each
        item, since there was none before, or not all are made of arrays like those before."""
        if self._structure is None or not isinstance(items, list):
            return None
        columns = self._structure.columns(items)
        pairs = zip(columns, self.specs, strict=True)
        return columns if all(_all_are(column, *spec) for column, spec in pairs) else None

    def build(self, leaves: list[Any]) -> Any:
        """An item of this structure with these leaves."""
        assert self._structure is not None  # there has been a first item
        return self._structure.build(leaves)


def nbytes(item: Any) -> int:
    """Approximate bytes of an item in memory, a dataclass included: exact for arrays and images,
    sys.getsizeof for other leaves."""
    if isinstance(item, np.ndarray | np.generic):  # first, since most leaves are
        return item.nbytes
    if isinstance(item, Mapping):
        return sum(map(nbytes, item.values()))
    if isinstance(item, tuple | list):
        return sum(map(nbytes, item))
    if dataclasses.is_dataclass(item):
        return sum(nbytes(getattr(item, field.name, None)) for field in dataclasses.fields(item))
    if hasattr(item, "getbands"):  # an image of PIL, whose pixels are not in its Python object
        return len(item.tobytes())
    if not hasattr(item, "nbytes") and hasattr(item, "__array__"):  # a tensor of TensorFlow
        return np.asarray(item).nbytes
    return getattr(item, "nbytes", 0) or sys.getsizeof(item)


def _loses(part: Any, leaf: np.ndarray) -> bool:
    """Whether `leaf`, the array of `part`, does not hold all of it."""
    ends = isinstance(part, bytes | str) and part[-1:] in (b"\0", "\0")  # NumPy's strings lose it
    return ends or leaf.dtype.hasobject or isinstance(part, np.ma.MaskedArray)


def _all_are(column: list[Any], shape: tuple[int, ...], dtype: np.dtype) -> bool:
    """Whether all leaves in `column` are NumPy arrays or scalars of this shape and dtype."""
    if any(t is not np.ndarray and not issubclass(t, np.generic) for t in set(map(type, column))):
        return False
    shapes, dtypes = [leaf.shape for leaf in column], [leaf.dtype for leaf in column]
    return shapes.count(shape) == dtypes.count(dtype) == len(column)
