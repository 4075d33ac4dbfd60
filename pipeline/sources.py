"""Random-access sources of raw records: TFDS data sets, and what is made of scikit-learn's alike.

A source has a length, gives records as dicts by index, one or a list at a time, and is safe to read
from several threads. Images may come as encoded bytes (TFDS) or as arrays (digits); a workload's
`decode` takes both.
"""

import dataclasses
import functools
import hashlib
import os
import pathlib
import re
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from pipeline.scenes import SceneSource


class SourceError(Exception):
    """The data set or split that was asked for is not there; the message says how to get it."""


class Source(Protocol):
    """Random access to raw records."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> dict[str, Any]: ...

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]: ...


@dataclasses.dataclass(frozen=True)
class DatasetInfo:
    """What a model has to know of a data set, and what identifies it in a run's record.

    Attributes:
        num_classes: of images, or of the objects in them.
        image_shape: (height, width, channels), or None where records differ.
        has_boxes: whether a record's `objects` say where in the image they are.
        fingerprint: a hash of the data set's description (TFDS) or bytes (digits).
    """

    name: str
    version: str
    fingerprint: str
    num_classes: int | None
    image_shape: tuple[int, int, int] | None
    has_boxes: bool = False


class ArraySource:
    """Records whose fields are rows of arrays in memory."""

    def __init__(self, **columns: np.ndarray):
        self._columns = columns
        for column in columns.values():
            column.setflags(write=False)  # records are views: nobody may write through them

    def __len__(self) -> int:
        return len(next(iter(self._columns.values())))

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {name: column[index] for name, column in self._columns.items()}

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        return [self[index] for index in indices]


def open_source(name: str, split: str, data_dir: str = "") -> tuple[Source, DatasetInfo]:
    """The records of a split, and what is known of the data set.

    Args:
        name: 'digits', 'digit_scenes' (see pipeline/scenes.py), or a data set that TFDS has prepared as array_record.
        split: in TFDS's notation: 'train', 'train[:90%]', 'validation'.
        data_dir: where TFDS looks; '' = $TFDS_DATA_DIR, or ~/tensorflow_datasets.

    Raises:
        SourceError: there is no such data set or split.
    """
    if name == "digits":
        return _open_digits(split)
    if name == "digit_scenes":
        return _open_digit_scenes(split)
    return _open_tfds(name, split, data_dir)


# The digits in a fixed random order: rows up to the first number train, the next validate, the
# rest test. scikit-learn's order goes by writer; unpermuted, the splits would differ in kind.
_DIGITS_SPLITS = {"train": (0, 1197), "validation": (1197, 1497), "test": (1497, 1797)}


@functools.cache
def _digits() -> tuple[np.ndarray, np.ndarray, str]:
    from sklearn import datasets

    digits = datasets.load_digits()
    order = np.random.Generator(np.random.PCG64(0)).permutation(len(digits.target))
    images_NxHxWx1 = np.round(digits.images[order, :, :, None] * (255 / 16)).astype(np.uint8)
    labels_N = digits.target[order].astype(np.int64)
    fingerprint = hashlib.sha256(images_NxHxWx1.tobytes() + labels_N.tobytes()).hexdigest()[:16]
    return images_NxHxWx1, labels_N, fingerprint


def _digits_of(name: str, split: str) -> tuple[np.ndarray, np.ndarray, str]:
    """Images and labels of a split, and the fingerprint of all."""
    if split not in _DIGITS_SPLITS:
        raise SourceError(
            f"data set {name!r} has no split {split!r}; allowed: {', '.join(_DIGITS_SPLITS)}"
        )
    images, labels, fingerprint = _digits()
    start, stop = _DIGITS_SPLITS[split]
    return images[start:stop], labels[start:stop], fingerprint


def _open_digits(split: str) -> tuple[Source, DatasetInfo]:
    images, labels, fingerprint = _digits_of("digits", split)
    info = DatasetInfo("digits", "scikit-learn", fingerprint, 10, images.shape[1:])
    return ArraySource(image=images, label=labels), info


# Scenes of each split; the digits in them are those of the same split of 'digits'.
_SCENES = {"train": 4000, "validation": 200, "test": 200}


def _open_digit_scenes(split: str) -> tuple[Source, DatasetInfo]:
    images, labels, fingerprint = _digits_of("digit_scenes", split)
    source = SceneSource(images[..., 0], labels, list(_SCENES).index(split), _SCENES[split])
    info = DatasetInfo("digit_scenes", "scikit-learn", fingerprint, 10, None, has_boxes=True)
    return source, info


def _open_tfds(name: str, split: str, data_dir: str) -> tuple[Source, DatasetInfo]:
    import tensorflow_datasets as tfds

    where = data_dir or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets"
    try:
        builder = tfds.builder(name, data_dir=str(pathlib.Path(where).expanduser()))
        prepared = builder.is_prepared()
    except (tfds.core.DatasetNotFoundError, ValueError, OSError):
        prepared = False
    if not prepared:
        raise SourceError(
            f"data set {name!r} is not prepared in {where}; prepare it there with "
            f"tfds.builder({name!r}, file_format='array_record').download_and_prepare(), point "
            "TFDS_DATA_DIR or config.dataset.data_dir at it, or use --config=FILE:mini, "
            "which needs no download"
        )
    try:
        source = builder.as_data_source(split, decoders={"image": tfds.decode.SkipDecoding()})
    except ValueError as error:
        raise SourceError(
            f"data set {name!r} has no split {split!r}; allowed: {', '.join(builder.info.splits)}, "
            "or a slice of one such as train[:90%]"
        ) from error
    except NotImplementedError as error:
        raise SourceError(
            f"data set {name!r} in {where} is not in random-access form; prepare it with "
            "file_format='array_record'"
        ) from error
    return source, _tfds_info(builder)


def _tfds_info(builder) -> DatasetInfo:
    features = builder.info.features
    objects = features.get("objects")
    has_boxes = objects is not None and {"bbox", "label"} <= set(objects.feature)
    labelled = objects.feature if has_boxes else features
    shape = tuple(features["image"].shape) if "image" in features else None
    described = "".join(
        re.sub(r"\s", "", (pathlib.Path(builder.data_path) / file).read_text())
        for file in ("dataset_info.json", "features.json")
    )
    return DatasetInfo(
        name=builder.info.full_name,
        version=str(builder.info.version),
        fingerprint=hashlib.sha256(described.encode()).hexdigest()[:16],
        num_classes=labelled["label"].num_classes if "label" in labelled else None,
        image_shape=None if shape is None or None in shape else shape,
        has_boxes=has_boxes,
    )
