"""What a source of raw records is, what is known of its data set, and what can be wrong with it."""

import abc
import bisect
import dataclasses
import hashlib
import itertools
import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from runs import cli

# Larger than any real data set has, and small enough that the last layer does not fill the memory.
MAX_CLASSES = 2**20

# A library's error message may quote the whole record.
_MAX_REASON = 300


class SourceError(cli.InputError):
    """A data set or split is missing or unusable; the message says what to do."""


class RecordError(cli.InputError, ValueError):
    """A record cannot be read or decoded; the message names the record and gives the reason."""


def reason(error: Exception) -> str:
    """An error's message on one line of limited length, with its type unless that says nothing."""
    text = " ".join(str(error).split()) or "no reason given"
    if not isinstance(error, ValueError | OSError):
        text = f"{type(error).__name__}: {text}"
    return text if len(text) <= _MAX_REASON else f"{text[:_MAX_REASON]}..."


class Source(abc.ABC):
    """Random access to raw records; safe to read from several threads.

    Images are encoded bytes or arrays; a workload's `decode` accepts both.

    Attributes:
        slices: the rows of the data set's splits that it has, if splits can be sliced.
    """

    slices: "Sequence[Slice]" = ()

    @abc.abstractmethod
    def __len__(self) -> int: ...

    @abc.abstractmethod
    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """The records at `indices`, in that order."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.__getitems__([index])[0]

    def where(self, index: int, /) -> str:
        """Names a record in messages: its number in the split and, if it has one, its file."""
        return f"record {index}"

    @property
    def damaged(self) -> set[int]:
        """The records that were found damaged and skipped so far, with dataset.damaged=skip."""
        return vars(self).setdefault("_damaged", set())


class ArraySource(Source):
    """Records whose fields are rows of arrays in memory."""

    def __init__(self, **columns: np.ndarray):
        self._columns = columns
        for column in columns.values():
            column.setflags(write=False)  # records are views

    def __len__(self) -> int:
        return len(next(iter(self._columns.values())))

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        return [{name: column[i] for name, column in self._columns.items()} for i in indices]


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


@dataclasses.dataclass(frozen=True)
class DatasetInfo:
    """What a model needs to know about a data set, and what identifies it in a run's record.

    Attributes:
        fingerprint: a hash of the data set's description (TFDS), or of its content; of a folder of
            images, of their names and the content of a few. For text, of that and of the
            vocabulary.
        num_classes: classes of the images, or of the objects in them if only those have labels.
        image_shape: (height, width, channels), or None if it differs between records.
        channels: channels of the images.
        vocabulary_size: number of tokens, for text.
        notes: sentences on records that are held out, truncated, or left out.
        has_boxes: whether records have `objects` with boxes and labels.
        object_classes: classes of the objects; None = num_classes. It is in no record.

    Raises:
        SourceError: the number of classes is none that a network can have.
    """

    name: str
    version: str
    fingerprint: str
    num_classes: int | None = None
    image_shape: tuple[int, int, int] | None = None
    channels: int | None = None
    vocabulary_size: int | None = None
    notes: tuple[str, ...] = ()
    has_boxes: bool = False
    object_classes: int | None = None

    def __post_init__(self):
        if self.num_classes is not None and not 1 <= self.num_classes <= MAX_CLASSES:
            raise SourceError(
                f"data set {self.name!r} has {self.num_classes} classes; allowed: labels from 0, "
                f"and up to {MAX_CLASSES:,} classes"
            )

    def to_record(self) -> dict[str, Any]:
        """What the records of runs and studies say of the data set."""
        record = dataclasses.asdict(self)
        del record["object_classes"]
        return record


def check_split(name: str, split: str, splits: Collection[str]) -> None:
    """Raises SourceError unless the data set `name` has the split `split`."""
    if split not in splits:
        raise SourceError(f"data set {name!r} has no split {split!r}; allowed: {', '.join(splits)}")


def fingerprint(*parts: bytes) -> str:
    """The first 16 hexadecimal digits of the SHA-256 of the concatenated parts."""
    return hashlib.sha256(b"".join(parts)).hexdigest()[:16]
