"""Images in folders, one per class, as torchvision's ImageFolder reads them.

    PATH/CLASS/*.jpg                        one split, `train`
    PATH/train/CLASS/*.jpg, PATH/val/...    the splits that PATH's folders name

Classes are the names of the folders in sorted order, over all splits. Images may lie in folders
within a class. Training/, TRAIN/, and so on are splits, too. Next to train/, a folder that is
called neither validation nor test is a split only if its folders are classes of train/; others,
such as masks/train/, are ignored.

Each folder of a class must have an image, as for ImageFolder: the numbers of the classes after one
without images would silently change.
"""

import collections
import functools
from collections.abc import Iterable, Sequence
from typing import Any

from data.path_data import (
    SPLITS,
    PathData,
    Settings,
    canonical_split,
    image_properties,
    shuffled_order,
    split_named,
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


def open_tree(tree: Tree, settings: Settings) -> PathData:
    """The images below a directory. Images outside of the folder of a class are ignored.

    Raises:
        SourceError: there are not two classes, or one of them has no image.
        RecordError: one of the first images cannot be read.
    """
    images = [name for name in tree.names if name.lower().endswith(SUFFIXES)]
    nested = {name.split("/")[0] for name in images if name.count("/") > 1}
    by_split = any(canonical_split(folder) == "train" for folder in nested)
    if not by_split and (splits := sorted(filter(split_named, nested))):
        raise SourceError(
            f"{tree.root}/{splits[0]} is named like a split, but there is no folder train; rename "
            "the folders to train, validation, and test, or that one if it is a class"
        )
    places = _places(images, by_split)
    of_train = set(places["train"].values())
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
    others = set(tree.names).difference(images).union(f"{name}/" for name in tree.empty)
    others = [name for name in others if _LEFTOVERS.isdisjoint(name.lower().split("/"))]
    left_out = {
        name: folder
        for split, class_of in _places(others, by_split).items()
        if split in places or split in SPLITS
        for name, folder in class_of.items()
    }
    if without := sorted(set(left_out.values()).difference(classes)):
        raise SourceError(
            f"{tree.root}/.../{without[0]} has no images; allowed: {', '.join(SUFFIXES)}; convert "
            "the images, or move what is no class away"
        )
    number = sum(not name.endswith("/") for name in left_out)
    note = f"{number} files in the folders of {settings.name} are no images, and are left out"
    # Names alone: the run on a file that was damaged resumes when the file is restored.
    used = sorted(name for class_of in places.values() for name in class_of)
    splits = {
        split: functools.cache(functools.partial(_image_files, tree, classes, class_of))
        for split, class_of in places.items()
    }
    info = DatasetInfo(
        name=settings.name,
        version="folder",
        fingerprint=fingerprint("\n".join(used).encode(errors="surrogateescape")),
        num_classes=len(classes),
        notes=(note,) * bool(number),
        **image_properties(splits["train"]()),
    )
    return PathData(splits, info, classes)


def _places(names: Iterable[str], by_split: bool) -> dict[str, dict[str, str]]:
    """By split, the class of each file that is in the folder of one."""
    places: dict[str, dict[str, str]] = collections.defaultdict(dict)
    for name in names:
        *folders, _ = name.split("/")
        split = canonical_split(folders[0]) if by_split and folders else "train"
        if len(folders) > by_split:
            places[split][name] = folders[by_split]
    return places


def _image_files(tree: Tree, classes: tuple[str, ...], class_of: dict[str, str]) -> Records:
    """Records {'image': bytes, 'label': int, 'file_name': str} of files with their classes."""
    number = {name: n for n, name in enumerate(classes)}
    names, labels = list(class_of), [number[name] for name in class_of.values()]

    def read(rows: Sequence[int]) -> list[dict[str, Any]]:
        images = tree.read([names[row] for row in rows])
        return [
            {"image": image, "label": labels[row], "file_name": names[row]}
            for row, image in zip(rows, images, strict=True)
        ]

    return Records(
        order=shuffled_order(len(names)),
        read=read,
        place=lambda row: tree.path(names[row]),
        key=lambda row: names[row].encode(errors="surrogateescape"),
    )
