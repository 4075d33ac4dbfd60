"""Scores against the setting that a study varies: echo factor, batch size, or shuffle buffer."""

import dataclasses
import textwrap

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.figures import style
from analysis.tables import measure_label
from runs.study import BEST_VALUE, INSERTIONS, Condition, Study, echo_label, setting_label

# By setting, its label, and the fewest points of a line.
_SETTINGS = {
    "factor": ("echo factor e", 3),
    "batch_size": ("batch size (examples)", 2),
    "buffer_examples": ("shuffle buffer (examples)", 2),
}
_SHIFT = 0.05  # between the markers of two lines, as a share of the distance between values


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
    for name, (_, fewest) in _SETTINGS.items():
        lines: dict[tuple[str, ...], list[Condition]] = {}
        for condition in study.conditions:
            # e = 1 belongs to every line against the factor, and has no buffer.
            if condition.insertion != "none" or name == "batch_size":
                lines.setdefault(_parts(condition, name), []).append(condition)
        if name == "factor":
            for line in lines.values():
                line += [c for c in study.conditions if c.name == study.baseline_of(line[0])]
        values = [[getattr(c, name) for c in line] for line in lines.values()]
        left_out = {c.name for c in study.conditions} - {c.name for o in lines.values() for c in o}
        distinct = all(None not in own and len(set(own)) == len(own) for own in values)
        if lines and distinct and min(map(len, values)) >= fewest and len(left_out) <= 1:
            common = set.intersection(*map(set, lines))
            labeled = {
                ", ".join([parts[0], *(part for part in parts[1:] if part not in common)]): sorted(
                    line, key=lambda condition: getattr(condition, name)
                )
                for parts, line in lines.items()
            }
            return VariedSetting(name, labeled, next(iter(left_out), None))
    return None


def _parts(condition: Condition, name: str) -> tuple[str, ...]:
    """What a condition's line has in common when `name` varies, as a label says it."""
    parts = [echo_label(condition.insertion, condition.factor, condition.policy)]
    if name == "factor":
        parts = [INSERTIONS[condition.insertion], *["auto"] * (condition.policy == "auto")]
    if name != "batch_size":
        parts.append(setting_label("batch_size", condition.batch_size))
    return *parts, *(setting_label(*setting) for setting in condition.other_overrides)


@style.styled
def by_setting(
    scores: pd.DataFrame, setting: VariedSetting, study: Study, measure: str = "fresh_examples"
) -> Figure:
    """Each line's median over searches, with a stroke for the range over searches at each point.

    Dotted lines show the reference and, of fresh examples against the factor, the ideal, the
    baseline's median / e. An open marker means that some searches did not reach the target; a
    triangle is a lower bound of the median.

    Args:
        scores: `scores.condition_scores`, one row per condition.
        setting: `varied_setting` of the study.
        study: defines the target.
        measure: one of `scores.MEASURES`.
    """
    table = scores.set_index("condition")
    figure = Figure(figsize=(style.WIDTH, 3.4 + 0.12 * len(setting.lines)), layout="constrained")
    axes = figure.add_subplot()
    values = sorted({setting.value(c) for line in setting.lines.values() for c in line})
    axes.set_xticks(range(len(values)), [f"{v:,g}" if v else "none" for v in values])
    styles = style.line_styles([line[-1].insertion for line in setting.lines.values()])
    ideal = "ideal: baseline / e"
    for place, (label, line) in enumerate(setting.lines.items()):
        rows = table.loc[[condition.name for condition in line]]
        middle = np.array([values.index(setting.value(condition)) for condition in line], float)
        level = rows["ideal_fresh_examples"]
        if setting.name == "factor" and measure == "fresh_examples" and level.notna().any():
            axes.plot(
                middle, level, color=style.QUIET, lw=0.9, ls=style.DOTTED, zorder=0, label=ideal
            )
            ideal = None  # one legend entry
        shift = _SHIFT * (place - (len(setting.lines) - 1) / 2)
        _draw_line(axes, label, rows.assign(x=middle + shift), measure, styles[place])
    if setting.reference:
        ends = [f"{measure}_low", f"{measure}_high", "label"]
        level, high, label = table.loc[setting.reference, ends]
        if level == high:
            look = {"color": style.COLORS["none"], "lw": 1.0, "ls": style.DOTTED, "zorder": 0}
            axes.axhline(level, label=label, **look)
    if measure != BEST_VALUE:
        axes.set_ylim(0, 1.08 * np.nanmax([*table[f"{measure}_max_low"], 0.0]) or 1)
    axes.set_xlabel(_SETTINGS[setting.name][0])
    axes.set_ylabel(textwrap.fill(measure_label(measure, study), 36))
    style.format_ticks(axes.yaxis, measure)
    style.say_if_nothing_reached(figure, scores["searches_reached"].any(), study)
    style.legend_below(figure, axes)
    return figure


def _draw_line(axes: Axes, label: str, rows: pd.DataFrame, measure: str, look: dict) -> None:
    """One line through the medians, and its markers and strokes."""
    rows = rows.loc[np.isfinite(rows[f"{measure}_low"])]
    axes.plot(rows["x"], rows[f"{measure}_low"], lw=1.3, label=label if len(rows) else None, **look)
    color = look["color"]
    for row in rows.to_dict("records"):
        ends = [row[f"{measure}_min"], row[f"{measure}_max_low"]]
        axes.plot([row["x"]] * 2, ends, color=color, lw=1.0, marker="_", ms=5)
        all_reached = measure == BEST_VALUE or row["searches_reached"] == row["searches"]
        median, known = row[f"{measure}_low"], row[f"{measure}_low"] == row[f"{measure}_high"]
        face = color if all_reached else "white"
        axes.plot(row["x"], median, "o" if known else "^", ms=4.5, mec=color, mfc=face, zorder=3)
