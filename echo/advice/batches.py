"""Batches of an iterable: repeated without end, and checked to be batches."""

import numbers
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

_LAYOUT = (
    "for a layout of its own, [('input', lambda _: next(batches))] of an endless iterator with "
    "workers=1 and max_workers=1"
)


class Batches:
    """The items of an iterable, repeated from its start without end.

    Args:
        iterable: of batches.
        batch_size: that of the first item, which is checked; 0 = not checked.
    """

    def __init__(self, iterable: Iterable[Any], batch_size: int):
        self._iterable, self._iterator = iterable, iter(iterable)
        self._batch_size = batch_size
        self._count = 0  # of the items so far

    def __next__(self) -> Any:
        for _ in range(2):
            try:
                item = next(self._iterator)
            except StopIteration:
                self._iterator = iter(self._iterable)
            else:
                if not self._count and self._batch_size:
                    check_batch(self._iterable, item, self._batch_size)
                self._count += 1
                return item
        if self._count:
            raise ValueError(
                f"stages has type {type(self._iterable).__name__}, ended after {self._count} "
                "batches, and cannot be iterated over again; give a list of batches, or a loader"
            )
        raise ValueError("stages is an iterable without batches; give one that has some")


def check_batch(stages: Any, item: Any, batch_size: int) -> None:
    """Raises ValueError if the first item of `stages` is no batch of this size: it has arrays,
    numbers, or strings, but no array, list, or tuple of `batch_size` elements.

    An item of another kind only is taken for a batch, and so is any item if batches have one
    example, since they may do without an axis for it.
    """
    parts = list(_parts(item))
    leaves = {length for length, is_leaf in parts if is_leaf}
    if batch_size == 1 or not leaves or batch_size in {length for length, _ in parts}:
        return
    found = sorted(length for length in leaves if length is not None)
    listed = ", ".join(map(str, found[:5])) + ", ..." * (len(found) > 5)
    arrays = f"arrays of length {listed}" if found else "single numbers or strings"
    raise ValueError(
        f"stages has type {type(stages).__name__} and a first item with {arrays}, but batch_size "
        f"is {batch_size}; give batches of that many examples, or the number in each as "
        f"batch_size, or, {_LAYOUT}"
    )


def _parts(item: Any) -> Iterator[tuple[int | None, bool]]:
    """(length, whether it is a leaf) of each array, list, tuple, number, and string in an item. The
    length is None for arrays without axes, numbers, and strings; lists and tuples are no leaves."""
    if isinstance(item, Mapping):
        for part in item.values():
            yield from _parts(part)
    elif isinstance(item, list | tuple):
        yield len(item), False
        for part in item:
            yield from _parts(part)
    elif isinstance(item, str | bytes | numbers.Number):
        yield None, True
    elif isinstance(shape := getattr(item, "shape", None), Iterable):
        yield next(iter(shape), None), True
