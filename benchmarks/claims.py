"""Every claim on every problem: effect, interval, and verdict, from the packed records.

    python -m benchmarks.claims --out=results/claims.md   half a minute; draws the figure beside it

The effect is that with matched seeds and its 95% interval by the sign test (docs/statistics.md). A
claim is reproduced if the effect with matched seeds and the tuned ratios of all searches (of
further searches, a sign test over them) agree with it, not reproduced if both contradict it, and
undecided otherwise. The effect agrees or contradicts by the verdict of the report, which is
adjusted for the conditions on its page; where other conditions are compared than with the baseline,
by the unadjusted sign test.
"""

# pandas has no complete type stubs.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false
# pyright: reportGeneralTypeIssues=false, reportReturnType=false, reportCallIssue=false

import collections
import dataclasses
import functools
import itertools
import math
import pathlib
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from analysis import archive, bounds, load, scores, tables, uncertainty
from benchmarks import common, convex_regimes, deciding_sizes, mean_curves
from runs.study import Study

RESULTS = pathlib.Path(__file__).parents[1] / "results"
KEY = ["search", "trial"]
COLORS = {"reproduced": "#009E73", "not reproduced": "#D55E00", "undecided": "#999999"}
_EDGES = 0.2, 2.0  # ratios that the figure shows


@dataclasses.dataclass(frozen=True)
class Cell:
    """A claim on one problem.

    Attributes:
        effect, low, high: a ratio with matched seeds, or a difference of best values, and its
            interval; NaN where there are too few pairs.
        tuned: the ratio of tuned conditions with its range, as the report prints it.
        verdict: a key of COLORS.
        sizes: the pairs of trials (or runs) and the searches that would decide (`deciding_sizes`),
            each with the study's own number in parentheses; "-" where the cell is decided.
        bounded: the compared conditions that are bounded by the search space; see `_bounded`.
        p: of the sign test of no effect, not adjusted; NaN where there are too few pairs, or none.
    """

    effect: float
    low: float
    high: float
    tuned: str
    verdict: str
    differs: bool = False
    sizes: tuple[str, str] = ("-", "-")
    bounded: str = "-"
    p: float = math.nan

    def __str__(self) -> str:
        number = "{:+.3f}".format if self.differs else "{:.2f}".format
        effect = "-" if math.isnan(self.effect) else number(self.effect)
        if math.isnan(self.low):
            return effect
        low = "-" if self.low == 0 and not self.differs else number(self.low)
        return f"{effect} [{low}, {'-' if math.isinf(self.high) else number(self.high)}]"


Problems = Mapping[str, Callable[[], Cell]]


@functools.cache
def loaded(study: str) -> load.LoadedStudy:
    """A study of results/trials.parquet, such as grid/digits or further/quality."""
    return load.read(RESULTS / archive.TRIALS, study=study)


def against_none(study: str, condition: str) -> Callable[[], Cell]:
    """A condition against no echoing; the claim is a smaller score, or no worse a best value."""

    def cell() -> Cell:
        trials, plan = loaded(study).trials, loaded(study).study
        effects = uncertainty.paired_effects(uncertainty.pairs(trials, plan), plan)
        matched = effects.set_index("condition").loc[condition]
        own = scores.condition_scores(trials, plan).set_index("condition", drop=False)
        row = own.loc[condition].to_dict()
        name = scores.EFFECTS[plan.score]
        tuned, none = scores.summary_of(row, name), 0.0 if plan.scores_values else 1.0
        below, above = uncertainty.verdicts(plan)
        sides = (
            matched["verdict"] == below and tuned.max < none,
            matched["verdict"] == above and tuned.min > none,
        )
        rises = plan.scores_values and plan.target.mode == "above"
        claimed, contrary = sides[::-1] if rises else sides
        text = tables.effect_text(row, name)
        decided = _cell(matched, text, claimed, contrary, plan.scores_values)
        baseline = plan.baseline_of(plan.condition(condition)) or ""
        return _of_conditions(decided, study, condition, baseline)

    return cell


def between(study: str, condition: str, other: str) -> Callable[[], Cell]:
    """A condition against another one; the claim is that it needs fewer fresh examples."""

    def cell() -> Cell:
        effects = uncertainty.paired_effects(_pairs(study, condition, other), loaded(study).study)
        decided = _by_sign_test(effects.iloc[0], _tuned(study, condition, other))
        return _of_conditions(decided, study, condition, other)

    return cell


def relative(study: str, own: tuple[str, str], base: tuple[str, str]) -> Callable[[], Cell]:
    """The ratio of two conditions over that of two others; the claim is that it is below 1."""

    def cell() -> Cell:
        effect, below, above = _matched_ratio(study, own, base)
        tuned = _compared(_tuned(study, *own), _tuned(study, *base))
        return _of_conditions(_judged(effect, tuned, below, above), study, *own, *base)

    return cell


def at_winners(study: str, own: tuple[str, str], base: tuple[str, str]) -> Callable[[], Cell]:
    """The ratio of two conditions over that of two others, all at fixed hyperparameters, so that
    only matched seeds judge it; the claim is that it is below 1."""

    def cell() -> Cell:
        effect, below, above = _matched_ratio(study, own, base)
        judged = _cell(effect, "", below, above)
        pairs = min(len(_pairs(study, *sides)) for sides in (own, base))
        return _sized_by_interval(judged, pairs)

    return cell


def further(
    name: str, own: tuple[str, str], base: tuple[str, str] | None = None
) -> Callable[[], Cell]:
    """A comparison with the searches of benchmarks.further_searches: of two conditions, or of two
    such ratios. The claim is that it is below 1, or, of best values, no worse; a sign test over
    searches, and one over pairs, must agree with it."""

    def cell() -> Cell:
        study = f"further/{name}"
        plan, tuned = loaded(study).study, _tuned(study, *own)
        none, floor = (0.0, -math.inf) if plan.scores_values else (1.0, 0.0)
        if base:
            tuned = _compared(tuned, _tuned(study, *base))
            effect, *sides = _matched_ratio(study, own, base)
        else:
            effect = uncertainty.paired_effects(_pairs(study, *own), plan).iloc[0]
            sides = _sides(effect)
        ends = tuned["low"].to_numpy(float), tuned["high"].to_numpy(float)
        below, above = uncertainty.signs(*ends, none)
        p = uncertainty.sign_test(below, above)
        searched = _sides({"p": p, "below": below, "above": above})
        low, high, *balance = uncertainty.sign_interval(*ends, floor)
        number = "{:+.4f}".format if plan.scores_values else "{:.2f}".format
        text = f"{bounds.text(*balance, number, floor)} [{number(low)}, {number(high)}]"
        smaller, larger = (a and b for a, b in zip(sides, searched, strict=True))
        claimed, contrary = (larger, smaller) if plan.higher_is_better else (smaller, larger)
        decided = _cell(effect, text, claimed, contrary, plan.scores_values)
        return _of_conditions(decided, study, *own, *(base or ()))

    return cell


def convex(
    batch_size: int,
    factor: int,
    other: int,
    bound: float,
    below: bool,
    page: str = "convex_regimes",
) -> Callable[[], Cell]:
    """The rules of results/protocol.md for the convex problem: a ratio is below `bound`, or it is
    not."""

    def cell() -> Cell:
        runs: Any = convex_regimes.recorded(page)
        ratios = convex_regimes.ratios(runs[~runs["tuning"]], batch_size, factor, other)
        low, high, *balance = uncertainty.sign_interval(*ratios)
        claimed, contrary = high <= bound, low > bound
        if not below:
            claimed, contrary = low >= bound, high < bound
        cell = Cell(
            uncertainty.middle(*balance),
            low,
            high,
            "",
            _verdict(claimed, contrary),
            bounded=_bounded_rates(runs, [batch_size], [factor, other]),
        )
        if cell.verdict != "undecided":
            return cell
        size = _size(deciding_sizes.needed(*ratios), len(ratios[0]))
        return dataclasses.replace(cell, sizes=(size, "-"))

    return cell


def convex_slopes(small: int, large: int, steep: float, flat: float) -> Callable[[], Cell]:
    """The rule of results/protocol.md for the slopes of the tuned learning rate at two batch sizes;
    the effect is the slope at the smaller one."""

    def cell() -> Cell:
        runs = convex_regimes.recorded("convex_regimes")
        table, sizes = convex_regimes.summarize(runs), (small, large)
        falls, stays = (convex_regimes.slope(table, size) for size in sizes)
        verdict = _verdict(falls <= steep and stays >= flat, falls > steep and stays < flat)
        text = f"{stays:+.2f} at {large}"
        bounded = _bounded_rates(runs, sizes, sorted(table["factor"].unique()))
        return Cell(falls, math.nan, math.nan, text, verdict, differs=True, bounded=bounded)

    return cell


def by_mean_curves(design: mean_curves.Design, claim: str) -> Callable[[], Cell]:
    """A claim of benchmarks.mean_curves, a ratio of curves averaged over seeds; NaN where the
    condition's does not reach the accuracy."""

    def cell() -> Cell:
        measured = mean_curves.read(design)
        ratio = measured.ratio(mean_curves.CLAIMS[claim], measured.level)
        if ratio is None:
            return Cell(math.nan, math.nan, math.nan, "", "undecided")
        value = ratio.value if math.isfinite(ratio.value) else math.nan
        judged = Cell(value, ratio.low, ratio.high, "", ratio.verdict)
        return _sized_by_interval(judged, min(map(len, measured.accuracies.values())))

    return cell


def faster(page: str, label: str, bound: float = 1.0, claimed: bool = True) -> Callable[[], Cell]:
    """A speedup in seconds, from results/time.md: its range over searches lies above
    `bound`, or, for claimed=False, below it. The effect is the ratio of seconds."""

    def cell() -> Cell:
        lines = (RESULTS / f"{page}.md").read_text(encoding="utf-8").splitlines()
        (row,) = (line for line in lines if line.startswith(f"| {label} |"))
        speedup = row.split("|")[3].strip()
        parts: Any = re.fullmatch(r"(.*) \[(.*), (.*)\]", speedup)
        middle, low, high = parts.groups()
        low, high = (
            open_end if end.startswith((mark, "-")) else float(end.lstrip("<>"))
            for end, mark, open_end in ((low, "<", 0.0), (high, ">", math.inf))
        )
        median = float(middle) if re.fullmatch(r"[\d.]+", middle) else math.nan  # or a bound
        above, below = low > bound, high < bound
        verdict = _verdict(above, below) if claimed else _verdict(below, above)
        sizes = "-", "-"
        if verdict == "undecided" and not math.isnan(median):
            # Of five searches, the page has the smallest, the median, and the largest; each of the
            # other two lies between two of these.
            ratios = [low, low, median, median, high], [low, median, median, high, high]
            sizes = "-", _size(deciding_sizes.needed(*ratios), 5)
        ends = 1 / high, 1 / low if low else math.inf
        return Cell(1 / median, *ends, f"{speedup} times as fast", verdict, sizes=sizes)

    return cell


def _sides(test: Mapping) -> tuple[bool, bool]:
    """Whether the sign test of `p`, `below`, and `above` says that most lie below, and above."""
    differs, lead = test["p"] <= 1 - uncertainty.PAIRED_LEVEL, test["below"] - test["above"]
    return differs and lead > 0, differs and lead < 0


def _matched_ratio(
    study: str, own: tuple[str, str], base: tuple[str, str]
) -> tuple[dict[str, float], bool, bool]:
    """The ratio of two ratios with matched seeds, with its interval, and whether that lies below
    1, and above it."""
    sides = [_pairs(study, *pair) for pair in (own, base)]
    low, high, *balance = uncertainty.ratio_of_ratios(
        *((pairs["effect_low"], pairs["effect_high"]) for pairs in sides)
    )
    reached = [(pairs["reached"] | pairs["baseline_reached"]).sum() for pairs in sides]
    if min(reached) < uncertainty.MIN_PAIRS:
        low = high = math.nan
    effect = dict(zip(("effect_low", "effect_high"), balance, strict=True))
    return effect | {"low": low, "high": high}, high < 1, low > 1


def _pairs(study: str, condition: str, other: str) -> pd.DataFrame:
    return uncertainty.pairs_between(loaded(study).trials, loaded(study).study, condition, other)


def _tuned(study: str, condition: str, other: str) -> pd.DataFrame:
    """Bounds of the ratio of the two conditions' scores (the difference of best values), by
    search."""
    searches = scores.search_scores(loaded(study).trials, loaded(study).study)
    score = loaded(study).study.score
    searches = searches.assign(low=searches[f"{score}_low"], high=searches[f"{score}_high"])
    own, base = (
        searches[searches["condition"] == name].set_index("search")[["low", "high"]]
        for name in (condition, other)
    )
    values = loaded(study).study.scores_values
    return _compared(own, base, bounds.difference if values else bounds.ratio)


def _compared(
    own: pd.DataFrame, base: pd.DataFrame, effect: Callable = bounds.ratio
) -> pd.DataFrame:
    """Bounds of own / base, or of another effect, of the searches that both have."""
    both = own.merge(base, left_index=True, right_index=True, suffixes=("", "_base"))
    low, high = effect((both["low"], both["high"]), (both["low_base"], both["high_base"]))
    return pd.DataFrame({"low": low, "high": high}, index=both.index)


def _of_conditions(cell: Cell, study: str, *conditions: str) -> Cell:
    """The cell with what it says of the conditions that it compares."""
    named = (_bounded(study, name) for name in dict.fromkeys(conditions))
    cell = dataclasses.replace(cell, bounded="; ".join(filter(None, named)) or "-")
    if cell.verdict != "undecided":
        return cell
    return dataclasses.replace(cell, sizes=_sizes(study, *conditions))


def _sizes(study: str, *conditions: str) -> tuple[str, str]:
    """The sizes that would decide an undecided ratio of two conditions, or of two such ratios, of
    which pairs of trials decide by no sign test."""
    trials, plan = loaded(study).trials, loaded(study).study
    low, high = uncertainty.trial_bounds(trials, plan)
    counted = trials[trials["counted"]].assign(low=low, high=high)
    sides = [counted[counted["condition"] == name].set_index(KEY) for name in conditions]
    shared = functools.reduce(pd.Index.intersection, (side.index for side in sides))
    ends = [
        tuple(side.loc[shared, end].to_numpy(float) for end in ("low", "high")) for side in sides
    ]
    so_far = len(shared), len(shared.unique("search"))
    if plan.scores_values:
        return _sizes_of_values(ends, plan, so_far)
    searches = deciding_sizes.searches(ends, plan.trials)
    tuned = bounds.ratio(*searches[:2])
    if len(searches) > 2:
        tuned = bounds.ratio(tuned, bounds.ratio(*searches[2:]))
        return "-", _size(deciding_sizes.needed(*tuned), so_far[1])
    sizes = (deciding_sizes.needed(*ratios) for ratios in (bounds.ratio(*ends), tuned))
    return tuple(map(_size, sizes, so_far))


def _sized_by_interval(cell: Cell, so_far: int) -> Cell:
    """The cell with the pairs, or runs, that would decide it, if it is undecided."""
    if cell.verdict != "undecided":
        return cell
    size = _size(deciding_sizes.by_interval(cell.low, cell.high, so_far), so_far)
    return dataclasses.replace(cell, sizes=(size, "-"))


def _sizes_of_values(
    ends: Sequence[deciding_sizes.Ends], plan: Study, so_far: tuple[int, int]
) -> tuple[str, str]:
    """The sizes for best values, what is of interest being a tenth of the baseline's tuned loss, or
    of what it lacks to a value of 1."""
    if plan.higher_is_better:
        ends = [(1 - highs, 1 - lows) for lows, highs in ends]
    searches = deciding_sizes.searches(ends, plan.trials)
    smallest = (1 - deciding_sizes.RATIO) * float(np.median(searches[1][1]))
    sizes = (
        deciding_sizes.needed(*bounds.difference(*sides), difference=smallest)
        for sides in (ends, searches)
    )
    return tuple(map(_size, sizes, so_far))


@functools.cache
def _bounded(study: str, condition: str) -> str:
    """Where a condition is bounded by the search space, as results/protocol.md defines it: the best
    trials of two or more searches (of more than ten, a fifth of them) lie at one end of an axis. ""
    if it is not."""
    trials, plan = loaded(study).trials, loaded(study).study
    searches = scores.search_scores(trials, plan)
    best = scores.leaders(trials, searches[searches["condition"] == condition])
    axes = []
    for axis in plan.space:
        ends = collections.Counter(axis.near_end(value) for value in best[axis.field])
        axes += [
            f"{end} of {axis.label} in {ends[end]} of {len(best)}"
            for end in ("min", "max")
            if ends[end] >= max(2, 0.2 * len(best))
        ]
    return f"{condition}: {', '.join(axes)}" if axes else ""


def _bounded_rates(runs: pd.DataFrame, sizes: Sequence[int], factors: Sequence[int]) -> str:
    """Where the tuned learning rate of the convex problem is the smallest or the largest tried; "-"
    if nowhere."""
    rates = runs.groupby(["batch_size", "factor"])["rate"].first()
    ends = {"min": convex_regimes.RATES[0], "max": convex_regimes.RATES[-1]}
    named = [
        f"e = {factor} at batch size {size}: {end} of learning rate"
        for size, factor in itertools.product(sizes, factors)
        for end, rate in ends.items()
        if math.isclose(rates[size, factor], rate, rel_tol=1e-6)  # stored in 32 bits
    ]
    return "; ".join(named) or "-"


def _size(number: float, so_far: int) -> str:
    if math.isnan(number):
        size = "-"
    else:
        size = f">{deciding_sizes.LARGEST:,}" if math.isinf(number) else f"{number:,}"
    return f"{size} ({so_far})"


def _by_sign_test(effect: Mapping, tuned: pd.DataFrame) -> Cell:
    """A ratio that the claim says is below 1, from the signs of its pairs at 1. The interval may
    end at 1 and not contain it, where several pairs tie."""
    return _judged(effect, tuned, *_sides(effect))


def _judged(effect: Mapping, tuned: pd.DataFrame, below: bool, above: bool) -> Cell:
    """A ratio that the claim says is below 1; `below` and `above` are what matched seeds say."""
    summary = bounds.summary(tuned["low"], tuned["high"])
    number = "{:.2f}".format
    text = bounds.text(summary.low, summary.high, number)
    text += f" [{bounds.range_text(summary, number)}]"
    return _cell(effect, text, below and summary.max < 1, above and summary.min > 1)


def _cell(effect, tuned: str, claimed: bool, contrary: bool, differs: bool = False) -> Cell:
    low, high = effect["effect_low"], effect["effect_high"]
    middle = low if low == high else uncertainty.middle(low, high)
    ends = float(effect["low"]), float(effect["high"])
    p = float(effect.get("p", math.nan))
    return Cell(float(middle), *ends, tuned, _verdict(claimed, contrary), differs, p=p)


def _verdict(claimed: bool, contrary: bool) -> str:
    return "reproduced" if claimed else "not reproduced" if contrary else "undecided"


_BEFORE, _AFTER, _BATCH = (
    f"{x}_e2" for x in ("before_augmentation", "after_augmentation", "after_batching")
)

# Problems of the registered grid: study and batch sizes. "grid digits" and "grid sentences" have
# other targets and another protocol than "digits" and "sentences".
_GRIDS = {
    "grid digits": ("grid/digits", 32, 64),
    "logistic": ("grid/logistic", 32, 64),
    "grid sentences": ("grid/sentences", 32, 64),
    "mnist": ("grid/mnist", 32, 64),
    "cells": ("grid/cells", 16, 32),
}


# Problems of the study `common_cadence`, which evaluates echoing as often per fresh example as no
# echoing; with their batch size.
AT_COMMON_CADENCE = {"logistic": 32, "digits": 32, "sentences": 32, "mnist": 32, "cells": 16}
_DOCUMENTS = "grid/documents"  # at batch size 16
_PHOTOGRAPHS = "grid/photographs"  # at batch size 32


def _e(factor: int, size: int) -> str:
    return f"before_augmentation_e{factor}_b{size}"


def _on_grids(cell: Callable[[str, int, int], Callable[[], Cell]]) -> Problems:
    """A claim on the grid's problems; `cell` takes a study and its two batch sizes."""
    return {name: cell(*grid) for name, grid in _GRIDS.items()}


def _at_common_cadence(cell: Callable[[str, int], Callable[[], Cell]]) -> Problems:
    """A claim on the problems with a common cadence; `cell` takes a study and its batch size."""
    return {
        f"grid {name}" if name in ("digits", "sentences") else name: cell(
            f"grid/common_cadence_{name}", size
        )
        for name, size in AT_COMMON_CADENCE.items()
    }


def _by_mean_curves(claim: str) -> Problems:
    """A claim on the problems with curves averaged over seeds."""
    return {
        "grid digits" if design.problem == "digits" else design.problem: by_mean_curves(
            design, claim
        )
        for design in mean_curves.DESIGNS.values()
    }


def _tolerance(study: str, small: int, large: int) -> Callable[[], Cell]:
    return relative(study, (_e(16, large), _e(4, large)), (_e(16, small), _e(4, small)))


def _larger_batches(study: str, size: int, other: int) -> Callable[[], Cell]:
    own, base = ((f"{_BATCH}_b{b}", f"baseline_b{b}") for b in (size, other))
    return relative(study, own, base)


def _shuffled(study: str, kind: str, buffer: int = 1024) -> Callable[[], Cell]:
    return between(study, f"{kind}_buffer_{buffer}", f"{kind}_buffer_0")


def _decay(weight_decay: float) -> Callable[[], Cell]:
    sides = [
        (f"before_augmentation_e16_decay_{decay:g}", f"baseline_decay_{decay:g}")
        for decay in (weight_decay, 0)
    ]
    return relative("grid/weight_decay_logistic", *sides)


def _decay_of_winners(weight_decay: float) -> Callable[[], Cell]:
    sides = [(f"e16_decay_{decay:g}", f"baseline_decay_{decay:g}") for decay in (weight_decay, 0)]
    return at_winners("grid/weight_decay_of_winners_sentences", *sides)


CLAIMS: dict[str, Problems] = {
    "Echoing twice before augmentation needs fewer fresh examples (fig. 4)": {
        "manual": against_none("language_insertion", _BEFORE),
        "documents": against_none(_DOCUMENTS, _e(2, 16)),
        "photographs": against_none(_PHOTOGRAPHS, _e(2, 32)),
        **_on_grids(lambda study, small, _: against_none(study, _e(2, small))),
    },
    "... with no more evaluations per fresh example than no echoing": _at_common_cadence(
        lambda study, size: against_none(study, _e(2, size))
    ),
    "... by curves averaged over seeds": _by_mean_curves("e = 2 needs fewer than no echoing"),
    "... after augmentation": {
        "photographs": against_none(_PHOTOGRAPHS, f"{_AFTER}_b32"),
        "grid digits": against_none("grid/digits", f"{_AFTER}_b32"),
        "mnist": against_none("grid/mnist", f"{_AFTER}_b32"),
        "cells": against_none("grid/cells", f"{_AFTER}_b16"),
    },
    "... after batching": {
        "manual": against_none("language_insertion", _BATCH),
        "documents": against_none(_DOCUMENTS, f"{_BATCH}_b16"),
        "photographs": against_none(_PHOTOGRAPHS, f"{_BATCH}_b32"),
        **_on_grids(lambda study, small, _: against_none(study, f"{_BATCH}_b{small}")),
    },
    "Earlier is better: before augmentation against batch echoing (fig. 4)": {
        "manual": between("language_insertion", _BEFORE, _BATCH),
        "documents": between(_DOCUMENTS, _e(2, 16), f"{_BATCH}_b16"),
        "photographs": between(_PHOTOGRAPHS, _e(2, 32), f"{_BATCH}_b32"),
        **_on_grids(lambda study, small, _: between(study, _e(2, small), f"{_BATCH}_b{small}")),
    },
    "... the same, run again on another processor": {  # the other grids gave their numbers again
        "grid digits": between(
            "grid/shuffle_digits", f"{_BEFORE}_buffer_256", f"{_BATCH}_buffer_256"
        ),
    },
    "e = 16 still needs fewer, batch size 32, documents and cells 16 (fig. 6)": {
        "digits": against_none("digits_factor", _e(16, 32)),
        "manual": against_none("language_factor", _e(16, 32)),
        "sentences": against_none("sentences_factor", _e(16, 32)),
        "documents": against_none(_DOCUMENTS, _e(16, 16)),
        "photographs": against_none(_PHOTOGRAPHS, _e(16, 32)),
        **_on_grids(lambda study, small, _: against_none(study, _e(16, small))),
    },
    "... e = 16 with no more evaluations per fresh example": _at_common_cadence(
        lambda study, size: against_none(study, _e(16, size))
    ),
    "... e = 16 by curves averaged over seeds": _by_mean_curves(
        "e = 16 needs fewer than no echoing"
    ),
    "... twice the batch size": {
        "digits": against_none("digits_factor", _e(16, 64)),
        "sentences": against_none("sentences_factor", _e(16, 64)),
        **_on_grids(lambda study, _, large: against_none(study, _e(16, large))),
    },
    "Beyond e = 4, more is worse: e = 4 against 16, the same batch sizes (fig. 6)": {
        "digits": between("digits_factor", _e(4, 32), _e(16, 32)),
        "manual": between("language_factor", _e(4, 32), _e(16, 32)),
        "sentences": between("sentences_factor", _e(4, 32), _e(16, 32)),
        "documents": between(_DOCUMENTS, _e(4, 16), _e(16, 16)),
        "photographs": between(_PHOTOGRAPHS, _e(4, 32), _e(16, 32)),
        **_on_grids(lambda study, small, _: between(study, _e(4, small), _e(16, small))),
    },
    "... e = 4 against 16 with equally many evaluations per fresh example": _at_common_cadence(
        lambda study, size: between(study, _e(4, size), _e(16, size))
    ),
    "... e = 4 against 16 by curves averaged over seeds": _by_mean_curves(
        "e = 4 needs fewer than e = 16"
    ),
    "Larger batches tolerate larger factors: e = 16 over 4, twice the size (fig. 6)": {
        "digits": _tolerance("digits_factor", 32, 64),
        "sentences": _tolerance("sentences_factor", 32, 64),
        **_on_grids(_tolerance),
    },
    "Larger batches help batch echoing: e = 2, twice the size (fig. 7)": {
        "documents": _larger_batches("grid/batch_size_documents", 16, 8),
        "grid digits": _larger_batches("grid/batch_size_digits", 32, 16),
        "logistic": _larger_batches("grid/batch_size_logistic", 32, 16),
        "grid sentences": _larger_batches("grid/batch_size_sentences", 32, 16),
        "mnist": _larger_batches("grid/batch_size_mnist", 32, 16),
        "cells": _larger_batches("grid/batch_size_cells", 16, 8),
    },
    "More shuffling helps, before augmentation: 1,024 over 0, cells 256 (fig. 8)": {
        "grid digits": _shuffled("grid/shuffle_digits", _BEFORE),
        "logistic": _shuffled("grid/shuffle_logistic", _BEFORE),
        "documents": _shuffled("grid/shuffle_documents", _BEFORE),
        "grid sentences": _shuffled("grid/shuffle_sentences", _BEFORE),
        "mnist": _shuffled("grid/shuffle_mnist", _BEFORE),
        "cells": _shuffled("grid/shuffle_cells", _BEFORE, 256),
    },
    "... after batching, as many examples in whole batches": {
        "grid digits": _shuffled("grid/shuffle_digits", _BATCH),
        "logistic": _shuffled("grid/shuffle_logistic", _BATCH),
        "documents": _shuffled("grid/shuffle_documents", _BATCH),
        "grid sentences": _shuffled("grid/shuffle_sentences", _BATCH),
        "mnist": _shuffled("grid/shuffle_mnist", _BATCH),
        "cells": _shuffled("grid/shuffle_cells", _BATCH, 256),
    },
    "Best value in a budget no worse, before augmentation (fig. 9; a difference)": {
        "documents": against_none("grid/quality_documents", _BEFORE),
        "photographs": against_none("grid/quality_photographs", _BEFORE),
        "grid digits": against_none("grid/quality_digits", _BEFORE),
        "logistic": against_none("grid/quality_logistic", _BEFORE),
        "grid sentences": against_none("grid/quality_sentences", _BEFORE),
        "mnist": against_none("grid/quality_mnist", _BEFORE),
        "cells": against_none("grid/quality_cells", _BEFORE),
    },
    "... after batching (a difference, too)": {
        "documents": against_none("grid/quality_documents", _BATCH),
        "grid digits": against_none("grid/quality_digits", _BATCH),
        "logistic": against_none("grid/quality_logistic", _BATCH),
        "grid sentences": against_none("grid/quality_sentences", _BATCH),
        "mnist": against_none("grid/quality_mnist", _BATCH),
        "cells": against_none("grid/quality_cells", _BATCH),
    },
    "Faster behind a slow upstream, e = 5 (others 4), seconds over searches (fig. 5)": {
        "digits": faster("time", "digits, e = 5"),
        "grid sentences": faster("time", "sentences, e = 4"),
        "cells": faster("time", "cells, e = 4"),
        "documents": faster("time", "documents, e = 4"),
    },
    "... records over HTTP": {"digits": faster("time", "HTTP, e = 5")},
    "... files on a slow disk": {"digits": faster("time", "disk, e = 5")},
    "Behind an expensive augmentation, faster with e = 4 after it, seconds": {
        "digits": faster("time", "augmentation, after it, e = 4"),
    },
    "... with batch echoing": {
        "digits": faster("time", "augmentation, after batching, e = 4"),
    },
    "... but not with echoing before it": {
        "digits": faster("time", "augmentation, before it, e = 4", 1.1, False),
    },
    "Not only more steps: e = 2 against no echoing with as many steps": {
        "grid digits": between("grid/controls_digits", _BEFORE, "baseline_steps_of_e2"),
        "logistic": between("grid/controls_logistic", _BEFORE, "baseline_steps_of_e2"),
    },
    "Better than reading twice: e = 2 against copies an epoch apart": {
        "grid digits": between("grid/controls_digits", _BEFORE, "spaced_epochs_2"),
        "logistic": between("grid/controls_logistic", _BEFORE, "spaced_epochs_2"),
    },
    "Fractional factors gain step by step: e = 1.5 against none": {
        "logistic": against_none("grid/fractions_logistic", "before_augmentation_e1.5"),
        "grid sentences": against_none("grid/fractions_sentences", "before_augmentation_e1.5"),
    },
    "... e = 2 against e = 1.5": {
        "logistic": between("grid/fractions_logistic", _BEFORE, "before_augmentation_e1.5"),
        "grid sentences": between("grid/fractions_sentences", _BEFORE, "before_augmentation_e1.5"),
    },
    "Decaying factors gain more than a constant one: e = 4, then none, against 2": {
        "logistic": between("grid/decaying_logistic", "decaying", "constant"),
        "grid sentences": between("grid/decaying_sentences", "decaying", "constant"),
    },
    "... growing ones: none, then e = 4, against 2": {
        "logistic": between("grid/decaying_logistic", "growing", "constant"),
        "grid sentences": between("grid/decaying_sentences", "growing", "constant"),
    },
    "Weight decay helps e = 16 more than no echoing: 0.001 over none": {
        "logistic": _decay(0.001),
        "grid sentences": _decay_of_winners(0.001),
    },
    "... 0.01 over none": {
        "logistic": _decay(0.01),
        "grid sentences": _decay_of_winners(0.01),
    },
    "... 0.0001 over none": {"grid sentences": _decay_of_winners(0.0001)},
    "Under AdamW with cosine decay, too, e = 2 needs fewer: batch size 32": {
        "grid sentences": against_none("grid/optimizer_b32", _BEFORE),
    },
    "... batch size 256": {"grid sentences": against_none("grid/optimizer_b256", _BEFORE)},
    "Noise limits small batches: e = 64 over 16, batch size 4 (Agarwal et al.)": {
        "logistic": convex(4, 64, 16, bound=0.8, below=False),
    },
    "Curvature limits large ones: e = 4 over 1, batch size 256 (Agarwal et al.)": {
        "logistic": convex(256, 4, 1, bound=0.35, below=True),
    },
    "The tuned rate falls like 1/e at batch size 4, not at 256: slopes (Agarwal et al.)": {
        "logistic": convex_slopes(4, 256, steep=-0.7, flat=-0.3),
    },
}
# Claims of CLAIMS that were judged again, by further searches or runs alone.
FURTHER: dict[str, Problems] = {
    "More shuffling helps, before augmentation: 1,024 over 0, cells 256 (fig. 8)": {
        "logistic": further("shuffle", (f"{_BEFORE}_buffer_1024", f"{_BEFORE}_buffer_0")),
    },
    "... after batching, as many examples in whole batches": {
        "logistic": further("shuffle", (f"{_BATCH}_buffer_1024", f"{_BATCH}_buffer_0")),
    },
    "Best value in a budget no worse, before augmentation (fig. 9; a difference)": {
        "logistic": further("quality", (_BEFORE, "baseline")),
    },
    "Better than reading twice: e = 2 against copies an epoch apart": {
        "logistic": further("controls", (_BEFORE, "spaced_epochs_2")),
    },
    "Fractional factors gain step by step: e = 1.5 against none": {
        "logistic": further("fractions", ("before_augmentation_e1.5", "baseline")),
    },
    "... e = 2 against e = 1.5": {
        "logistic": further("fractions", (_BEFORE, "before_augmentation_e1.5")),
    },
    "Decaying factors gain more than a constant one: e = 4, then none, against 2": {
        "logistic": further("decaying", ("decaying", "constant")),
    },
    "... growing ones: none, then e = 4, against 2": {
        "logistic": further("decaying", ("growing", "constant")),
    },
    "Weight decay helps e = 16 more than no echoing: 0.001 over none": {
        "logistic": further(
            "weight_decay",
            ("before_augmentation_e16_decay_0.001", "baseline_decay_0.001"),
            ("before_augmentation_e16_decay_0", "baseline_decay_0"),
        ),
    },
    "Curvature limits large ones: e = 4 over 1, batch size 256 (Agarwal et al.)": {
        "logistic": convex(256, 4, 1, bound=0.35, below=True, page="convex_further"),
    },
}
PROBLEMS = ("digits", "manual", "sentences", "documents", "photographs")
PROBLEMS += tuple(_GRIDS)


Cells = Mapping[str, Mapping[str, Cell]]


def on_several_problems(cells: Cells) -> Cells:
    """The claims judged on at least three problems, without the further tests of them."""
    return {
        claim: problems
        for claim, problems in cells.items()
        if len(problems) >= 3 and not claim.startswith("...")
    }


def draw(cells: Cells) -> Figure:
    """A row per claim and a column per problem; the color is the verdict, the line the interval.

    It has the proportions of a slide, which about nine claims fill.
    """
    figure = Figure(figsize=(12.8, 7.2), layout="constrained")
    axes = figure.add_subplot()
    for row, problems in enumerate(cells.values()):
        for name, cell in problems.items():
            column, color = PROBLEMS.index(name), COLORS[cell.verdict]
            axes.add_patch(_box(column, row, color))
            text = f"{cell}".replace(" ", "\n", 1)
            if cell.differs:  # a difference is not drawn, and its signs take more room
                axes.text(column, row, text, ha="center", va="center", fontsize=7.8)
                continue
            axes.text(column, row - 0.2, text, ha="center", va="center", fontsize=9)
            middle, line = _position(column, 1.0), row + 0.28
            axes.plot([middle] * 2, [line - 0.15, line + 0.15], color="black", lw=0.6, ls=":")
            if not math.isnan(cell.low):
                ends = [_position(column, end) for end in (cell.low, cell.high)]
                axes.plot(ends, [line] * 2, color=color, lw=2.5, solid_capstyle="butt")
            if not math.isnan(cell.effect):
                axes.plot(_position(column, cell.effect), line, "o", ms=5, color=color)
    axes.set_xlim(-0.5, len(PROBLEMS) - 0.5)
    axes.set_ylim(len(cells) - 0.5, -0.5)
    axes.set_xticks(range(len(PROBLEMS)), PROBLEMS)
    axes.xaxis.tick_top()
    # no line ends within "e = 4"
    labels = [textwrap.fill(claim.replace(" = ", "\xa0=\xa0"), 30) for claim in cells]
    axes.set_yticks(range(len(cells)), labels, fontsize=10)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    for verdict, color in COLORS.items():
        axes.plot([], [], "s", ms=9, color=color, label=verdict)
    figure.legend(loc="outside lower center", ncols=3, frameon=False)
    return figure


def _box(column: int, row: int, color: str) -> Rectangle:
    return Rectangle((column - 0.48, row - 0.45), 0.96, 0.9, color=color, alpha=0.15, lw=0)


def _position(column: int, ratio: float) -> float:
    """Where a ratio is drawn within a column, on a logarithmic scale."""
    low, high = (math.log(edge) for edge in _EDGES)
    share = (math.log(min(max(ratio, _EDGES[0]), _EDGES[1])) - low) / (high - low)
    return column - 0.4 + 0.8 * share


def p_values(problems: Mapping[str, Cell]) -> list[str]:
    """The p-value of each cell of a claim, and that adjusted for all of them if there are several;
    "-" without one."""
    own = [cell.p for cell in problems.values()]
    adjusted = uncertainty.holm([1.0 if math.isnan(p) else p for p in own])
    several = len(own) > 1
    return [
        "-" if math.isnan(p) else f"{p:.2g}" + several * f" ({holm:.2g})"
        for p, holm in zip(own, adjusted, strict=True)
    ]


def report(cells: Cells, further_cells: Cells) -> str:
    rows = [
        [label, name, str(cell), p, cell.tuned or "-", cell.verdict, *cell.sizes, cell.bounded]
        for claim, problems in cells.items()
        for label, judged in ((claim, problems), ("... further", further_cells.get(claim, {})))
        for (name, cell), p in zip(judged.items(), p_values(judged), strict=True)
    ]
    header = ["claim", "problem", "effect [interval]", "p (Holm)", "tuned [range of searches]"]
    header += ["verdict"]
    header += ["pairs to decide (so far)", "searches to decide (so far)"]
    header += ["bounded by the search space"]
    return "\n\n".join(
        [
            "# Claims by problem",
            "Which claims hold on which problem? Each row has the ratio of fresh examples (of "
            "seconds, or the difference of best values, where the claim says so) and a verdict, "
            "from the records in results/. Made by `python -m benchmarks.claims`; "
            "[docs/claims.md](../docs/claims.md) explains the claims.",
            "The effect is that with matched seeds and its 95% interval, except where only "
            "searches count or the problem is convex: for seconds, it is the tuned ratio with the "
            "range over five searches (93.75%); for Agarwal et al., it is that of new seeds at the "
            "tuned learning rate; for [curves averaged over seeds](mean_curves.md), the interval "
            "is that of a bootstrap over new seeds.",
            "Rows named *... further* judge the claim above again, by 25 searches that "
            "`benchmarks.further_searches` ran later, or 100 further runs (Agarwal et al.), alone. "
            "Their tuned brackets are the 95% interval of the sign test over searches, and they "
            "are judged by it instead of asking that all searches agree. The figure has them in "
            "place of the earlier ones.",
            "Of weight decay on sentences, each side has its best hyperparameters without it "
            "(`weight_decay_of_winners`), so only matched seeds count.",
            "p is that of the sign test; Holm's method adjusts it for the problems of the claim, "
            "which no verdict does.",
            "Two columns say how large a study of what is undecided would have to be: the pairs "
            "of trials with matched seeds, and the searches, with which a sign test finds a ratio "
            f"of {deciding_sizes.RATIO} (or, of best values, a difference by a tenth of no "
            "echoing's loss, or of what its accuracy or AP50 lacks to 1) with a probability of "
            f"{deciding_sizes.POWER} if they scatter as they do here. Parentheses hold how many "
            "there are so far; if that is already more, a larger difference is unlikely. The "
            "verdicts ask for more: that all searches agree (*further* rows excepted), and the "
            "pairs, too. From five searches, the numbers are rough: where 25 more were run, they "
            "changed by factors of 0.4 to 2.9. "
            "Searches are resampled from the study's trials; with three or fewer, their number is "
            "rough, as it is for seconds, which only the five searches tell. For Agarwal et al., "
            "pairs are runs. No sign test decides curves averaged over seeds, whose pairs are "
            "seeds, and weight decay on sentences: their sizes suppose intervals that narrow like "
            "1 / sqrt(number), and that the settings stay. What is decided has no size, other "
            "ratios of ratios have no pairs, and neither has a size where the median of the ratios "
            "is only a bound, as of seconds on documents and of e = 16 on the manual.",
            "The last column names the conditions whose best trials lie within 5% of the same end "
            "of an axis in two or more searches (a fifth of the further ones), or, for Agarwal et "
            "al., whose tuned learning rate is the smallest or the largest tried: a wider search "
            "might make them better.",
            common.markdown_table(header, rows),
            "The figure has the claims that are judged on at least three problems.",
            "![Effect, interval, and verdict of each of these claims on each problem](claims.png)",
        ]
    )


def main(argv: list[str] | None = None) -> None:
    options = common.arguments(__spec__.name, __doc__).parse_args(argv)
    cells, further_cells = (
        {
            claim: {name: cell() for name, cell in problems.items()}
            for claim, problems in claims.items()
        }
        for claims in (CLAIMS, FURTHER)
    )
    newest = {claim: own | further_cells.get(claim, {}) for claim, own in cells.items()}
    drawn = on_several_problems(newest)
    common.publish(report(cells, further_cells), options.out, lambda: draw(drawn))


if __name__ == "__main__":
    main()
