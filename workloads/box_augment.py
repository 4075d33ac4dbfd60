"""Augmentation for detection: crop, mirror and recolour an image while its boxes follow the pixels.

JAX functions of one example, for `vmap`; they run on the host or in the compiled step. Boxes are
`ymin, xmin, ymax, xmax` as shares of the image.
"""

import jax
import jax.numpy as jnp
import numpy as np

from workloads import boxes as geometry

WHOLE = (0.0, 0.0, 1.0, 1.0)  # the window that is all of the image

# Liu et al. 2016, section 2.2, and the authors' code: a crop is drawn up to 50 times until some
# object overlaps it by the IoU that was drawn for the image; 0 = any crop will do.
_MIN_IOUS = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9)
_TRIALS = 50
_MAX_ASPECT_RATIO = 2.0

# The same code's colours: shift, contrast, saturation and hue (degrees), each half of the time.
_BRIGHTNESS, _CONTRAST, _SATURATION, _HUE = 32.0, 0.5, 0.5, 18.0

# Hue and saturation turn and scale the colour plane of YIQ, which is linear and nearly HSV's.
_YIQ = np.array([[0.299, 0.587, 0.114], [0.596, -0.274, -0.322], [0.211, -0.523, 0.312]])
_RGB = np.linalg.inv(_YIQ)


def random_window(boxes_Mx4: jax.Array, valid_M: jax.Array, key, min_scale: float) -> jax.Array:
    """A random crop of SSD's kind as a window [4]: ymin, xmin, ymax, xmax.

    One image in seven keeps its whole self; so does one for which no trial suits, such as an image
    without boxes. A window's sides are at least `min_scale` of the image's, their ratio is between
    1/2 and 2, and the centre of some box lies inside.
    """
    kind_key, size_key, place_key = jax.random.split(key, 3)
    kind = jax.random.randint(kind_key, (), 0, len(_MIN_IOUS) + 1)
    min_iou = jnp.asarray((*_MIN_IOUS, 0.0))[kind]
    size_Tx2 = jax.random.uniform(size_key, (_TRIALS, 2), minval=min_scale)
    low_Tx2 = jax.random.uniform(place_key, (_TRIALS, 2)) * (1 - size_Tx2)
    window_Tx4 = jnp.concatenate([low_Tx2, low_Tx2 + size_Tx2], -1)

    ratio_T = size_Tx2[:, 0] / size_Tx2[:, 1]
    shaped_T = jnp.maximum(ratio_T, 1 / ratio_T) <= _MAX_ASPECT_RATIO
    iou_TxM = geometry.iou(window_Tx4, boxes_Mx4)
    seen_TxM = valid_M & jax.vmap(lambda window: centre_inside(boxes_Mx4, window))(window_Tx4)
    suits_T = shaped_T & ((iou_TxM >= min_iou) & seen_TxM).any(1)
    crops = suits_T.any() & (kind < len(_MIN_IOUS))
    return jnp.where(crops, window_Tx4[suits_T.argmax()], jnp.asarray(WHOLE))


def centre_inside(boxes_Mx4: jax.Array, window_4: jax.Array) -> jax.Array:
    """bool [M]: which boxes' centres lie in the window."""
    centre_Mx2 = (boxes_Mx4[:, :2] + boxes_Mx4[:, 2:]) / 2
    return ((centre_Mx2 > window_4[:2]) & (centre_Mx2 < window_4[2:])).all(-1)


def crop_boxes(boxes_Mx4: jax.Array, window_4: jax.Array) -> jax.Array:
    """The boxes as shares of the window, cut off at its edges."""
    low_4, side_4 = jnp.tile(window_4[:2], 2), jnp.tile(window_4[2:] - window_4[:2], 2)
    return jnp.clip((boxes_Mx4 - low_4) / side_4, 0.0, 1.0)


def crop_image(image_HxWxC: jax.Array, window_4: jax.Array, size: int) -> jax.Array:
    """The window as float32 [size, size, C]: bilinear, antialiased where it shrinks."""
    shape_2 = jnp.asarray(image_HxWxC.shape[:2], jnp.float32)
    window_4 = jnp.asarray(window_4, jnp.float32)
    scale_2 = size / ((window_4[2:] - window_4[:2]) * shape_2)
    return jax.image.scale_and_translate(
        image_HxWxC.astype(jnp.float32),
        (size, size, image_HxWxC.shape[-1]),
        spatial_dims=(0, 1),
        scale=scale_2,
        translation=-window_4[:2] * shape_2 * scale_2,
        method="linear",
    )


def mirror(image_HxWxC: jax.Array, boxes_Mx4: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Left becomes right."""
    ymin_M, xmin_M, ymax_M, xmax_M = jnp.moveaxis(boxes_Mx4, -1, 0)
    return image_HxWxC[:, ::-1], jnp.stack([ymin_M, 1 - xmax_M, ymax_M, 1 - xmin_M], -1)


def recolour(image_HxWx3: jax.Array, key, strength: float) -> jax.Array:
    """Random brightness, contrast, saturation and hue of float32 pixels in [0, 255], not clipped.

    Args:
        image_HxWx3: red, green, blue.
        strength: 1 = the ranges of SSD's authors, 0 = none.
    """
    chance_key, amount_key = jax.random.split(key)
    happens_4 = jax.random.bernoulli(chance_key, 0.5, (4,))
    amount_4 = jax.random.uniform(amount_key, (4,), minval=-strength, maxval=strength) * happens_4
    brightness, contrast = _BRIGHTNESS * amount_4[0], 1 + _CONTRAST * amount_4[1]
    saturation, hue = 1 + _SATURATION * amount_4[2], jnp.deg2rad(_HUE) * amount_4[3]
    cos, sin = saturation * jnp.cos(hue), saturation * jnp.sin(hue)
    turn_3x3 = jnp.array([[1.0, 0.0, 0.0], [0.0, cos, -sin], [0.0, sin, cos]])
    linear_3x3 = contrast * (_RGB @ turn_3x3 @ _YIQ)
    # Highest precision: a matrix unit's default would round pixels to eight bits of mantissa.
    precision = jax.lax.Precision.HIGHEST
    return jnp.einsum("hwc,dc->hwd", image_HxWx3, linear_3x3, precision=precision) + brightness
