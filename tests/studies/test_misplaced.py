"""A run's directory in which something else has the name of a run's file or directory."""

import os

import pytest

import sweep
import train
from runs import cli, records
from studies.directory import open_study
from tests.helpers.runs import mini
from tests.helpers.small_studies import RecordedProgress, study

WRONG = {
    **dict.fromkeys((records.LOCK, records.METRICS, records.DECISIONS), "a file"),
    **dict.fromkeys((records.CHECKPOINTS, records.DAMAGED), "a directory"),
}


def misplace(workdir, name):
    workdir.mkdir(parents=True)
    if name == records.METRICS:
        os.mkfifo(workdir / name)  # whoever opens it waits
    elif WRONG[name] == "a file":
        (workdir / name).mkdir()
    else:
        (workdir / name).write_text("mine")


@pytest.mark.parametrize("name", WRONG)
def test_a_run_is_refused_with_one_sentence(name, tmp_path):
    misplace(tmp_path / "run", name)
    with pytest.raises(cli.InputError, match=rf"{name} is not {WRONG[name]}; move it away$"):
        train.train(mini(), tmp_path / "run")
    assert [path.name for path in (tmp_path / "run").iterdir()] == [name]


def test_a_study_moves_it_away_and_says_so(tmp_path):
    places = {tmp_path / "baseline" / "0" / str(n): name for n, name in enumerate(WRONG)}
    searched, said = study(trials=len(WRONG), conditions=("baseline",)), RecordedProgress()
    open_study(searched, tmp_path)
    for workdir, name in places.items():
        misplace(workdir, name)
    assert sweep.run(searched, tmp_path, said) == "finished"
    for workdir, name in places.items():
        (line,) = [line for line in said.lines if f"{workdir / name} was not {WRONG[name]}" in line]
        (moved,) = workdir.parent.glob(f"damaged-{workdir.name}-{name}.*")
        assert line.endswith(f"is now {moved}")
        assert records.read_json(workdir / records.RESULT)["status"] == "exhausted"
