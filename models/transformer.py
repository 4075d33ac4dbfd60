"""Decoder-only Transformer for language modeling, and the layer of all Transformers."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

# At module level, so that equal networks have equal graph definitions.
KERNEL_INIT = nnx.initializers.xavier_uniform()


class Attention(nnx.Module):
    """Multi-head self-attention; `causal`: a position sees itself and earlier ones only."""

    def __init__(
        self,
        model_dim: int,
        num_heads: int,
        *,
        causal: bool,
        use_bias: bool,
        dtype: jnp.dtype,
        rngs: nnx.Rngs,
    ):
        self.causal = causal
        heads = (num_heads, model_dim // num_heads)
        common = {"use_bias": use_bias, "kernel_init": KERNEL_INIT, "dtype": dtype, "rngs": rngs}
        self.q = nnx.LinearGeneral(model_dim, heads, **common)
        self.k = nnx.LinearGeneral(model_dim, heads, **common)
        self.v = nnx.LinearGeneral(model_dim, heads, **common)
        self.out = nnx.LinearGeneral(heads, model_dim, axis=(-2, -1), **common)

    def __call__(self, x_BxLxD: jax.Array) -> jax.Array:
        q_BxLxNxH, k_BxLxNxH, v_BxLxNxH = self.q(x_BxLxD), self.k(x_BxLxD), self.v(x_BxLxD)
        y_BxLxNxH = jax.nn.dot_product_attention(
            q_BxLxNxH, k_BxLxNxH, v_BxLxNxH, is_causal=self.causal
        )
        return self.out(y_BxLxNxH)


class TransformerLayer(nnx.Module):
    """Pre-norm residual branches: attention, then a two-layer MLP.

    Args:
        model_dim, num_heads, mlp_dim: see `Transformer`.
        activation: of the MLP's hidden units.
        causal, use_bias: see `Attention`; the MLP always has biases.
        dtype: dtype of the activations and products; parameters are float32.
        rngs: source of the initial weights (stream `params`).
    """

    def __init__(
        self,
        model_dim: int,
        num_heads: int,
        mlp_dim: int,
        *,
        activation: Callable[[jax.Array], jax.Array],
        causal: bool,
        use_bias: bool,
        dtype: jnp.dtype,
        rngs: nnx.Rngs,
    ):
        common = {"dtype": dtype, "rngs": rngs}
        self.activation = activation
        self.attention_norm = nnx.LayerNorm(model_dim, **common)
        self.attention = Attention(model_dim, num_heads, causal=causal, use_bias=use_bias, **common)
        self.mlp_norm = nnx.LayerNorm(model_dim, **common)
        self.mlp_in = nnx.Linear(model_dim, mlp_dim, kernel_init=KERNEL_INIT, **common)
        self.mlp_out = nnx.Linear(mlp_dim, model_dim, kernel_init=KERNEL_INIT, **common)

    def __call__(self, x_BxLxD: jax.Array) -> jax.Array:
        """Returns the same shape."""
        x_BxLxD += self.attention(self.attention_norm(x_BxLxD))
        hidden_BxLxM = self.activation(self.mlp_in(self.mlp_norm(x_BxLxD)))
        return x_BxLxD + self.mlp_out(hidden_BxLxM)


class Transformer(nnx.Module):
    """Decoder-only Transformer: logits of the next token at every position.

    Sizes (by default) and layers are those of the base model of Vaswani et al. 2017 (relu,
    sinusoidal positions without parameters, embeddings multiplied by sqrt(model_dim) and shared
    with the output layer), with two differences: normalization precedes each branch and follows the
    last layer, which trains without a long warmup (Xiong et al. 2020), and there is no dropout.

    Args:
        vocab_size: number V of tokens.
        num_layers: number of decoder layers.
        model_dim: size D of the residual stream, even.
        num_heads: attention heads, a divisor of `model_dim`.
        mlp_dim: hidden size of the MLPs.
        dtype: dtype of the activations and products; parameters are float32.
        rngs: source of the initial weights (stream `params`).
    """

    def __init__(
        self,
        *,
        vocab_size: int,
        num_layers: int = 6,
        model_dim: int = 512,
        num_heads: int = 8,
        mlp_dim: int = 2048,
        dtype: jnp.dtype = jnp.float32,
        rngs: nnx.Rngs,
    ):
        self.model_dim, self.dtype = model_dim, dtype
        # nnx.Embed draws with variance 1 / D: inputs and logits both start with a variance near 1.
        self.embed = nnx.Embed(vocab_size, model_dim, rngs=rngs)
        sizes = (model_dim, num_heads, mlp_dim)
        common = {"activation": nnx.relu, "causal": True, "use_bias": False}
        common |= {"dtype": dtype, "rngs": rngs}
        self.layers = nnx.List([TransformerLayer(*sizes, **common) for _ in range(num_layers)])
        self.final_norm = nnx.LayerNorm(model_dim, dtype=dtype, rngs=rngs)

    def __call__(self, tokens_BxL: jax.Array) -> jax.Array:
        """Returns logits_BxLxV in float32; those at position t depend only on tokens 0..t.

        Args:
            tokens_BxL: int32 in [0, V); a larger token makes the logits NaN.
        """
        return self.logits(self.hidden(tokens_BxL))

    def hidden(self, tokens_BxL: jax.Array) -> jax.Array:
        """Returns hidden_BxLxD, the input of `logits`; the argument is that of a call.

        With a large vocabulary, the logits of all positions take many times more memory.
        """
        # Gathered in float32, so that the gradients of a frequent token are summed in float32.
        x_BxLxD = jnp.take(self.embed.embedding[...], tokens_BxL, axis=0)
        positions_LxD = sinusoidal_positions(*x_BxLxD.shape[1:])
        # JAX converts the positions to float32 unless float64 is enabled.
        x_BxLxD = (x_BxLxD * self.model_dim**0.5 + positions_LxD).astype(self.dtype)
        for layer in self.layers:
            x_BxLxD = layer(x_BxLxD)
        return self.final_norm(x_BxLxD)

    def logits(self, hidden_BxLxD: jax.Array) -> jax.Array:
        """Returns logits_BxLxV in float32."""
        weights_VxD = self.embed.embedding[...].astype(self.dtype)
        # Accumulated and returned in float32, since the loss exponentiates them.
        return jnp.einsum(
            "bld,vd->blv",
            hidden_BxLxD,
            weights_VxD,
            preferred_element_type=jnp.promote_types(self.dtype, jnp.float32),
        )


def sinusoidal_positions(length: int, model_dim: int) -> np.ndarray:
    """Position encoding positions_LxD in float64 (Vaswani et al. 2017, section 3.5).

    Sines fill the first half of D and cosines the second. The paper interleaves them, which differs
    only by a permutation.
    """
    frequency_F = 10_000.0 ** (-np.arange(0, model_dim, 2) / model_dim)
    angle_LxF = np.arange(length)[:, None] * frequency_F
    return np.concatenate([np.sin(angle_LxF), np.cos(angle_LxF)], axis=1)
