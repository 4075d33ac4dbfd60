"""Figures of single trials: what their number bought, and how each hyperparameter mattered."""

import math
import textwrap
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from analysis.figures import labels
from analysis.figures.style import (
    COLOURS,
    FONT,
    QUIET,
    SMALL,
    WIDTH,
    lighter,
    measure_label,
    styled,
    unit,
)
from analysis.scores import best_trials
from analysis.study import BEST_VALUE, EDGE, Study, near_end
from analysis.uncertainty import trial_scores

BINS = 6  # of a hyperparameter's axis, each with its best trial
_DIVERGED, _NOT_REACHED = 1.22, 1.09  # heights above a panel, as fractions of it


@styled
def score_by_trials(curves: pd.DataFrame, study: Study) -> Figure:
    """What a search of n trials scores, a panel per condition: the median, and a band that covers
    the middle 90 % of resampled searches, with those of its baseline in grey.

    Args:
        curves: `uncertainty.score_by_trials`; a curve starts where at least half of the searches
            would reach the target, its band where 95 % would.
        study: says what the scores are.
    """
    scores = ["score", "low", "high"]
    curves = curves.assign(**curves[scores].astype(float).replace([np.inf, -np.inf], np.nan))
    scale, unit_name = unit(curves[scores].max().max())
    curves[scores] /= scale
    lines = dict(list(curves.groupby("condition", sort=False)))
    shown = [c for c in study.conditions if c.name in lines]
    columns = min(3, max(len(shown), 1))
    rows = math.ceil(max(len(shown), 1) / columns)
    figure = Figure(figsize=(WIDTH, 0.6 + 1.5 * rows), layout="constrained")
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).flatten()
    for axes, condition in zip(grid, shown, strict=False):
        baseline = study.baseline_of(condition)
        for name in dict.fromkeys(each for each in (baseline, condition.name) if each in lines):
            colour = COLOURS["none" if name == baseline else condition.insertion]
            _with_band(axes, lines[name], colour)
        axes.set_title(
            textwrap.fill(condition.label, 30), fontsize=SMALL, color=COLOURS[condition.insertion]
        )
    for axes in grid[len(shown) :]:
        axes.set_axis_off()
    if study.score != BEST_VALUE:
        grid[0].set_ylim(bottom=0)
    grid[0].set_xlim(1, max(curves["trials"].max() if len(curves) else 2, 2))
    grid[0].xaxis.get_major_locator().set_params(integer=True)
    figure.supxlabel("trials of a search that neither diverged nor failed", fontsize=FONT)
    words = measure_label(study.score, study)
    figure.supylabel(labels.wrapped(f"{words}{unit_name}", 22 * rows + 14), fontsize=FONT)
    return figure


def _with_band(axes: Axes, line: pd.DataFrame, colour: str) -> None:
    axes.fill_between(
        line["trials"], line["low"], line["high"], color=lighter(colour, 0.45), alpha=0.35, lw=0
    )
    axes.plot(line["trials"], line["score"], color=colour, lw=1.4)


@styled
def trials_by_hyperparameter(trials: pd.DataFrame, study: Study) -> Figure:
    """Every trial's score against each hyperparameter of the search space, a row per condition.

    Steps join the best trial of each sixth of an axis (an isolation plot: the other hyperparameters
    tuned as well as the trials allow); rings mark the best trial of each search. Crosses above a
    panel are trials that did not reach the target or diverged. A shaded end of an axis holds the
    best trial of a search: the optimum may lie beyond it.

    Args:
        trials: `load.load`, whose columns hold the hyperparameters by their dotted names.
        study: says the search space and what a score is.
    """
    space = [axis for axis in study.search_space if axis.get("field") in trials]
    rows = [c for c in study.conditions if (trials["condition"] == c.name).any()]
    scored = trials.assign(score=trial_scores(trials, study).where(trials["counted"]))
    scale, unit_name = unit(scored["score"].max())
    scored["score"] /= scale
    best = best_trials(trials, study, by=("condition", "search"))
    figure = Figure(figsize=(WIDTH, 0.75 + 1.35 * max(len(rows), 1)))
    grid = figure.subplots(
        max(len(rows), 1), max(len(space), 1), sharey=True, sharex="col", squeeze=False
    )
    for line, condition in enumerate(rows):
        own = scored[scored["condition"] == condition.name]
        leaders = best[best["condition"] == condition.name]
        for axes, axis in zip(grid[line], space, strict=True):
            _panel(axes, axis, own, leaders, study, COLOURS[condition.insertion])
        grid[line][0].set_title(
            condition.label, loc="left", fontsize=SMALL, color=COLOURS[condition.insertion], pad=24
        )
        _name_strips(grid[line][0], own)
    for axes, axis in zip(grid[-1], space, strict=True):
        axes.set_xlabel(_axis_words(axis))
    figure.supylabel(f"{measure_label(study.score, study)}{unit_name}", fontsize=SMALL, x=0.01)
    height = figure.get_figheight() * 72
    figure.subplots_adjust(
        left=0.15, right=0.985, bottom=36 / height, top=1 - 34 / height, wspace=0.16, hspace=0.75
    )
    return figure


def _panel(
    axes: Axes, axis: Mapping[str, Any], own: pd.DataFrame, best: pd.DataFrame, study: Study, colour
) -> None:
    place = own[axis["field"]].map(lambda value: _place(axis, value))
    _scale_x(axes, axis)
    scored = own["score"].notna()
    axes.plot(
        place[scored], own.loc[scored, "score"], "o", ms=3, color=lighter(colour, 0.35), mew=0
    )
    _isolation(axes, axis, place[scored], own.loc[scored, "score"], study, colour)
    leading = own.index.isin(best.index) & scored
    axes.plot(place[leading], own.loc[leading, "score"], "o", ms=6, mfc="none", mec=colour, mew=1.1)
    for height, which in (
        (_DIVERGED, own["status"] == "diverged"),
        (_NOT_REACHED, own["counted"] & ~scored),
    ):
        axes.plot(
            place[which],
            [height] * int(which.sum()),
            "x",
            ms=3.2,
            mew=0.7,
            color=QUIET,
            transform=axes.get_xaxis_transform(),
            clip_on=False,
        )
    for end in {near_end(axis, value) for value in best[axis["field"]]} - {None}:
        low, high = _ends(axis)
        inner = _between(axis, EDGE if end == "min" else 1 - EDGE)
        axes.axvspan(
            low if end == "min" else inner,
            inner if end == "min" else high,
            color="#F0E442",
            alpha=0.5,
            lw=0,
            zorder=0,
        )


def _isolation(axes: Axes, axis, place: pd.Series, score: pd.Series, study: Study, colour) -> None:
    """A step for the best score in each part of the axis."""
    if "values" in axis:
        return
    down = study.higher_is_better
    edges = [_between(axis, share) for share in np.linspace(0, 1, BINS + 1)]
    found = score.groupby(pd.cut(place, edges, labels=False, include_lowest=True))
    best = (found.max() if down else found.min()).reindex(range(BINS))
    axes.stairs(best, edges, baseline=None, color=colour, lw=1.0)


def _place(axis: Mapping[str, Any], value: Any) -> float:
    if "values" in axis:
        return float(axis["values"].index(value)) if value in axis["values"] else np.nan
    return 1 - value if axis["scale"] == "log_one_minus" else value


def _ends(axis: Mapping[str, Any]) -> tuple[float, float]:
    return _between(axis, 0.0), _between(axis, 1.0)


def _between(axis: Mapping[str, Any], share: float) -> float:
    """The place at `share` of the axis, in its own scale."""
    low, high = float(axis["min"]), float(axis["max"])
    if axis["scale"] == "linear":
        return low + (high - low) * share
    return low * (high / low) ** share


def _scale_x(axes: Axes, axis: Mapping[str, Any]) -> None:
    if "values" in axis:
        axes.set_xlim(-0.5, len(axis["values"]) - 0.5)
        axes.set_xticks(range(len(axis["values"])), [str(value) for value in axis["values"]])
        return
    if axis["scale"] != "linear":
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlim(*_ends(axis))


def _axis_words(axis: Mapping[str, Any]) -> str:
    words = axis["field"].rpartition(".")[2].replace("_", " ")
    return f"1 - {words}" if axis.get("scale") == "log_one_minus" else words


def _name_strips(axes: Axes, own: pd.DataFrame) -> None:
    """Names the crosses above a row of panels, where there are any."""
    strips = [(_DIVERGED, "diverged", (own["status"] == "diverged").any())]
    missed = (own["counted"] & own["score"].isna()).any()
    strips.append((_NOT_REACHED, "not reached", missed))
    for height, words, shown in strips:
        if shown:
            axes.annotate(
                words,
                (0, height),
                (-4, 0),
                xycoords="axes fraction",
                textcoords="offset points",
                ha="right",
                va="center",
                fontsize=7,
                color=QUIET,
            )
