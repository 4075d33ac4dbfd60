"""The benchmark of the training loop on the cores that its input uses."""

import itertools
import math

import numpy as np
import pytest

from benchmarks import real_step
from tests.helpers.refusals import refusal
from training.experiment import make_experiment


@pytest.mark.slow
@pytest.mark.parametrize("factor", [1, 6, "auto", real_step.STORED])
@pytest.mark.parametrize("placement", ["host", "device"])
def test_each_cell_is_a_valid_run_that_does_not_end(placement, factor):
    config = real_step.configuration(placement, factor, 1e4)
    experiment = make_experiment(config)
    steps = experiment.policy.total_steps
    assert steps is None or steps > 10**5
    assert (config.echo.insertion == "none") == (factor in (1, real_step.STORED))


def test_shares_are_of_what_the_upstream_and_the_cores_allow():
    first, last = real_step.Speed(12.0, 0.3, 512.0), real_step.Speed(8.0, 0.1, math.nan)
    speeds: dict = {
        2: real_step.Speed(3.0, 0.5, 256.0),  # the upstream allows 2/6 of 12 steps per second
        8: real_step.Speed(9.0, 0.4, 64.0),  # the cores give 10, the mean of 12 and 8
        "auto": real_step.Speed(5.0, 0.2, 100.0),
    }
    shares = real_step.shares(real_step.Plan(ratio=6.0), first, speeds, last)
    np.testing.assert_allclose([share.rate for share in shares.values()], [0.75, 0.9, 0.5])
    np.testing.assert_allclose([share.cpu for share in shares.values()], [2.5, 2.0, 1.0])
    page = real_step.table(real_step.Plan(factors=(2, 8, "auto")), [shares, shares])
    assert "| e = 2 | 0.75 (0.75 to 0.75) | 2.50 (2.50 to 2.50) |" in page


def test_stored_batches_come_again_and_again():
    experiment = make_experiment(real_step.configuration("host", real_step.STORED, 0.0))
    batches = iter(real_step.StoredBatches(experiment, count=3))
    indices = [batch.index for batch in itertools.islice(batches, 9)]
    np.testing.assert_array_equal(indices, [np.arange(512) + 512 * (n % 3) for n in range(9)])


@pytest.mark.parametrize(("text", "factor"), [("6", 6), ("auto", "auto")])
def test_factors_are_whole_numbers_or_auto(text, factor):
    assert real_step.factor_or_auto(text) == factor


@pytest.mark.parametrize("wrong", ["0", "1.5", "-1", "x", ""])
def test_other_factors_are_one_sentence(wrong, capsys):
    sentence = refusal(real_step.main, [f"--factors={wrong}"], capsys)
    assert sentence.endswith(f"got {wrong!r}; allowed: whole numbers from 1, or auto")
