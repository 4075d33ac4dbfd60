"""Encoded images to pixels: the one decoder of all image workloads.

libjpeg-turbo (simplejpeg) decodes JPEGs: it releases the GIL, can decode at a reduced
size, and reports damage. OpenCV decodes other formats and CMYK JPEGs. Arrays pass through. Images
per second on one core, best of three, for 254 JPEGs of about 640x480 pixels and 166 kB: simplejpeg
577, OpenCV 551, imagecodecs 546, Pillow 450, tf.io.decode_jpeg 521.
"""

import contextlib
import io
import re
import warnings
from collections.abc import Callable
from typing import Any

import cv2
import numpy as np
import simplejpeg
from PIL import Image

# The pipeline already decodes on one thread per core.
cv2.setNumThreads(1)

# Reductions for which libjpeg-turbo has vector code; others are slower than no reduction.
_FACTORS = (8, 4, 2)

# Every decoder skips bytes between two segments of a JPEG, which many cameras and websites write.
# Other damage that libjpeg recovers from loses pixels.
_HARMLESS = re.compile(r"extraneous bytes before marker")

# Decoders allocate the size that a header claims. Larger images (512 MiB in color) are refused
# first; this is also Pillow's default limit.
MAX_PIXELS = 178_956_970


class DecodeError(ValueError):
    """The data are not a complete image; the message gives the reason."""


def size(image: bytes | np.ndarray) -> tuple[int, int]:
    """(height, width) of an image, from its header alone; raises DecodeError as `decode` does."""
    return image.shape[:2] if isinstance(image, np.ndarray) else _header(image)[0]


def decode(image: bytes | np.ndarray, channels: int, factor: int = 1) -> np.ndarray:
    """The pixels of an image, uint8 [H, W, channels].

    Args:
        image: JPEG, PNG, or another format that OpenCV reads; or uint8 [H, W, C], which is
            returned.
        channels: 1 or 3; grayscale, palette, alpha, and CMYK images are converted.
        factor: 1, 2, 4, or 8: a JPEG is decoded at 1/factor of its size, rounded up. Other formats
            and CMYK JPEGs are decoded at full size.

    Raises:
        DecodeError: the image is damaged, truncated, not an image, or larger than MAX_PIXELS.
    """
    if isinstance(image, np.ndarray):
        return image
    (height, width), colorspace = _header(image)
    if not colorspace:
        return _other(image, channels)
    if colorspace in ("CMYK", "YCCK"):
        _jpeg(image, "CMYK")  # only for its errors: OpenCV recovers silently
        return _other(image, channels)
    # simplejpeg takes the smallest size that is at least the requested one.
    smallest = {"min_height": -(-height // factor), "min_width": -(-width // factor)}
    return _jpeg(image, {1: "GRAY", 3: "RGB"}[channels], **smallest)


def decode_within(
    image: bytes | np.ndarray, side: int, channels: int, canvas_SxSxC: np.ndarray | None = None
) -> np.ndarray:
    """An image whose longer side is at most `side` pixels; larger images are reduced bilinearly.

    With a canvas, uint8 [side, side, channels], its top left receives the pixels and is returned.
    """
    height, width = size(image)
    scale = min(1.0, side / max(height, width))
    height, width = max(1, round(height * scale)), max(1, round(width * scale))
    into = None if canvas_SxSxC is None else canvas_SxSxC[:height, :width]
    return decode_at(image, (height, width), channels, into)


def decode_at(
    image: bytes | np.ndarray,
    shape: tuple[int, int],
    channels: int,
    into: np.ndarray | None = None,
) -> np.ndarray:
    """An image at the given (height, width), resized bilinearly; see `resize` for `into`.

    A JPEG is first decoded at 1/2, 1/4, or 1/8 of its size if both sides stay large enough. The
    bilinear step then reduces each side by less than half, or only one of them if the proportions
    change a lot, for JPEGs of up to 16 times the given size.
    """
    height, width = size(image)
    factor = _largest_factor(lambda f: height >= f * shape[0] and width >= f * shape[1])
    return resize(decode(image, channels, factor), shape, into)


def decode_crop(
    image: bytes | np.ndarray,
    box: tuple[int, int, int, int],
    out: int,
    channels: int,
    into: np.ndarray | None = None,
) -> np.ndarray:
    """The crop `box` = (y, x, height, width) of an image, resized to uint8 [out, out, channels].

    Decodes the whole image: decoders of a part do not report damage in the rest of it. A JPEG is
    decoded at 1/2, 1/4, or 1/8 of its size if the crop still has `out` pixels per side. See
    `resize` for `into`.
    """
    y, x, crop_height, crop_width = box
    factor = _largest_factor(lambda f: min(crop_height, crop_width) >= f * out)
    pixels = decode(image, channels, factor)
    if factor > 1 and pixels.shape[:2] == size(image):  # it could not be reduced
        factor = 1
    bottom, right = -(-(y + crop_height) // factor), -(-(x + crop_width) // factor)
    return resize(pixels[y // factor : bottom, x // factor : right], (out, out), into)


def crop_rows(
    images_BxHxWxC: np.ndarray, boxes_Bx4: np.ndarray, mirror_B: np.ndarray, out: int
) -> np.ndarray:
    """Crops, resizes, and optionally mirrors each image; returns uint8 [B, out, out, C].

    `crops.crop_rows` does the same in JAX, to 1 gray level.
    """
    cropped_BxOxOxC = np.empty((len(images_BxHxWxC), out, out, images_BxHxWxC.shape[-1]), np.uint8)
    for row, (y, x, height, width) in enumerate(boxes_Bx4.tolist()):
        crop = images_BxHxWxC[row, y : y + height, x : x + width]
        resize(crop, (out, out), cropped_BxOxOxC[row])
        if mirror_B[row]:
            cv2.flip(cropped_BxOxOxC[row], 1, dst=cropped_BxOxOxC[row])
    return cropped_BxOxOxC


def resize(
    pixels_HxWxC: np.ndarray, shape: tuple[int, int], into: np.ndarray | None = None
) -> np.ndarray:
    """Bilinear, sampled at half-pixel centers without prefilter, as in tf.image.resize.

    The result is written to `into`, uint8 [*shape, C], if that is given. A pixel may differ by one
    gray level from the result in floating point.
    """
    if pixels_HxWxC.shape[:2] != shape:
        resized = cv2.resize(pixels_HxWxC, shape[::-1], dst=into, interpolation=cv2.INTER_LINEAR)
        if resized is into:
            return resized
        pixels_HxWxC = resized.reshape(*shape, -1)  # OpenCV drops an axis of length 1
    if into is None:
        return pixels_HxWxC
    into[...] = pixels_HxWxC  # also gray pixels into three channels
    return into


def _largest_factor(allowed: Callable[[int], bool]) -> int:
    return next((factor for factor in _FACTORS if allowed(factor)), 1)


def _header(data: bytes) -> tuple[tuple[int, int], str]:
    """((height, width), color space) from a header; the color space is '' for what simplejpeg does
    not support: other formats, and JPEGs with unusual subsampling."""
    if not isinstance(data, bytes):
        raise DecodeError(f"{type(data).__name__} instead of an encoded image")
    height, width, space = 0, 0, ""
    if data[:3] == b"\xff\xd8\xff":
        with contextlib.suppress(ValueError, KeyError):
            rows, columns, space, _ = simplejpeg.decode_jpeg_header(data, strict=False)
            height, width = int(rows), int(columns)
    if not space:
        try:
            with Image.open(io.BytesIO(data)) as image:
                width, height = image.size
        except Image.DecompressionBombError:
            width = height = MAX_PIXELS
        except Exception as error:  # the readers of many formats raise many types
            raise DecodeError(_incomplete(data)) from error
    if height * width > MAX_PIXELS:
        raise DecodeError(f"an image of more than {MAX_PIXELS:,} pixels, which is the maximum")
    return (height, width), space


def _jpeg(data: bytes, colorspace: str, **smallest: Any) -> np.ndarray:
    try:
        return simplejpeg.decode_jpeg(data, colorspace, **smallest)
    except ValueError as error:
        if not _HARMLESS.search(str(error)):
            raise DecodeError(f"damaged JPEG: {error}") from error
        warnings.warn(f"JPEG decoded despite an error: {error}", RuntimeWarning, stacklevel=2)
        return simplejpeg.decode_jpeg(data, colorspace, strict=False, **smallest)


def _other(data: bytes, channels: int) -> np.ndarray:
    flag = {1: cv2.IMREAD_GRAYSCALE, 3: cv2.IMREAD_COLOR_RGB}[channels]
    flag |= cv2.IMREAD_IGNORE_ORIENTATION  # also ignored for JPEGs
    try:
        pixels = cv2.imdecode(np.frombuffer(data, np.uint8), flag)
    except cv2.error as error:
        raise DecodeError(f"damaged image: {error.err}") from error
    if pixels is None:
        raise DecodeError(_incomplete(data))
    return pixels.reshape(*pixels.shape[:2], channels)


def _incomplete(data: bytes) -> str:
    return f"{len(data)} bytes that are not a complete image of 8 or 16 bits per channel"
