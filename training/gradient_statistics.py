"""Statistics of the gradient of one batch: its noise, and how repeats differ from fresh rows.

The batch goes through the network once, as in the training step, so that batch normalization sees
what it sees there. Gradients of three groups of its rows are pulled back from the losses of the
rows: of two halves, and of the fresh rows. Gradients of sums over rows are additive, so those of
the repeats follow.

The copies of an example are not independent, so the unit that is split is the example: a hash of
its index puts all of its copies into the same half. With batch normalization the halves remain
dependent through the statistics of the batch, and the estimates are approximate.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp

# Params to what each row adds to the loss, and its weight; see Workload.row_losses.
RowLosses = Callable[[Any], tuple[jax.Array, jax.Array]]

_GOLDEN_RATIO = (5**0.5 - 1) / 2


def due(step: int, every: int) -> bool:
    """Whether the statistics of this step (from 0) are due: those of one in `every`, 0 = none.

    Its place among the `every` moves by the golden ratio, evenly over all of them. At a fixed place
    they would fall on the same copy each time: with whole batches repeated and a factor that
    divides `every`, on fresh ones alone.
    """
    if not every:
        return False
    block, place = divmod(step, every)
    return place == int(every * (block * _GOLDEN_RATIO % 1))


def statistics(
    row_losses: RowLosses, params: Any, index_B: jax.Array, repeat_B: jax.Array, data_seed: Any
) -> dict[str, jax.Array]:
    """Measures a batch, at the cost of a forward and three backward passes.

    Args:
        row_losses: differentiable in `params`.
        index_B: which fresh example each row shows, uint32 [B].
        repeat_B: whether an earlier row, of this batch or one before, shows it too, bool [B].
        data_seed: of the halves.

    Returns:
        Float32 scalars, NaN where they are undefined:

        gradient_squared_norm, gradient_noise_trace: estimates of |G|^2 and of tr(Sigma), where the
            gradient of n rows has mean G and covariance Sigma / n. With g1, g2 the mean gradients
            of halves of n1, n2 rows they are g1 . g2 and |g1 - g2|^2 / (1/n1 + 1/n2). For n1 = n2
            that is what McCandlish et al. (2018, arXiv 1812.06162, appendix A.1) have for the small
            batch a half and the big one both. Both are unbiased where rows are independent and have
            equal weights; single ones are so noisy that only their means over steps mean anything
            (the former may be negative), and a mean of their ratios means nothing.
        fresh_loss, repeat_loss: training loss over the fresh rows, and over the repeats.
        gradient_cosine, gradient_norm_ratio: of the mean gradients of repeats and fresh rows, the
            ratio being repeats / fresh.
        fresh_rows: how many rows are no repeats.
    """
    losses_B, pull_back, weights_B = jax.vjp(row_losses, params, has_aux=True)

    def summed(rows_B):
        """The rows' number, their total loss, weight and gradient."""
        (gradient,) = pull_back(rows_B)
        return rows_B.sum(), (rows_B * weights_B).sum(), gradient

    first_B = in_first_half(index_B, data_seed).astype(losses_B.dtype)
    (rows1, weight1, sum1), (rows2, weight2, sum2) = summed(first_B), summed(1 - first_B)
    mean1, mean2 = _scaled(sum1, 1 / weight1), _scaled(sum2, 1 / weight2)
    difference = jax.tree.map(jnp.subtract, mean1, mean2)

    repeat_B = repeat_B.astype(losses_B.dtype)
    fresh_B = 1 - repeat_B
    fresh_weight, repeat_weight = (fresh_B * weights_B).sum(), (repeat_B * weights_B).sum()

    # Also for batches that do not mix: within a jax.lax.cond this takes a CPU four times as long.
    (fresh,) = pull_back(fresh_B)
    repeat = jax.tree.map(lambda a, b, c: a + b - c, sum1, sum2, fresh)
    fresh_norm, repeat_norm = jnp.sqrt(_dot(fresh, fresh)), jnp.sqrt(_dot(repeat, repeat))
    cosine = _dot(fresh, repeat) / (fresh_norm * repeat_norm)
    norm_ratio = repeat_norm / repeat_weight / (fresh_norm / fresh_weight)
    mixed = (fresh_B.sum() > 0) & (repeat_B.sum() > 0)
    return {
        "gradient_squared_norm": _dot(mean1, mean2),
        "gradient_noise_trace": _dot(difference, difference) / (1 / rows1 + 1 / rows2),
        "fresh_loss": (fresh_B * losses_B).sum() / fresh_weight,
        "repeat_loss": (repeat_B * losses_B).sum() / repeat_weight,
        "gradient_cosine": jnp.where(mixed, cosine, jnp.nan),
        "gradient_norm_ratio": jnp.where(mixed, norm_ratio, jnp.nan),
        "fresh_rows": fresh_B.sum(),
    }


def in_first_half(index_B: jax.Array, data_seed: Any) -> jax.Array:
    """Which rows are in the first half, bool [B]: each example's fate is an even draw of its own,
    whatever its copy or its place."""
    of_seed = jax.random.key(data_seed)
    bits = jax.vmap(lambda index: jax.random.bits(jax.random.fold_in(of_seed, index)))
    return bits(index_B) % 2 == 0


def defined(values: Mapping[str, Any]) -> dict[str, float]:
    """What of `statistics` can be recorded: the numbers that are finite."""
    numbers = {name: float(value) for name, value in values.items()}
    return {name: number for name, number in numbers.items() if math.isfinite(number)}


def _dot(one: Any, other: Any) -> jax.Array:
    # not jnp.vdot, which an accelerator computes in half precision
    products = jax.tree.map(lambda a, b: (a * b).sum(), one, other)
    return sum(jax.tree.leaves(products))


def _scaled(tree: Any, factor: jax.Array) -> Any:
    return jax.tree.map(lambda leaf: leaf * factor, tree)
