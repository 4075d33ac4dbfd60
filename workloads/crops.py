"""Random-resized and centre crops of photographs, in JAX: boxes, and bilinear sampling of them.

A box is (y, x, height, width) in whole pixels, int32 [4].
"""

import jax
import jax.numpy as jnp

# Attempts at a box that fits, before the largest centred one is taken; as torchvision does.
_ATTEMPTS = 10


def random_box(key, size, min_area: float, aspect: float):
    """A random part of a picture: Inception's crop (Szegedy et al. 2015, section 6).

    The area is uniform in [min_area, 1] of the picture's, the aspect ratio log-uniform in
    [1 / aspect, aspect], the place uniform, as in torchvision's RandomResizedCrop.

    Args:
        key: a random key.
        size: (height, width) of the picture, int32 [2].
    """
    height, width = size.astype(jnp.float32)
    area_key, aspect_key, place_key = jax.random.split(key, 3)
    area_A = jax.random.uniform(area_key, (_ATTEMPTS,), minval=min_area) * height * width
    limit = jnp.log(aspect)
    ratio_A = jnp.exp(jax.random.uniform(aspect_key, (_ATTEMPTS,), minval=-limit, maxval=limit))
    shape_Ax2 = jnp.round(jnp.sqrt(jnp.stack([area_A / ratio_A, area_A * ratio_A], axis=1)))
    fits_A = ((shape_Ax2 >= 1) & (shape_Ax2 <= size)).all(axis=1)
    # Where none fits: the largest part in the middle whose aspect ratio is allowed.
    largest = jnp.stack([jnp.minimum(height, width * aspect), jnp.minimum(width, height * aspect)])
    first = shape_Ax2[jnp.argmax(fits_A)]
    shape = jnp.where(fits_A.any(), first, jnp.maximum(jnp.round(largest), 1)).astype(jnp.int32)
    # Not by randint, whose draws jump with the range: a picture at another size is cropped alike.
    free = size - shape
    anywhere = jnp.minimum(jax.random.uniform(place_key, (2,)) * (free + 1), free).astype(jnp.int32)
    corner = jnp.where(fits_A.any(), anywhere, free // 2)
    return jnp.concatenate([corner, shape])


def centre_box(size, share: float):
    """The square in the middle whose side is `share` of the picture's shorter side."""
    side = jnp.maximum(1, jnp.round(size.min() * share)).astype(jnp.int32)
    return jnp.concatenate([(size - side) // 2, jnp.stack([side, side])])


def crop_and_resize(image_HxWxC, box, mirror, out: int):
    """A part of an image at another size, mirrored or not, uint8 [out, out, C]; the image is uint8.

    Bilinear, sampled at half-pixel centres and without prefilter, as in tf.image.resize; pixels
    outside the box are not looked at. Two gathers: `jax.image.scale_and_translate` gives the same
    by matrix products, which takes 20 times as long on a CPU.
    """
    y0_O, y1_O, fy_O = _taps(box[0], box[2], out)
    # Mirrored here, where it is a few numbers; afterwards XLA would sample every pixel twice.
    x0_O, x1_O, fx_O = (jnp.where(mirror, t[::-1], t) for t in _taps(box[1], box[3], out))
    fy_Ox1x1, fx_Ox1 = fy_O[:, None, None], fx_O[:, None]
    rows_OxWxC = _between(image_HxWxC[y0_O], image_HxWxC[y1_O], fy_Ox1x1)
    pixels_OxOxC = _between(rows_OxWxC[:, x0_O], rows_OxWxC[:, x1_O], fx_Ox1)
    return jnp.round(pixels_OxOxC).astype(jnp.uint8)


def _taps(start, length, out: int):
    """The two pixels that each output pixel lies between, int32 [out], and how far on it is."""
    centres_O = (jnp.arange(out) + 0.5) * (length / out) - 0.5
    centres_O = jnp.clip(centres_O, 0, length - 1)
    low_O = jnp.floor(centres_O).astype(jnp.int32)
    high_O = jnp.minimum(low_O + 1, length - 1)
    return start + low_O, start + high_O, centres_O - low_O


def _between(low, high, fraction):
    low = low.astype(jnp.float32)
    return low + (high.astype(jnp.float32) - low) * fraction
