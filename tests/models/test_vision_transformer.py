"""Tests of the Vision Transformer; tests/training/test_golden.py compares it with torchvision's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from models.transformer import Attention
from models.vision_transformer import VisionTransformer
from tests.helpers.networks import parameter_count

VIT_S16 = 22_050_664  # at 224 x 224 with 1,000 classes, as published for DeiT-S and timm's ViT-S/16
MINI = {"image_shape": (4, 6, 3), "patch_size": 2, "num_layers": 2, "num_classes": 5}
MINI |= {"model_dim": 8, "num_heads": 2, "mlp_dim": 12}


def abstract(**arguments):
    """The network's shapes, with nothing computed."""
    return nnx.eval_shape(lambda: VisionTransformer(**arguments, rngs=nnx.Rngs(0)))


@pytest.fixture(scope="module")
def mini():
    return nnx.jit(lambda: VisionTransformer(**MINI, rngs=nnx.Rngs(0)))()


@pytest.mark.slow
def test_published_number_of_parameters():
    assert parameter_count(abstract()) == VIT_S16


@pytest.mark.extras
def test_torchvision_counts_as_many():
    torch = pytest.importorskip("torch")
    vit = pytest.importorskip("torchvision.models.vision_transformer")
    with torch.device("meta"):
        network = vit.VisionTransformer(
            image_size=224, patch_size=16, num_layers=12, num_heads=6, hidden_dim=384, mlp_dim=1536
        )
    assert sum(parameter.numel() for parameter in network.parameters()) == VIT_S16


@pytest.mark.slow
def test_tokens_are_projected_patches_by_rows_after_the_class_token(mini):
    images_BxHxWxC = np.random.default_rng(0).normal(size=(3, 4, 6, 3)).astype(np.float32)
    rows = images_BxHxWxC.reshape(3, 2, 2, 3, 2, 3)  # B, row of patches, y, column of them, x, C
    patches_BxPxI = rows.transpose(0, 1, 3, 2, 4, 5).reshape(3, 6, 12)
    kernel_IxD = np.asarray(mini.patches.kernel[...]).reshape(12, 8)
    positions_LxD = np.asarray(mini.positions[...])
    tokens_BxLxD = mini.tokens(images_BxHxWxC)
    expected = patches_BxPxI @ kernel_IxD + positions_LxD[1:]
    np.testing.assert_allclose(tokens_BxLxD[:, 1:], expected, atol=1e-5)
    np.testing.assert_allclose(tokens_BxLxD[:, 0], np.tile(positions_LxD[0], (3, 1)), atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("causal", [False, True])
def test_attention_is_that_of_flax(causal):
    options = {"use_bias": True, "dtype": jnp.float32, "rngs": nnx.Rngs(0)}
    ours = Attention(8, 2, causal=causal, **options)
    flax = nnx.MultiHeadAttention(2, 8, decode=False, **options)
    names = {"q": "query", "k": "key", "v": "value", "out": "out"}
    for number, (our_name, name) in enumerate(names.items()):
        layer = getattr(ours, our_name)
        layer.bias[...] = jax.random.normal(jax.random.key(number), layer.bias.shape)
        nnx.update(getattr(flax, name), nnx.state(layer))
    x_BxLxD = jax.random.normal(jax.random.key(9), (3, 5, 8))
    mask = nnx.make_causal_mask(jnp.ones((3, 5))) if causal else None
    np.testing.assert_allclose(ours(x_BxLxD), flax(x_BxLxD, mask=mask), atol=1e-5)


@pytest.mark.slow
def test_every_patch_reaches_the_class_token():
    model = VisionTransformer(**MINI, rngs=nnx.Rngs(0))
    model.head.kernel[...] = jax.random.normal(jax.random.key(0), (8, 5))
    image_HxWxC = jax.random.normal(jax.random.key(1), (4, 6, 3))
    gradient = jax.jit(jax.grad(lambda image: model(image[None], train=True)[0, 0]))(image_HxWxC)
    assert (gradient != 0).all()


def test_the_initial_logits_are_zero(mini):
    logits_BxK = nnx.jit(lambda model, x: model(x, train=True))(mini, jnp.ones((2, 4, 6, 3)))
    np.testing.assert_array_equal(logits_BxK, np.zeros((2, 5)))


def test_bfloat16_keeps_float32_parameters_and_logits():
    model = abstract(**MINI, dtype=jnp.bfloat16)
    assert {leaf.dtype for leaf in jax.tree.leaves(nnx.state(model))} == {jnp.dtype("float32")}
    x = jax.ShapeDtypeStruct((2, 4, 6, 3), jnp.float32)
    tokens, logits = nnx.eval_shape(lambda m, x: (m.tokens(x), m(x, train=True)), model, x)
    assert (tokens.dtype, logits.dtype) == (jnp.bfloat16, jnp.float32)


def test_names_that_sharding_rules_rely_on(mini):
    names = {path[-2:] for path, _ in nnx.to_flat_state(nnx.state(mini.layers[0]))}
    for name in ("q", "k", "v", "mlp_in"):
        assert {(name, "kernel"), (name, "bias")} <= names
    assert {("out", "kernel"), ("mlp_out", "kernel")} <= names


def test_equal_arguments_give_equal_hashable_graph_definitions():
    first, second = (nnx.graphdef(abstract(**MINI)) for _ in range(2))
    assert first == second
    assert hash(first) == hash(second)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"patch_size": 3}, "divide the images' 4 x 6 pixels, got 3"),
        ({"num_heads": 3}, "got model_dim 8 and num_heads 3"),
    ],
)
def test_wrong_sizes_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        VisionTransformer(**MINI | change, rngs=nnx.Rngs(0))


def test_images_of_another_shape_are_refused(mini):
    with pytest.raises(ValueError, match="must be of 4 x 6 x 3, got 6 x 4 x 3"):
        mini(jnp.zeros((1, 6, 4, 3)), train=False)
