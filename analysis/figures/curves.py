"""The validation curve of each condition's best trial."""

import pandas as pd
from matplotlib.figure import Figure

from analysis.figures import style
from analysis.tables import COSTS, format_of, unbroken, value_text
from runs.study import BEST_VALUE, Study

# By column of the curves, the measure (of `scores.MEASURES`).
AGAINST = {"fresh_examples": "fresh_examples", "step": "steps", "train_seconds": "seconds"}


@style.styled
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
    target, measure = study.target, AGAINST[against]
    groups = curves.dropna(subset="value").groupby("condition", sort=False)
    lines = [line for _, line in groups]
    figure = Figure(figsize=(style.WIDTH, 3.0 + 0.12 * len(lines)), layout="constrained")
    axes = figure.add_subplot()
    styles = style.line_styles([line["insertion"].iloc[0] for line in lines])
    any_reached = False
    for line, look in zip(lines, styles, strict=True):
        label = unbroken(line["label"].iloc[0])
        if study.scores_values:
            best = line["value"].cummax() if target.mode == "above" else line["value"].cummin()
            line = line.assign(value=best)
            label += f": {value_text(best.iloc[-1])}"
        elif (reached := target.reached(line["value"])).any():
            line = line.loc[: reached.idxmax()]
            label += f": {format_of(measure)(line[against].iloc[-1])}"
            any_reached = True
        x, y = line[against], line["value"]
        axes.plot(x, y, lw=1.3, label=label, **look)
        axes.plot(x.iloc[-1], y.iloc[-1], "o", ms=4, color=look["color"], zorder=4, clip_on=False)
    if not study.scores_values:
        text = f"target {target.value:g}"
        axes.axhline(target.value, color=style.QUIET, lw=0.8, ls=style.DOTTED, zorder=0, label=text)
    axes.set_xlabel(COSTS[measure])
    style.format_ticks(axes.xaxis, measure)
    style.format_ticks(axes.yaxis, BEST_VALUE)
    style.say_if_nothing_reached(figure, any_reached, study)
    so_far = ", best so far" if study.scores_values else ""
    axes.set_ylabel(f"validation {target.metric}{so_far}")
    axes.set_xlim(left=0)
    style.legend_below(figure, axes)
    return figure
