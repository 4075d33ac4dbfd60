"""Nested dicts, tuples and lists of arrays: taking examples apart and putting them together."""

import dataclasses
import sys
from collections.abc import Iterator, Mapping
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
        self._is_mapping = isinstance(example, Mapping)
        if self._is_mapping:
            self._keys = tuple(example)
        elif isinstance(example, tuple | list):
            self._keys = tuple(range(len(example)))
        self._key_set = frozenset(self._keys or ())
        self._parts = [(key, Structure(example[key])) for key in self._keys or ()]
        flat = self._is_mapping and all(part._keys is None for _, part in self._parts)
        self._flat_keys = self._keys if flat else None  # of a mapping of leaves, as most are

    def leaves(self, item: Any) -> list[Any]:
        """The leaves of `item`, always in the order of the first example.

        Raises:
            ValueError: `item` has another structure.
        """
        leaves: list[Any] = []
        self._collect(item, leaves)
        return leaves

    def columns(self, items: list[Any]) -> list[list[Any]]:
        """The leaves of several items, one list per leaf, many times faster than item by item.

        Raises:
            LookupError: an item may have another structure; `leaves` can tell.
        """
        if self._keys is None:
            return [items]
        if set(map(type, items)) != {self._type} or set(map(len, items)) != {len(self._keys)}:
            raise LookupError(f"not every item is {self}")
        parts = (part.columns([item[key] for item in items]) for key, part in self._parts)
        return [column for columns in parts for column in columns]

    def build(self, leaves: list[Any]) -> Any:
        """An item of this structure with these leaves."""
        if self._flat_keys is not None:
            return dict(zip(self._flat_keys, leaves, strict=True))
        return self._build(iter(leaves))

    def _collect(self, item: Any, leaves: list[Any]) -> None:
        if self._keys is None:
            leaves.append(item)
            return
        same = isinstance(item, self._type) and len(item) == len(self._keys)
        if not same or (self._is_mapping and item.keys() != self._key_set):
            raise ValueError(f"an item holds {Structure(item)} where earlier items hold {self}")
        for key, part in self._parts:
            if part._keys is None:
                leaves.append(item[key])
            else:
                part._collect(item[key], leaves)

    def _build(self, leaves: Iterator[Any]) -> Any:
        if self._keys is None:
            return next(leaves)
        values = [
            next(leaves) if part._keys is None else part._build(leaves) for _, part in self._parts
        ]
        if self._is_mapping:
            return dict(zip(self._keys, values, strict=True))
        return self._type(*values) if hasattr(self._type, "_fields") else self._type(values)

    def __str__(self) -> str:
        if self._keys is None:
            return self._type.__name__
        return f"a {self._type.__name__} of {', '.join(map(repr, self._keys)) or 'nothing'}"


class Layout:
    """The structure, shapes and dtypes that all items of a store share, set by the first one.

    Attributes:
        specs: shape and dtype of each leaf of an item; empty before the first item.
    """

    def __init__(self):
        self._structure: Structure | None = None
        self.specs: list[tuple[tuple[int, ...], np.dtype]] = []

    def leaves(self, fresh: int, item: Any, stacked: bool = False) -> list[np.ndarray]:
        """The leaves of fresh item number `fresh`, or, `stacked`, of several items from there on.

        Raises:
            ValueError: they differ from those of the first item, are Python objects, or would lose
                a mask or trailing zero bytes.
        """
        structure = self._structure or Structure(item)
        parts = structure.leaves(item)
        if any(isinstance(part, np.ma.MaskedArray) for part in parts):
            raise ValueError(
                f"fresh item {fresh} has a masked array, and a batch would have no mask; pass its "
                "data and mask as two arrays, or leave batch_size out, with placement='host'"
            )
        if any(isinstance(part, bytes | str) and part[-1:] in (b"\0", "\0") for part in parts):
            raise ValueError(
                f"fresh item {fresh} has a string that ends in a zero byte, which NumPy's strings "
                "lose; pass np.frombuffer(string, np.uint8), or leave batch_size out, with "
                "placement='host'"
            )
        leaves = [np.asarray(part) for part in parts]
        specs = [(leaf.shape[stacked:], leaf.dtype) for leaf in leaves]
        if self._structure is None:
            _check_no_objects(specs)
            self._structure, self.specs = structure, specs
        if specs != self.specs:
            raise ValueError(
                f"fresh item {fresh} has leaves {specs}, those before have {self.specs}; "
                "batches are gathered from items of one shape and dtype: pad or resize them "
                "upstream, or leave batch_size out, with placement='host', and batch after making "
                "them equal"
            )
        return leaves

    def columns(self, items: list[Any]) -> list[list[np.ndarray]] | None:
        """The leaves of several items, one list per leaf; None if `leaves` has to look at each
        item, since there was none before, or not all are made of arrays like those before."""
        if self._structure is None:
            return None
        try:
            columns = self._structure.columns(items)
        except LookupError:
            return None
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


def _all_are(column: list[Any], shape: tuple[int, ...], dtype: np.dtype) -> bool:
    """Whether all leaves in `column` are NumPy arrays without a mask, or scalars, of this shape and
    dtype."""
    for kind in set(map(type, column)):
        if not issubclass(kind, np.ndarray | np.generic) or issubclass(kind, np.ma.MaskedArray):
            return False
    shapes, dtypes = [leaf.shape for leaf in column], [leaf.dtype for leaf in column]
    return shapes.count(shape) == dtypes.count(dtype) == len(column)


def _check_no_objects(specs: list[tuple[tuple[int, ...], np.dtype]]) -> None:
    if any(dtype.hasobject for _, dtype in specs):
        raise ValueError(
            f"items have leaves {specs}; batches are gathered from numbers, booleans or "
            "strings of one length, not from Python objects: convert them upstream, or leave "
            "batch_size out, with placement='host'"
        )
