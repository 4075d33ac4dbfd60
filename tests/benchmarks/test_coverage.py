"""The intervals of the reports have their stated coverage, in simulated studies."""

import numpy as np
import pandas as pd
import pytest

from analysis import scores, uncertainty
from benchmarks import coverage
from benchmarks.coverage import Setting
from runs import records
from runs.study import Condition, Study

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


def test_simulation_and_analysis_give_the_same_intervals():
    random = np.random.default_rng(5)
    setting = Setting(searches=3, trials=6, noise=0.4, divisor=2)
    cost, counted, _ = coverage.costs(random, setting, 1, POOL)
    score, end = coverage.scored(cost[0], setting.cadences), 6400.0
    same = {"lanes": 1, "workers": 1, "steps_to_target": 1.0, "seconds_to_target": 1.0, "steps": 1}
    same |= {"train_seconds": 1.0, "best_value": 0.5}
    rows = []
    for side, (name, point) in enumerate((("baseline", "none"), ("echoed", "after_batching"))):
        for (search, trial), value in np.ndenumerate(score[side]):
            reached = value <= end
            rows.append(
                same
                | {"condition": name, "label": name, "insertion": point, "search": search}
                | {"trial": trial, "status": "reached" if reached else "exhausted"}
                | {"model_seed": 100 * search + trial, "fresh_examples": min(value, end)}
                | {"counted": bool(counted[0, side, search, trial])}
                | {"fresh_examples_to_target": value if reached else None}
                | {"fresh_examples_before_target": value - setting.cadences[side].item()}
            )
    trials = pd.DataFrame(rows).astype({"fresh_examples_to_target": float})
    conditions = (
        Condition("baseline", "baseline", {}),
        Condition("echoed", "echoed", {}, "after_batching", factor=2.0),
    )
    target = records.Target("accuracy", 0.9, "above")
    study = Study("s", conditions, target, "baseline", trials=6, searches=3, budget=6400)
    table = scores.condition_scores(trials, study)
    best = coverage.best(cost[0], counted[0], setting.cadences)
    low, high = coverage.ends(best, end)
    assert (table.loc[1, "ratio_min"], table.loc[1, "ratio_max"]) == pytest.approx(
        ((low[1] / high[0]).min(), (high[1] / low[0]).max())
    )
    effects = uncertainty.paired_effects(uncertainty.pairs(trials, study), study)
    both = counted[0, 0] & counted[0, 1]
    (own, own_high), (base, base_high) = (
        coverage.ends(score[side][both], end, setting.cadences[side].item()) for side in (1, 0)
    )
    expected = uncertainty.sign_interval(own / base_high, own_high / base)
    assert effects.loc[0, ["low", "high"]].tolist() == pytest.approx(expected[:2])
