"""Images and labels in one .npz file.

Its arrays are `image` (uint8 [N, H, W] or [N, H, W, C]) and `label` (whole numbers [N] or [N, 1]),
also called images or x, and labels or y. A name may carry a split: train_images, y_test.
"""

import functools
import pathlib
import zipfile
from collections.abc import Sequence
from typing import Any

import numpy as np

from data.path_data import PathData, Settings, damaged, shuffled_order, split_named
from data.sources import MAX_CLASSES, DatasetInfo, Records, SourceError, fingerprint
from data.storage import Tree

SUFFIXES = (".npz",)

_WORDS = {"image": ("image", "images", "x"), "label": ("label", "labels", "y")}


class _Rows(Records):
    """Records {'image': uint8 [H, W, C], 'label': int}."""

    def __init__(self, path: str, images_NxHxWxC: np.ndarray, labels_N: np.ndarray):
        images_NxHxWxC.setflags(write=False)  # records are views
        self.shape = images_NxHxWxC.shape[1:]
        self._path, self._images, self._labels = path, images_NxHxWxC, labels_N
        self._order = shuffled_order(len(labels_N))

    def __len__(self) -> int:
        return len(self._labels)

    def read(self, numbers: Sequence[int]) -> list[dict[str, Any]]:
        rows = [self._order[number] for number in numbers]
        return [{"image": self._images[row], "label": int(self._labels[row])} for row in rows]

    def place(self, number: int) -> str:
        return f"{self._path}, row {self._order[number]}"


def open_tree(tree: Tree, settings: Settings) -> PathData:
    """The arrays of a file. Those of a split are in memory once it is opened.

    Raises:
        SourceError: the file is damaged, or does not hold images and labels.
    """
    if len(tree.names) != 1:
        raise SourceError(f"{tree.root} is a directory; give an .npz file in it")
    (name,) = tree.names
    shown, path = tree.path(name), tree.local(name, settings.cache_dir)
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
    except (OSError, zipfile.BadZipFile) as error:
        if path.suffix == ".npy":
            raise SourceError(
                f"{shown} is a .npy file, which holds one array; save both arrays in one .npz "
                f"file, with np.savez({path.stem + '.npz'!r}, image=images, label=labels)"
            ) from error
        raise damaged(shown, error) from error
    names = _names(shown, [member.filename for member in members], settings)
    if "train" not in names:
        arrays = ", ".join(member.filename.removesuffix(".npy") for member in members)
        raise SourceError(
            f"{shown} has no arrays image and label (or images, x; labels, y; or train_images, "
            f"y_train), but {arrays}; name two, as in config.dataset.name="
            f"'npz:{settings.path}?image=NAME&label=NAME'"
        )
    labels = {split: _labels(shown, path, pair["label"]) for split, pair in names.items()}
    splits = {
        split: functools.cache(functools.partial(_rows, shown, path, pair["image"], labels[split]))
        for split, pair in names.items()
    }
    shape = splits["train"]().shape
    contents = [f"{member.filename} {member.CRC} {member.file_size}" for member in members]
    info = DatasetInfo(
        name=settings.name,
        version="npz",
        fingerprint=fingerprint(*map(str.encode, contents)),
        num_classes=max(int(labels_N.max()) for labels_N in labels.values()) + 1,
        image_shape=shape,
        channels=shape[-1],
    )
    return PathData(splits, info)


def _names(shown: str, members: list[str], settings: Settings) -> dict[str, dict[str, str]]:
    """The names of the arrays image and label of each split."""
    known = _WORDS | {kind: (given,) for kind, given in settings.columns.items()}
    splits: dict[str, dict[str, str]] = {}
    for name in members:
        name = name.removesuffix(".npy")
        split = split_named(name)
        parts = [part for part in name.split("_") if not split_named(part)]
        for kind, allowed in known.items():
            if name in allowed or "_".join(parts).lower() in allowed:
                other = splits.setdefault(split or "train", {}).setdefault(kind, name)
                if other != name:
                    raise SourceError(
                        f"{shown} has the arrays {other} and {name}, either of which could be "
                        f"{kind}; name one, as in config.dataset.name="
                        f"'npz:{settings.path}?{kind}={other}'"
                    )
    return {split: pair for split, pair in splits.items() if {"image", "label"} <= set(pair)}


def _labels(shown: str, path: pathlib.Path, name: str) -> np.ndarray:
    labels = _load(shown, path, name)
    if labels.ndim not in (1, 2) or labels.size != len(labels) or labels.dtype.kind not in "iu":
        raise SourceError(
            f"array {name} of {shown} is {labels.dtype} {list(labels.shape)}; allowed: whole "
            "numbers [N], the class of each image"
        )
    if not labels.size or labels.min() < 0 or labels.max() >= MAX_CLASSES:
        raise SourceError(
            f"array {name} of {shown} is empty, or has labels outside of 0 to {MAX_CLASSES - 1}; "
            "number the classes from 0"
        )
    return labels.reshape(-1)


def _rows(shown: str, path: pathlib.Path, name: str, labels_N: np.ndarray) -> _Rows:
    images = _load(shown, path, name)
    wrong = images.ndim not in (3, 4) or images.dtype != np.uint8 or not images.size
    if wrong or len(images) != len(labels_N):
        raise SourceError(
            f"array {name} of {shown} is {images.dtype} {list(images.shape)}; allowed: uint8 "
            f"[{len(labels_N)}, H, W] or [{len(labels_N)}, H, W, C], an image for each label"
        )
    return _Rows(shown, images.reshape(*images.shape[:3], -1), labels_N)


def _load(shown: str, path: pathlib.Path, name: str) -> np.ndarray:
    try:
        with np.load(path) as arrays:
            array = _array(arrays, name)
            if isinstance(array, np.ndarray):
                return array
            raise ValueError(f"{name} is no array")  # but the bytes of another file
    except Exception as error:  # damaged archives raise many types
        raise damaged(shown, error) from error


def _array(arrays: Any, name: str) -> Any:
    """An array of an opened file; if it holds Python objects, only its type and shape are real."""
    try:
        return arrays[name]
    except ValueError as error:
        if "allow_pickle" not in str(error):
            raise
    with arrays.zip.open(f"{name}.npy") as file:  # loading the objects could run any code
        np.lib.format.read_magic(file)
        shape, _, dtype = np.lib.format.read_array_header_1_0(file)
    return np.broadcast_to(np.empty((), dtype), shape)
