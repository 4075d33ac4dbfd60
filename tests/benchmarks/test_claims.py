"""The verdicts of benchmarks.claims follow from the sign test and the searches."""

import math

import numpy as np
import pandas as pd
import pytest

from analysis import uncertainty
from benchmarks import claims

SEARCHES = pd.DataFrame({"low": [1.2, 1.5], "high": [1.2, 1.5]})


def _effect(ratios):
    """What `claims` judges of pairs with these ratios."""
    below, above = (int(count) for count in uncertainty.signs(ratios, ratios, 1.0))
    low, high, *balance = uncertainty.sign_interval(ratios, ratios)
    ends = {"effect_low": balance[0], "effect_high": balance[1], "low": low, "high": high}
    p = float(uncertainty.sign_test(below, above))
    return ends | {"below": below, "above": above, "p": p}


def test_an_interval_that_ends_at_1_does_not_contain_1():
    ratios = np.array([1.0] * 4 + [2.0] * 12 + [0.5] * 2)  # 2 below 1, 12 above, 4 ties
    effect = _effect(ratios)
    assert effect["low"] == 1.0
    assert effect["p"] < 0.05
    assert claims._by_sign_test(effect, SEARCHES).verdict == "not reproduced"


@pytest.mark.parametrize(
    ("ratios", "verdict"),
    [([2.0] * 12, "not reproduced"), ([0.5] * 12, "undecided"), ([2.0, 0.5] * 6, "undecided")],
)
def test_pairs_and_searches_must_agree(ratios, verdict):
    assert claims._by_sign_test(_effect(np.array(ratios)), SEARCHES).verdict == verdict


def test_too_few_pairs_decide_nothing():
    effect = _effect(np.full(12, 2.0)) | {"low": math.nan, "high": math.nan, "p": math.nan}
    assert claims._by_sign_test(effect, SEARCHES).verdict == "undecided"


def test_ratios_are_of_the_searches_that_both_conditions_have():
    own = pd.DataFrame({"low": [2.0, 6.0], "high": [2.0, 6.0]}, index=[1, 2])
    base = pd.DataFrame({"low": [1.0, 4.0], "high": [1.0, 4.0]}, index=[0, 1])
    ratio = claims._ratio(own, base)
    assert ratio.index.tolist() == [1]
    assert ratio.iloc[0].tolist() == [0.5, 0.5]


def test_a_condition_is_bounded_by_two_winners_at_one_end():
    text = claims._bounded("grid/controls_logistic", "baseline_steps_of_e2")
    assert text == "baseline_steps_of_e2: min of learning rate in 3 of 5"
    assert not claims._bounded("grid/controls_logistic", "before_augmentation_e2")


def test_speedups_come_from_the_pages():
    cell = claims.faster("wall_time", "e = 5")()
    assert cell.verdict == "reproduced"
    assert cell.tuned.endswith("times as fast")
    assert 1 / cell.effect == pytest.approx(float(cell.tuned.split()[0]))
    assert claims.faster("wall_time", "e = 5", claimed=False)().verdict == "not reproduced"
