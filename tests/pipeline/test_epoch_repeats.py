"""Spaced epochs, the control: whole passes, each counted as fresh once."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data.sources import ArraySource
from pipeline.epoch_repeats import Passes
from pipeline.map_datasets import Examples, FreshOrder
from runs.progress import Progress
from tests.helpers.runs import batches_of, mini
from train import train


def stream(records, order):
    def decode(found, index_n, copy_n):
        return {"x": np.asarray([record["x"] for record in found])}

    return Examples(ArraySource(x=np.arange(records)), 0, order, decode)


@settings(max_examples=60, deadline=None)
@given(records=st.integers(1, 9), passes=st.integers(1, 4), fresh=st.integers(1, 30))
def test_each_pass_is_complete_before_the_next_and_counts_once(records, passes, fresh):
    spaced = Passes(fresh, records, passes, seed=7)
    index, copy = spaced.locate(range(len(spaced)))
    wanted_copies, groups = [], []
    for first in range(0, fresh, records):
        group = list(range(first, min(first + records, fresh)))
        groups += [group] * passes
        wanted_copies += [number for number in range(passes) for _ in group]
    assert copy.tolist() == wanted_copies
    places = iter(index.tolist())
    for group in groups:
        assert sorted(next(places) for _ in group) == group
    for copies in range(len(spaced) + 1):
        assert spaced.admitted(copies) == len(set(index[:copies].tolist()))


def test_a_copy_is_the_example_of_the_fresh_stream():
    passes = Passes(25, 9, 3, seed=7)
    spaced = stream(9, passes)
    wanted = stream(9, FreshOrder(25)).stacked_items(range(25))["x"][passes.locate(range(75))[0]]
    np.testing.assert_array_equal(spaced.stacked_items(range(75))["x"], wanted)
    assert [spaced[position]["x"] for position in (0, 30, 74)] == wanted[[0, 30, 74]].tolist()


def test_every_later_pass_has_an_order_of_its_own():
    """Of all groups of passes and all data seeds; the first pass of a group is in order."""
    orders = set()
    for seed in (7, 8):
        index, _ = Passes(100, 50, 3, seed).locate(range(300))
        orders |= {tuple(index[start : start + 50] % 50) for start in range(0, 300, 50)}
    assert len(orders) == 1 + 2 * 2 * 2


def test_batches_count_what_has_been_read_and_copies_are_augmented_again():
    seen, rows, batches = set(), {}, batches_of(mini(dataset__spaced_epochs=2))
    assert len(batches) == 40
    for batch in batches:
        seen.update(batch.index.tolist())
        assert batch.fresh_examples == len(seen)
        keys = zip(batch.index.tolist(), batch.copy.tolist(), strict=True)
        rows |= dict(zip(keys, batch.data["image"], strict=True))
    equal = [np.array_equal(rows[index, 0], rows[index, 1]) for index in seen]
    # Nine shifts are equally likely, so one in nine pairs of copies is equal by chance.
    assert np.mean(equal) == pytest.approx(1 / 9, abs=0.05)


def test_the_bytes_of_every_pass_count(tmp_path):
    once, twice = (
        train(mini(dataset__spaced_epochs=k), tmp_path / str(k), Progress(quiet=True))
        for k in (1, 2)
    )
    assert once["fresh_examples"] == twice["fresh_examples"]
    assert twice["bytes_read"] == 2 * once["bytes_read"] > 0
