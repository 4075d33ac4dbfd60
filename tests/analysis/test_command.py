"""The command `python -m analysis`: its output, its files, and its errors."""

import errno
import html.parser
import io
import json
import math
import os
import pathlib
import re
import shutil
import tarfile
import tracemalloc

import numpy as np
import pandas.testing
import pytest
from markdown_it import MarkdownIt

from analysis import __main__ as analysis_main
from analysis import archive, load, report
from runs import cli, records
from tests.helpers import forked
from tests.helpers.runs import HANGS, run_command
from tests.helpers.written_studies import (
    BASELINE,
    BEFORE,
    SMALL,
    TARGET,
    config,
    write_study,
    write_trial,
)

pytestmark = pytest.mark.usefixtures("coarse_figures")


def run(arguments):
    """The exit code of the command, in this process."""
    return cli.guarded(analysis_main.main, [str(argument) for argument in arguments])


def run_process(*arguments, **environment):
    words = map(str, arguments)
    return run_command("analysis", *words, env=os.environ | {"COLUMNS": "100"} | environment)


@pytest.fixture
def small(tmp_path):
    return write_study(tmp_path / "small", [BASELINE, BEFORE], SMALL)


@pytest.mark.slow
def test_report_is_printed_and_written(small):
    done = run_process(small)
    assert (done.returncode, done.stderr) == (0, "")
    assert "small: fresh examples to reach 90% validation accuracy" in done.stdout
    assert "(600" in done.stdout
    assert ">1,000)" in done.stdout
    assert ">1.00]" in done.stdout
    assert "1/2" in done.stdout
    assert "matched seeds: each trial against the baseline's" in done.stdout
    assert "undecided" in done.stdout
    assert "- Some searches never reached" in done.stdout
    lines = [line for line in done.stdout.splitlines() if str(small) not in line]
    assert max(map(len, lines)) <= 100
    assert (small / "report" / "report.md").exists()
    assert not [path for path in (small / "report").iterdir() if path.name.startswith(".")]


@pytest.mark.long
def test_narrow_terminal_shows_every_column(small, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    assert run([str(small)]) == 0
    printed = capsys.readouterr().out
    for word in ("buffer", "reached", "baseline", "steps", "seconds"):
        assert word in printed


@pytest.mark.slow
def test_target_flag_judges_at_another_target(small, tmp_path, capsys):
    assert run([str(small), "--target=0.85", f"--out={tmp_path / 'easy'}"]) == 0
    assert "85% validation accuracy" in capsys.readouterr().out
    assert (tmp_path / "easy" / "scores.csv").exists()
    assert not (small / "report").exists()


def test_damaged_trial_is_named_in_one_sentence(small, capsys):
    (small / "baseline" / "1" / "0" / "result.json").write_text("{")
    assert run([str(small)]) == 0
    warning = capsys.readouterr().err
    assert warning.count("\n") == 1
    assert "baseline/1/0" in warning


@pytest.mark.slow
def test_single_runs_are_compared(tmp_path, capsys):
    echo = {"insertion": "before_augmentation", "factor": 2.0, "shuffle_buffer": 0}
    write_trial(tmp_path / "plain", [0.1, 0.1, 0.9])
    write_trial(tmp_path / "echoed", [0.1, 0.9], settings=config(echo=echo))
    arguments = [str(tmp_path / "plain"), str(tmp_path / "echoed"), f"--out={tmp_path / 'both'}"]
    assert run(arguments) == 0
    assert "0.67" in capsys.readouterr().out
    assert "echoed" in (tmp_path / "both" / "trials.csv").read_text()


def test_the_directories_of_the_help_are_not_those_of_the_checkout():
    lines = re.findall(r"^  python -m analysis (.*?)  ", analysis_main._EXAMPLES, re.MULTILINE)
    assert len(lines) >= 5
    for line in lines:
        arguments = analysis_main.parse(line.split())
        for name in (*arguments.directories, *filter(None, [arguments.out])):
            top = pathlib.Path(name).parts[0]
            assert top == "out" or name.endswith(".tar.xz"), name


def test_help_explains_the_command():
    done = run_process("--help")
    assert done.returncode == 0
    for word in ("study.json", "--target=0.95", "report.md", "exit codes", "counted trials"):
        assert word in done.stdout


@pytest.mark.long
def test_closed_pipe_is_not_an_error(small):
    process = forked.start(["-m", "analysis", str(small)], dict(os.environ))
    process.stdout.close()
    assert process.communicate(timeout=HANGS)[1] == ""
    assert (small / "report" / "report.md").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "DIR"),
        (("{tmp}/nowhere",), "no such directory"),
        (("{tmp}",), "no run records"),
        (("{tmp}/study", "--target=high"), "--target is 'high'; allowed: a number"),
        (("{tmp}/study", "--target=nan"), "--target is 'nan'"),
        (("{tmp}/study", "--target"), "expected one argument"),
        (("{tmp}/study", "--trials=3"), "unrecognized arguments: --trials=3"),
        (("{tmp}/study", "{tmp}/other"), "give one study alone"),
        (("{tmp}/study", "--out={tmp}/study/study.json"), "cannot write to"),
        (("{tmp}/study", "--out=s3://bucket/report"), "s3://bucket/report is a URL; give a dir"),
        (("{tmp}/broken",), "is not a readable study record"),
        (("{tmp}/study", "--target=90"), "--target is 90, which accuracy, a share, cannot reach"),
        (("{tmp}/study", "--target=90", "--watch"), "cannot reach; allowed: 0 to 1, such as 0.9"),
    ],
)
def test_wrong_input_is_one_sentence(tmp_path, capsys, arguments, said):
    if arguments and "study" in arguments[0]:
        write_study(tmp_path / "study", [BASELINE], {("baseline", 0, 0): [0.95]})
        (tmp_path / "other").mkdir()
    if arguments and "broken" in arguments[0]:
        (tmp_path / "broken").mkdir()
        (tmp_path / "broken" / "study.json").write_text("{")
    assert run([word.format(tmp=tmp_path) for word in arguments]) == 2
    printed = capsys.readouterr()
    assert said in printed.err
    assert printed.err.count("\n") == 1
    assert printed.out == ""


def test_exit_code_of_the_process():
    done = run_process("/nowhere/at/all")
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_packed_study_gives_the_same_report(small, tmp_path, capsys):
    packed = tmp_path / "small.tar.xz"
    (small / "baseline" / "0" / "0" / "tensorboard").mkdir()
    assert run([str(small), f"--pack={packed}"]) == 0
    assert "Packed the records of 11 trials with a result" in capsys.readouterr().out
    assert run([str(small), f"--pack={tmp_path / 'again.tar.xz'}"]) == 0
    assert packed.read_bytes() == (tmp_path / "again.tar.xz").read_bytes()
    with tarfile.open(packed) as tar:
        assert {pathlib.Path(name).name for name in tar.getnames()} <= RECORD_FILES
    there, here = (load.load(path).drop(columns="path") for path in (packed, small))
    pandas.testing.assert_frame_equal(there, here)
    assert run([str(packed), f"--out={tmp_path / 'out'}"]) == 0
    assert ",baseline/0/0\n" in (tmp_path / "out" / "trials.csv").read_text()


def test_a_packed_study_replaces_an_earlier_one_once_it_is_on_disk(small, tmp_path, monkeypatch):
    out = tmp_path / "out"
    out.mkdir()
    packed = out / "small.tar.xz"
    packed.write_bytes(b"earlier")
    stale = out / (".small.tar.xz." + "0" * 16 + ".tmp")  # of a process that was killed
    stale.write_bytes(b"half")
    os.utime(stale, (0, 0))
    events, force, replace = [], os.fsync, os.replace

    def fsync(file):
        events.append(("on disk", os.fstat(file).st_ino))
        force(file)

    def renamed(source, target):
        assert packed.read_bytes() == b"earlier"
        assert all(name.startswith(".") for name in os.listdir(out) if name != packed.name)
        events.append(("in place", os.stat(source).st_ino))
        replace(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", renamed)
    archive.pack(small, packed)
    assert events == [("on disk", packed.stat().st_ino), ("in place", packed.stat().st_ino)]
    assert os.listdir(out) == [packed.name]


def test_a_packed_study_is_unpacked_once_and_again_when_it_is_replaced(
    small, tmp_path, monkeypatch
):
    packed = tmp_path / "small.tar.xz"
    archive.pack(small, packed)
    before = archive.unpack(packed)
    monkeypatch.chdir(tmp_path)
    assert archive.unpack(pathlib.Path(packed.name)) == before
    result = small / "baseline" / "0" / "1" / records.RESULT
    records.write_json(result, records.read_json(result) | {"train_seconds": 7.0})
    archive.pack(small, packed)
    assert 7.0 in set(load.load(packed)["train_seconds"])
    assert before.is_dir()  # an earlier table still refers to it


def test_messages_name_packed_studies_by_their_files(tmp_path, capsys):
    for name in ("a", "b"):  # no trial of either has started
        archive.pack(write_study(tmp_path / name, [BASELINE], {}), tmp_path / f"{name}.tar.xz")
    one, other = (str(tmp_path / f"{name}.tar.xz") for name in ("a", "b"))
    assert run([one, other, f"--out={tmp_path / 'out'}"]) == 2
    assert f"{one} is a study; give one study alone" in capsys.readouterr().err
    assert run([one, f"--out={tmp_path / 'out'}"]) == 2
    assert f"no run records in {one};" in capsys.readouterr().err


@pytest.mark.parametrize("directory", [".", "..", "baseline/.."])
def test_the_packed_study_has_the_name_of_its_directory(directory, small, tmp_path, monkeypatch):
    archive.pack(small, tmp_path / "small.tar.xz")
    monkeypatch.chdir(small / "baseline" if directory == ".." else small)
    archive.pack(directory, tmp_path / "again.tar.xz")
    assert (tmp_path / "again.tar.xz").read_bytes() == (tmp_path / "small.tar.xz").read_bytes()


def test_packing_keeps_every_float32_and_damage(small, tmp_path):
    study = tmp_path / "study"
    shutil.copytree(small, study)
    metrics = study / "baseline/0/0/metrics.jsonl"
    losses = np.random.default_rng(0).lognormal(0, 5, 1000).astype(np.float32)
    lines = [{"step": k, "wall_seconds": 1.2345678, "loss": float(x)} for k, x in enumerate(losses)]
    metrics.write_text("".join(f"{json.dumps(line)}\n" for line in lines) + '{"step": 10')
    archive.pack(study, tmp_path / "study.tar.xz")
    packed = archive.unpack(tmp_path / "study.tar.xz") / "baseline/0/0/metrics.jsonl"
    *whole, damaged = packed.read_text().split("\n")
    assert damaged == '{"step": 10'
    records = [json.loads(line) for line in whole]
    np.testing.assert_array_equal(np.float32([record["loss"] for record in records]), losses)
    assert {record["wall_seconds"] for record in records} == {1.235}
    assert [record["step"] for record in records] == list(range(1000))


@pytest.mark.parametrize(
    ("target", "values"),
    [
        (TARGET, [0.5, 0.8999999999999999, 0.95]),
        ({"metric": "loss", "value": 0.1, "mode": "below"}, [0.5, 0.10000000000000002, 0.05]),
        ({"metric": "loss", "value": 0.30000000000000004, "mode": "above"}, [0.30000000000000004]),
    ],
)
def test_packing_does_not_round_a_value_onto_the_target(target, values, tmp_path):
    """Otherwise the evaluation before the one that scored seems to be at the target, which sets the
    trial aside."""
    trials = {("baseline", 0, 0): values}
    study = write_study(tmp_path / "study", [BASELINE], trials, target=target)
    archive.pack(study, tmp_path / "study.tar.xz")
    packed, there = load.read(tmp_path / "study.tar.xz"), load.read(study)
    assert packed.warning() is None
    columns = [name for name in there.trials if name != "path"]
    pandas.testing.assert_frame_equal(packed.trials[columns], there.trials[columns])
    curve = load.curves(packed.trials, target["metric"])
    goal = records.Target(**target)
    assert [goal.reached(x) for x in curve["value"]] == [goal.reached(x) for x in values]


@pytest.mark.parametrize("number", [3, 250, 251, 252, 253, 400])
def test_thinned_records_keep_scores_and_the_shape_of_curves(tmp_path, number):
    """With an echo factor of 4, four evaluations share a number of fresh examples; a score lies
    between the first evaluation at the target and the last one with fewer fresh examples."""
    values = 0.95 * np.sin(np.linspace(0.01, 3, number))  # passes the target, is best, and falls
    trials = {("baseline", 0, 0): (values, "exhausted")}  # as if it had had another target
    study = write_study(tmp_path / "study", [BASELINE], trials)
    trial = study / "baseline/0/0"
    for path in (trial / "metrics.jsonl", trial / "result.json"):
        path.write_text(
            re.sub(
                r'("\w*fresh_examples\w*": )(\d+)',
                lambda found: f"{found[1]}{-(-int(found[2]) // 400) * 400}",
                path.read_text(),
            )
        )
    thin, whole = tmp_path / "thin.tar.xz", tmp_path / "whole.tar.xz"
    archive.pack(study, whole)
    assert run([study, f"--pack={thin}", "--thin=0.05"]) == 0
    there, here = (load.load(path).drop(columns="path") for path in (thin, study))
    pandas.testing.assert_frame_equal(there, here)
    kept, all_rows = (
        load.curves(load.load(path), TARGET["metric"]).drop(columns="train_seconds")
        for path in (thin, whole)
    )
    assert kept["value"].max() == all_rows["value"].max()
    first, first_of_all = (rows[rows["value"] >= TARGET["value"]] for rows in (kept, all_rows))
    pandas.testing.assert_series_equal(first.iloc[0], first_of_all.iloc[0], check_names=False)

    def rows(directory, split):
        lines = (directory / "baseline/0/0/metrics.jsonl").read_text().splitlines()
        return [row for row in map(json.loads, lines) if row["split"] == split]

    unpacked = archive.unpack(thin)
    for split in ("train", "validation"):
        assert 0 < len(rows(unpacked, split)) <= len(rows(study, split))
    of_training = np.array([row["fresh_examples"] for row in rows(unpacked, "train")])
    assert (np.diff(of_training) >= 0.05 * of_training[:-1]).all()
    fresh = np.array([row["fresh_examples"] for row in rows(unpacked, "validation")])
    assert (np.diff(fresh) <= 0.05 * fresh[:-1] + 400).all()
    assert len(fresh) - 5 <= 1 + math.log(max(fresh) / 400) / math.log1p(0.05)


def test_a_trial_that_resumes_while_it_is_packed_is_unfinished(small, tmp_path, monkeypatch):
    result = small / "baseline" / "1" / "1" / records.RESULT
    open_tar = tarfile.open

    def removing(*arguments, **options):
        result.unlink(missing_ok=True)
        return open_tar(*arguments, **options)

    monkeypatch.setattr(tarfile, "open", removing)
    assert run([str(small), f"--pack={tmp_path / 'small.tar.xz'}"]) == 0
    trials = load.load(tmp_path / "small.tar.xz").set_index(["condition", "search", "trial"])
    assert trials.loc[("baseline", 1, 1), "status"] == load.UNFINISHED


def test_a_record_that_cannot_be_read_is_named(small, tmp_path, monkeypatch, capsys):
    result = small / "baseline" / "1" / "1" / records.RESULT
    read = pathlib.Path.read_bytes

    def failing(path):
        if path == result:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return read(path)

    monkeypatch.setattr(pathlib.Path, "read_bytes", failing)
    assert run([small, f"--pack={tmp_path / 'small.tar.xz'}"]) == 2
    said = capsys.readouterr().err
    assert f"cannot read {result}" in said
    assert "another --pack" not in said
    assert os.listdir(tmp_path) == ["small"]


def test_a_full_disk_does_not_make_a_packed_study_a_damaged_one(
    small, tmp_path, monkeypatch, capsys
):
    packed = tmp_path / "full.tar.xz"
    assert run([str(small), f"--pack={packed}"]) == 0

    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(pathlib.Path, "mkdir", full)
    assert run([str(packed), f"--out={tmp_path / 'out'}"]) == 2
    said = capsys.readouterr().err
    assert "no space is left in" in said
    assert "contains no study" not in said


def test_packing_leaves_damaged_lines_and_thins_around_them(small, tmp_path):
    metrics = small / "baseline/0/1/metrics.jsonl"
    bad = ['{"split": "valid', "[]", '{"split": "validation", "fresh_examples": null}']
    gradients = [
        json.dumps({"split": "gradients", "fresh_examples": fresh})
        for fresh in range(100, 900, 100)
    ]
    metrics.write_text("\n".join([*bad, *gradients, metrics.read_text()]))
    archive.pack(small, tmp_path / "small.tar.xz", thin=0.9)
    packed = archive.unpack(tmp_path / "small.tar.xz") / "baseline/0/1/metrics.jsonl"
    lines = packed.read_text().splitlines()
    damaged, whole = lines[:3], lines[3:]
    assert damaged == bad
    assert sum('"validation"' in line for line in whole) == 5  # at 100, 200, 400, 700, and 800
    kept = [
        line["fresh_examples"] for line in map(json.loads, whole) if line["split"] == "gradients"
    ]
    assert kept == [100, 200, 400, 800]


@pytest.mark.parametrize("thin", [0.0, 0.02])
def test_a_line_that_is_nested_too_deeply_is_packed_as_it_is(thin, small, tmp_path):
    metrics = small / "baseline/0/1/metrics.jsonl"
    metrics.write_text("[" * 100_000 + "\n" + metrics.read_text())
    archive.pack(small, tmp_path / "small.tar.xz", thin=thin)
    loaded = load.read(tmp_path / "small.tar.xz")
    assert "nested too deeply" in loaded.warning()
    assert len(loaded.trials) == len(SMALL) - 1


def test_files_that_are_no_packed_study_are_refused(small, tmp_path, capsys):
    torn, alone = tmp_path / "torn.tar.xz", tmp_path / "small.tar.xz"
    assert run([str(small), f"--pack={alone}"]) == 0
    torn.write_bytes(alone.read_bytes()[:300])
    for arguments, said in (
        ([torn, f"--out={tmp_path / 'out'}"], "contains no study's records"),
        ([alone], "give --out"),
        ([small, "--pack=small.zip"], "ends in .tar.xz"),
        ([small, f"--pack={tmp_path / 'x.tar.xz'}", "--thin=2"], "--thin is '2'; allowed: from 0"),
        ([small, "--thin=0.02"], "there is no --pack"),
        ([small, f"--pack={tmp_path / 'x.tar.xz'}", "--target=0.9"], "neither --out nor --target"),
        ([small, f"--pack={tmp_path / 'x.tar.xz'}", "--watch"], "neither --out nor --pack"),
        ([small / "baseline", f"--pack={tmp_path / 'x.tar.xz'}"], "contains no study.json"),
        ([small, f"--pack={tmp_path / 'none' / 'x.tar.xz'}"], "cannot write"),
        ([small, "--pack="], "ends in .tar.xz"),
        ([small, "--out="], "is empty; give one"),
    ):
        assert run(arguments) == 2
        assert said in capsys.readouterr().err
    (small / "study.json").write_text("{}")
    assert run([small, f"--pack={tmp_path / 'x.tar.xz'}"]) == 2
    assert "is damaged (study.json: 'trials' is missing)" in capsys.readouterr().err
    assert not (tmp_path / "x.tar.xz").exists()


def _packed(path, members):
    """A file of (name, content or TarInfo) members."""
    with tarfile.open(path, "w:xz") as tar:
        for name, content in members:
            if isinstance(content, tarfile.TarInfo):
                tar.addfile(content)
            else:
                entry = tarfile.TarInfo(name)
                entry.size = len(content)
                tar.addfile(entry, io.BytesIO(content))
    return path


def test_members_outside_the_study_and_links_are_skipped(small, tmp_path):
    link = tarfile.TarInfo("small/baseline/0/9/result.json")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    sparse = tarfile.TarInfo("small/baseline/0/8/result.json")
    sparse.type, sparse.size = tarfile.GNUTYPE_SPARSE, 0
    records_of = [
        (str(path.relative_to(tmp_path)), path.read_bytes())
        for path in sorted(small.rglob("*"))
        if path.is_file()
    ]
    evil = [
        (name, b"{}")
        for name in ("../study.json", "/study.json", "small/../study.json", "small/a/0/0/evil.sh")
    ]
    evil += [(f"small/baseline/0/7/{archive.records.CHECKPOINTS}/config.json", b"{}")]
    packed = _packed(tmp_path / "p.tar.xz", [*evil, ("", link), ("", sparse), *records_of])
    unpacked = archive.unpack(packed)
    assert sorted(p.relative_to(unpacked) for p in unpacked.rglob("*") if p.is_file()) == sorted(
        p.relative_to(small) for p in small.rglob("*") if p.is_file()
    )
    assert len(load.read(packed).trials) == len(SMALL)
    assert not any(path.is_symlink() for path in unpacked.rglob("*"))


class _Zeros(io.RawIOBase):
    def read(self, size=-1):
        return bytes(size)


def _bomb(path, name, size):
    """A packed study with one member of `size` zeros."""
    with tarfile.open(path, "w:xz", preset=1) as tar:
        entry = tarfile.TarInfo(name)
        entry.size = size
        tar.addfile(entry, _Zeros())
    return path


@pytest.mark.slow
@pytest.mark.parametrize("name", ["s/study.json", "s/a/0/0/metrics.jsonl", "s/a/0/0/anything"])
def test_decompression_bomb_is_refused_while_it_is_read(name, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(archive, "MAX_BYTES", 16 * 1024**2)
    monkeypatch.setattr(archive.records, "MAX_BYTES", 8 * 1024**2)
    monkeypatch.setattr(archive, "_MIN_LIMIT", 32 * 1024**2)
    bomb = _bomb(tmp_path / "bomb.tar.xz", name, 64 * 1024**2)
    assert bomb.stat().st_size < 64 * 1024
    tracemalloc.start()
    assert run([str(bomb), f"--out={tmp_path / 'out'}"]) == 2
    assert tracemalloc.get_traced_memory()[1] < 32 * 1024**2
    tracemalloc.stop()
    assert "more than" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_too_many_members_and_long_headers_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(archive, "MAX_MEMBERS", 100)
    many = _packed(tmp_path / "many.tar.xz", [(f"s/{n}", b"") for n in range(200)])
    with pytest.raises(cli.InputError, match="more than 100 members"):
        archive.unpack(many)
    entry = tarfile.TarInfo("s/study.json")
    entry.pax_headers = {"comment": "x" * 8 * 1024**2}
    long = _packed(tmp_path / "long.tar.xz", [("", entry)])
    with pytest.raises(cli.InputError, match="header is longer"):
        archive.unpack(long)


RECORD_FILES = {"study.json", "config.json", "hparams.json", "metrics.jsonl", "result.json"}
EVIL = "<img src=http://evil/a> ![x](http://evil/b) [x](http://evil/c) `$\\frac{` a|b *c* \x1b[2J"


@pytest.fixture
def evil(tmp_path):
    """A study in which every text is EVIL."""
    target = TARGET | {"metric": EVIL.replace("\x1b", "")}
    conditions = [dict(each, label=f"{EVIL} {each['name']}") for each in (BASELINE, BEFORE)]
    more = {"study": EVIL, "workload": EVIL, "config": EVIL, "commit": EVIL, "target": target}
    more |= {"dataset": {EVIL: EVIL}, "packages": {EVIL: EVIL}, "hardware": {"device": EVIL}}
    root = write_study(tmp_path / "evil", conditions, SMALL, **more)
    for number, path in enumerate(root.glob("*/*/*/config.json")):
        record = json.loads(path.read_text())
        record |= {"commit": f"{EVIL}{number}", "hardware": {"device_kind": f"{EVIL}{number % 2}"}}
        path.write_text(json.dumps(record))
    (root / "baseline" / "1" / "0" / "result.json").write_text(json.dumps({"status": EVIL}))
    return root


@pytest.mark.slow
def test_text_of_records_is_escaped_and_pages_fetch_nothing(evil, capsys):
    assert run([str(evil)]) == 0
    printed = capsys.readouterr()
    assert "\x1b" not in printed.out + printed.err
    page_html = (evil / "report" / "report.html").read_text()
    markdown = (evil / "report" / "report.md").read_text()
    rendered = MarkdownIt("gfm-like", {"html": True, "linkify": False}).render(markdown)
    for text, scripts in ((page_html, [*report.SCRIPTS, "data"]), (rendered, [])):
        page = _Page(text)
        assert "evil" in page.text
        assert page.tags.count("script") == len(scripts)
        assert not {"a", "link", "iframe", "del"} & set(page.tags)
        assert all(not source.startswith(("http", "//")) for source in page.sources)
        assert "![x](http://evil/b) [x](http://evil/c)" in page.text
        assert "<img src=http://evil/a>" in page.text
        assert "`$\\frac{` a|b *c*" in page.text
    assert "default-src 'none'; img-src data:;" in page_html
    assert "script-src 'sha256-" in page_html
    data = page_html.partition('id="explorer-data">')[2].partition("</script>")[0]
    assert "<" not in data
    assert any(
        "<img src=http://evil/a>" in each["label"] for each in json.loads(data)["conditions"]
    )


class _Page(html.parser.HTMLParser):
    """The text, tags and images of a page."""

    def __init__(self, content):
        super().__init__()
        self.text, self.tags, self.sources = "", [], []
        self.feed(content)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.sources += [value for name, value in attrs if name in ("src", "href")]

    def handle_data(self, data):
        self.text += data
