"""Figures with one row per condition: cost of the target, best value, effect with matched seeds."""

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
    format_of,
    measure_label,
    paired_text,
    score_text,
    unbroken,
    used_text,
    value_text,
)
from runs.progress import several
from runs.study import Study

_NO_TRIAL = "no trial has ended yet"


@styled
def cost_to_target(
    scores: pd.DataFrame, searches: pd.DataFrame, study: Study, measure: str = "fresh_examples"
) -> Figure:
    """The cost of each condition: a bar for the median, a line for the range, a dot per search.

    A search that never reached the target is a triangle at what its trials had used; its score is
    larger. A dotted line is the median of the condition's baseline. For fresh examples, a tick on
    each bar shows the ideal, that median / e.

    Args:
        scores: `scores.condition_scores`, one row per condition.
        searches: `scores.search_scores`, one row per search.
        study: defines the target.
        measure: fresh_examples, steps, or seconds, of the searches' best trials.
    """
    figure, axes = _rows(scores["label"])
    ideal_label = "ideal: baseline / e"
    medians = _known_medians(scores, measure)
    for row, condition in enumerate(scores.to_dict("records")):
        _baseline_line(axes, row, medians.get(condition["baseline"]))
        own = searches[searches["condition"] == condition["condition"]]
        _annotate(axes, row, _cost_text(condition, measure))
        if not condition[f"{measure}_count"]:
            continue
        _bar(axes, row, condition, measure, own)
        ideal = condition["ideal_fresh_examples"]
        echoes = condition["factor"] > 1 and condition["condition"] != condition["baseline"]
        if measure == "fresh_examples" and echoes and ideal < math.inf:
            ends = [row - 0.28, row + 0.28]
            axes.plot([ideal, ideal], ends, color="black", lw=1.2, label=ideal_label)
            ideal_label = None  # one legend entry
    axes.set_xlim(left=0)
    format_ticks(axes.xaxis, measure)
    if not scores[f"{measure}_max_low"].max() > 0:
        axes.set_xticks([])
    axes.set_xlabel(measure_label(measure, study))
    say_if_nothing_reached(figure, scores["searches_reached"].any(), study)
    legend_below(figure, axes)
    return figure


@styled
def best_values(scores: pd.DataFrame, searches: pd.DataFrame, study: Study) -> Figure:
    """The best value within the budget: a large dot for the median, a line for the range, a small
    dot per search, and the difference to the baseline as text.

    Args:
        scores: `scores.condition_scores`, one row per condition.
        searches: `scores.search_scores`, one row per search.
        study: defines the metric.
    """
    figure, axes = _rows(scores["label"])
    medians = _known_medians(scores, "best_value")
    for row, condition in enumerate(scores.to_dict("records")):
        _baseline_line(axes, row, medians.get(condition["baseline"]))
        own = searches.loc[searches["condition"] == condition["condition"], "best_value_low"]
        own, color = own[np.isfinite(own)], COLORS[condition["insertion"]]
        text = _NO_TRIAL
        if condition["best_value_count"]:
            median, high = (condition[f"best_value_{name}"] for name in ("low", "high"))
            text = score_text(median, high, value_text, -math.inf)
            if condition["baseline"] != condition["condition"]:
                text += f"\n{effect_text(condition, 'difference')}"
            if median == high:
                axes.plot(median, row, "o", ms=7, mfc=lighter(color, 0.6), mec=color, zorder=1.5)
        if len(own):
            _range(axes, row, own.min(), own.max(), color)
            axes.plot(own, [row] * len(own), "o", ms=3.2, color=color)
        _annotate(axes, row, text)
    axes.margins(x=0.06)
    format_ticks(axes.xaxis, "best_value")
    axes.set_xlabel(measure_label("best_value", study))
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
    axes.annotate(
        text,
        (1, row),
        (8, 0),
        xycoords=axes.get_yaxis_transform(),
        textcoords="offset points",
        va="center",
    )


def _known_medians(scores: pd.DataFrame, measure: str) -> pd.Series:
    """The medians that are not bounds only, by condition."""
    low, high = (scores.set_index("condition")[f"{measure}_{end}"] for end in ("low", "high"))
    return low[low == high]


def _baseline_line(axes: Axes, row: int, value: float | None) -> None:
    """A dotted line across a condition's row at the median of its baseline, if that is known."""
    if value is not None:
        axes.plot([value, value], [row - 0.5, row + 0.5], color=QUIET, lw=0.6, ls=DOTTED, zorder=0)


def _range(axes: Axes, row: int, low: float, high: float, color: str) -> None:
    axes.plot([low, high], [row, row], color=color, lw=1.2, marker="|", ms=11, mew=1.2)


def _bar(axes: Axes, row: int, condition: Mapping, measure: str, own: pd.DataFrame) -> None:
    color = COLORS[condition["insertion"]]
    median, low, high = (condition[f"{measure}_{name}"] for name in ("low", "min", "max_low"))
    axes.barh(row, median, height=0.4, color=lighter(color, 0.6))
    own_low = own[f"{measure}_low"].dropna()
    censored = own.loc[own_low.index, f"{measure}_high"] == math.inf
    if len(own_low) > 1:
        _range(axes, row, low, high, color)
        reached = own_low[~censored]
        axes.plot(reached, [row] * len(reached), "o", ms=3.2, color=color)
    if censored.any():
        axes.plot(own_low[censored], [row] * int(censored.sum()), ">", ms=4.5, color=color)


def _cost_text(condition: Mapping, measure: str) -> str:
    """The median, its effect, and how many searches reached the target."""
    if not condition[f"{measure}_count"]:
        return _NO_TRIAL
    low, high = condition[f"{measure}_low"], condition[f"{measure}_high"]
    lines = [score_text(low, high, format_of(measure))]
    compared = condition[f"{EFFECTS[measure]}_count"] > 0
    if compared and condition["baseline"] not in (condition["condition"], None):
        effect, bracket, ends = effect_text(condition, EFFECTS[measure]).partition(" [")
        of_baseline = "" if effect in ("undetermined", "-") else " of baseline"
        lines.append(f"{effect}{of_baseline}{bracket}{ends}")
    if condition["searches_reached"] < condition["searches"]:
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
    open_above, open_below = ~own["reached"] & (low > 0), ~own["baseline_reached"] & own["reached"]
    for marker, size, x in (
        ("|", 6, middle[both]),
        (">", 3, low[open_above]),
        ("<", 3, high[open_below]),
    ):
        x = x[np.isfinite(x) & (study.scores_values | (x > 0))]
        axes.plot(x, [row + 0.2] * len(x), marker, ms=size, color=color)
