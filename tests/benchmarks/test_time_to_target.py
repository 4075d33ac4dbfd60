"""Seconds to a target without tuning: a smoke run."""

import re

import pytest

from benchmarks import time_to_target, wall_time


def test_quick_run_prints_a_row_per_condition(tmp_path, capsys, monkeypatch):
    configuration = wall_time.configuration

    def with_a_small_network(plan):
        config = configuration(plan)
        config.model.depth = 0  # logistic regression, which compiles in no time
        return config

    monkeypatch.setattr(wall_time, "configuration", with_a_small_network)
    out = tmp_path / "page.md"
    time_to_target.main(["--quick", f"--out={out}"])
    text = capsys.readouterr().out
    assert out.read_text() == text
    rows = re.findall(r"^\| (\w.*?) \| [\d.]+ \| ([\d.]+) \(", text, re.MULTILINE)
    assert [name for name, _ in rows] == list(time_to_target.QUICK.conditions)
    assert rows[0] == ("no echoing", "1.00")


def test_a_run_that_misses_the_target_is_an_error(monkeypatch):
    monkeypatch.setattr(time_to_target.train, "train", lambda *_: {"status": "exhausted"})
    with pytest.raises(ValueError, match=r"seed 3 .* ended as 'exhausted'"):
        time_to_target.trained(time_to_target.QUICK, {}, 3)
