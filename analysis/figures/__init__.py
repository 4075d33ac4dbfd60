"""The figures of a study, one function each: DataFrames in, a matplotlib Figure out.

`of_study` draws all that a study calls for. The figures belong to no pyplot state, so they work
without a display. In a notebook, `%matplotlib inline` shows a Figure that a cell returns.
"""

from matplotlib.figure import Figure

from analysis import axes, load, scores, uncertainty
from analysis.figures.conditions import best_values, cost_to_target
from analysis.figures.curves import AGAINST, best_trial_curves
from analysis.figures.paired import paired_effects
from analysis.figures.settings import by_setting
from analysis.figures.trials import score_by_trials, trials_by_hyperparameter
from analysis.load import Records
from analysis.study import BEST_VALUE, SECONDS

__all__ = [
    "best_trial_curves",
    "best_values",
    "by_setting",
    "cost_to_target",
    "of_study",
    "paired_effects",
    "results",
    "score_by_trials",
    "trials_by_hyperparameter",
]


def of_study(found: Records) -> dict[str, Figure]:
    """Every figure that the study's conditions and records call for, by name, the result first.

    A study that varies a number (echoing factor, batch size, shuffle buffer) is drawn against it,
    any other as bars; one judged by final quality shows best values; one judged by seconds
    shows fresh examples too.
    """
    drawn = results(found)
    best = scores.best_trials(found.trials, found.study)
    lines = load.curves(best, found.study.target.metric)
    for against in AGAINST:
        name = "best_trial_curves" + ("" if against == AGAINST[0] else f"_by_{against}")
        drawn[name] = best_trial_curves(lines, found.study, against)
    drawn["score_by_trials"] = score_by_trials(
        uncertainty.score_by_trials(found.trials, found.study), found.study
    )
    if found.study.search_space:
        drawn["trials_by_hyperparameter"] = trials_by_hyperparameter(found.trials, found.study)
    paired = uncertainty.pairs(found.trials, found.study)
    effects = uncertainty.paired_effects(paired, found.study)
    if effects["p"].notna().any():  # enough pairs for an interval
        drawn["paired_effects"] = paired_effects(paired, effects, found.study)
    return drawn


def results(found: Records) -> dict[str, Figure]:
    """What the study is about, by name: one figure, beside seconds another of fresh examples."""
    study = found.study
    table = scores.condition_scores(found.trials, study)
    searches = scores.search_scores(found.trials, study)
    axis = axes.numeric_axis(study)
    measures = [study.score, *(["fresh_examples"] if study.score == SECONDS else [])]
    if axis is not None:
        return {f"{m}_by_{axis.name}": by_setting(table, axis, study, m) for m in measures}
    if study.score == BEST_VALUE:
        return {"best_values": best_values(table, searches, study)}
    return {f"{m}_to_target": cost_to_target(table, searches, study, m) for m in measures}
