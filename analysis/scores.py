"""The scores of searches and conditions, and the effects of conditions.

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
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from analysis import bounds
from analysis.load import SETTINGS
from runs import records
from runs.study import BEST_VALUE, Study

REACHED = "fresh_examples_to_target"  # a column of trials; missing if the target was not reached
# By measure, the columns of trials that hold it: at the target, at the end of the trial.
_COSTS = {
    "fresh_examples": (REACHED, "fresh_examples"),
    "steps": ("steps_to_target", "steps"),
    "seconds": ("seconds_to_target", "train_seconds"),
}
MEASURES = (*_COSTS, BEST_VALUE)
# By measure, the effect that compares it with the baseline.
EFFECTS = {
    "fresh_examples": "ratio",
    "steps": "steps_ratio",
    "seconds": "seconds_ratio",
    BEST_VALUE: "difference",
}
# The columns of trials that decide the score of a search.
_COLUMNS = ["condition", "label", "insertion", "search", "status", "counted", "lanes"]
_COLUMNS += ["workers", BEST_VALUE, "fresh_examples_before_target", *sum(_COSTS.values(), ())]


def _arrays(trials: pd.DataFrame) -> dict[str, np.ndarray]:
    """_COLUMNS of trials; counts as floats, missing ones as NaN."""
    counts = [name for name in _COLUMNS if isinstance(trials[name].dtype, pd.Int64Dtype)]
    table = trials[_COLUMNS].astype(dict.fromkeys(counts, float))
    return {name: table[name].to_numpy() for name in _COLUMNS}


def _leader(trials: Mapping[str, np.ndarray], study: Study) -> int | None:
    """The position of the counted trial with the smallest score, or with the best value if none
    reached the target or if the study scores best values. The earlier trial wins a tie. None if no
    trial counts, or none was evaluated."""
    for name in dict.fromkeys((study.score_column, BEST_VALUE)):
        known = np.flatnonzero(trials["counted"] & ~np.isnan(trials[name]))
        if len(known):
            highest = name == BEST_VALUE and study.target.mode == "above"
            values = trials[name][known]
            return int(known[values.argmax() if highest else values.argmin()])
    return None


def best_trials(trials: pd.DataFrame, study: Study) -> pd.DataFrame:
    """The rows of `trials` with the best counted trial of each condition."""
    groups = [group for _, group in trials.groupby("condition", sort=False)]
    leaders = [(group.index, _leader(_arrays(group), study)) for group in groups]
    return trials.loc[[index[place] for index, place in leaders if place is not None]]


def leaders(trials: pd.DataFrame, searches: pd.DataFrame) -> pd.DataFrame:
    """The rows of `trials` with the best counted trial of each of `searches` (`search_scores`)."""
    return trials.loc[searches["leader"].dropna()]


def is_shared(trials: Any) -> Any:
    """Which trials took turns with others or shared the machine with other processes.

    Args:
        trials: a table, or a mapping of its columns `lanes` and `workers`.
    """
    return (trials["lanes"] > 1) | (trials["workers"] > 1)


def search_scores(trials: pd.DataFrame, study: Study) -> pd.DataFrame:
    """One row per condition and search.

    Columns: condition, label, insertion, search, ended, counted, diverged (before they reached the
    target, where scores are costs), reached (counted trials that reached the target), shared
    (whether counted trials shared input or cores with others, so that their seconds depend on
    those), leader (index of the best trial), resolution (fresh examples between the evaluation that
    scored and the one before it, as a share of the score); fresh_examples, steps, and seconds of
    the best trial, and best_value (over counted trials, up to the target where training stops
    there), each with the suffixes _low and _high: equal if it was observed, infinite above if no
    trial reached the target, unknown (-inf, or 0 for costs, to inf) if all trials that ended
    diverged or failed, missing if none has ended.
    """
    # A study has up to thousands of searches: arrays, since DataFrames take milliseconds for each.
    arrays = _arrays(trials) | {"index": trials.index.to_numpy()}
    groups = trials.groupby(["condition", "search"]).indices.values()
    return pd.DataFrame(
        [
            _search_row({name: array[own] for name, array in arrays.items()}, study)
            for own in sorted(groups, key=lambda positions: positions[0])
        ]
    )


def _search_row(trials: Mapping[str, np.ndarray], study: Study) -> dict[str, Any]:
    counted, reached = trials["counted"], ~np.isnan(trials[REACHED])
    best = _leader(trials, study)
    scored = best if best is not None and reached[best] else None
    ended = np.isin(trials["status"], records.ENDED)
    diverged = (trials["status"] == "diverged") & (study.scores_values | ~reached)
    resolution = (trials[REACHED] - trials["fresh_examples_before_target"]) / trials[REACHED]
    row = {
        **{name: trials[name][0] for name in ("condition", "label", "insertion", "search")},
        "ended": int(ended.sum()),
        "counted": int(counted.sum()),
        "diverged": int(diverged.sum()),
        "reached": int((counted & reached).sum()),
        "shared": bool((is_shared(trials) & counted).any()),
        "leader": None if best is None else trials["index"][best],
        "resolution": math.nan if scored is None else float(resolution[scored]),
    }
    values = trials[BEST_VALUE][counted & ~np.isnan(trials[BEST_VALUE])]
    for measure in MEASURES:
        if not counted.any():
            unknown = (-math.inf if measure == BEST_VALUE else 0.0), math.inf
            ends = unknown if ended.any() else (math.nan, math.nan)
        elif measure != BEST_VALUE:
            ends = _cost(trials, scored, measure)
        elif len(values):
            ends = (float(values.max() if study.target.mode == "above" else values.min()),) * 2
        else:
            ends = math.nan, math.nan
        row[f"{measure}_low"], row[f"{measure}_high"] = ends
    return row


def _cost(trials: Mapping[str, np.ndarray], best: int | None, measure: str) -> tuple[float, float]:
    """Lower and upper bound of a search's cost; `best` is the position of its best trial.

    A trial that used up its budget has no score. A search whose trials all did so is censored at
    the earliest of their ends: with a larger budget its best trial would have scored more. A trial
    that stopped at an easier target than the one it is judged at is censored in the same way, even
    if another trial of its search reached the target. So is one whose budget was smaller than the
    score, except for seconds.
    """
    to_target, at_end = _COSTS[measure]
    counted, ends = trials["counted"], np.nan_to_num(trials[at_end])
    if best is None:
        return float(ends[counted].min()), math.inf
    score = float(trials[to_target][best])
    cut_short = trials["status"] == "reached"
    if measure != "seconds":
        # Fresh examples decide, since a trial of larger batches takes fewer steps in any budget.
        cut_short |= np.nan_to_num(trials["fresh_examples"]) < trials[REACHED][best]
    cut_short &= counted & np.isnan(trials[REACHED])
    return min([score, *ends[cut_short].tolist()]), score


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
    equal if it is known), _min, _min_high, _max_low, _max, _count; likewise ratio_low and so on.
    """
    searches = search_scores(trials, study)
    rows = []
    for condition in study.conditions:
        baseline = study.baseline_of(condition)
        own, base = (searches[searches["condition"] == name] for name in (condition.name, baseline))
        shared = bool(own["shared"].any() or base["shared"].any())
        row = {"condition": condition.name} | {n: getattr(condition, n) for n in SETTINGS}
        row |= _counts(own) | {"shared": shared, "baseline": baseline}
        rows.append(row | _summaries(own, base, shared, condition.name == baseline))
    table = pd.DataFrame(rows)
    base = table.set_index("condition").reindex(table["baseline"])
    level = base["fresh_examples_low"].where(
        base["fresh_examples_low"] == base["fresh_examples_high"]
    )
    table["ideal_ratio"] = 1 / table["factor"]
    table["ideal_fresh_examples"] = level.to_numpy() / table["factor"]
    return table


def _counts(searches: pd.DataFrame) -> dict[str, Any]:
    counted, ended, reached, diverged = (
        int(searches[name].sum()) for name in ("counted", "ended", "reached", "diverged")
    )
    return {
        "searches": int((searches["ended"] > 0).sum()),
        "searches_reached": int((searches["reached"] > 0).sum()),
        "trials_counted": counted,
        "trials_censored": counted - reached,
        "trials_ended": ended,
        "trials_diverged": diverged,
        "share_reached": reached / counted if counted else math.nan,
        "share_diverged": diverged / ended if ended else math.nan,
        "resolution": searches["resolution"].max(),
    }


def _summaries(
    own: pd.DataFrame, base: pd.DataFrame, shared: bool, itself: bool
) -> dict[str, float]:
    """Summaries of a condition's searches, and of its effects over pairs of searches."""
    _, place, base_place = np.intersect1d(own["search"], base["search"], return_indices=True)
    columns = {}
    for measure, effect in EFFECTS.items():
        own_ends, base_ends = (
            [table[f"{measure}_{end}"].to_numpy(float) for end in ("low", "high")]
            for table in (own, base)
        )
        columns |= _columns(measure, bounds.summary(*own_ends))
        compare = bounds.difference if measure == BEST_VALUE else bounds.ratio
        effects = compare([end[place] for end in own_ends], [end[base_place] for end in base_ends])
        if itself:  # also if its scores are censored
            none = np.full(np.count_nonzero(~np.isnan(effects[0])), float(measure != BEST_VALUE))
            effects = none, none
        if measure == "seconds" and shared:
            effects = (), ()
        columns |= _columns(effect, bounds.summary(*effects))
    return columns


def _columns(name: str, summary: bounds.Summary) -> dict[str, float]:
    return {f"{name}_{field}": value for field, value in dataclasses.asdict(summary).items()}


def summary_of(row: Mapping[str, Any], name: str) -> bounds.Summary:
    """The summary of a measure or an effect in a row of `condition_scores`."""
    return bounds.Summary(*(row[f"{name}_{field}"] for field in bounds.FIELDS))
