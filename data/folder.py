"""Images in folders, one per class, as torchvision's ImageFolder reads them.

    PATH/CLASS/*.jpg                        one split, `train`
    PATH/train/CLASS/*.jpg, PATH/val/...    the splits that PATH's folders name

Classes are the names of the folders of `train` in sorted order. Images may lie in folders within a
class. Training/, TRAIN/, and so on are splits, too. Next to train/, folders other than those of
splits, such as masks/train/, are ignored.
"""

import functools
from collections.abc import Sequence
from typing import Any

from configs.base import IMAGES
from data.file_source import Records
from data.path_data import (
    SPLITS,
    PathData,
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


def open_tree(tree: Tree, name: str, *_: Any) -> PathData:
    """The images below a directory. Images outside of the folder of a class are ignored.

    Raises:
        SourceError: there are not two classes, or one of them has no image. Opening a split raises
            it for classes that `train` lacks.
        RecordError: one of the first images cannot be read.
    """
    images = {file for file in tree.names if file.lower().endswith(IMAGES)}
    nested = [file.split("/")[:2] for file in images if file.count("/") > 1]
    tops = {top for top, _ in nested}
    by_split = "train" in map(canonical_split, tops)
    named = {top for top in tops if split_named(top)}
    named |= {f"{top}/{second}" for top, second in nested if canonical_split(second) in SPLITS}
    if named and not by_split:
        raise SourceError(
            f"{tree.root}/{min(named)} is named like a split, but there is no folder train; give "
            "the directory with train, validation, and test, or rename that one if it is a class"
        )
    for split in SPLITS if by_split else ():
        alike = {top for top in tops if canonical_split(top) == split}
        check_one(tree.root, f"folders for the split {split}", alike)
    of_split: dict[str, dict[str, str]] = {}  # by split, the class of each image
    left_out = []
    for file in tree.names:
        folders = file.split("/")[:-1]
        split = canonical_split(folders[0]) if by_split and folders else "train"
        if len(folders) > by_split and split in SPLITS:
            if file in images:
                of_split.setdefault(split, {})[file] = folders[by_split]
            else:
                left_out.append(folders[by_split])
    classes = sorted(set(of_split.get("train", {}).values()))
    if len(classes) < 2:
        raise SourceError(
            f"{tree.root} has images ({', '.join(IMAGES)}) of {len(classes)} classes; give the "
            "directory whose folders are the classes, or train/ and validation/ with such folders"
        )
    if without := sorted(set(left_out).difference(*map(dict.values, of_split.values()))):
        raise SourceError(
            f"{tree.root}/.../{without[0]} has no images; allowed: {', '.join(IMAGES)}; convert "
            "the images, or move what is no class away"
        )
    note = f"{len(left_out)} files in the folders of {name} are no images, and are left out"
    records = functools.partial(_records, tree, classes, of_split)
    first = records("train").at(range(_HASHED))
    # Not all of the content: the run on a file that was damaged resumes when the file is restored.
    used = sorted(file for class_of in of_split.values() for file in class_of)
    properties = image_properties(records("train"))
    contents = [record["image"] for record in first.read(first.order)]
    info = DatasetInfo(
        name=name,
        version="folder",
        fingerprint=fingerprint(encoded("\n".join(used)), *contents),
        num_classes=len(classes),
        notes=(note,) * bool(left_out),
        **properties,
    )
    return PathData(tree, tuple(of_split), records, info)


def _records(
    tree: Tree, classes: list[str], of_split: dict[str, dict[str, str]], split: str
) -> Records:
    """Records {'image': bytes, 'label': int, 'file_name': str} of a split."""
    class_of = of_split[split]
    check_classes(f"split {split!r} of {tree.root}", classes, class_of.values())
    names, number = list(class_of), {name: n for n, name in enumerate(classes)}

    def read(rows: Sequence[int]) -> list[dict[str, Any]]:
        chosen = [names[row] for row in rows]
        return [
            {"image": image, "label": number[class_of[name]], "file_name": name}
            for name, image in zip(chosen, tree.read(chosen), strict=True)
        ]

    return Records(
        order=shuffled_order(len(names)),
        read=read,
        place=lambda row: tree.path(names[row]),
        key=lambda row: encoded(names[row]),
    )
