"""SSD object detector with a ResNet backbone, and the default boxes of its outputs."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from models.resnet import ResNetBackbone

# Liu et al. 2016, in the variant of the MLPerf training benchmark (COCO, 300 x 300 pixels). Sides
# of default boxes are in pixels of a 300-pixel image and scale with the image.
REFERENCE_SIZE = 300
BOX_SIDES = (21, 45, 99, 153, 207, 261, 315)
ASPECT_RATIOS = ((2,), (2, 3), (2, 3), (2, 3), (2,), (2,))
BOXES_PER_CELL = tuple(2 + 2 * len(ratios) for ratios in ASPECT_RATIOS)
FIRST_STRIDE = 8  # of the backbone's last stage

# Channels of each extra layer in units of `width`: of its 1x1 and its 3x3 convolution.
EXTRA_CHANNELS = ((4, 8), (4, 8), (2, 4), (2, 4), (2, 4))

CONV_INIT = nnx.initializers.xavier_uniform()


class ExtraLayer(nnx.Module):
    """1x1 and 3x3 convolution, each with bias and relu, for the next smaller feature map."""

    def __init__(
        self,
        in_features: int,
        middle_features: int,
        features: int,
        *,
        stride: int,
        padding: int,
        dtype: jnp.dtype,
        rngs: nnx.Rngs,
    ):
        common = {"kernel_init": CONV_INIT, "dtype": dtype, "rngs": rngs}
        self.conv1 = nnx.Conv(in_features, middle_features, (1, 1), **common)
        self.conv2 = nnx.Conv(
            middle_features, features, (3, 3), strides=stride, padding=padding, **common
        )

    def __call__(self, x_BxHxWxC: jax.Array) -> jax.Array:
        return nnx.relu(self.conv2(nnx.relu(self.conv1(x_BxHxWxC))))


class SSD(nnx.Module):
    """Single-shot detector: a box offset and a classification for each default box.

    The backbone is ResNet-34 without its last stage and with stride 1 in the third stage, so that
    the first feature map has 1/8 of the resolution. Five extra layers produce the smaller maps.
    Names and shapes in `backbone` are those of `ImageNetResNet(depth=34)`, whose weights can be
    used.

    Args:
        num_classes: number K of classes without the background.
        image_size: rows and columns of the images (RGB); 300 gives N = 8,732 boxes.
        depth: 34, or 18 for a smaller backbone, named after the complete residual networks.
        width: channels of the backbone's first stage; all others are proportional.
        ghost_batch_size: examples normalized together in the backbone; 0 = the whole batch.
        dtype: dtype of the convolutions and activations, except in the heads, whose outputs are
            float32; parameters are float32.
        rngs: source of the initial weights (stream `params`).
    """

    def __init__(
        self,
        *,
        num_classes: int,
        image_size: int = 300,
        depth: int = 34,
        width: int = 64,
        ghost_batch_size: int = 0,
        dtype: jnp.dtype = jnp.float32,
        rngs: nnx.Rngs,
    ):
        self.num_classes = num_classes
        common = {"dtype": dtype, "rngs": rngs}
        self.backbone = ResNetBackbone(
            depth=depth,
            width=width,
            stage_strides=(1, 2, 1),
            ghost_batch_size=ghost_batch_size,
            **common,
        )
        extras, channels = [], [self.backbone.out_features]
        for (middle, last), (stride, padding, _) in zip(
            EXTRA_CHANNELS, _extra_layers(image_size), strict=True
        ):
            sizes = (channels[-1], middle * width, last * width)
            extras.append(ExtraLayer(*sizes, stride=stride, padding=padding, **common))
            channels.append(last * width)
        self.extras = nnx.List(extras)
        # float32 outputs, as in the classifiers; bfloat16 would round them.
        self.box_heads = _heads(channels, 4, rngs)
        self.class_heads = _heads(channels, num_classes + 1, rngs)

    def __call__(self, images_BxHxWxC: jax.Array, *, train: bool) -> tuple[jax.Array, jax.Array]:
        """Returns box_offsets_BxNx4 and class_logits_BxNx(K+1) in float32; class 0 is background.

        N runs over the boxes of `default_boxes(image_size)`, in their order. Images are floating
        point. `train` updates batch norm.
        """
        return self.predict(self.feature_maps(images_BxHxWxC, train=train))

    def feature_maps(self, images_BxHxWxC: jax.Array, *, train: bool) -> list[jax.Array]:
        """Returns the six feature maps x_BxHxWxC, in `dtype`, from fine to coarse."""
        maps = [self.backbone(images_BxHxWxC, train=train)[-1]]
        for extra in self.extras:
            maps.append(extra(maps[-1]))
        return maps

    def predict(self, maps: list[jax.Array]) -> tuple[jax.Array, jax.Array]:
        """Returns box_offsets_BxNx4 and class_logits_BxNx(K+1) of the feature maps, in float32."""
        box_offsets_BxNx4 = _apply_heads(self.box_heads, maps, 4)
        class_logits_BxNxK1 = _apply_heads(self.class_heads, maps, self.num_classes + 1)
        return box_offsets_BxNx4, class_logits_BxNxK1


def default_boxes(image_size: int = 300) -> np.ndarray:
    """Default boxes_Nx4 in float32 as (center x, center y, width, height), clipped to [0, 1].

    Ordered by feature map (fine to coarse), row, column, and box of a cell, as SSD's outputs are.
    """
    boxes = []
    for index, size in enumerate(feature_map_sizes(image_size)):
        # Cells of the four finer maps have the size of the stride (the last ones may cross the
        # edge); those of the two coarser maps divide the image. At 300 pixels: 8, 16, 32, 64, 100,
        # and 300 pixels.
        cell = FIRST_STRIDE * 2**index / image_size if index < 4 else 1 / size
        for row, column in itertools.product(range(size), repeat=2):
            center = ((column + 0.5) * cell, (row + 0.5) * cell)
            boxes.extend((*center, *shape) for shape in box_shapes(index))
    return np.clip(np.array(boxes, np.float32), 0, 1)


def box_shapes(index: int) -> list[tuple[float, float]]:
    """(width, height) of the boxes in a cell of feature map `index`, as shares of the image."""
    side, next_side = (pixels / REFERENCE_SIZE for pixels in BOX_SIDES[index : index + 2])
    between = (side * next_side) ** 0.5
    shapes = [(side, side), (between, between)]
    for ratio in ASPECT_RATIOS[index]:
        long, short = side * ratio**0.5, side / ratio**0.5
        shapes += [(long, short), (short, long)]
    return shapes


def feature_map_sizes(image_size: int) -> list[int]:
    """Rows (and columns) of the six feature maps: 38, 19, 10, 5, 3 and 1 at 300 pixels."""
    return [_first_size(image_size)] + [size for _, _, size in _extra_layers(image_size)]


def _first_size(image_size: int) -> int:
    return -(-image_size // FIRST_STRIDE)  # padded convolutions round up


def _extra_layers(image_size: int) -> list[tuple[int, int, int]]:
    """(stride, padding, output size) of the 3x3 convolution of each extra layer.

    The last two have neither stride nor padding, except on maps of fewer than 3 cells (images below
    300 pixels), where nothing would be left.
    """
    layers, size = [], _first_size(image_size)
    for index in range(len(EXTRA_CHANNELS)):
        stride, padding = (1, 0) if index >= 3 and size >= 3 else (2, 1)
        size = (size + 2 * padding - 3) // stride + 1
        layers.append((stride, padding, size))
    return layers


def _heads(channels: list[int], outputs: int, rngs: nnx.Rngs) -> nnx.List:
    """A 3x3 convolution per feature map, with `outputs` channels per box of a cell, in float32."""
    return nnx.List(
        nnx.Conv(features, boxes * outputs, (3, 3), padding=1, kernel_init=CONV_INIT, rngs=rngs)
        for features, boxes in zip(channels, BOXES_PER_CELL, strict=True)
    )


def _apply_heads(heads: nnx.List, maps: list[jax.Array], outputs: int) -> jax.Array:
    per_map_BxNxO = [
        head(x_BxHxWxC).reshape(x_BxHxWxC.shape[0], -1, outputs)
        for head, x_BxHxWxC in zip(heads, maps, strict=True)
    ]
    return jnp.concatenate(per_map_BxNxO, axis=1)
