"""Images in folders, one per class, as torchvision's ImageFolder reads them.

    PATH/CLASS/*.jpg                        one split, `train`
    PATH/train/CLASS/*.jpg, PATH/val/...    the splits that PATH's folders name

Classes are the names of the folders of `train` in sorted order. Images may lie in folders within a
class. Training/, TRAIN/, and so on are splits, too. Next to train/, folders other than those of
splits, such as masks/train/, are ignored.
"""

import functools
from collections.abc import Iterable, Sequence
from typing import Any

from data.file_source import Records
from data.path_data import (
    SPLITS,
    PathData,
    Settings,
    canonical_split,
    check_classes,
    check_one,
    image_properties,
    shuffled_order,
    split_named,
)
from data.sources import DatasetInfo, SourceError, fingerprint
from data.storage import Tree, encoded

_HASHED = 16  # images whose content is a part of the fingerprint

# Of a .gif, the first frame counts.
SUFFIXES = (
    *(".jpg", ".jpeg", ".jfif", ".png", ".bmp", ".gif", ".webp", ".avif"),
    *(".ppm", ".pgm", ".tif", ".tiff"),
)


def open_tree(tree: Tree, settings: Settings) -> PathData:
    """The images below a directory. Images outside of the folder of a class are ignored.

    Raises:
        SourceError: there are not two classes, or one of them has no image. Opening a split raises
            it for classes that `train` lacks.
        RecordError: one of the first images cannot be read.
    """
    images = [name for name in tree.names if name.lower().endswith(SUFFIXES)]
    nested = [name.split("/") for name in images if name.count("/") > 1]
    folders = {parts[0] for parts in nested}
    by_split = any(canonical_split(folder) == "train" for folder in folders)
    named = {folder for folder in folders if split_named(folder)}
    named |= {f"{top}/{second}" for top, second, *_ in nested if canonical_split(second) in SPLITS}
    if named and not by_split:
        raise SourceError(
            f"{tree.root}/{min(named)} is named like a split, but there is no folder train; give "
            "the directory with train, validation, and test, or rename that one if it is a class"
        )
    for split in SPLITS if by_split else ():
        alike = {folder for folder in folders if canonical_split(folder) == split}
        check_one(tree.root, f"folders for the split {split}", alike)
    of_split = _classes(images, by_split)
    classes = tuple(sorted(set(of_split.get("train", {}).values())))
    if len(classes) < 2:
        raise SourceError(
            f"{tree.root} has images ({', '.join(SUFFIXES)}) of {len(classes)} classes; give the "
            "directory whose folders are the classes, or train/ and validation/ with such folders"
        )
    others = set(tree.names).difference(images)
    left_out = {k: v for of in _classes(sorted(others), by_split).values() for k, v in of.items()}
    if without := sorted(set(left_out.values()).difference(*map(dict.values, of_split.values()))):
        raise SourceError(
            f"{tree.root}/.../{without[0]} has no images; allowed: {', '.join(SUFFIXES)}; convert "
            "the images, or move what is no class away"
        )
    note = (
        f"{len(left_out)} files in the folders of {settings.name} are no images, and are left out"
    )
    records = functools.partial(_image_files, tree, classes, of_split)
    properties, first = image_properties(records("train")), records("train").at(range(_HASHED))
    # Not all of the content: the run on a file that was damaged resumes when the file is restored.
    used = sorted(name for class_of in of_split.values() for name in class_of)
    contents = [record["image"] for record in first.read(first.order)]
    info = DatasetInfo(
        name=settings.name,
        version="folder",
        fingerprint=fingerprint(encoded("\n".join(used)), *contents),
        num_classes=len(classes),
        notes=(note,) * bool(left_out),
        **properties,
    )
    return PathData(tuple(of_split), records, info, classes)


def _classes(names: Iterable[str], by_split: bool) -> dict[str, dict[str, str]]:
    """By split, the class of each file that is in the folder of one."""
    of_split: dict[str, dict[str, str]] = {}
    for name in names:
        *folders, _ = name.split("/")
        split = canonical_split(folders[0]) if by_split and folders else "train"
        if len(folders) > by_split and split in SPLITS:
            of_split.setdefault(split, {})[name] = folders[by_split]
    return of_split


def _image_files(
    tree: Tree, classes: tuple[str, ...], of_split: dict[str, dict[str, str]], split: str
) -> Records:
    """Records {'image': bytes, 'label': int, 'file_name': str} of files with their classes."""
    class_of = of_split[split]
    check_classes(f"split {split!r} of {tree.root}", classes, class_of.values())
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
        key=lambda row: encoded(names[row]),
    )
