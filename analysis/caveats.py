"""Caveats: what a reader must know before relying on a report, as far as its records show it.

Each function looks for one kind of problem and returns sentences, or nothing.
"""

import os
from collections.abc import Iterable

import pandas as pd

from analysis import scores as scoring
from analysis.load import THEN, UNFINISHED, LoadedStudy
from analysis.tables import target_text
from runs import records
from runs.progress import several
from runs.study import EDGE, nested, plain

# The study that the protocol comes from (arXiv 1907.05550) ran 50 to 100 trials and 5 searches.
FEW_TRIALS, FEW_SEARCHES = 50, 5
COARSE = 0.05  # the distance between evaluations, as a share of a score
_MAX_LISTED = 12  # of a list; a study may have thousands of searches
_MAX_NAME = 60  # characters of a field's name


def find(loaded: LoadedStudy, root: str | os.PathLike | None = None) -> list[str]:
    """Every caveat of a study, the most serious first. Paths are relative to `root`."""
    searches = scoring.search_scores(loaded.trials, loaded.study)
    table = scoring.condition_scores(loaded.trials, loaded.study)
    return [
        *_set_aside(loaded, root),
        *_earlier_protocol(loaded),
        *_planless(loaded),
        *_differing(loaded),
        *_baseline(loaded, table),
        *_not_reached(loaded, table),
        *_unknown_values(loaded, searches),
        *_incomplete(loaded, searches),
        *_diverged(loaded),
        *_cut_short(loaded),
        *_few(loaded, table),
        *_boundary(loaded, searches),
        *_coarse(loaded, searches),
        *_unequally_often(loaded),
        *_several_epochs(loaded, table),
        *_shared(loaded.trials),
        *_mixed_origins(loaded.trials),
    ]


def _planless(loaded: LoadedStudy) -> Iterable[str]:
    """Trials whose study.json is missing, or was not given."""
    if loaded.planless:
        yield (
            f"Trials of a study are read as single runs, without its {records.STUDY}, so which of "
            "them count, and as what, is derived from their settings. Give the study's directory; "
            "if its study.json is missing there, restore it from a copy."
        )


def _differing(loaded: LoadedStudy) -> Iterable[str]:
    """Single runs that are no search, or no comparison of echo settings, since more differs."""
    within, across = (
        _listed(plain(name, _MAX_NAME) for name in names)
        for names in (loaded.differing, loaded.unlike)
    )
    if within:
        yield (
            f"Runs of one condition differ in more than optimizer and seeds ({within}), so the "
            "best of them is not a tuned result. Analyze runs with equal settings together."
        )
    if across:
        yield (
            f"Conditions differ in more than echoing, batch size, optimizer, and seeds ({across}), "
            "so ratios are not the effect of echoing alone. Runs of different workloads, models, "
            "losses, data, or augmentations form no pairs with matched seeds."
        )


def _listed(parts: Iterable[str], separator: str = ", ") -> str:
    """A list whose items beyond the first _MAX_LISTED are counted."""
    parts = list(parts)
    listed = separator.join(parts[:_MAX_LISTED])
    more = len(parts) - _MAX_LISTED
    return f"{listed}{separator}and {more:,} more" if more > 0 else listed


def _set_aside(loaded: LoadedStudy, root: str | os.PathLike | None) -> Iterable[str]:
    if loaded.set_aside:
        listed = _listed(
            (
                f"{os.path.relpath(path, root) if root else path} ({reason})"
                for path, reason in loaded.set_aside
            ),
            "; ",
        )
        yield f"Unusable trial directories were set aside and do not count: {listed}."


def _baseline(loaded: LoadedStudy, table: pd.DataFrame) -> Iterable[str]:
    if loaded.study.scores_values:
        return
    base = table[table["condition"].isin(table["baseline"])]  # one for each batch size
    if base.empty:
        yield "No condition is the baseline, so there are no ratios and no ideals."
    elif not base["searches"].any():
        yield "No trial of the baseline has ended, so there are no ratios and no ideals yet."
    elif not base["searches_reached"].any():
        yield (
            "The baseline never reached the target, so ratios are upper bounds or unknown, and "
            "there are no ideals."
        )


def _not_reached(loaded: LoadedStudy, table: pd.DataFrame) -> Iterable[str]:
    short = table[(table["searches"] > 0) & (table["searches_reached"] < table["searches"])]
    if len(short) and not loaded.study.scores_values:
        listed = _listed(
            f"{row.label} ({row.searches_reached} of {row.searches})" for row in short.itertuples()
        )
        yield (
            f"Some searches never reached {target_text(loaded.study.target)}. Searches that did: "
            f"{listed}. The others are censored: their scores are above what their trials had "
            "used (not known if all diverged), and the numbers derived from them are bounds."
        )


def _unknown_values(loaded: LoadedStudy, searches: pd.DataFrame) -> Iterable[str]:
    """Searches without a best value, since all of their trials diverged or failed."""
    unknown = searches[(searches["counted"] == 0) & (searches["ended"] > 0)]
    if len(unknown) and loaded.study.scores_values:
        listed = _listed(f"{row.condition}/{row.search}" for row in unknown.itertuples())
        yield (
            "No trial of some searches counts, so their best values are not known, and the numbers "
            f"derived from them are bounds: {listed}."
        )


def _incomplete(loaded: LoadedStudy, searches: pd.DataFrame) -> Iterable[str]:
    study, status = loaded.study, loaded.trials["status"]
    running = int((~status.isin(records.ENDED)).sum())
    if running:
        unfinished = int((status == UNFINISHED).sum())
        have, do = ("has", "does") if running == 1 else ("have", "do")
        yield (
            f"{several(running, 'trial')} {have} not ended ({unfinished} without a result, "
            f"{running - unfinished} preempted) and {do} not count yet; scores are provisional."
        )
    if not study.trials:
        return
    short = searches[searches["counted"] < study.trials]
    if len(short):
        listed = _listed(f"{r.condition}/{r.search} ({r.counted})" for r in short.itertuples())
        yield (
            f"Some searches have fewer than {several(study.trials, 'trial')} that neither "
            f"diverged nor failed: {listed}."
        )
    started = searches.groupby("condition")["search"].nunique()
    behind = [c for c in study.conditions if int(started.get(c.name) or 0) < study.searches]
    if behind:
        listed = _listed(f"{c.label} ({started.get(c.name, 0)})" for c in behind)
        yield f"Searches are missing, of {study.searches} planned for each condition: {listed}."


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


def _cut_short(loaded: LoadedStudy) -> Iterable[str]:
    """Trials that stopped at the planned target, and so say nothing about a harder one."""
    target, planned = loaded.study.target, loaded.study.planned_target
    counted = loaded.trials[loaded.trials["counted"]]
    reached = counted[counted["status"] == "reached"]
    if loaded.study.scores_values:
        if len(reached):
            yield (
                f"{several(len(reached), 'counted trial')} ended on reaching their target "
                f"({target_text(planned)}), before their budget was used up: their best values "
                "understate what they would have reached."
            )
    elif target.better(target.value, than=planned.value):
        stopped = int(reached[scoring.REACHED].isna().sum())
        if stopped:
            yield (
                f"{several(stopped, 'counted trial')} ended on reaching an easier target "
                f"({target_text(planned)}); whether and when they would have reached "
                f"{target_text(target)} is unknown."
            )


def _few(loaded: LoadedStudy, table: pd.DataFrame) -> Iterable[str]:
    trials = loaded.study.trials
    searches = loaded.study.searches or int(table["searches"].max())
    few = []
    if 0 < trials < FEW_TRIALS:
        few.append(f"{several(trials, 'trial')} per search (the paper ran {FEW_TRIALS} to 100)")
    if searches < FEW_SEARCHES:
        few.append(f"{several(searches, 'search')} per condition (the paper ran {FEW_SEARCHES})")
    if few:
        yield (
            f"Small study: {'; '.join(few)}. Small differences between conditions may be noise"
            + (
                f", and with fewer than {FEW_SEARCHES} searches there is a range but no interval."
                if searches < FEW_SEARCHES
                else "."
            )
        )


def _boundary(loaded: LoadedStudy, searches: pd.DataFrame) -> Iterable[str]:
    """Searches whose best trial lies at an end of the search space."""
    best = scoring.leaders(loaded.trials, searches)
    for axis in loaded.study.space:
        if axis.field not in best.columns:
            continue
        for end in ("min", "max"):
            close = [r for r in best.to_dict("records") if axis.near_end(r[axis.field]) == end]
            if close:
                listed = _listed(
                    f"{r['condition']}/{r['search']} ({r[axis.field]:.4g})" for r in close
                )
                scale = " (the axis is 1 - value)" if axis.scale == "log_one_minus" else ""
                yield (
                    f"Optimum at the boundary: the best trial lies within {EDGE:.0%} of the {end} "
                    f"({getattr(axis, end):g}) of {axis.field}{scale} in {listed}. Widen that "
                    "axis, if its field allows it, and search again."
                )


def _coarse(loaded: LoadedStudy, searches: pd.DataFrame) -> Iterable[str]:
    """Conditions with a search whose score is small compared with the evaluation interval."""
    coarse = searches[searches["resolution"] > COARSE]
    if loaded.study.scores_values or coarse.empty:
        return
    worst = coarse.loc[coarse["resolution"].idxmax()]
    score, share = worst["fresh_examples_high"], worst["resolution"]
    yield (
        "Scores are read at evaluations, so a score is too large by up to the fresh examples since "
        f"the evaluation before: more than {COARSE:.0%} of a score in "
        f"{coarse['condition'].nunique()} of {len(loaded.study.conditions)} conditions, most in "
        f"{worst['label']} ({share * score:,.0f} of {score:,.0f}, {share:.0%}). Differences of "
        "this size are not resolved."
    )


def _unequally_often(loaded: LoadedStudy) -> Iterable[str]:
    """Best values of trials that were not evaluated at the same numbers of fresh examples."""
    intervals = loaded.trials.loc[loaded.trials["counted"], "evaluation_interval"].dropna()
    if loaded.study.scores_values and intervals.nunique() > 1:
        yield (
            f"Trials were evaluated every {intervals.min():,.0f} to {intervals.max():,.0f} fresh "
            "examples. The best of more evaluations is better by chance, so differences may be too "
            "large in favor of conditions that were evaluated more often."
        )


def _several_epochs(loaded: LoadedStudy, table: pd.DataFrame) -> Iterable[str]:
    size = nested(loaded.study.record, "dataset.train_examples")
    largest = table["fresh_examples_max_low"].max()
    if size is not None and pd.notna(largest) and largest > size:
        yield (
            f"Trials took more fresh examples than the data set's {size:,} training examples: one "
            "that is read again in a later epoch counts as fresh again, because the upstream "
            "stages process it again."
        )


def _shared(trials: pd.DataFrame) -> Iterable[str]:
    """Trials whose clocks include other trials."""
    if scoring.is_shared(trials).any():
        most = {name: int(trials[name].max()) for name in ("lanes", "workers")}
        how = " and ".join(
            text.format(most[name])
            for name, text in (
                ("lanes", "up to {} took turns on one input (lanes)"),
                ("workers", "{} processes trained at once on one machine (workers)"),
            )
            if most[name] > 1
        )
        yield (
            f"Trials shared input or cores: {how}. Their seconds, marked *, depend on the other "
            "trials and are not compared."
        )


def _mixed_origins(trials: pd.DataFrame) -> Iterable[str]:
    devices, commits, paces = (
        list(dict.fromkeys(name for names in trials[column].dropna() for name in names.split(by)))
        for column, by in (("device", THEN), ("commit", THEN), ("paces", ", "))
    )
    if len(devices) > 1:
        yield (
            f"Trials ran on different hardware ({_listed(devices)}): compare fresh examples and "
            "steps, not seconds."
        )
    if paces:
        resumed = several(int(trials["paces"].notna().sum()), "trial")
        yield (
            f"{resumed} resumed on other hardware or with other settings ({_listed(paces)}), so "
            "that seconds mix several paces: compare fresh examples and steps."
        )
    if len(commits) > 1:
        yield f"Trials ran at different commits: {_listed(commits)}."


def _earlier_protocol(loaded: LoadedStudy) -> Iterable[str]:
    """Studies from before the learning-rate schedule had a horizon of its own."""
    config = loaded.study.config or nested(loaded.study.record, "config")  # of single runs
    schedule = nested(config, "optimizer.schedule")
    if schedule is not None and "horizon_fresh_examples" not in schedule:
        yield (
            "Made with an earlier protocol: the learning rate decayed over the whole budget, so "
            "the budget determined the schedule; epoch k was read in the order of data seed + k, "
            "so searches with neighboring seeds shared data orders and are not fully independent; "
            "each of several streams had a shuffle buffer of the full size."
        )
