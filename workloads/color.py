"""Random color distortion of images, in JAX."""

import jax
import jax.numpy as jnp


def distort(key: jax.Array, image_HxWxC: jax.Array) -> jax.Array:
    """Random brightness, contrast, saturation, and hue of a uint8 image; returns uint8.

    Ranges and the two orders of operations are those of Inception's published training code
    (TF-Slim, `distort_color`), recalled and not verified. The order is drawn per image instead of
    per input thread. Grayscale images change only in brightness and contrast.
    """
    import dm_pix  # a step on prepared batches does not need it

    limits = ((-32 / 255, 32 / 255), (0.5, 1.5), (-0.2, 0.2), (0.5, 1.5))
    order_key, *keys = jax.random.split(key, 5)
    draws = [
        jax.random.uniform(k, minval=low, maxval=high)
        for k, (low, high) in zip(keys, limits, strict=True)
    ]
    # The barrier prevents XLA from drawing again for every pixel.
    contrast_last, *draws = jax.lax.optimization_barrier((jax.random.bernoulli(order_key), *draws))
    brightness, saturation, hue, contrast = draws
    image = dm_pix.adjust_brightness(image_HxWxC.astype(jnp.float32) / 255, brightness)
    if image_HxWxC.shape[-1] != 3:
        image = dm_pix.adjust_contrast(image, contrast)
    else:
        # Hue takes most of the time, so it is adjusted once, between two adjustments of the
        # contrast, one of which is by 1.
        before = jnp.where(contrast_last, 1.0, contrast)
        after = jnp.where(contrast_last, contrast, 1.0)
        image = dm_pix.adjust_saturation(image, saturation)
        image = dm_pix.adjust_hue(dm_pix.adjust_contrast(image, before), hue)
        image = dm_pix.adjust_contrast(image, after)
    return jnp.round(jnp.clip(image, 0, 1) * 255).astype(jnp.uint8)
