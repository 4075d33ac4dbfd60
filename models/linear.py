"""Multinomial logistic regression on flattened images, for studies of a convex problem."""

import jax
import jax.numpy as jnp
from flax import nnx


class LogisticRegression(nnx.Module):
    """One linear layer on all pixels and channels, float32.

    Parameters are initialized to zero, as is usual for convex losses, so that the initial loss is
    ln(num_classes) for every seed.

    Args:
        in_features: H * W * C of the images.
        num_classes: number K of logits.
        rngs: not used; accepted for consistency with the other networks.
    """

    def __init__(self, *, in_features: int, num_classes: int, rngs: nnx.Rngs):
        zeros = nnx.initializers.zeros
        self.head = nnx.Linear(in_features, num_classes, kernel_init=zeros, rngs=rngs)

    def __call__(self, images_BxHxWxC: jax.Array, *, train: bool) -> jax.Array:
        """Returns logits_BxK in float32; images are floating point. `train` changes nothing."""
        return self.head(images_BxHxWxC.reshape(len(images_BxHxWxC), -1).astype(jnp.float32))
