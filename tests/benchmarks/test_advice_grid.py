"""The benchmark that compares advice with what training does."""

import re

import pytest

import advise
from benchmarks import advice_grid


def test_a_cell_compares_each_round_with_its_own_prediction():
    slower = [(100.0, 90.0), (50.0, 45.0), (80.0, 60.0)]  # (predicted, measured)
    assert advice_grid.Cell.from_rounds(slower) == advice_grid.Cell(rate=60.0, ratio=0.9)


@pytest.mark.long
def test_the_grid_reports_each_cell_and_draws(tmp_path, capsys, monkeypatch):
    small = advice_grid.Grid((2,), (1, 2), seconds=0.1, rounds=2, advice_seconds=0.05)
    monkeypatch.setattr(advice_grid, "QUICK", small)
    out, calls, measured = tmp_path / "new" / "grid.md", [], advise.measured
    monkeypatch.setattr(advise, "measured", lambda *args: calls.append(args) or measured(*args))
    advice_grid.main(["--quick", "--kinds=limited,cpu", f"--out={out}"])
    text = capsys.readouterr().out
    figure = "\n![Predicted and measured steps per second](grid.png)\n"
    assert out.read_text() == text + figure
    assert len(calls) == 2 * 2  # in each round, of each kind
    assert len(re.findall(r"^\| 2 \| [\d.]+ \([\d.]+\) \| [\d.]+ \([\d.]+\) \|", text, re.M)) == 2
    assert text.count("of 2 cells within 5%") == 2
    assert out.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
