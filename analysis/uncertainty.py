"""How far to trust a score: what fewer trials would have given, and the ratio at equal seeds.

`score_by_trials` resamples a condition's counted trials with replacement, as expected validation
performance does (Dodge et al. 2019, arXiv 1909.03004); its bias is smaller than the variance it
saves (Dodge et al. 2021, arXiv 2110.00613). It gives quantiles, not the mean (Lourie et al. 2024,
arXiv 2311.09480): a trial that never reaches the target scores infinity.
"""

import math

import numpy as np
import pandas as pd
from scipy import stats

from analysis.study import BEST_VALUE, Study

LEVEL = 0.9  # of the interval around the score of a number of trials
PAIRED_LEVEL = 0.95  # of the interval of a paired comparison
RESAMPLES = 2000  # of a ratio's interval
FEWEST_PAIRS = 10  # below this a paired comparison gives no interval


def trial_scores(trials: pd.DataFrame, study: Study) -> pd.Series:
    """What each trial scored, missing where it reached nothing."""
    return trials[study.score_column].astype(float)


def score_by_trials(trials: pd.DataFrame, study: Study) -> pd.DataFrame:
    """The score of a search of n trials, for n up to the size of the largest search.

    The counted trials of all searches of a condition are one sample; a search of n trials is n
    draws from it with replacement. The quantile q of the best of n among N sorted scores is number
    ceil(N (1 - (1 - q)^(1/n))), so nothing is simulated.

    Returns:
        One row per condition and n: condition, label, insertion, trials (n), score (the median),
        low, high (the ends of the LEVEL interval); infinite where the target would not be reached.
        Where n is near the number of trials there are, the interval is too narrow.
    """
    down = study.higher_is_better
    rows = []
    for condition, group in trials[trials["counted"]].groupby("condition", sort=False):
        scores = trial_scores(group, study).fillna(-math.inf if down else math.inf)
        best_first = scores.sort_values(ascending=not down).to_numpy()
        for n in range(1, int(group.groupby("search").size().max()) + 1):
            quantiles = [
                _best_of(best_first, n, q) for q in (0.5, 0.5 - LEVEL / 2, 0.5 + LEVEL / 2)
            ]
            rows.append(
                {"condition": condition, "trials": n}
                | {name: group[name].iloc[0] for name in ("label", "insertion")}
                | {"score": quantiles[0], "low": min(quantiles[1:]), "high": max(quantiles[1:])}
            )
    columns = ["condition", "label", "insertion", "trials", "score", "low", "high"]
    return pd.DataFrame(rows, columns=columns)


def _best_of(best_first: np.ndarray, n: int, quantile: float) -> float:
    share = 1 - (1 - quantile) ** (1 / n)
    return best_first[math.ceil(len(best_first) * share - 1e-9) - 1]


def ratios(trials: pd.DataFrame, study: Study) -> pd.DataFrame:
    """The LEVEL interval of a condition's score over its baseline's (of best values the
    difference), had both been searched again: percentiles of the bootstrap over counted trials.

    Returns:
        One row per condition that has a baseline: condition, low, high; infinite where the
        condition might not reach the target in all of its searches, 0 where its baseline might not.
    """
    random, again = np.random.default_rng(0), {}
    for condition, group in trials[trials["counted"]].groupby("condition", sort=False):
        again[condition] = _searched_again(group, study, random)
    rows = []
    for condition in study.conditions:
        name, base = condition.name, study.baseline_of(condition)
        if base == name or not {base, name} <= set(again):
            continue
        if study.score == BEST_VALUE:
            compared = again[name] - again[base]
        else:
            never = np.isinf(again[name])
            compared = np.where(never, math.inf, again[name] / np.where(never, 1, again[base]))
        low, high = np.quantile(compared, (0.5 - LEVEL / 2, 0.5 + LEVEL / 2), method="inverted_cdf")
        rows.append({"condition": name, "low": low, "high": high})
    return pd.DataFrame(rows, columns=["condition", "low", "high"])


def _searched_again(group: pd.DataFrame, study: Study, random: np.random.Generator) -> np.ndarray:
    """Scores [RESAMPLES] of a condition: means of as many searches, over its own trials redrawn."""
    down = study.higher_is_better
    scores = trial_scores(group, study).fillna(-math.inf if down else math.inf).to_numpy()
    searches = group["search"].nunique()
    size = (RESAMPLES, searches, len(scores) // searches)
    drawn = random.choice(scores, size)
    return (drawn.max(2) if down else drawn.min(2)).mean(1)


def pairs(trials: pd.DataFrame, study: Study) -> pd.DataFrame:
    """Counted trials beside the baseline's trial of the same seeds (data and model), where each of
    the two conditions has one such trial.

    Within a study such trials have equal hyperparameters too, so this compares conditions without
    tuning: is it echoing, or another learning rate?

    Returns:
        One row a pair: condition, label, insertion, score, baseline_score (missing where the target
        was not reached), effect (the ratio of the two; of best values the difference).
    """
    key = ["search", "model_seed"]
    counted = trials[trials["counted"]].assign(score=trial_scores(trials, study))
    counted = counted.dropna(subset=key).drop_duplicates(["condition", *key], keep=False)
    found = []
    for condition in study.conditions:
        if (baseline := study.baseline_of(condition)) in (None, condition.name):
            continue
        base = counted[counted["condition"] == baseline][[*key, "score"]]
        own = counted[counted["condition"] == condition.name]
        base = base.rename(columns={"score": "baseline_score"})
        found.append(own.merge(base, on=key))
    columns = ["condition", "label", "insertion", "score", "baseline_score"]
    table = pd.concat(found)[columns] if found else pd.DataFrame(columns=columns)
    score, base = table["score"], table["baseline_score"]
    table["effect"] = score - base if study.score == BEST_VALUE else score / base
    return table.reset_index(drop=True)


def paired_effects(paired: pd.DataFrame, study: Study) -> pd.DataFrame:
    """The mean effect over pairs in which both scored: the geometric mean of the ratios with
    Student's t interval of their logarithms; of best values the mean difference with its own.

    Returns:
        One row per condition: condition, label, insertion, pairs (both scored), condition_alone,
        baseline_alone (pairs in which only one reached the target, left out), effect, low, high
        (missing with fewer than FEWEST_PAIRS pairs).
    """
    rows = []
    for condition, group in paired.groupby("condition", sort=False):
        own, base = group["score"].notna(), group["baseline_score"].notna()
        effects = group["effect"].dropna().to_numpy(float)
        differ = study.score == BEST_VALUE
        mean, low, high = _t_interval(effects if differ else np.log(effects))
        if not differ:
            mean, low, high = np.exp((mean, low, high))
        rows.append(
            {"condition": condition}
            | {name: group[name].iloc[0] for name in ("label", "insertion")}
            | {"pairs": len(effects), "condition_alone": int((own & ~base).sum())}
            | {"baseline_alone": int((base & ~own).sum()), "effect": mean, "low": low, "high": high}
        )
    columns = ["condition", "label", "insertion", "pairs", "condition_alone", "baseline_alone"]
    return pd.DataFrame(rows, columns=[*columns, "effect", "low", "high"])


def _t_interval(values: np.ndarray) -> tuple[float, float, float]:
    if not len(values):
        return math.nan, math.nan, math.nan
    if len(values) < FEWEST_PAIRS:
        return values.mean(), math.nan, math.nan
    found = stats.ttest_1samp(values, 0.0).confidence_interval(PAIRED_LEVEL)
    return values.mean(), found.low, found.high
