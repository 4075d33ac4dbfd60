"""Encoded images to pixels: against Pillow, and what happens to damaged ones."""

import io
import struct
import zlib

import jax
import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_sample_image

from workloads import decoding


def encoded(mode="RGB", file_format="JPEG", size=None, **options):
    """One of scikit-learn's photographs (427 x 640 pixels) as a file's bytes."""
    picture = Image.fromarray(load_sample_image("china.jpg")).convert(mode)
    file = io.BytesIO()
    (picture.resize(size) if size else picture).save(file, file_format, **options)
    return file.getvalue()


def with_pillow(data, mode="RGB"):
    pixels = np.asarray(Image.open(io.BytesIO(data)).convert(mode))
    return pixels.reshape(*pixels.shape[:2], -1)


def mean_difference(left, right):
    assert left.shape == right.shape
    return np.abs(left.astype(int) - right.astype(int)).mean()


@pytest.mark.parametrize("file_format", ["JPEG", "PNG"])
@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("channels", [1, 3])
def test_images_are_what_pillow_decodes(file_format, mode, channels):
    data = encoded(mode, file_format)
    pixels = decoding.decode(data, channels)
    assert pixels.dtype == np.uint8
    wanted = with_pillow(data, {1: "L", 3: "RGB"}[channels])
    assert mean_difference(pixels, wanted) < 0.5  # rounding of luminance, at most
    assert decoding.size(data) == wanted.shape[:2]


@pytest.mark.parametrize("data", [encoded("CMYK"), encoded("P", "PNG"), encoded("RGBA", "PNG")])
def test_cmyk_palette_and_alpha_become_rgb(data):
    assert mean_difference(decoding.decode(data, 3), with_pillow(data)) < 2


def test_progressive_jpegs_single_pixels_and_arrays_decode():
    pixels = np.zeros((8, 8, 1), np.uint8)
    assert decoding.decode(pixels, 1) is pixels
    data = encoded(progressive=True)
    assert mean_difference(decoding.decode(data, 3), with_pillow(data)) == 0
    assert decoding.decode(encoded(size=(1, 1)), 3).shape == (1, 1, 3)
    assert decoding.decode_within(encoded(size=(700, 1)), 96, 3).shape == (1, 96, 3)


@pytest.mark.parametrize(("side", "shape"), [(1000, (427, 640)), (384, (256, 384)), (64, (43, 64))])
def test_large_photographs_shrink_to_the_canvas_and_small_ones_stay(side, shape):
    data = encoded()
    pixels = decoding.decode_within(data, side, 3)
    assert pixels.shape == (*shape, 3)
    wanted = Image.fromarray(with_pillow(data)).resize(shape[::-1], Image.Resampling.BILINEAR)
    assert mean_difference(pixels, np.asarray(wanted)) < (1e-9 if side == 1000 else 6)


@pytest.mark.parametrize("side", [1000, 384])
@pytest.mark.parametrize("image", [encoded(), with_pillow(encoded()), with_pillow(encoded(), "L")])
def test_a_canvas_receives_the_pixels_at_its_top_left(side, image):
    canvas = np.full((side, side, 3), 7, np.uint8)
    returned = decoding.decode_within(image, side, 3, canvas)
    height, width = returned.shape[:2]
    assert np.shares_memory(returned, canvas)
    expected = decoding.decode_within(image, side, 3)
    np.testing.assert_array_equal(
        canvas[:height, :width], np.broadcast_to(expected, returned.shape)
    )
    assert (canvas[height:] == 7).all()
    assert (canvas[:, width:] == 7).all()


@pytest.mark.parametrize(
    ("box", "out", "tolerance"),
    [((0, 0, 100, 90), 224, 0.5), ((327, 500, 100, 140), 224, 0.5), ((7, 21, 400, 520), 128, 6)],
)
def test_crops_are_what_pillow_crops_and_resizes(box, out, tolerance):
    data = encoded()
    y, x, height, width = box
    wanted = Image.fromarray(with_pillow(data)).resize(
        (out, out), Image.Resampling.BILINEAR, box=(x, y, x + width, y + height)
    )
    inner = (slice(8, -8), slice(8, -8))  # at the edges Pillow looks beyond the crop
    crop = decoding.decode_crop(data, box, out, 3)
    assert mean_difference(crop[inner], np.asarray(wanted)[inner]) < tolerance


@pytest.mark.parametrize("out", [16, 100, 213])
def test_a_crop_decoded_at_a_reduced_size_shows_the_same_place(out):
    box = (13, 40, 414, 599)
    reduced = decoding.decode_crop(encoded(), box, out, 3)
    whole = decoding.decode_crop(encoded(file_format="PNG"), box, out, 3)
    shifted = decoding.decode_crop(encoded(file_format="PNG"), (5, 32, 414, 599), out, 3)
    assert mean_difference(reduced, whole) < 0.7 * mean_difference(reduced, shifted) + 2


JPEG, PNG = encoded(quality=90), encoded(file_format="PNG")
HALF = len(JPEG) // 2
BAD = {
    "truncated": JPEG[:HALF],
    "without its end": JPEG[:-2],
    "overwritten": JPEG[:HALF] + b"\xff\xda" * 50 + JPEG[HALF + 100 :],
    "header only": JPEG[:20],
    "truncated CMYK": encoded("CMYK")[:HALF],
    "truncated PNG": PNG[: len(PNG) // 2],
    "32 bits": encoded("F", "TIFF"),
    "text": b"no image at all",
    "empty": b"",
    "an array of numbers": [1, 2, 3],
}


@pytest.mark.parametrize("name", BAD)
def test_damaged_images_are_errors(name):
    for decode in (decoding.decode, lambda data, c: decoding.decode_within(data, 64, c)):
        with pytest.raises(decoding.DecodeError):
            decode(BAD[name], 3)


def claiming(file_format, height, width):
    """A file of a few bytes whose header claims so many pixels."""
    file = io.BytesIO()
    Image.fromarray(np.zeros((16, 16, 3), np.uint8)).save(file, file_format)
    content = bytearray(file.getvalue())
    place, packed = {
        "JPEG": (content.find(b"\xff\xc0") + 5, struct.pack(">HH", height, width)),
        "PNG": (16, struct.pack(">II", width, height)),
        "GIF": (6, struct.pack("<HH", width, height)),
        "BMP": (18, struct.pack("<ii", width, height)),
        "WEBP": (content.find(b"\x9d\x01\x2a") + 3, struct.pack("<HH", 16383, 16383)),
    }[file_format]
    content[place : place + len(packed)] = packed
    if file_format == "PNG":
        content[29:33] = struct.pack(">I", zlib.crc32(content[12:29]))
    return bytes(content)


@pytest.mark.parametrize("file_format", ["JPEG", "PNG", "GIF", "BMP", "WEBP"])
def test_an_image_with_too_many_pixels_is_refused_by_its_header(file_format):
    claims = claiming(file_format, 40_000, 40_000)
    for decode in (
        decoding.size,
        lambda data: decoding.decode(data, 3),
        lambda data: decoding.decode_within(data, 64, 3),
        lambda data: decoding.decode_crop(data, (0, 0, 9, 9), 9, 3),
    ):
        with pytest.raises(decoding.DecodeError, match="178,956,970"):
            decode(claims)


def test_junk_between_segments_is_skipped_with_a_warning():
    junk = JPEG[:-2] + b"\0\0\0" + JPEG[-2:]
    with pytest.warns(RuntimeWarning):
        pixels = decoding.decode(junk, 3)
    np.testing.assert_array_equal(pixels, decoding.decode(JPEG, 3))


@pytest.mark.parametrize("shape", [(256, 384), (100, 700)])
def test_pixels_are_resized_as_jax_does_to_one_gray_level(shape):
    pixels = with_pillow(encoded())
    wanted = jax.image.resize(pixels.astype(np.float32), (*shape, 3), "bilinear", antialias=False)
    difference = abs(decoding.resize(pixels, shape) - np.round(wanted))
    assert difference.max() <= 1
    assert (difference == 0).mean() > 0.8
