"""Synthetic photographs for detection without a download: digits painted onto two photographs.

scikit-learn's handwritten digits (8x8 pixels, enlarged) are painted onto crops of its two sample
photographs, a temple and a flower, and the result is encoded as JPEG. One minute of training on
them exercises everything that detection needs; they are not meant for comparing detectors.
"""

import functools
import io
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image

from data.sources import Source, sample_data

_MAX_DIGITS = 5
_SIDES = (112, 160)  # pixels; height and width are drawn separately
_DIGIT_SHARE = (0.25, 0.4)  # a digit's side / the scene's shorter side
_INK = 0.3  # the box encloses the pixels with at least this share of ink
_ATTEMPTS = 20  # at placing a digit where it overlaps no other
_JPEG_QUALITY = 90


class SceneSource(Source):
    """Records with the features of TFDS's `coco/2017`; scene i is a function of (key, i).

    Args:
        digits_NxHxW: uint8, 0 = no ink, 255 = full.
        labels_N: class of each digit.
        key: distinguishes the splits.
        length: number of scenes.
    """

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
            place = _free_place(random, _ink_box(ink_SxS), side, size_2, boxes)
            if place is None:
                continue
            corner_2, box_4 = place
            _paint(pixels_HxWx3, ink_SxS, corner_2, random)
            boxes.append(box_4)
            labels.append(int(self._labels[digit]))
        return _record(index, pixels_HxWx3, np.array(boxes), labels)

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        return [self[index] for index in indices]


@functools.cache
def photographs() -> tuple[bytes, ...]:
    """The files of the two photographs."""
    return tuple((sample_data() / "images" / f).read_bytes() for f in ("china.jpg", "flower.jpg"))


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


def _ink_box(ink_SxS: np.ndarray) -> np.ndarray:
    """The box around a digit's ink in pixels of the digit: ymin, xmin, ymax, xmax, int [4]."""
    rows, columns = np.nonzero(ink_SxS >= _INK)
    return np.array([rows.min(), columns.min(), rows.max() + 1, columns.max() + 1])


def _free_place(
    random: np.random.Generator,
    ink_box_4: np.ndarray,
    side: int,
    size_2: np.ndarray,
    taken: list[np.ndarray],
) -> tuple[np.ndarray, np.ndarray] | None:
    """A free place for a digit as (corner [2], box [4]) in pixels; None if none was found."""
    for _ in range(_ATTEMPTS):
        corner_2 = random.integers(0, size_2 - side + 1)
        box_4 = ink_box_4 + np.tile(corner_2, 2)
        if not any((box_4[:2] < t[2:]).all() and (t[:2] < box_4[2:]).all() for t in taken):
            return corner_2, box_4
    return None


def _paint(
    pixels_HxWx3: np.ndarray,
    ink_SxS: np.ndarray,
    corner_2: np.ndarray,
    random: np.random.Generator,
) -> None:
    """Paints ink of one color in place: light on a dark background, dark on a light one."""
    (top, left), side = corner_2, len(ink_SxS)
    region = pixels_HxWx3[top : top + side, left : left + side]
    color_3 = random.uniform(200, 255, 3) if region.mean() < 128 else random.uniform(0, 40, 3)
    region += ink_SxS[:, :, None] * (color_3 - region)


def _record(
    index: int, pixels_HxWx3: np.ndarray, boxes_Mx4: np.ndarray, labels: list[int]
) -> dict[str, Any]:
    encoded = io.BytesIO()
    height, width = pixels_HxWx3.shape[:2]
    image = Image.fromarray(pixels_HxWx3.clip(0, 255).astype(np.uint8))
    image.save(encoded, "JPEG", quality=_JPEG_QUALITY)
    sides_Mx2 = boxes_Mx4[:, 2:] - boxes_Mx4[:, :2]
    return {
        "image": encoded.getvalue(),
        "image/id": index,
        "objects": {
            "bbox": (boxes_Mx4 / [height, width, height, width]).astype(np.float32),
            "label": np.array(labels),
            "is_crowd": np.zeros(len(labels), bool),
            "area": sides_Mx2.prod(1),
        },
    }
