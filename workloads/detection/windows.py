"""Random crops for detection: windows that keep objects, and the boxes of the cropped image.

JAX functions of one example, for `vmap`, on the host or in the compiled step. Boxes are
`ymin, xmin, ymax, xmax` as shares of the image.
"""

import jax
import jax.numpy as jnp

from workloads.detection import boxes as geometry

# Liu et al. 2016, section 2.2, and the authors' code: a minimum overlap (IoU) is drawn, then up to
# 50 crops until one overlaps an object that much; 0 accepts any crop.
_MIN_IOUS = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9)
_ATTEMPTS = 50
_MAX_ASPECT = 2.0  # of a crop's sides


def random_window(
    key: jax.Array, boxes_Mx4: jax.Array, valid_M: jax.Array, size: int, min_area: float
) -> jax.Array:
    """A random crop as (y, x, height, width) in whole pixels, int32 [4].

    It contains the center of at least one box. One image in seven is not cropped, nor is an image
    for which no attempt fits, such as one without boxes.

    Args:
        key: a random key.
        boxes_Mx4: the boxes, padded.
        valid_M: which boxes are not padding.
        size: rows and columns of the image.
        min_area: minimum area of a crop as a share of the image, in (0, 1].
    """
    kind_key, window_key = jax.random.split(key)
    kind = jax.random.randint(kind_key, (), 0, len(_MIN_IOUS) + 1)
    pixels_Tx4 = _windows(window_key, size, min_area)
    window_Tx4 = _shares(pixels_Tx4, size)
    center_Mx2 = (boxes_Mx4[:, :2] + boxes_Mx4[:, 2:]) / 2
    inside_TxM = valid_M & _inside(center_Mx2[None], window_Tx4[:, None])
    enough_TxM = geometry.iou(window_Tx4, boxes_Mx4) >= jnp.asarray((*_MIN_IOUS, 0.0))[kind]
    suits_T = (inside_TxM & enough_TxM).any(1)
    crops = suits_T.any() & (kind < len(_MIN_IOUS))
    return jnp.where(crops, pixels_Tx4[suits_T.argmax()], jnp.array([0, 0, size, size]))


def crop_boxes(
    boxes_Mx4: jax.Array, labels_M: jax.Array, window_4: jax.Array, size: int, mirror: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """The boxes as shares of the window, clipped to it; label -1 and zeros if a box's center is
    outside.

    Args:
        window_4: (y, x, height, width) in pixels of an image of `size` rows and columns.
        mirror: whether the window is mirrored horizontally, bool.
    """
    window_4 = _shares(window_4, size)
    inside_M = _inside((boxes_Mx4[:, :2] + boxes_Mx4[:, 2:]) / 2, window_4)
    labels_M = jnp.where(inside_M, labels_M, -1)
    low_4, side_4 = jnp.tile(window_4[:2], 2), jnp.tile(window_4[2:] - window_4[:2], 2)
    boxes_Mx4 = jnp.clip((boxes_Mx4 - low_4) / side_4, 0.0, 1.0)
    ymin_M, xmin_M, ymax_M, xmax_M = jnp.moveaxis(boxes_Mx4, -1, 0)
    mirrored_Mx4 = jnp.stack([ymin_M, 1 - xmax_M, ymax_M, 1 - xmin_M], -1)
    boxes_Mx4 = jnp.where(mirror, mirrored_Mx4, boxes_Mx4)
    return jnp.where((labels_M >= 0)[:, None], boxes_Mx4, 0.0), labels_M


def _windows(key, size: int, min_area: float) -> jax.Array:
    """Random crops (y, x, height, width) in whole pixels, int32 [T, 4], as in the authors' code."""
    scale_key, ratio_key, place_key = jax.random.split(key, 3)
    scale_T = jax.random.uniform(scale_key, (_ATTEMPTS,), minval=min_area**0.5)
    min_T = jnp.maximum(1 / _MAX_ASPECT, scale_T**2)  # keeps both sides within the image
    ratio_T = jax.random.uniform(ratio_key, (_ATTEMPTS,), minval=min_T, maxval=1 / min_T)
    shape_Tx2 = scale_T[:, None] * jnp.stack([ratio_T**-0.5, ratio_T**0.5], 1)
    shape_Tx2 = jnp.clip(jnp.round(shape_Tx2 * size), 1, size).astype(jnp.int32)
    corner_Tx2 = jax.random.randint(place_key, (_ATTEMPTS, 2), 0, size - shape_Tx2 + 1)
    return jnp.concatenate([corner_Tx2, shape_Tx2], 1)


def _shares(window_4, size: int) -> jax.Array:
    """(y, x, height, width) in pixels to (ymin, xmin, ymax, xmax) as shares, [..., 4]."""
    corner_2, shape_2 = window_4[..., :2], window_4[..., 2:]
    return jnp.concatenate([corner_2, corner_2 + shape_2], -1) / size


def _inside(points_2, window_4) -> jax.Array:
    return ((points_2 > window_4[..., :2]) & (points_2 < window_4[..., 2:])).all(-1)
