"""Scores against the setting that a study varies: echo factor, batch size, or shuffle buffer."""

import math
import textwrap

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

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
from analysis.series import LABELS, VariedSetting
from analysis.tables import measure_label
from runs.study import Study

_SHIFT = 0.04  # between the markers of two series at one value, in octaves


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
    styles = line_styles([series.insertion for series in setting.series])
    for rank, (series, style) in enumerate(zip(setting.series, styles, strict=True)):
        shift = (rank - (len(styles) - 1) / 2) * _SHIFT
        at = {name: positions[value] + shift for value, name in series.points}
        _draw_series(axes, series.label, table.loc[list(at)], list(at.values()), measure, style)
    if setting.name == "factor" and measure in ("fresh_examples", "seconds"):
        _draw_ideals(axes, table, measure, positions)
    if setting.reference and math.isfinite(table.at[setting.reference, f"{measure}_high"]):
        level, label = (table.at[setting.reference, c] for c in (f"{measure}_low", "label"))
        axes.axhline(level, color=COLORS["none"], lw=1.0, ls=DOTTED, zorder=0, label=label)
    if measure != "best_value":
        axes.set_ylim(0, 1.08 * np.nanmax([*table[f"{measure}_max_low"], 0.0]) or 1)
    axes.set_xlabel(LABELS[setting.name])
    axes.set_ylabel(textwrap.fill(measure_label(measure, study), 36))
    format_ticks(axes.yaxis, measure)
    say_if_nothing_reached(figure, scores["searches_reached"].any(), study)
    legend_below(figure, axes)
    return figure


def _scale_x(axes: Axes, setting: VariedSetting) -> dict[float, float]:
    """Sets up the x axis; returns the position of each value: its logarithm to base 2, and for 0,
    which has none, one step left of the smallest."""
    values = sorted({value for series in setting.series for value, _ in series.points})
    positions = {value: math.log2(value) for value in values if value > 0}
    if 0 in values:
        positions[0] = min(positions.values(), default=1.0) - 1
    axes.set_xticks([positions[v] for v in values], [f"{v:,g}" if v else "none" for v in values])
    low, high = min(positions.values()), max(positions.values())
    axes.set_xlim(low - 0.05 * (high - low), high + 0.05 * (high - low))
    return positions


def _draw_series(
    axes: Axes, label: str, rows: pd.DataFrame, x: list[float], measure: str, style: dict
) -> None:
    """One line through the medians; an open marker and a triangle as `by_setting` says."""
    rows = rows.assign(x=x)
    rows = rows.loc[np.isfinite(rows[f"{measure}_low"])]
    label_if_drawn = label if len(rows) else None
    axes.plot(rows["x"], rows[f"{measure}_low"], lw=1.3, label=label_if_drawn, **style)
    color = style["color"]
    for row in rows.to_dict("records"):
        ends = [row[f"{measure}_min"], row[f"{measure}_max_low"]]
        axes.plot([row["x"]] * 2, ends, color=color, lw=1.0, marker="_", ms=5)
        all_reached = measure == "best_value" or row["searches_reached"] == row["searches"]
        median, known = row[f"{measure}_low"], row[f"{measure}_low"] == row[f"{measure}_high"]
        face = color if all_reached else "white"
        axes.plot(row["x"], median, "o" if known else "^", ms=4.5, mec=color, mfc=face, zorder=3)


def _draw_ideals(
    axes: Axes, table: pd.DataFrame, measure: str, positions: dict[float, float]
) -> None:
    """The baseline's median / e, one line per baseline."""
    factors = np.geomspace(1, max(positions), 200)
    label = "ideal: baseline / e"
    for baseline in dict.fromkeys(table["baseline"].dropna()):
        level = table.at[baseline, f"{measure}_low"]
        if math.isfinite(table.at[baseline, f"{measure}_high"]):
            line = level / factors
            axes.plot(np.log2(factors), line, color=QUIET, lw=0.9, ls=DOTTED, label=label)
            label = None  # one legend entry
