"""How the best trial of each condition got there."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from analysis.figures import labels
from analysis.figures.style import (
    COLOURS,
    DOTTED,
    QUIET,
    WIDTH,
    dashes,
    short,
    styled,
    unit,
)
from analysis.study import BEST_VALUE, Study

_WORDS = {"fresh_examples": "fresh examples", "step": "steps", "train_seconds": "training time (s)"}
AGAINST = tuple(_WORDS)


@styled
def best_trial_curves(
    curves: pd.DataFrame, study: Study, against: str = "fresh_examples"
) -> Figure:
    """The validation metric of each condition's best trial.

    Args:
        curves: `load.curves` of `scores.best_trials`, one trial per condition.
        study: its target is drawn as a line. A curve ends where it first reaches the target, and is
            named there; one that never does is named at its last record. Where the study is judged
            by best values, curves show the best so far and run to the end of the budget.
        against: one of AGAINST.
    """
    by_value = study.score == BEST_VALUE
    lines = _so_far(curves, study) if by_value else _to_target(curves, study)
    scale, unit_name = unit(max((line[against].max() for line in lines), default=1))
    figure = Figure(figsize=(WIDTH, 3.0 + 0.18 * len(lines)))
    axes = figure.add_subplot()
    ends = []
    for line, dash in zip(
        lines, dashes([_first(line, "insertion") for line in lines]), strict=True
    ):
        x, y = line[against] / scale, line["value"]
        colour = COLOURS[_first(line, "insertion")]
        axes.plot(x, y, color=colour, ls=dash, lw=1.3)
        axes.plot(x.iloc[-1], y.iloc[-1], "o", ms=4, color=colour, zorder=4, clip_on=False)
        reached = not by_value and study.target.reached(y.iloc[-1])
        words = _first(line, "label")
        if reached or by_value:
            words += f": {f'{y.iloc[-1]:.4g}' if by_value else short(x.iloc[-1])}"
        ends.append(labels.End(x.iloc[-1], y.iloc[-1], words, colour, flag=reached))
    if not by_value:
        axes.axhline(study.target.value, color=QUIET, lw=0.8, ls=DOTTED, zorder=0)
    axes.set_xlabel(f"{_WORDS[against]}{unit_name}")
    axes.set_ylabel(f"validation {study.target.metric}" + (", best so far" if by_value else ""))
    axes.set_xlim(0, max((end.x for end in ends), default=1))
    labels.name_ends(figure, axes, ends, study.target, mark_target=not by_value)
    return figure


def _lines(curves: pd.DataFrame) -> Sequence[pd.DataFrame]:
    return [line for _, line in curves.dropna(subset="value").groupby("condition", sort=False)]


def _to_target(curves: pd.DataFrame, study: Study) -> list[pd.DataFrame]:
    """Each condition's curve, up to the first record at the target or past it."""
    lines = []
    for line in _lines(curves):
        reached = np.flatnonzero([study.target.reached(value) for value in line["value"]])
        lines.append(line.iloc[: reached[0] + 1] if len(reached) else line)
    return lines


def _so_far(curves: pd.DataFrame, study: Study) -> list[pd.DataFrame]:
    """Each condition's curve of the best value so far."""
    best = "cummax" if study.target.mode == "above" else "cummin"
    return [line.assign(value=getattr(line["value"], best)()) for line in _lines(curves)]


def _first(line: pd.DataFrame, name: str) -> str:
    return line[name].iloc[0]
