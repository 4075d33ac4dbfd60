"""scikit-learn's digits as JPEG files of varying size, shape and quality: a small stand-in for
photographs, composed here, so that decoding and random-resized crops are real."""

import cv2
import numpy as np
import simplejpeg

SIDES = (24, 64)  # pixels, of the square with the same area
ASPECTS = (3 / 4, 4 / 3)  # width / height
QUALITIES = (60, 95)


def encode(images_NxHxWx1: np.ndarray, seed: int = 0) -> list[bytes]:
    """One RGB JPEG an image (uint8), stretched bilinearly to a random size; a function of `seed`
    and the image's place alone."""
    return [
        _encode(image, np.random.default_rng((seed, i))) for i, image in enumerate(images_NxHxWx1)
    ]


def _encode(image_HxWx1: np.ndarray, rng: np.random.Generator) -> bytes:
    side = rng.uniform(*SIDES)
    stretch = np.sqrt(np.exp(rng.uniform(*np.log(ASPECTS))))
    wanted = round(side * stretch), round(side / stretch)  # width, height
    pixels_HxW = cv2.resize(image_HxWx1, wanted, interpolation=cv2.INTER_LINEAR)
    pixels_HxWx3 = np.ascontiguousarray(np.repeat(pixels_HxW[:, :, None], 3, axis=2))
    quality = int(rng.integers(*QUALITIES, endpoint=True))
    return simplejpeg.encode_jpeg(pixels_HxWx3, quality, colorspace="RGB")
