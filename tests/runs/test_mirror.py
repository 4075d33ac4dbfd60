"""--mirror: a copy from which another machine can resume, in a place of its own."""

import os
import shutil

import fsspec
import pytest
from fsspec.implementations.local import LocalFileSystem

import sweep
import train
from runs import cli, records, tracking
from runs.mirror import Mirror, check
from tests.helpers import buckets
from tests.helpers.runs import mini, on_each_step, records_of, stop_at
from tests.helpers.small_studies import QUIET, study

RECORD = records.MIRROR


def content(directory):
    """The files below a directory that a copy must have, by path."""
    return {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.name not in (records.LOCK, f".{records.LOCK}")
    }


def stored(url):
    """The files of a URL, by path below it."""
    files, place = fsspec.core.url_to_fs(url)
    return {p.removeprefix(f"{place}/"): files.cat_file(p) for p in files.find(place)}


def directory(path, **files):
    """A directory with the given texts: name=text; __ in a name is a slash."""
    for name, text in files.items():
        file = path / name.replace("__", "/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return path


def copy_once(source, target):
    """What a mirror says while it copies once."""
    said = []
    tracking.Tools(mirror=str(target), root=source).copy(source, said.append)
    return said


def test_a_copy_has_what_the_run_has_at_each_stop_and_resumes(tmp_path):
    workdir, copy = tmp_path / "run", tmp_path / "copy"
    tools = tracking.Tools(mirror=f"file://{copy}", root=workdir)
    config = mini(checkpoint_every_fresh_examples=160)
    train.train(config, workdir, on_step=stop_at(13), tools=tools)
    assert content(copy) == content(workdir)
    shutil.copytree(copy, tmp_path / "another machine")
    train.train(config, workdir, tools=tools)
    assert content(copy) == content(workdir)
    # the run may resume elsewhere with its mirror, which then has later records
    tools = tracking.Tools(mirror=str(copy), root=tmp_path / "another machine")
    assert train.train(config, tools.root, tools=tools)["status"] == "exhausted"
    assert records_of(copy) == records_of(workdir)


@pytest.mark.parametrize("name", ["a[1]", "b*"])
@pytest.mark.parametrize("scheme", ["file", "memory"])
def test_old_checkpoints_are_removed_by_their_exact_names(scheme, name, tmp_path):
    """And nothing else: neither what is beside them, nor what the run has not replaced."""
    url = f"{scheme}://{tmp_path}/{name}"
    beside = url.replace("[1]", "1").replace("*", "eside")
    other = directory(tmp_path / "other", checkpoints__5__a="another's", checkpoints__9__a="9")
    assert not copy_once(other, beside)
    run = directory(tmp_path / "run", config="{}", checkpoints__5__a="5")
    mirror = Mirror(run, url, run, print)
    mirror.saved()
    shutil.rmtree(run / "checkpoints" / "5")
    directory(run, checkpoints__9__a="9", metrics="1\n2\n", lock="", **{".config.tmp": "half"})
    directory(run, **{"checkpoints__.saving_12__a": "half"})
    (run / "linked").symlink_to(directory(tmp_path / "scratch", a="1"))
    os.mkfifo(run / "pipe")  # whoever opens it waits
    files, top = fsspec.core.url_to_fs(url)
    for path in ("notes", "checkpoints/10/a"):
        files.makedirs(os.path.dirname(f"{top}/{path}"), exist_ok=True)
        files.pipe_file(f"{top}/{path}", b"mine")
    mirror.close()
    assert {*stored(url)} == {
        *("config", "checkpoints/9/a", "metrics", "notes", "checkpoints/10/a", RECORD, "linked/a")
    }
    assert stored(beside) == content(other)
    assert not (tmp_path / name / "checkpoints" / "5").exists()


@pytest.mark.parametrize("name", ["result.json", "checkpoints/5/value/metadata"])
def test_other_content_of_the_same_size_replaces_its_copy_whatever_the_clocks(name, tmp_path):
    """Also that of a checkpoint that another machine, which is lost, has copied."""
    run, copy = tmp_path / "run", tmp_path / "copy"
    for hours in (0, 1, 9):
        directory(run, **{name.replace("/", "__"): f"{hours}\n"})
        written = (run / name).stat().st_mtime - 3600 * hours
        os.utime(run / name, (written, written))
        assert not copy_once(run, copy)
        assert content(copy) == content(run)


def test_arrays_that_an_earlier_process_has_copied_are_not_copied_again(tmp_path, monkeypatch):
    run, copy, put = tmp_path / "run", tmp_path / "copy", LocalFileSystem.put_file
    copied = []

    def noted(self, source, target):
        copied.append(os.path.basename(target))
        put(self, source, target)

    monkeypatch.setattr(LocalFileSystem, "put_file", noted)
    directory(run, checkpoints__5__arrays__large="x" * (2**20 + 1), checkpoints__5__small="x")
    for number, names in enumerate(({"large", "small", "parameters"}, {"small", "parameters"})):
        directory(run, parameters=f"{number}" * (2**20 + 1))  # may change without its size
        assert not copy_once(run, copy)
        assert {*copied} - {RECORD} == names
        copied.clear()
    (copy / "checkpoints/5/arrays/large").write_text("cut")  # as an interrupted copy leaves it
    assert not copy_once(run, copy)
    assert content(copy) == content(run)


def _linked(tmp):
    (tmp / "m").mkdir()
    (tmp / "m" / "checkpoints").symlink_to(directory(tmp / "mine", a="1"))


TAKEN = {
    "another run's": lambda tmp: copy_once(directory(tmp / "other", config="{}"), tmp / "m"),
    "not a mirror": lambda tmp: directory(tmp / "m", metrics="mine", checkpoints__1__a="mine"),
    "a file": lambda tmp: (tmp / "m").write_text("mine"),
    "below a file": lambda tmp: [(tmp / "f").write_text("1"), (tmp / "m").symlink_to("f/x")],
    "the run's, through a link": lambda tmp: (tmp / "m").symlink_to(tmp / "run"),
    "around the run, through a link": lambda tmp: (tmp / "m").symlink_to(tmp),
    "linked checkpoints": _linked,
}


@pytest.mark.parametrize("place", TAKEN)
@pytest.mark.parametrize("main", [train.main, sweep.main])
def test_a_place_that_is_not_the_mirror_of_this_run_is_refused_before_training(
    place, main, tmp_path, capsys
):
    TAKEN[place](tmp_path)
    before = content(tmp_path)
    where = ["--workdir"] if main is train.main else ["--study=demo", "--outdir"]
    words = ["--config=configs/cifar10.py:mini", *where[:-1], f"{where[-1]}={tmp_path / 'run'}"]
    assert cli.guarded(main, [*words, f"--mirror={tmp_path / 'm'}"]) == cli.WRONG_INPUT
    assert capsys.readouterr().err.count("\n") == 1
    assert content(tmp_path) == before
    assert not (tmp_path / "run").exists()


def test_a_mirror_that_another_run_has_taken_since_is_left_alone(tmp_path):
    runs = [directory(tmp_path / name, **{"result.json": name}) for name in ("a", "b")]
    for run in runs:
        check(f"memory://{tmp_path}", run)  # nothing is there yet
    assert not copy_once(runs[0], f"memory://{tmp_path}")
    assert str(runs[1]) in copy_once(runs[1], f"memory://{tmp_path}")[0]
    assert stored(f"memory://{tmp_path}") == content(runs[0])


def test_a_failed_copy_is_a_warning_and_is_tried_again(tmp_path):
    run, place = directory(tmp_path / "run", config="{}"), tmp_path / "file"
    place.touch()
    said = []
    mirror = Mirror(run, str(place / "copy"), run, said.append)
    mirror.saved()
    mirror.close()
    assert len(said) == 2
    assert str(run) in said[1]  # which is complete
    place.unlink()
    mirror.close()
    assert content(place / "copy") == content(run)


def test_the_mirror_of_a_study_that_is_running_can_be_resumed(tmp_path):
    outdir, copy, lost = (tmp_path / name for name in ("study", "copy", "lost"))
    plan, finished = study(conditions=("baseline",)), "baseline/0/0/result.json"

    def lose_the_machine(step):
        if step == 1 and (outdir / finished).exists():  # in the second of two trials
            shutil.copytree(copy, lost)

    tools = tracking.Tools(mirror=str(copy), root=outdir)
    with on_each_step(lose_the_machine):
        sweep.run(plan, outdir, QUIET, tools=tools)
    assert content(copy) == content(outdir)
    before = content(lost)[finished]
    assert sweep.run(plan, lost, QUIET) == "finished"
    assert len(list(lost.rglob(records.RESULT))) == 2
    assert content(lost)[finished] == before


@pytest.mark.extras
@pytest.mark.parametrize("scheme", ["s3", "gs"])
def test_a_bucket_gets_the_run_without_its_old_checkpoints(scheme, tmp_path):
    with buckets.served(scheme):
        files, workdir = fsspec.filesystem(scheme), tmp_path / "run"
        if left := files.find("bucket"):  # servers in one process share their buckets
            files.rm(left)
        tools = tracking.Tools(mirror=f"{scheme}://bucket/runs/1[a]", root=workdir)
        train.train(mini(checkpoint_every_fresh_examples=160), workdir, tools=tools)
        files.invalidate_cache()
        place = "bucket/runs/1[a]/"
        copy = {p.removeprefix(place): files.cat_file(p) for p in files.find(place)}
        assert copy == content(workdir)
        with pytest.raises(cli.InputError, match="nowhere"):
            check(f"{scheme}://nowhere/runs/1", workdir)
        assert not files.exists("nowhere")
