"""What a reader has to know before believing the table, found in the records themselves.

Each function looks for one kind of doubt and returns sentences, none where there is no doubt.
"""

import os
from collections.abc import Sequence

import pandas as pd

from analysis import scores as scoring
from analysis.load import COUNTABLE, UNFINISHED, Records
from analysis.study import BEST_VALUE, EDGE, field, near_end, target_text

# The study that the protocol comes from (arXiv 1907.05550) ran 50 to 100 trials and 5 searches.
FEW_TRIALS, FEW_SEARCHES = 50, 5
COARSE = 0.05  # distance between evaluations, as a share of any score


def find(found: Records, root: os.PathLike | None = None) -> list[str]:
    """Every caveat of a study, the gravest first. Paths are given relative to `root`."""
    searches = scoring.search_scores(found.trials, found.study)
    table = scoring.condition_scores(found.trials, found.study)
    return [
        *_set_aside(found, root),
        *_earlier_protocol(found),
        *_baseline(found, table),
        *_not_reached(found, table),
        *_incomplete(found, searches),
        *_cut_short(found),
        *_few(found, table),
        *_boundary(found),
        *_coarse(found, searches),
        *_several_epochs(found, table),
        *_mixed_origins(found.trials),
    ]


def _set_aside(found: Records, root: os.PathLike | None) -> list[str]:
    if not found.set_aside:
        return []
    listed = "; ".join(
        f"{os.path.relpath(path, root) if root else path} ({reason})"
        for path, reason in found.set_aside
    )
    return [f"Unreadable trial directories were set aside and do not count: {listed}."]


def _baseline(found: Records, table: pd.DataFrame) -> list[str]:
    if found.study.score == BEST_VALUE:
        return []
    base = table[table["condition"] == found.study.baseline]
    if base.empty:
        return ["No condition is the baseline, so there are neither ratios nor ideals."]
    if base["searches_reached"].iloc[0] == 0:
        return ["The baseline never reached the target, so there are neither ratios nor ideals."]
    return []


def _not_reached(found: Records, table: pd.DataFrame) -> list[str]:
    if found.study.score == BEST_VALUE:
        return []
    short = table[(table["searches"] > 0) & (table["searches_reached"] < table["searches"])]
    if short.empty:
        return []
    listed = ", ".join(
        f"{row.label} ({row.searches_reached} of {row.searches})" for row in short.itertuples()
    )
    return [
        f"Some searches never reached {target_text(found.study.target)}: {listed} did. The others "
        "are censored: their scores are above what their trials had used, and what follows from "
        "them is a bound."
    ]


def _incomplete(found: Records, searches: pd.DataFrame) -> list[str]:
    study, notes = found.study, []
    status = found.trials["status"]
    open_trials = int((~status.isin((*COUNTABLE, "diverged", "failed"))).sum())
    if open_trials:
        unfinished = int((status == UNFINISHED).sum())
        notes.append(
            f"{open_trials} trials are not over ({unfinished} without a result, "
            f"{open_trials - unfinished} preempted) and do not count yet; scores are provisional."
        )
    if study.trials is None:
        return notes
    short = searches[searches["counted"] < study.trials]
    if len(short):
        listed = ", ".join(f"{r.condition}/{r.search} ({r.counted})" for r in short.itertuples())
        notes.append(
            f"Some searches have fewer than {study.trials} trials that neither diverged nor "
            f"failed: {listed}."
        )
    began = searches.groupby("condition")["search"].nunique()
    behind = [c for c in study.conditions if began.get(c.name, 0) < study.searches]
    if behind:
        listed = ", ".join(f"{c.label} ({began.get(c.name, 0)})" for c in behind)
        notes.append(f"Fewer than the {study.searches} planned searches are on disk: {listed}.")
    return notes


def _cut_short(found: Records) -> list[str]:
    """Trials that stopped at the planned target, and so say nothing about a harder one."""
    target, planned = found.study.target, found.study.planned_target
    ended = int((found.trials["counted"] & (found.trials["status"] == "reached")).sum())
    if found.study.score == BEST_VALUE and ended:
        return [
            f"{ended} counted trials ended on reaching their target ({target_text(planned)}), "
            "before their budget was used up: their best values say less than those of the others."
        ]
    if not target.better(target.value, than=planned.value):
        return []
    counted = found.trials[found.trials["counted"]]
    stopped = counted[(counted["status"] == "reached") & counted[scoring.REACHED].isna()]
    if stopped.empty:
        return []
    return [
        f"{len(stopped)} counted trials ended on reaching the target they were trained for "
        f"({target_text(planned)}); whether and when they would have reached "
        f"{target_text(target)} is not known."
    ]


def _few(found: Records, table: pd.DataFrame) -> list[str]:
    trials = found.study.trials
    searches = found.study.searches or int(table["searches"].max())
    few = []
    if trials is not None and trials < FEW_TRIALS:
        few.append(f"{trials} trials a search, where the original study ran {FEW_TRIALS} to 100")
    if searches < FEW_SEARCHES:
        few.append(f"{searches} searches a condition, where it ran {FEW_SEARCHES}")
    if not few:
        return []
    return [
        f"Small study: {'; '.join(few)}. Small differences between conditions may be luck"
        + (
            f", and over fewer than {FEW_SEARCHES} searches there is a range but no interval."
            if searches < FEW_SEARCHES
            else "."
        )
    ]


def _boundary(found: Records) -> list[str]:
    """Searches whose best trial lies at an end of the search space: the optimum may lie beyond."""
    best = scoring.best_trials(found.trials, found.study, by=("condition", "search"))
    notes = []
    for axis in found.study.search_space:
        name = axis.get("field")
        if name not in best.columns:
            continue
        for end in ("min", "max"):
            close = [row for row in best.to_dict("records") if near_end(axis, row[name]) == end]
            if close:
                listed = ", ".join(
                    f"{row['condition']}/{row['search']} ({row[name]:.4g})" for row in close
                )
                notes.append(
                    f"Optimum at the boundary: the best trial lies within {EDGE:.0%} of the "
                    f"{end} ({axis[end]:g}) of {name}{_in_scale(axis)} in {listed}. "
                    "Widen that axis and search again."
                )
    return notes


def _in_scale(axis) -> str:
    return " (the axis is 1 - value)" if axis["scale"] == "log_one_minus" else ""


def _coarse(found: Records, searches: pd.DataFrame) -> list[str]:
    """Conditions with a search whose score is so small that evaluations hide a part of it."""
    if found.study.score == BEST_VALUE:
        return []
    coarse = searches[searches["resolution"] > COARSE]
    if coarse.empty:
        return []
    worst = coarse.loc[coarse["resolution"].idxmax()]
    score, share = worst["fresh_examples_high"], worst["resolution"]
    return [
        "Scores fall on evaluations, so a score is too large by up to the fresh examples since the "
        f"evaluation before: more than {COARSE:.0%} of a score in "
        f"{coarse['condition'].nunique()} of {len(found.study.conditions)} conditions, most in "
        f"{worst['label']} ({share * score:,.0f} of {score:,.0f}, {share:.0%}). Differences of "
        "this size cannot be seen."
    ]


def _several_epochs(found: Records, table: pd.DataFrame) -> list[str]:
    size, largest = found.study.train_examples, table["fresh_examples_max_low"].max()
    if size is None or pd.isna(largest) or largest <= size:
        return []
    return [
        f"Scores exceed the {size:,} training examples of the data set: reading an example again "
        "in a later epoch counts as fresh again, because upstream works again."
    ]


def _mixed_origins(trials: pd.DataFrame) -> list[str]:
    notes = []
    if len(devices := _distinct(trials["device"])) > 1:
        notes.append(
            f"Trials ran on different hardware ({', '.join(devices)}): compare fresh examples and "
            "steps, not seconds."
        )
    if len(commits := _distinct(trials["commit"])) > 1:
        notes.append(f"Trials ran at different commits: {', '.join(commits)}.")
    return notes


_HORIZON = "optimizer.schedule.horizon_fresh_examples"


def _earlier_protocol(found: Records) -> list[str]:
    """Studies from before the learning rate's decay had a horizon of its own."""
    config = found.study.facts.get("resolved_config") or {}
    if field(config, "optimizer.schedule") is None or field(config, _HORIZON) is not None:
        return []
    return [
        "Made with an earlier protocol: the learning rate decayed over the whole budget, so that "
        "the budget chose the schedule; epoch k was read in the order of data seed + k, so that "
        "searches with neighboring seeds shared orders of the data and are not quite independent; "
        "each of several streams had a shuffle buffer of the full size."
    ]


def _distinct(values: pd.Series) -> Sequence[str]:
    return [str(value) for value in values.dropna().unique()]
