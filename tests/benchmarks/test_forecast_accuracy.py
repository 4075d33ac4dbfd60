"""The benchmark of the forecast cuts pilots from recorded curves and scores the rest."""

import math

import numpy as np
import pytest

from benchmarks import forecast_accuracy
from echo.advice.forecast import Prior, Run


@pytest.fixture(scope="module")
def manual():
    return forecast_accuracy.users("manual")


def test_scores_agree_with_the_records_of_the_study(manual):
    user = next(u for u in manual if u.name == ("language_factor", 0, 0, 32))
    # fresh_examples_to_target of trials.csv, an evaluation every 500 (e = 1, 2, 4)
    for factor, recorded in ((1.0, 7520), (2.0, 4512), (4.0, 5504)):
        assert recorded - 520 < user.fresh[factor] <= recorded
    assert user.fresh[8.0] == user.fresh[16.0] == math.inf


def test_adaptive_pilots_cost_at_most_a_baseline_run(manual):
    for user in manual[:3]:
        runs = forecast_accuracy.adaptive_pilots(user, 6.0, Prior())
        outcome = forecast_accuracy.by_forecast(user, runs, 6.0, Prior())
        assert 0.2 < outcome.cost <= 1
        assert outcome.regret >= 1


def test_pilots_show_nothing_of_the_rest(manual):
    for run in forecast_accuracy.fixed_pilots(manual[0]):
        assert run.fresh_examples[-1] <= forecast_accuracy.SHARE * manual[0].baseline


def test_stretch_covers_nine_cells_in_ten():
    fresh = np.linspace(100, 1000, 10)
    runs = {e: Run(e, fresh, fresh * e / 32, (fresh * e**0.5) ** -0.5) for e in (1.0, 4.0, 16.0)}
    user = forecast_accuracy.User("made", ("made", 0, 0, 32), 32, 1000**-0.5, 2000.0, runs)
    outcome = forecast_accuracy.by_forecast(
        user, forecast_accuracy.fixed_pilots(user), 6.0, Prior(widening=0.05)
    )
    widening = 0.05 * forecast_accuracy.stretch([outcome])
    wider = forecast_accuracy.by_forecast(
        user, forecast_accuracy.fixed_pilots(user), 6.0, Prior(widening=widening)
    )
    assert np.mean(wider.covered()) >= np.mean(outcome.covered())
    assert np.mean(wider.covered()) >= 0.6
