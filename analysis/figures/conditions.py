"""The scores of a study with one row per condition."""

import math
import textwrap
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from analysis.figures import style
from analysis.scores import EFFECTS
from analysis.tables import effect_text, measure_label, score_text, unbroken
from runs.progress import several
from runs.study import BEST_VALUE, Study


@style.styled
def by_condition(
    scores: pd.DataFrame, searches: pd.DataFrame, study: Study, measure: str = ""
) -> Figure:
    """The score of each condition: a large dot for the median, a line for the range, a dot per
    search, and the effect as text.

    A search that never reached the target is a triangle at what its trials had used; its score is
    larger. A dotted line is the median of the condition's baseline. For fresh examples, a black
    stroke shows the ideal, that median / e.

    Args:
        scores: `scores.condition_scores`, one row per condition.
        searches: `scores.search_scores`, one row per search.
        study: defines the target.
        measure: one of `scores.MEASURES`; by default the one that the study scores.
    """
    measure = measure or study.score
    figure = Figure(figsize=(style.WIDTH, 0.8 + 0.5 * len(scores)), layout="constrained")
    axes = figure.add_subplot()
    axes.set_yticks(range(len(scores)), [textwrap.fill(unbroken(x), 28) for x in scores["label"]])
    axes.set_ylim(len(scores) - 0.42, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.locator_params(axis="x", nbins=5)  # the texts leave little width
    low, high = f"{measure}_low", f"{measure}_high"
    known = scores[scores[low] == scores[high]].set_index("condition")[low]
    ideal_label = "ideal: baseline / e"
    beside: Any = {"xycoords": axes.get_yaxis_transform(), "textcoords": "offset points"}
    for row, condition in enumerate(scores.to_dict("records")):
        name, baseline = condition["condition"], condition["baseline"]
        color = style.COLORS[condition["insertion"]]
        text = _score_and_effect(condition, measure)  # right of the axes; the layout makes room
        axes.annotate(text, (1, row), (8, 0), va="center", **beside)
        if baseline in known:
            edges = [row - 0.5, row + 0.5]
            axes.plot(
                [known[baseline]] * 2, edges, color=style.QUIET, lw=0.6, ls=style.DOTTED, zorder=0
            )
        own = searches[(searches["condition"] == name) & np.isfinite(searches[low])]
        if len(own) > 1:
            ends = [own[low].min(), own[low].max()]
            axes.plot(ends, [row, row], color=color, lw=1.2, marker="|", ms=11, mew=1.2)
        if name in known:
            axes.plot(
                known[name], row, "o", ms=7, mfc=style.lighter(color, 0.6), mec=color, zorder=1.5
            )
        censored = np.isinf(own[high])
        for marker, size, x in (("o", 3.2, own[low][~censored]), (">", 4.5, own[low][censored])):
            axes.plot(x, [row] * len(x), marker, ms=size, color=color)
        ideal, echoes = condition["ideal_fresh_examples"], condition["factor"] > 1
        if measure == "fresh_examples" and echoes and name != baseline and ideal < math.inf:
            axes.plot([ideal] * 2, [row - 0.28, row + 0.28], "k-", lw=1.2, label=ideal_label)
            ideal_label = None  # one legend entry
    if measure == BEST_VALUE:
        axes.margins(x=0.06)
    else:
        axes.set_xlim(left=0)
    style.format_ticks(axes.xaxis, measure)
    axes.set_xlabel(measure_label(measure, study))
    style.say_if_nothing_reached(figure, scores["searches_reached"].any(), study)
    style.legend_below(figure, axes)
    return figure


def _score_and_effect(condition: Mapping[str, Any], measure: str) -> str:
    """The median, its effect, and how many searches reached the target."""
    if not condition[f"{measure}_count"]:
        return "no trial has ended yet"
    lines = [score_text(condition, measure)]
    effect, baseline = EFFECTS[measure], condition["baseline"]
    if condition[f"{effect}_count"] and baseline not in (condition["condition"], None):
        lines.append(effect_text(condition, effect))
    if measure != BEST_VALUE and condition["searches_reached"] < condition["searches"]:
        searches = several(condition["searches"], "search")
        lines.append(f"reached in {condition['searches_reached']} of {searches}")
    return "\n".join(lines)
