"""The effect of a condition over pairs of trials with matched seeds, by the sign test.

The test only needs to know which side of a pair was ahead, so it uses pairs of which one side never
reached the target. docs/statistics.md says what each interval covers; `python -m
benchmarks.coverage` measures how often it does.
"""

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy import special

from analysis import bounds
from analysis.load import hyperparameters
from analysis.scores import is_shared
from runs.study import SECONDS, Study

PAIRED_LEVEL = 0.95  # confidence level of `paired_effects`
MIN_PAIRS = 10  # pairs in which a side reached the target; with fewer there is no interval
_SIGNIFICANCE = 0.05  # for Holm-adjusted p-values
_COLUMNS = ["condition", "label", "insertion", "search", "reached", "baseline_reached"]
_COLUMNS += ["effect_low", "effect_high"]


def trial_bounds(trials: pd.DataFrame, study: Study) -> tuple[pd.Series, pd.Series]:
    """(low, high): what each trial took to reach the target is above low and at most high.

    A trial reached the target after the evaluation before the one that scored. A trial that never
    reached it would have taken more than it had used at its end. For best values, low = high.
    """
    scores = trials[study.score_column].astype(float)
    if study.scores_values:
        return scores, scores
    at_end = trials["train_seconds" if study.score == SECONDS else "fresh_examples"]
    before = trials[f"{study.score}_before_target"].astype(float)
    low = before.where(scores.notna(), at_end.astype(float).fillna(0.0))
    return low, scores.fillna(math.inf)


def pairs(trials: pd.DataFrame, study: Study) -> pd.DataFrame:
    """Pairs of counted trials of a condition and its baseline with matched seeds (data and model)
    and the same hyperparameters, so that they compare conditions without the effect of tuning.

    Each condition must have exactly one such trial. If seconds are scored, trials that shared input
    or cores with others form no pairs.

    Returns:
        One row per pair: condition, label, insertion, search, reached, baseline_reached,
        effect_low, effect_high: bounds of the ratio of the two (the difference of best values); 0
        if the baseline did not reach the target, infinite if the condition did not.
    """
    low, high = trial_bounds(trials, study)
    usable = trials["counted"] & low.notna() & trials["model_seed"].notna()
    if study.score == SECONDS:
        usable &= ~is_shared(trials)
    key = ["search", "model_seed", *hyperparameters(trials)]  # a search has one data seed
    own = trials.assign(low=low, high=high)[usable]
    own = own.drop_duplicates(["condition", *key], keep=False)
    baselines = {c.name: study.baseline_of(c) for c in study.conditions}
    tables = [
        _paired(own, name, baseline, key, study)
        for name, baseline in baselines.items()
        if baseline not in (None, name)
    ]
    return pd.concat(tables, ignore_index=True) if tables else pd.DataFrame(columns=_COLUMNS)


def pairs_between(trials: pd.DataFrame, study: Study, condition: str, other: str) -> pd.DataFrame:
    """Pairs of counted trials of any two conditions with equal numbers of search and trial, which
    have the same seeds. One row per pair, with the columns of `pairs` and the number `trial`."""
    low, high = trial_bounds(trials, study)
    counted = trials[trials["counted"]].assign(low=low, high=high)
    return _paired(counted, condition, other, ["search", "trial"], study)


def _paired(
    trials: pd.DataFrame, condition: str, other: str | None, key: Sequence[str], study: Study
) -> pd.DataFrame:
    """Pairs of trials of two conditions that agree in the columns `key`; `trials` has the columns
    low and high (`trial_bounds`)."""
    own, base = (trials[trials["condition"] == name] for name in (condition, other))
    both = own.merge(base[[*key, "low", "high"]], on=list(key), suffixes=("", "_of_other"))
    low, high, other_low, other_high = (
        both[name].to_numpy(float) for name in ("low", "high", "low_of_other", "high_of_other")
    )
    compare = bounds.difference if study.scores_values else bounds.ratio
    effect_low, effect_high = compare((low, high), (other_low, other_high))
    both = both.assign(
        reached=np.isfinite(high),
        baseline_reached=np.isfinite(other_high),
        effect_low=effect_low,
        effect_high=effect_high,
    )
    return both[list(dict.fromkeys([*_COLUMNS, *key]))]


def signs(lows: ArrayLike, highs: ArrayLike, null: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """How many effects lie below each value of `null`, and how many above it.

    An effect with unequal bounds lies strictly between them. One that may lie on either side counts
    for neither. For ratios this compares T_condition / null with T_baseline, both censored where
    the first of the two is.
    """
    lows, highs = np.asarray(lows, float), np.asarray(highs, float)
    known = lows == highs
    values, lows, highs = np.sort(lows[known]), np.sort(lows[~known]), np.sort(highs[~known])
    below = np.searchsorted(values, null, "left") + np.searchsorted(highs, null, "right")
    not_above = np.searchsorted(values, null, "right") + np.searchsorted(lows, null, "left")
    return below, len(values) + len(lows) - not_above


def sign_test(below: ArrayLike, above: ArrayLike) -> np.ndarray:
    """Two-sided exact p-values of the sign test: `scipy.stats.binomtest`, for arrays of counts."""
    few = np.minimum(below, above)
    return np.minimum(1.0, 2 * special.bdtr(few, np.add(below, above), 0.5))


def sign_interval(
    lows: ArrayLike, highs: ArrayLike, floor: float = 0.0, level: float = PAIRED_LEVEL
) -> tuple[float, float, float, float]:
    """The effects that the sign test does not reject, and those at which the signs balance.

    As a hypothetical effect grows, it lies above more pairs and below fewer, so the effects that
    are not rejected form an interval. Without censoring it is the interval of the median between
    two order statistics, and the signs balance at the median.

    Args:
        lows, highs: bounds of each pair's effect.
        floor: the smallest possible effect: 0 for ratios, -inf for differences.
        level: confidence level.

    Returns:
        (low, high) of the interval, and (low, high) of the balance; an open end is floor or inf.
    """
    ends = np.unique(np.concatenate([np.asarray(lows, float), np.asarray(highs, float)]))
    ends = ends[np.isfinite(ends) & (ends > floor)]
    if not len(ends):
        return floor, math.inf, floor, math.inf
    # Signs change only at these ends: test them, and a point before, between, and after them.
    first = ends[0] / 2 if floor == 0 else ends[0] - 1
    between = [first, *(ends[:-1] + ends[1:]) / 2, ends[-1] + 1]
    below, above = signs(lows, highs, np.sort([*ends, *between]))
    # The range that each of these points stands for.
    left, right = np.repeat([floor, *ends], 2)[1:], np.repeat([*ends, math.inf], 2)[:-1]
    kept, even = sign_test(below, above) > 1 - level, below == above
    if even.any():
        balance = left[even].min(), right[even].max()
    else:  # the signs change at a point that several pairs share
        balance = (left[np.argmax(below > above)],) * 2
    if not kept.any():  # effects below a value that many pairs share are rejected, and above it
        return *balance, *balance
    return left[kept].min(), right[kept].max(), *balance


def ratio_of_ratios(
    own: tuple[ArrayLike, ArrayLike], base: tuple[ArrayLike, ArrayLike]
) -> tuple[float, float, float, float]:
    """The ratio of two effects that are ratios, each of its own pairs.

    The interval is the quotient of the effects' intervals at 1 - (1 - PAIRED_LEVEL) / 2. Whatever
    is censored, it covers at PAIRED_LEVEL at least (Bonferroni). The signs of quotients of four
    trials would not: of these, one needs other trials to reach the target than the other.

    Args:
        own, base: bounds of the effects of the pairs, (lows, highs).

    Returns:
        As `sign_interval`.
    """
    level = 1 - (1 - PAIRED_LEVEL) / 2
    ends = [sign_interval(*effects, level=level) for effects in (own, base)]
    low, high = bounds.ratio(ends[0][:2], ends[1][:2])
    balance = bounds.ratio(ends[0][2:], ends[1][2:])
    return float(low), float(high), float(balance[0]), float(balance[1])


def holm(p: ArrayLike) -> np.ndarray:
    """p-values adjusted for multiple comparisons by the step-down method of Holm (1979)."""
    values = np.asarray(p, float)
    order = np.argsort(values, kind="stable")
    adjusted = np.empty(len(values))
    steps = values[order] * np.arange(len(values), 0, -1)
    adjusted[order] = np.minimum(1.0, np.maximum.accumulate(steps))
    return adjusted


def middle(low: float, high: float, *, differ: bool = False) -> float:
    """The effect at which the signs balance: the middle of a bounded range of ratios (or of
    differences). Beyond the last sign they balance, too, but that range ends at an extreme pair and
    bounds nothing: NaN."""
    if not (math.isfinite(low) and math.isfinite(high) and (differ or low > 0)):
        return math.nan
    return (low + high) / 2 if differ else math.sqrt(low * high)


def verdicts(study: Study) -> tuple[str, str]:
    """What a condition with an effect below and above "none" is called."""
    if study.scores_values:
        return "lower", "higher"
    return ("faster", "slower") if study.score == SECONDS else ("fewer", "more")


def paired_effects(paired: pd.DataFrame, study: Study) -> pd.DataFrame:
    """The effect of each condition over pairs of trials, by the sign test with censored pairs.

    The test assumes independent signs. Pairs of one search share their data seed, so the table
    also counts the searches in which most pairs fall on each side.

    Returns:
        One row per condition: condition, label, insertion; pairs (both reached), condition_alone,
        baseline_alone, neither; below, above (pairs decided on either side of no effect);
        effect_low, effect_high (the effect at which the signs balance, twice, or an open range if
        it is not known); low, high (the interval at PAIRED_LEVEL, missing with fewer than MIN_PAIRS
        pairs in which a side reached the target); p (two-sided, of no effect; missing likewise),
        searches_below, searches_above, p_holm (adjusted for the conditions of the study), verdict.
    """
    groups = [group for _, group in paired.groupby("condition", sort=False)]
    columns = ["condition", "label", "insertion", "pairs", "condition_alone", "baseline_alone"]
    columns += ["neither", "below", "above", "effect_low", "effect_high", "low", "high"]
    columns += ["p", "searches_below", "searches_above"]
    table = pd.DataFrame([_effect_row(group, study) for group in groups], columns=columns)
    # A condition with too few pairs still belongs to the family of tests.
    table["p_holm"] = pd.Series(holm(table["p"].fillna(1.0))).where(table["p"].notna())
    below, above = verdicts(study)
    side = np.where(table["below"] > table["above"], below, above)
    table["verdict"] = np.where(table["p_holm"] < _SIGNIFICANCE, side, "undecided")
    return table


def _effect_row(group: pd.DataFrame, study: Study) -> dict[str, object]:
    none, floor = (0.0, -math.inf) if study.scores_values else (1.0, 0.0)
    lows, highs = (group[name].to_numpy(float) for name in ("effect_low", "effect_high"))
    own, base = group["reached"].astype(bool), group["baseline_reached"].astype(bool)
    below, above = (int(count) for count in signs(lows, highs, none))
    low, high, *balance = sign_interval(lows, highs, floor)
    effect = middle(*balance, differ=study.scores_values)
    enough = (own | base).sum() >= MIN_PAIRS
    if not enough:
        low = high = math.nan
    searches = group["search"].to_numpy()  # no two of them share a data seed
    leads = [
        np.subtract(*signs(lows[searches == search], highs[searches == search], none))
        for search in np.unique(searches)
    ]
    return {
        **{name: group[name].iloc[0] for name in ("condition", "label", "insertion")},
        "pairs": int((own & base).sum()),
        "condition_alone": int((own & ~base).sum()),
        "baseline_alone": int((base & ~own).sum()),
        "neither": int((~own & ~base).sum()),
        "below": below,
        "above": above,
        "effect_low": floor if math.isnan(effect) else effect,
        "effect_high": math.inf if math.isnan(effect) else effect,
        "low": low,
        "high": high,
        "p": float(sign_test(below, above)) if enough else math.nan,
        "searches_below": sum(lead > 0 for lead in leads),
        "searches_above": sum(lead < 0 for lead in leads),
    }
