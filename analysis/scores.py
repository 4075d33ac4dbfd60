"""The protocol as arithmetic: from trials to the score of a search, from searches to a condition.

A trial scores the fresh examples at the first evaluation that reaches the target. A search scores
the smallest over its counted trials. A condition is its searches' mean, minimum and maximum; the
searches that never reached the target are counted beside it, never dropped silently.
Source: Choi et al. 2019, arXiv 1907.05550, section 3.
"""

import pandas as pd

from analysis.study import Study

SCORE = "fresh_examples_to_target"


def best_trial(trials: pd.DataFrame, mode: str) -> pd.Series | None:
    """The counted trial with the smallest score; where none reached, the one with the best value.

    The earlier trial wins a tie. None where no trial counts, or none was ever evaluated.
    """
    eligible = trials[trials["counted"]]
    if eligible[SCORE].notna().any():
        return eligible.loc[eligible[SCORE].astype(float).idxmin()]
    if eligible["best_value"].notna().any():
        values = eligible["best_value"]
        return eligible.loc[values.idxmax() if mode == "above" else values.idxmin()]
    return None


def best_trials(trials: pd.DataFrame, study: Study, by: tuple[str, ...] = ("condition",)):
    """The best counted trial of each condition (or of each search: by=("condition", "search")), as
    rows of `trials` in their order."""
    groups = trials.groupby(list(by), sort=False)
    found = [best_trial(group, study.target.mode) for _, group in groups]
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
    best = best_trial(trials, study.target.mode)
    scored = best is not None and pd.notna(best[SCORE])
    values = counted["best_value"]
    return {
        **trials.iloc[0][["condition", "label", "insertion", "search"]].to_dict(),
        "trials": len(trials),
        "ended": int(trials["status"].isin(("reached", "exhausted", "diverged", "failed")).sum()),
        "counted": len(counted),
        "diverged": int((trials["status"] == "diverged").sum()),
        "reached": int(counted[SCORE].notna().sum()),
        "fresh_examples": float(best[SCORE]) if scored else float("nan"),
        "steps": float(best["steps_to_target"]) if scored else float("nan"),
        "seconds": float(best["seconds_to_target"]) if scored else float("nan"),
        "trial": best["trial"] if scored else None,
        "best_value": values.max() if study.target.mode == "above" else values.min(),
    }


def condition_scores(trials: pd.DataFrame, study: Study) -> pd.DataFrame:
    """One row per condition, in the study's order, also for a condition without trials.

    Columns: condition, label, insertion, factor, shuffle_buffer, searches (with a trial that
    ended), searches_reached; fresh_examples_mean, _min, _max, steps_mean, seconds_mean (of the best
    trials) over the searches that reached; ratio (of the mean to the baseline's), ideal_ratio
    (1/e), ideal_fresh_examples (the baseline's mean / e); trials_counted, share_reached (of
    counted trials), share_diverged (of ended ones), best_value_mean.
    """
    searches = search_scores(trials, study)
    rows = []
    for condition in study.conditions:
        own = searches[searches["condition"] == condition.name]
        setting = {
            "condition": condition.name,
            "label": condition.label,
            "insertion": condition.insertion,
            "factor": condition.factor,
            "shuffle_buffer": condition.shuffle_buffer,
        }
        rows.append(setting | _summary(own[own["ended"] > 0]))
    table = pd.DataFrame(rows)
    base = table.loc[table["condition"] == study.baseline, "fresh_examples_mean"]
    baseline = float(base.iloc[0]) if len(base) else float("nan")
    ideal = 1 / table["factor"]
    place = table.columns.get_loc("trials_counted")
    table.insert(place, "ratio", table["fresh_examples_mean"] / baseline)
    table.insert(place + 1, "ideal_ratio", ideal)
    table.insert(place + 2, "ideal_fresh_examples", baseline * ideal)
    return table


def _summary(searches: pd.DataFrame) -> dict:
    """What the searches of one condition amount to; means are over those that reached."""
    reached = searches[searches["reached"] > 0]
    return {
        "searches": len(searches),
        "searches_reached": len(reached),
        "fresh_examples_mean": reached["fresh_examples"].mean(),
        "fresh_examples_min": reached["fresh_examples"].min(),
        "fresh_examples_max": reached["fresh_examples"].max(),
        "steps_mean": reached["steps"].mean(),
        "seconds_mean": reached["seconds"].mean(),
        "trials_counted": int(searches["counted"].sum()),
        "share_reached": _share(searches["reached"].sum(), searches["counted"].sum()),
        "share_diverged": _share(searches["diverged"].sum(), searches["ended"].sum()),
        "best_value_mean": searches["best_value"].mean(),
    }


def _share(part: float, whole: float) -> float:
    return float(part) / float(whole) if whole else float("nan")
