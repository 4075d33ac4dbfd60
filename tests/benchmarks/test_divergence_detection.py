"""The benchmark of where runs diverge."""

import pytest

from benchmarks import divergence_detection

pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered in cast")  # of 1e39


@pytest.mark.long
def test_the_benchmark_finds_with_numpy_where_runs_end(tmp_path, capsys):
    words = ["--workloads=cifar10", "--steps=4", "--momenta=0.9", "--learning_rates=0.01,1e7,1e39"]
    assert divergence_detection.main([*words, f"--out={tmp_path / 'page.md'}"]) == 0
    lines = (tmp_path / "page.md").read_text().splitlines()
    rows = [line.split(" | ") for line in lines if line.startswith("| ")]
    ends = {row[1]: row[-2] for row in rows[2:]}
    assert ends == {"0.01": "-", "1e+07": "diverged, 2", "1e+39": "diverged, 1"}
    assert capsys.readouterr().out.startswith("# Where runs diverge")
