"""Scores against the number that a study varies: echoing factor, batch size, shuffle buffer."""

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.transforms import ScaledTranslation

from analysis.axes import LABELS, Axis, Series
from analysis.figures import labels
from analysis.figures.style import (
    COLOURS,
    DOTTED,
    QUIET,
    WIDTH,
    dashes,
    measure_label,
    styled,
    unit,
)
from analysis.study import Study

_MARKS = ("o", "s", "^", "D")
_APART = 3.0  # points between the marks of two series at one place


@styled
def by_setting(
    scores: pd.DataFrame, axis: Axis, study: Study, measure: str = "fresh_examples"
) -> Figure:
    """Each series' median over searches, with a line over the range of the searches at each point.

    Args:
        scores: `scores.condition_scores`.
        axis: `axes.numeric_axis` of the study.
        study: says what was to be reached.
        measure: fresh_examples, steps, seconds or best_value.

    Against the factor, dotted lines show the ideal, the baseline's median / e (for seconds that
    bound holds as long as e is at most R). An empty mark means that some searches did not reach
    the target, a triangle that the median is a lower bound.
    """
    table = scores.set_index("condition")
    scale, unit_name = unit(table[f"{measure}_max_low"].max())
    table = table.assign(**{c: table[c] / scale for c in table if c.startswith(f"{measure}_")})
    figure = Figure(figsize=(WIDTH, 3.4))
    axes = figure.add_subplot()
    place = _places(axes, axis)
    if measure != "best_value":
        axes.set_ylim(0, 1.08 * np.nanmax([*table[f"{measure}_max_low"], 0.0]) or 1)
    ends = []
    ideals = _draw_ideals(axes, axis, table, measure, place)
    kinds = [series.insertion for series in axis.series]
    for rank, (series, dash) in enumerate(zip(axis.series, dashes(kinds), strict=True)):
        shift = (rank - (len(kinds) - 1) / 2) * _APART
        mark = _MARKS[kinds[:rank].count(series.insertion) % len(_MARKS)]
        ends += _draw_series(axes, series, table, measure, place, shift, dash, mark)
    if axis.reference is not None and math.isfinite(table.at[axis.reference, f"{measure}_high"]):
        level = table.at[axis.reference, f"{measure}_low"]
        axes.axhline(level, color=COLOURS["none"], lw=1.0, ls=DOTTED, zorder=0)
        words = table.at[axis.reference, "label"]
        ends.append(labels.End(axes.get_xlim()[1], level, words, COLOURS["none"], flag=False))
    axes.set_xlabel(LABELS[axis.name])
    axes.set_ylabel(labels.wrapped(f"{measure_label(measure, study)}{unit_name}", 36))
    labels.name_right(figure, axes, [*ends, *ideals])
    return figure


def _places(axes: Axes, axis: Axis) -> dict[float, float]:
    """Where each number stands: even steps of a doubling where they span much, else to scale. No
    buffer, which has no logarithm, stands left of the smallest one."""
    values = sorted({value for series in axis.series for value, _ in series.points})
    positive = [value for value in values if value > 0]
    if 0 in values or positive[-1] / positive[0] > 6:
        place = {value: math.log2(value) for value in positive}
        if 0 in values:
            steps = np.diff(list(place.values()))
            place[0] = place[positive[0]] - (float(np.median(steps)) if len(steps) else 1.0)
    else:
        place = {value: value for value in values}
    axes.set_xticks([place[v] for v in values], [f"{v:,g}" if v else "none" for v in values])
    span = max(place.values()) - min(place.values())
    axes.set_xlim(min(place.values()) - 0.05 * span, max(place.values()) + 0.05 * span)
    return place


def _draw_series(
    axes: Axes, series: Series, table: pd.DataFrame, measure: str, place, shift, dash, mark
) -> list[labels.End]:
    """One line with its marks; the end that its name is put at, none where nothing was reached."""
    colour = COLOURS[series.insertion]
    moved = axes.transData + ScaledTranslation(shift / 72, 0, axes.figure.dpi_scale_trans)
    rows = [(place[value], table.loc[name]) for value, name in series.points]
    drawn = [(x, row) for x, row in rows if math.isfinite(row[f"{measure}_low"])]
    medians = [row[f"{measure}_low"] for _, row in drawn]
    axes.plot([x for x, _ in drawn], medians, color=colour, ls=dash, lw=1.3, transform=moved)
    for (x, row), median in zip(drawn, medians, strict=True):
        ends = [row[f"{measure}_{name}"] for name in ("min", "max_low")]
        axes.plot([x, x], ends, color=colour, lw=1.0, marker="_", ms=5, transform=moved)
        whole = measure == "best_value" or row["searches_reached"] == row["searches"]
        face = colour if whole else "white"
        known = row[f"{measure}_low"] == row[f"{measure}_high"]
        shape = mark if known else "^"
        axes.plot(x, median, shape, ms=4.5, mec=colour, mfc=face, zorder=3, transform=moved)
    if not drawn:
        return []
    return [labels.End(drawn[-1][0], medians[-1], series.label, colour, flag=False)]


def _draw_ideals(
    axes: Axes, axis: Axis, table: pd.DataFrame, measure: str, place
) -> Sequence[labels.End]:
    """The baseline's median / e, one line for each baseline, named at its end."""
    if axis.name != "factor" or measure not in ("fresh_examples", "seconds"):
        return []
    factors = np.linspace(1, max(place), 200)
    across = np.interp(factors, sorted(place), [place[value] for value in sorted(place)])
    if place[max(place)] != max(place):
        across = np.log2(factors)
    ends = []
    for baseline in dict.fromkeys(table["baseline"].dropna()):
        level = table.at[baseline, f"{measure}_low"]
        if math.isfinite(table.at[baseline, f"{measure}_high"]):
            axes.plot(across, level / factors, color=QUIET, lw=0.9, ls=DOTTED, zorder=0)
            name = "" if ends else "ideal: baseline / e"
            ends.append(labels.End(across[-1], level / factors[-1], name, QUIET, flag=False))
    return ends[:1]
