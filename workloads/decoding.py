"""Encoded images to pixels: the one decoder of all image workloads.

JPEGs go through libjpeg-turbo (simplejpeg), which releases the interpreter lock, decodes at a
reduced size and says when data are damaged; other formats, and CMYK JPEGs, through OpenCV. Images
that are arrays already pass through. Measured on one core with 254 JPEGs of about 640x480 pixels
and 166 kB (images a second, best of three): simplejpeg 577, OpenCV 551, imagecodecs 546, Pillow
450; tf.io.decode_jpeg 521.
"""

import re
import warnings
from collections.abc import Callable

import cv2
import numpy as np
import simplejpeg

# The pipeline decodes on a thread a core; threads of OpenCV's own would only get in their way.
cv2.setNumThreads(1)

# Reductions for which libjpeg-turbo has vector code; others take longer than no reduction.
_FACTORS = (8, 4, 2)

# Bytes between two segments of a JPEG, as many cameras and websites leave them, are skipped by
# every decoder. The other damage that libjpeg recovers from loses pixels.
_HARMLESS = re.compile(r"extraneous bytes before marker")


class DecodeError(ValueError):
    """Data that are no whole image; the message says in what way."""


def size(image: bytes | np.ndarray) -> tuple[int, int]:
    """(height, width) of an image, for a JPEG from its header alone."""
    if isinstance(image, np.ndarray):
        return image.shape[:2]
    header = _jpeg_header(image)
    return header[:2] if header else _other(image, 3).shape[:2]


def decode(image: bytes | np.ndarray, channels: int, factor: int = 1) -> np.ndarray:
    """The pixels of an image, uint8 [H, W, channels].

    Args:
        image: JPEG, PNG or another format of OpenCV's, or uint8 [H, W, C], which is handed back.
        channels: 1 or 3; grey, palette, alpha and CMYK images are converted.
        factor: 1, 2, 4 or 8: a JPEG comes at 1/factor of its size, rounded up. What is no JPEG, or
            a CMYK one, comes whole.

    Raises:
        DecodeError: damaged, truncated, or no image at all.
    """
    if isinstance(image, np.ndarray):
        return image
    header = _jpeg_header(image)
    if header is None:
        return _other(image, channels)
    height, width, colorspace, _ = header
    if colorspace in ("CMYK", "YCCK"):
        _jpeg(image, "CMYK", 0, 0)  # for the sake of its errors: OpenCV recovers in silence
        return _other(image, channels)
    # simplejpeg takes the smallest size that is at least the one asked for.
    return _jpeg(image, {1: "GRAY", 3: "RGB"}[channels], -(-height // factor), -(-width // factor))


def decode_within(image: bytes | np.ndarray, side: int, channels: int) -> np.ndarray:
    """An image whose longer side is at most `side` pixels, reduced bilinearly where it is larger.

    A JPEG is decoded at 1/2, 1/4 or 1/8 of its size first where it stays large enough, so that the
    bilinear step less than halves one of up to 16 times `side`.
    """
    height, width = size(image)
    scale = min(1.0, side / max(height, width))
    wanted = max(1, round(height * scale)), max(1, round(width * scale))
    factor = _largest_factor(lambda f: height >= f * wanted[0] and width >= f * wanted[1])
    return resize(decode(image, channels, factor), wanted)


def decode_crop(
    image: bytes | np.ndarray, box: tuple[int, int, int, int], out: int, channels: int
) -> np.ndarray:
    """The part `box` = (y, x, height, width) of an image, resized to uint8 [out, out, channels].

    The whole image is decoded, of which the box is then cut out: no decoder here reads a part. A
    JPEG is decoded at 1/2, 1/4 or 1/8 of its size where the crop still has `out` pixels a side.
    """
    y, x, crop_height, crop_width = box
    factor = _largest_factor(lambda f: min(crop_height, crop_width) >= f * out)
    pixels = decode(image, channels, factor)
    if factor > 1 and pixels.shape[:2] == size(image):  # it could not be reduced
        factor = 1
    bottom, right = -(-(y + crop_height) // factor), -(-(x + crop_width) // factor)
    return resize(pixels[y // factor : bottom, x // factor : right], (out, out))


def resize(pixels_HxWxC: np.ndarray, wanted: tuple[int, int]) -> np.ndarray:
    """Bilinear, sampled at half-pixel centres and without prefilter, as in tf.image.resize."""
    if pixels_HxWxC.shape[:2] == wanted:
        return pixels_HxWxC
    pixels = cv2.resize(pixels_HxWxC, wanted[::-1], interpolation=cv2.INTER_LINEAR)
    return pixels.reshape(*wanted, -1)  # OpenCV drops an axis of length 1


def _largest_factor(allowed: Callable[[int], bool]) -> int:
    return next((factor for factor in _FACTORS if allowed(factor)), 1)


def _jpeg_header(data: bytes) -> tuple[int, int, str, str] | None:
    """(height, width, colour space, subsampling); None for what is no JPEG, or one of a kind that
    simplejpeg does not know, such as odd subsamplings."""
    if data[:3] != b"\xff\xd8\xff":
        return None
    try:
        return simplejpeg.decode_jpeg_header(data, strict=False)
    except (ValueError, KeyError):
        return None


def _jpeg(data: bytes, colorspace: str, least_height: int, least_width: int) -> np.ndarray:
    options = {"min_height": least_height, "min_width": least_width}
    try:
        return simplejpeg.decode_jpeg(data, colorspace, **options)
    except ValueError as error:
        if not _HARMLESS.search(str(error)):
            raise DecodeError(f"damaged JPEG: {error}") from error
        warnings.warn(f"JPEG decoded all the same: {error}", RuntimeWarning, stacklevel=2)
        return simplejpeg.decode_jpeg(data, colorspace, strict=False, **options)


def _other(data: bytes, channels: int) -> np.ndarray:
    flag = {1: cv2.IMREAD_GRAYSCALE, 3: cv2.IMREAD_COLOR_RGB}[channels]
    flag |= cv2.IMREAD_IGNORE_ORIENTATION  # for JPEGs it is not looked at either
    pixels = cv2.imdecode(np.frombuffer(data, np.uint8), flag) if len(data) else None
    if pixels is None:
        raise DecodeError(f"{len(data)} bytes that are no whole image of a known format")
    return pixels.reshape(*pixels.shape[:2], channels)
