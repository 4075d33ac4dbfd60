"""Benchmarks without tests of their own run from end to end, as small as their flags allow."""

import pytest

from benchmarks import sweep_throughput

SMALL = ["--steps=2", "--rounds=1", "--width=4"]


@pytest.mark.long
def test_a_benchmark_writes_the_page_that_it_prints(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(sweep_throughput, "LANES", (1, 2))  # 10 trials instead of 43
    monkeypatch.setattr(sweep_throughput, "RATIOS", (1, 4))
    out = tmp_path / "page.md"
    sweep_throughput.main([*SMALL, f"--out={out}"])
    page = capsys.readouterr().out
    assert out.read_text().startswith(page)
    assert "\n| --- | " in page
