"""Networks alone: nothing here knows a configuration, a workload or a data set."""

import math

import jax
from flax import nnx

from models.linear import LogisticRegression
from models.resnet import CifarResNet
from models.resnet_imagenet import ImageNetResNet
from models.ssd import SSD, default_boxes
from models.transformer import Transformer

__all__ = [
    "SSD",
    "CifarResNet",
    "ImageNetResNet",
    "LogisticRegression",
    "Transformer",
    "default_boxes",
    "parameter_count",
]


def parameter_count(model: nnx.Module) -> int:
    """Number of trainable parameters; `model` may be abstract (the result of nnx.eval_shape)."""
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(nnx.state(model, nnx.Param)))
