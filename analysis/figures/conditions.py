"""Figures with one row per condition: its scores, and its effect with matched seeds."""

import math
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from analysis.figures.style import (
    COLORS,
    DOTTED,
    QUIET,
    WIDTH,
    format_ticks,
    legend_below,
    lighter,
    say_if_nothing_reached,
    styled,
)
from analysis.scores import EFFECTS
from analysis.tables import (
    effect_text,
    measure_label,
    paired_text,
    score_text,
    unbroken,
    used_text,
)
from runs.progress import several
from runs.study import BEST_VALUE, Study


@styled
def by_condition(
    scores: pd.DataFrame, searches: pd.DataFrame, study: Study, measure: str = ""
) -> Figure:
    """The score of each condition: a large dot for the median, a line for the range, a dot per
    search, and the effect as text.

    A search that never reached the target is a triangle at what its trials had used; its score is
    larger. A dotted line is the median of the condition's baseline. For fresh examples, a black
    stroke shows the ideal, that median / e.

    Args:
        scores: `scores.condition_scores`, one row per condition.
        searches: `scores.search_scores`, one row per search.
        study: defines the target.
        measure: one of `scores.MEASURES`; by default the one that the study scores.
    """
    measure = measure or study.score
    figure, axes = _rows(scores["label"])
    low, high = f"{measure}_low", f"{measure}_high"
    known = scores[scores[low] == scores[high]].set_index("condition")[low]
    ideal_label = "ideal: baseline / e"
    for row, condition in enumerate(scores.to_dict("records")):
        name, baseline = condition["condition"], condition["baseline"]
        color = COLORS[condition["insertion"]]
        _annotate(axes, row, _score_and_effect(condition, measure))
        if baseline in known:
            _stroke(axes, row, known[baseline], 0.5, color=QUIET, lw=0.6, ls=DOTTED, zorder=0)
        own = searches[(searches["condition"] == name) & np.isfinite(searches[low])]
        if len(own) > 1:
            ends = [own[low].min(), own[low].max()]
            axes.plot(ends, [row, row], color=color, lw=1.2, marker="|", ms=11, mew=1.2)
        if name in known:
            axes.plot(known[name], row, "o", ms=7, mfc=lighter(color, 0.6), mec=color, zorder=1.5)
        censored = np.isinf(own[high])
        for marker, size, x in (("o", 3.2, own[low][~censored]), (">", 4.5, own[low][censored])):
            axes.plot(x, [row] * len(x), marker, ms=size, color=color)
        ideal, echoes = condition["ideal_fresh_examples"], condition["factor"] > 1
        if measure == "fresh_examples" and echoes and name != baseline and ideal < math.inf:
            _stroke(axes, row, ideal, 0.28, color="black", lw=1.2, label=ideal_label)
            ideal_label = None  # one legend entry
    if measure == BEST_VALUE:
        axes.margins(x=0.06)
    else:
        axes.set_xlim(left=0)
    format_ticks(axes.xaxis, measure)
    axes.set_xlabel(measure_label(measure, study))
    say_if_nothing_reached(figure, scores["searches_reached"].any(), study)
    legend_below(figure, axes)
    return figure


@styled
def paired_effects(paired: pd.DataFrame, effects: pd.DataFrame, study: Study) -> Figure:
    """A stroke per pair of trials, a dot for the effect at which their signs balance, and a line
    for its 95% interval, which runs to the edge if it is open.

    A triangle is a pair in which one side did not reach the target: the effect of the pair lies in
    the direction of the triangle.

    Args:
        paired: `uncertainty.pairs`.
        effects: `uncertainty.paired_effects` of them.
        study: says whether effects are ratios of costs or differences of best values.
    """
    figure, axes = _rows(effects["label"])
    if not study.scores_values:
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
    for row, effect in enumerate(effects.to_dict("records")):
        own = paired[paired["condition"] == effect["condition"]]
        _strokes(axes, row, own, lighter(COLORS[effect["insertion"]], 0.45), study)
    edges = axes.get_xlim()
    for row, effect in enumerate(effects.to_dict("records")):
        color = COLORS[effect["insertion"]]
        if pd.notna(effect["low"]):
            interval = np.clip([effect["low"], effect["high"]], *edges)
            axes.plot(interval, [row, row], color=color, lw=1.6)
        if effect["effect_low"] == effect["effect_high"]:
            axes.plot(effect["effect_low"], row, "o", ms=5, color=color)
        _annotate(axes, row, f"{paired_text(effect, study)}\n{used_text(effect)} pairs used")
    axes.set_xlim(edges)
    axes.axvline(0 if study.scores_values else 1, color=QUIET, lw=0.8, ls=DOTTED, zorder=0)
    axes.set_xlabel(
        f"best {study.target.metric}, difference to the baseline with matched seeds"
        if study.scores_values
        else f"{study.score.replace('_', ' ')} to target, ratio to the baseline with matched seeds"
    )
    return figure


def _rows(labels: Sequence[str]) -> tuple[Figure, Axes]:
    """A figure with one row per condition, the first one on top."""
    figure = Figure(figsize=(WIDTH, 0.8 + 0.5 * len(labels)), layout="constrained")
    axes = figure.add_subplot()
    axes.set_yticks(range(len(labels)), [textwrap.fill(unbroken(x), 28) for x in labels])
    axes.set_ylim(len(labels) - 0.42, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.locator_params(axis="x", nbins=5)  # the texts leave little width
    return figure, axes


def _annotate(axes: Axes, row: int, text: str) -> None:
    """Text to the right of the axes; constrained layout makes room for it."""
    place = {"xycoords": axes.get_yaxis_transform(), "textcoords": "offset points"}
    axes.annotate(text, (1, row), (8, 0), va="center", **place)


def _stroke(axes: Axes, row: int, x: float, half: float, **style: Any) -> None:
    axes.plot([x, x], [row - half, row + half], **style)


def _score_and_effect(condition: Mapping[str, Any], measure: str) -> str:
    """The median, its effect, and how many searches reached the target."""
    if not condition[f"{measure}_count"]:
        return "no trial has ended yet"
    lines = [score_text(condition, measure)]
    effect, baseline = EFFECTS[measure], condition["baseline"]
    if condition[f"{effect}_count"] and baseline not in (condition["condition"], None):
        lines.append(effect_text(condition, effect))
    if measure != BEST_VALUE and condition["searches_reached"] < condition["searches"]:
        searches = several(condition["searches"], "search")
        lines.append(f"reached in {condition['searches_reached']} of {searches}")
    return "\n".join(lines)


def _strokes(axes: Axes, row: int, own: pd.DataFrame, color: Any, study: Study) -> None:
    """Marks the pairs above a row: in the middle of their bounds, or at the one that is known."""
    low, high = own["effect_low"], own["effect_high"]
    if study.scores_values:
        middle = (low + high) / 2
    else:
        middle = np.sqrt(low * high)
        # One side reached the target at its first evaluation: the condition, or the baseline.
        middle = middle.where(low > 0, high).where(np.isfinite(high), low)
    both = own["reached"] & own["baseline_reached"]
    only = own["reached"] ^ own["baseline_reached"]
    for marker, size, x in (
        ("|", 6, middle[both]),
        (">", 3, low[only & own["baseline_reached"]]),
        ("<", 3, high[only & own["reached"]]),
    ):
        x = x[np.isfinite(x) & (study.scores_values | (x > 0))]
        axes.plot(x, [row + 0.2] * len(x), marker, ms=size, color=color)
