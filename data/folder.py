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
import pathlib
import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from data.path_data import (
    SPLITS,
    PathData,
    Settings,
    boxes_hint,
    canonical_split,
    image_properties,
    shuffled_order,
    some,
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

# Top folders that are meant as splits, but are not called train, validation, or test.
_LIKE_A_SPLIT = re.compile(
    r"(train|test|val|valid|dev|eval)(ing|idation|uation)?([^a-z].*)?", re.I | re.S
)


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

    def place(self, number: int) -> str:
        return self._tree.path(self._names[number])


def open_tree(tree: Tree, settings: Settings) -> PathData:
    """The images below a directory. Images outside of the folder of a class are ignored.

    Raises:
        SourceError: there are no images in folders, or in one of them, or the folders are no
            classes.
        RecordError: one of the first images cannot be read.
    """
    images = [name for name in tree.names if name.lower().endswith(SUFFIXES)]
    by_split = any(re.match(r"train/[^/]+/", name) for name in images)
    places = _places(images, by_split)
    if "train" not in places:
        raise SourceError(
            f"{tree.root} has no images in folders; give the directory whose folders are the "
            f"classes, or train/ and validation/ with such folders ({', '.join(SUFFIXES)})"
            f"{boxes_hint(tree.names)}"
        )
    of_train = set(places["train"].values())
    places = {
        split: class_of
        for split, class_of in places.items()
        if split in SPLITS or of_train.issuperset(class_of.values())
    }
    classes = tuple(sorted({name for classes in places.values() for name in classes.values()}))
    if not by_split and all(map(_LIKE_A_SPLIT.fullmatch, classes)):
        raise SourceError(
            f"the folders of {tree.root} look like splits ({', '.join(classes)}), and would be its "
            "classes; rename them to train, validation, and test, with a folder for each class"
            f"{boxes_hint(tree.names)}"
        )
    notes = _notes(settings.name, tree, by_split, set(places), set(classes))
    if len(classes) < 2:
        raise SourceError(
            f"{tree.root} has images of one class, {', '.join(classes)!r}; give the directory "
            f"whose folders are the classes{boxes_hint(tree.names)}"
        )
    splits = {
        split: functools.cache(functools.partial(_split, tree, classes, class_of))
        for split, class_of in places.items()
    }
    used = tree.only([name for class_of in places.values() for name in class_of])
    shape, channels = image_properties(splits["train"]())
    # Names alone: the run on a file that was damaged resumes when the file is restored.
    names = fingerprint("\n".join(used.names).encode(errors="surrogateescape"))
    info = DatasetInfo(
        settings.name, "folder", names, len(classes), shape, channels, notes=tuple(notes)
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
) -> list[str]:
    """A sentence on files in the folders of classes that are left out, if there are any.

    Raises:
        SourceError: the folder of a class has no image.
    """
    others = [name for name in tree.names if not name.lower().endswith(SUFFIXES)]
    others += [f"{directory}/" for directory in tree.empty if directory != "."]
    others = [name for name in others if _LEFTOVERS.isdisjoint(name.lower().split("/"))]
    number, suffixes = 0, set()
    without: dict[str, set[str]] = {}
    for split, class_of in _places(others, by_split).items():
        if split not in splits.union(SPLITS):
            continue
        for name, its_class in class_of.items():
            suffix = pathlib.PurePosixPath(name).suffix.lower() or "no suffix"
            if its_class not in classes:
                without.setdefault(its_class, set()).add("empty" if name[-1] == "/" else suffix)
            elif name[-1] != "/":
                number += 1
                suffixes.add(suffix)
    if without:
        folders = some(f"{name} ({some(kinds)})" for name, kinds in without.items())
        raise SourceError(
            f"{tree.root} has folders of classes without images: {folders}; allowed: "
            f"{', '.join(SUFFIXES)}; convert the images, or move what is no class away"
            f"{boxes_hint(tree.names)}"
        )
    note = f"files in the folders of the classes of {shown} that are not images of a known suffix"
    return [f"{note}, and are left out: {number} ({some(suffixes)})"] if number else []


def _split(tree: Tree, classes: tuple[str, ...], class_of: dict[str, str]) -> _ImageFiles:
    number, all_names = {name: n for n, name in enumerate(classes)}, list(class_of)
    names = [all_names[place] for place in shuffled_order(len(all_names))]
    labels_N = np.fromiter((number[class_of[name]] for name in names), np.int64, len(names))
    return _ImageFiles(tree, names, labels_N)
