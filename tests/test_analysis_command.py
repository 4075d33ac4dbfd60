"""`python -m analysis` as a person meets it: what it prints, what it writes, how it refuses."""

import os
import pathlib
import subprocess
import sys
import tarfile

import pandas.testing
import pytest
from test_analysis import BASELINE, BEFORE, SMALL, config, write_study, write_trial

from analysis import __main__ as command
from analysis import archive, load

ROOT = pathlib.Path(__file__).parent.parent


def analysis(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "analysis", *map(str, arguments)],
        cwd=ROOT,
        env=os.environ | {"COLUMNS": "100"} | environment,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.fixture
def small(tmp_path):
    return write_study(tmp_path / "small", [BASELINE, BEFORE], SMALL)


def test_a_study_is_printed_and_written(small):
    done = analysis(small)
    assert (done.returncode, done.stderr) == (0, "")
    assert "small: fresh examples to reach 90% validation accuracy" in done.stdout
    assert "(600" in done.stdout
    assert "to >1,000)" in done.stdout
    assert ">1.00]" in done.stdout
    assert "1/2" in done.stdout
    assert "- Some searches never reached" in done.stdout
    lines = [line for line in done.stdout.splitlines() if str(small) not in line]
    assert max(map(len, lines)) <= 100
    assert (small / "report" / "report.md").exists()
    assert not [path for path in (small / "report").iterdir() if path.name.startswith(".")]


def test_no_column_is_left_out_of_a_narrow_terminal(small, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    assert command.main([str(small)]) == 0
    printed = capsys.readouterr().out
    for word in ("buffer", "reached", "baseline", "steps", "seconds"):
        assert word in printed


def test_the_target_can_be_changed(small, tmp_path, capsys):
    assert command.main([str(small), "--target=0.85", f"--out={tmp_path / 'easy'}"]) == 0
    assert "85% validation accuracy" in capsys.readouterr().out
    assert (tmp_path / "easy" / "scores.csv").exists()
    assert not (small / "report").exists()


def test_a_damaged_trial_is_named_in_one_sentence(small, capsys):
    (small / "baseline" / "1" / "0" / "result.json").write_text("{")
    assert command.main([str(small)]) == 0
    warning = capsys.readouterr().err
    assert warning.count("\n") == 1
    assert "baseline/1/0" in warning


def test_single_runs_are_compared(tmp_path, capsys):
    echo = {"insertion": "before_augmentation", "factor": 2.0, "shuffle_buffer": 0}
    write_trial(tmp_path / "plain", [0.1, 0.1, 0.9])
    write_trial(tmp_path / "echoed", [0.1, 0.9], settings=config(echo=echo))
    arguments = [str(tmp_path / "plain"), str(tmp_path / "echoed"), f"--out={tmp_path / 'both'}"]
    assert command.main(arguments) == 0
    assert "0.67" in capsys.readouterr().out
    assert "echoed" in (tmp_path / "both" / "trials.csv").read_text()


def test_help_teaches_and_exits_0():
    done = analysis("--help")
    assert done.returncode == 0
    for word in ("study.json", "--target=0.95", "report.md", "exit codes", "counted trials"):
        assert word in done.stdout


def test_a_reader_that_leaves_early_is_no_error(small):
    line = f"'{sys.executable}' -m analysis '{small}' | true"
    done = subprocess.run(line, shell=True, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.stderr == ""
    assert (small / "report" / "report.md").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "DIR"),
        (("{tmp}/nowhere",), "no such directory"),
        (("{tmp}",), "no run records"),
        (("{tmp}/study", "--target=high"), "--target is 'high'; it has to be a number"),
        (("{tmp}/study", "--target=nan"), "--target is 'nan'"),
        (("{tmp}/study", "--target"), "expected one argument"),
        (("{tmp}/study", "--trials=3"), "unrecognized arguments: --trials=3"),
        (("{tmp}/study", "{tmp}/other"), "give one study alone"),
        (("{tmp}/study", "--out={tmp}/study/study.json"), "cannot write to"),
        (("{tmp}/broken",), "is not a readable study record"),
    ],
)
def test_wrong_input_is_one_sentence_and_exit_2(tmp_path, capsys, arguments, said):
    if arguments and "study" in arguments[0]:
        write_study(tmp_path / "study", [BASELINE], {("baseline", 0, 0): [0.95]})
        (tmp_path / "other").mkdir()
    if arguments and "broken" in arguments[0]:
        (tmp_path / "broken").mkdir()
        (tmp_path / "broken" / "study.json").write_text("{")
    assert command.main([word.format(tmp=tmp_path) for word in arguments]) == 2
    printed = capsys.readouterr()
    assert said in printed.err
    assert printed.err.count("\n") == 1
    assert printed.out == ""


def test_the_exit_code_reaches_the_shell():
    done = analysis("/nowhere/at/all")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


def test_a_packed_study_gives_the_same_report(small, tmp_path, capsys):
    packed = tmp_path / "small.tar.xz"
    (small / "baseline" / "0" / "0" / "tensorboard").mkdir()
    assert command.main([str(small), f"--pack={packed}"]) == 0
    assert command.main([str(small), f"--pack={tmp_path / 'again.tar.xz'}"]) == 0
    assert packed.read_bytes() == (tmp_path / "again.tar.xz").read_bytes()
    with tarfile.open(packed) as tar:
        assert {pathlib.Path(name).name for name in tar.getnames()} <= set(archive._KEPT)
    there, here = (load.load(path).drop(columns="path") for path in (packed, small))
    pandas.testing.assert_frame_equal(there, here)
    assert command.main([str(packed), f"--out={tmp_path / 'out'}"]) == 0
    assert ",baseline/0/0\n" in (tmp_path / "out" / "trials.csv").read_text()


def test_a_packed_study_that_is_none(small, tmp_path, capsys):
    torn, alone = tmp_path / "torn.tar.xz", tmp_path / "small.tar.xz"
    assert command.main([str(small), f"--pack={alone}"]) == 0
    torn.write_bytes(alone.read_bytes()[:300])
    for arguments, said in (
        ([torn, f"--out={tmp_path / 'out'}"], "holds no study's records"),
        ([alone], "give --out"),
        ([small, "--pack=small.zip"], "ends in .tar.xz"),
        ([small / "baseline", f"--pack={tmp_path / 'x.tar.xz'}"], "holds no study.json"),
        ([small, f"--pack={tmp_path / 'none' / 'x.tar.xz'}"], "cannot write"),
    ):
        assert command.main([str(a) for a in arguments]) == 2
        assert said in capsys.readouterr().err
    assert not (tmp_path / "x.tar.xz").exists()
