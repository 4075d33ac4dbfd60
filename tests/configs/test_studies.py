"""The studies of the workloads and of the registered problems."""

import json

import numpy as np
import pytest

import echo
from configs import cifar10, coco, common_crawl, imagenet, lm1b, problems, vit
from runs import cli
from runs.records import nested
from studies.plan import load_study
from studies.search import trial_config
from training.check import check, check_devices


@pytest.mark.parametrize("variant", ["", "mini"])
@pytest.mark.parametrize("workload", [cifar10, coco, common_crawl, imagenet, lm1b, vit])
def test_every_buffer_of_figure_8_shuffles(workload, variant):
    """One slot does not: each item leaves before the next one enters."""
    for name, condition in workload.get_studies(variant)["shuffle"]["conditions"].items():
        copies = [
            np.stack(echo.EchoSchedule(2, slots, seed=0).cursor(0, 100).take(200)).tolist()
            for slots in (0, condition["echo.shuffle_buffer"])
        ]
        shuffles = name != "baseline" and not name.endswith("_buffer_0")
        assert (copies[0] != copies[1]) == shuffles, name


def study(problem, name="grid"):
    flag = f"configs/problems.py:{problem}"
    return load_study(problems.get_config(problem), problems, flag, name)


@pytest.mark.parametrize("problem", problems.PROBLEMS)
def test_every_condition_is_valid_at_the_corners_of_its_search(problem):
    for name in problems.get_studies(problem):
        plan = study(problem, name)
        config = trial_config(plan, plan.conditions[-1], 0, 0)
        check_devices(config, 1)
        for unit in (0.0, 1.0):
            for axis in plan.space:
                value = axis.value_at(unit)
                whole = isinstance(nested(config, axis.field), int)
                cli.set_field(config, axis.field, round(value) if whole else value)
            check(config)


def test_a_pilot_shares_no_seed_with_its_study():
    seeds = [
        {
            item
            for search in range(plan.searches)
            for trial in range(plan.max_trials)
            for item in plan.seeds(search, trial).items()
        }
        for plan in (study("digits"), study("digits", "pilot"))
    ]
    assert not seeds[0] & seeds[1]


def test_confirmations_run_the_winners_of_the_grid():
    winners = json.loads(problems.WINNERS.read_text())
    for problem in problems.PROBLEMS:
        conditions = problems.get_studies(problem)["confirmation"]["conditions"]
        for name, overrides in conditions.items():
            assert winners[problem][name].items() <= overrides.items()
