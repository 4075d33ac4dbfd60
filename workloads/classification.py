"""Image classification: the loss, metrics, and pixel scaling for images of any kind."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from workloads.interface import Arrays, field, total
from workloads.networks import Network

# Scales pixels to about zero mean and unit variance, identically for all data sets (our choice).
_MEAN, _SCALE = 127.5, 64.0


class Classification:
    """Softmax cross-entropy and top-1 accuracy over uint8 images [B, H, W, C], labels int32 [B].

    Attributes:
        network: maps images to logits, [B, K] in float32.
        label_smoothing: probability that the target of the training loss spreads evenly over all
            classes, in [0, 1) (Szegedy et al. 2016, section 7). The metrics do not use it.
    """

    network: Network
    label_smoothing: float
    metrics = ("accuracy", "loss")

    def model(self, rngs: nnx.Rngs) -> nnx.Module:
        return self.network(rngs)

    def evaluation_images(self, data: Arrays) -> jax.Array:
        """The images that the network sees in evaluation."""
        return data["image"]

    def loss(self, model: nnx.Module, data: Arrays) -> tuple[jax.Array, Arrays]:
        logits_BxK, losses_B = self._training_losses(model, data)
        loss = losses_B.mean()
        accuracy = (logits_BxK.argmax(-1) == data["label"]).mean(dtype=jnp.float32)
        return loss, {"loss": loss, "accuracy": accuracy}

    def row_losses(self, model: nnx.Module, data: Arrays) -> tuple[jax.Array, jax.Array]:
        _, losses_B = self._training_losses(model, data)
        return losses_B, jnp.ones_like(losses_B)

    def _training_losses(self, model: nnx.Module, data: Arrays) -> tuple[jax.Array, jax.Array]:
        """Logits [B, K], and the cross-entropy of each row against its smoothed label [B]."""
        logits_BxK = model(normalized(data["image"]), train=True)
        targets_BxK = jax.nn.one_hot(data["label"], logits_BxK.shape[-1])
        targets_BxK = optax.smooth_labels(targets_BxK, self.label_smoothing)
        return logits_BxK, optax.softmax_cross_entropy(logits_BxK, targets_BxK)

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


def labels(records: list[dict[str, Any]], num_classes: int) -> np.ndarray:
    """The records' labels, int32 [n]; raises ValueError for a label that is not a class."""
    given = [field(record, "label") for record in records]
    for label in given:
        if not 0 <= label < num_classes:  # before the conversion, which larger ones overflow
            raise ValueError(
                f"label {label}; allowed: 0 to {num_classes - 1} (is the split labeled?)"
            )
    return np.asarray(given, np.int32)


def normalized(images_BxHxWxC: jax.Array) -> jax.Array:
    """uint8 pixels as float32, about zero mean and unit variance."""
    return (images_BxHxWxC.astype(jnp.float32) - _MEAN) / _SCALE
