"""Encoded images to pixels: the one decoder of all image workloads.

libjpeg-turbo (simplejpeg) decodes JPEGs: it releases the GIL, can decode at a reduced
size, and reports damage. OpenCV decodes other formats and CMYK JPEGs. Arrays pass through. Images
per second on one core, best of three, for 254 JPEGs of about 640x480 pixels and 166 kB: simplejpeg
577, OpenCV 551, imagecodecs 546, Pillow 450, tf.io.decode_jpeg 521.
"""

import contextlib
import io
import platform
import re
import struct
import warnings
from collections.abc import Callable
from typing import Any

import cv2
import numpy as np
import simplejpeg
from PIL import Image

# The pipeline already decodes on one thread per core.
cv2.setNumThreads(1)


def _is_amd() -> bool:
    """Whether AMD made the processor."""
    try:
        with open("/proc/cpuinfo") as file:
            processor = file.read(1024)  # the first core; all of them may take long
    except OSError:  # not Linux
        processor = platform.processor()
    return "AuthenticAMD" in processor


# Intel's routines, which OpenCV contains, resize twice as fast as its own on an Intel Xeon. On an
# AMD EPYC, whose gather instructions are slow, they take 1.5 times as long.
_USE_IPP = not _is_amd()

# Reductions for which libjpeg-turbo has vector code; others are slower than no reduction.
_FACTORS = (8, 4, 2)

# Every decoder skips bytes between two segments of a JPEG, which many cameras and websites write.
# Other damage that libjpeg recovers from loses pixels.
_HARMLESS = re.compile(r"extraneous bytes before marker")

# Decoders allocate the size that a header claims. Larger images (512 MiB in color) are refused
# first; this is also Pillow's default limit.
MAX_PIXELS = 178_956_970

_PNG = b"\x89PNG\r\n\x1a\n"


class DecodeError(ValueError):
    """The data are not a complete image; the message gives the reason."""


def size(image: bytes | np.ndarray) -> tuple[int, int]:
    """(height, width) of an image, from its header alone; raises DecodeError as `decode` does."""
    if isinstance(image, np.ndarray):
        return image.shape[0], image.shape[1]
    header = _jpeg_header(image)
    return _check_size(header[0] if header else _claimed_size(image))


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
    header = _jpeg_header(image)
    if header is None:
        return _other(image, channels)
    (height, width), colorspace = _check_size(header[0]), header[1]
    if colorspace in ("CMYK", "YCCK"):
        _jpeg(image, "CMYK", 0, 0)  # only for its errors: OpenCV recovers silently
        return _other(image, channels)
    # simplejpeg takes the smallest size that is at least the requested one.
    return _jpeg(image, {1: "GRAY", 3: "RGB"}[channels], -(-height // factor), -(-width // factor))


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
    gray level from the result in floating point, and so between processors of Intel and AMD.
    """
    if pixels_HxWxC.shape[:2] != shape:
        # It is a setting of the thread, in which a data set may resize too, and must give the same
        # pixels as ever.
        cv2.ipp.setUseIPP_NotExact(_USE_IPP)
        try:
            resized = cv2.resize(
                pixels_HxWxC, shape[::-1], dst=into, interpolation=cv2.INTER_LINEAR
            )
        finally:
            cv2.ipp.setUseIPP_NotExact(False)
        if resized is into:
            return resized
        pixels_HxWxC = resized.reshape(*shape, -1)  # OpenCV drops an axis of length 1
    if into is None:
        return pixels_HxWxC
    into[...] = pixels_HxWxC  # also gray pixels into three channels
    return into


def _largest_factor(allowed: Callable[[int], bool]) -> int:
    return next((factor for factor in _FACTORS if allowed(factor)), 1)


def _jpeg_header(data: bytes) -> tuple[tuple[int, int], str] | None:
    """((height, width), color space); None for data that simplejpeg does not support: other
    formats, and JPEGs with unusual subsampling. Raises DecodeError for what is not bytes."""
    if not isinstance(data, bytes):
        raise DecodeError(f"{type(data).__name__} instead of an encoded image")
    if data[:3] != b"\xff\xd8\xff":
        return None
    try:
        height, width, space, _ = simplejpeg.decode_jpeg_header(data, strict=False)
        return (int(height), int(width)), space
    except (ValueError, KeyError):
        return None


def _check_size(size: tuple[int, int]) -> tuple[int, int]:
    """Returns (height, width); raises DecodeError if the image is too large."""
    height, width = size
    if height * width > MAX_PIXELS:
        raise DecodeError(_too_many_pixels(f"an image of {height:,} x {width:,} pixels"))
    return size


def _too_many_pixels(image: str) -> str:
    return f"{image} is too large, by its header; allowed: up to {MAX_PIXELS:,} pixels"


def _claimed_size(data: bytes) -> tuple[int, int]:
    """(height, width) from the header of an image that simplejpeg does not support."""
    if data[: len(_PNG)] == _PNG and len(data) >= 24:
        width, height = struct.unpack(">II", data[16:24])  # 1 us; Pillow takes 25
        return height, width
    try:
        with Image.open(io.BytesIO(data)) as image:
            return image.height, image.width
    except Image.DecompressionBombError as error:
        raise DecodeError(_too_many_pixels("an image")) from error
    except Exception as error:  # the readers of many formats raise many types
        raise DecodeError(
            f"{len(data)} bytes that are not a complete image of a known format"
        ) from error


def _jpeg(data: bytes, colorspace: str, min_height: int, min_width: int) -> np.ndarray:
    options: dict[str, Any] = {"min_height": min_height, "min_width": min_width}
    try:
        return simplejpeg.decode_jpeg(data, colorspace, **options)
    except ValueError as error:
        if not _HARMLESS.search(str(error)):
            raise DecodeError(f"damaged JPEG: {error}") from error
        warnings.warn(f"JPEG decoded despite an error: {error}", RuntimeWarning, stacklevel=2)
        return simplejpeg.decode_jpeg(data, colorspace, strict=False, **options)


def _other(data: bytes, channels: int) -> np.ndarray:
    flag = {1: cv2.IMREAD_GRAYSCALE, 3: cv2.IMREAD_COLOR_RGB}[channels]
    flag |= cv2.IMREAD_IGNORE_ORIENTATION  # also ignored for JPEGs
    _check_size(_claimed_size(data))
    try:
        pixels = cv2.imdecode(np.frombuffer(data, np.uint8), flag)
    except cv2.error as error:
        raise DecodeError(f"damaged image: {error.err}") from error
    if pixels is None:
        raise DecodeError(_undecodable(data))
    return pixels.reshape(*pixels.shape[:2], channels)


def _undecodable(data: bytes) -> str:
    """Why OpenCV does not decode an image of a known size."""
    with contextlib.suppress(Exception), Image.open(io.BytesIO(data)) as image:
        if image.mode in ("I", "F"):
            return "an image with 32 bits per channel; allowed: 8 or 16"
    return f"{len(data)} bytes that are not a complete image of a known format"
