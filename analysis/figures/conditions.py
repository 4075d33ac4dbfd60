"""Figures with a row for each condition: what the target cost it, the best value it got to."""

import math
import textwrap
from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text

from analysis.figures.style import (
    COLOURS,
    DOTTED,
    QUIET,
    SMALL,
    WIDTH,
    lighter,
    measure_label,
    short,
    styled,
    unit,
)
from analysis.scores import EFFECTS
from analysis.study import Study
from analysis.tables import effect_text, score_text


@styled
def cost_to_target(
    scores: pd.DataFrame, searches: pd.DataFrame, study: Study, measure: str = "fresh_examples"
) -> Figure:
    """What each condition cost: a bar for the median, a line over the range, a dot a search.

    Args:
        scores: `scores.condition_scores`, one row per condition.
        searches: `scores.search_scores`, one row per search.
        study: says what was to be reached.
        measure: fresh_examples, steps or seconds, of the searches' best trials.

    A search that never reached the target is a triangle at what its trials had used; its score is
    larger. A bar for a median of which only that is known has no right edge. Where fresh examples
    are shown, the ideal (the baseline's median / e) is a tick on each bar.
    """
    scale, unit_name = unit(scores[f"{measure}_max_low"].max())
    figure, axes = _rows(scores)
    beside, ideals = [], []
    for row, condition in enumerate(scores.to_dict("records")):
        own = searches[searches["condition"] == condition["condition"]]
        with_ideal = (
            measure == "fresh_examples"
            and condition["insertion"] != "none"
            and math.isfinite(condition["ideal_fresh_examples"])
        )
        beside.append(_beside_bar(axes, row, condition, measure, scale, with_ideal))
        if condition[f"{measure}_count"]:
            _bar(axes, row, condition, measure, own, scale)
            if with_ideal:
                place = condition["ideal_fresh_examples"] / scale
                ideals.append(_ideal(axes, row, place, named=not ideals))
    axes.set_xlabel(f"{measure_label(measure, study)}{unit_name}")
    baseline = scores[scores["insertion"] == "none"]
    if len(baseline) == 1 and math.isfinite(baseline[f"{measure}_high"].iloc[0]):
        level = baseline[f"{measure}_low"].iloc[0] / scale
        axes.axvline(level, color=QUIET, lw=0.6, ls=DOTTED, zorder=0)
    _fit_texts(figure, axes, beside, ideals)
    return figure


@styled
def best_values(scores: pd.DataFrame, searches: pd.DataFrame, study: Study) -> Figure:
    """The best value within the budget: a large dot for the median, a line over the range, a small
    dot a search; the dotted line is the baseline's median. Beside each is its difference to the
    baseline.

    Args:
        scores: `scores.condition_scores`, one row per condition.
        searches: `scores.search_scores`, one row per search.
        study: says what was measured.
    """
    figure, axes = _rows(scores)
    for row, condition in enumerate(scores.to_dict("records")):
        own = searches.loc[searches["condition"] == condition["condition"], "best_value_low"]
        own, colour = own.dropna(), COLOURS[condition["insertion"]]
        words = "no trial has ended yet"
        if len(own):
            middle, low, high = (condition[f"best_value_{name}"] for name in ("low", "min", "max"))
            words = f"{middle:.4g}"
            if condition["baseline"] != condition["condition"]:
                words += f"\n{effect_text(condition, 'difference')}"
            axes.plot([low, high], [row, row], color=colour, lw=1.2, marker="|", ms=11, mew=1.2)
            axes.plot(own, [row] * len(own), "o", ms=3.2, color=colour)
            axes.plot(middle, row, "o", ms=7, mfc=lighter(colour, 0.6), mec=colour, zorder=1.5)
        axes.annotate(
            words,
            (1, row),
            (8, 0),
            xycoords=axes.get_yaxis_transform(),
            textcoords="offset points",
            va="center",
        )
    axes.margins(x=0.06)
    axes.set_xlabel(measure_label("best_value", study))
    baseline = scores.loc[scores["condition"] == study.baseline, "best_value_low"].dropna()
    if len(baseline):
        axes.axvline(baseline.iloc[0], color=QUIET, lw=0.6, ls=DOTTED, zorder=0)
    return figure


def _rows(scores: pd.DataFrame) -> tuple[Figure, Axes]:
    """A figure with room for each condition, the first one on top."""
    figure = Figure(figsize=(WIDTH, 0.62 + 0.5 * len(scores)), layout="constrained")
    axes = figure.add_subplot()
    axes.set_yticks(range(len(scores)), [textwrap.fill(label, 28) for label in scores["label"]])
    axes.set_ylim(len(scores) - 0.42, -0.5)
    axes.tick_params(axis="y", length=0)
    return figure, axes


def _bar(
    axes: Axes, row: int, condition: dict, measure: str, own: pd.DataFrame, scale: float
) -> None:
    colour = COLOURS[condition["insertion"]]
    middle, low, high = (
        condition[f"{measure}_{name}"] / scale for name in ("low", "min", "max_low")
    )
    axes.barh(row, middle, height=0.4, color=lighter(colour, 0.6))
    own_low = own[f"{measure}_low"].dropna() / scale
    censored = own.loc[own_low.index, f"{measure}_high"] == math.inf
    if len(own_low) > 1:
        axes.plot([low, high], [row, row], color=colour, lw=1.2, marker="|", ms=11, mew=1.2)
        reached = own_low[~censored]
        axes.plot(reached, [row] * len(reached), "o", ms=3.2, color=colour)
    if censored.any():
        axes.plot(own_low[censored], [row] * int(censored.sum()), ">", ms=4.5, color=colour)


def _beside_bar(
    axes: Axes, row: int, condition: dict, measure: str, scale: float, with_ideal: bool
) -> Text:
    """The value in words, right of the bar; in its place why there is none."""
    low, high = condition[f"{measure}_low"] / scale, condition[f"{measure}_high"] / scale
    if not condition[f"{measure}_count"]:
        words, end = "no trial has ended yet", 0.0
    else:
        end = condition[f"{measure}_max_low"] / scale
        words = score_text(low, high, short)
        if with_ideal:
            end = max(end, condition["ideal_fresh_examples"] / scale)  # clear of the ideal's tick
        if condition["baseline"] != condition["condition"] and condition["baseline"] is not None:
            words += f"  ({_effect(condition, EFFECTS[measure])})"
        if condition["searches_reached"] < condition["searches"]:
            words += f"\nreached in {_of_searches(condition)}"
    return axes.annotate(
        words,
        (end, row),
        (6, 0),
        textcoords="offset points",
        va="center",
        bbox={"fc": "white", "ec": "none", "pad": 0.5},  # over the line of the baseline's median
    )


def _effect(condition: dict, name: str) -> str:
    """The effect with its ends, and what they are: "0.50 of baseline [0.40, 0.60]"."""
    middle, _, ends = effect_text(condition, name).partition(" [")
    words = middle if middle in ("undetermined", "-") else f"{middle} of baseline"
    return f"{words} [{ends}" if ends else words


def _ideal(axes: Axes, row: int, place: float, named: bool) -> Text:
    words = f"ideal, baseline / e: {short(place)}" if named else f"ideal {short(place)}"
    axes.plot([place, place], [row - 0.23, row + 0.23], color="black", lw=1.2)
    return axes.text(place, row + 0.29, words, ha="center", va="top", fontsize=SMALL)


def _fit_texts(figure: Figure, axes: Axes, beside: Sequence[Text], ideals: Sequence[Text]) -> None:
    """Widens the axis until each text beside a bar ends inside it, then moves the ideals' texts
    that would cross the axis to its right."""
    for text in [*beside, *ideals]:
        text.set_in_layout(False)  # else the layout narrows the axes to make room for them
    figure.draw_without_rendering()
    width = axes.get_window_extent().width
    needed = 0.0
    for text in beside:
        taken = text.get_window_extent().width + 10 / 72 * figure.dpi
        needed = max(needed, text.xy[0] / max(1 - taken / width, 0.2))
    axes.set_xlim(0, needed or 1)
    if not needed:
        axes.set_xticks([])  # nothing reached the target, so there is nothing to scale by
    for text in ideals:
        half = text.get_window_extent().width / width / 2 * axes.get_xlim()[1]
        text.set_x(max(text.get_position()[0], 1.05 * half))


def _of_searches(condition: dict) -> str:
    noun = "search" if condition["searches"] == 1 else "searches"
    return f"{condition['searches_reached']} of {condition['searches']} {noun}"
