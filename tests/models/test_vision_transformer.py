"""Tests of the Vision Transformer; tests/training/test_golden.py compares it with torchvision's."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from models.transformer import Attention
from models.vision_transformer import VisionTransformer

VIT_S16 = 22_050_664  # at 224 x 224 with 1,000 classes, as published for DeiT-S and timm's ViT-S/16
MINI = {"image_shape": (4, 6, 3), "patch_size": 2, "num_layers": 2, "num_classes": 5}
MINI |= {"model_dim": 8, "num_heads": 2, "mlp_dim": 12}


@pytest.fixture(scope="module")
def mini():
    return nnx.jit(lambda: VisionTransformer(**MINI, rngs=nnx.Rngs(0)))()


@pytest.mark.extras
def test_torchvision_counts_as_many():
    torch = pytest.importorskip("torch")
    vit = pytest.importorskip("torchvision.models.vision_transformer")
    with torch.device("meta"):
        network = vit.VisionTransformer(
            image_size=224, patch_size=16, num_layers=12, num_heads=6, hidden_dim=384, mlp_dim=1536
        )
    assert sum(parameter.numel() for parameter in network.parameters()) == VIT_S16


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


def test_every_patch_reaches_the_class_token(mini):
    model = nnx.clone(mini)
    model.head.kernel[...] = jax.random.normal(jax.random.key(0), (8, 5))
    image_HxWxC = jax.random.normal(jax.random.key(1), (4, 6, 3))
    gradient = jax.jit(jax.grad(lambda image: model(image[None], train=True)[0, 0]))(image_HxWxC)
    assert (gradient != 0).all()


def test_the_initial_logits_are_zero(mini):
    logits_BxK = nnx.jit(lambda model, x: model(x, train=True))(mini, jnp.ones((2, 4, 6, 3)))
    np.testing.assert_array_equal(logits_BxK, np.zeros((2, 5)))
