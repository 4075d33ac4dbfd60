"""Images and labels in one .npz file.

Its arrays are `image` (uint8 [N, H, W] or [N, H, W, C]) and `label` (whole numbers [N] or [N, 1]),
also called images or x, and labels or y. A name may carry a split: train_images, y_test.
"""

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from data.file_source import Records
from data.path_data import (
    PathData,
    check_classes,
    check_one,
    number_of_classes,
    shuffled_order,
    split_named,
)
from data.sources import DatasetInfo, SourceError, reading
from data.storage import Tree

_WORDS = {"image": ("image", "images", "x"), "label": ("label", "labels", "y")}


def open_tree(tree: Tree, name: str, columns: dict[str, str], _: str) -> PathData:
    """The arrays of a file. Those of a split are in memory once it is opened.

    Raises:
        SourceError: the file is damaged, or does not hold images and labels.
    """
    if not tree.is_file:
        raise SourceError(f"{tree.root} is a directory; give an .npz file in it")
    (file,) = tree.names
    shown, path = tree.path(file), tree.local(file)
    with reading(shown):
        arrays = np.load(path)
        names = _names(shown, arrays.files, columns)  # an .npy file has no `files`
    if "train" not in names:
        raise SourceError(
            f"{shown} has no arrays image and label (or images, x; labels, y; or train_images, "
            f"y_train), but {', '.join(arrays.files)}; name two: npz:PATH?image=NAME&label=NAME"
        )
    classes = np.unique(_labels(shown, arrays, names["train"]["label"])).tolist()
    records = functools.cache(functools.partial(_records, shown, arrays, names, classes))
    (first,) = records("train").read([0])
    number, notes = number_of_classes(classes)
    info = DatasetInfo(
        name=name,
        version="npz",
        fingerprint=tree.fingerprint(tree.names),
        num_classes=number,
        image_shape=first["image"].shape,
        channels=first["image"].shape[-1],
        notes=notes,
    )
    return PathData(tree, tuple(names), records, info)


def _names(shown: str, arrays: Sequence[str], given: dict[str, str]) -> dict[str, dict[str, str]]:
    """The names of the arrays image and label of each split that has both."""
    known = _WORDS | {kind: (name,) for kind, name in given.items()}
    splits: dict[str, dict[str, str]] = {}
    for name in arrays:
        words = "_".join(part for part in name.split("_") if not split_named(part)).lower()
        for kind, allowed in known.items():
            if name in allowed or words in allowed:
                pair = splits.setdefault(split_named(name) or "train", {})
                check_one(shown, f"arrays for {kind}", {name, pair.setdefault(kind, name)})
    return {split: pair for split, pair in splits.items() if len(pair) == 2}


def _labels(shown: str, arrays: Any, name: str) -> np.ndarray:
    labels = _load(shown, arrays, name)
    if labels.dtype.kind not in "iu" or not labels.size == len(labels) > 0 or labels.min() < 0:
        raise _unusable(shown, name, labels, "a whole number from 0 for each image")
    return labels.reshape(-1)


def _records(
    shown: str, arrays: Any, names: dict[str, dict[str, str]], classes: list[int], split: str
) -> Records:
    pair = names[split]
    labels_N = _labels(shown, arrays, pair["label"])
    check_classes(f"{pair['label']} of {shown}", classes, labels_N.tolist())
    images = _load(shown, arrays, pair["image"])
    n, usable = len(labels_N), images.dtype == np.uint8 and images.ndim in (3, 4) and images.size
    if not usable or len(images) != n or images.shape[3:] not in ((), (1,), (3,)):
        allowed = f"uint8 [{n}, H, W], [{n}, H, W, 1], or [{n}, H, W, 3], as numpy.moveaxis makes"
        raise _unusable(shown, pair["image"], images, allowed)
    images_NxHxWxC = images.reshape(*images.shape[:3], -1)
    images_NxHxWxC.setflags(write=False)  # records are views
    return Records(
        order=shuffled_order(n),
        read=lambda rows: [
            {"image": images_NxHxWxC[row], "label": int(labels_N[row])} for row in rows
        ],
        place=lambda row: f"{shown}, row {row}",
        key=lambda row: images_NxHxWxC[row].tobytes(),
    )


def _unusable(shown: str, name: str, array: np.ndarray, allowed: str) -> SourceError:
    kind = f"{array.dtype} {list(array.shape)}"
    return SourceError(f"array {name} of {shown} is {kind}; allowed: {allowed}")


def _load(shown: str, arrays: Any, name: str) -> np.ndarray:
    with reading(f"array {name} of {shown}"):
        return np.asarray(arrays[name])
