"""Classification of small images of one size: CIFAR-10, and the digits of its mini."""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from models.linear import LogisticRegression
from models.resnet import CifarResNet
from workloads import classification
from workloads.interface import Arrays, WorkloadError, copy_keys, field


@dataclasses.dataclass(frozen=True)
class SmallImageClassification(classification.Classification):
    """A CIFAR ResNet or logistic regression on images of one shape, softmax cross-entropy, top-1
    accuracy.

    Attributes:
        image_shape: (height, width, channels).
        pad: pixels of zero padding before the random crop.
        flip: whether to mirror images at random.
        depth: layers of the network, 6n + 2; 0 = logistic regression.
        width: channels of the network's first stage.
    """

    image_shape: tuple[int, int, int]
    num_classes: int
    pad: int
    flip: bool
    depth: int
    width: int
    label_smoothing: float
    dtype: str

    @classmethod
    def from_config(cls, config, info) -> "SmallImageClassification":
        if info.image_shape is None or info.num_classes is None or info.channels not in (1, 3):
            raise WorkloadError(
                f"data set {info.name!r} has no images of one size, with 1 or 3 channels and class "
                f"labels, which workload {config.workload!r} needs; choose another "
                "config.dataset.name"
            )
        depth = config.model.depth
        if depth and (depth < 8 or (depth - 2) % 6):
            raise WorkloadError(
                f"config.model.depth is {depth}; allowed: 6n + 2, such as 8, 20, 32, 56, or 0 "
                "(logistic regression)"
            )
        return cls(
            image_shape=tuple(info.image_shape),
            num_classes=info.num_classes,
            pad=config.augmentation.pad,
            flip=config.augmentation.flip,
            depth=depth,
            width=config.model.width,
            label_smoothing=config.loss.label_smoothing,
            dtype=config.dtype,
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

    def model(self, rngs: nnx.Rngs) -> CifarResNet | LogisticRegression:
        if not self.depth:
            return LogisticRegression(
                in_features=math.prod(self.image_shape), num_classes=self.num_classes, rngs=rngs
            )
        return CifarResNet(
            depth=self.depth,
            num_classes=self.num_classes,
            width=self.width,
            in_channels=self.image_shape[-1],
            dtype=jnp.dtype(self.dtype),
            rngs=rngs,
        )
