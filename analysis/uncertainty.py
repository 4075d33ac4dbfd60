"""How far to trust a score: what fewer trials would have given, and the effect with matched seeds.

`score_by_trials` resamples a condition's counted trials with replacement, as expected validation
performance does (Dodge et al. 2019, arXiv 1909.03004); its bias is smaller than the variance it
saves (Dodge et al. 2021, arXiv 2110.00613). It gives quantiles, not the mean (Lourie et al. 2024,
arXiv 2311.09480), so that trials that never reach the target have their place.

`paired_effects` compares trial with trial by the sign test, which needs no more of a pair than
which of its two sides was ahead. docs/statistics.md says what each interval covers, and
`python -m benchmarks.coverage` how often it does.
"""

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
from scipy import stats

from analysis.study import BEST_VALUE, SECONDS, Study

LEVEL = 0.9  # of the band around the score of a number of trials
PAIRED_LEVEL = 0.95  # of the interval of a paired comparison
FEWEST_PAIRS = 10  # with a side that reached; below this a paired comparison gives no interval
_SIGNIFICANT = 0.05  # of Holm-adjusted p-values


def trial_scores(trials: pd.DataFrame, study: Study) -> pd.Series:
    """What each trial scored, missing where it reached nothing."""
    return trials[study.score_column].astype(float)


def trial_bounds(trials: pd.DataFrame, study: Study) -> tuple[pd.Series, pd.Series]:
    """(low, high): what each trial took to the target lies above low and is at most high.

    A trial reached the target after the evaluation before the one that scored; one that never did
    would have taken more than it had used at its end. Of best values both are the value.
    """
    scores = trial_scores(trials, study)
    if study.score == BEST_VALUE:
        return scores, scores
    unit = "seconds" if study.score == SECONDS else "fresh_examples"
    at_end = trials["train_seconds" if study.score == SECONDS else unit].astype(float).fillna(0.0)
    low = trials[f"{unit}_before_target"].astype(float).where(scores.notna(), at_end)
    return low, scores.fillna(math.inf)


def score_by_trials(trials: pd.DataFrame, study: Study) -> pd.DataFrame:
    """The score of a search of n trials, for n up to the size of the largest search.

    The counted trials of all searches of a condition are one sample; a search of n trials is n
    draws from it with replacement. The quantile q of the best of n among N sorted scores is number
    ceil(N (1 - (1 - q)^(1/n))), so nothing is simulated. The band covers the middle LEVEL of such
    resampled searches: it is no confidence interval of a score, nor of a difference. It speaks of
    the score of one more search only as far as the trials at hand stand for all trials, and is too
    narrow where n is near the number of trials there are.

    Returns:
        One row per condition and n: condition, label, insertion, trials (n), score (the median),
        low, high (the ends of the band); infinite where the target would not be reached. `beyond`
        is what trials that reached nothing had used, above which such scores lie.
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
    """The quantile of the best of n draws, with replacement, from scores in order, best first."""
    share = 1 - (1 - quantile) ** (1 / n)
    return best_first[math.ceil(len(best_first) * share - 1e-9) - 1]


def pairs(trials: pd.DataFrame, study: Study) -> pd.DataFrame:
    """Counted trials beside the baseline's trial of the same seeds (data and model), where each of
    the two conditions has one such trial.

    Within a study such trials have equal hyperparameters too, so this compares conditions without
    tuning: is it echoing, or another learning rate?

    Returns:
        One row a pair: condition, label, insertion, search, reached, baseline_reached, effect_low,
        effect_high: the ends between which the ratio of the two lies (of best values their
        difference); 0 where the baseline did not reach the target, infinite where the condition did
        not.
    """
    key = ["search", "model_seed"]
    low, high = trial_bounds(trials, study)
    counted = trials[trials["counted"]].assign(low=low, high=high)
    counted = counted.dropna(subset=[*key, "low"])
    counted = counted.drop_duplicates(["condition", *key], keep=False)
    found = []
    for condition in study.conditions:
        if (baseline := study.baseline_of(condition)) in (None, condition.name):
            continue
        found.append(beside(counted, condition.name, baseline, key, study))
    columns = ["condition", "label", "insertion", "search", "reached", "baseline_reached"]
    columns += ["effect_low", "effect_high"]
    return (
        pd.concat(found)[columns].reset_index(drop=True) if found else pd.DataFrame(columns=columns)
    )


def beside(
    trials: pd.DataFrame, condition: str, baseline: str, key: Sequence[str], study: Study
) -> pd.DataFrame:
    """Trials of two conditions that agree in `key`, with the ends of their effect; `trials` has
    low and high, see `trial_bounds`. One row a pair, columns as in `pairs`."""
    own, base = (trials[trials["condition"] == name] for name in (condition, baseline))
    both = own.merge(base[[*key, "low", "high"]], on=list(key), suffixes=("", "_of_baseline"))
    low, high, base_low, base_high = (
        both[name].to_numpy(float)
        for name in ("low", "high", "low_of_baseline", "high_of_baseline")
    )
    if study.score == BEST_VALUE:
        effects = low - base_high, high - base_low
    else:
        with np.errstate(divide="ignore"):
            effects = low / base_high, high / base_low
    return both.assign(
        reached=np.isfinite(high),
        baseline_reached=np.isfinite(base_high),
        effect_low=effects[0],
        effect_high=effects[1],
    )


def signs(lows: np.ndarray, highs: np.ndarray, null) -> tuple[np.ndarray, np.ndarray]:
    """How many effects lie below each value of `null`, and how many above it.

    An effect known to lie between two ends lies strictly between them; one whose ends are equal is
    that value. One that may lie on either side counts for neither. For ratios this is the
    comparison of T_condition / null with T_baseline, both censored where the first of the two is.
    """
    null = np.asarray(null, float)[..., None]
    inside = lows < highs
    below = (highs < null) | ((highs == null) & inside)
    above = (lows > null) | ((lows == null) & inside)
    return below.sum(-1), above.sum(-1)


def sign_test(below: np.ndarray, above: np.ndarray) -> np.ndarray:
    """Two-sided exact p-values of so many signs, under even odds (`scipy.stats.binomtest`)."""
    few = np.minimum(below, above)
    return np.minimum(1.0, 2 * stats.binom.cdf(few, np.add(below, above), 0.5))


def sign_interval(
    lows: Sequence[float], highs: Sequence[float], floor: float = 0.0, level: float = PAIRED_LEVEL
) -> tuple[float, float, float, float]:
    """The effects that the sign test does not reject, and those at which the signs balance.

    As an effect grows, it lies above ever more pairs and below ever fewer, so that the effects that
    are not rejected are an interval. Without censoring it is the interval of the median between two
    order statistics, and the balance is the median.

    Args:
        lows, highs: ends of each pair's effect.
        floor: the smallest effect there can be: 0 for ratios, -inf for differences.

    Returns:
        (low, high) of the interval and (low, high) of the balance; floor and inf where an end is
        open.
    """
    lows, highs = np.asarray(lows, float), np.asarray(highs, float)
    ends = np.unique(np.concatenate([lows, highs]))
    ends = ends[np.isfinite(ends) & (ends > floor)]
    if not len(ends):
        return floor, math.inf, floor, math.inf
    # Signs change at the ends alone: they are tried, and a point before, between and after them.
    first = ends[0] / 2 if floor == 0 else ends[0] - 1
    tried = np.empty(2 * len(ends) + 1)
    tried[1::2], tried[0], tried[-1] = ends, first, ends[-1] + 1
    tried[2:-1:2] = (ends[:-1] + ends[1:]) / 2
    left, right = tried.copy(), tried.copy()  # what each of them stands for: itself, or all between
    left[::2], right[::2] = [floor, *ends], [*ends, math.inf]
    below, above = signs(lows, highs, tried)
    kept = sign_test(below, above) > 1 - level
    even = below == above
    if not even.any():  # the signs turn at a point that several pairs share
        turn = np.argmax(below > above)
        balance = left[turn], left[turn]
    else:
        balance = left[even].min(), right[even].max()
    return left[kept].min(), right[kept].max(), *balance


def holm(p: Sequence[float]) -> np.ndarray:
    """p-values adjusted for their number (Holm 1979): the smallest times n, the next times n - 1,
    and so on, none below one before it."""
    p = np.asarray(p, float)
    order = np.argsort(p, kind="stable")
    steps = np.maximum.accumulate(p[order] * (len(p) - np.arange(len(p))))
    adjusted = np.empty(len(p))
    adjusted[order] = np.minimum(1.0, steps)
    return adjusted


def verdicts(study: Study) -> tuple[str, str]:
    """The words for an effect below none, and above it."""
    words = {BEST_VALUE: ("lower", "higher"), SECONDS: ("faster", "slower")}
    return words.get(study.score, ("fewer", "more"))


def paired_effects(paired: pd.DataFrame, study: Study) -> pd.DataFrame:
    """The effect over pairs of trials by the sign test, censored pairs included.

    Pairs are taken as exchangeable; those of one search share their data seed, so it is also told
    in how many searches most pairs fall on each side.

    Returns:
        One row per condition: condition, label, insertion; pairs (both reached), condition_alone,
        baseline_alone, neither; below, above (pairs decided on either side of no effect);
        effect_low, effect_high (the effect at which the signs balance; a bound where these differ);
        low, high (the interval at PAIRED_LEVEL, missing with fewer than FEWEST_PAIRS pairs with a
        side that reached); p (two-sided, of no effect; missing likewise), p_holm (adjusted for the
        conditions of the study), verdict; searches_below, searches_above.
    """
    differ = study.score == BEST_VALUE
    none, floor = (0.0, -math.inf) if differ else (1.0, 0.0)
    rows = []
    for condition, group in paired.groupby("condition", sort=False):
        lows, highs = (group[name].to_numpy(float) for name in ("effect_low", "effect_high"))
        own, base = group["reached"].astype(bool), group["baseline_reached"].astype(bool)
        below, above = (int(count) for count in signs(lows, highs, none))
        low, high, *balance = sign_interval(lows, highs, floor)
        enough = int((own | base).sum()) >= FEWEST_PAIRS
        rows.append(
            {"condition": condition}
            | {name: group[name].iloc[0] for name in ("label", "insertion")}
            | {"pairs": int((own & base).sum()), "condition_alone": int((own & ~base).sum())}
            | {"baseline_alone": int((base & ~own).sum()), "neither": int((~own & ~base).sum())}
            | {"below": below, "above": above}
            | _point(*balance, differ)
            | {"low": low if enough else math.nan, "high": high if enough else math.nan}
            | {"p": float(sign_test(below, above)) if enough else math.nan}
            | _by_search(group, none)
        )
    columns = ["condition", "label", "insertion", "pairs", "condition_alone", "baseline_alone"]
    columns += ["neither", "below", "above", "effect_low", "effect_high", "low", "high", "p"]
    table = pd.DataFrame(rows, columns=[*columns, "searches_below", "searches_above"])
    # A condition with too few pairs still belongs to the family: their number is an outcome too.
    table["p_holm"] = holm(table["p"].fillna(1.0)) if len(table) else []
    table["p_holm"] = table["p_holm"].where(table["p"].notna())
    less, more = verdicts(study)
    side = np.where(table["below"] > table["above"], less, more)
    table["verdict"] = np.where(table["p_holm"] < _SIGNIFICANT, side, "undecided")
    return table


def _point(low: float, high: float, differ: bool) -> dict[str, float]:
    """The effect where the signs balance: the middle of a bounded stretch, else its bound."""
    if differ and math.isfinite(low) and math.isfinite(high):
        low = high = (low + high) / 2
    elif not differ and low > 0 and math.isfinite(high):
        low = high = math.sqrt(low * high)
    return {"effect_low": low, "effect_high": high}


def _by_search(group: pd.DataFrame, none: float) -> dict[str, int]:
    """In how many searches more pairs lie below no effect than above it, and the other way round:
    signs that share no data seed."""
    ahead = []
    for _, own in group.groupby("search"):
        below, above = signs(own["effect_low"].to_numpy(), own["effect_high"].to_numpy(), none)
        ahead.append(int(below) - int(above))
    return {
        "searches_below": sum(lead > 0 for lead in ahead),
        "searches_above": sum(lead < 0 for lead in ahead),
    }
