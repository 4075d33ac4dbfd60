"""The benchmark of studies and lanes."""

import pytest

from benchmarks import common, scale


def test_lanes_are_compared_with_one_lane_at_the_same_ratio():
    rates = {"1 1": 10.0, "1 4": 12.0, "4 1": 3.0, "4 4": 9.0, "8 1": 2.0, "8 4": 8.0}
    spreads = {name: common.Spread((rate,)) for name, rate in rates.items()}
    rows = scale.lanes_table([1, 4], spreads).splitlines()
    assert "| 1 | 4 | 12 (12 to 12) | 1.20 | 1 | 1.20 |" in rows
    assert "| 4 | 4 | 9 (9 to 9) | 3.00 | 4 | 0.75 |" in rows
    assert "| 8 | 4 | 8 (8 to 8) | 4.00 | 4 | 1.00 |" in rows


def test_usage_is_that_of_the_process():
    used = scale.usage("-c", "import time; x = bytearray(b'x') * 10**8; time.sleep(0.2)")
    assert used.memory == pytest.approx(110e6, rel=0.2)
    assert 0 < used.processor_seconds < used.seconds + 0.1


@pytest.mark.long
def test_a_small_study_is_trained_resumed_and_analyzed(capsys):
    scale.main(["--quick"])
    page = capsys.readouterr().out
    assert [line.split(" | ")[2] for line in page.splitlines() if line.startswith("| 2 |")] == [
        "train",
        "resume, with nothing left to train",
        "analyze",
    ]
