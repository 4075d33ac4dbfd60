"""The figures of a study, one function each: DataFrames in, a matplotlib Figure out.

The figures belong to no pyplot state, so they work without a display. In a notebook, import
matplotlib.pyplot once: that teaches IPython to show a Figure that a cell returns.
"""

import functools
import math
import textwrap
from collections.abc import Sequence

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text

from analysis import labels
from analysis.study import INSERTIONS, target_text
from runs.records import Target

WIDTH = 6.5  # inches: the text width of a printed page, so that fonts keep the size given here
FONT = 8.5  # points
SMALL = 8.0
# Okabe-Ito, told apart by readers of any colour vision; the words beside each mark say it again.
COLOURS = dict(zip(INSERTIONS, ("#555555", "#0072B2", "#D55E00", "#009E73"), strict=True))
DASHES = ("-", (0, (5, 1.5)), (0, (1.5, 1.2)), (0, (6, 1.5, 1.5, 1.5)))
QUIET = "#767676"
_STYLE = {
    "font.size": FONT,
    "font.family": "sans-serif",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "pdf.fonttype": 42,  # text stays text in PDF and SVG
    "svg.fonttype": "none",
}


def _styled(figure_function):
    """Draws with this file's style and leaves matplotlib's global settings alone."""

    @functools.wraps(figure_function)
    def styled(*args, **kwargs):
        with matplotlib.rc_context(_STYLE):
            return figure_function(*args, **kwargs)

    return styled


@_styled
def fresh_examples_to_target(
    scores: pd.DataFrame, searches: pd.DataFrame, target: Target
) -> Figure:
    """What each condition cost: a bar for the mean, a line from minimum to maximum, a dot a search.

    Args:
        scores: `scores.condition_scores`, one row per condition.
        searches: `scores.search_scores`, one row per search.
        target: what was to be reached.

    The ideal (the baseline's mean / e) is a tick on the bar of each condition.
    """
    unit, unit_name = _unit(scores["fresh_examples_max"].max())
    figure = Figure(figsize=(WIDTH, 0.62 + 0.5 * len(scores)), layout="constrained")
    axes = figure.add_subplot()
    beside, ideals = [], []
    for row, condition in enumerate(scores.itertuples()):
        own = searches.loc[searches["condition"] == condition.condition, "fresh_examples"]
        beside.append(_beside_bar(axes, row, condition, unit))
        if condition.searches_reached:
            _bar(axes, row, condition, own.dropna() / unit, unit)
            if condition.insertion != "none" and math.isfinite(condition.ideal_fresh_examples):
                place = condition.ideal_fresh_examples / unit
                ideals.append(_ideal(axes, row, place, named=not ideals))
    axes.set_yticks(range(len(scores)), [textwrap.fill(label, 28) for label in scores["label"]])
    axes.set_ylim(len(scores) - 0.42, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel(f"fresh examples to reach {target_text(target)}{unit_name}")
    baseline = scores.loc[scores["insertion"] == "none", "fresh_examples_mean"]
    if len(baseline) == 1 and baseline.notna().all():
        axes.axvline(baseline.iloc[0] / unit, color=QUIET, lw=0.6, ls=(0, (2, 2)), zorder=0)
    _fit_texts(figure, axes, beside, ideals)
    return figure


def _bar(axes: Axes, row: int, condition, own: pd.Series, unit: float) -> None:
    colour = COLOURS[condition.insertion]
    axes.barh(row, condition.fresh_examples_mean / unit, height=0.4, color=_lighter(colour, 0.6))
    if len(own) > 1:
        ends = [condition.fresh_examples_min / unit, condition.fresh_examples_max / unit]
        axes.plot(ends, [row, row], color=colour, lw=1.2, marker="|", ms=11, mew=1.2)
        axes.plot(own, [row] * len(own), "o", ms=3.2, color=colour)


def _beside_bar(axes: Axes, row: int, condition, unit: float) -> Text:
    """The value in words, right of the bar; in its place why there is none."""
    end = condition.fresh_examples_max / unit
    if condition.searches == 0:
        words, end = "no trial has ended yet", 0
    elif condition.searches_reached == 0:
        words, end = f"reached in {_of_searches(condition)}", 0
    else:
        words = _short(condition.fresh_examples_mean / unit)
        if condition.insertion != "none" and math.isfinite(condition.ratio):
            end = max(end, condition.ideal_fresh_examples / unit)  # clear of the ideal's tick
            words += f"  ({condition.ratio:.2f} of baseline)"
        if condition.searches_reached < condition.searches:
            words += f"\nreached in {_of_searches(condition)}"
    return axes.annotate(
        words,
        (end, row),
        (6, 0),
        textcoords="offset points",
        va="center",
        bbox={"fc": "white", "ec": "none", "pad": 0.5},  # over the line of the baseline's mean
    )


def _ideal(axes: Axes, row: int, place: float, named: bool) -> Text:
    words = f"ideal, baseline / e: {_short(place)}" if named else f"ideal {_short(place)}"
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


@_styled
def best_trial_curves(curves: pd.DataFrame, target: Target) -> Figure:
    """How the best trial of each condition got there: validation metric against fresh examples.

    Args:
        curves: `load.curves` of `scores.best_trials`, one trial per condition.
        target: drawn as a line. A curve ends where it first reaches the target, and is named there;
            one that never does is named at its last record.
    """
    lines = _to_target(curves, target)
    unit, unit_name = _unit(max((line["fresh_examples"].max() for line in lines), default=1))
    figure = Figure(figsize=(WIDTH, 3.0 + 0.18 * len(lines)))
    axes = figure.add_subplot()
    ends = []
    for line, dash in zip(lines, _dashes(lines), strict=True):
        x, y = line["fresh_examples"] / unit, line["value"]
        colour = COLOURS[line["insertion"].iloc[0]]
        axes.plot(x, y, color=colour, ls=dash, lw=1.3)
        axes.plot(x.iloc[-1], y.iloc[-1], "o", ms=4, color=colour, zorder=4, clip_on=False)
        reached = target.reached(y.iloc[-1])
        words = line["label"].iloc[0] + (f": {_short(x.iloc[-1])}" if reached else "")
        ends.append(labels.End(x.iloc[-1], y.iloc[-1], words, colour, flag=reached))
    axes.axhline(target.value, color=QUIET, lw=0.8, ls=(0, (2, 2)), zorder=0)
    axes.set_xlabel(f"fresh examples{unit_name}")
    axes.set_ylabel(f"validation {target.metric}")
    axes.set_xlim(0, max((end.x for end in ends), default=1))
    labels.name_ends(figure, axes, ends, target)
    return figure


def _to_target(curves: pd.DataFrame, target: Target) -> list[pd.DataFrame]:
    """Each condition's curve, up to the first record at the target or past it."""
    lines = []
    for _, line in curves.dropna(subset="value").groupby("condition", sort=False):
        reached = np.flatnonzero([target.reached(value) for value in line["value"]])
        lines.append(line.iloc[: reached[0] + 1] if len(reached) else line)
    return lines


def _dashes(lines: Sequence[pd.DataFrame]) -> list:
    """A dash pattern for each line, different among those that share an insertion's colour."""
    seen: dict[str, int] = {}
    patterns = []
    for line in lines:
        insertion = line["insertion"].iloc[0]
        patterns.append(DASHES[seen.get(insertion, 0) % len(DASHES)])
        seen[insertion] = seen.get(insertion, 0) + 1
    return patterns


def _unit(largest: float) -> tuple[float, str]:
    """The unit that keeps an axis to a few digits, and how its label says so."""
    if largest >= 1e7:
        return 1e6, " (millions)"
    if largest >= 1e4:
        return 1e3, " (thousands)"
    return 1.0, ""


def _short(value: float) -> str:
    """Three significant digits, never in powers of ten: 8.12, 1,240."""
    if value == 0:
        return "0"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{digits}f}"


def _of_searches(condition) -> str:
    noun = "search" if condition.searches == 1 else "searches"
    return f"{condition.searches_reached} of {condition.searches} {noun}"


def _lighter(colour: str, amount: float) -> tuple[float, float, float]:
    """The colour mixed with white; unlike transparency it survives every vector format."""
    red, green, blue = matplotlib.colors.to_rgb(colour)
    return tuple(part + (1 - part) * amount for part in (red, green, blue))
