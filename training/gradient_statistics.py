"""Statistics of a batch's gradient: its noise, and how repeats differ from fresh rows.

The batch passes through the network once, as in the training step, so batch normalization uses the
same statistics. The losses of the rows are then differentiated for three groups of rows: two
halves, and the fresh rows. Gradients of sums over rows are additive, so the gradient of the repeats
follows.

The copies of an example are not independent, so the halves split examples, not rows: a hash of an
example's index puts all its copies into the same half. With batch normalization the halves remain
dependent through the batch statistics, and the estimates are approximate.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from pipeline.repeats import RepeatedRows
from training import sharding
from training.step import Program, Rows, TrainState

# params -> (what each row adds to the loss [B], its weight [B]); see Workload.row_losses.
RowLosses = Callable[[Any], tuple[jax.Array, jax.Array]]

_GOLDEN_RATIO = (5**0.5 - 1) / 2


def due(step: int, every: int) -> bool:
    """Whether the statistics of `step`, from 0, are due: one step in every `every`.

    The position of that step among the `every` moves by the golden ratio, so it is evenly
    distributed. A fixed position would always measure the same copy: if whole batches are repeated
    and the factor divides `every`, only fresh ones.
    """
    block, place = divmod(step, every)
    return place == int(every * (block * _GOLDEN_RATIO % 1))


class Measure:
    """Measures the gradients of a run's steps that are due.

    Args:
        program: of the run.
        every: the number of steps of which one is measured.
        data_seed: seed of the split into halves.
        repeated_rows: says which rows of this process's part of a batch are repeats.
    """

    def __init__(self, program: Program, every: int, data_seed: int, repeated_rows: RepeatedRows):
        self._program, self._every, self._repeated_rows = program, every, repeated_rows
        self._seed = np.uint32(data_seed)
        self._function = jax.jit(self._statistics, out_shardings=program.replicated)

    def due(self, step: int) -> bool:
        """See `due`."""
        return due(step, self._every)

    def __call__(
        self, state: TrainState, step: int, copy_b: np.ndarray, rows: Rows
    ) -> dict[str, float]:
        """The statistics that are defined, by name, of the gradient of the batch `rows` at the
        `state` before its step. `copy_b` has the copy numbers of the rows that this process holds.
        Nothing is donated."""
        mesh = self._program.task.mesh
        repeat_B = sharding.put_batch(mesh, self._repeated_rows(step, copy_b))
        arguments = state.params, state.model_state, rows, repeat_B, self._seed
        measure = self._program.compile("statistics", self._function, arguments)
        values = jax.device_get(measure(*arguments))
        return {name: float(value) for name, value in values.items() if np.isfinite(value)}

    def _statistics(self, params, model_state, rows: Rows, repeat_B, data_seed):
        program, data = self._program, self._program.augmented(rows, data_seed)

        def row_losses(params):
            return program.task.workload.row_losses(program.model(params, model_state), data)

        return statistics(row_losses, params, rows[1], repeat_B, data_seed)


def statistics(
    row_losses: RowLosses, params: Any, index_B: jax.Array, repeat_B: jax.Array, data_seed: Any
) -> dict[str, jax.Array]:
    """Measures a batch, at the cost of one forward and three backward passes.

    Args:
        row_losses: differentiable with respect to `params`.
        params: parameters of the network.
        index_B: the fresh example in each row, uint32 [B].
        repeat_B: whether an earlier row, of this batch or one before, contains the same example,
            bool [B].
        data_seed: seed of the split into halves.

    Returns:
        Float32 scalars, NaN where undefined:

        gradient_squared_norm, gradient_noise_trace: estimates of |G|^2 and tr(Sigma), where the
            gradient of n rows has mean G and covariance Sigma / n. With g1, g2 the mean gradients
            of halves of n1, n2 rows, they are g1 . g2 and |g1 - g2|^2 / (1/n1 + 1/n2). For n1 = n2
            these are the estimators of McCandlish et al. (2018, arXiv 1812.06162, appendix A.1),
            with a half as the small batch and both as the big one. Both are unbiased if rows are
            independent and have equal weights. A single estimate is very noisy (the first may be
            negative): average each over steps, and do not average their ratios.
        fresh_loss, repeat_loss: the training loss over the fresh rows, and over the repeats.
        gradient_cosine, gradient_norm_ratio: between the mean gradients of repeats and of fresh
            rows; the ratio is repeats / fresh.
        fresh_rows: the number of rows that are not repeats.
    """
    losses_B, pull_back, weights_B = jax.vjp(row_losses, params, has_aux=True)

    def summed(rows_B):
        """The number of rows in a group, their total weight, and their gradient."""
        (gradient,) = pull_back(rows_B)
        return rows_B.sum(), (rows_B * weights_B).sum(), gradient

    first_B = in_first_half(index_B, data_seed).astype(losses_B.dtype)
    (rows1, weight1, sum1), (rows2, weight2, sum2) = summed(first_B), summed(1 - first_B)
    mean1, mean2 = optax.tree.scale(1 / weight1, sum1), optax.tree.scale(1 / weight2, sum2)
    difference = optax.tree.sub(mean1, mean2)

    # Computed for every batch: within a jax.lax.cond it takes four times as long on a CPU.
    repeat_B = repeat_B.astype(losses_B.dtype)
    fresh_B = 1 - repeat_B
    fresh_rows, fresh_weight, fresh = summed(fresh_B)
    repeat_weight = (repeat_B * weights_B).sum()
    repeat = jax.tree.map(lambda a, b, c: a + b - c, sum1, sum2, fresh)
    fresh_norm, repeat_norm = jnp.sqrt(_dot(fresh, fresh)), jnp.sqrt(_dot(repeat, repeat))
    cosine = _dot(fresh, repeat) / (fresh_norm * repeat_norm)
    norm_ratio = repeat_norm / repeat_weight / (fresh_norm / fresh_weight)
    mixed = (fresh_rows > 0) & (repeat_B.sum() > 0)
    return {
        "gradient_squared_norm": _dot(mean1, mean2),
        "gradient_noise_trace": _dot(difference, difference) / (1 / rows1 + 1 / rows2),
        "fresh_loss": (fresh_B * losses_B).sum() / fresh_weight,
        "repeat_loss": (repeat_B * losses_B).sum() / repeat_weight,
        "gradient_cosine": jnp.where(mixed, cosine, jnp.nan),
        "gradient_norm_ratio": jnp.where(mixed, norm_ratio, jnp.nan),
        "fresh_rows": fresh_rows,
    }


def in_first_half(index_B: jax.Array, data_seed: Any) -> jax.Array:
    """Which rows are in the first half, bool [B]. An independent fair draw per example, the same
    for all of its copies."""
    # No key of augmentation: those are folded from the same seed with numbers of examples, which
    # a run has fewer of.
    of_seed = jax.random.fold_in(jax.random.key(data_seed), 2**32 - 1)
    bits = jax.vmap(lambda index: jax.random.bits(jax.random.fold_in(of_seed, index)))
    return bits(index_B) % 2 == 0


def _dot(one: Any, other: Any) -> Any:
    # Not jnp.vdot, which accelerators compute in half precision.
    products = jax.tree.map(lambda a, b: (a * b).sum(), one, other)
    return sum(jax.tree.leaves(products))
