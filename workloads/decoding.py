"""Encoded images to pixels: the one decoder of all image workloads.

libjpeg-turbo (simplejpeg) decodes JPEGs: it releases the GIL, can decode at a reduced size, and
reports damage. Pillow decodes CMYK JPEGs and other formats. Arrays pass through. Images per second
on one core, best of three, for 254 JPEGs of about 640x480 pixels and 166 kB: simplejpeg 577, OpenCV
551, imagecodecs 546, Pillow 450, tf.io.decode_jpeg 521.
"""

import contextlib
import io
from typing import Any

import cv2
import numpy as np
import simplejpeg
from PIL import Image

from data.sources import DamagedError

# The pipeline already decodes on one thread per core.
cv2.setNumThreads(1)

# What Pillow decodes: formats whose damage it reports, as far as their files reveal it, and modes
# of up to 8 bits per channel, or 16, of which the high byte is taken.
_FORMATS = ("AVIF", "BMP", "GIF", "JPEG", "PNG", "PPM", "WEBP")
_MODES = ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK")

# Reductions for which libjpeg-turbo has vector code; others are slower than no reduction.
_FACTORS = (8, 4, 2)

# Decoders allocate the size that a header claims; Pillow opens no larger images (512 MiB in color).
MAX_PIXELS = 178_956_970


class DecodeError(DamagedError):
    """The data are not a complete image; the message gives the reason."""


def header(data: bytes | np.ndarray, max_pixels: int = MAX_PIXELS) -> tuple[tuple[int, int], str]:
    """((height, width), color space) of an image, from its header alone. The color space is '' for
    arrays, and for what simplejpeg does not support: other formats, and JPEGs with unusual
    subsampling. Raises DecodeError as `decode` does."""
    if isinstance(data, np.ndarray):
        return data.shape[:2], ""
    if not isinstance(data, bytes):
        raise DecodeError(f"{type(data).__name__} instead of an encoded image")
    height, width, space = 0, 0, ""
    if data[:3] == b"\xff\xd8\xff":
        with contextlib.suppress(ValueError, KeyError):
            rows, columns, space, _ = simplejpeg.decode_jpeg_header(data, strict=False)
            height, width = int(rows), int(columns)
    if not space:
        try:
            with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
                width, height = image.size
        except Image.DecompressionBombError as error:
            raise DecodeError(f"an image of more than {MAX_PIXELS:,} pixels, the most") from error
        except Exception as error:  # the readers of many formats raise many types
            raise DecodeError(_unreadable(data)) from error
    if height * width > max_pixels:
        raise DecodeError(
            f"an image of {width:,} x {height:,} pixels; allowed: up to {max_pixels:,} pixels "
            "(config.dataset.max_pixels)"
        )
    return (height, width), space


def decode(
    image: bytes | np.ndarray, channels: int, factor: int = 1, max_pixels: int = MAX_PIXELS
) -> np.ndarray:
    """The pixels of an image, uint8 [H, W, channels].

    Args:
        image: JPEG, PNG, GIF, BMP, WebP, AVIF, or PNM, of which the first frame is decoded
            without orientation and alpha; or uint8 [H, W, C], which is returned.
        channels: 1 or 3; grayscale, palette, and CMYK images are converted as Pillow does.
        factor: 1, 2, 4, or 8: a JPEG is decoded at 1/factor of its size, rounded up. Other formats
            and CMYK JPEGs are decoded at full size.
        max_pixels: that an image may have, whatever the size at which it is decoded.

    Raises:
        DecodeError: the image is damaged, truncated, not an image, or has more pixels.
    """
    return _decode(image, header(image, max_pixels), channels, factor)


def _decode(
    image: bytes | np.ndarray, head: tuple[tuple[int, int], str], channels: int, factor: int
) -> np.ndarray:
    (height, width), colorspace = head
    if isinstance(image, np.ndarray):
        if image.dtype != np.uint8 or image.ndim != 3 or image.shape[-1] not in (1, channels):
            raise ValueError(
                f"an array {image.dtype} {list(image.shape)}; allowed: uint8 [H, W, {channels}]"
            )
        return image
    if colorspace in ("CMYK", "YCCK"):
        _jpeg(image, "CMYK")  # only for its errors: Pillow recovers silently
    elif colorspace:
        # simplejpeg takes the smallest size that is at least the requested one.
        smallest = {"min_height": -(-height // factor), "min_width": -(-width // factor)}
        return _jpeg(image, {1: "GRAY", 3: "RGB"}[channels], **smallest)
    return _by_pillow(image, channels)


def decode_within(
    image: bytes | np.ndarray,
    side: int,
    channels: int,
    canvas_SxSxC: np.ndarray | None = None,
    max_pixels: int = MAX_PIXELS,
) -> np.ndarray:
    """An image whose longer side is at most `side` pixels; larger images are reduced bilinearly.

    With a canvas, uint8 [side, side, channels], its top left receives the pixels and is returned.
    """
    head = header(image, max_pixels)
    height, width = head[0]
    scale = min(1.0, side / max(height, width))
    height, width = max(1, round(height * scale)), max(1, round(width * scale))
    into = None if canvas_SxSxC is None else canvas_SxSxC[:height, :width]
    return decode_at(image, (height, width), channels, into, head=head)


def decode_at(
    image: bytes | np.ndarray,
    shape: tuple[int, int],
    channels: int,
    into: np.ndarray | None = None,
    box: tuple[int, int, int, int] | None = None,
    head: tuple[tuple[int, int], str] | None = None,
) -> np.ndarray:
    """An image, or its crop `box`, resized bilinearly to (height, width); see `resize` for `into`.

    A JPEG is first decoded at 1/2, 1/4, or 1/8 of its size if both sides stay large enough. The
    bilinear step then reduces each side by less than half, or only one of them if the proportions
    change a lot, for JPEGs of up to 16 times the given size. The whole image is decoded: decoders
    of a part do not report damage in the rest of it.

    Args:
        box: (y, x, height, width) in pixels; None for the whole image.
        head: the result of `header`, if it has been called already.
    """
    head = head or header(image)
    whole = head[0]
    y, x, height, width = box or (0, 0, *whole)
    reductions = (f for f in _FACTORS if height >= f * shape[0] and width >= f * shape[1])
    factor = next(reductions, 1)
    pixels = _decode(image, head, channels, factor)
    if pixels.shape[:2] == whole:  # it could not be reduced
        factor = 1
    rows = slice(y // factor, -(-(y + height) // factor))
    columns = slice(x // factor, -(-(x + width) // factor))
    return resize(pixels[rows, columns], shape, into)


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


def _jpeg(data: bytes, colorspace: str, **smallest: Any) -> np.ndarray:
    try:
        return simplejpeg.decode_jpeg(data, colorspace, **smallest)
    except ValueError as error:
        # Cameras write zeros before the marker of the end. Other extraneous bytes are what libjpeg
        # could not decode after a damaged one: the pixels from there on are wrong.
        segments, end, _ = data.rpartition(b"\xff\xd9")
        with contextlib.suppress(ValueError):
            return simplejpeg.decode_jpeg(segments.rstrip(b"\0") + end, colorspace, **smallest)
        raise DecodeError(f"damaged JPEG: {error}") from error


def _by_pillow(data: bytes, channels: int) -> np.ndarray:
    try:
        with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
            image.verify()  # the checksums of a PNG
        with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
            image.info.pop("transparency", None)
            # Pillow scales a PNM to 16 bits, whatever its largest level is.
            if image.mode == ("I" if image.format == "PPM" else "I;16"):
                image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
            if image.mode not in _MODES:
                raise ValueError(image.mode)
            pixels = np.asarray(image.convert({1: "L", 3: "RGB"}[channels]))
    except Exception as error:
        raise DecodeError(_unreadable(data)) from error
    return pixels.reshape(*pixels.shape[:2], channels)


def _unreadable(data: bytes) -> str:
    if data.startswith(b"version https://git-lfs"):
        return "a Git LFS pointer instead of the image; get the files by `git lfs pull`"
    formats = ", ".join(_FORMATS)
    return f"{len(data)} bytes that are not a complete image of the formats {formats}; convert them"
