"""The benchmark of a network whose input is decoding JPEGs."""

import os

import pytest

from benchmarks import common, input_bound, real_step
from pipeline import map_datasets
from training import check

MINI = input_bound.Plan(size="mini", files=80, batch_size=16, steps=10, rounds=1)


def test_every_condition_can_be_run_and_does_not_end():
    for plan in (input_bound.Plan(), MINI):
        for name, fields in input_bound.conditions(plan).items():
            config = input_bound.configuration(plan, "anywhere", fields)
            check.check(config)
            echoes = name not in (input_bound.STORED, input_bound.NONE)
            assert (config.echo.insertion != "none") == echoes
            assert config.budget.fresh_examples > 10**6 * plan.batch_size // 256


@pytest.mark.long
def test_fresh_examples_per_step_are_those_of_the_factor(tmp_path):
    input_bound.write_files(MINI, tmp_path)
    fields = input_bound.conditions(MINI)["e = 4 after augmentation"]
    config = input_bound.configuration(MINI, str(tmp_path), fields)
    speed = real_step.steady_state(config, MINI.steps, cycle=input_bound.FACTOR)
    assert speed.rate > 0
    # the shuffle buffer has been filled before the measurement
    assert speed.fresh_examples == MINI.batch_size / input_bound.FACTOR


def decoding_threads():
    return map_datasets.CORES


@pytest.mark.long
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system has no affinity")
def test_a_process_decodes_on_as_many_cores_as_it_is_given():
    before = os.sched_getaffinity(0)
    with input_bound.on_cores(1):
        assert common.in_new_process(decoding_threads) == 1
    assert os.sched_getaffinity(0) == before


def test_too_few_steps_for_the_number_of_fresh_examples_are_a_dash():
    speed = real_step.Speed(2.0, 0.0, float("nan"))
    table = input_bound.table(MINI, [{input_bound.STORED: speed, input_bound.NONE: speed}])
    last = table.splitlines()[-1]
    assert last == "| no echoing | 32 (32 to 32) | - | 1.00 | 1.00 (1.00 to 1.00) |"


def test_the_table_compares_with_no_echoing_in_the_same_round():
    def speeds(stored, none, echoed):
        named = {input_bound.STORED: stored, input_bound.NONE: none, "e = 4": echoed}
        return {name: real_step.Speed(rate, 0.0, 8.0) for name, rate in named.items()}

    table = input_bound.table(MINI, [speeds(10, 2, 8), speeds(20, 4, 8), speeds(10, 1, 9)])
    assert (
        table.splitlines()[-1] == "| e = 4 | 128 (128 to 144) | 64 | 0.80 | 4.00 (2.00 to 9.00) |"
    )
