"""What the kinds of own data have in common; see paths.py."""

import collections
import dataclasses
import io
import re
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
from PIL import Image, UnidentifiedImageError

from data.file_source import FileSource, Records
from data.sources import DatasetInfo, RecordError, SourceError, reason
from data.storage import Tree

# Images whose headers are read to find out whether all have one size.
_SAMPLE = 64

_GRAY_MODES = ("1", "L", "LA", "I", "I;16", "I;16B", "I;16L")

# Words for splits in names of files and folders, and what configurations call them.
_WORDS = {
    **{"train": "train", "training": "train", "test": "test", "testing": "test"},
    **dict.fromkeys(("validation", "valid", "val", "dev"), "validation"),
}
_NAMES_SPLIT = re.compile(rf"(?:.*[^a-z0-9])?({'|'.join(_WORDS)})(?:[^a-z0-9].*)?", re.S)
# 00000-of-00002, perhaps with the hash that older files of the Hub have.
_SHARD = re.compile(r"(.*?)(\d+)-of-(\d+)(?:-[0-9a-f]{8,})?(\D.*|)", re.S)
SPLITS = ("train", "validation", "test")


@dataclasses.dataclass(frozen=True)
class PathData:
    """An opened data set.

    Attributes:
        tree: its files.
        splits: the names of its splits.
        open: the records of a split; may raise SourceError.
    """

    tree: Tree
    splits: Sequence[str]
    open: Callable[[str], Records]
    info: DatasetInfo

    @property
    def main(self) -> str:
        """`train`, or the first split of a data set without it."""
        return "train" if "train" in self.splits else self.splits[0]


def split_named(name: str) -> str:
    """The split that a file or directory belongs to by its name; '' if it names none.

    It is the word train, validation (or valid, val, dev), or test, apart from letters and digits,
    as in `my_val.txt`. The top folder that is such a word decides, then the name itself, then the
    top folder with such a word.
    """
    return _WORDS.get(_word_and_place(name)[0], "")


def _word_and_place(name: str) -> tuple[str, str]:
    """The word for a split in a name, and the folder of what has it; ('', '') if nothing has."""
    *folders, _ = parts = name.lower().split("/")
    exact = [depth for depth, folder in enumerate(folders) if folder in _WORDS]
    for depth in exact or [len(folders), *range(len(folders))]:
        if match := _NAMES_SPLIT.fullmatch(parts[depth]):
            return match[1], "/".join(name.split("/")[:depth])
    return "", ""


def canonical_split(folder: str) -> str:
    """A split's name as configurations write it: `validation` for val/, `train` for Training/."""
    return _WORDS.get(folder.lower(), folder)


def by_split(root: str, names: Sequence[str]) -> tuple[dict[str, list[str]], tuple[str, ...]]:
    """Names of files by split, and notes on others and missing ones; all are `train` if none is.

    Raises:
        SourceError: they are of several data sets.
    """
    splits: dict[str, list[str]] = {}
    for name in names:
        splits.setdefault(split_named(name), []).append(name)
    notes, found = [], []
    if "train" in splits:
        if unnamed := splits.pop("", None):
            notes = [f"{len(unnamed)} files, such as {unnamed[0]}, name no split, and are left out"]
        found = [_word_and_place(name) for files in splits.values() for name in files]
    else:
        splits = {"train": list(names)}
    check_one(root, "data sets, in the folders", {place for _, place in found})
    for split, files in splits.items():
        check_one(root, f"splits that mean {split}", {w for w, _ in found if _WORDS[w] == split})
        notes += _notes_on_missing(root, split, files)
    return splits, tuple(notes)


def _notes_on_missing(root: str, split: str, files: Sequence[str]) -> list[str]:
    """A note if numbered files of a split are missing; raises SourceError for several series."""
    shards = [match for name in files if (match := _SHARD.fullmatch(name))]
    if not shards:
        return []
    series = {_SHARD.sub(r"\1*-of-\3\4", name) for name in files}
    check_one(root, f"series of files for the split {split}", series)
    numbers = collections.Counter(int(shard[2]) for shard in shards)
    twice = [shard[0] for shard in shards if numbers[int(shard[2])] > 1]
    check_one(root, f"files of one number for the split {split}", twice)
    total = int(shards[0][3])
    missing = f"{len(files)} of the {total} files of split {split} are there"
    return [missing] * (len(files) < total)


def check_one(root: str, what: str, found: Collection[str]) -> None:
    """Raises SourceError if more than one is `found`, which would be mixed."""
    if len(found) > 1:
        listed = ", ".join(repr(name) for name in sorted(found)[:5])
        raise SourceError(
            f"{root} has several {what}: {listed}; give the path of one, or move the others away"
        )


def check_contents(tree: Tree, names: Sequence[str]) -> None:
    """Raises SourceError if files of a split have the same content, as a copy has."""
    digests = tree.digests(names)
    counts = collections.Counter(digests)
    twice = [name for name, digest in zip(names, digests, strict=True) if counts[digest] > 1]
    check_one(tree.root, "files of the same content", twice)


def number_of_classes(labels: Collection[int]) -> tuple[int, tuple[str, ...]]:
    """One more than the largest label, and a note if there are none of smaller numbers."""
    number = max(labels, default=-1) + 1
    missing = number - len(labels)
    note = f"{missing} of the {number} classes, which are numbered from 0, have no images"
    return number, (note,) * bool(missing)


def check_classes(shown: str, classes: Collection[Any], found: Collection[Any]) -> None:
    """Raises SourceError if the split `shown` has classes that are not those of `train`."""
    if others := sorted(set(found).difference(classes)):
        listed = ", ".join(ascii(name) for name in others[:5])  # accents have several spellings
        raise SourceError(f"{shown} has classes that train lacks: {listed}; give it the same")


def shuffled_order(n: int) -> list[int]:
    """A fixed random order of n records. Files are often sorted by class, so that `train[90%:]`
    would hold the last classes only."""
    return np.random.Generator(np.random.PCG64(0)).permutation(n).tolist()


def image_properties(records: Records) -> dict[str, Any]:
    """`image_shape` and `channels` (1 if all images are gray, else 3) of a DatasetInfo.

    Only the first records are read, which `shuffled_order` has made a random sample.

    Raises:
        RecordError: one of them is not an image.
    """
    source = FileSource("train", [records.at(range(_SAMPLE))])
    sizes, gray = set(), True
    for index, record in enumerate(source.__getitems__(range(len(source)))):
        try:
            with Image.open(io.BytesIO(record["image"])) as image:
                sizes.add((image.height, image.width))
                gray &= image.mode in _GRAY_MODES
        except Exception as error:  # the readers of many formats raise many types
            why = "" if isinstance(error, UnidentifiedImageError) else f": {reason(error)}"
            raise RecordError(
                f"{source.where(index)} is no image of a known format{why}; fix it, or remove it"
            ) from error
    channels = 1 if gray else 3
    shape = (*sizes.pop(), channels) if len(sizes) == 1 else None
    return {"image_shape": shape, "channels": channels}
