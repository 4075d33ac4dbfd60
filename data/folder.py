"""Images in folders, one per class, as torchvision's ImageFolder reads them.

    PATH/CLASS/*.jpg                        one split, `train`
    PATH/train/CLASS/*.jpg, PATH/val/...    the splits that PATH's folders name

Classes are the names of the folders in sorted order, over all splits. Images may lie in folders
within a class. Next to train/, a folder that is called neither validation nor test is a split only
if its folders are classes of train/; others, such as masks/train/, are ignored.

Each folder of a class must have an image, as for ImageFolder: the numbers of the classes after one
without images would silently change.
"""

import functools
import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from data.path_data import (
    SPLITS,
    PathData,
    Settings,
    canonical_split,
    image_properties,
    shuffled_order,
)
from data.sources import DatasetInfo, Records, SourceError, fingerprint
from data.storage import Tree

# Of a .gif, the first frame counts.
SUFFIXES = (
    *(".jpg", ".jpeg", ".jfif", ".png", ".bmp", ".gif", ".webp", ".avif"),
    *(".ppm", ".pgm", ".tif", ".tiff"),
)

# What Windows and macOS add to folders.
_LEFTOVERS = {"thumbs.db", "desktop.ini", "__macosx"}


class _ImageFiles(Records):
    """Records {'image': bytes, 'label': int, 'file_name': str}."""

    def __init__(self, tree: Tree, names: list[str], labels_N: np.ndarray):
        self._tree, self._names, self._labels = tree, names, labels_N

    def __len__(self) -> int:
        return len(self._names)

    def read(self, numbers: Sequence[int]) -> list[dict[str, Any]]:
        names = [self._names[number] for number in numbers]
        return [
            {"image": image, "label": int(self._labels[number]), "file_name": name}
            for number, name, image in zip(numbers, names, self._tree.read(names), strict=True)
        ]

    def key(self, number: int) -> bytes:
        return self._names[number].encode(errors="surrogateescape")

    def place(self, number: int) -> str:
        return self._tree.path(self._names[number])


def open_tree(tree: Tree, settings: Settings) -> PathData:
    """The images below a directory. Images outside of the folder of a class are ignored.

    Raises:
        SourceError: there are not two classes, or one of them has no image.
        RecordError: one of the first images cannot be read.
    """
    images = [name for name in tree.names if name.lower().endswith(SUFFIXES)]
    by_split = any(re.match(r"train/[^/]+/", name) for name in images)
    places = _places(images, by_split)
    of_train = set(places.get("train", {}).values())
    places = {
        split: class_of
        for split, class_of in places.items()
        if split in SPLITS or of_train.issuperset(class_of.values())
    }
    classes = tuple(sorted({name for class_of in places.values() for name in class_of.values()}))
    if len(classes) < 2:
        raise SourceError(
            f"{tree.root} has images ({', '.join(SUFFIXES)}) of {len(classes)} classes; give the "
            "directory whose folders are the classes, or train/ and validation/ with such folders"
        )
    used = [name for class_of in places.values() for name in class_of]
    # Names alone: the run on a file that was damaged resumes when the file is restored.
    names = fingerprint("\n".join(sorted(used)).encode(errors="surrogateescape"))
    splits = {
        split: functools.cache(functools.partial(_split, tree, classes, class_of))
        for split, class_of in places.items()
    }
    info = DatasetInfo(
        name=settings.name,
        version="folder",
        fingerprint=names,
        num_classes=len(classes),
        notes=_notes(settings.name, tree, by_split, set(places), set(classes)),
        **image_properties(splits["train"]()),
    )
    return PathData(splits, info, classes)


def _places(names: Iterable[str], by_split: bool) -> dict[str, dict[str, str]]:
    """By split, the class of each file that is in the folder of one."""
    places: dict[str, dict[str, str]] = {}
    for name in names:
        *folders, _ = name.split("/")
        split = canonical_split(folders[0]) if by_split and folders else "train"
        if len(folders) > by_split:
            places.setdefault(split, {})[name] = folders[by_split]
    return places


def _notes(
    shown: str, tree: Tree, by_split: bool, splits: set[str], classes: set[str]
) -> tuple[str, ...]:
    """A sentence on files in the folders of classes that are left out, if there are any.

    Raises:
        SourceError: the folder of a class has no image.
    """
    others = [name for name in tree.names if not name.lower().endswith(SUFFIXES)]
    others += [f"{directory}/" for directory in tree.empty if directory != "."]
    others = [name for name in others if _LEFTOVERS.isdisjoint(name.lower().split("/"))]
    class_of = {
        name: folder
        for split, places in _places(others, by_split).items()
        if split in splits.union(SPLITS)
        for name, folder in places.items()
    }
    if without := sorted(set(class_of.values()) - classes):
        raise SourceError(
            f"{tree.root}/.../{without[0]} has no images; allowed: {', '.join(SUFFIXES)}; convert "
            "the images, or move what is no class away"
        )
    number = sum(not name.endswith("/") for name in class_of)
    note = f"{number} files in the folders of {shown} are no images of a known suffix and left out"
    return (note,) * bool(number)


def _split(tree: Tree, classes: tuple[str, ...], class_of: dict[str, str]) -> _ImageFiles:
    number, all_names = {name: n for n, name in enumerate(classes)}, list(class_of)
    names = [all_names[place] for place in shuffled_order(len(all_names))]
    labels_N = np.fromiter((number[class_of[name]] for name in names), np.int64, len(names))
    return _ImageFiles(tree, names, labels_N)
