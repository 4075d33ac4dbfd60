"""Geometry of boxes for detection, in JAX: overlap, matching, encoding, decoding, suppression.

Boxes are float32 `ymin, xmin, ymax, xmax` as shares of the image, as TFDS stores them; default
boxes come from the network as `centre x, centre y, width, height`.
"""

import jax
import jax.numpy as jnp

# Offsets are divided by these, so that the network's targets have about unit variance (Liu et al.
# 2016, in the authors' code: "variance").
CENTRE_VARIANCE, SIZE_VARIANCE = 0.1, 0.2

# A default box whose overlap with a true box is this or more is a positive (Liu et al. 2016, 2.2).
MATCH_IOU = 0.5


def to_corners(centres_Nx4: jax.Array) -> jax.Array:
    """(centre x, centre y, width, height) to (ymin, xmin, ymax, xmax)."""
    x, y, width, height = jnp.moveaxis(jnp.asarray(centres_Nx4), -1, 0)
    return jnp.stack([y - height / 2, x - width / 2, y + height / 2, x + width / 2], -1)


def to_centres(corners_Nx4: jax.Array) -> jax.Array:
    """(ymin, xmin, ymax, xmax) to (centre x, centre y, width, height)."""
    ymin, xmin, ymax, xmax = jnp.moveaxis(jnp.asarray(corners_Nx4), -1, 0)
    return jnp.stack([(xmin + xmax) / 2, (ymin + ymax) / 2, xmax - xmin, ymax - ymin], -1)


def area(boxes_Nx4: jax.Array) -> jax.Array:
    """Areas_N; 0 for boxes turned inside out."""
    sides_Nx2 = jnp.maximum(boxes_Nx4[..., 2:] - boxes_Nx4[..., :2], 0)
    return sides_Nx2[..., 0] * sides_Nx2[..., 1]


def iou(first_Mx4: jax.Array, second_Nx4: jax.Array) -> jax.Array:
    """Intersection over union of every pair, [M, N]; 0 where both boxes are empty."""
    low_MxNx2 = jnp.maximum(first_Mx4[:, None, :2], second_Nx4[None, :, :2])
    high_MxNx2 = jnp.minimum(first_Mx4[:, None, 2:], second_Nx4[None, :, 2:])
    common_MxN = area(jnp.concatenate([low_MxNx2, high_MxNx2], -1))
    union_MxN = area(first_Mx4)[:, None] + area(second_Nx4)[None] - common_MxN
    return jnp.where(union_MxN > 0, common_MxN / jnp.maximum(union_MxN, 1e-12), 0.0)


def match(truth_Mx4: jax.Array, valid_M: jax.Array, default_Nx4: jax.Array) -> jax.Array:
    """Which true box each default box has to find, int32 [N], or -1 for the background.

    A default box is matched to the true box that it overlaps most, from MATCH_IOU on. Besides, the
    default box that overlaps a true box most is matched to it whatever the overlap, so that no true
    box is left out for its shape; where one default box is the best of several, the larger overlap
    wins.

    Args:
        truth_Mx4: true boxes as corners, padded.
        valid_M: which of them are real.
        default_Nx4: default boxes as corners.
    """
    iou_MxN = jnp.where(valid_M[:, None], iou(truth_Mx4, default_Nx4), -1.0)
    best_N = jnp.where(iou_MxN.max(0) >= MATCH_IOU, iou_MxN.argmax(0), -1)
    is_best_MxN = jnp.arange(len(default_Nx4)) == iou_MxN.argmax(1)[:, None]
    forced_MxN = jnp.where(is_best_MxN & valid_M[:, None], iou_MxN, -1.0)
    return jnp.where(forced_MxN.max(0) >= 0, forced_MxN.argmax(0), best_N).astype(jnp.int32)


def encode(truth_Nx4: jax.Array, default_Nx4: jax.Array) -> jax.Array:
    """What the network should give for each default box: offsets_Nx4 (Liu et al. 2016, eq. 2).

    Args:
        truth_Nx4: the true box that each default box is matched to, as corners, not empty.
        default_Nx4: default boxes as centres and sizes.
    """
    box_Nx4 = to_centres(truth_Nx4)
    centre_Nx2 = (box_Nx4[..., :2] - default_Nx4[..., :2]) / default_Nx4[..., 2:]
    size_Nx2 = jnp.log(jnp.maximum(box_Nx4[..., 2:], 1e-6) / default_Nx4[..., 2:])
    return jnp.concatenate([centre_Nx2 / CENTRE_VARIANCE, size_Nx2 / SIZE_VARIANCE], -1)


def decode(offsets_Nx4: jax.Array, default_Nx4: jax.Array) -> jax.Array:
    """The boxes (corners) that the network's offsets mean; the inverse of `encode`."""
    # An untrained network must not make infinite boxes: e**8 already leaves every image.
    growth_Nx2 = jnp.exp(jnp.clip(offsets_Nx4[..., 2:] * SIZE_VARIANCE, -8.0, 8.0))
    shift_Nx2 = offsets_Nx4[..., :2] * CENTRE_VARIANCE * default_Nx4[..., 2:]
    centre_Nx2 = default_Nx4[..., :2] + shift_Nx2
    return to_corners(jnp.concatenate([centre_Nx2, default_Nx4[..., 2:] * growth_Nx2], -1))


def suppress(boxes_Cx4: jax.Array, scores_C: jax.Array, threshold: float) -> jax.Array:
    """Greedy non-maximum suppression: bool [C], which of the boxes of one class are kept.

    From the best score to the worst, a box is kept unless it overlaps one that was kept by more
    than `threshold`. Overlaps are computed a row at a time: the matrix of all images and classes of
    a batch would be far larger than the batch.

    Args:
        boxes_Cx4: corners, in descending order of their scores.
        scores_C: 0 for boxes that do not count.
        threshold: largest IoU that two kept boxes may have.
    """
    places_C = jnp.arange(len(boxes_Cx4))

    def look_at(place, keep_C):
        overlap_C = iou(boxes_Cx4[place][None], boxes_Cx4)[0]
        drop_C = (overlap_C > threshold) & (places_C > place) & keep_C[place]
        return keep_C & ~drop_C

    return jax.lax.fori_loop(0, len(boxes_Cx4), look_at, scores_C > 0)
