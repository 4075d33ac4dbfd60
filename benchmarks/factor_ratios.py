"""How many fresh examples echoing saves on each problem of the grid, by echo factor.

    python -m benchmarks.factor_ratios --out=results/factor_ratios.md     seconds; draws the figure

Echoing before augmentation against no echoing at the same batch size, the first one of each
problem, from the packed records: tuned, with matched seeds, with new seeds at the best settings,
and evaluated no more often per fresh example than no echoing (docs/statistics.md,
results/protocol.md).
"""

# pandas has no complete type stubs.
# pyright: reportArgumentType=false

import dataclasses

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis import archive, bounds, scores, tables, uncertainty
from analysis.figures import style
from analysis.load import LoadedStudy
from benchmarks import claims, common, confirmation
from configs import problems
from runs.study import Study

# Names for readers who do not know the problems of configs/problems.py.
PROBLEMS = {
    "digits": "digits",
    "mnist": "MNIST images",
    "photographs": "photographs",
    "cells": "blood cells",
    "logistic": "logistic regression",
    "sentences": "sentences",
    "documents": "documents",
}
FACTORS = (2, 4, 16)
_SHADES = dict(zip(FACTORS, (0.55, 0.25, 0.0), strict=True))  # of white in the color


@dataclasses.dataclass(frozen=True)
class Ratios:
    """The fresh examples of one factor on one problem, relative to no echoing.

    Attributes:
        tuned: over searches.
        texts: as the page prints them: tuned, with matched seeds, and with new seeds; and the same
            at a common cadence. "-" for what was not run.
    """

    tuned: bounds.Summary
    texts: tuple[str, ...]


def batch_size(problem: str) -> int:
    """The first one, at which all problems have all conditions."""
    return problems.PROBLEMS[problem].batch_sizes[0]


def measured(problem: str, factor: int) -> Ratios:
    """The ratios of a factor on a problem of the grid."""
    name = f"before_augmentation_e{factor}_b{batch_size(problem)}"
    tuned, text = _tuned(claims.loaded(f"grid/{problem}"), name)
    texts = (text, *_paired(problem, name))
    seldom = problems.COMMON_CADENCE + problem
    if problem in claims.AT_COMMON_CADENCE:
        texts += (_tuned(claims.loaded(f"grid/{seldom}"), name)[1], *_paired(seldom, name))
    else:
        texts += ("-", "-", "-")
    return Ratios(tuned, texts)


def _paired(packed: str, condition: str) -> tuple[str, str]:
    """The effects of a condition with matched seeds and, if it was confirmed, with new ones."""
    tuned = claims.loaded(f"grid/{packed}")
    matched = _matched(tuned.trials, tuned.study, condition)
    confirmed = f"grid/{confirmation.PREFIX}{packed}"
    if confirmed not in archive.studies(claims.RESULTS / archive.TRIALS):
        return matched, "-"
    new_seeds = claims.loaded(confirmed)
    return matched, _matched(confirmation.registered(new_seeds), new_seeds.study, condition)


def _tuned(study: LoadedStudy, condition: str) -> tuple[bounds.Summary, str]:
    """The tuned ratio of a condition, and its text."""
    own = scores.condition_scores(study.trials, study.study).set_index("condition", drop=False)
    row, effect = own.loc[condition].to_dict(), scores.EFFECTS[study.study.score]
    return scores.summary_of(row, effect), tables.effect_text(row, effect)


def _matched(trials: pd.DataFrame, study: Study, condition: str) -> str:
    """The effect of a condition with matched seeds; "-" if it was not run."""
    pairs = uncertainty.pairs(trials, study)
    effects = uncertainty.paired_effects(pairs[pairs["condition"] == condition], study)
    return "".join(tables.paired_text(row, study) for row in effects.to_dict("records")) or "-"


@style.styled
def draw(ratios: dict[str, dict[int, Ratios]]) -> Figure:
    """A row per problem: for each factor the median over searches, a line for their range, and the
    ideal, 1 / e. Hollow marks are upper bounds; an arrow ends a range whose smallest ratio is only
    bounded."""
    figure = Figure(figsize=(style.WIDTH, 0.9 + 0.5 * len(ratios)), layout="constrained")
    axes = figure.add_subplot()
    for row, by_factor in enumerate(ratios.values()):
        for place, (factor, own) in enumerate(by_factor.items()):
            height = row + 0.24 * (place - (len(by_factor) - 1) / 2)
            color = style.lighter(style.COLORS["before_augmentation"], _SHADES[factor])
            _mark(axes, height, own.tuned, color)
            ideal = [1 / factor] * 2
            axes.plot(ideal, [height - 0.1, height + 0.1], color="black", lw=1.2)
            if row == 0:
                axes.plot([], [], "o", ms=5.5, color=color, label=f"e = {factor}")
    axes.plot([], [], color="black", lw=1.2, label="ideal: 1 / e")
    axes.axvline(1, color=style.QUIET, lw=0.8, ls=style.DOTTED, zorder=0)
    axes.set_xscale("log", base=2)
    axes.set_xticks([1 / 16, 1 / 8, 1 / 4, 1 / 2, 1], ["1/16", "1/8", "1/4", "1/2", "1"])
    axes.set_yticks(range(len(ratios)), [PROBLEMS[problem] for problem in ratios])
    axes.set_ylim(len(ratios) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("fresh examples to the target, relative to no echoing")
    figure.legend(loc="outside lower center", ncols=len(FACTORS) + 1)
    return figure


def _mark(axes: Axes, height: float, tuned: bounds.Summary, color: tuple) -> None:
    """A range and its median."""
    bounded = not tuned.min > 0
    low = tuned.min_high if bounded else tuned.min
    axes.plot([low, tuned.max], [height, height], color=color, lw=1.6)
    if bounded:
        axes.plot(low, height, "<", ms=4, color=color)
    face = color if tuned.low == tuned.high else "white"
    axes.plot(tuned.high, height, "o", ms=5.5, mec=color, mfc=face)


def report(ratios: dict[str, dict[int, Ratios]]) -> str:
    rows = [
        [PROBLEMS[problem], f"{batch_size(problem)}", f"{factor}", *own.texts]
        for problem, by_factor in ratios.items()
        for factor, own in by_factor.items()
    ]
    header = ["problem", "batch size", "e", "tuned [range of searches]"]
    header += ["matched seeds [95%]", "new seeds [95%]"]
    header += [f"{seeds}, common cadence" for seeds in ("tuned", "matched seeds", "new seeds")]
    return "\n\n".join(
        [
            "# Fresh examples that echoing saves, by factor",
            "How many fresh examples does echoing before augmentation need to reach the target, "
            "relative to no echoing at the same batch size? From the records of [the "
            "grid](protocol.md); made by `python -m benchmarks.factor_ratios`. The figure shows "
            "the tuned ratios.",
            "- **Tuned**: each condition with its best hyperparameters; the median over searches "
            "and their range, with five searches a 93.75% interval.\n"
            "- **Matched seeds**: trials with the same hyperparameters, initial parameters, and "
            "data order.\n"
            "- **New seeds**: the best settings of both, run with other seeds. Where the best "
            "trial of no echoing owed much to its seed, these ratios are too small; "
            "[confirmation](confirmation.md) says where.\n"
            "- **Common cadence**: the study `common_cadence` and its confirmation, where echoing "
            "is evaluated as often per fresh example as no echoing, instead of e times as often. "
            "Until it reaches the target, it has fewer evaluations than no echoing, and in the "
            "other columns mostly more, so a neutral ratio lies between the two.",
            common.markdown_table(header, rows),
        ]
    )


def main(argv: list[str] | None = None) -> None:
    options = common.arguments(__spec__.name, __doc__).parse_args(argv)
    ratios = {
        problem: {factor: measured(problem, factor) for factor in FACTORS} for problem in PROBLEMS
    }
    common.publish(report(ratios), options.out, lambda: draw(ratios))


if __name__ == "__main__":
    main()
