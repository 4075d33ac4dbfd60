"""The benchmark of photographs as input."""

import importlib.util
import math

import numpy as np
import pytest

from benchmarks import input as photographs
from benchmarks import speedup
from benchmarks.input import NONE, STORED
from benchmarks.speedup import Steady
from configs import catalog

MINI = photographs.QUICK


def test_a_table_has_medians_and_spreads_and_nothing_where_nothing_was_measured():
    rounds = [
        {"echo": {"a": a, "b": b}} for a, b in ((300.0, math.nan), (100.0, 2.0), (250.0, 1.0))
    ]
    rows = [photographs.table(rounds, {"a": 0, "b": 1}, spread) for spread in (True, False)]
    cells = [row.splitlines()[-1] for row in rows]
    assert cells == ["| echo | 250 (100 to 300) | - |", "| echo | 250 | - |"]


def test_training_is_compared_with_others_in_the_same_round():
    paces = {name: Steady(rate, 8.0) for name, rate in ((STORED, 10), (NONE, 2), ("e = 4", 8))}
    values = photographs.compared(MINI, paces, "e = 4")
    assert list(values.values()) == [8 * MINI.batch_size, 8.0, 0.8, 4.0]
    assert values.keys() == photographs.TRAINING.keys()


@pytest.mark.long
def test_a_run_on_photographs_reads_a_quarter_of_what_it_trains_on(tmp_path):
    photographs.write_files(MINI, tmp_path)
    after = photographs.conditions(MINI, tmp_path)[4]
    assert "after augmentation" in after.label
    pace = speedup.steady(after, 1, 30, {})
    assert pace.fresh_examples / pace.steps == pytest.approx(16 / 4, rel=0.1)


def test_sides_deliver_images_of_which_some_are_fresh(tmp_path, monkeypatch):
    find, others = importlib.util.find_spec, ("tensorflow", "torch")  # which start for seconds
    only = lambda name, *of: None if name in others else find(name, *of)  # noqa: E731
    monkeypatch.setattr(importlib.util, "find_spec", only)
    photographs.write_files(MINI, tmp_path)
    sides = photographs.make_sides(MINI, tmp_path)
    for name, factor in ((NONE, 1), ("e = 4 after batching", 4), (photographs.SMALL[1], 1)):
        totals = photographs.consumed(sides[f"{name}: threads"](), 0, 8)
        assert totals[:3].tolist() == [8, 8 * 16, 8 * 16 / factor]
    values = photographs.measured(sides[photographs.ALONE](), MINI)
    assert values[photographs.CPU] > 0
    assert values[photographs.WORKERS] == 0
    assert np.isnan(values[photographs.LOCK])  # nothing counts it here


def test_a_simulated_machine_takes_steps_with_fresh_examples():
    workload = photographs.Sleeping(0.0001)
    steps, fresh = photographs.simulated(MINI, workload, catalog.auto(16, 64))
    assert 0 < fresh <= 16 * steps
