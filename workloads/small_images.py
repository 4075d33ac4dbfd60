"""Classification of small images of one size: CIFAR-10, and the digits of its mini."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from workloads import classification, networks
from workloads.interface import Arrays, copy_keys, field, lacks


@dataclasses.dataclass(frozen=True)
class SmallImageClassification(classification.Classification):
    """Images of one shape, by default for a CIFAR ResNet.

    Attributes:
        image_shape: (height, width, channels).
        pad: pixels of zero padding before the random crop.
        flip: whether to mirror images at random.
    """

    image_shape: tuple[int, int, int]
    num_classes: int
    pad: int
    flip: bool
    network: networks.Network
    label_smoothing: float

    @classmethod
    def from_config(cls, config, info) -> "SmallImageClassification":
        if info.image_shape is None or info.channels not in (1, 3):
            raise lacks(config, info, "images of one size, with 1 or 3 channels and class labels")
        if (info.num_classes or 0) < 2:
            raise lacks(config, info, "class labels of two classes or more")
        shape = tuple(info.image_shape)
        return cls(
            image_shape=shape,
            num_classes=info.num_classes,
            pad=config.augmentation.pad,
            flip=config.augmentation.flip,
            network=networks.choose(networks.SMALL, config, shape, info.num_classes),
            label_smoothing=config.loss.label_smoothing,
        )

    def decode(self, records: list[dict[str, Any]]) -> dict[str, np.ndarray]:
        """Decodes records to image uint8 [n, H, W, C] and label int32 [n]."""
        from workloads import decoding  # a step on prepared batches does not need it

        channels = self.image_shape[-1]
        images = [decoding.decode(field(record, "image"), channels) for record in records]
        for image in images:
            if image.shape != self.image_shape:
                raise ValueError(
                    f"an image of {image.shape}; those of the data set have {self.image_shape}"
                )
        labels_n = classification.labels(records, self.num_classes)
        return {"image": np.stack(images), "label": labels_n}

    def augment(self, data: Arrays, seed, index_B, copy_B) -> Arrays:
        """Pads with zeros, crops at random, and mirrors at random; image uint8 [B, H, W, C]."""
        keys = copy_keys(seed, index_B, copy_B)
        images_BxHxWxC = jax.vmap(self._augment_one)(data["image"], keys)
        return data | {"image": images_BxHxWxC}

    def _augment_one(self, image_HxWxC, key):
        crop_key, flip_key = jax.random.split(key)
        padding = ((self.pad, self.pad), (self.pad, self.pad), (0, 0))
        y, x = jax.random.randint(crop_key, (2,), 0, 2 * self.pad + 1)
        crop = jax.lax.dynamic_slice(jnp.pad(image_HxWxC, padding), (y, x, 0), image_HxWxC.shape)
        if not self.flip:
            return crop
        return jnp.where(jax.random.bernoulli(flip_key), crop[:, ::-1], crop)
