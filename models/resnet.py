"""Residual networks for small images (CIFAR), and the blocks shared by all residual networks."""

import jax
import jax.numpy as jnp
from flax import nnx

from models.norm import GhostBatchNorm
from models.precision import at_least_float32

# Fan-out preserves the variance of the gradients (He et al. 2015, section 2.2), as in the published
# code of residual networks. Defined at module level so that equal networks have equal graph
# definitions: an initializer created in a constructor would differ between instances.
CONV_INIT = nnx.initializers.variance_scaling(2.0, "fan_out", "normal")


class ConvNorm(nnx.Module):
    """Convolution without bias, followed by batch normalization.

    Pads by kernel // 2 on both sides, so the output has ceil(size / stride) rows and columns.
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
        ghost_batch_size: examples normalized together; 0 = the whole batch.
        dtype: dtype of the convolutions and activations; parameters are float32.
        rngs: source of the initial weights (stream `params`).
    """

    def __init__(
        self,
        *,
        depth: int,
        num_classes: int,
        width: int = 16,
        in_channels: int = 3,
        ghost_batch_size: int = 0,
        dtype: jnp.dtype = jnp.float32,
        rngs: nnx.Rngs,
    ):
        if depth < 8 or (depth - 2) % 6:
            raise ValueError(f"depth must be 6n + 2 with n >= 1 (8, 14, 20, ...), got {depth}")
        common = {"ghost_batch_size": ghost_batch_size, "dtype": dtype, "rngs": rngs}
        self.stem = ConvNorm(in_channels, width, **common)
        blocks, features = [], width
        for stage in range(3):
            for index in range((depth - 2) // 6):
                stride = 2 if stage and index == 0 else 1
                options = {"stride": stride, "projection": False, **common}
                blocks.append(BasicBlock(features, width * 2**stage, **options))
                features = width * 2**stage
        self.blocks = nnx.List(blocks)
        # float32 logits, which cost nothing at this size; bfloat16 would round them.
        self.head = nnx.Linear(features, num_classes, rngs=rngs)

    def __call__(self, images_BxHxWxC: jax.Array, *, train: bool) -> jax.Array:
        """Returns logits_BxK in float32; images are floating point. `train` updates batch norm."""
        x_BxHxWxC = nnx.relu(self.stem(images_BxHxWxC, train=train))
        for block in self.blocks:
            x_BxHxWxC = block(x_BxHxWxC, train=train)
        features_BxC = at_least_float32(x_BxHxWxC).mean(axis=(1, 2))
        return self.head(features_BxC)
