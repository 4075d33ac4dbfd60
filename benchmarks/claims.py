"""The claims about echoing, and how each is judged on each problem and over problems.

results/protocol.md has the rules: an effect is the median over searches of a ratio of fresh
examples, or a difference of best values; a verdict needs its interval and that with matched seeds;
the pooled row of a claim has the problem as its unit.
"""

# pandas has no complete type stubs.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false
# pyright: reportGeneralTypeIssues=false, reportReturnType=false, reportCallIssue=false

import dataclasses
import functools
import math
import pathlib
import re
import statistics
from collections.abc import Callable, Collection, Sequence

import numpy as np
import pandas as pd
from ml_collections import ConfigDict
from scipy import optimize, stats

from analysis import archive, bounds, load, scores, uncertainty
from configs import problems
from runs import records

RECORDS = pathlib.Path(__file__).parents[1] / "results" / archive.TRIALS
MARGIN = (0.9, 1 / 0.9)  # ratios inside are no difference
VERDICTS = ("yes", "no difference", "no", "open")
MIN_PROBLEMS = 3  # of a pooled row
Interval = tuple[float, float]


@dataclasses.dataclass(frozen=True)
class Effect:
    """What one problem says about a claim.

    Attributes:
        low, high: the median over searches, or its bounds.
        interval: of the searches; NaN with fewer than five.
        text: the median and the interval, as they are printed.
        matched_text: likewise with matched seeds; "-" with fewer than ten pairs.
        verdict: one of VERDICTS.
        error: the standard error of the logarithm, or of a difference in margins.
        differs: whether it is a difference of best values: in margins, and positive if better.
        ideal: 1 / e of a factor that is compared with no echoing, or NaN.
    """

    low: float
    high: float
    interval: Interval
    text: str
    matched_text: str
    verdict: str
    error: float
    differs: bool = False
    ideal: float = math.nan

    @property
    def too_small(self) -> bool:
        """Whether echoing needed fewer steps than fresh data."""
        return bool(self.high < self.ideal)


@functools.cache
def loaded(study: str) -> load.LoadedStudy:
    """A study of results/trials.parquet, such as grid/digits or further/quality."""
    return load.read(RECORDS, study=study)


@functools.cache
def searches_of(study: str) -> pd.DataFrame:
    return scores.search_scores(loaded(study).trials, loaded(study).study)


# --- one problem


@functools.cache
def compared(study: str, own: tuple[str, str], base: tuple[str, str] | None = None) -> Effect:
    """The ratio of two conditions, or of two such ratios; of best values, the difference."""
    plan = loaded(study).study
    searches, pairs = by_search(study, *own), _pairs(study, *own)
    if base:
        searches = _relative(searches, by_search(study, *base))
        matched = _matched([pairs, _pairs(study, *base)])
    else:
        matched = _matched([pairs], -math.inf if plan.scores_values else 0.0)
    if plan.scores_values:
        return _difference(searches, matched, plan)
    text = f"{_number(matched[0])} [{_number(matched[1])}, {_number(matched[2])}]"
    text = "-" if math.isnan(matched[1]) else text
    factor = re.fullmatch(r".*_e([\d.]+)(_b\d+)?", own[0])
    over_none = not base and re.fullmatch(r"baseline(_b\d+)?", own[1])
    ideal = 1 / float(factor[1]) if factor and over_none else math.nan
    return _ratio_effect(searches, matched[1:], text, ideal)


def untuned(study: str, own: tuple[str, str]) -> Effect:
    """A condition with the best hyperparameters and the seeds of no echoing, against no echoing. A
    trial that diverged would not have reached the target within its budget either."""
    condition, baseline = own
    trials, plan = loaded(study).trials, loaded(study).study
    searches = searches_of(study)
    best = scores.leaders(trials, searches[searches["condition"] == baseline])
    runs = trials[(trials["condition"] == condition) & trials["status"].isin(records.FINISHED)]
    runs = best[["search", "trial"]].merge(runs, on=["search", "trial"]).set_index("search")
    score, end = runs[scores.REACHED].astype(float), runs["fresh_examples"].astype(float)
    end = end.clip(lower=plan.budget).where(runs["status"] == "diverged", end)
    sides = pd.DataFrame({"low": score.fillna(end), "high": score.fillna(math.inf)})
    ratios = _relative(sides, _scores(study, baseline))
    return _ratio_effect(ratios, interval_of(ratios), "-")


def by_mean_curves(problem: str, own: int, base: int) -> Effect:
    """A factor against another one by curves averaged over seeds, with a bootstrap interval."""
    curves, level = mean_curves(problem)
    ratio = mean_ratio(curves, (own, base), level)
    if ratio is None:
        raise ValueError(f"e = {base} does not reach {level} on {problem}")
    ends = round(ratio.low, 2), round(ratio.high, 2)  # the resamples move an end by 0.005
    known = [end for end in (ratio.low, ratio.high) if 0 < end < math.inf]
    sides = [abs(math.log(end / ratio.least)) for end in known] or [math.inf]
    error = statistics.fmean(sides) / stats.norm.ppf(0.975)
    values = ratio.least, ratio.value, ends, str(ratio), "-", verdict_of(ends, ends), error
    return Effect(*values, ideal=base / own if base == 1 else math.nan)


def by_winner(study: str, own: str, base: str) -> Effect:
    """Conditions that run the winner of each search k (`_ck`), against others, by geometric means
    over their seeds."""
    rows = []
    for search in range(bounds.MIN_SEARCHES_FOR_INTERVAL):
        sides = (_scores(study, f"{name}_c{search}") for name in (own, base))
        with np.errstate(divide="ignore"):
            rows.append(np.exp(np.log(_relative(*sides)).mean()))
    ratios = pd.DataFrame(rows)
    return _ratio_effect(ratios, interval_of(ratios), "-")


def _ratio_effect(
    searches: pd.DataFrame, matched: Interval, matched_text: str, ideal: float = math.nan
) -> Effect:
    interval = interval_of(searches)
    low, high = float(np.median(searches["low"])), float(np.median(searches["high"]))
    same = f"{low:.2f}" == f"{high:.2f}"
    middle = bounds.text(high if same else low, high, "{:.2f}".format)
    logs = np.log(searches["high"][np.isfinite(searches["high"])])
    error = float(logs.sem() * math.sqrt(math.pi / 2))  # of the median; NaN without two of them
    text, verdict = f"{middle} [{_ends_text(searches, interval)}]", verdict_of(interval, matched)
    return Effect(low, high, interval, text, matched_text, verdict, error, ideal=ideal)


def by_search(study: str, condition: str, other: str) -> pd.DataFrame:
    """Bounds of the ratio of two conditions' scores (the difference of best values), by search."""
    values = loaded(study).study.scores_values
    sides = (_scores(study, name) for name in (condition, other))
    return _relative(*sides, bounds.difference if values else bounds.ratio)


def _scores(study: str, condition: str) -> pd.DataFrame:
    """Bounds of a condition's scores, by search. One at the first evaluation is an upper bound."""
    table, score = searches_of(study), loaded(study).study.score
    own = table[table["condition"] == condition]
    low = own[f"{score}_low"].mask(own["resolution"] == 1, 0.0)
    return own.assign(low=low, high=own[f"{score}_high"]).set_index("search")[["low", "high"]]


def _relative(
    own: pd.DataFrame, base: pd.DataFrame, effect: Callable = bounds.ratio
) -> pd.DataFrame:
    both = own.merge(base, left_index=True, right_index=True, suffixes=("", "_base"))
    low, high = effect((both["low"], both["high"]), (both["low_base"], both["high_base"]))
    return pd.DataFrame({"low": low, "high": high}, index=both.index).dropna()


def interval_of(searches: pd.DataFrame, floor: float = 0.0) -> Interval:
    """The range of five searches, or the sign test's interval of more; NaN of fewer."""
    number = len(searches)
    if number < bounds.MIN_SEARCHES_FOR_INTERVAL:
        return math.nan, math.nan
    if number == bounds.MIN_SEARCHES_FOR_INTERVAL:
        return float(searches["low"].min()), float(searches["high"].max())
    return _sign_interval(searches["low"], searches["high"], floor)[:2]


def _sign_interval(lows, highs, floor: float) -> tuple[float, float, float, float]:
    """`uncertainty.sign_interval`; where several effects tie, it may end at no effect and not
    contain it, and then ends just before."""
    low, high, *balance = uncertainty.sign_interval(lows, highs, floor)
    none = 0.0 if floor < 0 else 1.0
    below, above = uncertainty.signs(lows, highs, none)
    if uncertainty.sign_test(below, above) <= 1 - uncertainty.PAIRED_LEVEL:
        if below > above:
            high = min(high, np.nextafter(none, -math.inf))
        else:
            low = max(low, np.nextafter(none, math.inf))
    return low, high, balance[0], balance[1]


def verdict_of(interval: Interval, matched: Interval) -> str:
    """Of a ratio that the claim says is below 1."""
    if interval[1] < 1 and matched[1] < 1:  # not if one is NaN
        return "yes"
    if interval[0] > 1 and matched[0] > 1:
        return "no"
    inside = MARGIN[0] < interval[0] and interval[1] < MARGIN[1]
    overlap = interval[0] <= matched[1] and matched[0] <= interval[1]
    return "no difference" if inside and overlap else "open"


def _ends_text(searches: pd.DataFrame, interval: Interval) -> str:
    """The interval, with the sign of a bound at an end that is one of a search's."""
    if len(searches) > bounds.MIN_SEARCHES_FOR_INTERVAL:
        bounded, texts = searches[searches["low"] < searches["high"]], []
        for end in interval:
            sign = "<" if (bounded["high"] == end).any() else ">"
            known = not (bounded == end).any(axis=None) or not 0 < end < math.inf
            texts.append(_number(end) if known else sign + _number(end))
        return ", ".join(texts)
    return bounds.range_text(bounds.summary(searches["low"], searches["high"]), "{:.2f}".format)


def _number(value: float) -> str:
    return f"{value:.2f}" if 0 < value < math.inf else "-"


def _pairs(study: str, condition: str, other: str) -> pd.DataFrame:
    return uncertainty.pairs_between(loaded(study).trials, loaded(study).study, condition, other)


def _matched(sides: list[pd.DataFrame], floor: float = 0.0) -> tuple[float, float, float]:
    """(balance, low, high) of the sign test with matched seeds; NaN where there are too few."""
    ends = [(pairs["effect_low"], pairs["effect_high"]) for pairs in sides]
    if len(ends) == 1:
        low, high, *balance = _sign_interval(*ends[0], floor)
    else:
        low, high, *balance = uncertainty.ratio_of_ratios(*ends)
    reached = [(pairs["reached"] | pairs["baseline_reached"]).sum() for pairs in sides]
    if min(reached) < uncertainty.MIN_PAIRS:
        low = high = math.nan
    return uncertainty.middle(*balance, differ=floor < 0), low, high


def _difference(searches: pd.DataFrame, matched: tuple[float, float, float], plan) -> Effect:
    """Of best values, by non-inferiority."""
    margin = TARGET_STEPS[plan.target.metric]
    better = 1 if plan.target.mode == "above" else -1
    middle, interval = float(searches["low"].median()), interval_of(searches, -math.inf)
    oriented = [
        tuple(sorted(better * end / margin for end in ends)) for ends in (interval, matched[1:])
    ]
    lows, highs = zip(*oriented, strict=True)
    verdict = "yes" if min(lows) > -1 else "no" if max(highs) < -1 else "open"
    text, matched_text = (
        f"{x:+.3f} [{low:+.3f}, {high:+.3f}]" for x, low, high in ((middle, *interval), matched)
    )
    error = float(searches["low"].sem()) / margin * math.sqrt(math.pi / 2)
    effect = better * middle / margin
    return Effect(effect, effect, oriented[0], text, matched_text, verdict, error, differs=True)


TARGET_STEPS = {"accuracy": 0.005, "AP50": 0.005, "loss": 0.05}  # margins of best values


# --- over problems


@dataclasses.dataclass(frozen=True)
class Pooled:
    """A claim over problems; NaN where fewer than MIN_PROBLEMS judge it or one is unbounded.

    Attributes:
        equal: (mean, low, high) with equal weights.
        random: (mean, low, high) of random effects.
        new: the interval of a new problem.
        verdict: yes, no, no difference, depends, or open.
        differs: whether the numbers are differences in margins.
    """

    equal: tuple[float, float, float]
    random: tuple[float, float, float]
    new: Interval
    verdict: str
    differs: bool = False

    def text(self, numbers: tuple[float, ...]) -> str:
        """A mean and its interval."""
        if math.isnan(numbers[0]):
            return "-"
        form = ("{:+.1f}" if self.differs else "{:.2f}").format
        *mean, low, high = map(form, numbers)
        return " ".join([*mean, f"[{low}, {high}]"])


def pooled(effects: Collection[Effect]) -> Pooled:
    """The pooled row of a claim, by the rules of results/protocol.md."""
    differs = any(own.differs for own in effects)
    high = np.array([own.high for own in effects])
    errors = np.array([own.error for own in effects])
    verdicts = {own.verdict for own in effects}
    if len(effects) < MIN_PROBLEMS or not np.isfinite(high).all():
        nothing = (math.nan,) * 3
        agreed = verdicts.pop() if len(verdicts) == 1 else "open"
        return Pooled(nothing, nothing, nothing[1:], agreed, differs)
    values = high if differs else np.log(high)
    back = (lambda x: x) if differs else np.exp
    equal, new = equal_weights(values)
    random, p = random_effects(values, errors)
    rows = [tuple(float(back(x)) for x in row) for row in (equal, random, new)]
    return Pooled(*rows, _pooled_verdict(rows[0][1:], rows[2], p, differs), differs)


def equal_weights(values: np.ndarray) -> tuple[tuple[float, float, float], Interval]:
    """(mean, low, high) of the mean by Student's t, and the interval of one more value."""
    number, mean = len(values), float(values.mean())
    wide = float(stats.t.ppf(0.975, number - 1) * values.std(ddof=1))
    half, new = wide / math.sqrt(number), wide * math.sqrt(1 + 1 / number)
    return (mean, mean - half, mean + half), (mean - new, mean + new)


def random_effects(
    values: np.ndarray, errors: np.ndarray
) -> tuple[tuple[float, float, float], float]:
    """(mean, low, high) by DerSimonian and Laird (1986) with the interval of Hartung and Knapp
    (2001), and the p-value of Cochran's Q."""
    weights, free = errors**-2.0, len(values) - 1
    q = float((weights * (values - np.average(values, weights=weights)) ** 2).sum())
    scale = weights.sum() - (weights**2).sum() / weights.sum()
    weights = 1 / (errors**2 + max(0.0, (q - free) / scale))
    mean = float(np.average(values, weights=weights))
    spread = float(np.average((values - mean) ** 2, weights=weights)) / free
    half = float(stats.t.ppf(0.975, free)) * math.sqrt(spread)
    return (mean, mean - half, mean + half), float(stats.chi2.sf(q, free))


def _pooled_verdict(mean: Interval, new: Interval, p: float, differs: bool) -> str:
    if differs:
        return "yes" if mean[0] > -1 else "no" if mean[1] < -1 else "open"
    if MARGIN[0] < mean[0] and mean[1] < MARGIN[1]:
        return "no difference"
    if max(mean[1], new[1]) < 1 or min(mean[0], new[0]) > 1:
        return "yes" if mean[1] < 1 else "no"
    return "depends" if new[0] < 1 < new[1] and p <= 0.05 else "open"


# --- curves averaged over seeds


_RESAMPLES, _INTERVAL = 10_000, 0.95
_BELOW_PLATEAU = 2  # margins between the level and the value that no echoing reaches
MEAN_FACTORS = (2, 4, 16)
Curves = tuple[np.ndarray, np.ndarray]  # fresh examples [evaluations], means [curves, evaluations]
MEAN_PROBLEMS = ("logistic", "digits", "mnist", "cells", "photographs", "documents")


def _values(table: pd.DataFrame, prefix: str, config: ConfigDict) -> pd.DataFrame:
    """Values [condition and search, fresh examples] of the runs of conditions that begin so; losses
    have a minus. After it diverged, a run has an accuracy of 0, or the loss of a uniform
    prediction."""
    planned = table[table["trial"] == 0]  # others replaced runs that diverged
    own = planned[planned["condition"].str.startswith(prefix)]
    values = own.pivot(index=["condition", "search"], columns="fresh_examples", values="value")
    every = [values.index.unique("condition"), planned["search"].unique()]
    longest = values.notna().sum(axis=1).idxmax()
    values = values[values.columns[values.loc[longest].notna()]]
    values = values.reindex(pd.MultiIndex.from_product(every, names=values.index.names))
    uniform = -math.log(config.dataset.vocabulary_size)
    sign, worst = (-1, uniform) if config.target.mode == "below" else (1, 0.0)
    return (sign * values).where(np.isfinite(values), worst)


@functools.cache
def mean_curves(problem: str) -> tuple[dict[int, Curves], float]:
    """By factor (1 is no echoing), the mean curve over runs with new seeds and 10,000 of a
    bootstrap over these seeds, which the factors share; and the level at which they are compared.
    Losses have a minus.

    results/protocol.md fixes the level: for logistic regression, the best multiple of a margin that
    the curve of no echoing reaches within two thirds of the budget; for the others, two margins
    short of the one that a candidate of no echoing reaches."""
    config = problems.get_config(problem)
    size, budget = config.batch_size, config.budget.fresh_examples
    margin = TARGET_STEPS[config.target.metric]
    names = {1: f"baseline_b{size}"} | {factor: e(factor, size) for factor in MEAN_FACTORS}
    table = archive.curves(RECORDS, f"mean_curves/{problem}")
    runs = {n: _values(table, name, config) for n, name in names.items()}
    if problem == "logistic":
        best, below = runs[1].mean(), 0
    else:
        table = archive.curves(RECORDS, f"mean_curves/{problem}/candidates")
        own = _values(table, "baseline", config)
        # One run by each winner is a search of its own; with more seeds, a winner is a condition.
        winner = "condition" if len(own.index.unique("condition")) > 1 else "search"
        means = own.groupby(level=winner).mean()
        best, below = means.max(), _BELOW_PLATEAU
    plateau = math.floor(best[best.index <= budget * 2 / 3].max() / margin + 1e-9)
    rng = np.random.default_rng(0)
    seeds = len(runs[1])
    drawn = rng.integers(seeds, size=(_RESAMPLES, seeds))
    counts = np.stack([np.bincount(row, minlength=seeds) for row in drawn])
    weights = np.concatenate([np.full((1, seeds), 1 / seeds), counts / seeds])
    curves = {n: (own.columns.to_numpy(float), weights @ own.to_numpy()) for n, own in runs.items()}
    return curves, (plateau - below) * margin


def reaches(fresh: np.ndarray, means: np.ndarray, level: float) -> np.ndarray:
    """Fresh examples at which mean curves first reach a level, interpolated linearly; inf if they
    do not.

    Args:
        fresh: float [evaluations], increasing.
        means: float [curves, evaluations].
        level: to be reached from below.

    Returns: float [curves].
    """
    hit = means >= level - 1e-9  # a mean that equals the level, however it was rounded
    last = hit.argmax(axis=1)
    before = np.maximum(last - 1, 0)
    rows = np.arange(len(means))
    low, high = means[rows, before], means[rows, last]
    part = np.where(last > 0, (level - low) / np.where(high > low, high - low, 1.0), 1.0)
    scores = fresh[before] + part * (fresh[last] - fresh[before])
    return np.where(hit.any(axis=1), scores, math.inf)


@dataclasses.dataclass(frozen=True)
class Ratio:
    """Fresh examples of one condition over those of another, with its interval. A curve that does
    not reach the level needs more fresh examples than its runs had.

    Attributes:
        value: inf if the condition does not reach the level.
        least: the value, or what it exceeds.
        low, high: the interval; 0 or inf at an end that is not known.
    """

    value: float
    least: float
    low: float
    high: float

    def __str__(self) -> str:
        value = f"{self.value:.2f}" if math.isfinite(self.value) else f">{self.least:.2f}"
        low = f"{self.low:.2f}" if self.low > 0 else "-"
        high = f"{self.high:.2f}" if math.isfinite(self.high) else "-"
        return f"{value} [{low}, {high}]"


def mean_ratio(curves: dict[int, Curves], factors: tuple[int, int], level: float) -> Ratio | None:
    """The ratio at a level, with the percentile interval of the resampled curves; None where the
    other factor's mean curve does not reach the level."""
    own, base = (reaches(*curves[e], level) for e in factors)
    if math.isinf(base[0]):
        return None
    own_end, base_end = (curves[e][0][-1] for e in factors)
    least = np.minimum(own, own_end) / base
    most = np.where(np.isfinite(own), own, math.inf) / np.minimum(base, base_end)
    tail = (1 - _INTERVAL) / 2
    low = np.quantile(least[1:], tail, method="nearest")
    high = np.quantile(most[1:], 1 - tail, method="nearest")
    return Ratio(most[0], least[0], low, high)


# --- the claims


def small(problem: str) -> int:
    """The batch size at which most claims are judged."""
    return problems.PROBLEMS[problem].batch_sizes[0]


def e(factor: int, size: int) -> str:
    return f"before_augmentation_e{factor}_b{size}"


_ALL = "documents photographs digits logistic sentences mnist cells"
_TWICE = "digits logistic sentences mnist cells"  # also run at twice the batch size
_SHUFFLED = "digits logistic documents sentences mnist cells"
_TWO, _PAIR, _MEAN = "digits logistic", "logistic sentences", " ".join(MEAN_PROBLEMS)
_BEFORE, _BATCH, _HALF = "before_augmentation_e2", "after_batching_e2", "before_augmentation_e1.5"
_E2, _E4, _E16, _NONE = (*(e(n, "{b}") for n in (2, 4, 16)), "baseline_b{b}")
_E4_TWICE, _E16_TWICE, _NONE_TWICE = (x.replace("b}", "twice}") for x in (_E4, _E16, _NONE))
_COMMON, _DECAY = "common_cadence", "weight_decay{of_winners}"
_STRATIFIED = "digits", "stratified"
_E16_NO_DECAY = "{e16}_decay_0", "baseline_decay_0"

# By the question that they answer; the page has those that do not begin with dots. Each compares on
# some problems, in studies of a kind, two conditions, or their ratio with that of two others.
# `compare` fills in what is in braces.
CLAIMS: dict[str, dict[str, tuple[str, ...]]] = {
    "How much?": {
        "e = 2 needs fewer fresh examples (fig. 4)": (_ALL, _COMMON, _E2, _NONE),
        "... e = 2 at echoing's own cadence": (_ALL, "", _E2, _NONE),
        "... e = 2 there, by 25 further searches": ("logistic", "fractions", _BEFORE, "baseline"),
        "... e = 2 by curves averaged over seeds": (_MEAN, "mean_curves", "2", "1"),
        "e = 16 needs fewer fresh examples (fig. 6)": (_ALL, _COMMON, _E16, _NONE),
        "... e = 16 at echoing's own cadence": (_ALL, "", _E16, _NONE),
        "... e = 16 there, by 25 further searches": ("logistic", _DECAY, *_E16_NO_DECAY),
        "... e = 16 by curves averaged over seeds": (_MEAN, "mean_curves", "16", "1"),
        "... e = 16 at twice the batch size": (_TWICE, "", _E16_TWICE, _NONE_TWICE),
        "e = 4 needs fewer than e = 16 (fig. 6)": (_ALL, _COMMON, _E4, _E16),
        "... e = 4 over 16 at echoing's own cadence": (_ALL, "", _E4, _E16),
        "... e = 4 over 16 by curves averaged over seeds": (_MEAN, "mean_curves", "4", "16"),
        "e = 1.5 needs fewer than none": (_PAIR, "fractions", _HALF, "baseline"),
        "e = 2 needs fewer than e = 1.5": (_PAIR, "fractions", _BEFORE, _HALF),
        "Stratified copies need fewer at e = 4": (
            *("digits photographs cells", "stratified", "stratified_e4", "independent_e4"),
        ),
        "... stratified copies at e = 2": (*_STRATIFIED, "stratified_e2", "independent_e2"),
        "... stratified copies at e = 8": (*_STRATIFIED, "stratified_e8", "independent_e8"),
    },
    "Where?": {
        "Earlier insertion is better (fig. 4)": (_ALL, "", _E2, f"{_BATCH}_b{{b}}"),
        "... earlier insertion, on another processor": (
            *("digits", "shuffle", f"{_BEFORE}_buffer_256", f"{_BATCH}_buffer_256"),
        ),
        "... e = 2 after augmentation": (
            *("photographs digits mnist cells", "", "after_augmentation_e2_b{b}", _NONE),
        ),
        "... e = 2 after batching": (_ALL, "", f"{_BATCH}_b{{b}}", _NONE),
    },
    "Shuffle?": {
        f"Shuffling helps {place} (fig. 8)": (
            *(_SHUFFLED, "shuffle", f"{own}_buffer_{{buffer}}", f"{own}_buffer_0"),
        )
        for place, own in (("before augmentation", _BEFORE), ("after batching", _BATCH))
    }
    | {
        claim: (names, f"buffer_e{e}", f"e{e}_buffer_{256 * e}", f"e{e}_buffer_256")
        for claim, names, e in (
            ("A buffer of 4,096 copies over 256 helps e = 16", "sentences photographs", 16),
            ("... of 1,024 over 256 helps e = 4", "sentences photographs", 4),
        )
    },
    "Retune?": {
        "e = 2 gains without retuning": (_ALL, "untuned", _E2, _NONE),
        "e = 16 gains without retuning": (_ALL, "untuned", _E16, _NONE),
        **{
            claim: (names, _DECAY, f"{{e16}}_decay_{x}", f"baseline_decay_{x}", *_E16_NO_DECAY)
            for claim, names, x in (
                ("Weight decay 0.001 helps e = 16", _PAIR, "0.001"),
                ("... weight decay 0.0001", "sentences", "0.0001"),
                ("... weight decay 0.01", _PAIR, "0.01"),
            )
        },
        "e = 2 gains under AdamW with cosine decay": (
            *("sentences", "optimizer_b32", _BEFORE, "baseline"),
        ),
        "... under AdamW at batch size 256": ("sentences", "optimizer_b256", _BEFORE, "baseline"),
        **{
            f"{name} (AdamW)": (
                *("sentences", "weight_decay_adamw", f"{own}_decay_{x}", f"{own}_decay_0.1"),
            )
            for name, own, x in (
                ("Weight decay 1 over 0.1 helps e = 16", "before_augmentation_e16", "1"),
                ("... weight decay 0.3 at e = 16", "before_augmentation_e16", "0.3"),
                ("... weight decay 1 at e = 4", "before_augmentation_e4", "1"),
                ("... weight decay 1 without echoing", "baseline", "1"),
            )
        },
    },
    "When not?": {
        "e = 2 ends no worse in a budget (fig. 9)": (_ALL, "quality", _BEFORE, "baseline"),
        "... after batching it ends no worse": (_SHUFFLED, "quality", _BATCH, "baseline"),
        "At twice the batch size, e = 16 gains more over 4 (fig. 6)": (
            *(_TWICE, "", _E16_TWICE, _E4_TWICE, _E16, _E4),
        ),
        "Larger batches help batch echoing (fig. 7)": (
            *(_SHUFFLED, "batch_size", f"{_BATCH}_b{{b}}", _NONE),
            *(f"{_BATCH}_b{{half}}", "baseline_b{half}"),
        ),
        "e = 2 needs fewer than none with twice the budget": (
            *(_TWO, "controls", _BEFORE, "baseline_steps_of_e2"),
        ),
        "e = 2 beats reading twice": (_TWO, "controls", _BEFORE, "spaced_epochs_2"),
        "e = 4, then none, beats e = 2": (_PAIR, "decaying", "decaying", "constant"),
        "None, then e = 4, beats e = 2": (_PAIR, "decaying", "growing", "constant"),
    },
}


@functools.cache
def effects(claim: str) -> dict[str, Effect]:
    """The effect of a claim on each problem."""
    names, *row = next(group[claim] for group in CLAIMS.values() if claim in group)
    return {problem: compare(problem, *row) for problem in names.split()}


def compare(problem: str, kind: str, *conditions: str) -> Effect:
    """A row of CLAIMS on a problem."""
    if kind == "mean_curves":
        return by_mean_curves(problem, *map(int, conditions))
    if kind.startswith("buffer"):
        return by_winner(f"grid/{kind}_{problem}", *conditions)
    words = {"b": small(problem), "twice": 2 * small(problem), "half": small(problem) // 2}
    words |= {"buffer": 256 if problem == "cells" else 1024}
    of_winners = problem == "sentences"  # whose weight decay keeps the winner's settings
    words |= {"e16": "e16" if of_winners else "before_augmentation_e16"}
    words |= {"of_winners": "_of_winners" if of_winners else ""}
    names = [name.format(**words) for name in conditions]
    pair = names[0], names[1]
    if kind == "untuned":
        return untuned(study_of(_COMMON, problem, pair), pair)
    study = study_of(kind.format(**words), problem, names)
    return compared(study, pair, (names[2], names[3]) if names[2:] else None)


def study_of(kind: str, problem: str, conditions: Collection[str]) -> str:
    """The study of a kind that has these conditions: that of further searches, if they were
    registered for it, else that of the grid."""
    for name in (f"further/{kind}", f"grid/{kind}_{problem}".replace("/_", "/"), f"grid/{kind}"):
        if name not in archive.studies(RECORDS):
            continue
        own = loaded(name)
        of_problem = own.study.config_flag.endswith(f":{problem}")
        if of_problem and {*conditions} <= {*own.trials["condition"]}:
            return name
    raise ValueError(f"no study {kind} of {problem} has {', '.join(conditions)}")


# --- what a repeat is worth

_BUFFER = 256  # the spacing of most studies
# Ends of the law's log w, log R, and b.
_ENDS = (math.log(0.01), math.log(0.1), -1.0), (math.log(2), math.log(100), 1.0)


@functools.cache
def repeats() -> pd.DataFrame:
    """What a repeat is worth, a row per problem, factor e, and spacing: the kind of study, the
    ratio to no echoing, the effective share of a repeat with its ends low and high, and the ratio
    that is predicted from the law's parameters on the other problems."""
    rows = []
    for problem in _ALL.split():
        registered = problem in _TWICE.split()  # before the others had a common cadence
        cadence = _COMMON if registered else ""
        own = [(n, _BUFFER, cadence, e(n, small(problem)), _NONE) for n in (2, 4, 16)]
        if problem in _PAIR.split():
            own += [(n, _BUFFER, "fractions", f"before_augmentation_e{n}") for n in (1.5, 3)]
        if registered:
            slots = (0,) if problem == "cells" else (0, 64, 1024)
            own += [(2, max(1, n), "shuffle", f"{_BEFORE}_buffer_{n}") for n in slots]
        if problem in _TWO.split():
            examples = loaded(f"grid/{problem}").study.record["dataset"]["train_examples"]
            own.append((2, examples, "controls", "spaced_epochs_2"))
        for factor, spacing, kind, condition, *none in own:
            effect = compare(problem, kind, condition, *(none or ["baseline"]))
            ratios = effect.high, *reversed(effect.interval)
            shares = [(1 / r - 1) / (factor - 1) if r > 0 else math.inf for r in ratios]
            rows.append((problem, factor, spacing, kind or "grid", effect.high, *shares))
    names = ["problem", "e", "spacing", "study", "ratio", "share", "low", "high"]
    table = pd.DataFrame(rows, columns=names)
    fits = {name: fitted(own) for name, own in table.groupby("problem")}
    for name, own in table.groupby("problem"):
        others = np.mean([fit for other, fit in fits.items() if other != name], axis=0)
        table.loc[own.index, "predicted"] = np.exp(law(others, own))
    return table


def law(parameters: Sequence[float], rows: pd.DataFrame) -> np.ndarray:
    """The logarithm of the ratio, from log w, log R, and b (results/protocol.md)."""
    worth, fading = np.exp(parameters[:2])
    spaced = worth * (rows["spacing"] / _BUFFER) ** parameters[2]
    return -np.log1p(spaced * fading * -np.expm1(-(rows["e"] - 1) / fading)).to_numpy()


def fitted(rows: pd.DataFrame) -> np.ndarray:
    """The law's parameters on a problem; b is 0 where all spacings are equal."""
    free = 3 if rows["spacing"].nunique() > 1 else 2

    def errors(parameters: np.ndarray) -> np.ndarray:
        return law([*parameters, 0.0], rows) - np.log(rows["ratio"])

    start, ends = [0.0, math.log(4), 0.0], [end[:free] for end in _ENDS]
    return np.append(optimize.least_squares(errors, start[:free], bounds=ends).x, 0.0)[:3]
