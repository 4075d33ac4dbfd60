"""The protocol as arithmetic: from trials to the score of a search, from searches to a condition.

A trial scores the fresh examples at the first evaluation that reaches the target. A search scores
the smallest over its counted trials. A condition is its searches' mean, minimum and maximum; the
searches that never reached the target are counted beside it, never dropped silently. A study may
score seconds to the target instead, or best values within the budget.
Source: Choi et al. 2019, arXiv 1907.05550, section 3.
"""

import pandas as pd

from analysis.study import Study

REACHED = "fresh_examples_to_target"  # the trials' column that is missing where it was not reached
MEASURES = ("fresh_examples", "steps", "seconds", "best_value")  # each with a mean, a min and a max


def best_trial(trials: pd.DataFrame, study: Study) -> pd.Series | None:
    """The counted trial with the smallest score; where none reached, the one with the best value.

    A study judged by its best value goes by that alone. The earlier trial wins a tie. None where no
    trial counts, or none was ever evaluated.
    """
    eligible = trials[trials["counted"]]
    scores, values = eligible[study.score_column].astype(float), eligible["best_value"]
    if not study.higher_is_better and scores.notna().any():
        return eligible.loc[scores.idxmin()]
    if values.notna().any():
        return eligible.loc[values.idxmax() if study.target.mode == "above" else values.idxmin()]
    return None


def best_trials(trials: pd.DataFrame, study: Study, by: tuple[str, ...] = ("condition",)):
    """The best counted trial of each condition (or of each search: by=("condition", "search")), as
    rows of `trials` in their order."""
    groups = trials.groupby(list(by), sort=False)
    found = [best_trial(group, study) for _, group in groups]
    return trials.loc[[trial.name for trial in found if trial is not None]]


def search_scores(trials: pd.DataFrame, study: Study) -> pd.DataFrame:
    """One row per condition and search.

    Columns: condition, label, insertion, search, trials (on disk), ended, counted, diverged,
    reached (counted trials that reached the target), fresh_examples, steps, seconds, trial (of the
    best trial; missing where none reached), best_value (over counted trials; where training stops
    at the target it says no more than that).
    """
    groups = trials.groupby(["condition", "search"], sort=False)
    return pd.DataFrame([_search_row(group, study) for _, group in groups])


def _search_row(trials: pd.DataFrame, study: Study) -> dict:
    counted = trials[trials["counted"]]
    best = best_trial(trials, study)
    scored = best is not None and pd.notna(best[REACHED])
    values = counted["best_value"]
    return {
        **trials.iloc[0][["condition", "label", "insertion", "search"]].to_dict(),
        "trials": len(trials),
        "ended": int(trials["status"].isin(("reached", "exhausted", "diverged", "failed")).sum()),
        "counted": len(counted),
        "diverged": int((trials["status"] == "diverged").sum()),
        "reached": int(counted[REACHED].notna().sum()),
        "fresh_examples": float(best[REACHED]) if scored else float("nan"),
        "steps": float(best["steps_to_target"]) if scored else float("nan"),
        "seconds": float(best["seconds_to_target"]) if scored else float("nan"),
        "trial": best["trial"] if scored else None,
        "best_value": values.max() if study.target.mode == "above" else values.min(),
    }


def condition_scores(trials: pd.DataFrame, study: Study) -> pd.DataFrame:
    """One row per condition, in the study's order, also for a condition without trials.

    Columns: condition, label, insertion, factor, shuffle_buffer, batch_size, searches (with a trial
    that ended), searches_reached; fresh_examples, steps, seconds (of the best trials, over the
    searches that reached) and best_value (over all searches), each as _mean, _min and _max;
    trials_counted, share_reached (of counted trials), share_diverged (of ended ones); baseline (the
    condition it is compared with), ratio, steps_ratio, seconds_ratio (of the means), ideal_ratio
    (1/e), ideal_fresh_examples (the baseline's mean / e), difference (of the best values' means).
    """
    searches = search_scores(trials, study)
    rows = []
    for condition in study.conditions:
        own = searches[searches["condition"] == condition.name]
        names = ("label", "insertion", "factor", "shuffle_buffer", "batch_size")
        setting = {"condition": condition.name} | {n: getattr(condition, n) for n in names}
        rows.append(setting | _summary(own[own["ended"] > 0]))
    table = pd.DataFrame(rows)
    table["baseline"] = [study.baseline_of(condition) for condition in study.conditions]
    base = table.set_index("condition").reindex(table["baseline"]).reset_index(drop=True)
    table["ratio"] = table["fresh_examples_mean"] / base["fresh_examples_mean"]
    for name in ("steps", "seconds"):
        table[f"{name}_ratio"] = table[f"{name}_mean"] / base[f"{name}_mean"]
    table["ideal_ratio"] = 1 / table["factor"]
    table["ideal_fresh_examples"] = base["fresh_examples_mean"] / table["factor"]
    table["difference"] = table["best_value_mean"] - base["best_value_mean"]
    return table


def _summary(searches: pd.DataFrame) -> dict:
    """What the searches of one condition amount to."""
    reached = searches[searches["reached"] > 0]
    spans = {
        f"{name}_{statistic}": getattr(
            (searches if name == "best_value" else reached)[name], statistic
        )()
        for name in MEASURES
        for statistic in ("mean", "min", "max")
    }
    return {
        "searches": len(searches),
        "searches_reached": len(reached),
        **spans,
        "trials_counted": int(searches["counted"].sum()),
        "share_reached": _share(searches["reached"].sum(), searches["counted"].sum()),
        "share_diverged": _share(searches["diverged"].sum(), searches["ended"].sum()),
    }


def _share(part: float, whole: float) -> float:
    return float(part) / float(whole) if whole else float("nan")
