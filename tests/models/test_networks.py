"""What holds for every network: published sizes, precision, equal definitions."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from models.linear import LogisticRegression
from models.resnet import CifarResNet, ImageNetResNet
from models.ssd import SSD
from models.transformer import Transformer
from models.vision_transformer import VisionTransformer
from tests.helpers.networks import abstract, parameter_count

IMAGES = jax.ShapeDtypeStruct((4, 32, 32, 3), jnp.float32)
TOKENS = jax.ShapeDtypeStruct((4, 6), jnp.int32)
SIZES = {"num_layers": 2, "model_dim": 8, "num_heads": 2, "mlp_dim": 12}

# network: small arguments, a change of them, inputs
NETWORKS = {
    CifarResNet: ({"depth": 8, "num_classes": 5, "width": 4}, {"depth": 14}, IMAGES),
    ImageNetResNet: ({"depth": 18, "num_classes": 5, "width": 4}, {"depth": 34}, IMAGES),
    SSD: ({"num_classes": 3, "image_size": 32, "width": 4}, {"num_classes": 4}, IMAGES),
    Transformer: ({"vocab_size": 11} | SIZES, {"num_layers": 1}, TOKENS),
    VisionTransformer: (
        {"image_shape": (32, 32, 3), "num_classes": 5, "patch_size": 16} | SIZES,
        {"num_layers": 1},
        IMAGES,
    ),
}
every_network = pytest.mark.parametrize("network", NETWORKS)


@pytest.mark.parametrize(
    ("network", "arguments", "count"),
    [
        (LogisticRegression, {"in_features": 28 * 28, "num_classes": 10}, 7_850),
        (CifarResNet, {"depth": 32, "num_classes": 10}, 464_154),
        (ImageNetResNet, {"depth": 18}, 11_689_512),
        (ImageNetResNet, {"depth": 34}, 21_797_672),
        (ImageNetResNet, {"depth": 50}, 25_557_032),
        (VisionTransformer, {}, 22_050_664),  # DeiT-S, and timm's ViT-S/16
    ],
)
def test_published_number_of_parameters(network, arguments, count):
    assert parameter_count(abstract(network, **arguments)) == count


@every_network
def test_bfloat16_keeps_float32_parameters_and_outputs(network):
    arguments, _, inputs = NETWORKS[network]
    model = abstract(network, **arguments, dtype=jnp.bfloat16)
    assert {leaf.dtype for leaf in jax.tree.leaves(nnx.state(model))} == {jnp.dtype("float32")}
    options = {} if network is Transformer else {"train": True}
    outputs = nnx.eval_shape(lambda model, x: model(x, **options), model, inputs)
    assert {leaf.dtype for leaf in jax.tree.leaves(outputs)} == {jnp.dtype("float32")}
    graphdef, state = nnx.split(model)

    def call(state, x):
        return nnx.merge(graphdef, state, copy=True)(x, **options)

    products = [
        equation.outvars[0].aval.dtype
        for equation in jax.make_jaxpr(call)(state, inputs).jaxpr.eqns
        if equation.primitive.name in ("conv_general_dilated", "dot_general")
    ]
    assert jnp.bfloat16 in products


@every_network
def test_equal_arguments_give_equal_hashable_graph_definitions(network):
    arguments, other, _ = NETWORKS[network]
    first, second = (nnx.graphdef(abstract(network, **arguments)) for _ in range(2))
    assert (first, hash(first)) == (second, hash(second))
    assert first != nnx.graphdef(abstract(network, **arguments | other))


def test_logistic_regression_starts_at_zero():
    model = LogisticRegression(in_features=12, num_classes=10, rngs=nnx.Rngs(0))
    logits = model(np.random.default_rng(0).normal(size=(4, 2, 2, 3)), train=True)
    np.testing.assert_array_equal(logits, np.zeros((4, 10)))
