"""The benchmark of the echo stage: every side echoes."""

import re

import numpy as np
import pytest

from benchmarks import stage


@pytest.mark.parametrize(
    ("path", "name"),
    [(path, name) for path in stage.SIDES for name in stage.available_sides(path)],
)
def test_all_sides_return_batches_in_which_items_come_four_times(path, name):
    batches = stage.SIDES[path][name](stage.items(1_000), path == "whole", 4, 200)
    labels = []
    for _ in range(20):
        batch = next(batches)
        image, label = batch.values() if isinstance(batch, dict) else batch
        assert (image.shape, image.dtype) == ((128, stage.CIFAR_BYTES), np.uint8)
        labels += label.tolist()
    # Epochs alone would emit each of 1,000 items two or three times in 2,560 outputs.
    if name != "copying alone":
        assert len(labels) / len(set(labels)) == pytest.approx(4, rel=0.15)


def test_a_small_run_compares_echo_with_each_other_side(capsys):
    stage.main(["--quick", "--factors=2"])
    page = capsys.readouterr().out
    for row in re.findall(r"^\| 2 \| .*", page, re.MULTILINE):
        speeds = [float(n.replace(",", "")) for n in re.findall(r"([\d,]+) \(", row)]
        ratios = [float(n) for n in row.strip("| ").split(" | ")[1 + len(speeds) :]]
        np.testing.assert_allclose(ratios, speeds[0] / np.array(speeds[1:]), rtol=0.01)


def test_a_short_loop_has_a_row_for_each_ratio_and_loader(monkeypatch):
    small = {"LOOP_STEP": 1e-3, "LOOP_BATCHES": 4, "WATCH_RUNS": 1, "WATCH_BATCHES": 40}
    for name, value in small.items():
        monkeypatch.setattr(stage, name, value)
    report = stage.loop_report()
    rows = re.findall(r"^\| (\d) \| ([^|]+) \|", report, re.MULTILINE)
    assert len(set(rows)) == len(rows) >= 3 * 2
    assert "of 1 runs" in report
