"""Each condition beside the baseline with matched seeds and hyperparameters."""

import textwrap

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from analysis.figures.style import COLOURS, DOTTED, QUIET, WIDTH, lighter, styled
from analysis.study import BEST_VALUE, Study
from analysis.tables import paired_text


@styled
def paired_effects(paired: pd.DataFrame, effects: pd.DataFrame, study: Study) -> Figure:
    """A stroke for each pair of trials, the effect at which their signs balance, and its 95 %
    interval. A triangle is a pair of which one side did not reach the target: its effect lies on
    that side of the triangle. An open end of an interval runs to the edge.

    Args:
        paired: `uncertainty.pairs`.
        effects: `uncertainty.paired_effects` of them.
        study: says whether effects are ratios of fresh examples or differences of best values.
    """
    differ = study.score == BEST_VALUE
    figure = Figure(figsize=(WIDTH, 0.62 + 0.5 * len(effects)), layout="constrained")
    axes = figure.add_subplot()
    if not differ:
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
    for row, effect in enumerate(effects.to_dict("records")):
        own = paired[paired["condition"] == effect["condition"]]
        _strokes(axes, row, own, lighter(COLOURS[effect["insertion"]], 0.45), differ)
    ends = axes.get_xlim()
    for row, effect in enumerate(effects.to_dict("records")):
        colour = COLOURS[effect["insertion"]]
        if pd.notna(effect["low"]):
            inside = [min(max(effect[name], ends[0]), ends[1]) for name in ("low", "high")]
            axes.plot(inside, [row, row], color=colour, lw=1.6)
        if effect["effect_low"] == effect["effect_high"]:
            axes.plot(effect["effect_low"], row, "o", ms=5, color=colour)
        axes.annotate(
            _words(effect, study),
            (1, row),
            (8, 0),
            xycoords=axes.get_yaxis_transform(),
            textcoords="offset points",
            va="center",
        )
    axes.set_xlim(ends)
    axes.axvline(0 if differ else 1, color=QUIET, lw=0.8, ls=DOTTED, zorder=0)
    axes.set_yticks(range(len(effects)), [textwrap.fill(label, 28) for label in effects["label"]])
    axes.set_ylim(len(effects) - 0.42, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel(
        f"best {study.target.metric}, difference to the baseline with matched seeds"
        if differ
        else f"{study.score.replace('_', ' ')} to target, ratio to the baseline with matched seeds"
    )
    return figure


def _strokes(axes: Axes, row: int, own: pd.DataFrame, colour, differ: bool) -> None:
    """The pairs above a row: between their two ends where both are known, else at the one that
    is."""
    low, high = own["effect_low"], own["effect_high"]
    middle = (low + high) / 2 if differ else np.sqrt(low * high)
    known = own["reached"] & own["baseline_reached"]
    open_above, open_below = ~own["reached"] & (low > 0), ~own["baseline_reached"] & own["reached"]
    middle = middle.where(middle > 0, high) if not differ else middle  # reached at once
    for mark, x in (("|", middle[known]), (">", low[open_above]), ("<", high[open_below])):
        x = x[np.isfinite(x)]
        axes.plot(x, [row + 0.2] * len(x), mark, ms=6 if mark == "|" else 3, color=colour)


def _words(effect: dict, study: Study) -> str:
    counts = f"{effect['pairs']} pair{'' if effect['pairs'] == 1 else 's'}"
    alone = effect["condition_alone"] + effect["baseline_alone"] + effect["neither"]
    if alone:
        counts += f", {alone} censored"
    return f"{paired_text(effect, study)}\n{counts}"
