"""The order of examples: a permutation an epoch, unrelated between epochs and between searches."""

import itertools

import numpy as np
import pytest
from scipy import stats

from pipeline import accounting, map_datasets
from studies.search import trial_config
from tests.helpers.runs import mini
from tests.helpers.small_studies import study

RECORDS = 1_500


@pytest.fixture(params=["kept", "computed"])
def search_epochs(request, monkeypatch):
    """Makes the orders of the first epochs of searches 0..4 of a study, int [5, epochs, RECORDS],
    in either way: that of small data sets, and that of large ones, which is slow for small ones."""
    if request.param == "computed":
        monkeypatch.setattr(map_datasets, "_MAX_CACHED_ORDER", 0)

    def orders(epochs):
        epochs = epochs if request.param == "kept" else min(epochs, 5)
        plan = study(searches=5)
        configs = [trial_config(plan, plan.conditions[0], s, 0) for s in range(5)]
        index_n = np.arange(epochs * RECORDS)
        numbers = [map_datasets.record_numbers(index_n, RECORDS, c.seed.data) for c in configs]
        return np.reshape(numbers, (5, epochs, RECORDS))

    return orders


def test_searches_share_no_epochs_order_and_no_two_orders_are_correlated(search_epochs):
    orders = search_epochs(20).reshape(-1, RECORDS)
    assert (np.sort(orders, axis=1) == np.arange(RECORDS)).all()  # permutations
    with_unshuffled = np.concatenate([orders, np.arange(RECORDS)[None]])
    rho = stats.spearmanr(with_unshuffled, axis=1).statistic
    pairs = rho[np.triu_indices(len(rho), 1)]
    # under independence sqrt(n - 1) rho is standard normal: the largest of 5,050 is about 4
    assert np.abs(pairs).max() * np.sqrt(RECORDS - 1) < 5
    assert pairs.std() * np.sqrt(RECORDS - 1) == pytest.approx(1, abs=0.1)


def test_neighbors_of_an_epoch_are_unrelated(search_epochs):
    for order in search_epochs(2).reshape(10, RECORDS):
        lagged = stats.spearmanr(order[1:], order[:-1]).statistic
        assert abs(lagged) * np.sqrt(RECORDS - 2) < 4
        _, times = np.unique((order[1:] - order[:-1]) % RECORDS, return_counts=True)
        assert times.max() <= 9  # about Poisson of mean 1


def test_any_example_can_be_asked_for_at_any_time(search_epochs):
    orders = search_epochs(3)[2].ravel()
    index_n = np.random.default_rng(0).permutation(3 * RECORDS)[:200]
    assert map_datasets.record_numbers(index_n, RECORDS, 2) == orders[index_n].tolist()


def test_a_data_set_of_one_record_is_in_order():
    assert map_datasets.record_numbers(np.arange(5), 1, seed=3) == [0] * 5


def test_echo_stages_of_searches_and_streams_share_no_seed():
    found = set()
    for data, streams in itertools.product(range(6), (1, 2, 4)):
        config = mini(seed__data=data, echo__streams=streams)
        found |= {accounting.echo_seed(config, stream) for stream in range(streams)}
    assert len(found) == 6 * 4  # a stream's own, however many others there are


def test_derived_seeds_are_hashes_of_their_use_and_numbers():
    import hashlib

    digest = hashlib.blake2b(b"epoch order/1/12", digest_size=8).digest()
    assert map_datasets.derived_seed("epoch order", 1, np.int64(12)) == int.from_bytes(
        digest, "little"
    )
    assert map_datasets.derived_seed("epoch order", 11, 2) != map_datasets.derived_seed(
        "epoch order", 1, 12
    )
    assert map_datasets.derived_seed("x", 0, bits=32) < 2**32
