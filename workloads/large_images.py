"""Classification of photographs of any size: ImageNet, and the digits as JPEGs of its mini.

Photographs are decoded onto a canvas, a square of one size, at its top left. Larger photographs are
reduced to fit; smaller ones keep every pixel. Echoing before augmentation repeats the canvas and
the photograph's size, so that random cropping is one vectorized function of fixed-size arrays, on
the host or in the compiled step.

With `fused_decode` training has no canvas. The crop is drawn first; then the whole photograph is
decoded (a JPEG at 1/2, 1/4, or 1/8 of its size if the crop stays large enough) and the crop cut
out, so that small crops of large photographs keep their full detail. Since nothing is left to crop,
it cannot be combined with echoing before augmentation. Evaluation decodes onto the canvas.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from data.host import on_host
from workloads import color, crops, networks
from workloads.classification import Classification, labels
from workloads.interface import Arrays, copy_keys, field, lacks, strata

# Maximum aspect ratio of a training crop (Szegedy et al. 2015), and the side of the center crop for
# evaluation: 224 of 256, as in Krizhevsky et al. (2012).
MAX_ASPECT = 4 / 3
CENTER_SHARE = 0.875


@dataclasses.dataclass(frozen=True)
class LargeImageClassification(crops.RandomCrops, Classification):
    """Random-resized crops of photographs, by default for an ImageNet ResNet.

    Attributes:
        channels: channels of the photographs, 1 or 3.
    """

    num_classes: int
    channels: int
    network: networks.Network
    label_smoothing: float

    @classmethod
    def from_config(cls, config, info) -> "LargeImageClassification":
        if info.channels not in (1, 3) or (info.num_classes or 0) < 2:
            raise lacks(config, info, "images of 1 or 3 channels, 2 or more classes")
        settings = cls.settings(config)
        shape = (settings["crop_size"], settings["crop_size"], info.channels)
        return cls(
            **settings,
            num_classes=info.num_classes,
            channels=info.channels,
            network=networks.choose(networks.LARGE, config, shape, info.num_classes),
            label_smoothing=config.loss.label_smoothing,
        )

    def decode(self, records: list[dict[str, Any]]) -> dict[str, np.ndarray]:
        """Decodes records to image uint8 [n, S, S, C], size int32 [n, 2], and label int32 [n].

        `size` is the (height, width) of the photograph at the top left of its canvas.
        """
        from workloads import decoding  # a step on prepared batches does not need it

        images = [field(record, "image") for record in records]
        shape = (len(records), self.canvas, self.canvas, self.channels)
        images_nxSxSxC = np.empty(shape, np.uint8)
        sizes_nx2 = decoding.decode_within(images, images_nxSxSxC, self.max_pixels)
        labels_n = labels(records, self.num_classes)
        return {"image": images_nxSxSxC, "size": sizes_nx2, "label": labels_n}

    def decode_cropped(self, records, seed, index_n, copy_n) -> dict[str, np.ndarray]:
        """Decodes records to random-resized crops: image uint8 [n, O, O, C], label int32 [n].

        The crops are those that `augment` draws for the same (seed, index, copy); for photographs
        that are larger than the canvas, up to the rounding of their reduced size.
        """
        from workloads import decoding

        images = [field(record, "image") for record in records]
        heads = [decoding.header(image, self.max_pixels) for image in images]
        sizes_nx2 = np.asarray([size for size, _ in heads], np.int32)
        rows = sizes_nx2, np.asarray(index_n, np.uint32), np.asarray(copy_n, np.uint32)
        boxes_nx4 = _random_boxes(self, seed, rows)
        shape = (len(records), self.crop_size, self.crop_size, self.channels)
        images_nxOxOxC = np.empty(shape, np.uint8)
        decoding.decode_into(images, heads, boxes_nx4.tolist(), list(images_nxOxOxC))
        return {"image": images_nxOxOxC, "label": labels(records, self.num_classes)}

    def draw(self, data: Arrays, seed, index_B, copy_B):
        data = dict(data)
        mirror_key_B, color_key_B = (self._keys(seed, index_B, copy_B, use) for use in (1, 2))
        mirror_B = self.mirrored(mirror_key_B, seed, index_B, copy_B)
        colors = jax.vmap(color.draw)(color_key_B) if self.color else None
        if "size" in data:
            boxes_Bx4 = self.random_boxes(seed, data.pop("size"), index_B, copy_B)
        else:  # `decode_cropped` has cropped
            whole_4 = jnp.asarray((0, 0, self.crop_size, self.crop_size))
            boxes_Bx4 = jnp.broadcast_to(whole_4, (len(index_B), 4))
        return boxes_Bx4, mirror_B, colors, data

    def random_boxes(self, seed, size_Bx2, index_B, copy_B):
        """The random crop of each row, (y, x, height, width) in pixels, int32 [B, 4]."""
        key_B = self._keys(seed, index_B, copy_B, use=0)
        quarter_B = strata(seed, index_B, copy_B, number=4, use=1) if self.stratified else None

        def box(key, size, quarter):
            return crops.random_box(key, size, self.min_area, MAX_ASPECT, quarter)

        return jax.vmap(box)(key_B, size_Bx2, quarter_B)

    def evaluation_images(self, data: Arrays) -> jax.Array:
        boxes_Bx4 = jax.vmap(functools.partial(crops.center_box, share=CENTER_SHARE))(data["size"])
        return crops.crop_rows(data["image"], boxes_Bx4, self.crop_size)

    def _keys(self, seed, index_B, copy_B, use: int) -> jax.Array:
        """One key per row for `use`, [B], folded from the row's key."""
        return jax.vmap(jax.random.fold_in, (0, None))(copy_keys(seed, index_B, copy_B), use)


@on_host
def _random_boxes(workload: LargeImageClassification, seed, rows):
    size_Bx2, index_B, copy_B = rows
    return workload.random_boxes(seed, size_Bx2, index_B, copy_B)
