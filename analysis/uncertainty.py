"""Uncertainty of scores: the score of a search by its number of trials, and matched-seed effects.

`score_by_trials` resamples a condition's counted trials with replacement, like expected validation
performance (Dodge et al. 2019, arXiv 1909.03004); the bias of this estimate is smaller than the
variance it saves (Dodge et al. 2021, arXiv 2110.00613). It gives quantiles in place of the mean
(Lourie et al. 2024, arXiv 2311.09480), which include trials that never reach the target.

`paired_effects` compares trials with matched seeds by the sign test, which only needs to know which
side of a pair was ahead. docs/statistics.md says what each interval covers;
`python -m benchmarks.coverage` measures how often it does.
"""

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike
from scipy import special

from analysis import bounds
from analysis.scores import is_shared, matchable
from runs.study import SECONDS, Study

LEVEL = 0.9  # share of resampled searches in the band of `score_by_trials`
PAIRED_LEVEL = 0.95  # confidence level of `paired_effects`
MIN_PAIRS = 10  # pairs in which a side reached the target; with fewer there is no interval
_SIGNIFICANCE = 0.05  # for Holm-adjusted p-values


def trial_scores(trials: pd.DataFrame, study: Study) -> pd.Series:
    """The score of each trial; missing if it did not reach the target."""
    return trials[study.score_column].astype(float)


def trial_bounds(trials: pd.DataFrame, study: Study) -> tuple[pd.Series, pd.Series]:
    """(low, high): what each trial took to reach the target is above low and at most high.

    A trial reached the target after the evaluation before the one that scored. A trial that never
    reached it would have taken more than it had used at its end. For best values, low = high.
    """
    scores = trial_scores(trials, study)
    if study.scores_values:
        return scores, scores
    at_end = trials["train_seconds" if study.score == SECONDS else "fresh_examples"]
    before = trials[f"{study.score}_before_target"].astype(float)
    low = before.where(scores.notna(), at_end.astype(float).fillna(0.0))
    return low, scores.fillna(math.inf)


def score_by_trials(trials: pd.DataFrame, study: Study) -> pd.DataFrame:
    """The score of a search of n trials, for n up to the size of the largest search.

    The counted trials of all searches of a condition are one sample, and a search of n trials is n
    draws from it with replacement. Quantile q of the best of n is element
    ceil(N (1 - (1 - q)^(1/n))) of the N sorted scores, so nothing is simulated. The band holds the
    middle LEVEL of such resampled searches. It is not a confidence interval for a score or a
    difference, and is too narrow when n is close to the number of trials.

    Returns:
        One row per condition and n: condition, label, insertion, trials (n), score (the median),
        low, high (ends of the band); infinite if the target would not be reached, or there would be
        no value. `beyond` is what the trials that did not reach the target had used, a lower bound
        of such scores; missing for best values.
    """
    down = study.higher_is_better
    ends, _ = trial_bounds(trials, study)
    rows = []
    for condition, group in trials[trials["counted"]].groupby("condition", sort=False):
        scores = trial_scores(group, study)
        missed = ends.loc[group.index][scores.isna()].min()
        scores = scores.fillna(-math.inf if down else math.inf)
        best_first = scores.sort_values(ascending=not down).to_numpy()
        for n in range(1, int(group.groupby("search").size().max()) + 1):
            quantiles = [best_of(best_first, n, q) for q in (0.5, 0.5 - LEVEL / 2, 0.5 + LEVEL / 2)]
            rows.append(
                {"condition": condition, "trials": n}
                | {name: group[name].iloc[0] for name in ("label", "insertion")}
                | {"score": quantiles[0], "low": min(quantiles[1:]), "high": max(quantiles[1:])}
                | {"beyond": missed}
            )
    columns = ["condition", "label", "insertion", "trials", "score", "low", "high", "beyond"]
    return pd.DataFrame(rows, columns=columns)


def best_of(best_first: np.ndarray, n: int, quantile: float) -> float:
    """A quantile of the best of n draws, with replacement, from sorted scores, best first."""
    share = 1 - (1 - quantile) ** (1 / n)
    return best_first[math.ceil(len(best_first) * share - 1e-9) - 1]


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
    paired_up = trials["counted"] & low.notna()
    if study.score == SECONDS:
        paired_up = paired_up & ~is_shared(trials)
    counted, key = matchable(trials, paired_up)
    counted = counted[["condition", "label", "insertion", *key]].assign(low=low, high=high)
    tables = []
    for condition in study.conditions:
        baseline = study.baseline_of(condition)
        if baseline is not None and baseline != condition.name:
            tables.append(paired(counted, condition.name, baseline, key, study))
    columns = ["condition", "label", "insertion", "search", "reached", "baseline_reached"]
    columns += ["effect_low", "effect_high"]
    if not tables:
        return pd.DataFrame(columns=columns)
    return pd.concat(tables)[columns].reset_index(drop=True)


def paired(
    trials: pd.DataFrame, condition: str, baseline: str, key: Sequence[str], study: Study
) -> pd.DataFrame:
    """Pairs of trials of two conditions that agree in the columns `key`. `trials` has the columns
    low and high (`trial_bounds`). One row per pair, with at least the columns of `pairs`."""
    own, base = (trials[trials["condition"] == name] for name in (condition, baseline))
    both = own.merge(base[[*key, "low", "high"]], on=list(key), suffixes=("", "_of_baseline"))
    low, high, base_low, base_high = (
        both[name].to_numpy(float)
        for name in ("low", "high", "low_of_baseline", "high_of_baseline")
    )
    compare = bounds.difference if study.scores_values else bounds.ratio
    effect_low, effect_high = compare((low, high), (base_low, base_high))
    return both.assign(
        reached=np.isfinite(high),
        baseline_reached=np.isfinite(base_high),
        effect_low=effect_low,
        effect_high=effect_high,
    )


def pairs_between(trials: pd.DataFrame, study: Study, condition: str, other: str) -> pd.DataFrame:
    """Pairs of counted trials of any two conditions with equal numbers of search and trial, which
    have the same seeds. One row per pair, with at least the columns of `pairs`."""
    low, high = trial_bounds(trials, study)
    counted = trials[trials["counted"]].assign(low=low, high=high)
    return paired(counted, condition, other, ["search", "trial"], study)


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
    tried = np.empty(2 * len(ends) + 1)
    tried[1::2], tried[0], tried[-1] = ends, first, ends[-1] + 1
    tried[2:-1:2] = (ends[:-1] + ends[1:]) / 2
    left, right = tried.copy(), tried.copy()  # the range that each point stands for
    left[::2], right[::2] = [floor, *ends], [*ends, math.inf]
    below, above = signs(lows, highs, tried)
    kept = sign_test(below, above) > 1 - level
    even = below == above
    if not even.any():  # the signs change at a point that several pairs share
        turn = np.argmax(below > above)
        balance = left[turn], left[turn]
    else:
        balance = left[even].min(), right[even].max()
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


def pairs_used(
    lows: ArrayLike, highs: ArrayLike, low: float, high: float, floor: float = 0.0
) -> int:
    """How many pairs have a sign at an end of an interval of `sign_interval`.

    The others would not change it. At an open end, which may be NaN, these are the pairs with a
    sign at any effect that is small or large enough.
    """
    lows, highs = np.asarray(lows, float), np.asarray(highs, float)
    largest = np.finfo(float).max
    smallest = np.nextafter(0.0, 1.0) if floor == 0 else -largest
    signed = np.zeros(len(lows), bool)
    for end in (low if low > floor else smallest, high if high < math.inf else largest):
        signed |= np.where(lows == highs, lows != end, (highs <= end) | (lows >= end))
    return int(signed.sum())


def holm(p: ArrayLike) -> np.ndarray:
    """p-values adjusted for multiple comparisons by the step-down method of Holm (1979)."""
    values = np.asarray(p, float)
    order = np.argsort(values, kind="stable")
    steps = np.maximum.accumulate(values[order] * (len(values) - np.arange(len(values))))
    adjusted = np.empty(len(values))
    adjusted[order] = np.minimum(1.0, steps)
    return adjusted


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
        effect_low, effect_high (bounds of the effect at which the signs balance); low, high (the
        interval at PAIRED_LEVEL, missing with fewer than MIN_PAIRS pairs in which a side reached
        the target); used (`pairs_used` by the interval, or by one that is open without it); p
        (two-sided, of no effect; missing likewise), p_holm (adjusted for the conditions of the
        study), verdict; searches_below, searches_above.
    """
    differ = study.scores_values
    none, floor = (0.0, -math.inf) if differ else (1.0, 0.0)
    rows = []
    for condition, group in paired.groupby("condition", sort=False):
        lows, highs = (group[name].to_numpy(float) for name in ("effect_low", "effect_high"))
        own, base = group["reached"].astype(bool), group["baseline_reached"].astype(bool)
        below, above = (int(count) for count in signs(lows, highs, none))
        low, high, *balance = sign_interval(lows, highs, floor)
        if (own | base).sum() < MIN_PAIRS:
            low, high = math.nan, math.nan
        rows.append(
            {"condition": condition}
            | {name: group[name].iloc[0] for name in ("label", "insertion")}
            | {"pairs": int((own & base).sum()), "condition_alone": int((own & ~base).sum())}
            | {"baseline_alone": int((base & ~own).sum()), "neither": int((~own & ~base).sum())}
            | {"below": below, "above": above}
            | _point(balance[0], balance[1], differ)
            | {"low": low, "high": high, "used": pairs_used(lows, highs, low, high, floor)}
            | {"p": math.nan if math.isnan(low) else float(sign_test(below, above))}
            | _by_search(group, none)
        )
    columns = ["condition", "label", "insertion", "pairs", "condition_alone", "baseline_alone"]
    columns += ["neither", "below", "above", "effect_low", "effect_high", "low", "high", "used"]
    columns += ["p"]
    table = pd.DataFrame(rows, columns=[*columns, "searches_below", "searches_above"])
    # A condition with too few pairs still belongs to the family of tests.
    table["p_holm"] = holm(table["p"].fillna(1.0)) if len(table) else []
    table["p_holm"] = table["p_holm"].where(table["p"].notna())
    below_verdict, above_verdict = verdicts(study)
    side = np.where(table["below"] > table["above"], below_verdict, above_verdict)
    table["verdict"] = np.where(table["p_holm"] < _SIGNIFICANCE, side, "undecided")
    return table


def middle(low: float, high: float, *, differ: bool = False) -> float:
    """The effect at which the signs balance: the middle of a bounded range of ratios (or of
    differences). Beyond the last sign they balance, too, but that range ends at an extreme pair and
    bounds nothing: NaN."""
    if not (math.isfinite(low) and math.isfinite(high) and (differ or low > 0)):
        return math.nan
    return (low + high) / 2 if differ else math.sqrt(low * high)


def _point(low: float, high: float, differ: bool) -> dict[str, float]:
    """The middle as bounds; an open range if it is not known."""
    effect = middle(low, high, differ=differ)
    low, high = (-math.inf if differ else 0.0, math.inf) if math.isnan(effect) else (effect, effect)
    return {"effect_low": low, "effect_high": high}


def _by_search(group: pd.DataFrame, none: float) -> dict[str, int]:
    """In how many searches most pairs lie below no effect, and above it; searches share no data
    seed."""
    ahead = []
    for _, own in group.groupby("search"):
        below, above = signs(own["effect_low"].to_numpy(), own["effect_high"].to_numpy(), none)
        ahead.append(int(below) - int(above))
    return {
        "searches_below": sum(lead > 0 for lead in ahead),
        "searches_above": sum(lead < 0 for lead in ahead),
    }
