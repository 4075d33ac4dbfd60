"""Arithmetic on quantities that are known only by lower and upper bounds.

A score that the budget censored at C is (C, inf); an observed score has equal bounds. What is
computed from such quantities again has two bounds: censored ones are neither dropped nor imputed.
"""

import dataclasses
import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

MIN_SEARCHES_FOR_INTERVAL = 5  # with fewer, the smallest and the largest are only a range


@dataclasses.dataclass(frozen=True)
class Summary:
    """The median of several quantities, the smallest, and the largest, each with its two bounds.

    An unknown bound is -inf (0 for ratios) or inf. `count` is the number of quantities; if it is 0,
    everything else is NaN.
    """

    low: float
    high: float
    min: float
    min_high: float
    max_low: float
    max: float
    count: int


FIELDS = tuple(field.name for field in dataclasses.fields(Summary))


def summary(lows: ArrayLike, highs: ArrayLike) -> Summary:
    """Summarizes quantities that lie in [low, high]; NaN bounds are left out.

    The median of the true values lies between the medians of the lower and of the upper bounds.
    Both are attained, so these bounds are tight. For an even number of quantities, the median is
    the mean of the two in the middle.
    """
    low, high = np.asarray(lows, float), np.asarray(highs, float)
    low, high = low[~np.isnan(low)], high[~np.isnan(low)]
    if not len(low):
        return Summary(*[math.nan] * 6, count=0)
    ends = np.median(low), np.median(high), low.min(), high.min(), low.max(), high.max()
    return Summary(*map(float, ends), count=len(low))


def ratio(own: tuple, base: tuple) -> tuple[np.ndarray, np.ndarray]:
    """(low, high) bounds of own / base, for positive quantities given as (lows, highs)."""
    own_low, own_high, base_low, base_high = (np.asarray(end, float) for end in (*own, *base))
    with np.errstate(divide="ignore", invalid="ignore"):
        return own_low / base_high, own_high / base_low


def difference(own: tuple, base: tuple) -> tuple[np.ndarray, np.ndarray]:
    """(low, high) bounds of own - base, for quantities given as (lows, highs)."""
    own_low, own_high, base_low, base_high = (np.asarray(end, float) for end in (*own, *base))
    return own_low - base_high, own_high - base_low


def level(count: int) -> float:
    """The probability that the median of a distribution lies between the smallest and the largest
    of `count` independent draws: 1 - 2^(1 - count), or more with ties."""
    return 1 - 2.0 ** (1 - count)


def interval_name(count: int) -> str:
    """What the smallest and the largest of `count` searches are: "93.75% interval", "range"."""
    if count < MIN_SEARCHES_FOR_INTERVAL:
        return "range"
    return f"{100 * level(count):.4g}% interval" if count < 15 else ">99.99% interval"


def text(low: float, high: float, number: Callable[[float], str], floor: float = 0.0) -> str:
    """A quantity by its bounds: "0.72", "≥0.90", "≤0.90", "0.50 to 0.70", "undetermined", "-".

    Args:
        number: formats one number.
        floor: the lower bound of an unknown quantity: 0 for ratios, -inf for differences.
    """
    if math.isnan(low):
        return "-"
    if low == high:
        return number(low)
    if low <= floor:
        return "undetermined" if math.isinf(high) else f"≤{number(high)}"
    return f"≥{number(low)}" if math.isinf(high) else f"{number(low)} to {number(high)}"


def range_text(
    summary: Summary, number: Callable[[float], str], floor: float = 0.0, join: str = ", "
) -> str:
    """The smallest and the largest quantity: "0.40, 0.90", "0.40, >0.90", "<0.40, 0.90", or
    ">0.40, >0.90" where all are censored; "-" if nothing is known."""
    smallest, largest = number(summary.min), number(summary.max)
    if summary.min <= floor:
        smallest = "-" if math.isinf(summary.min_high) else f"<{number(summary.min_high)}"
    elif math.isinf(summary.min_high):
        smallest = f">{smallest}"
    if math.isinf(summary.max):
        largest = "-" if summary.max_low <= floor else f">{number(summary.max_low)}"
    elif summary.max_low <= floor:
        largest = f"<{largest}"
    return f"{smallest}{join}{largest}"
