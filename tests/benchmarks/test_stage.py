"""The benchmark of the echo stage: every side echoes, and a state leads to the next batch."""

import json
import re

import numpy as np
import pytest

from benchmarks import stage
from benchmarks.stage import Cell


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


@pytest.mark.parametrize("streams", [1, 8])
def test_streams_are_concatenated_and_continue_from_their_state(streams):
    data, cell = stage.items(4096, 12), Cell(item_bytes=12, buffer=256, streams=streams)
    batches = stage.Streams(data, cell)
    labels = np.concatenate([next(batches)["label"] for _ in range(60)])
    assert len(labels) == 60 * 128
    # Every stream reads all items, so each is emitted four times by each of them.
    late = labels[20 * 128 :]
    assert len(late) / len(set(late.tolist())) == pytest.approx(4 * streams, rel=0.3)
    again = stage.Streams(data, cell)
    again.set_state(json.loads(json.dumps(batches.get_state())))
    np.testing.assert_array_equal(next(again)["label"], next(batches)["label"])


def test_a_cell_is_left_out_if_its_buffer_is_too_large():
    cells = stage.cells(stage.Plan())
    # At e = 4, a full buffer holds different items in (1 + 1/2 + 1/3 + 1/4) / 4 of its slots.
    assert all(cell.item_bytes * cell.buffer * 25 / 48 <= 2e9 for cell in cells)
    assert Cell(3_072, 1_000_000) in cells
    assert Cell(602_112, 10_000) not in cells


def test_a_small_run_compares_echo_with_each_other_side(tmp_path, capsys):
    out = tmp_path / "new" / "page.md"
    stage.main(["--quick", "--factors=2", f"--out={out}"])
    page = capsys.readouterr().out
    assert out.read_text() == page
    for row in re.findall(r"^\| 2 \| .*", page, re.MULTILINE):
        speeds = [float(n.replace(",", "")) for n in re.findall(r"([\d,]+) \(", row)]
        ratios = [float(n) for n in row.strip("| ").split(" | ")[1 + len(speeds) :]]
        np.testing.assert_allclose(ratios, speeds[0] / np.array(speeds[1:]), rtol=0.01)
