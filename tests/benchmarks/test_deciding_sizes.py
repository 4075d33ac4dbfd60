"""The sizes that would decide a claim: against scipy's sign test, and by simulation."""

import functools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from analysis import uncertainty
from benchmarks import deciding_sizes


@functools.cache
def found(number):
    """The counts of right signs of which `scipy.stats.binomtest` says that most are right."""
    counts = range(number // 2 + 1, number + 1)
    return [n for n in counts if stats.binomtest(n, number).pvalue <= deciding_sizes.SIGNIFICANCE]


def power(number, right):
    return stats.binom.pmf(found(number), number, right).sum()


@settings(max_examples=30, deadline=None)
@given(st.integers(10, 30), st.integers(1, 10))
def test_size_is_the_smallest_with_enough_power(near, far):
    """`near` ratios within a tenth of the median, `far` on each side beyond."""
    ratios = [1.0] * near + [0.5] * far + [2.0] * far
    size = deciding_sizes.needed(ratios, ratios)
    right = (near + far) / (near + 2 * far)
    assert power(size, right) >= deciding_sizes.POWER
    assert all(power(fewer, right) < deciding_sizes.POWER for fewer in range(1, size))


@pytest.mark.parametrize("spread", [0.05, 0.2, 0.35])
def test_size_finds_a_tenth_often_enough_and_one_less_does_not(spread):
    """Simulated studies, whose ratios scatter as the known ones do, around a tenth less than 1."""
    rng = np.random.default_rng(1)
    known = np.exp(0.4 + spread * rng.standard_normal(400))
    size = deciding_sizes.needed(known, known)
    ratios = known / np.median(known) * deciding_sizes.RATIO

    def found_in(number):
        drawn = rng.choice(ratios, size=(1_000, number))
        return np.mean([uncertainty.sign_interval(study, study)[1] < 1 for study in drawn])

    assert found_in(size) > deciding_sizes.POWER - 0.05
    assert found_in(size - 1) < deciding_sizes.POWER + 0.05


def test_size_of_differences_is_that_of_the_ratios_whose_logarithms_they_are():
    ratios = np.exp(0.3 + 0.2 * np.random.default_rng(3).standard_normal(51))
    size = deciding_sizes.needed(ratios, ratios)
    logs, smallest = np.log(ratios), -math.log(deciding_sizes.RATIO)
    assert deciding_sizes.needed(logs, logs, smallest) == size
    assert deciding_sizes.needed(-logs, -logs, smallest) == size
    assert deciding_sizes.needed(logs, logs, 2 * smallest) < size


def test_pairs_of_which_nothing_is_known_add_to_the_size():
    ratios = np.exp(0.2 * np.random.default_rng(2).standard_normal(50))
    size = deciding_sizes.needed(ratios, ratios)
    lows, highs = np.append(ratios, [0.0] * 50), np.append(ratios, [math.inf] * 50)
    assert deciding_sizes.needed(lows, highs) == 2 * size


def test_size_is_unknown_or_infinite_where_ratios_say_nothing():
    assert math.isnan(deciding_sizes.needed([0.0] * 20, [math.inf] * 20))
    lows = [0.001] * 20 + [1000.0] * 20
    assert math.isinf(deciding_sizes.needed(lows, lows))


def test_resampled_searches_score_their_best_trial_and_are_censored_together():
    reached = np.array([10.0, 20.0, math.inf]), np.array([5.0, 30.0, math.inf])
    sides = [(np.where(np.isinf(high), 100.0, high - 1), high) for high in reached]
    (own_low, own), (base_low, base) = deciding_sizes.searches(sides, trials=2)
    # two of the same three trials: by their places, the best of each side
    assert set(zip(own, base, strict=True)) == {(10, 5), (20, 30), (math.inf, math.inf)}
    assert np.isinf(own).mean() == pytest.approx(1 / 9, abs=0.02)
    assert (own == 10).mean() == pytest.approx(5 / 9, abs=0.03)
    np.testing.assert_array_equal(own_low, np.where(np.isinf(own), 100, own))
    np.testing.assert_array_equal(base_low, np.where(np.isinf(base), 100, base))


@pytest.mark.parametrize("spread", [0.1, 0.3])
def test_size_by_an_interval_finds_a_tenth_as_often_as_it_says(spread):
    """Simulated means of logarithms, whose standard error is known."""
    half = stats.norm.ppf(0.975) * spread / math.sqrt(20)
    size = deciding_sizes.by_interval(math.exp(0.5 - half), math.exp(0.5 + half), 20)
    rng = np.random.default_rng(1)

    def found_in(number):
        logs = math.log(deciding_sizes.RATIO) + spread * rng.standard_normal((4_000, number))
        return np.mean(logs.mean(axis=1) + stats.norm.ppf(0.975) * spread / number**0.5 < 0)

    assert found_in(int(size)) > deciding_sizes.POWER - 0.03
    assert found_in(int(size) - 1) < deciding_sizes.POWER + 0.03


def test_an_open_interval_has_no_size_and_a_wide_one_none_that_is_feasible():
    assert math.isnan(deciding_sizes.by_interval(0, 1.2, 20))
    assert math.isnan(deciding_sizes.by_interval(0.5, math.inf, 20))
    assert deciding_sizes.by_interval(0.01, 50, 20) == math.inf
