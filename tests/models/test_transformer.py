"""The Transformer: number of parameters, causality, precision."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from models.transformer import Transformer, sinusoidal_positions
from tests.helpers.networks import abstract, parameter_count

MINI = {"vocab_size": 11, "num_layers": 2, "model_dim": 8, "num_heads": 2, "mlp_dim": 12}
MINI |= {"max_length": 6}
TOKENS_BXL = jnp.array([[1, 5, 2, 10, 0, 3], [4, 4, 9, 7, 8, 6]], jnp.int32)


@nnx.jit
def forward(model, tokens):
    return model(tokens)


def expected_count(vocab_size, num_layers, model_dim, mlp_dim, **_):
    norm = 2 * model_dim  # scale and bias
    attention = 4 * model_dim**2  # q, k, v, out, without bias
    mlp = 2 * model_dim * mlp_dim + mlp_dim + model_dim
    return vocab_size * model_dim + num_layers * (attention + mlp + 2 * norm) + norm


@pytest.fixture(scope="module")
def mini():
    return nnx.jit(lambda: Transformer(**MINI, rngs=nnx.Rngs(0)))()


def test_number_of_parameters():
    base = {"vocab_size": 32_000, "num_layers": 6, "model_dim": 512, "num_heads": 8}
    base |= {"mlp_dim": 2048, "max_length": 256}
    for sizes in (base, MINI):
        assert parameter_count(abstract(Transformer, **sizes)) == expected_count(**sizes)
    assert abstract(Transformer, vocab_size=9, max_length=9).layers[5].mlp_in.kernel.shape == (
        512,
        2048,
    )


def test_later_tokens_do_not_change_earlier_logits(mini):
    logits_BxLxV = forward(mini, TOKENS_BXL)
    for position in range(1, 6):
        changed = forward(mini, TOKENS_BXL.at[:, position].add(1) % 11)
        np.testing.assert_array_equal(changed[:, :position], logits_BxLxV[:, :position])
        assert (changed[:, position:] != logits_BxLxV[:, position:]).any(-1).all()


def test_hidden_units_have_no_gradient_from_later_embeddings(mini):
    graphdef, parameters = nnx.split(mini)

    def first_unit(embedding_VxD):
        model = nnx.merge(graphdef, parameters, copy=True)
        model.embed.embedding[...] = embedding_VxD
        return model.hidden(jnp.arange(6)[None])[0, :, 0]

    jacobian_LxVxD = jax.jit(jax.jacrev(first_unit))(mini.embed.embedding[...])
    depends_LxL = (jacobian_LxVxD[:, :6] != 0).any(-1)
    np.testing.assert_array_equal(depends_LxL, np.tri(6, dtype=bool))


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
