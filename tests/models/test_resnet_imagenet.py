"""Tests of the large-image residual networks: published sizes, layer by layer shapes, v1.5."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from models.resnet_imagenet import Bottleneck, ImageNetResNet, ResNetBackbone
from tests.helpers.networks import parameter_count


def abstract(model_class, **arguments):
    """The network's shapes, with nothing computed."""
    return nnx.eval_shape(lambda: model_class(**arguments, rngs=nnx.Rngs(0)))


def feature_map_shapes(size, **arguments):
    backbone = abstract(ResNetBackbone, **arguments)
    x = jax.ShapeDtypeStruct((2, size, size, 3), jnp.float32)
    maps = nnx.eval_shape(lambda backbone, x: backbone(x, train=False), backbone, x)
    return [feature_map.shape for feature_map in maps]


@pytest.mark.parametrize(("depth", "count"), [(18, 11_689_512), (34, 21_797_672), (50, 25_557_032)])
def test_published_number_of_parameters(depth, count):
    assert parameter_count(abstract(ImageNetResNet, depth=depth)) == count


@pytest.mark.slow
def test_feature_maps_of_each_stage():
    expected = [(2, 56, 56, 256), (2, 28, 28, 512), (2, 14, 14, 1024), (2, 7, 7, 2048)]
    assert feature_map_shapes(224, depth=50) == expected
    expected = [(2, 56, 56, 64), (2, 28, 28, 128), (2, 14, 14, 256), (2, 7, 7, 512)]
    assert feature_map_shapes(224, depth=34) == expected


def test_strides_and_number_of_stages_can_be_chosen():
    expected = [(2, 75, 75, 64), (2, 38, 38, 128), (2, 38, 38, 256)]
    assert feature_map_shapes(300, depth=34, stage_strides=(1, 2, 1)) == expected


def test_the_small_stem_keeps_the_resolution():
    expected = [(2, 32, 32, 32), (2, 16, 16, 64), (2, 8, 8, 128), (2, 4, 4, 256)]
    assert feature_map_shapes(32, depth=50, width=8, stem="cifar") == expected


def test_the_stride_of_a_bottleneck_is_in_its_3x3_convolution():
    def outputs(block, x):
        first = block.conv1(x, train=False)
        second = block.conv2(first, train=False)
        return first, second, block.conv3(second, train=False), block.projection(x, train=False)

    block = nnx.eval_shape(lambda: Bottleneck(16, 8, stride=2, rngs=nnx.Rngs(0)))
    x = jax.ShapeDtypeStruct((1, 9, 9, 16), jnp.float32)
    shapes = [y.shape for y in nnx.eval_shape(outputs, block, x)]
    assert shapes == [(1, 9, 9, 8), (1, 5, 5, 8), (1, 5, 5, 32), (1, 5, 5, 32)]


def test_projections_stand_only_where_the_shape_changes():
    model = abstract(ResNetBackbone, depth=50)
    has_projection = [[b.projection is not None for b in blocks] for blocks in model.stages]
    assert has_projection == [[True] + [False] * (blocks - 1) for blocks in (3, 4, 6, 3)]
    model = abstract(ResNetBackbone, depth=18)
    has_projection = [[b.projection is not None for b in blocks] for blocks in model.stages]
    assert has_projection == [[False, False]] + [[True, False]] * 3


@pytest.mark.slow
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


@pytest.mark.slow
def test_bfloat16_keeps_float32_parameters_and_logits():
    model = abstract(ImageNetResNet, depth=18, dtype=jnp.bfloat16, ghost_batch_size=2)
    assert {leaf.dtype for leaf in jax.tree.leaves(nnx.state(model))} == {jnp.dtype("float32")}

    def outputs(model, x):
        return model.backbone(x, train=True)[-1], model(x, train=True)

    x = jax.ShapeDtypeStruct((4, 64, 64, 3), jnp.float32)
    feature_map, logits = nnx.eval_shape(outputs, model, x)
    assert (feature_map.dtype, logits.dtype) == (jnp.bfloat16, jnp.float32)


def test_equal_arguments_give_equal_hashable_graph_definitions():
    first, second = (nnx.graphdef(abstract(ImageNetResNet, depth=18, width=8)) for _ in range(2))
    assert first == second
    assert hash(first) == hash(second)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [({"depth": 51}, r"\[18, 34, 50\], got 51"), ({"stem": "tiny"}, "cifar\", got 'tiny'")],
)
def test_unknown_choices_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        ImageNetResNet(**arguments, rngs=nnx.Rngs(0))
