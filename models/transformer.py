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
        dropout_rate: dropout probability on both branches.
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
        dropout_rate: float = 0.0,
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
        self.dropout = nnx.Dropout(dropout_rate)

    def __call__(self, x_BxLxD: jax.Array, *, rngs: nnx.Rngs | None = None) -> jax.Array:
        """Returns the same shape; no dropout if `rngs` is None."""
        dropout = {"deterministic": rngs is None, "rngs": rngs}
        x_BxLxD += self.dropout(self.attention(self.attention_norm(x_BxLxD)), **dropout)
        hidden_BxLxM = self.activation(self.mlp_in(self.mlp_norm(x_BxLxD)))
        return x_BxLxD + self.dropout(self.mlp_out(hidden_BxLxM), **dropout)


class Transformer(nnx.Module):
    """Decoder-only Transformer: logits of the next token at every position.

    Sizes (by default) and layers are those of the base model of Vaswani et al. 2017 (relu,
    sinusoidal positions without parameters, embeddings multiplied by sqrt(model_dim)), with one
    difference: normalization precedes each branch and follows the last layer, which trains without
    a long warmup (Xiong et al. 2020).

    Args:
        vocab_size: number V of tokens.
        num_layers: number of decoder layers.
        model_dim: size D of the residual stream, even.
        num_heads: attention heads, a divisor of `model_dim`.
        mlp_dim: hidden size of the MLPs.
        max_length: maximum length of a sequence.
        dropout_rate: dropout probability on the embeddings and on each branch.
        tie_embedding: whether the logits use the embedding's weights, or their own.
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
        max_length: int,
        dropout_rate: float = 0.0,
        tie_embedding: bool = True,
        dtype: jnp.dtype = jnp.float32,
        rngs: nnx.Rngs,
    ):
        if model_dim % num_heads or model_dim % 2:
            raise ValueError(
                "model_dim must be even and a multiple of num_heads, "
                f"got model_dim {model_dim} and num_heads {num_heads}"
            )
        if not 0 <= dropout_rate < 1:
            raise ValueError(f"dropout_rate must be at least 0 and below 1, got {dropout_rate}")
        self.model_dim, self.max_length, self.dtype = model_dim, max_length, dtype
        # nnx.Embed draws with variance 1 / D: inputs and logits both start with a variance near 1.
        self.embed = nnx.Embed(vocab_size, model_dim, rngs=rngs)
        self.unembed = None if tie_embedding else nnx.Embed(vocab_size, model_dim, rngs=rngs)
        self.dropout = nnx.Dropout(dropout_rate)
        sizes = (model_dim, num_heads, mlp_dim)
        common = {"activation": nnx.relu, "causal": True, "use_bias": False}
        common |= {"dropout_rate": dropout_rate, "dtype": dtype, "rngs": rngs}
        self.layers = nnx.List([TransformerLayer(*sizes, **common) for _ in range(num_layers)])
        self.final_norm = nnx.LayerNorm(model_dim, dtype=dtype, rngs=rngs)

    def __call__(
        self, tokens_BxL: jax.Array, *, train: bool, dropout_key: jax.Array | None = None
    ) -> jax.Array:
        """Returns logits_BxLxV in float32; those at position t depend only on tokens 0..t.

        Args:
            tokens_BxL: int32 in [0, V); a larger token makes the logits NaN.
            train: whether to apply dropout.
            dropout_key: required for dropout. The caller passes a key per step, so that the model
                has no random state.

        Raises ValueError for a sequence longer than `max_length` or a missing key.
        """
        return self.logits(self.hidden(tokens_BxL, train=train, dropout_key=dropout_key))

    def decode(self, x_BxLxD: jax.Array, *, rngs: nnx.Rngs | None = None) -> jax.Array:
        """Returns logits_BxLxV in float32 from embedded tokens; no dropout if `rngs` is None."""
        return self.logits(self._hidden(x_BxLxD, rngs))

    def hidden(
        self, tokens_BxL: jax.Array, *, train: bool, dropout_key: jax.Array | None = None
    ) -> jax.Array:
        """Returns hidden_BxLxD, the input of `logits`; the arguments are those of a call.

        With a large vocabulary, the logits of all positions take many times more memory.
        """
        if tokens_BxL.shape[1] > self.max_length:
            raise ValueError(
                f"sequences may have {self.max_length} tokens at most, got {tokens_BxL.shape[1]}"
            )
        # Gathered in float32, so that the gradients of a frequent token are summed in float32.
        x_BxLxD = jnp.take(self.embed.embedding[...], tokens_BxL, axis=0)
        return self._hidden(x_BxLxD, self._dropout_rngs(train, dropout_key))

    def logits(self, hidden_BxLxD: jax.Array) -> jax.Array:
        """Returns logits_BxLxV in float32."""
        weights = self.embed if self.unembed is None else self.unembed
        weights_VxD = weights.embedding[...].astype(self.dtype)
        # Accumulated and returned in float32, since the loss exponentiates them.
        return jnp.einsum(
            "bld,vd->blv",
            hidden_BxLxD,
            weights_VxD,
            preferred_element_type=jnp.promote_types(self.dtype, jnp.float32),
        )

    def _hidden(self, x_BxLxD: jax.Array, rngs: nnx.Rngs | None) -> jax.Array:
        positions_LxD = sinusoidal_positions(*x_BxLxD.shape[1:])
        # JAX converts the positions to float32 unless float64 is enabled.
        x_BxLxD = (x_BxLxD * self.model_dim**0.5 + positions_LxD).astype(self.dtype)
        x_BxLxD = self.dropout(x_BxLxD, deterministic=rngs is None, rngs=rngs)
        for layer in self.layers:
            x_BxLxD = layer(x_BxLxD, rngs=rngs)
        return self.final_norm(x_BxLxD)

    def _dropout_rngs(self, train: bool, dropout_key: jax.Array | None) -> nnx.Rngs | None:
        if not train or self.dropout.rate == 0:
            return None
        if dropout_key is None:
            raise ValueError(
                f"training with dropout_rate {self.dropout.rate} needs a dropout_key, got None"
            )
        return nnx.Rngs(dropout=dropout_key)


def sinusoidal_positions(length: int, model_dim: int) -> np.ndarray:
    """Position encoding positions_LxD in float64 (Vaswani et al. 2017, section 3.5).

    Sines fill the first half of D and cosines the second. The paper interleaves them, which differs
    only by a permutation.
    """
    frequency_F = 10_000.0 ** (-np.arange(0, model_dim, 2) / model_dim)
    angle_LxF = np.arange(length)[:, None] * frequency_F
    return np.concatenate([np.sin(angle_LxF), np.cos(angle_LxF)], axis=1)
