"""Augmentation for detection: a crop that keeps objects, and boxes that follow the pixels.

JAX functions of one example, for `vmap`; they run on the host or in the compiled step. Boxes are
`ymin, xmin, ymax, xmax` as shares of the image.
"""

import jax
import jax.numpy as jnp

from workloads.detection import boxes as geometry

# Liu et al. 2016, section 2.2, and the authors' code: a crop is drawn up to 50 times, until some
# object has with it the overlap (IoU) that was drawn before; 0 = any crop will do.
_MIN_IOUS = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9)
_TRIALS = 50
_ASPECT = 2.0  # the largest ratio of a crop's sides


def random_window(key, boxes_Mx4, valid_M, size: int, min_area: float) -> jax.Array:
    """A random crop as (y, x, height, width) in whole pixels, int32 [4].

    One image in seven stays whole; so does one for which no trial suits, such as an image without
    boxes. The centre of some box is always inside.

    Args:
        key: a random key.
        boxes_Mx4, valid_M: the boxes, and which of them are real.
        size: rows and columns of the image.
        min_area: smallest share of the image's area in a crop, in (0, 1].
    """
    kind_key, window_key = jax.random.split(key)
    kind = jax.random.randint(kind_key, (), 0, len(_MIN_IOUS) + 1)
    pixels_Tx4 = _windows(window_key, size, min_area)
    window_Tx4 = _shares(pixels_Tx4, size)
    centre_Mx2 = (boxes_Mx4[:, :2] + boxes_Mx4[:, 2:]) / 2
    seen_TxM = valid_M & _inside(centre_Mx2[None], window_Tx4[:, None])
    enough_TxM = geometry.iou(window_Tx4, boxes_Mx4) >= jnp.asarray((*_MIN_IOUS, 0.0))[kind]
    suits_T = (seen_TxM & enough_TxM).any(1)
    crops = suits_T.any() & (kind < len(_MIN_IOUS))
    return jnp.where(crops, pixels_Tx4[suits_T.argmax()], jnp.array([0, 0, size, size]))


def crop_boxes(boxes_Mx4, labels_M, window_4, size: int) -> tuple[jax.Array, jax.Array]:
    """The boxes as shares of the window, cut off at its edges; label -1 where the centre is out.

    Args:
        window_4: (y, x, height, width) in pixels of an image of `size` rows and columns.
    """
    window_4 = _shares(window_4, size)
    seen_M = _inside((boxes_Mx4[:, :2] + boxes_Mx4[:, 2:]) / 2, window_4)
    low_4, side_4 = jnp.tile(window_4[:2], 2), jnp.tile(window_4[2:] - window_4[:2], 2)
    return jnp.clip((boxes_Mx4 - low_4) / side_4, 0.0, 1.0), jnp.where(seen_M, labels_M, -1)


def mirror_boxes(boxes_Mx4) -> jax.Array:
    """Left becomes right."""
    ymin_M, xmin_M, ymax_M, xmax_M = jnp.moveaxis(boxes_Mx4, -1, 0)
    return jnp.stack([ymin_M, 1 - xmax_M, ymax_M, 1 - xmin_M], -1)


def _windows(key, size: int, min_area: float) -> jax.Array:
    """Trial crops (y, x, height, width) in whole pixels, int32 [T, 4], as by the authors."""
    scale_key, ratio_key, place_key = jax.random.split(key, 3)
    scale_T = jax.random.uniform(scale_key, (_TRIALS,), minval=min_area**0.5)
    min_T = jnp.maximum(1 / _ASPECT, scale_T**2)  # neither side may be longer than the image's
    ratio_T = jax.random.uniform(ratio_key, (_TRIALS,), minval=min_T, maxval=1 / min_T)
    shape_Tx2 = scale_T[:, None] * jnp.stack([ratio_T**-0.5, ratio_T**0.5], 1)
    shape_Tx2 = jnp.clip(jnp.round(shape_Tx2 * size), 1, size).astype(jnp.int32)
    corner_Tx2 = jax.random.randint(place_key, (_TRIALS, 2), 0, size - shape_Tx2 + 1)
    return jnp.concatenate([corner_Tx2, shape_Tx2], 1)


def _shares(window_4, size: int) -> jax.Array:
    """(y, x, height, width) in pixels to (ymin, xmin, ymax, xmax) as shares; leading axes stay."""
    corner_2, shape_2 = window_4[..., :2], window_4[..., 2:]
    return jnp.concatenate([corner_2, corner_2 + shape_2], -1) / size


def _inside(points_2, window_4) -> jax.Array:
    return ((points_2 > window_4[..., :2]) & (points_2 < window_4[..., 2:])).all(-1)
