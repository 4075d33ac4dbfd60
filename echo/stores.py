"""Where repeated items wait: each is stored once, however many of its copies are pending.

`ItemStore` keeps any Python object and returns single independent copies. `ArrayStore` keeps items
of one fixed shape in contiguous memory and returns whole batches, each with one gather.
`echo.device.DeviceStore` has the same interface, but an accelerator keeps the items.
"""

import dataclasses
import sys
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from echo.torch import copied


class Structure:
    """How an example nests mappings, lists, tuples and named tuples; everything else is a leaf.

    Made from a first example, it takes apart others of the same structure. Keys are looked up by
    name, so mappings may be in another order than the first one. They are built as dicts.
    """

    def __init__(self, example: Any):
        self._type = type(example)
        keys: Any = ()
        self._is_leaf = not isinstance(example, Mapping | tuple | list)
        if not self._is_leaf:
            keys = example if isinstance(example, Mapping) else range(len(example))
        self._parts = {key: Structure(example[key]) for key in keys}

    def leaves(self, item: Any) -> list[Any]:
        """The leaves of `item`, in the order of the first example; ValueError if it has another
        structure."""
        return [column[0] for column in self.columns([item])]

    def columns(self, items: list[Any]) -> list[list[Any]]:
        """The leaves of several items, one list per leaf, many times faster than item by item."""
        if self._is_leaf:
            return [items]
        try:
            if set(map(type, items)) != {self._type} or set(map(len, items)) != {len(self._parts)}:
                raise LookupError
            rows = {key: [item[key] for item in items] for key in self._parts}
        except LookupError:
            name, keys = self._type.__name__, list(self._parts)
            raise ValueError(f"it is not a {name} of {keys}, as the first one is") from None
        return [column for key, part in self._parts.items() for column in part.columns(rows[key])]

    def build(self, leaves: Iterable[Any]) -> Any:
        """An item of this structure with these leaves."""
        leaves = iter(leaves)
        if self._is_leaf:
            return next(leaves)
        values = [part.build(leaves) for part in self._parts.values()]
        if issubclass(self._type, Mapping):
            return dict(zip(self._parts, values, strict=True))
        return getattr(self._type, "_make", self._type)(values)  # of a named tuple


@dataclasses.dataclass(frozen=True)
class Stacked:
    """Several items as one, whose leaves are stacked along a first axis."""

    item: Any

    def __len__(self) -> int:
        return len(Structure(self.item).leaves(self.item)[0])

    def __getitem__(self, rows: slice | np.ndarray) -> "Stacked":
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

    def stacked(self, fresh: np.ndarray, items: "list[Any] | Stacked") -> list[np.ndarray]:
        """The leaves of items, each [n, ...]; `fresh` (int64 [n]) are their numbers.

        Raises:
            ValueError: an item differs from the first one, has Python objects as leaves, or would
                lose a mask or trailing zero bytes.
        """
        whole = isinstance(items, Stacked)
        structure = self._structure or Structure(items.item if whole else items[0])
        try:
            if whole:
                columns = [[leaf] for leaf in structure.leaves(items.item)]
                leaves = [np.asarray(leaf) for (leaf,) in columns]
            else:
                columns = structure.columns(items)
                leaves = [_stacked(column) for column in columns]
            if any(map(loses, columns, leaves)):
                raise ValueError("it has a Python object, a mask, or a string ending in zero bytes")
            if any(len(leaf) != len(fresh) for leaf in leaves):  # a single row would fill them all
                raise ValueError(f"its arrays do not have one row for each of {len(fresh)} items")
            specs = [(leaf.shape[1:], leaf.dtype) for leaf in leaves]
            if self._structure is not None and specs != self.specs:
                raise ValueError(f"its leaves are {specs}, of those before {self.specs}")
        except Exception as error:  # also that of a tensor with a graph, or on a GPU
            if not whole and len(items) > 1:  # says which one
                for k in range(len(items)):
                    self.stacked(fresh[k : k + 1], items[k : k + 1])
            raise ValueError(
                f"fresh item {fresh[0]} cannot be put into a batch: {error}; batches are gathered "
                "from plain arrays of one shape and dtype: pad, resize, or convert upstream, or "
                "leave batch_size out, with placement='host', and batch afterwards"
            ) from error
        self._structure, self.specs = structure, specs
        return leaves

    def build(self, leaves: list[Any]) -> Any:
        """An item of this structure with these leaves."""
        assert self._structure is not None  # there has been a first item
        return self._structure.build(leaves)


class ItemStore:
    """Items of any kind, by the number of the fresh item. Copies that it returns share no memory.

    The store copies an item when it enters, and at each copy but the last, for which it returns the
    stored object itself: an item with n copies is copied n times in all.
    """

    def __init__(self):
        self._items: dict[int, list] = {}  # fresh item -> [object, copies left]

    def put(self, fresh: np.ndarray, items: list[Any], copies: np.ndarray) -> None:
        """Stores items; `copies` are left of each, at least 1."""
        for number, left, item in zip(fresh.tolist(), copies.tolist(), items, strict=True):
            self._items[number] = [copied(item, number), left]

    def take(self, fresh: np.ndarray) -> np.ndarray:
        """The arguments for `emit`, one row per output: `fresh` (int64 [outputs, 1]) itself."""
        return fresh

    def emit(self, taken: np.ndarray) -> Any:
        """The next copy of the item `taken` (int64 [1])."""
        number = int(taken[0])
        entry = self._items[number]
        if entry[1] == 1:
            return self._items.pop(number)[0]
        item = copied(entry[0], number)
        entry[1] -= 1
        return item

    def drop(self, fresh: np.ndarray) -> None:
        """Deletes items (int64 [n], each once) that have copies left."""
        for number in fresh.tolist():
            del self._items[number]


class ArrayStore:
    """Items of one structure, shape and dtype, in one contiguous array per leaf.

    Args:
        rows: the maximum number of items that can be pending at once. Memory for all of them is
            reserved but not touched; resident memory is that of the maximum number of rows ever in
            use together.
    """

    def __init__(self, rows: int):
        self._num_rows, self._rows = rows, RowAllocator()
        self.take, self.drop = self._rows.take, self._rows.drop
        self._layout = Layout()  # known after the first item
        self._leaves: list[np.ndarray] = []  # each [rows, ...]

    def put(self, fresh: np.ndarray, items: list[Any] | Stacked, copies: np.ndarray) -> None:
        """Stores n items.

        Args:
            fresh: their numbers, int64 [n], ascending.
            items: a list of them, or `Stacked`.
            copies: the number of copies left of each, int64 [n], at least 1.

        Raises:
            ValueError: an item has another structure, shape or dtype than the first one.
        """
        leaves = self._layout.stacked(fresh, items)
        if not self._leaves:
            specs = self._layout.specs
            self._leaves = [np.empty((self._num_rows, *shape), dtype) for shape, dtype in specs]
        rows = self._rows.add(fresh, copies)
        for stored, leaf in zip(self._leaves, leaves, strict=True):
            stored[rows] = leaf

    def emit(self, taken: np.ndarray) -> Any:
        """The copies of a batch, as one with stacked leaves."""
        return self._layout.build([leaf.take(taken, axis=0) for leaf in self._leaves])


class RowAllocator:
    """Assigns the rows of a store, and frees each after the last copy of its item.

    Rows are reused last in, first out, so that as few as possible are ever in use.
    """

    def __init__(self):
        self._free: list[int] = []  # the next one last
        self._fresh, self._copies = np.zeros((2, 0), np.int64)  # item and copies left, by row
        # A hash table: the row of fresh item i is at i modulo the length, a power of two; -1 marks
        # an empty place. Where two pending items would collide, the length doubles.
        self._row_of = np.full(1, -1, np.int32)

    def add(self, fresh: np.ndarray, copies: np.ndarray) -> np.ndarray:
        """The rows to which new items go, int64 [n]; arguments as of `ArrayStore.put`."""
        n, num_rows = len(fresh), len(self._copies)
        if n > len(self._free):  # the rows at least double
            more = max(n - len(self._free), num_rows)
            self._free[:0] = range(num_rows + more - 1, num_rows - 1, -1)
            added = np.zeros(more, np.int64)
            self._fresh, self._copies = (np.append(x, added) for x in (self._fresh, self._copies))
        rows = np.asarray(self._free[: -n - 1 : -1])
        del self._free[-n:]
        self._fresh[rows], self._copies[rows] = fresh, copies
        places = self._places(fresh)
        if fresh[-1] - fresh[0] >= len(self._row_of) or (self._row_of[places] >= 0).any():
            self._grow_table()
        else:
            self._row_of[places] = rows
        return rows

    def take(self, fresh: np.ndarray) -> np.ndarray:
        """The rows of items (int64 [...], repeats allowed); each occurrence takes a copy. The
        rows keep their items until others are put."""
        rows = self._row_of[self._places(fresh)]
        np.subtract.at(self._copies, rows, 1)
        self._vacate(np.unique(rows[self._copies[rows] == 0]))
        return rows

    def drop(self, fresh: np.ndarray) -> None:
        """Frees the rows of items (int64 [n], each once) that have copies left."""
        self._vacate(self._row_of[self._places(fresh)])

    def _vacate(self, rows: np.ndarray) -> None:
        self._copies[rows] = 0
        self._row_of[self._places(self._fresh[rows])] = -1
        self._free += rows.tolist()

    def _places(self, fresh: np.ndarray) -> np.ndarray:
        return fresh & (len(self._row_of) - 1)

    def _grow_table(self) -> None:
        """Doubles the table until no two pending items collide."""
        rows = np.flatnonzero(self._copies)
        places = np.empty(0, np.int64)
        while len(np.unique(places)) < len(rows):
            self._row_of = np.full(2 * len(self._row_of), -1, np.int32)
            places = self._places(self._fresh[rows])
        self._row_of[places] = rows


def nbytes(item: Any) -> int:
    """Approximate bytes of an item in memory, a dataclass included: exact for arrays and images,
    sys.getsizeof for other leaves."""
    if hasattr(item, "nbytes"):  # first, since most leaves have it
        return item.nbytes
    if isinstance(item, Mapping):
        return sum(map(nbytes, item.values()))
    if isinstance(item, tuple | list):
        return sum(map(nbytes, item))
    if dataclasses.is_dataclass(item):
        return sum(nbytes(getattr(item, field.name, None)) for field in dataclasses.fields(item))
    if hasattr(item, "getbands"):  # an image of PIL, whose pixels are not in its Python object
        return item.width * item.height * len(item.getbands())
    if hasattr(item, "__array__"):  # a tensor of TensorFlow
        return np.asarray(item).nbytes
    return sys.getsizeof(item)


def _stacked(column: list[Any]) -> np.ndarray:
    arrays = [np.asarray(leaf) for leaf in column]
    if len({array.dtype for array in arrays}) > 1:
        raise ValueError("leaves differ in dtype")
    return np.stack(arrays)


def loses(column: list[Any], stacked: np.ndarray) -> bool:
    """Whether `stacked`, the array of the leaves in `column`, does not hold all of them."""
    return stacked.dtype.hasobject or any(
        isinstance(leaf, np.ma.MaskedArray)
        or (isinstance(leaf, bytes | str) and leaf[-1:] in (b"\0", "\0"))  # NumPy drops these
        for leaf in column
    )
