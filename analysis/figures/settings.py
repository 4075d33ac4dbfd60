"""Scores against the setting that a study varies: echo factor, batch size, or shuffle buffer."""

import dataclasses
import math
import textwrap
from collections.abc import Sequence

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
    in_legend,
    legend_below,
    line_styles,
    say_if_nothing_reached,
    styled,
)
from analysis.tables import measure_label
from runs.study import INSERTIONS, Condition, Study, echo_label, setting_label

_LABELS = {
    "factor": "echo factor e",
    "batch_size": "batch size (examples)",
    "buffer_examples": "shuffle buffer (examples)",
}
# By setting, the others that distinguish the lines of a plot against it, and the fewest points of a
# line. The baseline (e = 1) is the first point of a factor.
_SPLIT = {
    "factor": (("batch_size",), 3),
    "batch_size": (("factor",), 2),
    "buffer_examples": (("factor", "batch_size"), 2),
}
_SHIFT = 0.04  # between the markers of two lines at one value, in octaves


@dataclasses.dataclass(frozen=True)
class VariedSetting:
    """The setting that a study varies.

    Attributes:
        name: factor, batch_size, or buffer_examples.
        lines: by label, the conditions that differ only in it, in order of its value.
        reference: a baseline that has no value of the setting; None if every condition has one.
    """

    name: str
    lines: dict[str, list[Condition]]
    reference: str | None

    def value(self, condition: Condition) -> float:
        return float(getattr(condition, self.name))


def varied_setting(study: Study) -> VariedSetting | None:
    """The first setting by which all conditions of the study, but for one baseline, form lines of
    distinct values; None for any other study, which is a list of conditions."""
    for name in _SPLIT:
        lines = _lines(study, name)
        values = [[getattr(c, name) for c in line] for line in lines]
        left_out = {c.name for c in study.conditions} - {c.name for line in lines for c in line}
        if (
            lines
            and all(None not in own and len(set(own)) == len(own) for own in values)
            and min(map(len, lines)) >= _SPLIT[name][1]
            and len(left_out) <= 1
        ):
            ordered = [sorted(line, key=lambda c: getattr(c, name)) for line in lines]
            labels = (_label(line[-1], lines, name) for line in ordered)
            labeled = dict(zip(labels, ordered, strict=True))
            return VariedSetting(name, labeled, next(iter(left_out), None))
    return None


def _lines(study: Study, name: str) -> list[list[Condition]]:
    """Conditions that agree in insertion, policy, other overrides, and what splits them."""
    lines: dict[tuple, list[Condition]] = {}
    for condition in study.conditions:
        if condition.insertion == "none" and name != "batch_size":
            continue  # e = 1 belongs to every line, and has no buffer
        key = (condition.insertion, condition.policy, condition.other_overrides)
        key += tuple(getattr(condition, setting) for setting in _SPLIT[name][0])
        lines.setdefault(key, []).append(condition)
    if name == "factor":
        for line in lines.values():
            if all(condition.factor != 1 for condition in line):
                baseline = study.baseline_of(line[0])
                line[:0] = (c for c in study.conditions if c.name == baseline)
    return list(lines.values())


def _label(condition: Condition, lines: Sequence[Sequence[Condition]], name: str) -> str:
    """The insertion point, with the settings that distinguish this line from the others."""
    others = [line[-1] for line in lines]
    if name == "factor":
        mixed = len({other.policy for other in others}) > 1
        parts = [INSERTIONS[condition.insertion]] + ["auto"] * (
            mixed and condition.policy == "auto"
        )
    else:
        parts = [echo_label(condition.insertion, condition.factor, condition.policy)]
    if name != "batch_size" and len({other.batch_size for other in others}) > 1:
        parts.append(f"batch {condition.batch_size:,}")
    parts += [
        setting_label(*setting)
        for setting in condition.other_overrides
        if any(setting not in other.other_overrides for other in others)
    ]
    return ", ".join(parts)


@styled
def by_setting(
    scores: pd.DataFrame, setting: VariedSetting, study: Study, measure: str = "fresh_examples"
) -> Figure:
    """Each line's median over searches, with a stroke for the range over searches at each point.

    Against the factor, dotted lines show the ideal, the baseline's median / e (for seconds that
    bound holds while e is at most R). An open marker means that some searches did not reach the
    target, a triangle that the median is a lower bound.

    Args:
        scores: `scores.condition_scores`.
        setting: `varied_setting` of the study.
        study: defines the target.
        measure: fresh_examples, steps, seconds, or best_value.
    """
    table = scores.set_index("condition")
    figure = Figure(figsize=(WIDTH, 3.2 + 0.12 * len(setting.lines)), layout="constrained")
    axes = figure.add_subplot()
    positions = _scale_x(axes, setting)
    styles = line_styles([line[-1].insertion for line in setting.lines.values()])
    for rank, (label, line) in enumerate(setting.lines.items()):
        shift = (rank - (len(styles) - 1) / 2) * _SHIFT
        x = [positions[setting.value(condition)] + shift for condition in line]
        rows = table.loc[[condition.name for condition in line]].assign(x=x)
        _draw_line(axes, label, rows, measure, styles[rank])
    if setting.name == "factor" and measure in ("fresh_examples", "seconds"):
        _draw_ideals(axes, table, measure, positions)
    if setting.reference and math.isfinite(table.at[setting.reference, f"{measure}_high"]):
        level, label = (table.at[setting.reference, c] for c in (f"{measure}_low", "label"))
        label = in_legend(label)
        axes.axhline(level, color=COLORS["none"], lw=1.0, ls=DOTTED, zorder=0, label=label)
    if measure != "best_value":
        axes.set_ylim(0, 1.08 * np.nanmax([*table[f"{measure}_max_low"], 0.0]) or 1)
    axes.set_xlabel(_LABELS[setting.name])
    axes.set_ylabel(textwrap.fill(measure_label(measure, study), 36))
    format_ticks(axes.yaxis, measure)
    say_if_nothing_reached(figure, scores["searches_reached"].any(), study)
    legend_below(figure, axes)
    return figure


def _scale_x(axes: Axes, setting: VariedSetting) -> dict[float, float]:
    """Sets up the x axis; returns the position of each value: its logarithm to base 2, and for 0,
    which has none, one step left of the smallest."""
    values = sorted({setting.value(c) for line in setting.lines.values() for c in line})
    positions = {value: math.log2(value) for value in values if value > 0}
    if 0 in values:
        positions[0] = min(positions.values(), default=1.0) - 1
    axes.set_xticks([positions[v] for v in values], [f"{v:,g}" if v else "none" for v in values])
    low, high = min(positions.values()), max(positions.values())
    axes.set_xlim(low - 0.05 * (high - low), high + 0.05 * (high - low))
    return positions


def _draw_line(axes: Axes, label: str, rows: pd.DataFrame, measure: str, style: dict) -> None:
    """One line through the medians; an open marker and a triangle as `by_setting` says."""
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
