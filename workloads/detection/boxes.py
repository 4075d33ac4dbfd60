"""Geometry of boxes for detection, in JAX: overlap, matching, encoding, decoding, suppression.

Boxes are float32 `ymin, xmin, ymax, xmax` as shares of the image, as TFDS stores them; default
boxes come from the network as `center x, center y, width, height`.
"""

import jax
import jax.numpy as jnp

# Divisors of offsets, so that the network's targets have about unit variance ("variance" in the
# code of Liu et al. 2016).
CENTER_SCALE, SIZE_SCALE = 0.1, 0.2

# Minimum overlap of a default box with a true box that makes it positive (Liu et al. 2016, 2.2).
MATCH_IOU = 0.5


def to_corners(centers_Nx4: jax.Array) -> jax.Array:
    """(center x, center y, width, height) to (ymin, xmin, ymax, xmax)."""
    x, y, width, height = jnp.moveaxis(jnp.asarray(centers_Nx4), -1, 0)
    return jnp.stack([y - height / 2, x - width / 2, y + height / 2, x + width / 2], -1)


def to_centers(corners_Nx4: jax.Array) -> jax.Array:
    """(ymin, xmin, ymax, xmax) to (center x, center y, width, height)."""
    ymin, xmin, ymax, xmax = jnp.moveaxis(jnp.asarray(corners_Nx4), -1, 0)
    return jnp.stack([(xmin + xmax) / 2, (ymin + ymax) / 2, xmax - xmin, ymax - ymin], -1)


def area(boxes_Nx4: jax.Array) -> jax.Array:
    """Areas, [N]; 0 for inverted boxes."""
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
    """The true box that each default box is matched to, int32 [N]; -1 for the background.

    A default box is matched to the true box that it overlaps most, if the IoU is at least
    MATCH_IOU. In addition, each true box is matched to the default box that overlaps it most,
    whatever the overlap. If several true boxes share that default box, the largest overlap wins,
    and a small box may be ignored; the bipartite matching of Liu et al. (2016, section 2.2) gives
    it the next best default box.

    Args:
        truth_Mx4: true boxes as corners, padded.
        valid_M: which of them are not padding.
        default_Nx4: default boxes as corners.
    """
    iou_MxN = jnp.where(valid_M[:, None], iou(truth_Mx4, default_Nx4), -1.0)
    best_N = jnp.where(iou_MxN.max(0) >= MATCH_IOU, iou_MxN.argmax(0), -1)
    is_best_MxN = jnp.arange(len(default_Nx4)) == iou_MxN.argmax(1)[:, None]
    forced_MxN = jnp.where(is_best_MxN, iou_MxN, -1.0)  # that of padding is -1 anyway
    return jnp.where(forced_MxN.max(0) >= 0, forced_MxN.argmax(0), best_N).astype(jnp.int32)


def encode(truth_Nx4: jax.Array, default_Nx4: jax.Array) -> jax.Array:
    """The network's targets for each default box, offsets [N, 4] (Liu et al. 2016, eq. 2).

    Args:
        truth_Nx4: the true box that each default box is matched to, as corners.
        default_Nx4: default boxes as centers and sizes.
    """
    box_Nx4 = to_centers(truth_Nx4)
    center_Nx2 = (box_Nx4[..., :2] - default_Nx4[..., :2]) / default_Nx4[..., 2:]
    size_Nx2 = jnp.log(jnp.maximum(box_Nx4[..., 2:], 1e-6) / default_Nx4[..., 2:])
    return jnp.concatenate([center_Nx2 / CENTER_SCALE, size_Nx2 / SIZE_SCALE], -1)


def decode(offsets_Nx4: jax.Array, default_Nx4: jax.Array) -> jax.Array:
    """The boxes (corners) that the network's offsets represent; the inverse of `encode`."""
    # Prevents infinite boxes of an untrained network; a factor of e**8 already exceeds every image.
    growth_Nx2 = jnp.exp(jnp.clip(offsets_Nx4[..., 2:] * SIZE_SCALE, -8.0, 8.0))
    shift_Nx2 = offsets_Nx4[..., :2] * CENTER_SCALE * default_Nx4[..., 2:]
    center_Nx2 = default_Nx4[..., :2] + shift_Nx2
    return to_corners(jnp.concatenate([center_Nx2, default_Nx4[..., 2:] * growth_Nx2], -1))


def suppress(boxes_Cx4: jax.Array, scores_C: jax.Array, threshold: float) -> jax.Array:
    """Greedy non-maximum suppression: which boxes of one class to keep, bool [C].

    In descending order of scores, a box is kept unless its IoU with a kept box exceeds `threshold`.
    Overlaps are computed one kept box at a time: the full matrix for all images and classes would
    be far larger than the batch.

    Args:
        boxes_Cx4: corners, in descending order of their scores.
        scores_C: 0 for boxes to ignore.
        threshold: maximum IoU of two kept boxes.
    """
    places_C = jnp.arange(len(boxes_Cx4))

    def visit(state):
        keep_C, place = state
        overlap_C = iou(boxes_Cx4[place][None], boxes_Cx4)[0]
        keep_C &= ~((overlap_C > threshold) & (places_C > place))
        return keep_C, following(keep_C, place)

    def following(keep_C, place):
        """The next kept box; C if there is none."""
        return jnp.where(keep_C & (places_C > place), places_C, len(boxes_Cx4)).min()

    keep_C = scores_C > 0
    state = keep_C, following(keep_C, -1)
    return jax.lax.while_loop(lambda state: state[1] < len(boxes_Cx4), visit, state)[0]
