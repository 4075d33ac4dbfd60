"""Language modeling: a decoder-only Transformer predicts the next token of a text.

Text is not augmented, so echoing before and after augmentation gives the same batches; both are
allowed.
"""

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from models.transformer import Transformer
from workloads import networks
from workloads.interface import Arrays, WorkloadError, require, total

# Pads rows of tokens; texts do not contain it. The same as PAD of data/vocabulary.py.
PAD = 0

# Maximum size of the logits in bytes over all devices: 1024 rows of 256 positions and 32,000 tokens
# would take 33 GB. Larger logits are computed by groups of positions, and again for the gradient.
LOGITS_BYTES = 2**30


@dataclasses.dataclass(frozen=True)
class LanguageModel:
    """A Transformer on rows of tokens, cross-entropy in nats per token without padding.

    Attributes:
        length: number of targets L in a row; a row has L + 1 tokens.
        network: a `Transformer`.
    """

    length: int
    network: networks.Network

    metrics = ("loss", "perplexity")

    @classmethod
    def from_config(cls, config, info) -> "LanguageModel":
        if info.vocabulary_size is None:
            raise WorkloadError(
                f"data set {info.name!r} is not tokenized text, which workload "
                f"{config.workload!r} needs; set config.dataset.text to sentences or documents"
            )
        dim, heads = config.model.dim, config.model.heads
        allowed = f"an even multiple of model.heads, {heads}"
        require(dim % heads == dim % 2 == 0, config, "model.dim", allowed)
        sizes = networks.transformer_sizes(config)
        network = networks.Network.of(Transformer, vocab_size=info.vocabulary_size, **sizes)
        return cls(config.dataset.sequence_length, network)

    def decode(self, records: list[dict[str, Any]]) -> dict[str, np.ndarray]:
        """Pads records with tokens int32 [<= L + 1] to tokens int32 [n, L + 1]."""
        tokens_nxT = np.full((len(records), self.length + 1), PAD, np.int32)
        for row_T, record in zip(tokens_nxT, records, strict=True):
            row_T[: len(record["tokens"])] = record["tokens"]
        return {"tokens": tokens_nxT}

    def augment(self, data: Arrays, seed, index_B, copy_B) -> Arrays:
        """Returns the data unchanged."""
        del seed, index_B, copy_B
        return data

    def model(self, rngs: nnx.Rngs) -> nnx.Module:
        return self.network(rngs)

    def loss(self, model: nnx.Module, data: Arrays) -> tuple[jax.Array, Arrays]:
        """Mean nats per token over the batch, so that long rows weigh more than short ones."""
        losses_B, tokens_B = _row_sums(model, data["tokens"], jnp.ones(len(data["tokens"])))
        loss = losses_B.sum() / jnp.maximum(tokens_B.sum(), 1.0)
        return loss, {"loss": loss}

    def evaluate(self, model: nnx.Module, data: Arrays, mask_B: jax.Array) -> Arrays:
        losses_B, tokens_B = _row_sums(model, data["tokens"], mask_B)
        return {"loss": losses_B.sum(), "tokens": tokens_B.sum()}

    def summarize(self, outputs: list[dict[str, np.ndarray]]) -> dict[str, float]:
        """`loss` is the mean over the tokens of the split; perplexity is its exponential."""
        sums = total(outputs)
        if not sums["tokens"]:
            raise ValueError("the split has no tokens to predict: all of its texts are empty")
        loss = sums["loss"] / sums["tokens"]
        return {"loss": loss, "perplexity": float(np.exp(min(loss, 700.0)))}


def _row_sums(model: Any, tokens_BxT: jax.Array, mask_B: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The total cross-entropy of each row in nats, and its number of tokens, float32 [B]."""
    hidden_BxLxD = model.hidden(tokens_BxT[:, :-1])
    targets_BxL = tokens_BxT[:, 1:]
    mask_BxL = (targets_BxL != PAD) * mask_B[:, None].astype(jnp.float32)
    rows, length = targets_BxL.shape
    chunk = positions_at_once(rows, length, model.embed.num_embeddings)
    losses_B = total_cross_entropy(model, hidden_BxLxD, targets_BxL, mask_BxL, chunk)
    return losses_B, mask_BxL.sum(-1)


def positions_at_once(rows: int, length: int, vocabulary_size: int) -> int:
    """The size of equal groups of positions, as few as possible, whose logits fit LOGITS_BYTES."""
    allowed = max(LOGITS_BYTES // (4 * rows * vocabulary_size), 1)
    groups = math.ceil(length / allowed)
    return math.ceil(length / groups)


def total_cross_entropy(
    model: Any,
    hidden_BxLxD: jax.Array,
    targets_BxL: jax.Array,
    mask_BxL: jax.Array,
    chunk: int,
) -> jax.Array:
    """The sum of -log softmax(logits)[target] over positions with mask 1, float32 [B].

    Computed by groups of `chunk` positions; the last one is padded. Groups are of positions, not of
    rows, since B may be sharded.
    """

    def losses(group) -> jax.Array:
        hidden_BxGxD, targets_BxG, mask_BxG = group
        logits_BxGxV = model.logits(hidden_BxGxD)
        losses_BxG = optax.softmax_cross_entropy_with_integer_labels(logits_BxGxV, targets_BxG)
        return (losses_BxG * mask_BxG).sum(-1)

    if chunk == targets_BxL.shape[1]:
        return losses((hidden_BxLxD, targets_BxL, mask_BxL))

    def groups(array_BxLx):
        rows, length, *rest = array_BxLx.shape
        if padding := -length % chunk:  # by zeros, so the mask leaves them out
            array_BxLx = jnp.pad(array_BxLx, [(0, 0), (0, padding), *[(0, 0)] * len(rest)])
        return array_BxLx.reshape(rows, -1, chunk, *rest).swapaxes(0, 1)

    arrays = jax.tree.map(groups, (hidden_BxLxD, targets_BxL, mask_BxL))
    return jax.lax.map(jax.checkpoint(losses), arrays).sum(0)
