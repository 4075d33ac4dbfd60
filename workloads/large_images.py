"""Classification of photographs of any size: ImageNet, and the digits on JPEGs of its mini.

Photographs are decoded onto a canvas, a square of one size, at its top left. Larger photographs are
reduced to fit; smaller ones keep every pixel. Echoing before augmentation repeats the canvas and
the photograph's size, so that random cropping is one vectorized function of fixed-size arrays, on
the host or in the compiled step.

With `fused_decode` there is no canvas. The crop is drawn first; then the whole photograph is
decoded (a JPEG at 1/2, 1/4, or 1/8 of its size if the crop stays large enough) and the crop cut
out, so that small crops of large photographs keep their full detail. Since nothing is left to crop,
it cannot be combined with echoing before augmentation.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from workloads import classification, color, crops, networks
from workloads.classification import Classification
from workloads.interface import Arrays, copy_keys, field, lacks

# Maximum aspect ratio of a training crop (Szegedy et al. 2015), and the side of the center crop for
# evaluation: 224 of 256, as in Krizhevsky et al. (2012).
MAX_ASPECT = 4 / 3
CENTER_SHARE = 0.875


@dataclasses.dataclass(frozen=True)
class LargeImageClassification(Classification):
    """Random-resized crops of photographs, by default for an ImageNet ResNet.

    Attributes:
        channels: channels of the photographs, 1 or 3.
        canvas: side of the canvas in pixels.
        crop_size: side of the network's input in pixels.
        min_area: minimum area of a training crop as a share of the photograph's.
        flip: whether to mirror images at random.
        color: whether to distort colors at random.
    """

    num_classes: int
    channels: int
    canvas: int
    crop_size: int
    min_area: float
    flip: bool
    color: bool
    network: networks.Network
    label_smoothing: float

    @classmethod
    def from_config(cls, config, info) -> "LargeImageClassification":
        if info.num_classes is None:
            raise lacks(config, info, "class labels")
        if info.channels not in (1, 3):
            raise lacks(config, info, "images of 1 or 3 channels")
        crop_size = config.augmentation.crop_size
        shape = (crop_size, crop_size, info.channels)
        return cls(
            num_classes=info.num_classes,
            channels=info.channels,
            canvas=config.dataset.canvas,
            crop_size=crop_size,
            min_area=config.augmentation.min_area,
            flip=config.augmentation.flip,
            color=config.augmentation.color,
            network=networks.choose(networks.LARGE, config, shape, info.num_classes),
            label_smoothing=config.loss.label_smoothing,
        )

    def decode(self, records: list[dict[str, Any]]) -> dict[str, np.ndarray]:
        """Decodes records to image uint8 [n, S, S, C], size int32 [n, 2], and label int32 [n].

        `size` is the (height, width) of the photograph at the top left of its canvas.
        """
        from workloads import decoding  # a step on prepared batches does not need it

        images_nxSxSxC = np.zeros((len(records), self.canvas, self.canvas, self.channels), np.uint8)
        sizes_nx2 = np.zeros((len(records), 2), np.int32)
        for row, record in enumerate(records):
            pixels = decoding.decode_within(field(record, "image"), self.canvas, self.channels)
            height, width = sizes_nx2[row] = pixels.shape[:2]
            images_nxSxSxC[row, :height, :width] = pixels
        return {
            "image": images_nxSxSxC,
            "size": sizes_nx2,
            "label": classification.labels(records, self.num_classes),
        }

    def decode_cropped(self, records, seed, index_n, copy_n) -> dict[str, np.ndarray]:
        """Decodes records to random-resized crops: image uint8 [n, O, O, C], label int32 [n].

        The crops are those that `augment` draws for the same (seed, index, copy); for photographs
        that are larger than the canvas, up to the rounding of their reduced size.
        """
        from workloads import decoding

        sizes = np.asarray([decoding.size(field(record, "image")) for record in records], np.int32)
        rows = np.arange(-(-len(records) // 8) * 8) % len(
            records
        )  # few lengths, so few compilations
        with jax.default_device(jax.local_devices(backend="cpu")[0]):
            boxes = _random_boxes(
                self, np.uint32(seed), sizes[rows], _uint32(index_n)[rows], _uint32(copy_n)[rows]
            )
        images = [
            decoding.decode_crop(record["image"], tuple(box), self.crop_size, self.channels)
            for record, box in zip(records, np.asarray(boxes).tolist(), strict=False)
        ]
        return {
            "image": np.stack(images),
            "label": classification.labels(records, self.num_classes),
        }

    def augment(self, data: Arrays, seed, index_B, copy_B) -> Arrays:
        """Crops (unless `decode_cropped` did), mirrors, and distorts colors at random.

        Returns image uint8 [B, O, O, C] and label; `size` is removed.
        """
        data = dict(data)
        mirror_key_B, color_key_B = self._keys(seed, index_B, copy_B, (1, 2))
        mirror_B = jax.vmap(lambda key: self.flip & jax.random.bernoulli(key))(mirror_key_B)
        if "size" in data:
            boxes_Bx4 = self.random_boxes(seed, data.pop("size"), index_B, copy_B)
            images_BxOxOxC = self._cropped(data["image"], boxes_Bx4, mirror_B)
        else:
            images_BxOxOxC = data["image"]
            mirrored_BxOxOxC = images_BxOxOxC[:, :, ::-1]
            images_BxOxOxC = jnp.where(
                mirror_B[:, None, None, None], mirrored_BxOxOxC, images_BxOxOxC
            )
        if self.color:
            images_BxOxOxC = jax.vmap(color.distort)(color_key_B, images_BxOxOxC)
        return data | {"image": images_BxOxOxC}

    def random_boxes(self, seed, size_Bx2, index_B, copy_B):
        """The random crop of each row, (y, x, height, width) in pixels, int32 [B, 4]."""
        (keys,) = self._keys(seed, index_B, copy_B, (0,))
        box = functools.partial(crops.random_box, min_area=self.min_area, aspect=MAX_ASPECT)
        return jax.vmap(box)(keys, size_Bx2)

    def evaluation_images(self, data: Arrays) -> jax.Array:
        boxes_Bx4 = jax.vmap(functools.partial(crops.center_box, share=CENTER_SHARE))(data["size"])
        return self._cropped(data["image"], boxes_Bx4, jnp.zeros(len(boxes_Bx4), bool))

    def _cropped(self, images_BxSxSxC, boxes_Bx4, mirror_B):
        # The barrier prevents XLA from drawing boxes again for every pixel: 0.3 ms per image on a
        # CPU instead of 1.1 ms.
        boxes_Bx4, mirror_B = jax.lax.optimization_barrier((boxes_Bx4, mirror_B))
        crop = functools.partial(crops.crop_and_resize, out=self.crop_size)
        return jax.vmap(crop)(images_BxSxSxC, boxes_Bx4, mirror_B)

    def _keys(self, seed, index_B, copy_B, uses):
        """For each of `uses`, one key per row, folded from the row's key."""
        keys = copy_keys(seed, index_B, copy_B)
        return [jax.vmap(lambda key, use=use: jax.random.fold_in(key, use))(keys) for use in uses]


@functools.partial(jax.jit, static_argnums=0)
def _random_boxes(workload: LargeImageClassification, seed, size_Bx2, index_B, copy_B):
    return workload.random_boxes(seed, size_Bx2, index_B, copy_B)


def _uint32(values) -> np.ndarray:
    return np.asarray(values, np.uint32)
