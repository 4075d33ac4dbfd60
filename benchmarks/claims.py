"""The claims about echoing, and how each is judged on each problem from the published records.

The effect is that with matched seeds and its 95% interval by the sign test (docs/statistics.md). A
claim is reproduced if the effect with matched seeds and the tuned ratios of all searches (of
further searches, a sign test over them) agree with it, not reproduced if both contradict it, and
undecided otherwise. The effect agrees or contradicts by the verdict of the report, which is
adjusted for the conditions on its page; where other conditions are compared than with the baseline,
by the unadjusted sign test.
"""

# pandas has no complete type stubs.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false
# pyright: reportGeneralTypeIssues=false, reportReturnType=false, reportCallIssue=false

import collections
import dataclasses
import functools
import math
import pathlib
from collections.abc import Callable, Mapping

import numpy as np
import pandas as pd
from scipy import stats

from analysis import archive, bounds, load, scores, tables, uncertainty
from configs import problems

RECORDS = pathlib.Path(__file__).parents[1] / "results" / archive.TRIALS


@dataclasses.dataclass(frozen=True)
class Cell:
    """A claim on one problem.

    Attributes:
        effect, low, high: a ratio with matched seeds, or a difference of best values, and its
            interval; NaN where there are too few pairs.
        tuned: the ratio of tuned conditions with its range, as the report prints it.
        verdict: "reproduced", "not reproduced", or "undecided".
        differs: whether the effect is a difference.
        bounded: the compared conditions that are bounded by the search space; see `_bounded`.
        p: of the sign test of no effect, not adjusted; NaN where there are too few pairs, or none.
    """

    effect: float
    low: float
    high: float
    tuned: str
    verdict: str
    differs: bool = False
    bounded: str = "-"
    p: float = math.nan

    def __str__(self) -> str:
        number = "{:+.3f}".format if self.differs else "{:.2f}".format
        effect = "-" if math.isnan(self.effect) else number(self.effect)
        if math.isnan(self.low):
            return effect
        low = "-" if self.low == 0 and not self.differs else number(self.low)
        return f"{effect} [{low}, {'-' if math.isinf(self.high) else number(self.high)}]"


VERDICTS = ("reproduced", "not reproduced", "undecided")
Problems = Mapping[str, Callable[[], Cell]]


@functools.cache
def loaded(study: str) -> load.LoadedStudy:
    """A study of results/trials.parquet, such as grid/digits or further/quality."""
    return load.read(RECORDS, study=study)


def against_none(study: str, condition: str) -> Callable[[], Cell]:
    """A condition against no echoing; the claim is a smaller score, or no worse a best value."""

    def cell() -> Cell:
        trials, plan = loaded(study).trials, loaded(study).study
        effects = uncertainty.paired_effects(uncertainty.pairs(trials, plan), plan)
        matched = effects.set_index("condition").loc[condition]
        own = scores.condition_scores(trials, plan).set_index("condition", drop=False)
        row = own.loc[condition].to_dict()
        name = scores.EFFECTS[plan.score]
        tuned, none = scores.summary_of(row, name), 0.0 if plan.scores_values else 1.0
        below, above = uncertainty.verdicts(plan)
        sides = (
            matched["verdict"] == below and tuned.max < none,
            matched["verdict"] == above and tuned.min > none,
        )
        rises = plan.scores_values and plan.target.mode == "above"
        claimed, contrary = sides[::-1] if rises else sides
        text = tables.effect_text(row, name)
        decided = _cell(matched, text, claimed, contrary, plan.scores_values)
        baseline = plan.baseline_of(plan.condition(condition)) or ""
        return _of_conditions(decided, study, condition, baseline)

    return cell


def between(study: str, condition: str, other: str) -> Callable[[], Cell]:
    """A condition against another one; the claim is that it needs fewer fresh examples."""

    def cell() -> Cell:
        effects = uncertainty.paired_effects(_pairs(study, condition, other), loaded(study).study)
        decided = _by_sign_test(effects.iloc[0], _tuned(study, condition, other))
        return _of_conditions(decided, study, condition, other)

    return cell


def relative(study: str, own: tuple[str, str], base: tuple[str, str]) -> Callable[[], Cell]:
    """The ratio of two conditions over that of two others; the claim is that it is below 1."""

    def cell() -> Cell:
        effect, below, above = _matched_ratio(study, own, base)
        tuned = _compared(_tuned(study, *own), _tuned(study, *base))
        return _of_conditions(_judged(effect, tuned, below, above), study, *own, *base)

    return cell


def at_winners(study: str, own: tuple[str, str], base: tuple[str, str]) -> Callable[[], Cell]:
    """The ratio of two conditions over that of two others, all at fixed hyperparameters, so that
    only matched seeds judge it; the claim is that it is below 1."""

    def cell() -> Cell:
        effect, below, above = _matched_ratio(study, own, base)
        return _cell(effect, "", below, above)

    return cell


def further(
    name: str, own: tuple[str, str], base: tuple[str, str] | None = None
) -> Callable[[], Cell]:
    """A comparison with the searches of benchmarks.further_searches: of two conditions, or of two
    such ratios. The claim is that it is below 1, or, of best values, no worse; a sign test over
    searches, and one over pairs, must agree with it."""

    def cell() -> Cell:
        study = f"further/{name}"
        plan, tuned = loaded(study).study, _tuned(study, *own)
        none, floor = (0.0, -math.inf) if plan.scores_values else (1.0, 0.0)
        if base:
            tuned = _compared(tuned, _tuned(study, *base))
            effect, *sides = _matched_ratio(study, own, base)
        else:
            effect = uncertainty.paired_effects(_pairs(study, *own), plan).iloc[0]
            sides = _sides(effect)
        ends = tuned["low"].to_numpy(float), tuned["high"].to_numpy(float)
        below, above = uncertainty.signs(*ends, none)
        p = uncertainty.sign_test(below, above)
        searched = _sides({"p": p, "below": below, "above": above})
        low, high, *balance = uncertainty.sign_interval(*ends, floor)
        number = "{:+.4f}".format if plan.scores_values else "{:.2f}".format
        text = f"{bounds.text(*balance, number, floor)} [{number(low)}, {number(high)}]"
        smaller, larger = (a and b for a, b in zip(sides, searched, strict=True))
        claimed, contrary = (larger, smaller) if plan.higher_is_better else (smaller, larger)
        decided = _cell(effect, text, claimed, contrary, plan.scores_values)
        return _of_conditions(decided, study, *own, *(base or ()))

    return cell


def convex(
    batch_size: int, factor: int, other: int, bound: float, below: bool, study: str = "regimes"
) -> Callable[[], Cell]:
    """The rules of results/protocol.md for the convex problem: a ratio is below `bound`, or it is
    not."""

    def cell() -> Cell:
        runs = convex_runs(study)
        low, high, effect = convex_ratio(runs, batch_size, factor, other)
        claimed, contrary = high <= bound, low > bound
        if not below:
            claimed, contrary = low >= bound, high < bound
        return Cell(effect, low, high, "", _verdict(claimed, contrary))

    return cell


def convex_slopes(small: int, large: int, steep: float, flat: float) -> Callable[[], Cell]:
    """The rule of results/protocol.md for the slopes of the tuned learning rate at two batch sizes;
    the effect is the slope at the smaller one."""

    def cell() -> Cell:
        runs = convex_runs("regimes")
        falls, stays = (convex_slope(runs, size) for size in (small, large))
        verdict = _verdict(falls <= steep and stays >= flat, falls > steep and stays < flat)
        text = f"{stays:+.2f} at {large}"
        return Cell(falls, math.nan, math.nan, text, verdict, differs=True)

    return cell


def by_mean_curves(problem: str, own: int, base: int) -> Callable[[], Cell]:
    """Whether a factor needs fewer fresh examples than another by curves averaged over seeds; NaN
    where its curve does not reach the value."""

    def cell() -> Cell:
        curves, level = mean_curves(problem)
        ratio = mean_ratio(curves, (own, base), level)
        if ratio is None:
            return Cell(math.nan, math.nan, math.nan, "", "undecided")
        value = ratio.value if math.isfinite(ratio.value) else math.nan
        return Cell(value, ratio.low, ratio.high, "", ratio.verdict)

    return cell


# --- curves averaged over seeds, and the convex problem


_RESAMPLES, _INTERVAL = 10_000, 0.95
_STEP = 0.005  # of the values of a metric at which curves are compared
_BELOW_PLATEAU = 2  # steps between that value and the one that no echoing reaches
MEAN_FACTORS = (2, 4, 16)
Curves = tuple[np.ndarray, np.ndarray]  # fresh examples [evaluations], means [curves, evaluations]
MEAN_PROBLEMS = ("logistic", "digits", "mnist", "cells")


@functools.cache
def mean_curves(problem: str) -> tuple[dict[int, Curves], float]:
    """By factor (1 is no echoing), the mean curve over runs with new seeds and 10,000 of a
    bootstrap over these seeds, which the factors share; and the value at which they are compared.

    results/protocol.md fixes that value: for logistic regression, the largest multiple of 0.005
    that the curve of no echoing reaches within two thirds of the budget; for the others, two steps
    below the one that a candidate of no echoing reaches."""
    size = problems.PROBLEMS[problem].batch_sizes[0]
    budget = problems.PROBLEMS[problem].budget
    names = {e: f"before_augmentation_e{e}_b{size}" for e in MEAN_FACTORS}
    table = archive.curves(RECORDS, f"mean_curves/{problem}")
    runs = {
        e: table[table["condition"] == name]
        .pivot(index="search", columns="fresh_examples", values="value")
        .dropna()
        for e, name in ({1: f"baseline_b{size}"} | names).items()
    }
    if problem == "logistic":
        best, below = runs[1].mean(), 0
    else:
        table = archive.curves(RECORDS, f"mean_curves/{problem}/candidates")
        own = table[table["condition"].str.startswith("baseline")]
        best, below = own.set_index("fresh_examples")["value"], _BELOW_PLATEAU
    plateau = math.floor(best[best.index <= budget * 2 / 3].max() / _STEP + 1e-9)
    rng = np.random.default_rng(0)
    seeds = len(runs[1])
    drawn = rng.integers(seeds, size=(_RESAMPLES, seeds))
    counts = np.stack([np.bincount(row, minlength=seeds) for row in drawn])
    weights = np.concatenate([np.full((1, seeds), 1 / seeds), counts / seeds])
    curves = {e: (own.columns.to_numpy(float), weights @ own.to_numpy()) for e, own in runs.items()}
    return curves, (plateau - below) * _STEP


def reaches(fresh: np.ndarray, means: np.ndarray, level: float) -> np.ndarray:
    """Fresh examples at which mean curves first reach a level, interpolated linearly; inf if they
    do not.

    Args:
        fresh: float [evaluations], increasing.
        means: float [curves, evaluations].
        level: of the accuracy.

    Returns: float [curves].
    """
    hit = means >= level - 1e-9  # a mean that equals the level, however it was rounded
    last = hit.argmax(axis=1)
    before = np.maximum(last - 1, 0)
    rows = np.arange(len(means))
    low, high = means[rows, before], means[rows, last]
    part = np.where(last > 0, (level - low) / np.where(high > low, high - low, 1.0), 1.0)
    scores = fresh[before] + part * (fresh[last] - fresh[before])
    return np.where(hit.any(axis=1), scores, math.inf)


@dataclasses.dataclass(frozen=True)
class Ratio:
    """Fresh examples of one condition over those of another, with its interval. A curve that does
    not reach the level needs more fresh examples than its runs had.

    Attributes:
        value: inf if the condition does not reach the level.
        least: the value, or what it exceeds.
        low, high: the interval; 0 or inf at an end that is not known.
    """

    value: float
    least: float
    low: float
    high: float

    @property
    def verdict(self) -> str:
        """By the ends as they are printed: the resamples that were drawn move an end by about
        0.005."""
        if round(self.high, 2) < 1:
            return "reproduced"
        return "not reproduced" if round(self.low, 2) > 1 else "undecided"

    def __str__(self) -> str:
        value = f"{self.value:.2f}" if math.isfinite(self.value) else f">{self.least:.2f}"
        low = f"{self.low:.2f}" if self.low > 0 else "-"
        high = f"{self.high:.2f}" if math.isfinite(self.high) else "-"
        return f"{value} [{low}, {high}]"


def mean_ratio(curves: dict[int, Curves], factors: tuple[int, int], level: float) -> Ratio | None:
    """The ratio at a level, with the percentile interval of the resampled curves; None where the
    other factor's mean curve does not reach the level."""
    own, base = (reaches(*curves[e], level) for e in factors)
    if math.isinf(base[0]):
        return None
    own_end, base_end = (curves[e][0][-1] for e in factors)
    least = np.minimum(own, own_end) / base
    most = np.where(np.isfinite(own), own, math.inf) / np.minimum(base, base_end)
    tail = (1 - _INTERVAL) / 2
    low = np.quantile(least[1:], tail, method="nearest")
    high = np.quantile(most[1:], 1 - tail, method="nearest")
    return Ratio(most[0], least[0], low, high)


def convex_runs(study: str) -> pd.DataFrame:
    """The runs of the convex problem, `regimes` or `further`: batch_size, factor, seed, rate,
    tuning (whether the run chose the rate), batches_before and batches (fresh batches at the last
    evaluation above the threshold and at the first one below it)."""
    runs = archive.rows(RECORDS, f"convex/{study}")
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


def convex_ratio(
    runs: pd.DataFrame, batch_size: int, factor: int, other: int
) -> tuple[float, float, float]:
    """(low, high, balance) of the fresh examples of `factor` over those of `other` on the same
    batches, from the runs that did not choose the rate; see `uncertainty.sign_interval`."""
    own, base = (
        runs[~runs["tuning"] & (runs["batch_size"] == batch_size) & (runs["factor"] == value)]
        .set_index("seed")[["batches_before", "batches"]]
        .sort_index()
        for value in (factor, other)
    )
    base = base.reindex(own.index)
    ratios = bounds.ratio(*((side["batches_before"], side["batches"]) for side in (own, base)))
    low, high, *balance = uncertainty.sign_interval(*ratios)
    return low, high, uncertainty.middle(*balance)


def convex_slope(runs: pd.DataFrame, batch_size: int) -> float:
    """The slope of the logarithm of the tuned learning rate over that of the echo factor."""
    own = runs[runs["batch_size"] == batch_size].groupby("factor")["rate"].first()
    return float(stats.linregress(np.log(own.index), np.log(own)).slope)


# --- how a claim is judged


def _sides(test: Mapping) -> tuple[bool, bool]:
    """Whether the sign test of `p`, `below`, and `above` says that most lie below, and above."""
    differs, lead = test["p"] <= 1 - uncertainty.PAIRED_LEVEL, test["below"] - test["above"]
    return differs and lead > 0, differs and lead < 0


def _matched_ratio(
    study: str, own: tuple[str, str], base: tuple[str, str]
) -> tuple[dict[str, float], bool, bool]:
    """The ratio of two ratios with matched seeds, with its interval, and whether that lies below
    1, and above it."""
    sides = [_pairs(study, *pair) for pair in (own, base)]
    low, high, *balance = uncertainty.ratio_of_ratios(
        *((pairs["effect_low"], pairs["effect_high"]) for pairs in sides)
    )
    reached = [(pairs["reached"] | pairs["baseline_reached"]).sum() for pairs in sides]
    if min(reached) < uncertainty.MIN_PAIRS:
        low = high = math.nan
    effect = dict(zip(("effect_low", "effect_high"), balance, strict=True))
    return effect | {"low": low, "high": high}, high < 1, low > 1


def _pairs(study: str, condition: str, other: str) -> pd.DataFrame:
    return uncertainty.pairs_between(loaded(study).trials, loaded(study).study, condition, other)


def _tuned(study: str, condition: str, other: str) -> pd.DataFrame:
    """Bounds of the ratio of the two conditions' scores (the difference of best values), by
    search."""
    searches = scores.search_scores(loaded(study).trials, loaded(study).study)
    score = loaded(study).study.score
    searches = searches.assign(low=searches[f"{score}_low"], high=searches[f"{score}_high"])
    own, base = (
        searches[searches["condition"] == name].set_index("search")[["low", "high"]]
        for name in (condition, other)
    )
    values = loaded(study).study.scores_values
    return _compared(own, base, bounds.difference if values else bounds.ratio)


def _compared(
    own: pd.DataFrame, base: pd.DataFrame, effect: Callable = bounds.ratio
) -> pd.DataFrame:
    """Bounds of own / base, or of another effect, of the searches that both have."""
    both = own.merge(base, left_index=True, right_index=True, suffixes=("", "_base"))
    low, high = effect((both["low"], both["high"]), (both["low_base"], both["high_base"]))
    return pd.DataFrame({"low": low, "high": high}, index=both.index)


def _of_conditions(cell: Cell, study: str, *conditions: str) -> Cell:
    """The cell with those of the conditions that it compares that the search space bounds."""
    named = (_bounded(study, name) for name in dict.fromkeys(conditions))
    return dataclasses.replace(cell, bounded="; ".join(filter(None, named)) or "-")


@functools.cache
def _bounded(study: str, condition: str) -> str:
    """Where a condition is bounded by the search space, as results/protocol.md defines it: the best
    trials of two or more searches (of more than ten, a fifth of them) lie at one end of an axis. ""
    if it is not."""
    trials, plan = loaded(study).trials, loaded(study).study
    searches = scores.search_scores(trials, plan)
    best = scores.leaders(trials, searches[searches["condition"] == condition])
    axes = []
    for axis in plan.space:
        ends = collections.Counter(axis.near_end(value) for value in best[axis.field])
        axes += [
            f"{end} of {axis.label} in {ends[end]} of {len(best)}"
            for end in ("min", "max")
            if ends[end] >= max(2, 0.2 * len(best))
        ]
    return f"{condition}: {', '.join(axes)}" if axes else ""


def _by_sign_test(effect: Mapping, tuned: pd.DataFrame) -> Cell:
    """A ratio that the claim says is below 1, from the signs of its pairs at 1. The interval may
    end at 1 and not contain it, where several pairs tie."""
    return _judged(effect, tuned, *_sides(effect))


def _judged(effect: Mapping, tuned: pd.DataFrame, below: bool, above: bool) -> Cell:
    """A ratio that the claim says is below 1; `below` and `above` are what matched seeds say."""
    summary = bounds.summary(tuned["low"], tuned["high"])
    number = "{:.2f}".format
    text = bounds.text(summary.low, summary.high, number)
    text += f" [{bounds.range_text(summary, number)}]"
    return _cell(effect, text, below and summary.max < 1, above and summary.min > 1)


def _cell(effect, tuned: str, claimed: bool, contrary: bool, differs: bool = False) -> Cell:
    low, high = effect["effect_low"], effect["effect_high"]
    middle = low if low == high else uncertainty.middle(low, high)
    ends = float(effect["low"]), float(effect["high"])
    p = float(effect.get("p", math.nan))
    return Cell(float(middle), *ends, tuned, _verdict(claimed, contrary), differs, p=p)


def _verdict(claimed: bool, contrary: bool) -> str:
    return "reproduced" if claimed else "not reproduced" if contrary else "undecided"


def p_values(problems: Mapping[str, Cell]) -> list[str]:
    """The p-value of each cell of a claim, and that adjusted for all of them if there are several;
    "-" without one."""
    own = [cell.p for cell in problems.values()]
    adjusted = uncertainty.holm([1.0 if math.isnan(p) else p for p in own])
    several = len(own) > 1
    return [
        "-" if math.isnan(p) else f"{p:.2g}" + several * f" ({holm:.2g})"
        for p, holm in zip(own, adjusted, strict=True)
    ]


_BEFORE, _AFTER, _BATCH = (
    f"{x}_e2" for x in ("before_augmentation", "after_augmentation", "after_batching")
)
_HALF = "before_augmentation_e1.5"

# Problems of the registered grid, those of them at two batch sizes, and those that were also run
# with as many evaluations per fresh example as no echoing has.
_GRID = "documents photographs digits logistic sentences mnist cells"
_TWO_SIZES = "digits logistic sentences mnist cells"
_CADENCE = "logistic digits sentences mnist cells"


def _e(factor: int, size: int) -> str:
    return f"before_augmentation_e{factor}_b{size}"


def _each(names: str, cell: Callable[[str], Callable[[], Cell]]) -> Problems:
    """A claim on problems of the grid. Its digits and sentences have other targets and another
    protocol than "digits" and "sentences"."""
    return {
        f"grid {name}" if name in ("digits", "sentences") else name: cell(name)
        for name in names.split()
    }


def _small(problem: str) -> int:
    return problems.PROBLEMS[problem].batch_sizes[0]


def _by_mean_curves(own: int, base: int) -> Problems:
    return _each(" ".join(MEAN_PROBLEMS), lambda name: by_mean_curves(name, own, base))


def _batch(problem: str) -> str:
    return f"{_BATCH}_b{_small(problem)}"


def _four_against_16(study: str, size: int) -> Callable[[], Cell]:
    return between(study, _e(4, size), _e(16, size))


def _tolerance(study: str, size: int) -> Callable[[], Cell]:
    return relative(study, *((_e(16, own), _e(4, own)) for own in (2 * size, size)))


def _larger_batches(problem: str, size: int = 32) -> Callable[[], Cell]:
    own, base = ((f"{_BATCH}_b{b}", f"baseline_b{b}") for b in (size, size // 2))
    return relative(f"grid/batch_size_{problem}", own, base)


def _shuffled(problem: str, kind: str) -> Callable[[], Cell]:
    buffer = 256 if problem == "cells" else 1024
    return between(f"grid/shuffle_{problem}", f"{kind}_buffer_{buffer}", f"{kind}_buffer_0")


def _decay(weight_decay: float) -> Callable[[], Cell]:
    sides = [
        (f"before_augmentation_e16_decay_{decay:g}", f"baseline_decay_{decay:g}")
        for decay in (weight_decay, 0)
    ]
    return relative("grid/weight_decay_logistic", *sides)


def _decay_of_winners(weight_decay: float) -> Callable[[], Cell]:
    sides = [(f"e16_decay_{decay:g}", f"baseline_decay_{decay:g}") for decay in (weight_decay, 0)]
    return at_winners("grid/weight_decay_of_winners_sentences", *sides)


CLAIMS: dict[str, Problems] = {
    "Echoing twice before augmentation needs fewer fresh examples (fig. 4)": {
        "manual": against_none("language_insertion", _BEFORE),
        **_each(_GRID, lambda name: against_none(f"grid/{name}", _e(2, _small(name)))),
    },
    "... with no more evaluations per fresh example than no echoing": _each(
        _CADENCE, lambda name: against_none(f"grid/common_cadence_{name}", _e(2, _small(name)))
    ),
    "... by curves averaged over seeds": _by_mean_curves(2, 1),
    "... after augmentation": _each(
        "photographs digits mnist cells",
        lambda name: against_none(f"grid/{name}", f"{_AFTER}_b{_small(name)}"),
    ),
    "... after batching": {
        "manual": against_none("language_insertion", _BATCH),
        **_each(_GRID, lambda name: against_none(f"grid/{name}", _batch(name))),
    },
    "Earlier is better: before augmentation against batch echoing (fig. 4)": {
        "manual": between("language_insertion", _BEFORE, _BATCH),
        **_each(_GRID, lambda name: between(f"grid/{name}", _e(2, _small(name)), _batch(name))),
    },
    "... the same, run again on another processor": {  # the other grids gave their numbers again
        "grid digits": between(
            "grid/shuffle_digits", f"{_BEFORE}_buffer_256", f"{_BATCH}_buffer_256"
        ),
    },
    "e = 16 still needs fewer, batch size 32, documents and cells 16 (fig. 6)": {
        "digits": against_none("digits_factor", _e(16, 32)),
        "manual": against_none("language_factor", _e(16, 32)),
        "sentences": against_none("sentences_factor", _e(16, 32)),
        **_each(_GRID, lambda name: against_none(f"grid/{name}", _e(16, _small(name)))),
    },
    "... e = 16 with no more evaluations per fresh example": _each(
        _CADENCE, lambda name: against_none(f"grid/common_cadence_{name}", _e(16, _small(name)))
    ),
    "... e = 16 by curves averaged over seeds": _by_mean_curves(16, 1),
    "... twice the batch size": {
        "digits": against_none("digits_factor", _e(16, 64)),
        "sentences": against_none("sentences_factor", _e(16, 64)),
        **_each(_TWO_SIZES, lambda name: against_none(f"grid/{name}", _e(16, 2 * _small(name)))),
    },
    "Beyond e = 4, more is worse: e = 4 against 16, the same batch sizes (fig. 6)": {
        "digits": _four_against_16("digits_factor", 32),
        "manual": _four_against_16("language_factor", 32),
        "sentences": _four_against_16("sentences_factor", 32),
        **_each(_GRID, lambda name: _four_against_16(f"grid/{name}", _small(name))),
    },
    "... e = 4 against 16 with equally many evaluations per fresh example": _each(
        _CADENCE, lambda name: _four_against_16(f"grid/common_cadence_{name}", _small(name))
    ),
    "... e = 4 against 16 by curves averaged over seeds": _by_mean_curves(4, 16),
    "Larger batches tolerate larger factors: e = 16 over 4, twice the size (fig. 6)": {
        "digits": _tolerance("digits_factor", 32),
        "sentences": _tolerance("sentences_factor", 32),
        **_each(_TWO_SIZES, lambda name: _tolerance(f"grid/{name}", _small(name))),
    },
    "Larger batches help batch echoing: e = 2, twice the size (fig. 7)": {
        "documents": _larger_batches("documents", 16),
        **_each("digits logistic sentences mnist", _larger_batches),
        "cells": _larger_batches("cells", 16),
    },
    "More shuffling helps, before augmentation: 1,024 over 0, cells 256 (fig. 8)": _each(
        "digits logistic documents sentences mnist cells", lambda name: _shuffled(name, _BEFORE)
    ),
    "... after batching, as many examples in whole batches": _each(
        "digits logistic documents sentences mnist cells", lambda name: _shuffled(name, _BATCH)
    ),
    "Best value in a budget no worse, before augmentation (fig. 9; a difference)": _each(
        "documents photographs digits logistic sentences mnist cells",
        lambda name: against_none(f"grid/quality_{name}", _BEFORE),
    ),
    "... after batching (a difference, too)": _each(
        "documents digits logistic sentences mnist cells",
        lambda name: against_none(f"grid/quality_{name}", _BATCH),
    ),
    "Not only more steps: e = 2 against no echoing with as many steps": _each(
        "digits logistic",
        lambda name: between(f"grid/controls_{name}", _BEFORE, "baseline_steps_of_e2"),
    ),
    "Better than reading twice: e = 2 against copies an epoch apart": _each(
        "digits logistic", lambda name: between(f"grid/controls_{name}", _BEFORE, "spaced_epochs_2")
    ),
    "Fractional factors gain step by step: e = 1.5 against none": _each(
        "logistic sentences", lambda name: against_none(f"grid/fractions_{name}", _HALF)
    ),
    "... e = 2 against e = 1.5": _each(
        "logistic sentences", lambda name: between(f"grid/fractions_{name}", _BEFORE, _HALF)
    ),
    "Decaying factors gain more than a constant one: e = 4, then none, against 2": _each(
        "logistic sentences", lambda name: between(f"grid/decaying_{name}", "decaying", "constant")
    ),
    "... growing ones: none, then e = 4, against 2": _each(
        "logistic sentences", lambda name: between(f"grid/decaying_{name}", "growing", "constant")
    ),
    "Weight decay helps e = 16 more than no echoing: 0.001 over none": {
        "logistic": _decay(0.001),
        "grid sentences": _decay_of_winners(0.001),
    },
    "... 0.01 over none": {
        "logistic": _decay(0.01),
        "grid sentences": _decay_of_winners(0.01),
    },
    "... 0.0001 over none": {"grid sentences": _decay_of_winners(0.0001)},
    "Under AdamW with cosine decay, too, e = 2 needs fewer: batch size 32": {
        "grid sentences": against_none("grid/optimizer_b32", _BEFORE),
    },
    "... batch size 256": {"grid sentences": against_none("grid/optimizer_b256", _BEFORE)},
    "Noise limits small batches: e = 64 over 16, batch size 4 (Agarwal et al.)": {
        "logistic": convex(4, 64, 16, bound=0.8, below=False),
    },
    "Curvature limits large ones: e = 4 over 1, batch size 256 (Agarwal et al.)": {
        "logistic": convex(256, 4, 1, bound=0.35, below=True),
    },
    "The tuned rate falls like 1/e at batch size 4, not at 256: slopes (Agarwal et al.)": {
        "logistic": convex_slopes(4, 256, steep=-0.7, flat=-0.3),
    },
}
# Claims of CLAIMS that were judged again, by further searches or runs alone.
FURTHER: dict[str, Problems] = {
    "More shuffling helps, before augmentation: 1,024 over 0, cells 256 (fig. 8)": {
        "logistic": further("shuffle", (f"{_BEFORE}_buffer_1024", f"{_BEFORE}_buffer_0")),
    },
    "... after batching, as many examples in whole batches": {
        "logistic": further("shuffle", (f"{_BATCH}_buffer_1024", f"{_BATCH}_buffer_0")),
    },
    "Best value in a budget no worse, before augmentation (fig. 9; a difference)": {
        "logistic": further("quality", (_BEFORE, "baseline")),
    },
    "Better than reading twice: e = 2 against copies an epoch apart": {
        "logistic": further("controls", (_BEFORE, "spaced_epochs_2")),
    },
    "Fractional factors gain step by step: e = 1.5 against none": {
        "logistic": further("fractions", (_HALF, "baseline")),
    },
    "... e = 2 against e = 1.5": {
        "logistic": further("fractions", (_BEFORE, _HALF)),
    },
    "Decaying factors gain more than a constant one: e = 4, then none, against 2": {
        "logistic": further("decaying", ("decaying", "constant")),
    },
    "... growing ones: none, then e = 4, against 2": {
        "logistic": further("decaying", ("growing", "constant")),
    },
    "Weight decay helps e = 16 more than no echoing: 0.001 over none": {
        "logistic": further(
            "weight_decay",
            ("before_augmentation_e16_decay_0.001", "baseline_decay_0.001"),
            ("before_augmentation_e16_decay_0", "baseline_decay_0"),
        ),
    },
    "Curvature limits large ones: e = 4 over 1, batch size 256 (Agarwal et al.)": {
        "logistic": convex(256, 4, 1, bound=0.35, below=True, study="further"),
    },
}
