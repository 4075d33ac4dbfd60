"""Random colour distortion of images, in JAX."""

import dm_pix
import jax
import jax.numpy as jnp


def distort(key, image_HxWxC):
    """Random brightness, contrast, saturation and hue of a uint8 image; returns uint8.

    Ranges and the two orders are those of Inception's published training code (TF-Slim,
    `distort_color`), recalled and not verified; the order is drawn for each image instead of for
    each input thread. Grey images have no colour: brightness and contrast alone.
    """
    order_key, *keys = jax.random.split(key, 5)
    colours = image_HxWxC.shape[-1] == 3

    def brightness(image):
        return dm_pix.random_brightness(keys[0], image, 32 / 255)

    def saturation(image):
        return dm_pix.random_saturation(keys[1], image, 0.5, 1.5) if colours else image

    def hue(image):
        return dm_pix.random_hue(keys[2], image, 0.2) if colours else image

    def contrast(image):
        return dm_pix.random_contrast(keys[3], image, 0.5, 1.5)

    image = image_HxWxC.astype(jnp.float32) / 255
    contrast_last = contrast(hue(saturation(brightness(image))))
    hue_last = hue(contrast(saturation(brightness(image))))
    image = jnp.where(jax.random.bernoulli(order_key), contrast_last, hue_last)
    return jnp.round(jnp.clip(image, 0, 1) * 255).astype(jnp.uint8)
