"""The validation curve of each condition's best trial."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from analysis.figures.style import (
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
from analysis.tables import COSTS, format_of, unbroken, value_text
from runs.study import Study

# By column of the curves, the measure (of `scores.MEASURES`).
AGAINST = {"fresh_examples": "fresh_examples", "step": "steps", "train_seconds": "seconds"}


@styled
def best_trial_curves(
    curves: pd.DataFrame, study: Study, against: str = "fresh_examples"
) -> Figure:
    """The validation metric of each condition's best trial.

    A curve ends where it first reaches the target, and the legend says where that is. If the study
    scores best values, curves show the best value so far and run to the end of the budget.

    Args:
        curves: `load.curves` of `scores.best_trials`, one trial per condition.
        study: defines the target, which is drawn as a line.
        against: one of AGAINST.
    """
    curves = curves.dropna(subset="value")
    lines = [line for _, line in curves.groupby("condition", sort=False)]
    lines = [
        _best_so_far(line, study) if study.scores_values else _to_target(line, study)
        for line in lines
    ]
    measure = AGAINST[against]
    figure = Figure(figsize=(WIDTH, 3.0 + 0.12 * len(lines)), layout="constrained")
    axes = figure.add_subplot()
    styles = line_styles([line["insertion"].iloc[0] for line in lines])
    for line, style in zip(lines, styles, strict=True):
        x, y = line[against], line["value"]
        label = in_legend(unbroken(line["label"].iloc[0]))
        if study.scores_values:
            label += f": {value_text(y.iloc[-1])}"
        elif study.target.reached(y.iloc[-1]):
            label += f": {format_of(measure)(x.iloc[-1])}"
        axes.plot(x, y, lw=1.3, label=label, **style)
        end = {"color": style["color"], "zorder": 4, "clip_on": False}
        axes.plot(x.iloc[-1], y.iloc[-1], "o", ms=4, **end)
    if not study.scores_values:
        target = study.target.value
        axes.axhline(target, color=QUIET, lw=0.8, ls=DOTTED, zorder=0, label=f"target {target:g}")
    axes.set_xlabel(COSTS[measure])
    format_ticks(axes.xaxis, measure)
    format_ticks(axes.yaxis, "best_value")
    reached = any(study.target.reached(line["value"].iloc[-1]) for line in lines)
    say_if_nothing_reached(figure, reached, study)
    so_far = ", best so far" if study.scores_values else ""
    axes.set_ylabel(f"validation {study.target.metric}{so_far}")
    axes.set_xlim(left=0)
    legend_below(figure, axes)
    return figure


def _to_target(line: pd.DataFrame, study: Study) -> pd.DataFrame:
    """A curve up to the first record at the target or past it."""
    reached = np.flatnonzero([study.target.reached(value) for value in line["value"]])
    return line.iloc[: reached[0] + 1] if len(reached) else line


def _best_so_far(line: pd.DataFrame, study: Study) -> pd.DataFrame:
    values = line["value"]
    return line.assign(value=values.cummax() if study.target.mode == "above" else values.cummin())
