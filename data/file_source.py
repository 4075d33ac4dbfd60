"""Records in files, of which a split is a part, as train[:90%] is; errors name the file."""

import bisect
import dataclasses
import itertools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from data.sources import RecordError, Source, reason


@dataclasses.dataclass(frozen=True)
class Slice:
    """Rows of a split of a data set."""

    split: str
    rows: range

    @classmethod
    def of(cls, spec: str, splits: Mapping[str, Any]) -> "list[Slice]":
        """The slices that `spec` names in TFDS's notation; `splits` are TFDS's SplitInfos."""
        import tensorflow_datasets as tfds

        return [
            cls(part.splitname, range(splits[part.splitname].num_examples)[part.from_ : part.to])
            for part in tfds.core.ReadInstruction.from_spec(spec).to_absolute(splits)
        ]

    def overlaps(self, other: "Slice") -> bool:
        """Whether a record is in both. `held_out` is a part of `train`."""
        if {self.split, other.split} == {"train", "held_out"}:
            return True
        start = max(self.rows.start, other.rows.start)
        return self.split == other.split and start < min(self.rows.stop, other.rows.stop)


@dataclasses.dataclass(frozen=True, eq=False)
class Records:
    """Records in files; safe to read from several threads. See `FileSource`.

    Attributes:
        order: the row of each record.
        read: the records in some rows; raises anything for a damaged one.
        place: the file of a row, and which of its records it is if it has several.
        key: what identifies a row however many others are added to its data set.
    """

    order: Sequence[int]
    read: Callable[[Sequence[int]], list[dict[str, Any]]]
    place: Callable[[int], str]
    key: Callable[[int], bytes] = lambda row: str(row).encode()

    def __len__(self) -> int:
        return len(self.order)

    def at(self, places: range) -> "Records":
        """The records at some places."""
        return dataclasses.replace(self, order=self.order[places.start : places.stop])


def locate(ends: Sequence[int], number: int) -> tuple[int, int]:
    """The part that holds a number, and its place there; `ends` are the parts' running totals."""
    part = bisect.bisect_right(ends, number)
    return part, number - (ends[part - 1] if part else 0)


class FileSource(Source):
    """A split whose records are in files; an error while reading names the record and its file.

    Args:
        split: the split as requested, for messages.
        parts: the records that make up the split, in order.
        slices: the same as rows of the data set's splits.
    """

    def __init__(self, split: str, parts: Sequence[Records], slices: Sequence[Slice] = ()):
        self._split, self._parts, self.slices = split, parts, slices
        self._ends = list(itertools.accumulate(map(len, parts)))

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        rows = itertools.groupby(map(self._row, indices), operator.itemgetter(0))
        try:
            return [
                record
                for records, group in rows
                for record in records.read([number for _, number in group])
            ]
        except Exception as error:  # from a file system, a parser, or a decoder of a library
            if len(indices) > 1:
                return [self[index] for index in indices]  # the damaged one raises, with its name
            raise RecordError(
                f"{self.where(indices[0])} cannot be read: {reason(error)}"
            ) from error

    def where(self, index: int, /) -> str:
        records, number = self._row(index)
        return f"record {index} of split {self._split!r} ({records.place(number)})"

    def _row(self, index: int) -> tuple[Records, int]:
        if not 0 <= index < len(self):
            raise IndexError(f"record {index} of {len(self)}")
        part, place = locate(self._ends, index)
        return self._parts[part], self._parts[part].order[place]
