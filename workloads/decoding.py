"""Encoded images to pixels: the one decoder of all image workloads.

libjpeg-turbo (simplejpeg) decodes JPEGs: it releases the GIL, can decode at a reduced size, and
reports damage. Pillow decodes CMYK JPEGs and other formats. Arrays pass through. Images per second
on one core, best of three, for 254 JPEGs of about 640x480 pixels and 166 kB: simplejpeg 577, OpenCV
551, imagecodecs 546, Pillow 450, tf.io.decode_jpeg 521.
"""

import contextlib
import io
from collections.abc import Sequence
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

_SPACES = {1: "GRAY", 3: "RGB"}
_FULL_SIZE = ("", "CMYK", "YCCK")  # color spaces of a `header` whose images cannot be reduced

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


def decode(image: bytes | np.ndarray, channels: int, max_pixels: int = MAX_PIXELS) -> np.ndarray:
    """The pixels of an image, uint8 [H, W, channels].

    Args:
        image: JPEG, PNG, GIF, BMP, WebP, AVIF, or PNM, of which the first frame is decoded
            without orientation and alpha; or uint8 [H, W, C], which is returned.
        channels: 1 or 3; grayscale, palette, and CMYK images are converted as Pillow does.
        max_pixels: that an image may have, whatever the size at which it is decoded.

    Raises:
        DecodeError: the image is damaged, truncated, not an image, or has more pixels.
    """
    return _decode(image, header(image, max_pixels), channels)


def _decode(image: Any, head: tuple[tuple[int, int], str], channels: int) -> np.ndarray:
    if isinstance(image, np.ndarray):
        if image.dtype != np.uint8 or image.ndim != 3 or image.shape[-1] not in (1, channels):
            raise ValueError(
                f"an array {image.dtype} {list(image.shape)}; allowed: uint8 [H, W, {channels}]"
            )
        return image
    if head[1] not in _FULL_SIZE:
        return _jpeg(image, _SPACES[channels])
    if head[1]:
        _jpeg(image, "CMYK")  # only for its errors: Pillow recovers silently
    return _by_pillow(image, channels)


def decode_within(
    images: Sequence[bytes | np.ndarray],
    canvases_nxSxSxC: np.ndarray,
    max_pixels: int = MAX_PIXELS,
) -> np.ndarray:
    """Decodes images onto canvases, uint8, at their top left; the rest of a canvas becomes zero.
    Images whose longer side has more than S pixels are reduced bilinearly to S.

    Returns:
        The (height, width) of each on its canvas, int32 [n, 2].
    """
    heads, side = [header(image, max_pixels) for image in images], canvases_nxSxSxC.shape[1]
    places, boxes = [], []
    for ((height, width), _), canvas in zip(heads, canvases_nxSxSxC, strict=True):
        boxes.append((0, 0, height, width))
        scale = min(1.0, side / max(height, width))
        height, width = max(1, round(height * scale)), max(1, round(width * scale))
        places.append(canvas[:height, :width])
        canvas[height:] = canvas[:height, width:] = 0
    decode_into(images, heads, boxes, places)
    return np.asarray([place.shape[:2] for place in places], np.int32)


def decode_at(
    image: bytes | np.ndarray,
    shape: tuple[int, int],
    channels: int,
    box: tuple[int, int, int, int] | None = None,
    head: tuple[tuple[int, int], str] | None = None,
) -> np.ndarray:
    """`decode_into` of one image, or of its crop `box`: uint8 [*shape, channels]. `head` is the
    result of `header`, if it has been called already."""
    head, place = head or header(image), np.empty((*shape, channels), np.uint8)
    decode_into([image], [head], [box or (0, 0, *head[0])], [place])
    return place


def decode_into(
    images: Sequence[bytes | np.ndarray],
    heads: Sequence[tuple[tuple[int, int], str]],
    boxes: Sequence[tuple[int, int, int, int]],
    places: Sequence[np.ndarray],
) -> None:
    """Decodes images, and resizes a box of each bilinearly to its place.

    A JPEG is first decoded at 1/2, 1/4, or 1/8 of its size if both sides stay large enough. The
    bilinear step then reduces each side by less than half, or only one of them if the proportions
    change a lot, for JPEGs of up to 16 times the given size. The whole image is decoded: decoders
    of a part do not report damage in the rest of it.

    Args:
        heads: the results of `header`.
        boxes: (y, x, height, width) in pixels.
        places: uint8 [h, w, C].
    """
    jpegs = []
    for image, head, (y, x, height, width), place in zip(images, heads, boxes, places, strict=True):
        shape, channels, reduces = place.shape[:2], place.shape[-1], head[1] not in _FULL_SIZE
        fits = (f for f in _FACTORS if height >= f * shape[0] and width >= f * shape[1])
        factor = next(fits, 1) if reduces else 1
        rows = slice(y // factor, -(-(y + height) // factor))
        columns = slice(x // factor, -(-(x + width) // factor))
        if reduces:
            smallest = (-(-head[0][0] // factor), -(-head[0][1] // factor))
            jpegs.append((image, _SPACES[channels], smallest, (rows, columns), shape[::-1], place))
        else:
            resize(_decode(image, head, channels)[rows, columns], place)
    # A decoder leaves Python's code and data out of the caches, so little is left to do after it.
    decode_jpeg, cv_resize, linear = simplejpeg.decode_jpeg, cv2.resize, cv2.INTER_LINEAR
    for image, space, smallest, part, size, place in jpegs:
        try:
            pixels = decode_jpeg(image, space, False, False, *smallest)
        except ValueError:
            pixels = _jpeg(image, space, smallest)  # says what is wrong
        resized = cv_resize(pixels[part], size, place, 0, 0, linear)
        if resized is not place:
            place[...] = resized.reshape(place.shape)  # OpenCV drops an axis of length 1


def resize(pixels_HxWxC: np.ndarray, place: np.ndarray) -> None:
    """Writes an image, resized bilinearly, to `place`, uint8 [h, w, C].

    Sampled at half-pixel centers without prefilter, as in tf.image.resize. A pixel may differ by
    one gray level from the result in floating point.
    """
    height, width = place.shape[:2]
    resized = cv2.resize(pixels_HxWxC, (width, height), place, 0, 0, cv2.INTER_LINEAR)
    if resized is not place:  # OpenCV drops an axis of length 1; gray pixels into three channels
        place[...] = resized.reshape(height, width, -1)


def _jpeg(data: Any, colorspace: str, smallest: tuple[int, int] = (0, 0)) -> np.ndarray:
    try:
        return simplejpeg.decode_jpeg(data, colorspace, False, False, *smallest)
    except ValueError as error:
        # Cameras write zeros before the marker of the end. Other extraneous bytes are what libjpeg
        # could not decode after a damaged one: the pixels from there on are wrong.
        segments, end, _ = data.rpartition(b"\xff\xd9")
        with contextlib.suppress(ValueError):
            data = segments.rstrip(b"\0") + end
            return simplejpeg.decode_jpeg(data, colorspace, False, False, *smallest)
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
