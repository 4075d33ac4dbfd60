"""What the kinds of data sets by path have in common; see paths.py."""

import dataclasses
import io
import re
import unicodedata
import urllib.parse
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image, UnidentifiedImageError

from data.sources import DatasetInfo, FileSource, RecordError, Records, SourceError, reason

# Images whose headers are read to find out whether all have one size.
_SAMPLE = 64

# Fields of records that may have other names in a data set.
FIELDS = ("image", "label", "objects", "text")

_GRAY_MODES = ("1", "L", "LA", "I", "I;16", "I;16B", "I;16L")

# Words for splits in names of files and folders, and what configurations call them.
_WORDS = {
    **{"train": "train", "training": "train", "test": "test", "testing": "test"},
    **dict.fromkeys(("validation", "valid", "val", "dev"), "validation"),
}
_NAMES_SPLIT = re.compile(rf"(?:.*[^a-z0-9])?({'|'.join(_WORDS)})(?:[^a-z0-9].*)?", re.S)
SPLITS = ("train", "validation", "test")


@dataclasses.dataclass(frozen=True)
class Settings:
    """What a configuration says about a data set by path.

    Attributes:
        name: config.dataset.name, KIND:PATH or KIND:PATH?FIELD=COLUMN&FIELD=COLUMN.
        text, cache_dir: fields of config.dataset.
    """

    name: str
    text: str = ""
    cache_dir: str = ""

    @property
    def kind(self) -> str:
        return self.name.partition(":")[0]

    @property
    def path(self) -> str:
        return self.name.partition(":")[2].partition("?")[0]

    @property
    def columns(self) -> dict[str, str]:
        """The column of each field that the name gives."""
        return dict(urllib.parse.parse_qsl(self.name.partition("?")[2]))


@dataclasses.dataclass(frozen=True)
class PathData:
    """An opened data set.

    Attributes:
        splits: opens the records of each split.
        classes: the names of the classes, if they have names.
    """

    splits: Mapping[str, Callable[[], Records]]
    info: DatasetInfo
    classes: tuple[str, ...] | None = None


def split_named(name: str) -> str:
    """The split that a file or directory belongs to by its name; '' if it names none.

    It is the word train, validation (or valid, val, dev), or test, apart from letters and digits,
    as in `my_val.txt`. The top folder that is such a word decides, then the name itself, then the
    top folder with such a word.
    """
    *folders, last = name.lower().split("/")
    if words := [folder for folder in folders if folder in _WORDS]:
        return _WORDS[words[0]]
    matches = filter(None, map(_NAMES_SPLIT.fullmatch, (last, *folders)))
    return next((_WORDS[match[1]] for match in matches), "")


def canonical_split(folder: str) -> str:
    """A split's name as configurations write it: `validation` for val/, `train` for Training/."""
    return _WORDS.get(folder.lower(), folder)


def main_split(splits: Collection[str]) -> str:
    """`train`, or the first split of a data set without it."""
    return "train" if "train" in splits else next(iter(splits))


def by_split(names: Sequence[str]) -> dict[str, list[str]]:
    """Names of files by split; all are `train` unless one of them says so."""
    splits: dict[str, list[str]] = {}
    for name in names:
        splits.setdefault(split_named(name), []).append(name)
    if "train" not in splits:
        return {"train": list(names)}
    splits.pop("", None)
    return splits


def check_classes(shown: str, classes: Collection[Any], found: Collection[Any]) -> None:
    """Raises SourceError if the split `shown` has classes that are not those of `train`."""
    if not (others := sorted(set(found).difference(classes))):
        return
    alike = {_spelling(name): name for name in classes}
    hints = [
        f" ({n!r} is {alike[_spelling(n)]!r} in train)" for n in others if _spelling(n) in alike
    ]
    listed = ", ".join(map(repr, others[:5])) + ", ..." * (len(others) > 5)
    raise SourceError(
        f"{shown} has classes that train lacks: {listed}{''.join(hints[:1])}; give it the classes "
        "of train"
    )


def _spelling(name: Any) -> str:
    """A class's name without what is easily mistaken: case, blanks, the form of Unicode."""
    return re.sub(r"[\W_]", "", unicodedata.normalize("NFKC", str(name)).casefold())


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
