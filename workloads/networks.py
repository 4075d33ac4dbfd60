"""The networks for images, by `config.model.name`.

Add one with `add`, here or in a configuration file of your own.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

import jax.numpy as jnp
import ml_collections
from flax import nnx

from models.linear import LogisticRegression
from models.resnet import STAGES, CifarResNet, ImageNetResNet
from models.vision_transformer import VisionTransformer
from workloads.interface import WorkloadError

Shape = tuple[int, int, int]  # (height, width, channels) of the network's input


@dataclasses.dataclass(frozen=True)
class Network:
    """A network that is not built yet: hashable, as the workload that it belongs to.

    Attributes:
        module: its class.
        arguments: (name, value) of each argument but `rngs`.
    """

    module: Callable[..., nnx.Module]
    arguments: tuple[tuple[str, Any], ...]

    @classmethod
    def of(cls, module: Callable[..., nnx.Module], **arguments: Any) -> "Network":
        return cls(module, tuple(arguments.items()))

    def __call__(self, rngs: nnx.Rngs) -> nnx.Module:
        return self.module(**dict(self.arguments), rngs=rngs)


def cifar_resnet(config: ml_collections.ConfigDict, shape: Shape, num_classes: int) -> Network:
    depth = config.model.depth
    if not depth:
        size = math.prod(shape)
        return Network.of(LogisticRegression, in_features=size, num_classes=num_classes)
    if depth < 8 or (depth - 2) % 6:
        raise WorkloadError(
            f"config.model.depth is {depth}; allowed: 6n + 2, such as 8, 20, 32, 56, or 0 "
            "(logistic regression)"
        )
    return Network.of(
        CifarResNet,
        depth=depth,
        num_classes=num_classes,
        width=config.model.width,
        in_channels=shape[-1],
        ghost_batch_size=config.model.ghost_batch_size,
        dtype=jnp.dtype(config.dtype),
    )


def imagenet_resnet(config: ml_collections.ConfigDict, shape: Shape, num_classes: int) -> Network:
    if config.model.depth not in STAGES:
        allowed = ", ".join(map(str, sorted(STAGES)))
        raise WorkloadError(f"config.model.depth is {config.model.depth}; allowed: {allowed}")
    return Network.of(
        ImageNetResNet,
        depth=config.model.depth,
        num_classes=num_classes,
        width=config.model.width,
        in_channels=shape[-1],
        stem=config.model.stem,
        ghost_batch_size=config.model.ghost_batch_size,
        dtype=jnp.dtype(config.dtype),
    )


def vision_transformer(
    config: ml_collections.ConfigDict, shape: Shape, num_classes: int
) -> Network:
    model = config.model
    if shape[0] % model.patch_size or shape[1] % model.patch_size:
        raise WorkloadError(
            f"config.model.patch_size is {model.patch_size}, which does not divide the network's "
            f"input of {shape[0]} x {shape[1]} pixels; allowed: a divisor of both sides"
        )
    if model.dim % model.heads:
        raise WorkloadError(
            f"config.model.dim is {model.dim} with model.heads={model.heads}; allowed: a multiple "
            "of the number of heads"
        )
    return Network.of(
        VisionTransformer,
        image_shape=shape,
        num_classes=num_classes,
        patch_size=model.patch_size,
        num_layers=model.layers,
        model_dim=model.dim,
        num_heads=model.heads,
        mlp_dim=model.mlp_dim,
        dtype=jnp.dtype(config.dtype),
    )


Make = Callable[[ml_collections.ConfigDict, Shape, int], Network]

# For images of one size, and for crops of photographs.
SMALL: dict[str, Make] = {"resnet": cifar_resnet, "vit": vision_transformer}
LARGE: dict[str, Make] = {"resnet": imagenet_resnet, "vit": vision_transformer}


def add(name: str) -> Callable[[Make], Make]:
    """Decorates a function (config, shape, num_classes) -> Network: makes it the network `name`.

    Its module is called with images [B, height, width, channels] and with `train`, whether it
    trains, and returns logits [B, num_classes].
    """

    def added(make: Make) -> Make:
        SMALL[name] = LARGE[name] = make
        return make

    return added


def choose(
    makers: Mapping[str, Make], config: ml_collections.ConfigDict, shape: Shape, num_classes: int
) -> Network:
    """The network that `config.model` describes; raises WorkloadError if it is not possible."""
    if config.model.name not in makers:
        allowed = ", ".join(makers)
        raise WorkloadError(f"config.model.name is {config.model.name!r}; allowed: {allowed}")
    return makers[config.model.name](config, shape, num_classes)
