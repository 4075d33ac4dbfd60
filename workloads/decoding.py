"""Encoded images to pixels: the one decoder of all image workloads.

JPEGs go through libjpeg-turbo (simplejpeg), which releases the interpreter lock, decodes at a
reduced size and says when data are damaged; other formats, and CMYK JPEGs, through OpenCV. Images
that are arrays already pass through. Measured on one core with 254 JPEGs of about 640x480 pixels
and 166 kB (images a second, best of three): simplejpeg 577, OpenCV 551, imagecodecs 546, Pillow
450; tf.io.decode_jpeg 521.
"""

import io
import re
import struct
import warnings
from collections.abc import Callable

import cv2
import numpy as np
import simplejpeg
from PIL import Image

# The pipeline decodes on a thread a core; threads of OpenCV's own would only get in their way.
cv2.setNumThreads(1)

# Reductions for which libjpeg-turbo has vector code; others take longer than no reduction.
_FACTORS = (8, 4, 2)

# Bytes between two segments of a JPEG, as many cameras and websites leave them, are skipped by
# every decoder. The other damage that libjpeg recovers from loses pixels.
_HARMLESS = re.compile(r"extraneous bytes before marker")


# A header may claim any size, and decoders allocate what it claims. More pixels than this, 512 MiB
# in color, are refused before that; it is the number from which Pillow refuses by default.
MAX_PIXELS = 178_956_970

_PNG = b"\x89PNG\r\n\x1a\n"


class DecodeError(ValueError):
    """Data that are no whole image; the message says in what way."""


def size(image: bytes | np.ndarray) -> tuple[int, int]:
    """(height, width) of an image, for a JPEG from its header alone."""
    if isinstance(image, np.ndarray):
        return image.shape[:2]
    header = _jpeg_header(image)
    return _checked(header[:2]) if header else _other(image, 3).shape[:2]


def decode(image: bytes | np.ndarray, channels: int, factor: int = 1) -> np.ndarray:
    """The pixels of an image, uint8 [H, W, channels].

    Args:
        image: JPEG, PNG or another format of OpenCV's, or uint8 [H, W, C], which is handed back.
        channels: 1 or 3; grey, palette, alpha and CMYK images are converted.
        factor: 1, 2, 4 or 8: a JPEG comes at 1/factor of its size, rounded up. What is no JPEG, or
            a CMYK one, comes whole.

    Raises:
        DecodeError: damaged, truncated, no image at all, or one of more than MAX_PIXELS.
    """
    if isinstance(image, np.ndarray):
        return image
    if not isinstance(image, bytes):
        raise DecodeError(f"{type(image).__name__} where there should be an encoded image")
    header = _jpeg_header(image)
    if header is None:
        return _other(image, channels)
    (height, width), colorspace = _checked(header[:2]), header[2]
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


def _checked(size: tuple[int, int]) -> tuple[int, int]:
    """(height, width), which is not too large."""
    height, width = size
    if height * width > MAX_PIXELS:
        raise DecodeError(_too_many_pixels(f"an image of {height:,} x {width:,} pixels"))
    return size


def _too_many_pixels(image: str) -> str:
    return f"{image} is too large, by its header; allowed: up to {MAX_PIXELS:,} pixels"


def _claimed_size(data: bytes) -> tuple[int, int]:
    """(height, width) of what is no JPEG of simplejpeg's, from the header alone."""
    if data[: len(_PNG)] == _PNG and len(data) >= 24:
        return struct.unpack(">II", data[16:24])[::-1]  # in 1 us; Pillow takes 25
    try:
        with Image.open(io.BytesIO(data)) as image:
            return image.size[::-1]
    except Image.DecompressionBombError as error:
        raise DecodeError(_too_many_pixels("an image")) from error
    except Exception as error:  # the readers of many formats raise many kinds
        raise DecodeError(f"{len(data)} bytes that are no whole image of a known format") from error


def _jpeg(data: bytes, colorspace: str, min_height: int, min_width: int) -> np.ndarray:
    options = {"min_height": min_height, "min_width": min_width}
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
    _checked(_claimed_size(data))
    try:
        pixels = cv2.imdecode(np.frombuffer(data, np.uint8), flag)
    except cv2.error as error:
        raise DecodeError(f"damaged image: {error.err}") from error
    if pixels is None:
        raise DecodeError(f"{len(data)} bytes that are no whole image of a known format")
    return pixels.reshape(*pixels.shape[:2], channels)
