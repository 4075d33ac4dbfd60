"""Residual networks: for small images (CIFAR), for large ones (ResNet-18, -34, -50), backbones."""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx

from models.norm import GhostBatchNorm, at_least_float32

# Fan-out preserves the variance of the gradients (He et al. 2015, section 2.2), as in the published
# code of residual networks. Defined at module level so that equal networks have equal graph
# definitions: an initializer created in a constructor would differ between instances.
CONV_INIT = nnx.initializers.variance_scaling(2.0, "fan_out", "normal")
# Goyal et al. 2017, section 5.1, as are the zero scales at the end of the residual branches.
HEAD_INIT = nnx.initializers.normal(0.01)


class ConvNorm(nnx.Module):
    """Convolution without bias, followed by batch normalization.

    Pads by kernel // 2 on both sides, so the output has ceil(size / stride) rows and columns.

    Args:
        ghost_batch_size: examples normalized together; 0 = the whole batch.
        dtype: dtype of the convolution and its output; parameters are float32.
        rngs: source of the initial weights (stream `params`).
    """

    def __init__(
        self,
        in_features: int,
        features: int,
        *,
        kernel: int = 3,
        stride: int = 1,
        initial_scale: float = 1.0,
        ghost_batch_size: int = 0,
        dtype: jnp.dtype = jnp.float32,
        rngs: nnx.Rngs,
    ):
        self.conv = nnx.Conv(
            in_features,
            features,
            (kernel, kernel),
            strides=stride,
            padding=kernel // 2,
            use_bias=False,
            kernel_init=CONV_INIT,
            dtype=dtype,
            rngs=rngs,
        )
        self.norm = GhostBatchNorm(
            features, group_size=ghost_batch_size, initial_scale=initial_scale, dtype=dtype
        )

    def __call__(self, x_BxHxWxC: jax.Array, *, train: bool) -> jax.Array:
        return self.norm(self.conv(x_BxHxWxC), train=train)


class BasicBlock(nnx.Module):
    """Two 3x3 convolutions with a shortcut, relu after the sum (He et al. 2016, figure 2).

    If the shape changes, the shortcut is a 1x1 convolution with batch norm (option B), or without
    `projection` the identity, subsampled and padded with zero channels (option A). `common`:
    arguments of every `ConvNorm`.
    """

    expansion = 1  # output channels of the block / `features`

    def __init__(
        self,
        in_features: int,
        features: int,
        *,
        stride: int = 1,
        projection: bool = True,
        last_scale: float = 1.0,
        **common,
    ):
        self.stride = stride
        self.zero_channels = features - in_features
        self.conv1 = ConvNorm(in_features, features, stride=stride, **common)
        self.conv2 = ConvNorm(features, features, initial_scale=last_scale, **common)
        reshapes = stride > 1 or in_features != features
        self.projection = (
            ConvNorm(in_features, features, kernel=1, stride=stride, **common)
            if projection and reshapes
            else None
        )

    def __call__(self, x_BxHxWxC: jax.Array, *, train: bool) -> jax.Array:
        y_BxHxWxC = nnx.relu(self.conv1(x_BxHxWxC, train=train))
        y_BxHxWxC = self.conv2(y_BxHxWxC, train=train)
        return nnx.relu(y_BxHxWxC + self._shortcut(x_BxHxWxC, train))

    def _shortcut(self, x_BxHxWxC: jax.Array, train: bool) -> jax.Array:
        if self.projection is not None:
            return self.projection(x_BxHxWxC, train=train)
        x_BxHxWxC = x_BxHxWxC[:, :: self.stride, :: self.stride]
        return jnp.pad(x_BxHxWxC, ((0, 0), (0, 0), (0, 0), (0, self.zero_channels)))


class Bottleneck(nnx.Module):
    """1x1, 3x3, and 1x1 convolution with a shortcut (He et al. 2016, figure 5, right).

    The 3x3 convolution has the stride ("v1.5"); in the paper the first 1x1 has it. `common`:
    arguments of every `ConvNorm`.
    """

    expansion = 4  # output channels of the block / `features`

    def __init__(
        self,
        in_features: int,
        features: int,
        *,
        stride: int = 1,
        last_scale: float = 1.0,
        **common,
    ):
        out_features = features * self.expansion
        self.conv1 = ConvNorm(in_features, features, kernel=1, **common)
        self.conv2 = ConvNorm(features, features, stride=stride, **common)
        self.conv3 = ConvNorm(features, out_features, kernel=1, initial_scale=last_scale, **common)
        self.projection = (
            ConvNorm(in_features, out_features, kernel=1, stride=stride, **common)
            if stride > 1 or in_features != out_features
            else None
        )

    def __call__(self, x_BxHxWxC: jax.Array, *, train: bool) -> jax.Array:
        y_BxHxWxC = nnx.relu(self.conv1(x_BxHxWxC, train=train))
        y_BxHxWxC = nnx.relu(self.conv2(y_BxHxWxC, train=train))
        y_BxHxWxC = self.conv3(y_BxHxWxC, train=train)
        if self.projection is not None:
            x_BxHxWxC = self.projection(x_BxHxWxC, train=train)
        return nnx.relu(y_BxHxWxC + x_BxHxWxC)


class CifarResNet(nnx.Module):
    """Residual network for small images (He et al. 2016, section 4.2): ResNet-20, -32, -44, ...

    A 3x3 convolution, three stages of (depth - 2) / 6 basic blocks with `width`, 2 `width`,
    and 4 `width` channels, each of the last two at half the previous resolution, shortcuts without
    parameters (option A), global average pooling, and a linear layer.

    Args:
        depth: number of layers with weights, 6n + 2.
        num_classes: number K of logits.
        width: channels of the first stage.
        in_channels: channels of the images.
        common: `ghost_batch_size`, `dtype`, and `rngs`, see `ConvNorm`.
    """

    def __init__(
        self, *, depth: int, num_classes: int, width: int = 16, in_channels: int = 3, **common
    ):
        self.stem = ConvNorm(in_channels, width, **common)
        blocks, features = [], width
        for stride, channels in ((1, width), (2, 2 * width), (2, 4 * width)):
            sizes = ((depth - 2) // 6, features, channels, stride)
            blocks += _stage(BasicBlock, *sizes, projection=False, **common)
            features = channels
        self.blocks = nnx.List(blocks)
        # float32 logits, which cost nothing at this size; bfloat16 would round them.
        self.head = nnx.Linear(features, num_classes, rngs=common["rngs"])

    def __call__(self, images_BxHxWxC: jax.Array, *, train: bool) -> jax.Array:
        """Returns logits_BxK in float32; images are floating point. `train` updates batch norm."""
        x_BxHxWxC = nnx.relu(self.stem(images_BxHxWxC, train=train))
        for block in self.blocks:
            x_BxHxWxC = block(x_BxHxWxC, train=train)
        return self.head(at_least_float32(x_BxHxWxC).mean(axis=(1, 2)))


# depth: type of the blocks, number of them in each stage (He et al. 2016, table 1)
STAGES = {
    18: (BasicBlock, (2, 2, 2, 2)),
    34: (BasicBlock, (3, 4, 6, 3)),
    50: (Bottleneck, (3, 4, 6, 3)),
}


class ResNetBackbone(nnx.Module):
    """The convolutional part of a residual network, which returns the output of each stage.

    Every residual branch is initialized to zero, so that the network starts out shallow (Goyal et
    al. 2017, section 5.1).

    Args:
        depth: 18 or 34 (basic blocks) or 50 (bottlenecks), by the names of the whole networks.
        width: channels inside the blocks of the first stage, doubled in each later one.
        in_channels: channels of the images.
        stage_strides: stride of each stage; fewer than four strides leave out the last stages.
        stem: "imagenet" = 7x7 convolution and 3x3 max pooling, each of stride 2;
            "cifar" = one 3x3 convolution of stride 1, for images of about 64 pixels and less.
        common: `ghost_batch_size`, `dtype`, and `rngs`, see `ConvNorm`.
    """

    def __init__(
        self,
        *,
        depth: int,
        width: int = 64,
        in_channels: int = 3,
        stage_strides: Sequence[int] = (1, 2, 2, 2),
        stem: str = "imagenet",
        **common,
    ):
        self.max_pools = stem == "imagenet"
        kernel, stride = (7, 2) if self.max_pools else (3, 1)
        self.stem = ConvNorm(in_channels, width, kernel=kernel, stride=stride, **common)
        block, numbers = STAGES[depth]
        stages, in_features, features = [], width, width
        for stride, number in zip(stage_strides, numbers, strict=False):
            sizes = (number, in_features, features, stride)
            stages.append(nnx.List(_stage(block, *sizes, last_scale=0.0, **common)))
            in_features, features = features * block.expansion, features * 2
        self.stages = nnx.List(stages)
        self.out_features = in_features

    def __call__(self, images_BxHxWxC: jax.Array, *, train: bool) -> list[jax.Array]:
        """Returns the feature map x_BxHxWxC of each stage, in `dtype`. `train` as in the norm."""
        x_BxHxWxC = nnx.relu(self.stem(images_BxHxWxC, train=train))
        if self.max_pools:
            x_BxHxWxC = nnx.max_pool(x_BxHxWxC, (3, 3), strides=(2, 2), padding=((1, 1), (1, 1)))  # pyright: ignore[reportArgumentType]
        feature_maps = []
        for blocks in self.stages:
            for block in blocks:
                x_BxHxWxC = block(x_BxHxWxC, train=train)
            feature_maps.append(x_BxHxWxC)
        return feature_maps


class ImageNetResNet(nnx.Module):
    """Residual network for classification: `ResNetBackbone`, average pooling, a linear layer.

    Depth 50 is ResNet-50 v1.5.

    Args:
        num_classes: number K of logits.
        backbone: the other arguments of `ResNetBackbone`.
    """

    def __init__(self, *, num_classes: int = 1000, rngs: nnx.Rngs, **backbone):
        self.backbone = ResNetBackbone(rngs=rngs, **backbone)
        # float32 logits, which cost nothing at this size; bfloat16 would round them.
        self.head = nnx.Linear(
            self.backbone.out_features, num_classes, kernel_init=HEAD_INIT, rngs=rngs
        )

    def __call__(self, images_BxHxWxC: jax.Array, *, train: bool) -> jax.Array:
        """Returns logits_BxK in float32; images are floating point. `train` updates batch norm."""
        last_BxHxWxC = self.backbone(images_BxHxWxC, train=train)[-1]
        return self.head(at_least_float32(last_BxHxWxC).mean(axis=(1, 2)))


def _stage(block, number: int, in_features: int, features: int, stride: int, **options) -> list:
    """`number` blocks; the first has the stride and may change the channels."""
    first = block(in_features, features, stride=stride, **options)
    out_features = features * block.expansion
    return [first, *(block(out_features, features, **options) for _ in range(number - 1))]
