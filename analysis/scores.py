"""The scores of trials, searches, and conditions, and the effects of conditions.

A trial scores the fresh examples at the first evaluation that reaches the target. A search scores
the smallest over its counted trials. If none reached the target, the search is censored: its score
is only known to be above what its trials had used when they ended. A condition scores the median
over its searches. Conditions are compared search by search: search s of a condition and search s of
its baseline share the data seed and the hyperparameters, and the effect is the median of the ratios
of their scores. A study may score seconds to the target instead, or best values within the budget,
which are compared by differences. docs/statistics.md defines every printed number. Source: Choi et
al. 2019, arXiv 1907.05550, section 3 (which prints means over searches).
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from analysis import bounds
from analysis.load import SETTINGS, hyperparameters
from runs import records
from runs.study import SECONDS, Study

REACHED = "fresh_examples_to_target"  # a column of trials; missing if the target was not reached
# By measure, the columns of trials that hold it: at the target, at the end of the trial.
_COST_COLUMNS = {
    "fresh_examples": (REACHED, "fresh_examples"),
    "steps": ("steps_to_target", "steps"),
    "seconds": ("seconds_to_target", "train_seconds"),
}
# The columns of trials that decide the score of a search.
_SEARCH_COLUMNS = ["condition", "label", "insertion", "search", "trial", "status", "counted"]
_SEARCH_COLUMNS += ["lanes", "workers", "best_value", "fresh_examples_before_target"]
_SEARCH_COLUMNS += [column for columns in _COST_COLUMNS.values() for column in columns]
# The cost of a search whose trials all diverged or failed, and its best value.
_UNKNOWN = (0.0, float("inf"))
_UNKNOWN_VALUE = (float("-inf"), float("inf"))
MEASURES = (*_COST_COLUMNS, "best_value")
# By measure, the effect that compares it with the baseline.
EFFECTS = {
    "fresh_examples": "ratio",
    "steps": "steps_ratio",
    "seconds": "seconds_ratio",
    "best_value": "difference",
}
UNTUNED = "untuned"  # the effect on the score with the baseline's best hyperparameters


def _best(counted: np.ndarray, scores: np.ndarray, values: np.ndarray, study: Study) -> int | None:
    """The position of the counted trial with the smallest score, or with the best value if none
    reached the target or if the study scores best values. The earlier trial wins a tie. None if no
    trial counts, or none was evaluated."""
    by_score = [] if study.higher_is_better else [(scores, np.argmin)]
    best_of = np.argmax if study.target.mode == "above" else np.argmin
    for column, first_best in (*by_score, (values, best_of)):
        known = np.flatnonzero(counted & ~np.isnan(column))
        if len(known):
            return int(known[first_best(column[known])])
    return None


def _array(column: pd.Series) -> np.ndarray:
    """A column of trials; numbers as floats, missing ones as NaN."""
    is_count = isinstance(column.dtype, pd.Int64Dtype)
    return column.to_numpy(float, na_value=np.nan) if is_count else column.to_numpy()


def best_trials(trials: pd.DataFrame, study: Study) -> pd.DataFrame:
    """The rows of `trials` with the best counted trial of each condition."""
    names, best = ("counted", study.score_column, "best_value"), []
    for _, group in trials.groupby("condition", sort=False):
        position = _best(*(_array(group[name]) for name in names), study)
        best += [] if position is None else [group.index[position]]
    return trials.loc[best]


def leaders(trials: pd.DataFrame, searches: pd.DataFrame) -> pd.DataFrame:
    """The rows of `trials` with the best counted trial of each of `searches` (`search_scores`)."""
    return trials.loc[searches["leader"].dropna()]


def matchable(trials: pd.DataFrame, which: pd.Series) -> tuple[pd.DataFrame, list[str]]:
    """The rows of `trials` that can have a counterpart with matched seeds in another condition, and
    the columns in which a trial agrees with its counterpart.

    These are the search (hence the data seed), the model seed, and the hyperparameters. A trial
    must be the only one of its condition with these values, of those that `which` (bool) chooses.
    """
    key = ["search", "model_seed", *hyperparameters(trials)]
    known = trials[which].dropna(subset="model_seed")
    return known.drop_duplicates(["condition", *key], keep=False), key


def search_scores(trials: pd.DataFrame, study: Study) -> pd.DataFrame:
    """One row per condition and search.

    Columns: condition, label, insertion, search, trials (on disk), ended, counted, diverged,
    reached (counted trials that reached the target), shared (whether counted trials shared input or
    cores with others, so that their seconds depend on those), leader (index of the best trial),
    trial (its number; missing if it did not reach the target), resolution (fresh examples between
    the evaluation that scored and the one before it, as a share of the score); fresh_examples,
    steps, and seconds of the best trial, and best_value (over counted trials, up to the target
    where training stops there), each with the suffixes _low and _high: equal if it was observed,
    infinite above if no trial reached the target, unknown (-inf, or 0 for costs, to inf) if all
    trials that ended diverged or failed, missing if none has ended.
    """
    arrays = {name: _array(trials[name]) for name in _SEARCH_COLUMNS}
    arrays["index"] = trials.index.to_numpy()
    positions: dict[tuple, list[int]] = {}
    for position, place in enumerate(zip(arrays["condition"], arrays["search"], strict=True)):
        positions.setdefault(place, []).append(position)
    # A study has up to thousands of searches: arrays, since DataFrames take milliseconds for each.
    groups = ({name: array[own] for name, array in arrays.items()} for own in positions.values())
    return pd.DataFrame([_search_row(group, study) for group in groups])


def _search_row(trials: Mapping[str, np.ndarray], study: Study) -> dict:
    counted = trials["counted"]
    best = _best(counted, trials[study.score_column], trials["best_value"], study)
    scored = None if best is None or np.isnan(trials[REACHED][best]) else best
    values = trials["best_value"][counted & ~np.isnan(trials["best_value"])]
    value = (float("nan"), float("nan"))
    if len(values):
        value = (float(values.max() if study.target.mode == "above" else values.min()),) * 2
    row = {
        **{name: trials[name][0] for name in ("condition", "label", "insertion", "search")},
        "trials": len(counted),
        "ended": int(np.isin(trials["status"], records.ENDED).sum()),
        "counted": int(counted.sum()),
        "diverged": int(diverged(trials, study).sum()),
        "reached": int((counted & ~np.isnan(trials[REACHED])).sum()),
        "shared": bool((is_shared(trials) & counted).any()),
        "leader": None if best is None else trials["index"][best],
        "trial": None if scored is None else trials["trial"][scored],
        "resolution": float("nan") if scored is None else _resolution(trials, scored),
    }
    known = row["counted"] or not row["ended"]
    for measure in _COST_COLUMNS:
        cost = _cost(trials, scored, measure) if known else _UNKNOWN
        row |= _ends(measure, *cost)
    return row | _ends("best_value", *(value if known else _UNKNOWN_VALUE))


def diverged(trials: Any, study: Study) -> Any:
    """Which trials diverged: before they reached the target, where scores are costs.

    Args:
        trials: a table, or a mapping of its columns.
        study: says what is scored.
    """
    return (trials["status"] == "diverged") & (study.scores_values | pd.isna(trials[REACHED]))


def is_shared(trials: Any) -> Any:
    """Which trials took turns with others or shared the machine with other processes.

    Args:
        trials: a table, or a mapping of its columns `lanes` and `workers`.
    """
    return (trials["lanes"] > 1) | (trials["workers"] > 1)


def _cost(trials: Mapping[str, np.ndarray], best: int | None, measure: str) -> tuple[float, float]:
    """Lower and upper bound of a search's cost; `best` is the position of its best trial.

    A trial that used up its budget has no score. A search whose trials all did so is censored at
    the earliest of their ends: with a larger budget its best trial would have scored more. A trial
    that stopped at an easier target than the one it is judged at is censored in the same way, even
    if another trial of its search reached the target. So is one whose budget was smaller than the
    score, except for seconds.
    """
    to_target, at_end = _COST_COLUMNS[measure]
    counted = trials["counted"]
    if not counted.any():
        return float("nan"), float("nan")
    ends = np.nan_to_num(trials[at_end])
    if best is None:
        return float(ends[counted].min()), float("inf")
    score = float(trials[to_target][best])
    not_reached = counted & np.isnan(trials[REACHED])
    cut_short = not_reached & (trials["status"] == "reached")
    if measure != "seconds":
        # Fresh examples decide, since a trial of larger batches takes fewer steps in any budget.
        cut_short |= not_reached & (np.nan_to_num(trials["fresh_examples"]) < trials[REACHED][best])
    return min([score, *ends[cut_short].tolist()]), score


def _resolution(trials: Mapping[str, np.ndarray], best: int) -> float:
    score = trials[REACHED][best]
    return float((score - trials["fresh_examples_before_target"][best]) / score)


def _ends(name: str, low: float, high: float) -> dict[str, float]:
    return {f"{name}_low": low, f"{name}_high": high}


def condition_scores(trials: pd.DataFrame, study: Study) -> pd.DataFrame:
    """One row per condition, in the study's order, including conditions without trials.

    Columns: condition, label, insertion, factor, shuffle_buffer, batch_size, searches (with a trial
    that ended), searches_reached, trials_counted, trials_censored (counted, not reached),
    trials_ended, trials_diverged, share_reached (of counted trials), share_diverged (of ended
    ones), shared (by a search of the condition or of its baseline; there is no effect on seconds
    then), resolution (the largest of its searches); baseline (the condition it is compared with),
    ideal_ratio (1/e), ideal_fresh_examples (the baseline's median / e, missing if that is
    censored). Ratios of a baseline to itself are 1, also if its scores are censored, and
    differences 0. For each of MEASURES, and for each effect in EFFECTS over pairs of searches, the
    fields of `bounds.Summary` over searches: fresh_examples_low and _high (bounds of the median,
    equal if it is known), _min, _min_high, _max_low, _max, _count; likewise ratio_low and so on,
    and untuned_low and so on for the effect on the score without retuning.
    """
    searches = search_scores(trials, study)
    untuned = _without_retuning(trials, study, searches)
    rows = []
    for condition in study.conditions:
        own = searches[searches["condition"] == condition.name]
        setting = {"condition": condition.name} | {n: getattr(condition, n) for n in SETTINGS}
        baseline = study.baseline_of(condition)
        base = searches[searches["condition"] == baseline]
        shared = bool(own["shared"].any() or base["shared"].any())
        summaries = _summaries(own, base, shared)
        summaries |= _columns(UNTUNED, bounds.summary(*untuned.get(condition.name, ([], []))))
        if baseline == condition.name:
            summaries |= _effects_on_itself(summaries, study)
        rows.append(setting | _counts(own) | {"shared": shared, "baseline": baseline} | summaries)
    table = pd.DataFrame(rows)
    base = table.set_index("condition").reindex(table["baseline"]).reset_index(drop=True)
    table["ideal_ratio"] = 1 / table["factor"]
    level = base["fresh_examples_low"]
    table["ideal_fresh_examples"] = level.where(level == base["fresh_examples_high"])
    table["ideal_fresh_examples"] /= table["factor"]
    return table


def _counts(searches: pd.DataFrame) -> dict:
    counted, ended = int(searches["counted"].sum()), int(searches["ended"].sum())
    reached, diverged = int(searches["reached"].sum()), int(searches["diverged"].sum())
    return {
        "searches": int((searches["ended"] > 0).sum()),
        "searches_reached": int((searches["reached"] > 0).sum()),
        "trials_counted": counted,
        "trials_censored": counted - reached,
        "trials_ended": ended,
        "trials_diverged": diverged,
        "share_reached": _share(reached, counted),
        "share_diverged": _share(diverged, ended),
        "resolution": searches["resolution"].max(),
    }


def _summaries(own: pd.DataFrame, base: pd.DataFrame, shared: bool) -> dict:
    """Summaries of a condition's searches, and of its effects over pairs of searches."""
    _, place, base_place = np.intersect1d(own["search"], base["search"], return_indices=True)
    columns = {}
    for measure in MEASURES:
        own_ends, base_ends = (
            [table[f"{measure}_{end}"].to_numpy(float) for end in ("low", "high")]
            for table in (own, base)
        )
        columns |= _columns(measure, bounds.summary(*own_ends))
        compare = bounds.difference if measure == "best_value" else bounds.ratio
        effects = compare(
            tuple(end[place] for end in own_ends), tuple(end[base_place] for end in base_ends)
        )
        if measure == "seconds" and shared:
            effects = [], []
        columns |= _columns(EFFECTS[measure], bounds.summary(*effects))
    return columns


def _effects_on_itself(summaries: Mapping[str, float], study: Study) -> dict[str, float]:
    """The effects of a baseline, which bounds of its scores do not give if they are censored."""
    effects = dict.fromkeys(EFFECTS.values(), 1.0) | {EFFECTS["best_value"]: 0.0}
    effects[UNTUNED] = 0.0 if study.scores_values else 1.0
    return {
        f"{name}_{field}": effect
        for name, effect in effects.items()
        for field in bounds.FIELDS
        if field != "count" and summaries[f"{name}_count"]
    }


def _without_retuning(
    trials: pd.DataFrame, study: Study, searches: pd.DataFrame
) -> dict[str, tuple[pd.Series, pd.Series]]:
    """By condition, bounds of the effect on the score if it keeps the best hyperparameters of its
    baseline: the score of its trial with the data seed, the model seed, and the hyperparameters of
    the baseline's best trial, search by search. Searches without such a trial are left out.

    A diverged trial would not have reached the target within the budget either. Its best value is
    the one until then, and unknown without an evaluation.
    """
    if study.score == SECONDS and is_shared(trials).any():
        return {}
    ended = trials["status"].isin(records.FINISHED)
    if not study.scores_values:
        # other failed trials do not say what their settings do
        ended |= (trials["status"] == "failed") & trials[REACHED].notna()
    own, key = matchable(trials, ended)
    baselines = {c.name: study.baseline_of(c) for c in study.conditions}
    own = own.assign(baseline=own["condition"].map(baselines))
    best = leaders(trials, searches)[["condition", *key]]
    ends = [f"{study.score}_low", f"{study.score}_high"]
    levels = searches[["condition", "search", *ends]]
    pairs = own.merge(best.rename(columns={"condition": "baseline"}), on=["baseline", *key])
    pairs = pairs.merge(levels.rename(columns={"condition": "baseline"}), on=["baseline", "search"])
    score = pairs[study.score_column].astype(float)
    if not study.scores_values:
        at_end = pairs[_COST_COLUMNS[study.score][1]].astype(float).fillna(0.0)
        if study.score != SECONDS:
            budgets = {c.name: study.budget_of(c) or 0 for c in study.conditions}
            longer = at_end.clip(lower=pairs["condition"].map(budgets).astype(float))
            at_end = at_end.mask(pairs["status"] == "diverged", longer)
        low, high = score.fillna(at_end), score.fillna(float("inf"))
    else:
        unknown = score.isna() & (pairs["status"] == "diverged")
        low, high = (score.mask(unknown, end) for end in _UNKNOWN_VALUE)
    compare = bounds.difference if study.scores_values else bounds.ratio
    low, high = compare((low, high), tuple(pairs[end] for end in ends))
    effects = pairs[["condition"]].assign(low=low, high=high)
    return {
        str(name): (group["low"], group["high"]) for name, group in effects.groupby("condition")
    }


def _columns(name: str, summary: bounds.Summary) -> dict[str, float]:
    return {f"{name}_{field}": value for field, value in dataclasses.asdict(summary).items()}


def summary_of(row: Mapping[str, Any], name: str) -> bounds.Summary:
    """The summary of a measure or an effect in a row of `condition_scores`."""
    return bounds.Summary(*(row[f"{name}_{field}"] for field in bounds.FIELDS))


def _share(part: float, whole: float) -> float:
    return float(part) / float(whole) if whole else float("nan")
