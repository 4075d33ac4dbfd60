"""The Transformer: number of parameters, causality, precision."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from models.transformer import Transformer, sinusoidal_positions
from tests.helpers.networks import abstract, parameter_count

MINI = {"vocab_size": 11, "num_layers": 2, "model_dim": 8, "num_heads": 2, "mlp_dim": 12}
TOKENS_BXL = jnp.array([[1, 5, 2, 10, 0, 3], [4, 4, 9, 7, 8, 6]], jnp.int32)


@nnx.jit
def forward(model, tokens):
    return model(tokens)


@pytest.fixture(scope="module")
def mini():
    return nnx.jit(lambda: Transformer(**MINI, rngs=nnx.Rngs(0)))()


def test_number_of_parameters():
    vocab, layers, dim, mlp = 32_000, 6, 512, 2048  # the defaults are the paper's base model
    layer = 4 * dim**2 + 2 * dim * mlp + mlp + dim + 2 * 2 * dim  # attention, MLP, two norms
    model = abstract(Transformer, vocab_size=vocab)
    assert parameter_count(model) == vocab * dim + layers * layer + 2 * dim


def test_later_tokens_do_not_change_earlier_logits(mini):
    logits_BxLxV = forward(mini, TOKENS_BXL)
    for position in range(1, 6):
        changed = forward(mini, TOKENS_BXL.at[:, position].add(1) % 11)
        np.testing.assert_array_equal(changed[:, :position], logits_BxLxV[:, :position])
        assert (changed[:, position:] != logits_BxLxV[:, position:]).any(-1).all()


def test_bfloat16_stays_near_float32(mini):
    graphdef = nnx.graphdef(abstract(Transformer, **MINI, dtype=jnp.bfloat16))
    half = nnx.merge(graphdef, nnx.state(mini), copy=True)
    np.testing.assert_allclose(forward(half, TOKENS_BXL), forward(mini, TOKENS_BXL), atol=0.1)


def test_names_that_sharding_rules_rely_on(mini):
    names = {path[-2] for path, _ in nnx.to_flat_state(nnx.state(mini))}
    norms = {"attention_norm", "mlp_norm", "final_norm"}
    assert names == {"q", "k", "v", "out", "mlp_in", "mlp_out", "embed"} | norms


def test_positions_are_sines_and_cosines_of_falling_frequency():
    positions = sinusoidal_positions(5, 4)
    expected = [np.sin(3), np.sin(3 / 100), np.cos(3), np.cos(3 / 100)]
    np.testing.assert_allclose(positions[3], expected, rtol=1e-12)
