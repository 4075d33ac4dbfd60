"""A row of the leaderboard stands for runs that reached their target and repeat one another."""

import math
import shutil

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from benchmarks import leaderboard
from runs import records
from runs.cli import InputError
from tests.helpers.runs import ROOT

CONFIG = {
    "echo": {"insertion": "none", "policy": "fixed", "factor": 1.0},
    "upstream": {"examples_per_second": 100.0},
    "batch_size": 50,
    "target": {"metric": "accuracy", "value": 0.9, "mode": "above"},
}
ECHO = {"insertion": "before_augmentation", "policy": "fixed", "factor": 2.0}


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Writes a run of ten steps, which waits for 80% of the time."""
    monkeypatch.setattr(leaderboard, "RESULTS", tmp_path)
    monkeypatch.setattr(leaderboard, "SECONDS", tmp_path / "seconds.csv")
    shutil.copy(ROOT / "results/LEADERBOARD.md", tmp_path)

    def write(seed, seconds=5.0, status="reached", commit="abc", cpu="a processor", **fields):
        workdir = tmp_path / f"{seed}_{len(list(tmp_path.iterdir()))}"
        workdir.mkdir()
        config = CONFIG | {"seed": {"data": seed, "model": seed}} | fields
        hardware = {"cpu": cpu, "device_kind": "cpu"}
        record = {"config": config, "commit": commit, "dataset": {"name": "digits"}}
        records.write_json(workdir / records.CONFIG, record | {"hardware": hardware})
        reached = {"seconds_to_target": seconds, "fresh_examples_to_target": 500}
        reached |= {"steps_to_target": 10, "step": 10, "train_seconds": seconds}
        result = {"status": status, "input_wait_fraction": 0.8} | reached
        records.write_json(workdir / records.RESULT, result)
        return workdir

    return write


def test_a_command_appends_a_row_and_another_compares_with_it(run, tmp_path):
    seconds = [5.0, 5.5, 4.5, 5.2, 4.8]
    leaderboard.main([str(run(seed, s)) for seed, s in enumerate(seconds)])
    leaderboard.main([str(run(seed, 2.0 + seed / 100, echo=ECHO)) for seed in range(5)])
    none, echo = leaderboard.rows()[-2:]
    half = stats.t.ppf(0.975, 4) * pd.Series(seconds).sem()
    assert none[:5] == [
        *("digits to 0.9, R = 5", "none", f"5.00 [{5 - half:.2f}, {5 + half:.2f}]", "1.00", "1")
    ]
    assert echo[1] == "e = 2"
    assert echo[3:] == ["2.48*", "2", "5/5", "abc", "a processor, cpu"]  # faster than it can be
    assert "| 2.48* |" in (tmp_path / "LEADERBOARD.md").read_text(encoding="utf-8")
    table = pd.read_csv(tmp_path / "seconds.csv")
    assert len(table) == 10
    assert math.isclose(table["R"][0], 50 / 100 / (5.0 * 0.2 / 10))
    leaderboard.main([str(run(seed, s)) for seed, s in enumerate(seconds)])  # the same runs again
    assert len(pd.read_csv(tmp_path / "seconds.csv")) == 10


@pytest.mark.parametrize(
    "other", [{"cpu": "a faster one"}, {"upstream": {"examples_per_second": 200.0}}]
)
def test_runs_on_another_machine_or_input_are_other_rows_with_a_baseline_of_their_own(run, other):
    for fields, seconds in (({}, 5.0), (other, 2.5), (other | {"echo": ECHO}, 2.0)):
        runs = [str(run(seed, seconds, commit="123456789012", **fields)) for seed in range(5)]
        for _ in range(2):  # again: a commit of digits is a text, and nothing is counted twice
            leaderboard.main(runs)
    assert [own[3] for own in leaderboard.rows()[-3:]] == ["1.00", "1.00", "1.25"]
    assert {own[5] for own in leaderboard.rows()[-3:]} == {"5/5"}


@pytest.mark.parametrize(
    ("fields", "method"),
    [
        ({"copies": "stratified"}, "e = 2, stratified"),
        ({"policy": "auto"}, "auto"),
        ({"insertion": "after_batching"}, "batch echoing, e = 2"),
        ({"insertion": "none"}, "none"),
    ],
)
def test_a_method_is_named_by_what_it_does(run, fields, method):
    assert leaderboard.entry(run(1, echo=ECHO | fields))["method"] == method


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"status": "exhausted"}, "exhausted"),
        ({"upstream": {"examples_per_second": 0.0}}, "examples_per_second"),
        ({"commit": "def"}, "commit"),
        ({"commit": "abc+changes"}, "of a commit"),
        ({"echo": ECHO}, "settings"),
        ({"seed": 1}, "seeds"),
    ],
)
def test_runs_that_prove_nothing_are_refused(run, tmp_path, changes, named):
    runs = [run(seed) for seed in range(1, 5)] + [run(**{"seed": 5} | changes)]
    with pytest.raises(InputError, match=named):
        leaderboard.main(list(map(str, runs)))
    with pytest.raises(InputError, match="5"):
        leaderboard.checked(runs[:4])
    with pytest.raises(InputError):
        leaderboard.checked([tmp_path / "nothing"])
    assert not (tmp_path / "seconds.csv").exists()


def test_published_speedups_follow_from_their_runs_with_pandas_alone():
    table = {row[0]: row[2] for row in leaderboard.tuned_rows()[1]}
    runs = pd.read_csv(leaderboard.SPEEDUP)
    compared = 0
    for problem, own in runs.groupby("problem"):
        seconds = own.pivot(
            index=["search", "seed"], columns="condition", values="seconds_to_target"
        )
        logs = np.log(seconds["no echoing"] / seconds.T).T.drop(columns="no echoing")
        for condition in logs.columns[logs.notna().all()]:
            times = np.exp(logs[condition].groupby("search").mean())
            text = f"{times.median():.2f} [{times.min():.2f}, {times.max():.2f}]"
            assert table[f"{problem}, {condition}"].replace("*", "") == text
            compared += 1
    assert compared >= 3
