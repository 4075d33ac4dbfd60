"""Box geometry: overlap, matching, encoding and suppression, against pycocotools and by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pycocotools import mask

from models.ssd import default_boxes
from workloads.detection import boxes

match = jax.jit(boxes.match)


def random_boxes(number, seed=0):
    corners = np.random.default_rng(seed).uniform(size=(number, 2, 2)).astype(np.float32)
    return np.concatenate([corners.min(1), corners.max(1)], 1)


def coco_iou(first, second):
    """pycocotools' overlap of every pair."""

    def as_coco(corners):
        ymin, xmin, ymax, xmax = np.asarray(corners, np.float64).T
        return np.stack([xmin, ymin, xmax - xmin, ymax - ymin], 1)

    return mask.iou(as_coco(first), as_coco(second), np.zeros(len(second), np.uint8))


def test_iou_is_that_of_pycocotools():
    first, second = random_boxes(40), random_boxes(50, seed=1)
    np.testing.assert_allclose(boxes.iou(first, second), coco_iou(first, second), atol=1e-5)
    empty, box = np.float32([[0.5, 0.5, 0.5, 0.5]]), np.float32([[0.6, 0.6, 0.9, 0.9]])
    assert boxes.iou(empty, empty) == boxes.iou(empty, box) == boxes.iou(box, box - 0.6) == 0


def test_corners_and_centers_are_each_others_inverse():
    corners = random_boxes(20)
    np.testing.assert_allclose(boxes.to_corners(boxes.to_centers(corners)), corners, atol=1e-6)
    # center x, center y, width, height of a box that is wider than high
    np.testing.assert_allclose(
        boxes.to_centers(np.float32([0.1, 0.2, 0.3, 0.8])), [0.5, 0.2, 0.6, 0.2]
    )


DEFAULTS = np.float32(
    [
        [0.0, 0.0, 0.4, 0.4],
        [0.0, 0.1, 0.4, 0.5],
        [0.6, 0.6, 1.0, 1.0],
        [0.5, 0.5, 0.6, 0.6],
    ]
)


PADDING = [0.0, 0.0, 0.0, 0.0]
FIRST, SECOND, LAST = [0.0, 0.0, 0.4, 0.4], [0.0, 0.1, 0.4, 0.5], [0.6, 0.6, 0.8, 0.8]


@pytest.mark.parametrize(
    ("truth", "expected"),
    [
        ([FIRST], [0, 0, -1, -1]),  # overlaps 1 and 3/5 with the first two
        # A box of width w overlaps the second by (w - 0.1) / 0.5.
        ([[0.0, 0.0, 0.4, 0.36]], [0, 0, -1, -1]),
        ([[0.0, 0.0, 0.4, 0.34]], [0, -1, -1, -1]),
        ([LAST], [-1, -1, 0, -1]),  # 1/4, less than half, but no default box overlaps it more
        ([FIRST, SECOND], [0, 1, -1, -1]),  # each default box takes the one that it overlaps more
        ([[0.6, 0.6, 0.7, 0.7], LAST], [-1, -1, 1, -1]),  # both have their best overlap with one
        ([PADDING], [-1] * 4),
        ([LAST, PADDING], [-1, -1, 0, -1]),
    ],
)
def test_default_boxes_are_matched_where_they_overlap_by_half_or_most(truth, expected):
    valid = np.asarray([box is not PADDING for box in truth])
    assert match(np.float32(truth), valid, DEFAULTS).tolist() == expected


def test_half_is_enough():
    exactly = np.float32([[0.0, 0.0, 1.0, 1.0], [0.0, 0.0, 1.0, 0.5]])
    assert match(exactly[:1], np.ones(1, bool), exactly).tolist() == [0, 0]


def test_every_true_box_of_a_crowded_image_is_found_by_the_best_default_box():
    truth = random_boxes(30)
    corners = boxes.to_corners(default_boxes(96))
    found = np.asarray(match(truth, np.ones(30, bool), corners))
    overlap = coco_iou(truth, corners)
    for place, which in enumerate(found):
        best = overlap[:, place].max()
        if which < 0:
            assert best < 0.501
        elif overlap[which, place] != pytest.approx(overlap[which].max()):
            assert overlap[which, place] == pytest.approx(best, abs=1e-5)
            assert best >= 0.499


def test_offsets_by_hand():
    default = np.float32([0.5, 0.5, 0.2, 0.4])  # center x, center y, width, height
    truth = np.float32([0.4, 0.5, 0.8, 0.7])  # center (0.6, 0.6), 0.2 wide, 0.4 high
    np.testing.assert_allclose(boxes.encode(truth, default), [5, 2.5, 0, 0], atol=1e-5)
    larger = np.float32([0.1, 0.3, 0.9, 0.7])  # the same center, twice the size
    np.testing.assert_allclose(
        boxes.encode(larger, default), [0, 0, np.log(2) / 0.2, np.log(2) / 0.2], atol=1e-5
    )


def test_decoding_undoes_encoding():
    default, truth = default_boxes(64), random_boxes(len(default_boxes(64)))
    decoded = boxes.decode(boxes.encode(truth, default), default)
    np.testing.assert_allclose(decoded, truth, atol=2e-3)


def test_wild_offsets_stay_finite():
    decoded = boxes.decode(jnp.full((1, 4), 1e4), jnp.asarray([[0.5, 0.5, 0.1, 0.1]]))
    assert np.isfinite(decoded).all()


def brute_force_suppression(corners, scores, threshold):
    overlap, kept = coco_iou(corners, corners), []
    for place in np.flatnonzero(scores > 0):
        if all(overlap[place, other] <= threshold for other in kept):
            kept.append(place)
    return kept


@pytest.mark.parametrize("threshold", [0.1, 0.45, 0.9])
def test_suppression_is_that_of_brute_force(threshold):
    suppress = jax.jit(lambda corners, scores: boxes.suppress(corners, scores, threshold))
    for seed in range(5):
        corners = random_boxes(60, seed)
        scores = np.sort(np.random.default_rng(seed).uniform(size=60))[::-1].astype(np.float32)
        scores = np.where(scores < 0.2, 0, scores)
        kept = np.flatnonzero(suppress(corners, scores)).tolist()
        assert kept == brute_force_suppression(corners, scores, threshold)
