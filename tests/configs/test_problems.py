"""The registered problems: every condition can be trained, and scores have a fine resolution."""

import math

import pytest

from analysis import load
from configs import problems
from runs import cli
from studies.plan import load_study
from studies.search import trial_config
from training.check import check, check_devices

FLAG = "configs/problems.py:{}"


def study(problem, name="grid", *overrides):
    flag = FLAG.format(problem)
    return load_study(problems.get_config(problem), problems, flag, name, overrides=overrides)


@pytest.mark.parametrize(
    ("problem", "name"),
    [(problem, name) for problem in problems.PROBLEMS for name in problems.get_studies(problem)],
)
def test_every_condition_is_valid_at_the_corners_of_its_search(problem, name):
    plan = study(problem, name)
    for condition in plan.conditions:
        config = trial_config(plan, condition, 0, 0)
        check_devices(config, 1)
        for unit in (0.0, 1.0):
            for axis in plan.space:
                value = axis.value_at(unit)
                whole = isinstance(cli.get_field(config, axis.field), int)
                cli.set_field(config, axis.field, round(value) if whole else value)
            check(config)


@pytest.mark.parametrize("problem", problems.PROBLEMS)
def test_the_grid_is_the_registered_one(problem):
    plan, factors = study(problem), problems.PROBLEMS[problem].factors
    first, second = problems.PROBLEMS[problem].batch_sizes
    cells = {f"baseline_b{size}" for size in (first, second)}
    cells |= {f"before_augmentation_e{e}_b{size}" for size in (first, second) for e in factors}
    cells |= {f"after_batching_e2_b{first}"}
    if problems.PROBLEMS[problem].augments:
        cells |= {f"after_augmentation_e2_b{first}"}
    assert {condition.name for condition in plan.conditions} == cells
    assert set(factors) >= {2, 4, 16}
    assert plan.searches == 5
    schedule = plan.config.optimizer.schedule.name
    horizon = [axis for axis in plan.space if "horizon" in axis.field]
    assert len(horizon) == (schedule != "constant")


@pytest.mark.parametrize(
    ("problem", "name"),
    [*((problem, "grid") for problem in problems.PROBLEMS)]
    + [("sentences", f"optimizer_b{size}") for size in (32, 256)],
)
def test_scores_have_a_resolution_of_5_percent(problem, name):
    """Targets are what the baseline reaches within two thirds of its budget, and no condition needs
    less than 1 / e of a third of the budget unless echoing gains more than a factor e."""
    plan = study(problem, name)
    for condition in plan.conditions:
        config = trial_config(plan, condition, 0, 0)
        smallest = config.budget.fresh_examples / 3 / config.echo.factor
        assert config.evaluate_every_fresh_examples <= math.ceil(0.05 * smallest)


@pytest.mark.parametrize(
    ("problem", "name", "pilot"),
    [("digits", "grid", "pilot")]
    + [("sentences", f"optimizer_b{size}", f"optimizer_pilot_b{size}") for size in (32, 256)],
)
def test_a_pilot_shares_no_seed_with_its_study(problem, name, pilot):
    seeds = [
        {
            (kind, trial_config(plan, plan.conditions[0], search, trial).seed[kind])
            for kind in ("data", "model")
            for search in range(plan.searches)
            for trial in range(plan.max_trials)
        }
        for plan in (study(problem, name), study(problem, pilot))
    ]
    assert not seeds[0] & seeds[1]


@pytest.mark.parametrize("size", [32, 256])
def test_targets_of_adamw_are_the_best_losses_of_its_pilots(size):
    """Within two thirds of the budget, rounded up to 0.05 nats, as results/protocol.md says."""
    records = load.read("results/trials.parquet", study=f"grid/optimizer_pilot_b{size}")
    curves = load.curves(records.trials[records.trials["counted"]], "loss")
    early = curves[curves["fresh_examples"] <= records.study.budget * 2 / 3]
    target = study("sentences", f"optimizer_b{size}").target.value
    assert target == pytest.approx(math.ceil(early["value"].min() / 0.05) * 0.05)
