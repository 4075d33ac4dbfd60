"""Figures of single trials: score by number of trials, and score by each hyperparameter."""

import math
import textwrap

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from analysis.figures.style import (
    COLORS,
    FONT,
    QUIET,
    SMALL,
    WIDTH,
    format_ticks,
    lighter,
    say_if_nothing_reached,
    styled,
)
from analysis.scores import diverged, leaders, search_scores
from analysis.tables import measure_label, unbroken
from analysis.uncertainty import trial_scores
from runs.study import EDGE, Axis, Study

BINS = 6  # of a hyperparameter's axis; each shows its best trial
_MAX_COLUMNS = 3
_YELLOW = "#F0E442"


@styled
def score_by_trials(curves: pd.DataFrame, study: Study) -> Figure:
    """The score of a search of n trials, one panel per condition: the median, and a band with the
    middle 90% of resampled searches; those of its baseline in gray.

    Args:
        curves: `uncertainty.score_by_trials`. A curve starts where at least half of the searches
            would reach the target, its band where 95% would.
        study: says what the scores are.
    """
    scores = ["score", "low", "high"]
    curves = curves.assign(**curves[scores].astype(float).replace([np.inf, -np.inf], np.nan))
    lines = {str(name): line for name, line in curves.groupby("condition", sort=False)}
    conditions = [condition for condition in study.conditions if condition.name in lines]
    columns = min(_MAX_COLUMNS, max(len(conditions), 1))
    rows = math.ceil(max(len(conditions), 1) / columns)
    figure = Figure(figsize=(WIDTH, 0.6 + 1.5 * rows), layout="constrained")
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).flatten()
    for axes, condition in zip(grid, conditions, strict=False):
        baseline = study.baseline_of(condition)
        if baseline in lines:
            _with_band(axes, lines[baseline], COLORS["none"])
        color = COLORS[condition.insertion]
        if condition.name != baseline:
            _with_band(axes, lines[condition.name], color)
        title = textwrap.fill(unbroken(condition.label), 30)
        axes.set_title(title, fontsize=SMALL, color=color)
    for axes in grid[len(conditions) :]:
        axes.set_axis_off()
    if not study.scores_values:
        grid[0].set_ylim(bottom=0)
    grid[0].set_xlim(1, max(curves["trials"].max() if len(curves) else 2, 2))
    grid[0].xaxis.get_major_locator().set_params(integer=True)
    figure.supxlabel("trials of a search that neither diverged nor failed", fontsize=FONT)
    format_ticks(grid[0].yaxis, study.score)
    label = measure_label(study.score, study)
    figure.supylabel(textwrap.fill(label, 22 * rows + 14), fontsize=FONT)
    say_if_nothing_reached(figure, curves["score"].notna().any(), study)
    return figure


def _with_band(axes: Axes, line: pd.DataFrame, color: str) -> None:
    band = lighter(color, 0.45)
    axes.fill_between(line["trials"], line["low"], line["high"], color=band, alpha=0.35, lw=0)
    axes.plot(line["trials"], line["score"], color=color, lw=1.4)


@styled
def trials_by_hyperparameter(trials: pd.DataFrame, study: Study) -> Figure:
    """Every trial's score against each hyperparameter of the search space, one row per condition.

    Steps join the best trial of each sixth of an axis (an isolation plot: the other hyperparameters
    are tuned as well as the trials allow); rings mark the best trial of each search. Crosses above
    a panel are trials that did not reach the target or diverged. A shaded end of an axis holds the
    best trial of a search: the optimum may lie beyond it. An axis of no length has only its trials.

    Args:
        trials: `load.load`, with a column per hyperparameter.
        study: defines the search space and the score.
    """
    space = [axis for axis in study.space if axis.field in trials]
    conditions = [c for c in study.conditions if (trials["condition"] == c.name).any()]
    scored = trials.assign(
        score=trial_scores(trials, study).where(trials["counted"]),
        without_score=(trials["counted"] | diverged(trials, study)),
    )
    scored["without_score"] &= scored["score"].isna()
    best = leaders(trials, search_scores(trials, study))
    rows = max(len(conditions), 1)
    figure = Figure(figsize=(WIDTH, 0.75 + 1.35 * rows))
    grid = figure.subplots(rows, max(len(space), 1), sharey=True, sharex="col", squeeze=False)
    for panels, condition in zip(grid, conditions, strict=False):
        own = scored[scored["condition"] == condition.name]
        leading = best[best["condition"] == condition.name]
        color = COLORS[condition.insertion]
        for axes, axis in zip(panels, space, strict=True):
            _panel(axes, axis, own, leading, study, color)
        title = unbroken(condition.label)
        panels[0].set_title(title, loc="left", fontsize=SMALL, color=color, pad=12)
    for axes, axis in zip(grid[-1], space, strict=True):
        axes.set_xlabel(axis.label, fontsize=SMALL)
    format_ticks(grid[0][0].yaxis, study.score)
    label = textwrap.fill(measure_label(study.score, study), 20 * rows + 10)
    figure.supylabel(label, fontsize=SMALL, x=0.01)
    say_if_nothing_reached(figure, scored["score"].notna().any(), study)
    height = figure.get_figheight() * 72
    margins = {"bottom": 36 / height, "top": 1 - 44 / height, "left": 0.15, "right": 0.985}
    figure.subplots_adjust(**margins, wspace=0.16, hspace=0.6)
    return figure


def _panel(
    axes: Axes, axis: Axis, own: pd.DataFrame, leading: pd.DataFrame, study: Study, color: str
) -> None:
    x = own[axis.field].map(axis.coordinate)
    _scale_x(axes, axis)
    score = own["score"]
    scored = score.notna()
    ringed = own.index.isin(leading.index) & scored
    axes.plot(x[scored], score[scored], "o", ms=3, color=lighter(color, 0.35), mew=0)
    axes.plot(x[ringed], score[ringed], "o", ms=6, mfc="none", mec=color, mew=1.1)
    if not axis.values and axis.min < axis.max:
        edges = [axis.coordinate_at(share) for share in np.linspace(0, 1, BINS + 1)]
        bins = score[scored].groupby(pd.cut(x[scored], edges, labels=False, include_lowest=True))
        best = bins.max() if study.higher_is_better else bins.min()
        axes.stairs(best.reindex(range(BINS)), edges, baseline=None, color=color, lw=1.0)
    missed = x[own["without_score"]]
    above = {"transform": axes.get_xaxis_transform(), "clip_on": False}
    axes.plot(missed, [1.06] * len(missed), "x", ms=3.2, mew=0.7, color=QUIET, **above)
    for end in {axis.near_end(value) for value in leading[axis.field]} - {None}:
        low, high = (0.0, EDGE) if end == "min" else (1 - EDGE, 1.0)
        ends = axis.coordinate_at(low), axis.coordinate_at(high)
        axes.axvspan(*ends, color=_YELLOW, alpha=0.5, lw=0, zorder=0)


def _scale_x(axes: Axes, axis: Axis) -> None:
    if axis.values:
        axes.set_xlim(-0.5, len(axis.values) - 0.5)
        axes.set_xticks(range(len(axis.values)), [str(value) for value in axis.values])
        return
    if axis.scale != "linear":
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
    if axis.min < axis.max:
        axes.set_xlim(axis.coordinate_at(0), axis.coordinate_at(1))
