import json
import pathlib

import numpy as np
import pytest

from benchmarks import decaying_factors
from benchmarks.decaying_factors import BATCH_SIZE, MAX_FACTOR, PERIODS, SCHEDULES
from configs import problems
from echo.auto import Repeats
from studies import search


@pytest.mark.parametrize("problem", PERIODS)
@pytest.mark.parametrize("name", SCHEDULES)
def test_all_have_emitted_every_example_twice_after_the_period_and_at_the_end(problem, name):
    budget = problems.get_config(problem).budget.fresh_examples
    period = PERIODS[problem]
    fresh = np.asarray(decaying_factors.decisions(SCHEDULES[name], period, budget))
    assert fresh[0] == BATCH_SIZE  # nothing is stored
    assert fresh[1 : 1 + 2 * period // BATCH_SIZE].sum() == period
    assert len(fresh) == 2 * budget // BATCH_SIZE - 1
    assert fresh.sum() == budget
    repeats = Repeats(MAX_FACTOR, 256, seed=0)
    most = max(repeats.take(int(n), BATCH_SIZE)[1].max() + 1 for n in fresh)
    assert most < MAX_FACTOR


def test_factors_fall_and_rise():
    fresh = {
        name: decaying_factors.decisions(schedule, 3_600, 12_000)
        for name, schedule in SCHEDULES.items()
    }
    ends = {name: [taken[k] for k in (1, 225, 226)] for name, taken in fresh.items()}
    assert ends == {"constant": [16] * 3, "decaying": [8, 32, 16], "growing": [32, 8, 16]}


def test_the_study_can_be_trained(tmp_path):
    plan = decaying_factors.study("logistic", tmp_path, trials=1, searches=1)
    search.check(plan, 1)


@pytest.mark.parametrize("problem", PERIODS)
def test_each_condition_replays_its_own_decisions(tmp_path, problem):
    plan = decaying_factors.study(problem, tmp_path, trials=1, searches=1)
    assert [condition.name for condition in plan.conditions] == list(SCHEDULES)
    budget = plan.config.budget.fresh_examples
    for condition in plan.conditions:
        lines = pathlib.Path(condition.overrides["echo.replay"]).read_text().splitlines()
        expected = decaying_factors.decisions(SCHEDULES[condition.name], PERIODS[problem], budget)
        assert [json.loads(line)["fresh"] for line in lines] == [[n] for n in expected]
