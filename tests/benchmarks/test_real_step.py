"""The benchmark of the training loop on the cores that its input uses."""

import itertools

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
