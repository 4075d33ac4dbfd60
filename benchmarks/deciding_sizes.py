"""How many pairs of trials, or searches, would decide what a study left undecided.

The smallest ratio of interest is RATIO. Its size is the number of ratios with which the sign test
at SIGNIFICANCE finds it with a probability of POWER, if ratios scatter around it as the known ones
do around their own median. So the size does not depend on the effect that was seen, only on its
scatter, and nothing is assumed of the scatter's form. For differences, the caller says which is the
smallest of interest. Where no sign test decides, `by_interval` takes an interval instead.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats

from analysis import uncertainty

RATIO = 0.9
POWER = 0.8
SIGNIFICANCE = 0.05
RESAMPLED = 4_000  # searches
LARGEST = 10_000

Ends = tuple[np.ndarray, np.ndarray]  # lower and upper bounds of quantities


def needed(lows: ArrayLike, highs: ArrayLike, difference: float | None = None) -> float:
    """The number of ratios (or differences) that would decide; infinite beyond LARGEST, NaN if the
    median of the known ones is not known.

    Args:
        lows, highs: bounds of the known ratios, as for `uncertainty.sign_interval`.
        difference: if they are differences, the smallest one of interest, positive.
    """
    differ = difference is not None
    balance = uncertainty.sign_interval(lows, highs, -math.inf if differ else 0.0)[2:]
    median = uncertainty.middle(*balance, differ=differ)
    if math.isnan(median):
        return math.nan
    # The sign test of ratios around RATIO against 1 is that of these against median / RATIO. The
    # scatter above the median counts as much as that below.
    ends = median / RATIO, median * RATIO
    if difference is not None:
        ends = median + difference, median - difference
    below, above = uncertainty.signs(lows, highs, ends)
    right, wrong = below[0] + above[1], above[0] + below[1]
    if right <= wrong:
        return math.inf
    informative = (right + wrong) / (2 * np.size(lows))
    signs = _signs(right / (right + wrong))
    return math.ceil(signs / informative) if math.isfinite(signs) else math.inf


def by_interval(low: float, high: float, so_far: int) -> float:
    """The number of runs after which the interval of a ratio would exclude 1 with a probability of
    POWER, if the ratio were RATIO and the interval's width in logarithms fell like 1 / sqrt(runs).
    Infinite beyond LARGEST, NaN if an end of the interval is not known.

    Args:
        low, high: the 95% interval of the ratio, as it is.
        so_far: the runs that it comes from.
    """
    if not 0 < low <= high < math.inf:
        return math.nan
    excluded = stats.norm.ppf(1 - SIGNIFICANCE / 2)
    error = math.log(high / low) / (2 * excluded)  # the standard error of the logarithm
    runs = so_far * ((excluded + stats.norm.ppf(POWER)) * error / math.log(RATIO)) ** 2
    return math.ceil(runs) if runs <= LARGEST else math.inf


def _signs(right: float) -> float:
    """The smallest number of signs of which the sign test finds that more than half are right, if
    each is with a probability of `right`."""
    numbers = np.arange(1, LARGEST + 1)
    # The most wrong signs that the two-sided test still rejects, -1 if it rejects none: `ppf` is
    # the first number whose probability is at least half the significance.
    wrong = stats.binom.ppf(SIGNIFICANCE / 2, numbers, 0.5)
    wrong -= stats.binom.cdf(wrong, numbers, 0.5) > SIGNIFICANCE / 2
    found = stats.binom.cdf(wrong, numbers, 1 - right) >= POWER
    return int(numbers[found.argmax()]) if found.any() else math.inf


def searches(conditions: Sequence[Ends], trials: int) -> list[Ends]:
    """The scores of RESAMPLED searches of `trials` trials, drawn with replacement.

    Args:
        conditions: for each condition, bounds of what each trial took to reach the target (infinite
            above if it did not). Trials at the same position have matched seeds, and are drawn
            together.

    Returns:
        For each condition the bounds of the scores, as `scores.search_scores` defines them.
    """
    drawn = np.random.default_rng(0).integers(len(conditions[0][0]), size=(RESAMPLED, trials))
    found = []
    for lows, highs in conditions:
        best = highs[drawn].min(axis=1)
        missed = np.isinf(best)
        found.append((np.where(missed, lows[drawn].min(axis=1), best), best))
    return found
