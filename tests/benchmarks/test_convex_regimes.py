"""Echoed gradient descent by inner products equals the same steps taken one by one."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import echo
from benchmarks import convex_regimes
from tests.helpers.refusals import refusal


@pytest.mark.slow
@pytest.mark.parametrize("factor", [1, 3])
def test_parameters_are_those_of_gradient_descent_on_echoed_batches(factor):
    rates, seed, batch_size, batches = np.float32([0.03, 0.3]), 7, 16, 5
    inputs, labels = convex_regimes.examples()
    assert (inputs.shape, labels.shape) == ((5000, 785), (5000, 10))
    weights = convex_regimes.train(
        jnp.zeros((785, 2, 10)), rates, seed, 0, batches, factor, batch_size=batch_size
    )

    def loss(weights, rows):
        return optax.softmax_cross_entropy(inputs[rows] @ weights, labels[rows]).mean()

    fresh = [convex_regimes.fresh_batch(seed, i, batch_size) for i in range(batches)]
    for lane, rate in enumerate(rates):
        expected = jnp.zeros((785, 10))
        for rows in echo.echo_iterable(map(np.asarray, fresh), factor=factor):
            expected -= rate * jax.grad(loss)(expected, rows)
        np.testing.assert_allclose(weights[:, lane], expected, atol=2e-6)
    evaluated = loss(expected, np.arange(convex_regimes.EVALUATED))
    np.testing.assert_allclose(convex_regimes.loss(weights)[1], evaluated, rtol=1e-5)


def test_evaluations_are_at_most_5_percent_apart():
    numbers = list(convex_regimes.evaluations())
    assert (numbers[:3], numbers[-1]) == ([1, 2, 3], convex_regimes.MAX_BATCHES)
    assert all(b - a <= max(1, 0.05 * a + 0.5) for a, b in itertools.pairwise(numbers))


@pytest.mark.slow
def test_the_times_of_learning_rates_bracket_the_threshold():
    rates = np.float32([0.01, 0.2])
    (slow, missed), (before, at) = convex_regimes.batches_to_threshold(16, 4, rates, seed=0)
    assert missed == np.inf
    assert before < at <= slow + 1
    weights = jnp.zeros((785, 1, 10))
    for number, below in ((before, False), (at, True)):
        trained = convex_regimes.train(weights, rates[1:], 0, 0, number, 4, batch_size=16)
        assert (convex_regimes.loss(trained)[0] <= convex_regimes.THRESHOLD) == below


def test_no_more_further_runs_than_were_registered(monkeypatch, capsys):
    monkeypatch.setattr(convex_regimes, "FURTHER", (256, (1, 4), range(2_000, 2_001)))
    sentence = refusal(convex_regimes.main, ["--further", "--runs=2"], capsys)
    assert sentence == "--runs=2; allowed: at most 1 with --further"


@pytest.mark.slow
def test_further_runs_repeat_the_published_ones_given_their_seeds():
    published = convex_regimes.recorded("convex_regimes")
    runs = convex_regimes.measure_further(published, [1_000, 1_001])
    columns = ["batch_size", "factor", "rate", "tuning", "seed"]
    both = runs.merge(published, on=columns, suffixes=("", "_published"))
    assert len(both) == len(runs) == 4
    # on another processor, a run may cross the threshold an evaluation sooner or later
    np.testing.assert_allclose(both["batches"], both["batches_published"], rtol=0.07)
