"""Random-resized and center crops of photographs, in JAX: boxes, and bilinear sampling.

A box is (y, x, height, width) in whole pixels, int32 [4].
"""

import jax
import jax.numpy as jnp

# Attempts at a box that fits; then the largest centered one is taken, as in torchvision.
_ATTEMPTS = 10


def random_box(key: jax.Array, size: jax.Array, min_area: float, aspect: float) -> jax.Array:
    """A random box in an image: Inception's crop (Szegedy et al. 2015, section 6).

    As in torchvision's RandomResizedCrop, the area is uniform in [min_area, 1] of the image's, the
    aspect ratio log-uniform in [1 / aspect, aspect], and the position uniform.

    Args:
        key: a random key.
        size: (height, width) of the image, int32 [2].
    """
    height, width = size.astype(jnp.float32)
    area_key, aspect_key, place_key = jax.random.split(key, 3)
    area_A = jax.random.uniform(area_key, (_ATTEMPTS,), minval=min_area) * height * width
    limit = jnp.log(aspect)
    ratio_A = jnp.exp(jax.random.uniform(aspect_key, (_ATTEMPTS,), minval=-limit, maxval=limit))
    shape_Ax2 = jnp.round(jnp.sqrt(jnp.stack([area_A / ratio_A, area_A * ratio_A], axis=1)))
    fits_A = ((shape_Ax2 >= 1) & (shape_Ax2 <= size)).all(axis=1)
    # If none fits: the largest centered box with an allowed aspect ratio.
    largest = jnp.stack([jnp.minimum(height, width * aspect), jnp.minimum(width, height * aspect)])
    first = shape_Ax2[jnp.argmax(fits_A)]
    shape = jnp.where(fits_A.any(), first, jnp.maximum(jnp.round(largest), 1)).astype(jnp.int32)
    # Not by randint, whose draws jump with the range: an image at another size gets the same crop.
    free = size - shape
    anywhere = jnp.minimum(jax.random.uniform(place_key, (2,)) * (free + 1), free).astype(jnp.int32)
    corner = jnp.where(fits_A.any(), anywhere, free // 2)
    return jnp.concatenate([corner, shape])


def center_box(size: jax.Array, share: float) -> jax.Array:
    """The centered square whose side is `share` of the image's shorter side."""
    side = jnp.maximum(1, jnp.round(size.min() * share)).astype(jnp.int32)
    return jnp.concatenate([(size - side) // 2, jnp.stack([side, side])])


def crop_and_resize(image_HxWxC: jax.Array, box, mirror, out: int) -> jax.Array:
    """Crops, resizes, and optionally mirrors a uint8 image; returns uint8 [out, out, C].

    Bilinear, sampled at half-pixel centers without prefilter, as in tf.image.resize; pixels outside
    the box have no influence. Uses two gathers: `jax.image.scale_and_translate` gives the same
    result by matrix products, which take 20 times as long on a CPU.

    Args:
        box: (y, x, height, width), int32 [4].
        mirror: whether to mirror the crop, bool.
        out: rows and columns of the result.
    """
    y0_O, y1_O, fy_O = _taps(box[0], box[2], out)
    # Mirror the sampling positions: if it mirrored pixels, XLA would sample every pixel twice.
    x0_O, x1_O, fx_O = (jnp.where(mirror, t[::-1], t) for t in _taps(box[1], box[3], out))
    fy_Ox1x1, fx_Ox1 = fy_O[:, None, None], fx_O[:, None]
    rows_OxWxC = _between(image_HxWxC[y0_O], image_HxWxC[y1_O], fy_Ox1x1)
    pixels_OxOxC = _between(rows_OxWxC[:, x0_O], rows_OxWxC[:, x1_O], fx_Ox1)
    return jnp.round(pixels_OxOxC).astype(jnp.uint8)


def _taps(start, length, out: int):
    """The two neighbors of each output pixel, int32 [out], and the weight of the second one."""
    centers_O = (jnp.arange(out) + 0.5) * (length / out) - 0.5
    centers_O = jnp.clip(centers_O, 0, length - 1)
    low_O = jnp.floor(centers_O).astype(jnp.int32)
    high_O = jnp.minimum(low_O + 1, length - 1)
    return start + low_O, start + high_O, centers_O - low_O


def _between(low, high, fraction):
    low = low.astype(jnp.float32)
    return low + (high.astype(jnp.float32) - low) * fraction
