"""Random color distortion of images: drawn in JAX, applied by the compiled step or by the host."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

_BRIGHTNESS, _SATURATION = (-32 / 255, 32 / 255), (0.5, 1.5)
_HUE, _CONTRAST = (-0.2, 0.2), (0.5, 1.5)


class Distortion(NamedTuple):
    """What is drawn for an image: numbers, or arrays [B] for a batch.

    Attributes:
        contrast_last: whether the contrast is adjusted after the hue instead of before it, bool.
        brightness: added to all channels; float32, as are the others.
        saturation: multiplies the saturation.
        hue: added to the hue, in turns.
        contrast: multiplies the difference of a channel from its mean.
    """

    contrast_last: Any
    brightness: Any
    saturation: Any
    hue: Any
    contrast: Any


def draw(key: jax.Array) -> Distortion:
    """Draws random brightness, contrast, saturation, and hue.

    Ranges are those of TF-Slim's `distort_color` (inception_preprocessing.py), and so is the order
    with the contrast last: brightness, saturation, hue, contrast. The other order, brightness,
    saturation, contrast, hue, is ours. TF-Slim has three others, and draws one of its four per
    image.
    """
    order_key, *keys = jax.random.split(key, 5)
    draws = [
        jax.random.uniform(k, minval=low, maxval=high)
        for k, (low, high) in zip(keys, (_BRIGHTNESS, _SATURATION, _HUE, _CONTRAST), strict=True)
    ]
    return Distortion(jax.random.bernoulli(order_key), *draws)


def distort(image_HxWxC: jax.Array, drawn: Distortion) -> jax.Array:
    """Distorts the colors of a uint8 image; returns uint8.

    Grayscale images change only in brightness and contrast.
    """
    import dm_pix  # a step on prepared batches does not need it

    # The barrier prevents XLA from drawing again for every pixel.
    drawn = Distortion(*jax.lax.optimization_barrier(tuple(drawn)))
    image = dm_pix.adjust_brightness(image_HxWxC.astype(jnp.float32) / 255, drawn.brightness)
    if image_HxWxC.shape[-1] != 3:
        image = dm_pix.adjust_contrast(image, drawn.contrast)
    else:
        # Hue takes most of the time, so it is adjusted once, between two adjustments of the
        # contrast, one of which is by 1.
        before = jnp.where(drawn.contrast_last, 1.0, drawn.contrast)
        after = jnp.where(drawn.contrast_last, drawn.contrast, 1.0)
        image = dm_pix.adjust_saturation(image, drawn.saturation)
        image = dm_pix.adjust_hue(dm_pix.adjust_contrast(image, before), drawn.hue)
        image = dm_pix.adjust_contrast(image, after)
    return jnp.round(jnp.clip(image, 0, 1) * 255).astype(jnp.uint8)


def distort_rows(images_BxHxWxC: np.ndarray, drawn: Distortion) -> np.ndarray:
    """`distort` for each row, on the host with OpenCV, where XLA takes five times as long.

    Pixels differ from those of `distort` by at most 1 gray level.

    Args:
        images_BxHxWxC: uint8.
        drawn: arrays [B].
    """
    rows = (Distortion(*row) for row in zip(*(draws.tolist() for draws in drawn), strict=True))
    return np.stack([_distort(*pair) for pair in zip(images_BxHxWxC, rows, strict=True)])


def _distort(image_HxWxC: np.ndarray, drawn: Distortion) -> np.ndarray:
    pixels_HxWxC = image_HxWxC * np.float32(1 / 255) + np.float32(drawn.brightness)
    if image_HxWxC.shape[-1] != 3:
        pixels_HxWxC = _adjust_contrast(pixels_HxWxC, drawn.contrast)
    elif drawn.contrast_last:
        pixels_HxWxC = _adjust_hue_and_saturation(pixels_HxWxC, drawn.hue, drawn.saturation)
        pixels_HxWxC = _adjust_contrast(pixels_HxWxC, drawn.contrast)
    else:
        pixels_HxWxC = _adjust_hue_and_saturation(pixels_HxWxC, 0.0, drawn.saturation)
        pixels_HxWxC = _adjust_contrast(pixels_HxWxC, drawn.contrast)
        pixels_HxWxC = _adjust_hue_and_saturation(pixels_HxWxC, drawn.hue)
    return np.rint(np.clip(pixels_HxWxC, 0, 1) * 255).astype(np.uint8)


def _adjust_hue_and_saturation(
    pixels_HxWx3: np.ndarray, hue: float, saturation: float | None = None
) -> np.ndarray:
    """Adds to the hue and multiplies the saturation (None leaves it)."""
    import cv2  # a step that augments on the device does not need it

    hsv_HxWx3 = cv2.cvtColor(pixels_HxWx3, cv2.COLOR_RGB2HSV)
    hue_HxW, saturation_HxW, value_HxW = np.moveaxis(hsv_HxWx3, -1, 0)
    hue_HxW += np.float32(360 * (hue % 1))  # OpenCV does not wrap negative degrees
    if saturation is not None:
        np.minimum(saturation_HxW * np.float32(saturation), 1, out=saturation_HxW)
    saturation_HxW[value_HxW <= 0] = 0  # as in dm_pix; pixels are outside [0, 1] before the end
    return cv2.cvtColor(hsv_HxWx3, cv2.COLOR_HSV2RGB)


def _adjust_contrast(pixels_HxWxC: np.ndarray, contrast: float) -> np.ndarray:
    import cv2  # whose mean is several times faster than NumPy's

    mean_C = np.asarray(cv2.mean(pixels_HxWxC)[: pixels_HxWxC.shape[-1]])
    return pixels_HxWxC * np.float32(contrast) + (mean_C * (1 - contrast)).astype(np.float32)
