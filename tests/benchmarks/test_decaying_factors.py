import numpy as np
import pytest

from benchmarks import decaying_factors
from benchmarks.decaying_factors import BATCH_SIZE, MAX_FACTOR, PERIOD, SCHEDULES
from echo.auto_order import Repeats
from studies import search

BUDGET = 12_000


@pytest.mark.parametrize("name", SCHEDULES)
def test_all_have_emitted_every_example_twice_after_the_period_and_at_the_end(name):
    fresh = np.asarray(decaying_factors.decisions(SCHEDULES[name], BUDGET))
    assert fresh[0] == BATCH_SIZE  # nothing is stored
    assert fresh[1 : 1 + 2 * PERIOD // BATCH_SIZE].sum() == PERIOD
    assert len(fresh) == 2 * BUDGET // BATCH_SIZE - 1
    assert fresh.sum() == BUDGET
    repeats = Repeats(MAX_FACTOR, 256, seed=0)
    most = max(repeats.take(int(n), BATCH_SIZE)[1].max() + 1 for n in fresh)
    assert most < MAX_FACTOR


def test_factors_fall_and_rise():
    fresh = {name: decaying_factors.decisions(SCHEDULES[name], BUDGET) for name in SCHEDULES}
    ends = {name: [taken[k] for k in (1, 225, 226)] for name, taken in fresh.items()}
    assert ends == {"constant": [16] * 3, "decaying": [8, 32, 16], "growing": [32, 8, 16]}


def test_the_study_can_be_trained(tmp_path):
    plan = decaying_factors.study(tmp_path, trials=1, searches=1)
    search.check(plan, 1)
    assert [condition.name for condition in plan.conditions] == list(SCHEDULES)
