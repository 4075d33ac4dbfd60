"""What a source of raw records is, what is known of its data set, and what can be wrong with it."""

import abc
import contextlib
import dataclasses
import hashlib
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from runs import cli
from runs.records import plain

# Larger than any real data set has, and small enough that the last layer does not fill the memory.
MAX_CLASSES = 2**20

# A library's error message may quote the whole record.
_MAX_REASON = 300

_SAMPLE = 256  # records whose size is looked up, for the mean


class SourceError(cli.InputError):
    """A data set or split is missing or unusable; the message says what to do."""


class RecordError(cli.InputError, ValueError):
    """A record cannot be read or decoded; the message names the record and gives the reason."""


class DamagedError(ValueError):
    """The file of an example is damaged; dataset.damaged=skip skips it."""


def reason(error: Exception) -> str:
    """An error's message on one line of limited length, with its type unless that says nothing."""
    text = plain(error) or "no reason given"
    if not isinstance(error, ValueError | OSError):
        text = f"{type(error).__name__}: {text}"
    return plain(text, _MAX_REASON)


@contextlib.contextmanager
def reading(what: str) -> Iterator[None]:
    """Replaces an error by a SourceError that names what cannot be read: libraries raise any."""
    try:
        yield
    except cli.InputError:
        raise
    except Exception as error:
        raise SourceError(f"{what} cannot be read: {reason(error)}") from error


class Source(abc.ABC):
    """Random access to raw records; safe to read from several threads.

    Images are encoded bytes or arrays; a workload's `decode` accepts both.

    Attributes:
        slices: the rows of the data set's splits that it has (file_source.Slice), if there are any.
    """

    slices: Sequence[Any] = ()

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

    def bytes_read(self, fresh_examples: int) -> int | None:
        """Bytes of the images and arrays of so many fresh examples, estimated from a sample of the
        records; None if that cannot be read."""
        places = range(0, len(self), -(-len(self) // _SAMPLE))
        try:
            values = jax.tree.leaves(self.__getitems__(places))
        except Exception:  # a run that has ended must not fail by its size
            return None
        size = sum(len(v) if isinstance(v, bytes) else getattr(v, "nbytes", 0) for v in values)
        return round(fresh_examples * size / len(places))

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


def in_share(share: float, key: bytes) -> bool:
    """Whether a record belongs to a share of all, by a hash of its key."""
    digest = hashlib.blake2b(key, digest_size=8).digest()
    return int.from_bytes(digest, "big") < share * 2**64


def fingerprint(*parts: bytes) -> str:
    """The first 16 hexadecimal digits of the SHA-256 of the concatenated parts."""
    return hashlib.sha256(b"".join(parts)).hexdigest()[:16]
