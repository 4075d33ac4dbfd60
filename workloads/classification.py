"""Image classification: what all kinds of images share, and images of one size (CIFAR-10, the
digits of its mini)."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from workloads import networks
from workloads.interface import Arrays, copy_keys, field, in_quarter, lacks, strata, total

# Scales pixels to about zero mean and unit variance, identically for all data sets (our choice).
_MEAN, _SCALE = 127.5, 64.0


class Classification:
    """Softmax cross-entropy and top-1 accuracy over uint8 images [B, H, W, C], labels int32 [B].

    Attributes:
        network: maps images to logits, [B, K] in float32.
        label_smoothing: probability that the target of the training loss spreads evenly over all
            classes, in [0, 1) (Szegedy et al. 2016, section 7). The metrics do not use it.
    """

    network: networks.Network
    label_smoothing: float
    metrics = ("accuracy", "loss")

    def model(self, rngs: nnx.Rngs) -> nnx.Module:
        return self.network(rngs)

    def evaluation_images(self, data: Arrays) -> jax.Array:
        """The images that the network sees in evaluation."""
        return data["image"]

    def loss(self, model: nnx.Module, data: Arrays) -> tuple[jax.Array, Arrays]:
        logits_BxK = model(normalized(data["image"]), train=True)
        targets_BxK = jax.nn.one_hot(data["label"], logits_BxK.shape[-1])
        targets_BxK = optax.smooth_labels(targets_BxK, self.label_smoothing)
        loss = optax.softmax_cross_entropy(logits_BxK, targets_BxK).mean()
        accuracy = (logits_BxK.argmax(-1) == data["label"]).mean(dtype=jnp.float32)
        return loss, {"loss": loss, "accuracy": accuracy}

    def evaluate(self, model: nnx.Module, data: Arrays, mask_B: jax.Array) -> Arrays:
        logits_BxK = model(normalized(self.evaluation_images(data)), train=False)
        labels_B = data["label"]
        losses_B = optax.softmax_cross_entropy_with_integer_labels(logits_BxK, labels_B)
        correct_B = logits_BxK.argmax(-1) == labels_B
        return {
            "loss": (losses_B * mask_B).sum(),
            "accuracy": (correct_B * mask_B).sum(),
            "examples": mask_B.sum(),
        }

    def summarize(self, outputs: list[dict[str, np.ndarray]]) -> dict[str, float]:
        sums = total(outputs)
        return {name: sums[name] / sums["examples"] for name in self.metrics}


@dataclasses.dataclass(frozen=True)
class SmallImageClassification(Classification):
    """Images of one shape, by default for a CIFAR ResNet.

    Attributes:
        image_shape: (height, width, channels).
        pad: pixels of zero padding before the random crop.
        flip: whether to mirror images at random.
        max_pixels: of an encoded image.
        stratified: whether an example's copies complement each other.
    """

    image_shape: tuple[int, int, int]
    num_classes: int
    pad: int
    flip: bool
    network: networks.Network
    label_smoothing: float
    max_pixels: int = 2**26
    stratified: bool = False

    @classmethod
    def from_config(cls, config, info) -> "SmallImageClassification":
        if info.image_shape is None or info.channels not in (1, 3) or (info.num_classes or 0) < 2:
            raise lacks(config, info, "images of one size, 1 or 3 channels, 2 or more classes")
        shape = tuple(info.image_shape)
        return cls(
            image_shape=shape,
            num_classes=info.num_classes,
            pad=config.augmentation.pad,
            flip=config.augmentation.flip,
            network=networks.choose(networks.SMALL, config, shape, info.num_classes),
            label_smoothing=config.loss.label_smoothing,
            max_pixels=config.dataset.max_pixels,
            stratified=config.echo.copies == "stratified",
        )

    def decode(self, records: list[dict[str, Any]]) -> dict[str, np.ndarray]:
        """Decodes records to image uint8 [n, H, W, C] and label int32 [n]."""
        images = [field(record, "image") for record in records]
        if not all(isinstance(image, np.ndarray) for image in images):
            from workloads import decoding  # whose libraries arrays do not need

            options = {"channels": self.image_shape[-1], "max_pixels": self.max_pixels}
            images = [decoding.decode(image, **options) for image in images]
        for image in images:
            if (image.dtype, image.shape) != (np.uint8, self.image_shape):
                raise ValueError(
                    f"an image {image.dtype} {image.shape}; the data set's are uint8 "
                    f"{self.image_shape}"
                )
        return {"image": np.stack(images), "label": labels(records, self.num_classes)}

    def augment(self, data: Arrays, seed, index_B, copy_B) -> Arrays:
        """Pads with zeros, crops at random, and mirrors at random; image uint8 [B, H, W, C]."""
        rows = seed, index_B, copy_B
        keys, sides, quarters = copy_keys(*rows), None, None
        if self.stratified:
            sides, quarters = strata(*rows, number=2, use=0), strata(*rows, number=4, use=1)
        images_BxHxWxC = jax.vmap(self._augment_one)(data["image"], keys, sides, quarters)
        return data | {"image": images_BxHxWxC}

    def _augment_one(self, image_HxWxC, key, side, quarter):
        crop_key, flip_key = jax.random.split(key)
        padding = ((self.pad, self.pad), (self.pad, self.pad), (0, 0))
        if self.stratified:
            free, mirror = 2 * self.pad, side == 1
            place = in_quarter(crop_key, quarter) * (free + 1)
            y, x = jnp.minimum(place, free).astype(jnp.int32)  # which rounding may exceed
        else:
            y, x = jax.random.randint(crop_key, (2,), 0, 2 * self.pad + 1)
            mirror = jax.random.bernoulli(flip_key)
        crop = jax.lax.dynamic_slice(jnp.pad(image_HxWxC, padding), (y, x, 0), image_HxWxC.shape)
        if not self.flip:
            return crop
        return jnp.where(mirror, crop[:, ::-1], crop)


def labels(records: list[dict[str, Any]], num_classes: int) -> np.ndarray:
    """The records' labels, int32 [n]; raises ValueError for a label that is not a class."""
    return checked_labels([field(record, "label") for record in records], num_classes)


def checked_labels(given: Sequence[int] | np.ndarray, num_classes: int) -> np.ndarray:
    """Labels as int32 [n]; raises ValueError for one that is not a class."""
    for label in given:
        # Before the conversion, which larger ones overflow, and which rounds fractions.
        if not (0 <= label < num_classes and label == int(label)):
            raise ValueError(
                f"label {label}; allowed: 0 to {num_classes - 1} (is the split labeled?)"
            )
    return np.asarray(given, np.int32)


def normalized(images_BxHxWxC: jax.Array) -> jax.Array:
    """uint8 pixels as float32, about zero mean and unit variance."""
    return (images_BxHxWxC.astype(jnp.float32) - _MEAN) / _SCALE
