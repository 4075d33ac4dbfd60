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
from workloads.interface import require

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


Make = Callable[[ml_collections.ConfigDict, Shape, int], Network]


def convolutional(module: Callable[..., nnx.Module], config, **arguments: Any) -> Network:
    """A network with the depth, width, normalization, and precision that `config` states."""
    model = config.model
    arguments |= {"ghost_batch_size": model.ghost_batch_size, "dtype": jnp.dtype(config.dtype)}
    return Network.of(module, depth=model.depth, width=model.width, **arguments)


def cifar_resnet(config: ml_collections.ConfigDict, shape: Shape, num_classes: int) -> Network:
    depth = config.model.depth
    if not depth:
        size = math.prod(shape)
        return Network.of(LogisticRegression, in_features=size, num_classes=num_classes)
    allowed = "6n + 2, such as 8, 20, 32, 56, or 0 (logistic regression)"
    require(depth >= 8 and depth % 6 == 2, config, "model.depth", allowed)
    return convolutional(CifarResNet, config, num_classes=num_classes, in_channels=shape[-1])


def imagenet_resnet(config: ml_collections.ConfigDict, shape: Shape, num_classes: int) -> Network:
    allowed = ", ".join(map(str, sorted(STAGES)))
    require(config.model.depth in STAGES, config, "model.depth", allowed)
    sizes = {"num_classes": num_classes, "in_channels": shape[-1], "stem": config.model.stem}
    return convolutional(ImageNetResNet, config, **sizes)


def vision_transformer(
    config: ml_collections.ConfigDict, shape: Shape, num_classes: int
) -> Network:
    model = config.model
    divides = not (shape[0] % model.patch_size or shape[1] % model.patch_size)
    allowed = f"a divisor of both sides of the network's input, {shape[0]} x {shape[1]} pixels"
    require(divides, config, "model.patch_size", allowed)
    allowed = f"a divisor of model.dim, {model.dim}"
    require(model.dim % model.heads == 0, config, "model.heads", allowed)
    return Network.of(
        VisionTransformer,
        image_shape=shape,
        num_classes=num_classes,
        patch_size=model.patch_size,
        **transformer_sizes(config),
    )


def transformer_sizes(config: ml_collections.ConfigDict) -> dict[str, Any]:
    """The arguments that all Transformers share."""
    return {
        "num_layers": config.model.layers,
        "model_dim": config.model.dim,
        "num_heads": config.model.heads,
        "mlp_dim": config.model.mlp_dim,
        "dtype": jnp.dtype(config.dtype),
    }


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
    allowed = f"{', '.join(makers)}, or one that a file given by --config adds"
    require(config.model.name in makers, config, "model.name", allowed)
    return makers[config.model.name](config, shape, num_classes)
