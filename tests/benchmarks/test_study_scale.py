"""Shards that ran in directories of their own make one study when these are copied together."""

import shutil
from unittest import mock

import pytest

import train
from analysis import load
from benchmarks import study_scale
from runs import records


@pytest.mark.slow
def test_shards_in_separate_directories_merge_into_one_study(tmp_path, monkeypatch):
    monkeypatch.setattr(study_scale, "FACTORS", (2,))
    size, writer = study_scale.Size(16, 5), study_scale.Writer(5)
    with mock.patch.object(train, "train", writer):
        for index in range(2):
            study_scale._run(size, tmp_path / str(index), (index, 2))
            shutil.copytree(tmp_path / str(index), tmp_path / "merged", dirs_exist_ok=True)
    merged = tmp_path / "merged"
    study_scale.resume(merged, size)  # fails if anything is left to train
    trials = load.read(merged).trials
    assert writer.trials == len(trials) == len(list(records.trials_on_disk(merged)))
    assert trials["counted"].all()
    curves = load.curves(trials, "accuracy")
    assert set(curves.groupby(["condition", "search", "trial"]).size()) == {5}
