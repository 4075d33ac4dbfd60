"""Each condition beside the baseline at equal seeds and hyperparameters."""

import textwrap

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from analysis.figures.style import COLOURS, DOTTED, QUIET, WIDTH, lighter, styled
from analysis.study import BEST_VALUE, Study


@styled
def paired_effects(paired: pd.DataFrame, effects: pd.DataFrame, study: Study) -> Figure:
    """A dot for each pair of trials, the mean over pairs, and its 95 % interval.

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
    for row, effect in enumerate(effects.itertuples()):
        colour = COLOURS[effect.insertion]
        own = paired.loc[paired["condition"] == effect.condition, "effect"].dropna()
        axes.plot(own, [row + 0.2] * len(own), "|", ms=6, color=lighter(colour, 0.45))
        axes.plot([effect.low, effect.high], [row, row], color=colour, lw=1.6)
        axes.plot(effect.effect, row, "o", ms=5, color=colour)
        axes.annotate(
            _words(effect, differ),
            (1, row),
            (8, 0),
            xycoords=axes.get_yaxis_transform(),
            textcoords="offset points",
            va="center",
        )
    axes.axvline(0 if differ else 1, color=QUIET, lw=0.8, ls=DOTTED, zorder=0)
    axes.set_yticks(range(len(effects)), [textwrap.fill(label, 28) for label in effects["label"]])
    axes.set_ylim(len(effects) - 0.42, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel(
        f"best {study.target.metric}, difference to the baseline at equal seeds"
        if differ
        else f"{study.score.replace('_', ' ')} to target, ratio to the baseline at equal seeds"
    )
    return figure


def _words(effect, differ: bool) -> str:
    if not effect.pairs:
        return "no pair"
    form = "+.3g" if differ else ".2f"
    interval = "" if pd.isna(effect.low) else f" [{effect.low:{form}}, {effect.high:{form}}]"
    return f"{effect.effect:{form}}{interval}\n{effect.pairs} pairs"
