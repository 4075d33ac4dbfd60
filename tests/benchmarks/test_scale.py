"""The benchmark of studies."""

import pytest

from benchmarks import scale


def test_usage_is_that_of_the_process():
    used = scale.usage("-c", "import time; x = bytearray(b'x') * 10**8; time.sleep(0.2)")
    assert used.memory == pytest.approx(110e6, rel=0.2)
    assert 0 < used.processor_seconds < used.seconds + 0.1


@pytest.mark.long
def test_a_small_study_is_trained_resumed_and_analyzed(capsys):
    scale.main(["--sizes=2x2"])
    page = capsys.readouterr().out
    assert [line.split(" | ")[2] for line in page.splitlines() if line.startswith("| 2 |")] == [
        "train",
        "resume, with nothing left to train",
        "analyze",
    ]
