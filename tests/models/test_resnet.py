"""Tests of the CIFAR residual network: size, shapes, statistics, use at the jit border."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from models.resnet import CifarResNet
from tests.helpers.networks import parameter_count


@nnx.jit(static_argnames="train")
def forward(model, x, train):
    return model(x, train=train)


def abstract(**arguments):
    """The network's shapes, with nothing computed."""
    return nnx.eval_shape(lambda: CifarResNet(**arguments, rngs=nnx.Rngs(0)))


MINI = {"depth": 8, "num_classes": 10, "width": 4, "in_channels": 1}


def mini(**options):
    return CifarResNet(**MINI, **options, rngs=nnx.Rngs(0))


def images(batch=4):
    return jax.random.normal(jax.random.key(1), (batch, 8, 8, 1))


def test_resnet32_has_the_published_number_of_parameters():
    assert parameter_count(abstract(depth=32, num_classes=10)) == 464_154


@pytest.mark.parametrize("depth", [2, 9, 18, 31])
def test_depth_must_be_6n_plus_2(depth):
    with pytest.raises(ValueError, match=rf"6n \+ 2.*got {depth}"):
        CifarResNet(depth=depth, num_classes=10, rngs=nnx.Rngs(0))


def test_stages_halve_the_resolution_and_double_the_channels():
    def block_outputs(model, x):
        x, outputs = model.stem(x, train=False), []
        for block in model.blocks:
            x = block(x, train=False)
            outputs.append(x)
        return outputs

    model, x = abstract(depth=20, num_classes=10), jax.ShapeDtypeStruct((2, 32, 32, 3), jnp.float32)
    expected = [(2, 32, 32, 16)] * 3 + [(2, 16, 16, 32)] * 3 + [(2, 8, 8, 64)] * 3
    assert [y.shape for y in nnx.eval_shape(block_outputs, model, x)] == expected


def test_shortcut_is_the_subsampled_input_with_zero_channels_appended():
    block = mini().blocks[1]
    block.conv2.norm.scale[...] = jnp.zeros(8)
    x = jax.random.normal(jax.random.key(0), (1, 6, 6, 4))
    y = np.asarray(forward(block, x, train=False))
    np.testing.assert_array_equal(y[..., :4], np.maximum(x, 0)[:, ::2, ::2])
    np.testing.assert_array_equal(y[..., 4:], 0)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_parameters_statistics_and_logits_are_float32_in_every_dtype(dtype):
    model = mini(dtype=dtype)
    logits = forward(model, images(), train=True)
    assert (logits.shape, logits.dtype) == ((4, 10), jnp.float32)
    assert np.isfinite(logits).all()
    assert {leaf.dtype for leaf in jax.tree.leaves(nnx.state(model))} == {jnp.dtype("float32")}
    assert forward(model.blocks[0], jnp.ones((1, 2, 2, 4), dtype), train=False).dtype == dtype


def test_equal_arguments_give_equal_hashable_graph_definitions():
    first, second = (nnx.graphdef(abstract(**MINI)) for _ in range(2))
    assert first == second
    assert hash(first) == hash(second)
    assert first != nnx.graphdef(abstract(**MINI | {"depth": 14}))


@pytest.mark.slow
def test_one_gradient_step_through_split_and_merge():
    graphdef, parameters, statistics = nnx.split(mini(), nnx.Param, ...)

    @jax.jit
    def gradients_and_statistics(parameters, statistics, x):
        def loss(parameters):
            model = nnx.merge(graphdef, parameters, statistics, copy=True)
            logits = model(x, train=True)
            return jax.nn.log_softmax(logits)[:, 0].mean(), nnx.state(model, nnx.BatchStat)

        return jax.grad(loss, has_aux=True)(parameters)

    gradients, new_statistics = gradients_and_statistics(parameters, statistics, images())
    assert all(np.abs(g).max() > 0 for g in jax.tree.leaves(gradients))
    assert jax.tree.structure(new_statistics) == jax.tree.structure(statistics)
    pairs = zip(jax.tree.leaves(statistics), jax.tree.leaves(new_statistics), strict=True)
    assert all((np.asarray(old) != np.asarray(new)).any() for old, new in pairs)


def test_evaluation_keeps_the_statistics_and_examples_apart():
    model = mini()
    before = jax.tree.map(np.array, nnx.state(model, nnx.BatchStat))
    logits = forward(model, images(), train=False)
    jax.tree.map(np.testing.assert_array_equal, before, nnx.state(model, nnx.BatchStat))
    alone = forward(model, images()[:1], train=False)
    np.testing.assert_allclose(alone, logits[:1], rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_ghost_batches_are_normalized_apart():
    model, x = mini(ghost_batch_size=2), images(4)
    together, alone = forward(model, x, train=True), forward(model, x[:2], train=True)
    np.testing.assert_allclose(together[:2], alone, rtol=1e-4, atol=1e-4)
