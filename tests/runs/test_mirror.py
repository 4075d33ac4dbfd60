"""--mirror: a copy from which another machine can resume."""

import os
import shutil

import fsspec
import pytest

import sweep
import train
from runs import records, tracking
from runs.mirror import Mirror
from studies.plan import open_study
from tests.helpers import buckets
from tests.helpers.runs import mini, on_each_step, records_of, stop_at
from tests.helpers.small_studies import QUIET, study


def content(directory):
    """The files below a directory that a copy must have, by path."""
    return {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.name not in (records.LOCK, f".{records.LOCK}")
    }


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
    train.train(config, workdir, tools=tools)
    assert content(copy) == content(workdir)
    (copy / records.RESULT).unlink()  # as a machine that was lost before the end leaves it
    assert train.train(config, copy)["status"] == "exhausted"
    assert records_of(copy) == records_of(workdir)


def test_a_copy_drops_the_checkpoints_that_the_run_replaced_and_nothing_else(tmp_path):
    run, copy = directory(tmp_path / "run", config="{}", checkpoints__5__a="5"), tmp_path / "copy"
    mirror = Mirror(run, str(copy), print)
    mirror.saved()
    assert content(copy) == content(run)
    shutil.rmtree(run / "checkpoints" / "5")
    directory(run, checkpoints__9__a="9", metrics="1\n2\n", lock="", **{".config.tmp": "half"})
    directory(run, **{"checkpoints__12.orbax-checkpoint-tmp-1__a": "half"})
    os.mkfifo(run / "pipe")  # whoever opens it waits
    others = {"notes": "mine", "checkpoints__10__a": "of a machine that was lost"}
    directory(copy, **others)
    mirror.close()
    assert set(content(copy)) == {
        *("config", "checkpoints/9/a", "metrics", "notes", "checkpoints/10/a")
    }


@pytest.mark.parametrize("hours", [-3, 3])
def test_records_of_the_same_size_replace_their_copies_whatever_the_clocks(hours, tmp_path):
    run, copy = directory(tmp_path / "run", **{"result.json": "1\n"}), tmp_path / "copy"
    assert not copy_once(run, copy)
    directory(run, **{"result.json": "2\n"})
    written = (run / "result.json").stat().st_mtime - 3600 * hours
    os.utime(run / "result.json", (written, written))
    assert not copy_once(run, copy)
    assert content(copy) == content(run)


def test_a_study_that_has_grown_is_still_its_own_copy_and_another_is_left_alone(tmp_path):
    outdir, copy, other = (tmp_path / name for name in ("study", "copy", "other"))
    for plan in (study(trials=1), study(trials=2, searches=3)):
        open_study(plan, outdir)
        assert not copy_once(outdir, copy)
        assert content(copy) == content(outdir)
    open_study(study(trials=2, searches=3, batch_size=64), other)
    assert records.STUDY in copy_once(other, copy)[0]
    assert content(copy) == content(outdir)


def test_a_failed_copy_is_a_warning_and_is_tried_again(tmp_path, monkeypatch):
    monkeypatch.setattr("runs.mirror._RETRY_SECONDS", (0.0,))
    run, place = directory(tmp_path / "run", config="{}"), tmp_path / "file"
    place.touch()
    said = []
    mirror = Mirror(run, str(place / "copy"), said.append)
    mirror.saved()
    assert len(said) == 1
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
        tools = tracking.Tools(mirror=f"{scheme}://bucket/runs/1", root=workdir)
        train.train(mini(checkpoint_every_fresh_examples=160), workdir, tools=tools)
        files.invalidate_cache()
        place = "bucket/runs/1/"
        copy = {p.removeprefix(place): files.cat_file(p) for p in files.find(place)}
        assert copy == content(workdir)
