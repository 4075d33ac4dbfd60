"""Detection's input: decoding, records that cannot be used, composed scenes, augmentation."""

import io

import jax
import numpy as np
import pytest
from PIL import Image

import workloads
from configs import imagenet
from data import splits
from data.sources import RecordError, Source
from pipeline import map_datasets
from tests.helpers import tfds_data
from tests.helpers.detection import jpeg, mini, record, workload
from workloads.detection import windows


class Records(Source):
    def __init__(self, records):
        self._records = records

    def __len__(self):
        return len(self._records)

    def __getitems__(self, indices):
        return [self._records[i] for i in indices]


def test_decoded_arrays_have_fixed_shapes_and_say_what_is_padding():
    area, crowd = [11, 22], [False, True]
    data = workload().decode(
        [record([[0, 0, 0.5, 0.5], [0.1, 0.2, 0.3, 0.4]], area=area, is_crowd=crowd), record()]
    )
    assert {name: (array.shape, str(array.dtype)) for name, array in data.items()} == {
        "image": ((2, 40, 40, 3), "uint8"),
        "boxes": ((2, 8, 4), "float32"),
        "labels": ((2, 8), "int32"),
        "crowd": ((2, 8), "bool"),
        "area": ((2, 8), "float32"),
        "size": ((2, 2), "int32"),
        "bad_boxes": ((2,), "int32"),
    }
    assert data["labels"].tolist() == [[1, 1] + [-1] * 6, [-1] * 8]
    assert data["area"][0, :2].tolist() == area
    assert data["crowd"][0, :2].tolist() == crowd
    assert data["size"].tolist() == [[48, 64]] * 2


def test_an_area_that_is_missing_or_nan_is_the_boxs_in_pixels():
    """COCO's metrics would count an object of area nan as small, medium, and large."""
    boxes, pixels = [[0, 0, 0.5, 0.25], [0, 0, 0.5, 0.5]], 0.5 * 48 * 0.25 * 64
    missing = workload().decode([record(boxes)])
    assert missing["area"][0, :2].tolist() == [pixels, 2 * pixels]
    assert not missing["crowd"].any()
    data = workload().decode([record(boxes, area=[np.nan, 7.0])])
    assert data["area"][0, :2].tolist() == [pixels, 7]


def test_boxes_outside_are_cut_off_and_empty_ones_dropped_and_both_counted():
    inside, outside, beyond = [0, 0, 1, 1.0005], [-0.5, 0.2, 0.5, 1.5], [1.2, 0, 1.5, 1]
    empty, unknown = [0.3, 0.3, 0.3, 0.6], [np.nan, 0, 1, 1]
    with pytest.warns(UserWarning, match="clipped.*dropped"):
        data = workload().decode([record([inside, outside, beyond, empty, unknown])])
    assert data["bad_boxes"].tolist() == [4]
    assert data["labels"][0].tolist() == [1, 1] + [-1] * 6
    np.testing.assert_allclose(data["boxes"][0, :2], [[0, 0, 1, 1], [0, 0.2, 0.5, 1]])


WHOLE = [0, 0, 1, 1]
NOISE = np.random.default_rng(0).integers(0, 255, (64, 64, 3), np.uint8)


@pytest.mark.parametrize(
    ("bad", "named"),
    [
        (
            {"image": jpeg(NOISE)[:900]},
            "",
        ),
        ({"image": b"no image"}, ""),
        ({"boxes": [WHOLE], "labels": [10]}, "label 10; .* 9"),
        ({"boxes": [WHOLE], "labels": [-1]}, "label -1; .* 9"),
        ({"boxes": [WHOLE], "labels": [2**40]}, "label 1099511627776; .* 9"),
        ({"boxes": [WHOLE], "labels": [1, 2]}, "1 .* 2 labels"),
        ({"boxes": [WHOLE], "area": [1.0, 2.0]}, "1 .* 2 area"),
        ({"boxes": [WHOLE], "is_crowd": []}, "1 .* 0 is_crowd"),
        ({"boxes": [WHOLE], "labels": [1.5]}, "label 1.5"),
        ({"boxes": [[0, 0, 40, 30]]}, "a box of 40"),
        ({"bbox": None}, "'bbox'"),
        ({"label": None}, "'label'"),
        ({"boxes": [WHOLE] * 9}, "9 boxes; .*dataset.max_boxes, 8"),
    ],
    ids=lambda value: ", ".join(value) if isinstance(value, dict) else "",
)
def test_a_record_that_cannot_be_used_is_named(bad, named):
    source, order = Records([record(), record(), record(**bad)]), map_datasets.FreshOrder(3)
    detection = workload()
    examples = map_datasets.Examples(source, 0, order, lambda given, *_: detection.decode(given))
    with pytest.raises(RecordError, match=f"record 2 .*'image/id': 7.*{named}"):
        examples.stacked_items(range(3))


def test_the_classes_of_an_image_are_not_those_of_its_objects(tmp_path):
    features = {
        "image": tfds_data.image(),
        "label": tfds_data.label(2),
        "objects": tfds_data.boxes(80),
    }
    records = [{"image": tfds_data.png(0), "label": 1}]
    tfds_data.write(tmp_path, "both", features, {"train": records})
    _, info = splits.open_source("both", "train", str(tmp_path))
    assert workloads.make(mini(), info).num_classes == 80
    assert workloads.make(imagenet.get_config("mini"), info).num_classes == 2
    assert {"num_classes": 2, "has_boxes": True}.items() <= info.to_record().items()
    assert "object_classes" not in info.to_record()


def test_scenes_are_a_function_of_split_and_index_and_their_boxes_hold_the_ink():
    source, _ = splits.open_source("digit_scenes", "train")
    other, _ = splits.open_source("digit_scenes", "validation")
    assert source[3]["image"] == splits.open_source("digit_scenes", "train")[0][3]["image"]
    assert source[3]["image"] != other[3]["image"]
    scenes = source.__getitems__(range(50))
    counts = [len(scene["objects"]["label"]) for scene in scenes]
    assert set(counts) == {1, 2, 3, 4, 5}
    boxes = np.concatenate([scene["objects"]["bbox"] for scene in scenes])
    assert boxes.min() >= 0
    assert boxes.max() <= 1
    assert (boxes[:, 2:] - boxes[:, :2]).min() > 0.04
    assert len({Image.open(io.BytesIO(scene["image"])).size for scene in scenes}) > 40


# Augmentation


def painted(box, side=96):
    """A dark image with a bright rectangle, as decoded."""
    image = np.full((side, side, 3), 20, np.uint8)
    ymin, xmin, ymax, xmax = (round(float(edge) * side) for edge in box)
    image[ymin:ymax, xmin:xmax] = 220
    return image


def test_boxes_follow_the_pixels_through_crop_and_mirror():
    detection = workload(
        dataset__canvas=96,
        augmentation__crop_size=64,
        augmentation__min_area=0.1,
        augmentation__flip=True,
    )
    rows = 128
    boxes = np.tile(np.float32([0.25, 0.5, 0.5, 0.875]), (rows, 1))
    data = {
        "image": np.tile(painted(boxes[0]), (rows, 1, 1, 1)),
        "boxes": np.pad(boxes[:, None], ((0, 0), (1, 2), (0, 0))),  # the second of four places
        "labels": np.tile(np.int32([-1, 5, -1, -1]), (rows, 1)),
        "crowd": np.zeros((rows, 4), bool),
        "bad_boxes": np.zeros(rows, np.int32),
    }
    out = jax.jit(detection.augment)(
        data, 0, np.arange(rows, dtype=np.uint32), np.uint32([0] * rows)
    )
    # some object is in every crop, and here there is one
    assert out["labels"].tolist() == [[-1, 5, -1, -1]] * rows
    seen = []
    for image, box in zip(np.asarray(out["image"]), np.asarray(out["boxes"][:, 1]), strict=True):
        ys, xs = np.nonzero(image[..., 0] > 120)
        pixels = [ys.min(), xs.min(), ys.max() + 1, xs.max() + 1]
        np.testing.assert_allclose(pixels, box * 64, atol=1.01)
        seen.append(tuple(pixels))
    assert len(set(seen)) > rows / 2
    assert any(xmin == 0 for _, xmin, _, _ in seen)  # cut off at an edge

    on_host = detection.augment_on_host(data, 0, np.arange(rows), np.zeros(rows, int))
    assert on_host.keys() == out.keys()
    for name in ("boxes", "labels", "bad_boxes"):
        np.testing.assert_array_equal(on_host[name], out[name])
    assert abs(on_host["image"].astype(int) - out["image"]).max() <= 1


def crops_by_loops(boxes, size, min_area, number):
    """The crops of Liu et al. (2016), as loops: (y, x, height, width), and None for no crop."""
    rng, crops = np.random.default_rng(1), []
    while len(crops) < number:
        crops.append(None)
        overlap = rng.choice([0.0, 0.1, 0.3, 0.5, 0.7, 0.9, None])
        for _ in range(50 if overlap is not None else 0):
            scale = rng.uniform(min_area**0.5, 1)
            ratio = rng.uniform(max(0.5, scale**2), min(2, 1 / scale**2))
            h, w = np.clip(np.round(size * scale * np.array([ratio**-0.5, ratio**0.5])), 1, size)
            y, x = rng.integers(0, size - h + 1), rng.integers(0, size - w + 1)
            if any(suits(size * box, (y, x, y + h, x + w), overlap) for box in boxes):
                crops[-1] = (y, x, h, w)
                break
    return crops


def suits(box, crop, overlap):
    """Whether a crop contains the center of a box, and overlaps it so much."""
    low, high = np.maximum(box[:2], crop[:2]), np.minimum(box[2:], crop[2:])
    common = np.prod(np.maximum(high - low, 0))
    area, whole = ((c[2] - c[0]) * (c[3] - c[1]) for c in (box, crop))
    center = (box[:2] + box[2:]) / 2
    inside = (center > crop[:2]).all() and (center < crop[2:]).all()
    return inside and common / (area + whole - common) >= overlap


def test_random_crops_are_those_of_the_paper():
    boxes = np.array([[0.05, 0.1, 0.55, 0.4], [0.6, 0.5, 0.9, 0.95]])
    padded = np.float32([*boxes, [0.3, 0.3, 0.7, 0.7]])  # the last one is padding
    valid, size, number = np.array([True, True, False]), 64, 1_000
    draw = jax.vmap(lambda key: windows.random_window(key, padded, valid, size, 0.1))
    drawn = np.asarray(jax.jit(draw)(jax.random.split(jax.random.key(0), number)))
    wanted = crops_by_loops(boxes, size, 0.1, number)
    whole = (drawn == [0, 0, size, size]).all(axis=1)
    assert whole.mean() == pytest.approx(np.mean([crop is None for crop in wanted]), abs=0.05)
    wanted = np.array([crop for crop in wanted if crop is not None])
    for mine, theirs in zip(_places(drawn[~whole]), _places(wanted), strict=True):
        for quantile in (0.1, 0.5, 0.9):
            found, expected = np.quantile(mine, quantile), np.quantile(theirs, quantile)
            assert found == pytest.approx(expected, abs=4)


def _places(crops):
    """Sides, and the center, in pixels."""
    y, x, h, w = crops.T
    return h, w, y + h / 2, x + w / 2


def test_crowds_and_images_without_boxes_go_through_augmentation():
    detection = workload(augmentation__color=True)
    data = detection.decode([record(), record([[0, 0, 1, 1]], is_crowd=[True])])
    out = jax.jit(detection.augment)(data, 0, np.uint32([0, 1]), np.uint32([0, 0]))
    assert (np.asarray(out["labels"]) == -1).all()
    assert np.isfinite(out["boxes"]).all()
