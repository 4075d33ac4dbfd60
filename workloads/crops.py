"""Crops of photographs: boxes, bilinear sampling, and augmentation by random crops.

A box is (y, x, height, width) in whole pixels, int32 [4].
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from data.host import on_host
from workloads import color
from workloads.interface import Arrays, in_quarter, strata

# Attempts at a box that fits; then the largest centered one is taken, as in torchvision.
_ATTEMPTS = 10


@dataclasses.dataclass(frozen=True)
class RandomCrops:
    """Augmentation by a random crop, resized to one size, mirrored or not, and random colors.

    The draws are the same everywhere. The compiled step cuts, resizes, and distorts colors in JAX
    (`augment`), the host with OpenCV (`augment_on_host`), since XLA takes five to ten times as long
    on a CPU. Pixels of the two differ by at most 1 gray level before colors are distorted.

    Attributes:
        canvas: rows and columns of decoded images.
        crop_size: rows and columns of the network's input.
        min_area: minimum area of a random crop as a share of the image.
        flip: whether to mirror images at random.
        color: whether to distort colors at random.
        max_pixels: of an encoded image.
        stratified: whether an example's copies complement each other.
    """

    canvas: int
    crop_size: int
    min_area: float
    flip: bool
    color: bool
    max_pixels: int
    stratified: bool

    @staticmethod
    def settings(config) -> dict[str, Any]:
        """These attributes as `config` states them."""
        names = ("crop_size", "min_area", "flip", "color")
        return {
            "canvas": config.dataset.canvas,
            "max_pixels": config.dataset.max_pixels,
            "stratified": config.echo.copies == "stratified",
            **{name: config.augmentation[name] for name in names},
        }

    def __init_subclass__(cls, **options):
        """A subclass with an `augment` of its own does not inherit the other one for the host."""
        super().__init_subclass__(**options)
        if "augment" in vars(cls) and "augment_on_host" not in vars(cls):
            cls.augment_on_host = None  # pyright: ignore[reportAttributeAccessIssue]

    def draw(self, data: Arrays, seed, index_B, copy_B) -> tuple[Any, Any, Any, Arrays]:
        """Draws the augmentation (JAX), with one `copy_keys` key per row.

        Args:
            data: the arrays of `augment` but the images.

        Returns:
            The boxes int32 [B, 4], which rows to mirror bool [B], the `color.Distortion` of arrays
            [B] or None, and the result of `augment` but the images.
        """
        raise NotImplementedError

    def augment(self, data: Arrays, seed, index_B, copy_B) -> Arrays:
        """Crops, mirrors, and distorts colors at random; returns image uint8 [B, O, O, C]."""
        data = dict(data)
        images_BxHxWxC = data.pop("image")
        boxes_Bx4, mirror_B, colors, others = self.draw(data, seed, index_B, copy_B)
        images_BxOxOxC = crop_rows(images_BxHxWxC, boxes_Bx4, self.crop_size, mirror_B)
        if colors is not None:
            images_BxOxOxC = jax.vmap(color.distort)(images_BxOxOxC, colors)
        return others | {"image": images_BxOxOxC}

    def augment_on_host(self, data: Arrays, seed, index_B, copy_B) -> Arrays:
        """`augment` by the host's CPU, of NumPy arrays to NumPy arrays."""
        import cv2  # a step on prepared batches does not need it

        from workloads import decoding

        data = dict(data)
        images_BxHxWxC = data.pop("image")
        rows = data, index_B.astype(np.uint32), copy_B.astype(np.uint32)
        boxes_Bx4, mirror_B, colors, others = _draw(self, seed, rows)
        shape = (self.crop_size, self.crop_size)
        if images_BxHxWxC.shape[1:3] == shape and (boxes_Bx4 == (0, 0, *shape)).all():
            images_BxOxOxC = images_BxHxWxC.copy()
        else:
            channels = images_BxHxWxC.shape[-1]
            images_BxOxOxC = np.empty((len(boxes_Bx4), *shape, channels), np.uint8)
            triples = zip(images_BxHxWxC, boxes_Bx4.tolist(), images_BxOxOxC, strict=True)
            for image, (y, x, height, width), crop in triples:
                decoding.resize(image[y : y + height, x : x + width], crop)
        for crop in map(images_BxOxOxC.__getitem__, mirror_B.nonzero()[0].tolist()):
            cv2.flip(crop, 1, crop)
        if colors is not None:
            images_BxOxOxC = color.distort_rows(images_BxOxOxC, colors)
        return others | {"image": images_BxOxOxC}

    def mirrored(self, keys_B, seed, index_B, copy_B) -> jax.Array:
        """Which rows to mirror, bool [B], with one key per row."""
        if self.stratified:
            return (strata(seed, index_B, copy_B, number=2, use=0) == 1) & self.flip
        return jax.vmap(jax.random.bernoulli)(keys_B) & self.flip


@on_host
def _draw(workload: RandomCrops, seed, rows):
    return workload.draw(rows[0], seed, *rows[1:])


def random_box(
    key: jax.Array, size: jax.Array, min_area: float, aspect: float, quarter=None
) -> jax.Array:
    """A random box in an image: Inception's crop (Szegedy et al. 2015, section 6).

    As in torchvision's RandomResizedCrop, the area is uniform in [min_area, 1] of the image's, the
    aspect ratio log-uniform in [1 / aspect, aspect], and the position uniform.

    Args:
        key: a random key.
        size: (height, width) of the image, int32 [2].
        quarter: of all positions, from which this one is drawn, 0 to 3; None = from all.
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
    at = jax.random.uniform(place_key, (2,)) if quarter is None else in_quarter(place_key, quarter)
    anywhere = jnp.minimum(at * (free + 1), free).astype(jnp.int32)
    corner = jnp.where(fits_A.any(), anywhere, free // 2)
    return jnp.concatenate([corner, shape])


def center_box(size: jax.Array, share: float) -> jax.Array:
    """The centered square whose side is `share` of the image's shorter side."""
    side = jnp.maximum(1, jnp.round(size.min() * share)).astype(jnp.int32)
    return jnp.concatenate([(size - side) // 2, jnp.stack([side, side])])


def crop_rows(images_BxHxWxC: jax.Array, boxes_Bx4, out: int, mirror_B=None) -> jax.Array:
    """`crop_and_resize` for each row (None: mirrors none); returns uint8 [B, out, out, C]."""
    mirror_B = jnp.zeros(len(boxes_Bx4), bool) if mirror_B is None else mirror_B
    # The barrier prevents XLA from drawing boxes again for every pixel.
    boxes_Bx4, mirror_B = jax.lax.optimization_barrier((boxes_Bx4, mirror_B))
    crop = functools.partial(crop_and_resize, out=out)
    return jax.vmap(crop)(images_BxHxWxC, boxes_Bx4, mirror_B)


def crop_and_resize(image_HxWxC: jax.Array, box, mirror, out: int) -> jax.Array:
    """Crops, resizes, and optionally mirrors a uint8 image; returns uint8 [out, out, C].

    Bilinear, sampled at half-pixel centers without prefilter, as in tf.image.resize; pixels outside
    the box have no influence. Uses two gathers: `jax.image.scale_and_translate` gives the same
    result by matrix products, which take 20 times as long on a CPU. `decoding.resize` is the
    host's counterpart.

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
