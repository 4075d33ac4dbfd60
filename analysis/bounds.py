"""Quantities known only to lie between two ends, because a trial ends at its budget.

A score that the budget cut off at C is (C, inf); a score that was observed has equal ends. What is
computed from such quantities again has two ends, so that nothing is dropped and nothing invented.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np

FEWEST_FOR_INTERVAL = 5  # searches, below which the smallest and the largest are only a range


@dataclasses.dataclass(frozen=True)
class Summary:
    """The median of several quantities, the smallest and the largest, each as its two ends.

    Where an end is not known it is -inf (0 for ratios) or inf. `count` is how many there are; all
    else is NaN where there are none.
    """

    low: float
    high: float
    min: float
    min_high: float
    max_low: float
    max: float
    count: int


FIELDS = tuple(field.name for field in dataclasses.fields(Summary))


def summary(lows: Sequence[float], highs: Sequence[float]) -> Summary:
    """Of quantities that lie in [low, high].

    The median of the true values is not below the median of the low ends and not above the median
    of the high ends; both are attained, so no closer statement holds. Of an even number, the median
    is the mean of the two in the middle.
    """
    lows, highs = np.asarray(lows, float), np.asarray(highs, float)
    known = ~np.isnan(lows)
    lows, highs = lows[known], highs[known]
    if not len(lows):
        return Summary(*[math.nan] * 6, 0)
    ends = (np.median(lows), np.median(highs))
    ends += (lows.min(), highs.min(), lows.max(), highs.max())
    return Summary(*map(float, ends), len(lows))


def ratio(own: tuple, base: tuple) -> tuple[np.ndarray, np.ndarray]:
    """(low, high) ends of own / base for positive quantities given by arrays of their ends."""
    own_low, own_high, base_low, base_high = (np.asarray(end, float) for end in (*own, *base))
    with np.errstate(divide="ignore", invalid="ignore"):
        low, high = own_low / base_high, own_high / base_low
    unknown = np.isnan(own_low) | np.isnan(base_low)
    return np.where(unknown, np.nan, low), np.where(unknown, np.nan, high)


def difference(own: tuple, base: tuple) -> tuple[np.ndarray, np.ndarray]:
    """(low, high) ends of own - base, given by arrays of their ends."""
    own_low, own_high, base_low, base_high = (np.asarray(end, float) for end in (*own, *base))
    return own_low - base_high, own_high - base_low


def level(count: int) -> float:
    """Probability that the smallest and the largest of `count` independent draws lie on either side
    of the median of their distribution: 1 - 2^(1 - count). Ties only raise it."""
    return 1 - 2.0 ** (1 - count)


def interval_name(count: int) -> str:
    """What the smallest and largest of `count` searches cover: "93.75 % interval", "range"."""
    if count < FEWEST_FOR_INTERVAL:
        return "range"
    return f"{100 * level(count):.4g} % interval"


def text(low: float, high: float, words: Callable[[float], str], floor: float = 0.0) -> str:
    """A quantity by its ends: "0.72", "≥0.90", "≤0.90", "0.50 to 0.70", "undetermined", "-"."""
    if math.isnan(low):
        return "-"
    if low == high:
        return words(low)
    if low <= floor:
        return "undetermined" if math.isinf(high) else f"≤{words(high)}"
    return f"≥{words(low)}" if math.isinf(high) else f"{words(low)} to {words(high)}"


def ends_text(
    found: Summary, words: Callable[[float], str], floor: float = 0.0, join: str = ", "
) -> str:
    """The smallest and the largest: "0.40, 0.90", "0.40, >0.90", "<0.40, 0.90". An end of which
    nothing is known is "-"."""
    least, most = words(found.min), words(found.max)
    if found.min <= floor:
        least = "-" if math.isinf(found.min_high) else f"<{words(found.min_high)}"
    if math.isinf(found.max):
        most = "-" if found.max_low <= floor else f">{words(found.max_low)}"
    return f"{least}{join}{most}"
