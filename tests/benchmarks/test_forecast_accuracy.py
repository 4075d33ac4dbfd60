"""The benchmark of the forecast cuts pilots from recorded curves and scores the rest."""

import math
import pathlib

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


@pytest.mark.long
def test_the_page_counts_the_settings_that_are_judged():
    page = pathlib.Path("results/forecast_accuracy.md").read_text()
    for problem in forecast_accuracy.STUDIES:
        judged, recorded = (len(forecast_accuracy.users(problem, least)) for least in (3, 0))
        assert f"{judged} of {recorded} on {problem}" in page


def made(**runs):
    """A user whose curves at e = 1, 4, and 16 follow a power law, save those given as e16=Run."""
    fresh = np.linspace(100, 1000, 10)
    curves = {e: Run(e, fresh, fresh * e / 32, (fresh * e**0.5) ** -0.5) for e in (1.0, 4.0, 16.0)}
    curves |= {float(name[1:]): run for name, run in runs.items()}
    return forecast_accuracy.User("made", ("made", 0, 0, 32), 32, 1000**-0.5, 2000.0, curves)


def diverged(fresh_examples):
    fresh = np.array([fresh_examples], float)
    return Run(16.0, fresh, fresh / 2, np.array([math.nan]))


def test_a_run_that_diverged_is_a_miss_that_only_its_end_reveals():
    packed = pathlib.Path("results/grid/sentences.tar.xz")
    users = forecast_accuracy.recorded_users("sentences", "sentences", packed)
    user = next(one for one in users if one.name == ("sentences", 0, 6, 32))
    run = user.runs[16.0]
    assert user.fresh[16.0] == math.inf
    assert user.seconds(math.inf)[16.0] == 1.5 * user.budget
    assert run.fresh_examples[-1] == 3990
    assert math.isnan(run.loss[-1])
    assert forecast_accuracy.surviving([user.until(16.0, 3000)])


def test_a_factor_whose_pilot_diverged_is_not_chosen():
    user = made(e16=diverged(200))
    pilots = {
        "fixed": forecast_accuracy.fixed_pilots(user),
        "adaptive": forecast_accuracy.adaptive_pilots(user, 6.0, Prior()),
    }
    for runs in pilots.values():
        assert 16.0 in {run.factor for run in runs}
        outcome = forecast_accuracy.by_forecast(user, runs, 6.0, Prior())
        assert set(outcome.predicted) == {1.0, 4.0}
        assert len(outcome.covered()) <= 2
    form = forecast_accuracy.FORMS["additive"]
    answer = forecast_accuracy.by_pilots(form, user, pilots["fixed"])
    assert set(answer) == {1.0, 4.0}


def test_a_rule_is_judged_where_its_factor_was_run():
    users = [made(), made(e16=diverged(1500))]
    del users[0].runs[4.0]
    (at_4,) = forecast_accuracy.by_rule(lambda *_: 4.0, users, math.inf)
    assert (at_4.user, at_4.factor) == (users[1], 4.0)
    regrets = [one.regret for one in forecast_accuracy.by_rule(lambda *_: 16.0, users, math.inf)]
    assert regrets[0] == 1.0
    assert regrets[1] == 3000 / users[1].fresh[4.0]


def test_half_of_the_truth_is_an_error_of_100_percent():
    errors = [
        forecast_accuracy.log_error(predicted, 1000.0, 2000.0) for predicted in (500, 2000, 1e9)
    ]
    assert [forecast_accuracy.error_text([error]) for error in errors] == ["100%", "100%", "800%"]


def test_pilots_show_nothing_of_the_rest(manual):
    for run in forecast_accuracy.fixed_pilots(manual[0]):
        assert run.fresh_examples[-1] <= forecast_accuracy.SHARE * manual[0].baseline


def noisy(seed):
    """A user whose curves follow the same law, each off by a factor of its own."""
    noise, fresh = np.random.default_rng(seed), np.linspace(20, 1000, 50)
    curves = {
        e: Run(e, fresh, fresh * e / 32, 0.8 ** noise.random() * (fresh * e**0.5) ** -0.5)
        for e in (1.0, 4.0, 16.0)
    }
    return forecast_accuracy.User("made", ("made", 0, seed, 32), 32, 1000**-0.5, 2000.0, curves)


def test_stretch_covers_nine_cells_in_ten():
    users = [noisy(seed) for seed in range(7)]

    def outcomes(widening):
        return [
            forecast_accuracy.by_forecast(
                user, forecast_accuracy.fixed_pilots(user), 6.0, Prior(widening=widening)
            )
            for user in users
        ]

    def covered(outcomes):
        return [cell for outcome in outcomes for cell in outcome.covered()]

    narrow = outcomes(0.05)
    wide = covered(outcomes(0.05 * forecast_accuracy.stretch(narrow)))
    assert np.mean(covered(narrow)) < 0.5
    assert np.mean(wide) == pytest.approx(0.9, abs=0.5 / len(wide))
