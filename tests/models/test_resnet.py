"""Residual networks: shapes layer by layer, v1.5, statistics, use under jit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from models.resnet import Bottleneck, CifarResNet, ResNetBackbone
from tests.helpers.networks import abstract

MINI = {"depth": 8, "num_classes": 10, "width": 4, "in_channels": 1}
DETECTOR = {"depth": 34, "stage_strides": (1, 2, 1)}
SMALL_STEM = {"depth": 50, "width": 8, "stem": "cifar"}


@nnx.jit(static_argnames="train")
def forward(model, x, train):
    return model(x, train=train)


def mini(**options):
    return CifarResNet(**MINI, **options, rngs=nnx.Rngs(0))


def images(batch=4):
    return jax.random.normal(jax.random.key(1), (batch, 8, 8, 1))


def test_cifar_stages_halve_the_resolution_and_double_the_channels():
    def block_outputs(model, x):
        x, outputs = model.stem(x, train=False), []
        for block in model.blocks:
            x = block(x, train=False)
            outputs.append(x)
        return outputs

    model = abstract(CifarResNet, depth=20, num_classes=10)
    x = jax.ShapeDtypeStruct((2, 32, 32, 3), jnp.float32)
    expected = [(2, 32, 32, 16)] * 3 + [(2, 16, 16, 32)] * 3 + [(2, 8, 8, 64)] * 3
    assert [y.shape for y in nnx.eval_shape(block_outputs, model, x)] == expected


@pytest.mark.parametrize(
    ("size", "arguments", "expected"),
    [
        (224, {"depth": 50}, [(56, 56, 256), (28, 28, 512), (14, 14, 1024), (7, 7, 2048)]),
        (224, {"depth": 34}, [(56, 56, 64), (28, 28, 128), (14, 14, 256), (7, 7, 512)]),
        (300, DETECTOR, [(75, 75, 64), (38, 38, 128), (38, 38, 256)]),
        (32, SMALL_STEM, [(32, 32, 32), (16, 16, 64), (8, 8, 128), (4, 4, 256)]),
    ],
)
def test_feature_maps_of_each_stage(size, arguments, expected):
    backbone = abstract(ResNetBackbone, **arguments)
    x = jax.ShapeDtypeStruct((2, size, size, 3), jnp.float32)
    maps = nnx.eval_shape(lambda backbone, x: backbone(x, train=False), backbone, x)
    assert [feature_map.shape[1:] for feature_map in maps] == expected


def test_the_shortcut_of_a_cifar_block_is_the_subsampled_input_with_zero_channels():
    block = mini().blocks[1]
    block.conv2.norm.scale[...] = jnp.zeros(8)
    x = jax.random.normal(jax.random.key(0), (1, 6, 6, 4))
    y = np.asarray(forward(block, x, train=False))
    np.testing.assert_array_equal(y[..., :4], np.maximum(x, 0)[:, ::2, ::2])
    np.testing.assert_array_equal(y[..., 4:], 0)


def test_the_stride_of_a_bottleneck_is_in_its_3x3_convolution():
    def outputs(block, x):
        first = block.conv1(x, train=False)
        second = block.conv2(first, train=False)
        return first, second, block.conv3(second, train=False), block.projection(x, train=False)

    block = abstract(Bottleneck, in_features=16, features=8, stride=2)
    x = jax.ShapeDtypeStruct((1, 9, 9, 16), jnp.float32)
    shapes = [y.shape for y in nnx.eval_shape(outputs, block, x)]
    assert shapes == [(1, 9, 9, 8), (1, 5, 5, 8), (1, 5, 5, 32), (1, 5, 5, 32)]


@pytest.mark.parametrize("depth", [18, 50])
def test_residual_branches_start_as_zero(depth):
    # One stage only, since compiling the initial weights is what takes time here.
    options = {"depth": depth, "width": 4, "stage_strides": (1,)}
    blocks = ResNetBackbone(**options, rngs=nnx.Rngs(0)).stages[0]
    last = "conv3" if depth == 50 else "conv2"
    assert all((getattr(block, last).norm.scale[...] == 0).all() for block in blocks)
    assert all((block.conv1.norm.scale[...] == 1).all() for block in blocks)
    x = jnp.ones((1, 4, 4, blocks[1].conv1.conv.in_features))
    np.testing.assert_array_equal(blocks[1](x, train=True), x)


def test_evaluation_keeps_the_statistics_and_examples_apart():
    model = mini()
    before = jax.tree.map(np.array, nnx.state(model, nnx.BatchStat))
    logits = forward(model, images(), train=False)
    jax.tree.map(np.testing.assert_array_equal, before, nnx.state(model, nnx.BatchStat))
    alone = forward(model, images()[:1], train=False)
    np.testing.assert_allclose(alone, logits[:1], rtol=1e-5, atol=1e-5)
