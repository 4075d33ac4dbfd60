"""Composed photographs for detection without a download: digits painted onto two photographs.

No camera took them: scikit-learn's handwritten digits (8x8 pixels, magnified) are laid over pieces
of its two sample photographs, a temple and a flower, and the result is encoded as JPEG. They serve
to run everything that detection needs, on one minute's worth of learning; not to compare detectors.
"""

import functools
import io
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image

_MAX_DIGITS = 5
_SIDES = (112, 160)  # of a scene in pixels, height and width apart
_DIGIT_SHARE = (0.25, 0.4)  # a digit's side as a share of the scene's shorter side
_INK = 0.3  # the box encloses what is covered by at least this share of ink
_TRIES = 20  # to place a digit where there is none yet
_JPEG_QUALITY = 90


class SceneSource:
    """Records of the form of TFDS's `coco/2017`, random-access: scene i is a function of (key, i).

    Args:
        digits_NxHxW: uint8, 0 = no ink, 255 = full.
        labels_N: class of each digit.
        key: tells the scenes of one split from another's.
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
            which = random.integers(len(self._labels))
            ink_SxS = _magnified(
                self._digits[which], int(random.uniform(*_DIGIT_SHARE) * min(size_2))
            )
            box = _place(random, _ink_box(ink_SxS), ink_SxS.shape[0], size_2, boxes)
            if box is None:
                continue
            corner_2, box_4 = box
            _paint(pixels_HxWx3, ink_SxS, corner_2, random)
            boxes.append(box_4)
            labels.append(int(self._labels[which]))
        return _record(index, pixels_HxWx3, np.array(boxes), labels)

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        return [self[index] for index in indices]


@functools.cache
def _photographs() -> tuple[Image.Image, ...]:
    from sklearn import datasets

    return tuple(Image.fromarray(pixels) for pixels in datasets.load_sample_images().images)


def _background(random: np.random.Generator) -> np.ndarray:
    """A piece of a photograph as float32 [H, W, 3] of a random size, mirrored or not."""
    photograph = _photographs()[random.integers(len(_photographs()))]
    height, width = random.integers(_SIDES[0], _SIDES[1] + 1, 2)
    zoom = random.uniform(1.0, min(photograph.height / height, photograph.width / width))
    left = random.uniform(0, photograph.width - zoom * width)
    top = random.uniform(0, photograph.height - zoom * height)
    window = (left, top, left + zoom * width, top + zoom * height)
    piece = photograph.resize((int(width), int(height)), Image.Resampling.BILINEAR, box=window)
    pixels = np.asarray(piece, np.float32)
    return (pixels[:, ::-1] if random.integers(2) else pixels).copy()


def _magnified(digit_HxW: np.ndarray, side: int) -> np.ndarray:
    """A digit's ink in [0, 1] as float32 [side, side]."""
    image = Image.fromarray(digit_HxW).resize((side, side), Image.Resampling.BICUBIC)
    return np.asarray(image, np.float32) / 255


def _ink_box(ink_SxS: np.ndarray) -> np.ndarray:
    """The box around a digit's ink, int [4], in its own pixels."""
    rows, columns = np.nonzero(ink_SxS >= _INK)
    return np.array([rows.min(), columns.min(), rows.max() + 1, columns.max() + 1])


def _place(random, ink_box_4, side: int, size_2, taken: list[np.ndarray]):
    """A free place for a digit as (corner [2], box [4]) in pixels, or None if none was found."""
    for _ in range(_TRIES):
        corner_2 = random.integers(0, size_2 - side + 1)
        box_4 = ink_box_4 + np.tile(corner_2, 2)
        if not any((box_4[:2] < t[2:]).all() and (t[:2] < box_4[2:]).all() for t in taken):
            return corner_2, box_4
    return None


def _paint(pixels_HxWx3, ink_SxS, corner_2, random) -> None:
    """Covers the pixels with ink of one colour: light on dark ground, dark on light ground."""
    (top, left), side = corner_2, len(ink_SxS)
    region = pixels_HxWx3[top : top + side, left : left + side]
    colour_3 = random.uniform(200, 255, 3) if region.mean() < 128 else random.uniform(0, 40, 3)
    region += ink_SxS[:, :, None] * (colour_3 - region)


def _record(index: int, pixels_HxWx3, boxes_Mx4, labels: list[int]) -> dict[str, Any]:
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
