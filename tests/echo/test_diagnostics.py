"""Diagnostics of repeats: exact against a count by hand over what the pipeline emits."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from echo import EchoSchedule
from echo.diagnostics import CopyDiagnostics, Stream
from pipeline import build, repeats
from runs import records
from tests.helpers.runs import INSERTIONS_AND_BUFFERS, echoing, mini
from training.auto_policy import AutoPolicy
from training.experiment import make_experiment


def by_hand(batches, start, stop):
    """The same statistics of lists of fresh items, in plain loops over everything so far."""
    last, distances, repeated, in_batch, seen, rows = {}, [], 0, 0, set(), 0
    place = 0
    for number, batch in enumerate(batches[:stop]):
        earlier = set()
        for item in batch:
            if number >= start:
                rows += 1
                seen.add(item)
                in_batch += item in earlier
                if item in last:
                    repeated += 1
                    distances.append(place - last[item])
            earlier.add(item)
            last[item] = place
            place += 1
    statistics = {
        "repeated": repeated / rows,
        "repeated_in_batch": in_batch / rows,
        "unique_fraction": len(seen) / rows,
    }
    if distances:
        statistics["copy_distance_mean"] = float(np.mean(distances))
        statistics["copy_distance_p95"] = float(np.percentile(distances, 95, method="inverted_cdf"))
    return statistics


@pytest.mark.parametrize(("insertion", "buffer"), INSERTIONS_AND_BUFFERS)
@pytest.mark.parametrize("streams", [1, 2])
def test_windows_of_a_run_match_its_batches(insertion, buffer, streams):
    config = mini(**echoing(insertion, buffer), echo__streams=streams, seed__data=3, prefetch=0)
    prepared = make_experiment(config)
    batches = [batch.index.tolist() for batch in prepared.batches]
    assert len(batches) == prepared.policy.total_steps > 16
    for first, last in [(0, 5), (5, 10), (10, 15), (3, 4), (12, len(batches))]:
        expected = by_hand(batches, first, last)
        assert prepared.policy.copies.window(first, last) == pytest.approx(expected, rel=1e-12)
        assert repeats.copy_diagnostics(config, 1197).window(first, last) == pytest.approx(expected)


@settings(max_examples=60, deadline=None)
@given(
    factor=st.sampled_from(["1", "1.5", "2", "3.7"]),
    buffer=st.integers(0, 40),
    batch=st.integers(1, 9),
    steps=st.lists(st.integers(1, 12), min_size=1, max_size=6),
    seed=st.integers(0, 1000),
)
def test_any_window_is_exact_with_or_without_the_windows_before_it(
    factor, buffer, batch, steps, seed
):
    schedule = EchoSchedule(factor, buffer, seed)
    fresh, _ = schedule.cursor().take(batch * sum(steps))
    batches = fresh.reshape(-1, batch).tolist()
    in_turn, start = CopyDiagnostics(batch, [Stream(schedule.cursor(), batch)]), 0
    for count in steps:
        expected = by_hand(batches, start, start + count)
        assert in_turn.window(start, start + count) == pytest.approx(expected)
        resumed = CopyDiagnostics(batch, [Stream(schedule.cursor(), batch)])
        assert resumed.window(start, start + count) == in_turn.window(start, start + count)
        start += count


@pytest.mark.parametrize(
    ("insertion", "buffer"), [("before_augmentation", 128), ("after_batching", 4)]
)
@pytest.mark.parametrize("streams", [1, 2])
def test_windows_follow_the_decisions_of_an_auto_run(insertion, buffer, streams):
    settings = {"echo__insertion": insertion, "echo__shuffle_buffer": buffer}
    config = mini(echo__policy="auto", echo__max_factor=4, echo__streams=streams, **settings)
    opened = make_experiment(config)
    decisions = np.asarray([[32 // streams] * streams, *[[0] * streams] * 2] * 8)
    workload = opened.program.task.workload
    given = list(
        build.build(config, opened.source, workload, policy=AutoPolicy(config, decisions=decisions))
    )
    batches = [batch.index.tolist() for batch in given]
    assert len(batches) == len(decisions)
    in_turn, resumed = (
        repeats.copy_diagnostics(config, 1197),
        repeats.copy_diagnostics(config, 1197),
    )
    for batch in given:
        in_turn.decided(batch.decisions)
        resumed.decided(batch.decisions)
    for first in range(0, 20, 5):
        expected = by_hand(batches, first, first + 5)
        assert in_turn.window(first, first + 5) == pytest.approx(expected)
    assert resumed.window(15, 20) == pytest.approx(expected)


def test_a_buffer_of_s_examples_puts_copies_s_examples_apart():
    # the distribution is geometric of mean S: see test_statistics.py
    stream = Stream(EchoSchedule(2, 200).cursor(), 64)
    statistics = CopyDiagnostics(64, [stream]).window(100, 5_100)
    assert statistics["copy_distance_mean"] == pytest.approx(200, rel=0.02)
    assert statistics["copy_distance_p95"] == pytest.approx(200 * np.log(20), rel=0.02)
    assert statistics["repeated"] == pytest.approx(0.5, abs=0.01)


def test_a_run_records_them(uninterrupted):
    config = mini(**echoing("before_augmentation", 100))
    prepared = repeats.copy_diagnostics(config, 1197)
    metrics = records.read_metrics(uninterrupted(config))
    training = [record for record in metrics if record["split"] == "train"]
    assert len(training) > 5
    for record in training:
        expected = prepared.window(record["step"] - config.log_every_steps, record["step"])
        assert {name: record[name] for name in expected} == expected
