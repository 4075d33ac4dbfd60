"""Encoded images to pixels: against Pillow, and what happens to damaged ones."""

import io
import struct

import cv2
import jax
import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_sample_image

from data import sources
from pipeline import map_datasets
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


def test_progressive_jpegs_and_single_pixels_decode():
    data = encoded(progressive=True)
    assert mean_difference(decoding.decode(data, 3), with_pillow(data)) == 0
    assert decoding.decode(encoded(size=(1, 1)), 3).shape == (1, 1, 3)
    assert decoding.decode_within(encoded(size=(700, 1)), 96, 3).shape == (1, 96, 3)


def test_arrays_pass_through():
    pixels = np.zeros((8, 8, 1), np.uint8)
    assert decoding.decode(pixels, 1) is pixels


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
    "text": b"no image at all",
    "empty": b"",
}


@pytest.mark.parametrize("name", BAD)
def test_damaged_images_are_errors(name):
    for decode in (decoding.decode, lambda data, c: decoding.decode_within(data, 64, c)):
        with pytest.raises(decoding.DecodeError):
            decode(BAD[name], 3)


@pytest.mark.parametrize("dtype", [np.int32, np.float32])
def test_images_of_32_bits_are_refused_as_such(dtype):
    file = io.BytesIO()
    Image.fromarray(np.ones((4, 5), dtype)).save(file, "TIFF")
    with pytest.raises(decoding.DecodeError, match="32 bits per channel; allowed: 8 or 16"):
        decoding.decode(file.getvalue(), 1)


def _claiming(height, width):
    """Files of a few bytes whose headers claim so many pixels."""

    def written(file_format, place, packed):
        file = io.BytesIO()
        Image.fromarray(np.zeros((16, 16, 3), np.uint8)).save(file, file_format)
        content = bytearray(file.getvalue())
        start = place(content)
        content[start : start + len(packed)] = packed
        return bytes(content)

    jpeg, gif = struct.pack(">HH", height, width), struct.pack("<HH", width, height)
    webp = struct.pack("<HH", min(width, 16383), min(height, 16383))  # no header can claim more
    return {
        "JPEG": written("JPEG", lambda content: content.index(b"\xff\xc0") + 5, jpeg),
        "PNG": written("PNG", lambda _: 16, struct.pack(">II", width, height)),
        "GIF": written("GIF", lambda _: 6, gif),
        "BMP": written("BMP", lambda _: 18, struct.pack("<ii", width, height)),
        "WebP": written("WEBP", lambda content: content.index(b"\x9d\x01\x2a") + 3, webp),
    }


@pytest.mark.parametrize("name", _claiming(40_000, 40_000))
def test_an_image_with_too_many_pixels_is_refused_by_its_header(name):
    claims = _claiming(40_000, 40_000)[name]
    for decode in (
        decoding.size,
        lambda data: decoding.decode(data, 3),
        lambda data: decoding.decode(data, 3, 8),
        lambda data: decoding.decode_within(data, 64, 3),
        lambda data: decoding.decode_crop(data, (0, 0, 9, 9), 9, 3),
    ):
        with pytest.raises(decoding.DecodeError, match="is too large, by its header"):
            decode(claims)


def test_junk_between_segments_is_skipped_with_a_warning():
    junk = JPEG[:-2] + b"\0\0\0" + JPEG[-2:]
    with pytest.warns(RuntimeWarning, match="extraneous"):
        pixels = decoding.decode(junk, 3)
    np.testing.assert_array_equal(pixels, decoding.decode(JPEG, 3))


def test_the_record_that_cannot_be_decoded_is_named():
    files = [JPEG] * 20
    files[13] = BAD["truncated"]
    source = sources.ArraySource(
        image=np.asarray(files, object), label=np.arange(20), file_name=np.arange(20).astype("S")
    )

    def decode(records, index_n, copy_n):
        return {"image": np.stack([decoding.decode(r["image"], 3) for r in records])}

    read = map_datasets.Read(source, seed=0, num_fresh=20, decode=decode)
    with pytest.raises(map_datasets.RecordError, match=r"record 13 .*13.* cannot be decoded"):
        read.stacked_items(range(20))


@pytest.mark.parametrize("use_ipp", [True, False])
@pytest.mark.parametrize("shape", [(256, 384), (100, 700)])
def test_both_routines_resize_to_one_gray_level(monkeypatch, use_ipp, shape):
    monkeypatch.setattr(decoding, "_USE_IPP", use_ipp)
    settings = []
    monkeypatch.setattr(cv2.ipp, "setUseIPP_NotExact", _recorded(settings))
    pixels = with_pillow(encoded())
    wanted = jax.image.resize(pixels.astype(np.float32), (*shape, 3), "bilinear", antialias=False)
    difference = abs(decoding.resize(pixels, shape) - np.round(wanted))
    assert difference.max() <= 1
    assert (difference == 0).mean() > 0.8
    assert settings == [use_ipp, False]


def _recorded(settings, set_it=cv2.ipp.setUseIPP_NotExact):
    def set_and_record(flag):
        settings.append(flag)
        set_it(flag)

    return set_and_record


def test_resizing_changes_no_setting_of_the_thread():
    """A data set that resizes pixels in the same thread must not depend on what ran before."""
    pixels = np.random.default_rng(0).integers(0, 256, (37, 41, 1), np.uint8)

    def by_opencv():
        return cv2.resize(pixels, (64, 50), interpolation=cv2.INTER_LINEAR)

    before = by_opencv()
    decoding.resize(pixels, (50, 64))
    np.testing.assert_array_equal(by_opencv(), before)
