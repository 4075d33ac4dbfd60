"""Scores against the setting that a study varies: echo factor, batch size, or shuffle buffer."""

import math
import textwrap
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.transforms import ScaledTranslation

from analysis.figures.style import (
    COLORS,
    DOTTED,
    QUIET,
    WIDTH,
    format_ticks,
    legend_below,
    line_styles,
    say_if_nothing_reached,
    styled,
)
from analysis.series import LABELS, Series, VariedSetting
from analysis.tables import measure_label
from runs.study import Study

_MARKERS = ("o", "s", "^", "D")
_OFFSET = 3.0  # points between the markers of two series at one value
_MAX_LINEAR_RATIO = 6  # of the largest factor to the smallest; beyond it the axis is logarithmic


@styled
def by_setting(
    scores: pd.DataFrame, setting: VariedSetting, study: Study, measure: str = "fresh_examples"
) -> Figure:
    """Each series' median over searches, with a line for the range over searches at each point.

    Against the factor, dotted lines show the ideal, the baseline's median / e (for seconds that
    bound holds while e is at most R). An open marker means that some searches did not reach the
    target, a triangle that the median is a lower bound.

    Args:
        scores: `scores.condition_scores`.
        setting: `series.varied_setting` of the study.
        study: defines the target.
        measure: fresh_examples, steps, seconds, or best_value.
    """
    table = scores.set_index("condition")
    figure = Figure(figsize=(WIDTH, 3.2 + 0.12 * len(setting.series)), layout="constrained")
    axes = figure.add_subplot()
    positions = _scale_x(axes, setting)
    insertions = [series.insertion for series in setting.series]
    styles = line_styles(insertions)
    for rank, (series, style) in enumerate(zip(setting.series, styles, strict=True)):
        offset = (rank - (len(insertions) - 1) / 2) * _OFFSET
        marker = _MARKERS[insertions[:rank].count(series.insertion) % len(_MARKERS)]
        _draw_series(axes, series, table, measure, positions, offset, style, marker)
    if setting.name == "factor" and measure in ("fresh_examples", "seconds"):
        _draw_ideals(axes, table, measure, positions)
    if setting.reference and math.isfinite(table.at[setting.reference, f"{measure}_high"]):
        level, label = (table.at[setting.reference, c] for c in (f"{measure}_low", "label"))
        axes.axhline(level, color=COLORS["none"], lw=1.0, ls=DOTTED, zorder=0, label=label)
    if measure != "best_value":
        axes.set_ylim(0, 1.08 * np.nanmax([*table[f"{measure}_max_low"], 0.0]) or 1)
    else:  # marks that are moved by points do not widen the axis
        ends = table[["best_value_min", "best_value_low", "best_value_max_low"]].to_numpy(float)
        axes.update_datalim([(0.0, value) for value in ends[np.isfinite(ends)]], updatex=False)
        axes.autoscale_view(scalex=False)
    axes.set_xlabel(LABELS[setting.name])
    axes.set_ylabel(textwrap.fill(measure_label(measure, study), 36))
    format_ticks(axes.yaxis, measure)
    say_if_nothing_reached(figure, scores["searches_reached"].any(), study)
    legend_below(figure, axes)
    return figure


def _scale_x(axes: Axes, setting: VariedSetting) -> dict[float, float]:
    """Sets up the x axis; returns the position of each value. Values are spaced by their logarithm,
    unless they are factors in a narrow range; 0, which has none, stands one step left of the
    smallest."""
    values = sorted({value for series in setting.series for value, _ in series.points})
    positive = [value for value in values if value > 0]
    if setting.name != "factor" or positive[-1] / positive[0] > _MAX_LINEAR_RATIO:
        positions = {value: math.log2(value) for value in positive}
        if 0 in values:
            steps = np.diff(list(positions.values()))
            positions[0] = positions[positive[0]] - (float(np.median(steps)) if len(steps) else 1.0)
    else:
        positions = {value: value for value in values}
    axes.set_xticks([positions[v] for v in values], [f"{v:,g}" if v else "none" for v in values])
    low, high = min(positions.values()), max(positions.values())
    axes.set_xlim(low - 0.05 * (high - low), high + 0.05 * (high - low))
    return positions


def _draw_series(
    axes: Axes,
    series: Series,
    table: pd.DataFrame,
    measure: str,
    positions: dict[float, float],
    offset: float,
    style: dict[str, Any],
    marker: str,
) -> None:
    """Draws one line, moved by `offset` points so that series do not hide each other."""
    color = style["color"]
    assert axes.figure is not None
    shift = ScaledTranslation(offset / 72, 0, axes.figure.dpi_scale_trans)
    shifted = axes.transData + shift
    rows = [(positions[value], table.loc[name]) for value, name in series.points]
    rows = [(x, row) for x, row in rows if math.isfinite(row[f"{measure}_low"])]
    medians = [row[f"{measure}_low"] for _, row in rows]
    label = series.label if rows else None
    x_values = [x for x, _ in rows]
    axes.plot(x_values, medians, lw=1.3, transform=shifted, label=label, **style)
    for (x, row), median in zip(rows, medians, strict=True):
        ends = [row[f"{measure}_{name}"] for name in ("min", "max_low")]
        axes.plot([x, x], ends, color=color, lw=1.0, marker="_", ms=5, transform=shifted)
        all_reached = measure == "best_value" or row["searches_reached"] == row["searches"]
        known = row[f"{measure}_low"] == row[f"{measure}_high"]
        axes.plot(
            x,
            median,
            marker if known else "^",
            ms=4.5,
            mec=color,
            mfc=color if all_reached else "white",
            zorder=3,
            transform=shifted,
        )


def _draw_ideals(
    axes: Axes, table: pd.DataFrame, measure: str, positions: dict[float, float]
) -> None:
    """The baseline's median / e, one line per baseline."""
    factors = np.geomspace(1, max(positions), 200)
    logarithmic = positions[max(positions)] != max(positions)
    x = np.log2(factors) if logarithmic else factors
    label = "ideal: baseline / e"
    for baseline in dict.fromkeys(table["baseline"].dropna()):
        level = table.at[baseline, f"{measure}_low"]
        if math.isfinite(table.at[baseline, f"{measure}_high"]):
            axes.plot(x, level / factors, color=QUIET, lw=0.9, ls=DOTTED, zorder=0, label=label)
            label = None  # one legend entry
