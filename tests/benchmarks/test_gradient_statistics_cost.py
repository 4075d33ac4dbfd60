"""The benchmark of what gradient statistics cost."""

import re

import pytest

from benchmarks import gradient_statistics_cost
from tests.helpers.refusals import refusal


@pytest.mark.long
def test_the_benchmark_prints_one_row_per_workload(tmp_path):
    out = tmp_path / "report.md"
    words = ["--size=mini", "--quick", "--batch_size=4", "--workloads=lm1b", f"--out={out}"]
    assert gradient_statistics_cost.main(words) == 0
    (row,) = [line for line in out.read_text().splitlines() if line.startswith("| lm1b, batch 4")]
    step, taken, share = (float(re.match(r"[\d.]+", row.split(" | ")[n])[0]) for n in (1, 2, 4))
    assert share == pytest.approx(100 * taken / step / 64, abs=0.2 / step * share + 0.1)


def test_wrong_input_exits_with_one_sentence(capsys):
    sentence = refusal(gradient_statistics_cost.main, ["--every=0"], capsys)
    assert sentence.endswith("--every: got '0'; allowed: whole numbers in [1, inf)")
