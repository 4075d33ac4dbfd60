"""The distances between copies: against the formula and against tf.data's own shuffle.

Seeds are fixed, so each test always gives the same answer. p-values are those of two-sided tests;
the minimum over correct schedules is well above the bound.
"""

import numpy as np
import pytest
import scipy.stats

from echo import EchoSchedule

SLOTS, FACTOR, OUTPUTS = 50, 4, 400_000


def exits(seed: int, slots: int = SLOTS, outputs: int = OUTPUTS) -> np.ndarray:
    """The output that emits each echoed position, for positions that are certain to be emitted."""
    fresh, copy = EchoSchedule(FACTOR, slots, seed).cursor().take(outputs)
    output_of = np.full(outputs + slots, -1)
    output_of[fresh * FACTOR + copy] = np.arange(outputs)
    certain = output_of[: outputs - 40 * slots]
    assert certain.min() >= 0
    return certain


def goodness_of_fit(samples: np.ndarray, distribution) -> float:
    """p-value of a chi-square test over about 30 equally likely bins."""
    edges = np.unique(distribution.ppf(np.linspace(0, 1, 31)[1:-1]))
    observed = np.bincount(np.searchsorted(edges, samples), minlength=len(edges) + 1)
    expected = np.diff(np.concatenate([[0], distribution.cdf(edges), [1]])) * len(samples)
    return scipy.stats.chisquare(observed, expected).pvalue


def distances(exit_of: np.ndarray, apart: int = 1) -> np.ndarray:
    """Outputs between copies 0 and `apart` of every second item, in steady state."""
    item = np.arange(SLOTS, len(exit_of) // FACTOR, 2) * FACTOR
    return np.abs(exit_of[item + apart] - exit_of[item])


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("apart", [1, 3])
def test_the_distance_between_two_copies_is_geometric_of_mean_s(seed, apart):
    # Once one of two waiting copies is emitted, the wait for the other one is memoryless among S
    # slots; the probability that the later copy enters after the earlier one has left is 1/S.
    samples = distances(exits(seed), apart)
    assert goodness_of_fit(samples, scipy.stats.geom(1 / SLOTS)) > 0.01


def test_distances_are_those_of_tf_data():
    tf = pytest.importorskip(
        "tensorflow", reason="compares with tf.data's shuffle; pip install tensorflow-cpu"
    )
    outputs = 100_000
    items = tf.data.Dataset.range((outputs + SLOTS) // FACTOR)
    echoed = items.flat_map(lambda item: tf.data.Dataset.from_tensors(item).repeat(FACTOR))
    order = np.concatenate(list(echoed.shuffle(SLOTS, seed=7).batch(1_000).as_numpy_iterator()))
    # Copies of an item cannot be distinguished, so compare the sorted exits of every second item.
    theirs = np.argsort(order, kind="stable").reshape(-1, FACTOR)
    ours = exits(0, outputs=outputs).reshape(-1, FACTOR)
    steady = slice(SLOTS, len(ours), 2)
    theirs, ours = theirs[steady], np.sort(ours, axis=1)[steady]
    for gap in range(1, FACTOR):
        theirs_apart, ours_apart = (x[:, gap] - x[:, gap - 1] for x in (theirs, ours))
        assert scipy.stats.ks_2samp(ours_apart, theirs_apart).pvalue > 0.01
    due = np.arange(steady.start, steady.stop, 2) * FACTOR  # without a buffer
    assert scipy.stats.ks_2samp(ours[:, 0] - due, theirs[:, 0] - due).pvalue > 0.01
