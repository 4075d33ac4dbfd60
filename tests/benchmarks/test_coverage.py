"""The intervals of the reports have their stated coverage, in simulated studies."""

import numpy as np
import pytest

from benchmarks import coverage
from benchmarks.coverage import Setting

STUDIES, POOL = 400, 24
MARGIN = 0.03  # allowed shortfall from the nominal level; the standard error is 0.01


def matched(**fields):
    return Setting(**{"by_trial": True, "noise": 0.3, "searches": 4, **fields})


GRID = {"cadence": coverage.GRID_CADENCE, "divisor": 2}  # the condition evaluated twice as often
CLAIMED = {
    "five searches": Setting(),
    "fine evaluations": Setting(cadence=10.0),
    "half of the searches censored": Setting(noise=0.4, censored=0.5, between=0.2),
    "searches that differ, another optimum": Setting(ratio=0.25, apart=0.2, shift=0.5),
    "10 pairs": matched(searches=1, trials=10),
    "20 pairs, half censored": matched(searches=2, trials=10, censored=0.5),
    "64 pairs": matched(cadence=10.0),
    "another optimum": matched(cadence=10.0, shift=0.5),
    "coarse evaluations, half censored": matched(noise=0.05, ratio=0.25, censored=0.5),
    "twice as often, half censored": matched(noise=0.05, ratio=0.55, censored=0.5, **GRID),
}


def simulation(setting):
    return coverage.by_trial if setting.by_trial else coverage.by_search


@pytest.mark.parametrize("name", CLAIMED)
def test_an_interval_covers_its_nominal_level(name):
    setting = CLAIMED[name]
    (own,) = coverage.simulated([(simulation(setting), setting)], STUDIES, POOL)
    assert own.claimed
    assert own.covered >= own.nominal - MARGIN


def test_continuous_ratios_cover_exactly_their_level():
    """An interval that covers everything would pass the other tests."""
    search = coverage.by_search(
        np.random.default_rng(0), Setting(cadence=1.0), studies=1000, pool=POOL
    )
    assert search.covered == pytest.approx(search.nominal, abs=0.025)
    pairs = coverage.by_trial(np.random.default_rng(0), matched(cadence=1.0), 1000, POOL)
    # 64 signs are discrete: their interval has level 0.9676.
    assert pairs.covered == pytest.approx(0.9676, abs=0.02)


def test_intervals_that_are_not_claimed_to_cover_do_not_cover():
    """Effects that differ by search."""
    apart = matched(noise=0.2, apart=0.2)
    (pairs,) = coverage.simulated([(coverage.by_trial, apart)], STUDIES, POOL)
    assert not pairs.claimed
    assert pairs.covered < 0.9


def test_a_ratio_of_ratios_covers_whatever_is_censored():
    """Although, where the other batch size is harder, "below 1" is easier to see than "above 1"."""
    settings = [matched(noise=0.2, harder=1.5, censored=share, **GRID) for share in (0, 0.5)]
    plans = [(coverage.of_ratios, setting) for setting in settings]
    free, censored = coverage.simulated(plans, STUDIES, POOL)
    assert free.claimed
    assert min(free.covered, censored.covered) >= 0.95 - MARGIN
    assert free.bounded == 1  # not by an interval without ends
