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

RAMP = np.arange(48 * 32, dtype=np.uint16).reshape(48, 32)


def encoded(mode="RGB", file_format="JPEG", size=None, **options):
    """One of scikit-learn's photographs (427 x 640 pixels) as a file's bytes."""
    picture = Image.fromarray(load_sample_image("china.jpg")).convert(mode)
    return saved(picture.resize(size) if size else picture, file_format, **options)


def saved(picture, file_format, **options):
    file = io.BytesIO()
    picture.save(file, file_format, **options)
    return file.getvalue()


def with_pillow(data, mode="RGB"):
    pixels = np.asarray(Image.open(io.BytesIO(data)).convert(mode))
    return pixels.reshape(*pixels.shape[:2], -1)


def mean_difference(left, right):
    assert left.shape == right.shape
    return np.abs(left.astype(int) - right.astype(int)).mean()


def transparent():
    """RGBA noise, most of which is not opaque."""
    pixels = np.random.default_rng(0).integers(0, 256, (48, 32, 4), np.uint8)
    return Image.fromarray(pixels, "RGBA")


SMALL = {"size": (32, 48)}
FILES = {
    "JPEG": encoded(),
    "JPEG L": encoded("L"),
    "JPEG CMYK": encoded("CMYK"),
    "JPEG progressive": encoded(progressive=True),
    "PNG 1": encoded("1", "PNG", **SMALL),
    "PNG L": encoded("L", "PNG", **SMALL),
    "PNG LA": encoded("LA", "PNG", **SMALL),
    "PNG P": encoded("P", "PNG", **SMALL, transparency=3),
    "PNG P 2 bits": saved(Image.fromarray(np.uint8([[0, 1, 2, 3]]), "P"), "PNG", bits=2),
    "PNG RGB": encoded("RGB", "PNG", **SMALL),
    "PNG RGBA": saved(transparent(), "PNG"),
    "GIF": encoded("P", "GIF", **SMALL, transparency=5),
    "GIF frames": encoded("P", "GIF", **SMALL, save_all=True, append_images=[transparent()]),
    "BMP": encoded("RGB", "BMP", **SMALL),
    "BMP P": encoded("P", "BMP", **SMALL),
    "WEBP": encoded("RGB", "WEBP", **SMALL),
    "WEBP RGBA": saved(transparent(), "WEBP", lossless=True, exact=True),
    "PPM of 0 to 100": b"P5 4 1 100 " + bytes([0, 25, 50, 100]),
    "PPM": encoded("RGB", "PPM", **SMALL),
    "AVIF": encoded("RGB", "AVIF", **SMALL),
}


def within(image, side):
    canvases = np.empty((1, side, side, 3), np.uint8)
    ((height, width),) = decoding.decode_within([image], canvases)
    return canvases[0, :height, :width]


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", FILES)
def test_images_are_what_pillow_decodes(name, channels):
    pixels = decoding.decode(FILES[name], channels)
    assert pixels.dtype == np.uint8
    wanted = with_pillow(FILES[name], {1: "L", 3: "RGB"}[channels])
    rounded = name in ("JPEG", "JPEG progressive") and channels == 1  # luminance, at most
    assert mean_difference(pixels, wanted) <= (0.5 if rounded else 0)
    assert decoding.header(FILES[name])[0] == wanted.shape[:2]


@pytest.mark.parametrize(
    ("data", "largest"),
    [
        (saved(Image.fromarray(RAMP * 40), "PNG"), 65535),
        (b"P5 32 48 65535 " + (RAMP * 40).byteswap().tobytes(), 65535),
        (b"P5 32 48 1600 " + RAMP.byteswap().tobytes(), 1600),
    ],
)
def test_gray_levels_of_16_bits_are_scaled_by_the_largest(data, largest):
    levels = RAMP if largest < 65535 else RAMP * 40.0
    pixels = decoding.decode(data, 3)
    np.testing.assert_allclose(pixels[..., 0], levels * (255 / largest), atol=1)
    assert (pixels == pixels[..., :1]).all()


def test_single_pixels_and_arrays_decode():
    pixels = np.zeros((8, 8, 1), np.uint8)
    assert decoding.decode(pixels, 1) is pixels
    for wrong in (pixels / 255, pixels[..., 0], np.zeros((3, 8, 8), np.uint8)):
        with pytest.raises(ValueError, match="uint8"):
            decoding.decode(wrong, 1)
    assert decoding.decode(encoded(size=(1, 1)), 3).shape == (1, 1, 3)
    assert within(encoded(size=(700, 1)), 96).shape == (1, 96, 3)


@pytest.mark.parametrize(("side", "shape"), [(1000, (427, 640)), (384, (256, 384)), (64, (43, 64))])
@pytest.mark.parametrize("image", [encoded(), with_pillow(encoded()), with_pillow(encoded(), "L")])
def test_large_photographs_shrink_to_the_top_left_of_the_canvas_and_small_ones_stay(
    image, side, shape
):
    canvases = np.full((1, side, side, 3), 7, np.uint8)
    assert decoding.decode_within([image], canvases).tolist() == [[*shape]]
    canvas, returned = canvases[0], within(image, side)
    assert not canvas[shape[0] :].any()
    assert not canvas[:, shape[1] :].any()
    pixels = with_pillow(image) if isinstance(image, bytes) else image
    wanted = Image.fromarray(pixels.squeeze()).resize(shape[::-1], Image.Resampling.BILINEAR)
    wanted = np.broadcast_to(np.asarray(wanted).reshape(*shape, -1), returned.shape)
    assert mean_difference(canvas[: shape[0], : shape[1]], wanted) < (1e-9 if side == 1000 else 13)
    np.testing.assert_array_equal(returned, canvas[: shape[0], : shape[1]])


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
    crop = decoding.decode_at(data, (out, out), 3, box=box)
    assert mean_difference(crop[inner], np.asarray(wanted)[inner]) < tolerance


@pytest.mark.parametrize("out", [16, 100, 213])
def test_a_crop_decoded_at_a_reduced_size_shows_the_same_place(out):
    png, shape = encoded(file_format="PNG"), (out, out)
    reduced = decoding.decode_at(encoded(), shape, 3, box=(13, 40, 414, 599))
    whole = decoding.decode_at(png, shape, 3, box=(13, 40, 414, 599))
    shifted = decoding.decode_at(png, shape, 3, box=(5, 32, 414, 599))
    assert mean_difference(reduced, whole) < 0.7 * mean_difference(reduced, shifted) + 2


JPEG, PNG = encoded(quality=90), encoded(file_format="PNG")
HALF = len(JPEG) // 2
BAD = {
    "truncated": JPEG[:HALF],
    "without its end": JPEG[:-2],
    "extraneous bytes": JPEG[:-2] + b"abc" + JPEG[-2:],
    "a byte that is wrong": JPEG[:HALF] + bytes([JPEG[HALF] ^ 85]) + JPEG[HALF + 1 :],
    "overwritten": JPEG[:HALF] + b"\xff\xda" * 50 + JPEG[HALF + 100 :],
    "header only": JPEG[:20],
    "truncated CMYK": encoded("CMYK")[:HALF],
    "truncated PNG": PNG[: len(PNG) // 2],
    "text": b"no image at all",
    "empty": b"",
    "an array of numbers": [1, 2, 3],
    "a format whose damage is not reported": encoded("RGB", "TIFF"),
    "another format": encoded("RGB", "ICO"),
}


@pytest.mark.parametrize("name", BAD)
def test_damaged_images_are_errors(name):
    for decode in (decoding.decode, lambda data, _: within(data, 64)):
        with pytest.raises(decoding.DecodeError):
            decode(BAD[name], 3)


@pytest.mark.parametrize("name", ["PNG RGB", "PNG L", "PNG P"])
def test_damage_that_a_decoder_can_report_is_reported(name):
    data, random, refused = FILES[name], np.random.default_rng(0), 0
    for _ in range(100):
        damaged = bytearray(data)
        damaged[random.integers(60, len(data))] ^= random.integers(1, 256)
        try:
            decoding.decode(bytes(damaged), 3)
        except decoding.DecodeError:
            refused += 1
    assert refused >= 95
    with pytest.raises(decoding.DecodeError):
        decoding.decode(data[: 2 * len(data) // 3], 3)


def claiming(file_format, height, width):
    """A file of a few bytes whose header claims so many pixels."""
    content = bytearray(saved(Image.fromarray(np.zeros((16, 16, 3), np.uint8)), file_format))
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
        decoding.header,
        lambda data: decoding.decode(data, 3),
        lambda data: within(data, 64),
    ):
        with pytest.raises(decoding.DecodeError, match="178,956,970"):
            decode(claims)


def test_zeros_before_the_end_of_a_jpeg_are_no_damage():
    pixels = decoding.decode(JPEG[:-2] + b"\0\0\0" + JPEG[-2:], 3)
    np.testing.assert_array_equal(pixels, decoding.decode(JPEG, 3))


@pytest.mark.parametrize("shape", [(256, 384), (100, 700)])
def test_pixels_are_resized_as_jax_does_to_one_gray_level(shape):
    pixels = with_pillow(encoded())
    wanted = jax.image.resize(pixels.astype(np.float32), (*shape, 3), "bilinear", antialias=False)
    decoding.resize(pixels, resized := np.empty((*shape, 3), np.uint8))
    difference = abs(resized - np.round(wanted))
    assert difference.max() <= 1
    assert (difference == 0).mean() > 0.8
