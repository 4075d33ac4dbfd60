"""Digits painted onto crops of scikit-learn's two photographs, with boxes.

One minute of training on them exercises all of detection; they are not meant to compare detectors.
"""

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image

from data.sources import Source

_MAX_DIGITS = 5
_SIDES = (112, 160)  # pixels; height and width are drawn separately
_DIGIT_SHARE = (0.25, 0.4)  # a digit's side / the scene's shorter side
_INK = 0.3  # the box encloses the pixels with at least this share of ink
_ATTEMPTS = 20  # at placing a digit where it overlaps no other
_JPEG_QUALITY = 90


class Scenes(Source):
    """Records with the features of TFDS's `coco/2017`; scene i is a function of (key, i), where the
    key distinguishes the splits. The digits' pixels have ink from 0, none, to 255."""

    def __init__(
        self,
        digits_NxHxW: np.ndarray,
        labels_N: np.ndarray,
        photographs: Sequence[bytes],
        key: int,
        length: int,
    ):
        self._digits, self._labels = digits_NxHxW, labels_N
        images = [Image.open(io.BytesIO(photograph)) for photograph in photographs]
        self._photographs = [Image.fromarray(np.asarray(image)) for image in images]
        self._key, self._length = key, length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> dict[str, Any]:
        if not 0 <= index < self._length:
            raise IndexError(f"scene {index} of {self._length}")
        random = np.random.Generator(np.random.PCG64([self._key, index]))
        pixels_HxWx3 = _background(random, self._photographs)
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


def _background(random: np.random.Generator, photographs: list[Image.Image]) -> np.ndarray:
    """A random crop of a photograph, float32 [H, W, 3], mirrored at random."""
    photograph = photographs[random.integers(len(photographs))]
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
