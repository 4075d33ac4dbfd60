"""Caveats: what a reader must know before relying on a report, as far as its records show it.

Each function looks for one kind of problem and returns sentences, or nothing.
"""

import itertools
import os
from collections.abc import Iterable, Sequence

import pandas as pd

from analysis import scores as scoring
from analysis.load import THEN, LoadedStudy
from analysis.tables import target_text
from runs import records
from runs.progress import several
from runs.study import EDGE

# The study that the protocol comes from (arXiv 1907.05550) ran 50 to 100 trials and 5 searches.
FEW_TRIALS, FEW_SEARCHES = 50, 5
COARSE = 0.05  # the distance between evaluations, as a share of a score
_MAX_LISTED = 12  # of a list; a study may have thousands of searches


def find(loaded: LoadedStudy, root: str | os.PathLike | None = None) -> list[str]:
    """Every caveat of a study, the most serious first. Paths are relative to `root`."""
    searches = scoring.search_scores(loaded.trials, loaded.study)
    table = scoring.condition_scores(loaded.trials, loaded.study)
    return [
        *_set_aside(loaded, root),
        *_not_reached(loaded, table),
        *_incomplete(loaded, searches, table),
        *_diverged(loaded),
        *_boundary(loaded, searches),
        *_coarse(loaded, searches),
        *_machines(loaded.trials),
    ]


def _set_aside(loaded: LoadedStudy, root: str | os.PathLike | None) -> Iterable[str]:
    if loaded.set_aside:
        listed = _listed(
            [
                f"{os.path.relpath(path, root) if root else path} ({reason})"
                for path, reason in loaded.set_aside
            ],
            "; ",
        )
        yield f"Unusable trial directories were set aside and do not count: {listed}."


def _listed(parts: Sequence[str], separator: str = ", ") -> str:
    """A list whose items beyond the first _MAX_LISTED are counted."""
    more = [f"and {len(parts) - _MAX_LISTED:,} more"] if len(parts) > _MAX_LISTED else []
    return separator.join([*parts[:_MAX_LISTED], *more])


def _not_reached(loaded: LoadedStudy, table: pd.DataFrame) -> Iterable[str]:
    """Searches without a known score, and trials that stopped at an easier target."""
    study = loaded.study
    base = table[table["condition"].isin(table["baseline"])]  # one for each batch size
    if not study.scores_values and not base["searches"].any():
        yield "There are no ratios and no ideals, since no trial of a baseline has ended."
    short = table[(table["searches"] > 0) & (table["searches_reached"] < table["searches"])]
    if len(short) and not study.scores_values:
        listed = _listed(
            [f"{r.label} ({r.searches_reached} of {r.searches})" for r in short.itertuples()]
        )
        yield (
            f"Some searches never reached {target_text(study.target)}. Searches that did: "
            f"{listed}. The others are censored: their scores are above what their trials had "
            "used (not known if all diverged), and the numbers derived from them are bounds."
        )
    counted = loaded.trials[loaded.trials["counted"]]
    early = counted[counted["status"] == "reached"]
    if not study.scores_values:
        early = early[early[scoring.REACHED].isna()]
    if len(early):
        yield (
            f"{several(len(early), 'counted trial')} ended on reaching an easier target "
            f"({target_text(study.planned_target)}), so what they would have reached later is "
            "unknown."
        )


def _incomplete(loaded: LoadedStudy, searches: pd.DataFrame, table: pd.DataFrame) -> Iterable[str]:
    """Trials and searches that have not ended, or that were never planned."""
    study, status = loaded.study, loaded.trials["status"]
    if running := int((~status.isin(records.ENDED)).sum()):
        yield f"Trials that have not ended do not count yet: {running}. Scores are provisional."
    short = searches[searches["counted"] < study.trials]
    if len(short):
        listed = _listed([f"{r.condition}/{r.search} ({r.counted})" for r in short.itertuples()])
        yield (
            f"Some searches have fewer than {several(study.trials, 'trial')} that neither "
            f"diverged nor failed: {listed}."
        )
    started = searches.groupby("condition")["search"].nunique()
    behind = [c for c in study.conditions if int(started.get(c.name) or 0) < study.searches]
    if behind:
        listed = _listed([f"{c.label} ({started.get(c.name, 0)})" for c in behind])
        yield f"Searches are missing, of {study.searches} planned for each condition: {listed}."
    planned = study.searches or int(table["searches"].max())
    if 0 < study.trials < FEW_TRIALS or planned < FEW_SEARCHES:
        yield (
            f"Small study: the paper ran {FEW_TRIALS} to 100 trials per search and {FEW_SEARCHES} "
            "searches per condition. Small differences may be noise"
            + ("." if planned >= FEW_SEARCHES else ", and there is a range but no interval.")
        )


def _diverged(loaded: LoadedStudy) -> Iterable[str]:
    """Pairs with matched seeds that are missing because one side diverged."""
    trials, study = loaded.trials, loaded.study
    trials = trials.assign(diverged=scoring.diverged(trials, study))
    known, key = scoring.matchable(trials, trials["counted"] | trials["diverged"])
    listed = []
    for condition in study.conditions:
        own, base = (
            known.loc[known["condition"] == name, [*key, "diverged"]]
            for name in (condition.name, study.baseline_of(condition))
        )
        both = own.merge(base, on=key, suffixes=("", "_of_baseline"))
        alone = int((both["diverged"] & ~both["diverged_of_baseline"]).sum())
        baseline_alone = int((both["diverged_of_baseline"] & ~both["diverged"]).sum())
        if alone or baseline_alone:
            listed.append(f"{condition.label} ({alone}, its baseline {baseline_alone})")
    if listed:
        yield (
            "A diverged trial forms no pair with matched seeds, which favors the side that "
            f"diverges more often. Trials of which only one side diverged: {_listed(listed)}."
        )


def _boundary(loaded: LoadedStudy, searches: pd.DataFrame) -> Iterable[str]:
    """Searches whose best trial lies at an end of the search space."""
    best = scoring.leaders(loaded.trials, searches).to_dict("records")
    for axis, end in itertools.product(loaded.study.space, ("min", "max")):
        close = [r for r in best if axis.near_end(r[axis.field]) == end]
        if close:
            listed = _listed(
                [f"{r['condition']}/{r['search']} ({r[axis.field]:.4g})" for r in close]
            )
            scale = " (the axis is 1 - value)" if axis.scale == "log_one_minus" else ""
            yield (
                f"Optimum at the boundary: the best trial lies within {EDGE:.0%} of the {end} "
                f"({getattr(axis, end):g}) of {axis.field}{scale} in {listed}. Widen that axis, "
                "if its field allows it, and search again."
            )


def _coarse(loaded: LoadedStudy, searches: pd.DataFrame) -> Iterable[str]:
    """Scores that depend on when trials were evaluated."""
    if loaded.study.scores_values:
        return
    coarse = searches[searches["resolution"] > COARSE]
    if not coarse.empty:
        worst = coarse.loc[coarse["resolution"].idxmax()]
        yield (
            "Scores are read at evaluations, so a score is too large by up to the fresh examples "
            f"since the evaluation before: more than {COARSE:.0%} of a score in "
            f"{coarse['condition'].nunique()} of {len(loaded.study.conditions)} conditions, most "
            f"in {worst['label']} ({worst['resolution']:.0%}). Differences of this size are not "
            "resolved."
        )


def _machines(trials: pd.DataFrame) -> Iterable[str]:
    """Trials whose clocks include other trials, or are of different machines."""
    if scoring.is_shared(trials).any():
        yield (
            f"Up to {int(trials['lanes'].max())} trials took turns on one input (lanes), and "
            f"{int(trials['workers'].max())} processes trained at once on one machine (workers). "
            "Their seconds, marked *, depend on the other trials and are not compared."
        )
    for column, said in (
        (
            "device",
            "Trials ran on different hardware, so compare fresh examples and steps, not seconds",
        ),
        ("commit", "Trials ran at different commits"),
    ):
        names = (name for text in trials[column].dropna() for name in text.split(THEN))
        if len(different := dict.fromkeys(names)) > 1:
            yield f"Trials ran on different {said}: {_listed(list(different))}."
