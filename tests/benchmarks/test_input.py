"""The benchmark of photographs as input."""

import numpy as np
import pytest

from benchmarks import common, speedup
from benchmarks import input as photographs
from benchmarks.input import NONE, STORED
from benchmarks.speedup import Steady
from configs import catalog

MINI = photographs.Plan(size="mini", files=80, batch_size=16)


def test_crops_lie_in_the_photograph_and_have_the_areas_and_aspects_of_inception():
    y, x, high, wide = photographs.drawn_boxes(2_000, 480, 640).T
    assert (y >= 0).all()
    assert (x >= 0).all()
    assert (y + high <= 480).all()
    assert (x + wide <= 640).all()
    area = high * wide / (480 * 640)
    assert (area.min(), area.max()) == (pytest.approx(0.08, abs=0.005), pytest.approx(1, abs=0.1))
    assert np.abs(np.log(wide / high)).max() <= np.log(4 / 3) + 0.02


def test_the_table_compares_cpu_time_within_a_round():
    cpu_ms = {"decoding alone": [9.0, 1.0, 2.0, 4.0], "echo": [9.0, 2.0, 3.0, 4.0]}
    spreads = {name: common.Spread((100.0, 200.0, 300.0)) for name in cpu_ms}
    row = photographs.reading_table(spreads, cpu_ms).splitlines()[-1]
    assert row == "| echo | 3.00 | 1.50 | - | 200 (100 to 300) |"


def test_the_table_of_training_compares_with_no_echoing_in_the_same_round():
    def paces(stored, none, echoed):
        named = {STORED: stored, NONE: none, "e = 4": echoed}
        return {name: Steady(rate, 8.0) for name, rate in named.items()}

    rounds = [paces(10, 2, 8), paces(20, 4, 8), paces(10, 1, 9)]
    row = photographs.training_table(MINI, rounds).splitlines()[-1]
    assert row == "| e = 4 | 128 (128 to 144) | 8 | 0.80 | 4.00 (2.00 to 9.00) |"


@pytest.mark.long
def test_a_run_on_photographs_reads_a_quarter_of_what_it_trains_on(tmp_path):
    photographs.write_files(MINI, tmp_path)
    after = photographs.conditions(MINI, tmp_path)[3]
    assert "after augmentation" in after.label
    pace = speedup.steady(after, 1, 30, {})
    assert pace.fresh_examples / pace.steps == pytest.approx(16 / 4, rel=0.1)


def test_the_pipeline_delivers_batches_of_crops(tmp_path):
    photographs.write_files(MINI, tmp_path)
    images = next(photographs.this_pipeline(tmp_path, dataset__fused_decode=True))
    assert (images.shape, images.dtype) == ((64, 224, 224, 3), np.uint8)
    assert images.std() > 10


def test_a_simulated_machine_takes_steps_with_fresh_examples(monkeypatch):
    monkeypatch.setattr(photographs, "WARM_UP_SECONDS", 0.1)
    plan = photographs.Plan(size="mini", batch_size=16, seconds=0.3)
    pace = photographs.simulated(plan, 0.1, catalog.auto(16, 64))
    assert 0 < pace.fresh_examples <= 16 * pace.steps
