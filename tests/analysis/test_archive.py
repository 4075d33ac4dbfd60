"""Published records: a study reads the same from Parquet files, and changed ones are refused."""

import contextlib
import shutil

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from analysis import archive, figures, load
from runs import cli, records
from tests.helpers.runs import ROOT
from tests.helpers.written_studies import (
    BASELINE,
    BEFORE,
    SMALL,
    TARGET,
    change,
    run_analysis,
    write_study,
)

RESULTS = ROOT / "results"


def same_trials(published, study):
    here, there = (trials.drop(columns=["path", "commit"]) for trials in (study, published))
    pd.testing.assert_frame_equal(there, here, check_dtype=False)


def test_packed_studies_read_the_same_and_keep_one_another(tmp_path):
    one = write_study(tmp_path / "one", [BASELINE, BEFORE], SMALL)
    other = write_study(tmp_path / "other", [BASELINE], {("baseline", 0, 0): [0.5, 0.95]})
    file = tmp_path / "new" / archive.TRIALS
    for _ in range(2):  # the second time they replace themselves
        assert run_analysis(one, f"--pack={tmp_path / 'new'}", "--study=grid/one") == 0
        assert run_analysis(other, f"--pack={tmp_path / 'new'}", "--study=other") == 0
    assert archive.studies(file) == ["grid/one", "other"]
    for name, directory in (("grid/one", one), ("other", other)):
        published, study = load.read(file, study=name), load.read(directory)
        same_trials(published.trials, study.trials)
        assert published.study.conditions == study.study.conditions
        curves, own = (load.curves(x.trials, "accuracy") for x in (published, study))
        pd.testing.assert_frame_equal(
            curves.drop(columns="train_seconds"), own.drop(columns="train_seconds")
        )
        judged, own = load.read(file, 0.85, name).trials, load.read(directory, 0.85).trials
        seconds = ["seconds_to_target", "seconds_before_target"]
        same_trials(judged.drop(columns=seconds), own.drop(columns=seconds))
    drawn = figures.of_study(load.read(file, study="other"))
    assert not [name for name in drawn if "seconds" in name]  # the curves have none


def test_a_searched_batch_size_is_published(tmp_path):
    axis = {"field": "batch_size", "scale": "choice", "values": [20, 40]}
    values = {("baseline", 0, 0): [0.5, 0.95]}
    root = write_study(tmp_path / "s", [BASELINE], values, search_space=[axis])
    config, hparams = (root / "baseline/0/0" / name for name in (records.CONFIG, records.HPARAMS))
    change(config, config=records.read_json(config)["config"] | {"batch_size": 20})
    change(hparams, hparams={"batch_size": 20})
    assert run_analysis(root, f"--pack={tmp_path}") == 0
    for place in (root, tmp_path / archive.TRIALS):
        assert load.read(place).trials["batch_size"].tolist() == [20]


def test_trials_without_an_evaluation_are_not_published(tmp_path, capsys):
    root = write_study(tmp_path / "s", [BASELINE], {("baseline", 0, 0): ([], "diverged")})
    assert run_analysis(root, f"--pack={tmp_path / 'out'}") == 2
    assert str(root) in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("number", [3, 59, 60, 61, 400])
def test_thinned_curves_keep_what_scores_depend_on(tmp_path, number):
    values = 0.95 * np.sin(np.linspace(0.01, 3, number))  # passes the target, is best, and falls
    study = write_study(tmp_path / "s", [BASELINE], {("baseline", 0, 0): (values, "exhausted")})
    assert run_analysis(study, f"--pack={tmp_path}") == 0
    kept = load.curves(load.read(tmp_path / archive.TRIALS).trials, "accuracy")
    whole = load.curves(load.read(study).trials, "accuracy")
    assert len(kept) <= archive.POINTS + 3
    assert set(kept["step"]) <= set(whole["step"])
    assert kept["value"].max() == whole["value"].max()
    assert list(kept["step"].iloc[[0, -1]]) == list(whole["step"].iloc[[0, -1]])
    hits = [rows.index[rows["value"] >= TARGET["value"]][:1] for rows in (kept, whole)]
    assert len(hits[0]) == len(hits[1])
    for hit, rows in zip(hits, (kept, whole), strict=True):
        for place in hit:
            around = rows["step"].iloc[place - 1 : place + 1].tolist()
            assert np.diff(around) == [10]


@pytest.mark.parametrize(
    ("plan", "kept"),
    [({"score": "best_value", "search_space": []}, 400), ({"score": "best_value"}, archive.POINTS)],
)
def test_curves_are_whole_where_they_are_what_a_study_is_for(tmp_path, plan, kept):
    values = {("baseline", 0, 0): list(np.linspace(0.1, 0.9, 400))}
    study = write_study(tmp_path / "s", [BASELINE], values, **plan)
    assert run_analysis(study, f"--pack={tmp_path}") == 0
    trials = load.read(tmp_path / archive.TRIALS).trials
    assert len(load.curves(trials, "accuracy")) == pytest.approx(kept, abs=3)


def test_files_of_different_times_and_names_of_other_studies_are_refused(tmp_path, capsys):
    values = {("baseline", 0, 0): [0.5, 0.95]}
    one, other = (
        write_study(tmp_path / name, [BASELINE], values, resolved_config={"batch_size": size})
        for name, size in (("one", 10), ("other", 20))
    )
    pack = f"--pack={tmp_path}"
    assert run_analysis(one, pack, "--study=s") == 0
    trials, curves = (tmp_path / name for name in (archive.TRIALS, archive.CURVES))
    before = trials.read_bytes(), curves.read_bytes()
    assert run_analysis(other, pack, "--study=s") == 2
    assert "'s'" in capsys.readouterr().err
    assert (trials.read_bytes(), curves.read_bytes()) == before
    shutil.rmtree(one)  # the same study with another result
    write_study(one, [BASELINE], {("baseline", 0, 0): [0.5, 0.96]})
    assert run_analysis(one, pack, "--study=s") == 0
    curves.write_bytes(before[1])
    for left in (True, False):
        if not left:
            curves.unlink()
        assert run_analysis(trials, f"--out={tmp_path / 'out'}") == 2
        assert archive.CURVES in capsys.readouterr().err


def planted(file, column, change):
    """The file with one number changed, its metadata kept."""
    table = pq.read_table(file)
    values = table[column].to_pylist()
    row = next(i for i, value in enumerate(values) if value)
    values[row] = change(values[row])
    index = table.column_names.index(column)
    changed = pa.array(values, table.schema.field(column).type)
    pq.write_table(table.set_column(index, table.schema.field(column), changed), file)


@pytest.mark.parametrize(
    ("name", "column", "change"),
    [
        (archive.TRIALS, "fresh_examples_to_target", lambda value: value - 1),
        (archive.TRIALS, "best_value", lambda value: value * (1 + 1e-12)),
        (archive.TRIALS, "status", lambda value: "reached_"),
        (archive.CURVES, "value", lambda value: value + 1e-9),
    ],
)
def test_a_planted_number_is_refused(tmp_path, capsys, name, column, change):
    study = write_study(tmp_path / "s", [BASELINE, BEFORE], SMALL)
    assert run_analysis(study, f"--pack={tmp_path}") == 0
    planted(tmp_path / name, column, change)
    file = tmp_path / archive.TRIALS
    assert run_analysis(file, f"--out={tmp_path / 'out'}") == 2
    assert name in capsys.readouterr().err
    assert not list(tmp_path.glob("out/*"))


def test_damaged_files_are_refused(tmp_path):
    rng = np.random.default_rng(0)
    whole = write_study(tmp_path / "s", [BASELINE, BEFORE], SMALL)
    assert run_analysis(whole, f"--pack={tmp_path}") == 0
    file = tmp_path / archive.TRIALS
    content, expected = file.read_bytes(), load.read(file).trials
    for _ in range(20):
        damaged, place = bytearray(content), rng.integers(len(content))
        damaged[place] ^= 1 << rng.integers(8)
        file.write_bytes(damaged if rng.integers(2) else content[:place])
        with contextlib.suppress(cli.InputError):
            pd.testing.assert_frame_equal(load.read(file).trials, expected)
