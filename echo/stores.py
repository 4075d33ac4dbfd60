"""Where repeated items wait: each is stored once, however many of its copies are pending.

`ItemStore` keeps any Python object and returns single independent copies. `ArrayStore` keeps items
of one fixed shape in contiguous memory and returns whole batches, each with one gather.
`echo.gather_plan.PlanStore` has the same interface, but an accelerator keeps the items.

All of them consume items as an iterator, so that an item in a reused buffer is copied before the
next one is produced.
"""

import dataclasses
import itertools
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
            raise ValueError(f"it is not a {name} of {keys}, as the first one is") from None
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

    def leaves(self, fresh: int, item: Any) -> list[np.ndarray]:
        """The leaves of fresh item number `fresh`, or of several `Stacked` items from there on.

        Raises:
            ValueError: they differ from those of the first item, are Python objects, or would lose
                a mask or trailing zero bytes.
        """
        item, axes = (item.item, 1) if isinstance(item, Stacked) else (item, 0)
        structure = self._structure or Structure(item)
        try:
            parts = structure.leaves(item)
            leaves = [np.asarray(part) for part in parts]
        except Exception as error:  # such as a tensor with a graph, or on a GPU
            raise ValueError(f"fresh item {fresh} cannot be put into a batch: {error}") from error
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
        try:
            columns = self._structure.columns(items)
        except ValueError:  # of which item, `leaves` says
            return None
        pairs = zip(columns, self.specs, strict=True)
        return columns if all(_all_are(column, *spec) for column, spec in pairs) else None

    def build(self, leaves: list[Any]) -> Any:
        """An item of this structure with these leaves."""
        assert self._structure is not None  # there has been a first item
        return self._structure.build(leaves)


# The rows with which a store begins. It doubles them when they do not suffice, since a stream may
# be far shorter than a large buffer.
_FIRST_ROWS = 2048


class ItemStore:
    """Items of any kind, by the number of the fresh item. Copies that it returns share no memory.

    The store copies an item when it enters, and at each copy but the last, for which it returns the
    stored object itself: an item with n copies is copied n times in all.
    """

    def __init__(self):
        self._items: dict[int, list] = {}  # fresh item -> [object, copies left]

    def __len__(self) -> int:
        return len(self._items)

    def put(self, fresh: np.ndarray, items: Iterable[Any], copies: np.ndarray) -> None:
        """Stores items; `copies` are left of each, at least 1."""
        for number, left, item in zip(fresh.tolist(), copies.tolist(), items, strict=False):
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
        self.rows = RowAllocator(rows)
        self.take, self.drop = self.rows.take, self.rows.drop
        self._layout = Layout()  # known after the first item
        self._leaves: list[np.ndarray] = []  # each [rows, ...]

    def __len__(self) -> int:
        return len(self.rows)

    def put(self, fresh: np.ndarray, items: Iterable[Any] | Stacked, copies: np.ndarray) -> None:
        """Stores items.

        Args:
            fresh: their numbers, int64 [n], ascending.
            items: n `Stacked` items, or at most n items.
            copies: the number of copies left of each, int64 [n], at least 1.

        Raises:
            ValueError: an item has another structure, shape or dtype than the first one.
        """
        rows, num_stored = self.rows.next_free(len(fresh)), len(fresh)
        if isinstance(items, Stacked):
            self._write(rows, self._layout.leaves(int(fresh[0]), items))
        elif (columns := self._layout.columns(items)) is not None:
            for stored, column in zip(self._leaves, columns, strict=True):
                for row, leaf in zip(rows.tolist(), column, strict=True):
                    stored[row] = leaf
        else:
            num_stored = 0
            for number, row, item in zip(fresh.tolist(), rows.tolist(), items, strict=False):
                self._write(row, self._layout.leaves(number, item))
                num_stored += 1
        self.rows.occupy(rows[:num_stored], fresh[:num_stored], copies[:num_stored])

    def emit(self, taken: np.ndarray) -> Any:
        """The copies of a batch, as one with stacked leaves."""
        return self._layout.build([leaf.take(taken, axis=0) for leaf in self._leaves])

    def _write(self, rows: Any, leaves: list[np.ndarray]) -> None:
        if not self._leaves:
            size = self.rows.capacity
            self._leaves = [np.empty((size, *shape), dtype) for shape, dtype in self._layout.specs]
        for stored, leaf in zip(self._leaves, leaves, strict=True):
            stored[rows] = leaf


class RowAllocator:
    """Assigns the rows of a store, and frees each after the last copy of its item.

    Rows are reused last in, first out, so that as few as possible are ever in use.

    Args:
        capacity: the maximum number of items that can be pending at once.
    """

    def __init__(self, capacity: int):
        self.capacity = capacity
        self._free = np.empty(0, np.int64)  # a stack; its top is at _num_free - 1
        self._num_free = 0
        self._left = np.empty(0, np.int64)  # copies left, by row
        self._fresh = np.empty(0, np.int64)  # fresh item, by row
        self._add_rows(min(capacity, _FIRST_ROWS))
        # A hash table: the row of fresh item i is at i modulo the length, a power of two. Where two
        # pending items would collide, the length doubles. `capacity` marks an empty place. Most
        # places are empty, so their dtype is the smallest that represents every row.
        places = 1 << (2 * len(self._left)).bit_length()
        self._row_of = np.full(places, capacity, np.min_scalar_type(capacity))

    def __len__(self) -> int:
        return len(self._left) - self._num_free

    def next_free(self, n: int) -> np.ndarray:
        """The next n rows to use, int64 [n]; they stay free until they are occupied."""
        if n > self._num_free:
            num_rows = len(self._left)
            wanted = max(2 * num_rows, num_rows + n - self._num_free)
            self._add_rows(min(wanted, self.capacity) - num_rows)
        return self._free[self._num_free - n : self._num_free][::-1].copy()

    def occupy(self, rows: np.ndarray, fresh: np.ndarray, copies: np.ndarray) -> None:
        """Puts items (arguments as of `ArrayStore.put`) into a prefix of `next_free`'s rows."""
        if not len(rows):
            return
        self._num_free -= len(rows)
        self._left[rows] = copies
        self._fresh[rows] = fresh
        places = self._places(fresh)
        collide = fresh[-1] - fresh[0] >= len(self._row_of)
        if collide or (self._row_of[places] != self.capacity).any():
            self._grow_table()
        else:
            # An assignment that converts would release the lock that a reading thread waits for.
            self._row_of[places] = rows.astype(self._row_of.dtype)

    def take(self, fresh: np.ndarray) -> np.ndarray:
        """The rows of items (int64 [...], repeats allowed); each occurrence takes a copy. The
        rows keep their items until others are put."""
        rows = self._row_of[self._places(fresh)].astype(np.int64)
        np.subtract.at(self._left, rows, 1)
        spent = np.sort(rows[self._left[rows] == 0])
        first = np.ones(len(spent), bool)  # of its kind; np.unique takes many times longer
        np.not_equal(spent[1:], spent[:-1], out=first[1:])
        self._vacate(spent[first])
        return rows

    def drop(self, fresh: np.ndarray) -> None:
        """Frees the rows of items (int64 [n], each once) that have copies left."""
        rows = self._row_of[self._places(fresh)]
        self._left[rows] = 0
        self._vacate(rows)

    def _add_rows(self, n: int) -> None:
        """Adds n rows, to be used after those that are free."""
        num_rows, none = len(self._left), np.zeros(n, np.int64)
        rows = np.arange(num_rows + n - 1, num_rows - 1, -1)
        self._free = np.concatenate([rows, self._free])
        self._num_free += n
        self._left = np.concatenate([self._left, none])
        self._fresh = np.concatenate([self._fresh, none])

    def _vacate(self, rows: np.ndarray) -> None:
        self._row_of[self._places(self._fresh[rows])] = self.capacity
        self._free[self._num_free : self._num_free + len(rows)] = rows
        self._num_free += len(rows)

    def _places(self, fresh: np.ndarray) -> np.ndarray:
        return fresh & (len(self._row_of) - 1)

    def _grow_table(self) -> None:
        """Doubles the table until no two pending items collide."""
        rows = np.flatnonzero(self._left)
        places = np.empty(0, np.int64)
        while len(np.unique(places)) < len(rows):
            self._row_of = np.full(2 * len(self._row_of), self.capacity, self._row_of.dtype)
            places = self._places(self._fresh[rows])
        self._row_of[places] = rows


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
