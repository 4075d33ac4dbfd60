"""Caveats: what a reader must know before relying on a report, as far as its records show it.

Each function looks for one kind of problem and returns sentences, or nothing.
"""

import itertools
import os
from collections.abc import Iterator

import pandas as pd

from analysis import scores as scoring
from analysis.load import THEN, LoadedStudy, listed
from analysis.tables import target_text
from runs import records
from runs.progress import several
from runs.study import EDGE

# The study that the protocol comes from (arXiv 1907.05550) ran 50 to 100 trials and 5 searches.
FEW_TRIALS, FEW_SEARCHES = 50, 5
COARSE = 0.05  # the distance between evaluations, as a share of a score


def find(loaded: LoadedStudy, root: str | os.PathLike | None = None) -> list[str]:
    """Every caveat of a study, the most serious first. Paths are relative to `root`."""
    searches = scoring.search_scores(loaded.trials, loaded.study)
    table = scoring.condition_scores(loaded.trials, loaded.study)
    return [
        *filter(None, [loaded.warning(root)]),
        *_not_reached(loaded, table),
        *_incomplete(loaded, searches),
        *_boundary(loaded, searches),
        *_coarse(loaded, searches),
        *_machines(loaded.trials),
    ]


def _not_reached(loaded: LoadedStudy, table: pd.DataFrame) -> Iterator[str]:
    """Searches without a known score, and trials that stopped at an easier target."""
    study = loaded.study
    short = table[(table["searches"] > 0) & (table["searches_reached"] < table["searches"])]
    if len(short) and not study.scores_values:
        named = [f"{r.label} ({r.searches_reached} of {r.searches})" for r in short.itertuples()]
        yield (
            f"Some searches never reached {target_text(study.target)}. Searches that did: "
            f"{listed(named)}. The others are censored: their scores are above what their trials "
            "had used (not known if all diverged), and the numbers derived from them are bounds."
        )
    early = loaded.trials["counted"] & (loaded.trials["status"] == "reached")
    if not study.scores_values:
        early &= loaded.trials[scoring.REACHED].isna()
    if early.any():
        yield (
            f"{several(int(early.sum()), 'counted trial')} ended on reaching an easier target "
            f"({target_text(study.planned_target)}), so what they would have reached later is "
            "unknown."
        )


def _incomplete(loaded: LoadedStudy, searches: pd.DataFrame) -> Iterator[str]:
    """Trials and searches that have not ended, or that were never planned."""
    study = loaded.study
    if running := int((~loaded.trials["status"].isin(records.ENDED)).sum()):
        yield f"Trials that have not ended do not count yet: {running}. Scores are provisional."
    short = searches[searches["counted"] < study.trials]
    if len(short):
        named = [f"{r.condition}/{r.search} ({r.counted})" for r in short.itertuples()]
        yield (
            f"Some searches have fewer than {several(study.trials, 'trial')} that neither "
            f"diverged nor failed: {listed(named)}."
        )
    started = searches["condition"].value_counts()
    begun = {c.label: int(started.get(c.name) or 0) for c in study.conditions}
    behind = [f"{label} ({number})" for label, number in begun.items() if number < study.searches]
    if behind:
        number = study.searches
        yield f"Searches are missing, of {number} planned for each condition: {listed(behind)}."
    if study.trials < FEW_TRIALS or study.searches < FEW_SEARCHES:
        yield (
            f"Small study: the paper ran {FEW_TRIALS} to 100 trials per search and {FEW_SEARCHES} "
            "searches per condition. Small differences may be noise"
            + ("." if study.searches >= FEW_SEARCHES else ", and there is a range but no interval.")
        )


def _boundary(loaded: LoadedStudy, searches: pd.DataFrame) -> Iterator[str]:
    """Searches whose best trial lies at an end of the search space."""
    best = scoring.leaders(loaded.trials, searches).to_dict("records")
    for axis, end in itertools.product(loaded.study.space, ("min", "max")):
        close = [r for r in best if axis.near_end(r[axis.field]) == end]
        if close:
            named = [f"{r['condition']}/{r['search']} ({r[axis.field]:.4g})" for r in close]
            scale = " (the axis is 1 - value)" if axis.scale == "log_one_minus" else ""
            yield (
                f"Optimum at the boundary: the best trial lies within {EDGE:.0%} of the {end} "
                f"({getattr(axis, end):g}) of {axis.field}{scale} in {listed(named)}. Widen that "
                "axis, if its field allows it, and search again."
            )


def _coarse(loaded: LoadedStudy, searches: pd.DataFrame) -> Iterator[str]:
    """Scores that depend on when trials were evaluated."""
    coarse = searches[searches["resolution"] > COARSE]
    if len(coarse) and not loaded.study.scores_values:
        worst = coarse.loc[coarse["resolution"].idxmax()]
        yield (
            "Scores are read at evaluations, so a score is too large by up to the fresh examples "
            f"since the evaluation before: more than {COARSE:.0%} of a score in "
            f"{coarse['condition'].nunique()} of {len(loaded.study.conditions)} conditions, most "
            f"in {worst['label']} ({worst['resolution']:.0%}). Differences of this size are not "
            "resolved."
        )


def _machines(trials: pd.DataFrame) -> Iterator[str]:
    """Trials whose clocks include other trials, or are of different machines."""
    if scoring.is_shared(trials).any():
        lanes, workers = (int(trials[name].max()) for name in ("lanes", "workers"))
        how = [f"up to {lanes} took turns on one input (lanes)"] * (lanes > 1)
        how += [f"{workers} processes trained at once on one machine (workers)"] * (workers > 1)
        yield (
            f"Trials shared input or cores: {' and '.join(how)}. Their seconds, marked *, depend "
            "on the other trials and are not compared."
        )
    for column, said in (
        ("device", "on different hardware, so compare fresh examples and steps, not seconds"),
        ("commit", "at different commits"),
    ):
        different = {name for text in trials[column].dropna() for name in text.split(THEN)}
        if len(different) > 1:
            yield f"Trials ran {said}: {listed(sorted(different))}."
