"""Language modelling: the next token of a text, predicted by a decoder-only Transformer.

Text has no augmentation, so echoing before and after it coincide; both are allowed, and give the
same batches.
"""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from models.transformer import Transformer
from workloads.interface import Arrays, WorkloadError, total

# Rows of tokens are filled up with this one, which is no text's.
PAD = 0

# The largest logits that are held at once, in bytes over all devices: 1024 rows of 256 positions
# and 32,000 tokens would be 33 GB. Larger ones are made, used, and made again for the gradient, in
# groups of positions.
LOGITS_BYTES = 2**30


@dataclasses.dataclass(frozen=True)
class LanguageModel:
    """A Transformer on rows of tokens, cross-entropy in nats a token, padding left out.

    Attributes:
        length: number of targets L in a row; a row has L + 1 tokens.
        vocabulary_size: number of tokens V.
        layers, dim, heads, mlp_dim: of the Transformer.
    """

    length: int
    vocabulary_size: int
    layers: int
    dim: int
    heads: int
    mlp_dim: int
    dtype: str

    metrics = ("loss", "perplexity")

    @classmethod
    def from_config(cls, config, info) -> "LanguageModel":
        model = config.model
        if info.vocabulary_size is None:
            raise WorkloadError(
                f"data set {info.name!r} is not tokenized text, which workload "
                f"{config.workload!r} needs; set config.dataset.text to sentences or documents"
            )
        if model.dim % model.heads or model.dim % 2:
            raise WorkloadError(
                f"config.model.dim is {model.dim} with model.heads={model.heads}; allowed: an even "
                "multiple of the heads"
            )
        return cls(
            length=config.dataset.sequence_length,
            vocabulary_size=info.vocabulary_size,
            layers=model.layers,
            dim=model.dim,
            heads=model.heads,
            mlp_dim=model.mlp_dim,
            dtype=config.dtype,
        )

    def decode(self, records: list[dict[str, Any]]) -> dict[str, np.ndarray]:
        """Records with tokens int32 [L + 1 at most] to tokens int32 [n, L + 1], padded."""
        tokens_nxT = np.full((len(records), self.length + 1), PAD, np.int32)
        for row_T, record in zip(tokens_nxT, records, strict=True):
            row_T[: len(record["tokens"])] = record["tokens"]
        return {"tokens": tokens_nxT}

    def augment(self, data: Arrays, seed, index_B, copy_B) -> Arrays:
        """The identity."""
        del seed, index_B, copy_B
        return data

    def model(self, rngs: nnx.Rngs) -> Transformer:
        return Transformer(
            vocab_size=self.vocabulary_size,
            num_layers=self.layers,
            model_dim=self.dim,
            num_heads=self.heads,
            mlp_dim=self.mlp_dim,
            max_length=self.length,
            dtype=jnp.dtype(self.dtype),
            rngs=rngs,
        )

    def loss(self, model: nnx.Module, data: Arrays) -> tuple[jax.Array, Arrays]:
        """Nats a token over the batch: a long row counts for more than a short one."""
        losses_B, tokens_B = self.row_losses(model, data)
        loss = losses_B.sum() / jnp.maximum(tokens_B.sum(), 1.0)
        return loss, {"loss": loss}

    def row_losses(self, model: nnx.Module, data: Arrays) -> tuple[jax.Array, jax.Array]:
        """The weight of a row is the number of its targets that are no padding."""
        return _row_sums(model, data["tokens"], jnp.ones(len(data["tokens"])), train=True)

    def evaluate(self, model: nnx.Module, data: Arrays, mask_B: jax.Array) -> Arrays:
        losses_B, tokens_B = _row_sums(model, data["tokens"], mask_B, train=False)
        return {"loss": losses_B.sum(), "tokens": tokens_B.sum()}

    def summarize(self, outputs: list[dict[str, np.ndarray]]) -> dict[str, float]:
        """`loss` is the split's total over its number of tokens; perplexity its exponential."""
        sums = total(outputs)
        if not sums["tokens"]:
            raise ValueError("the split has no token to predict: all of its texts are empty")
        loss = sums["loss"] / sums["tokens"]
        return {"loss": loss, "perplexity": float(np.exp(min(loss, 700.0)))}


def _row_sums(
    model: Transformer, tokens_BxT: jax.Array, mask_B: jax.Array, *, train: bool
) -> tuple[jax.Array, jax.Array]:
    """Each row's total cross-entropy in nats, and the number of tokens that it is over, [B]."""
    hidden_BxLxD = model.hidden(tokens_BxT[:, :-1], train=train)
    targets_BxL = tokens_BxT[:, 1:]
    mask_BxL = (targets_BxL != PAD) * mask_B[:, None].astype(jnp.float32)
    chunk = positions_at_once(*targets_BxL.shape, model.embed.num_embeddings)
    losses_B = total_cross_entropy(model, hidden_BxLxD, targets_BxL, mask_BxL, chunk)
    return losses_B, mask_BxL.sum(-1)


def positions_at_once(rows: int, length: int, vocabulary_size: int) -> int:
    """The largest divisor of `length` for which the logits of that many positions are held."""
    allowed = LOGITS_BYTES // (4 * rows * vocabulary_size)
    return max(n for n in range(1, length + 1) if length % n == 0 and n <= max(allowed, 1))


def total_cross_entropy(
    model: Transformer,
    hidden_BxLxD: jax.Array,
    targets_BxL: jax.Array,
    mask_BxL: jax.Array,
    chunk: int,
) -> jax.Array:
    """Each row's sum of -log softmax(logits)[target] where the mask is 1, float32 [B], in groups of
    `chunk` positions.

    The groups divide L and not B, because B may be spread over devices.
    """

    def of_group(group) -> jax.Array:
        hidden_BxGxD, targets_BxG, mask_BxG = group
        losses_BxG = optax.softmax_cross_entropy_with_integer_labels(
            model.logits(hidden_BxGxD), targets_BxG
        )
        return (losses_BxG * mask_BxG).sum(-1)

    if chunk == targets_BxL.shape[1]:
        return of_group((hidden_BxLxD, targets_BxL, mask_BxL))

    def groups(array_BxLx):
        rows, length, *rest = array_BxLx.shape
        return array_BxLx.reshape(rows, length // chunk, chunk, *rest).swapaxes(0, 1)

    arrays = jax.tree.map(groups, (hidden_BxLxD, targets_BxL, mask_BxL))
    return jax.lax.map(jax.checkpoint(of_group), arrays).sum(0)
