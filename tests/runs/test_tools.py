"""What follows a run: trackers, a profile, a mirror. None of them can end it."""

import collections
import glob
import os
import shutil
import threading
import time

import jax
import pytest
from fsspec.implementations.local import LocalFileSystem

import sweep
import train
from runs import cli, records, tooling
from runs import mirror as runs_mirror
from runs import observers as runs_observers
from runs.mirror import Mirror
from runs.observers import InBackground, Observer, Observers
from runs.profiler import Profiler
from runs.trackers import Tracked
from studies.directory import open_study
from tests.helpers.runs import HANGS, RESNET, ROOT, echoing, mini, on_each_step, records_of, stop_at
from tests.helpers.small_studies import QUIET, RecordedProgress, study

# a profile is named by the second in which it starts, so the two parts must not be too fast
CONFIG = mini(**RESNET, **echoing("before_augmentation", 100, factor=2))


def content(directory):
    """The files below a directory that a copy must have, by path."""
    return {
        path.relative_to(directory).as_posix(): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.name not in (records.LOCK, f".{records.LOCK}")
    }


def test_tensorboard_says_nothing_of_numbers_that_are_not_finite(tmp_path, caplog):
    config = mini(optimizer__learning_rate=1e39, log_every_steps=1)
    assert train.train(config, tmp_path / "run")["status"] == "diverged"
    assert records.read_metrics(tmp_path / "run")[-1]["learning_rate"] is None
    assert not [record for record in caplog.records if record.name.startswith("tensorboardX")]


@pytest.fixture(scope="module")
def followed(tmp_path_factory):
    """A run with a profile and a mirror, stopped and resumed; its directory and the mirror's."""
    workdir, copy = (tmp_path_factory.mktemp(name) / "run" for name in ("followed", "mirror"))
    tools = tooling.Tools(mirror=f"file://{copy}", root=workdir, profile=(4, 20))
    stopped = train.train(CONFIG, workdir, on_step=stop_at(13), tools=tools)
    assert stopped["status"] == "preempted"
    assert content(copy) == content(workdir)  # from here another machine could resume
    time.sleep(1.1)  # JAX names profiles by the second, and a new process takes longer
    assert train.train(CONFIG, workdir, tools=tools)["status"] == "exhausted"
    return workdir, copy


@pytest.mark.slow
def test_a_mirror_has_what_the_run_has_and_a_copy_resumes(followed):
    workdir, copy = followed
    assert content(copy) == content(workdir)
    (copy / records.RESULT).unlink()  # as a machine that was lost before the end leaves it
    assert train.train(CONFIG, copy)["status"] == "exhausted"
    assert records_of(copy) == records_of(workdir)


def test_trackers_compare_trials_by_what_the_search_drew(tmp_path):
    drawn = {"optimizer.learning_rate": 0.07, "optimizer.schedule.final_factor": 0.3}
    workdir = tmp_path / "e2" / "1" / "3"
    workdir.mkdir(parents=True)
    record = {"condition": "e2", "search": 1, "trial": 3, "hparams": drawn}
    records.write_json(workdir / records.HPARAMS, record)
    compared = Tracked(workdir, tmp_path, CONFIG.to_dict()).hparams
    assert compared.items() >= {**drawn, "condition": "e2", "search": 1, "trial": 3}.items()
    assert "hparams" not in compared


@pytest.mark.slow
def test_a_profile_names_what_the_host_does(followed):
    workdir, _ = followed
    traces = glob.glob(f"{workdir}/{records.PROFILE}/plugins/profile/*/*.xplane.pb")
    assert len(traces) == 2  # one of each process that took steps of the range
    counts = collections.Counter(
        event.name
        for trace in traces
        for plane in jax.profiler.ProfileData.from_file(trace).planes
        for line in plane.lines
        for event in line.events
    )
    regions = ("read", "decode", "echo", "augment", "transfer", "step", "evaluate", "save")
    assert set(regions) <= set(counts)
    assert counts["step"] == counts["transfer"] == 16  # steps 4 to 19


def test_a_profile_of_steps_that_are_never_trained_is_a_warning(tmp_path):
    said = []
    profiler = Profiler(tmp_path, 500, 800, said.append)
    for step in range(1, 41):
        profiler.step(step)
    profiler.end({})
    assert said == [
        "warning: this launch trained none of the steps 500:800 of --profile, so there is no trace"
    ]
    assert not list(tmp_path.iterdir())


class Failing(Observer):
    """Fails at one event and counts the events that reach it."""

    def __init__(self, event):
        self.calls = 0
        setattr(self, event, self._fail)

    def _fail(self, *_):
        self.calls += 1
        raise ConnectionError("the server\nis gone")


@pytest.mark.parametrize("event", ["start", "step", "record", "saved", "end"])
def test_an_observer_that_fails_is_named_once_and_left_out(event):
    said, failing = [], Failing(event)
    observers = Observers({"--tracker=x": failing}, said.append)
    for _ in range(2):
        observers.start(0)
        observers.step(1)
        observers.record({})
        observers.saved()
        observers.end({})
    observers.close()
    assert failing.calls == 1
    assert said == [
        "warning: --tracker=x failed (ConnectionError: the server is gone); the run continues "
        "without it"
    ]


def test_a_slow_tracker_holds_up_nothing_but_the_end():
    released, received = threading.Event(), []

    class Slow(Observer):
        def start(self, fresh_examples):
            released.wait()

        def record(self, record):
            received.append(record)

    slow = InBackground(Slow())
    slow.start(0)
    for step in range(3):
        slow.record({"step": step})
    assert not received
    released.set()
    slow.end({})
    assert received == [{"step": 0}, {"step": 1}, {"step": 2}]


@pytest.mark.parametrize("ends", [True, False])
def test_closing_reaches_a_slow_tracker_last_and_ends_its_thread(ends):
    events = []

    class Listed(Observer):
        def record(self, record):
            events.append("record")

        def end(self, result):
            events.append("end")

        def close(self):
            events.append("close")

    earlier = set(threading.enumerate())
    slow = InBackground(Listed())
    (thread,) = set(threading.enumerate()) - earlier
    slow.record({})
    if ends:  # not if the disk is full
        slow.end({})
    slow.close()
    assert events == ["record", *(["end"] if ends else []), "close"]
    thread.join(HANGS)
    assert not thread.is_alive()


def test_a_tracker_that_answers_too_late_leaves_no_thread(monkeypatch):
    monkeypatch.setattr(runs_observers, "_SILENT_SECONDS", 0.05)
    released = threading.Event()

    class Slow(Observer):
        def record(self, record):
            released.wait()

    earlier = set(threading.enumerate())
    slow = InBackground(Slow())
    (thread,) = set(threading.enumerate()) - earlier
    slow.record({})
    with pytest.raises(TimeoutError, match="no answer within"):
        slow.end({})
    released.set()
    thread.join(HANGS)
    assert not thread.is_alive()


def test_an_error_of_closing_in_the_background_is_a_warning():
    said = []
    observers = Observers({"--tracker=x": InBackground(Failing("close"))}, said.append)
    observers.end({})
    assert not said
    observers.close()
    assert "--tracker=x failed (ConnectionError: the server is gone)" in said[0]


def test_an_error_in_the_background_ends_only_the_tracker():
    said = []
    observers = Observers({"--tracker=x": InBackground(Failing("record"))}, said.append)
    observers.start(0)
    observers.record({})
    observers.end({})
    assert len(said) == 1
    assert "--tracker=x failed (ConnectionError: the server is gone)" in said[0]


WRONG = [
    ("--tracker=tensorbord", "--tracker is 'tensorbord'; allowed: tensorboard, wandb, mlflow"),
    ("--tracker=", "--tracker is ''; allowed"),
    ("--profile=5", "--profile is '5'; allowed: START:STOP"),
    ("--profile=0:3", "--profile is '0:3'"),
    ("--profile=3:3", "--profile is '3:3'"),
    ("--mirror=nowhere://x", "--mirror is nowhere://x (Protocol not known: nowhere); allowed: s3"),
    ("--mirror=ftp://127.0.0.1:1/x", "--mirror is ftp://127.0.0.1:1/x ([Errno 111] Connection ref"),
    ("--mirror={tmp}/run/copy", "run/copy, within "),
    ("--mirror=", "--mirror is ''; allowed: a URL or a directory"),
    ("--workdir=s3://bucket/run", "s3://bucket/run is a URL; give a directory (train.py"),
]


@pytest.mark.parametrize(("word", "says"), WRONG, ids=[word for word, _ in WRONG])
def test_wrong_flags_are_one_sentence_and_write_nothing(word, says, tmp_path, capsys):
    words = ["--config=configs/cifar10.py:mini", f"--workdir={tmp_path / 'run'}"]
    words.append(word.replace("{tmp}", str(tmp_path)))
    assert cli.guarded(train.main, words) == cli.WRONG_INPUT
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1
    assert not [*tmp_path.iterdir()]


def test_a_mirror_may_be_given_for_a_plan_without_a_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words = [f"--config={ROOT / 'configs' / 'cifar10.py'}:mini", "--study=demo", "--dry-run"]
    assert cli.guarded(sweep.main, [*words, "--mirror=copy"]) == cli.OK


def test_a_missing_package_is_one_sentence_with_what_to_install(tmp_path, capsys, monkeypatch):
    find = tooling.importlib.util.find_spec
    monkeypatch.setattr(
        tooling.importlib.util, "find_spec", lambda name: None if name == "wandb" else find(name)
    )
    words = ["--config=configs/cifar10.py:mini", "--study=demo", f"--outdir={tmp_path / 'study'}"]
    assert cli.guarded(sweep.main, [*words, "--tracker=tensorboard,wandb"]) == cli.WRONG_INPUT
    assert "--tracker=wandb needs the package wandb, which is not installed; pip install wandb" in (
        capsys.readouterr().err
    )


def directory(path, **files):
    """A directory with the given texts: name=text; __ in a name is a slash."""
    for name, text in files.items():
        file = path / name.replace("__", "/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return path


def copied(source, target):
    """What a mirror says while it copies once."""
    said = []
    Mirror(source, str(target), said.append).end({})
    return said


def test_a_copy_follows_and_drops_the_checkpoints_that_the_run_dropped(tmp_path):
    run = directory(tmp_path / "run", config="{}", checkpoints__5__a="5", lock="", metrics="1\n")
    mirror = Mirror(run, str(tmp_path / "copy"), print)
    mirror._copy()
    assert content(tmp_path / "copy") == content(run)
    directory(run, checkpoints__9__a="9", metrics="1\n2\n", **{".config.tmp": "half"})
    shutil.rmtree(run / "checkpoints" / "5")
    (run / "checkpoints" / "12.orbax-checkpoint-tmp-1").mkdir()
    directory(tmp_path / "copy", checkpoints__3__a="of somebody else")
    mirror.end({})
    copy = content(tmp_path / "copy")
    assert copy.pop("checkpoints/3/a") == b"of somebody else"
    assert copy == {"config": b"{}", "checkpoints/9/a": b"9", "metrics": b"1\n2\n"}


def test_what_a_killed_process_left_in_a_copy_is_removed(tmp_path):
    run = directory(tmp_path / "run", config="{}", metrics="1\n")
    copy = directory(tmp_path / "copy", config="{}", **{f".metrics.{'0' * 16}.tmp": "half"})
    os.utime(copy / f".metrics.{'0' * 16}.tmp", (0, 0))
    Mirror(run, str(copy), print).end({})
    assert sorted(os.listdir(copy)) == ["config", "metrics"]


def test_launches_that_copy_the_same_file_do_not_damage_the_copy(tmp_path, monkeypatch):
    file, copy, upload = tmp_path / "metrics", tmp_path / "copy", shutil.copyfileobj
    file.write_bytes(b"0123456789" * 1000)
    others = iter([True])

    def interrupted(source, target):
        target.write(source.read(10))
        if next(others, False):  # another launch begins, and ends, meanwhile
            runs_mirror._upload(LocalFileSystem(), file, str(copy / "metrics"))
        upload(source, target)

    monkeypatch.setattr(shutil, "copyfileobj", interrupted)
    runs_mirror._upload(LocalFileSystem(), file, str(copy / "metrics"))
    assert content(copy) == {"metrics": file.read_bytes()}
    assert os.listdir(copy) == ["metrics"]


@pytest.mark.long
@pytest.mark.parametrize("resumed", [False, True])
def test_a_checkpoint_that_is_saved_again_replaces_its_copy(tmp_path, resumed):
    run, copy = (
        directory(tmp_path / "run", config="{}", checkpoints__5__d__a="5"),
        tmp_path / "copy",
    )
    mirror = Mirror(run, str(copy), print)
    mirror._copy()
    shutil.rmtree(run / "checkpoints" / "5")
    directory(run, checkpoints__5__d__b="5, evaluated")  # Orbax names files at random
    if resumed:
        assert not copied(run, copy)
    mirror.end({})
    assert content(copy) == content(run)


@pytest.mark.parametrize("hours", [-3, 3])
def test_a_file_of_the_same_size_replaces_its_copy_whatever_the_clocks(hours, tmp_path):
    """The machine that wrote the file now is not the one that copied it before."""
    run, copy = directory(tmp_path / "run", config="{}", metrics="1\n"), tmp_path / "copy"
    assert not copied(run, copy)
    directory(run, metrics="2\n")
    written = (run / "metrics").stat().st_mtime - 3600 * hours
    os.utime(run / "metrics", (written, written))
    assert not copied(run, copy)
    assert content(copy) == content(run)


def test_a_file_that_was_copied_is_not_copied_again(tmp_path):
    run, copy = directory(tmp_path / "run", config="{}", metrics="1\n"), tmp_path / "copy"
    assert not copied(run, copy)
    before = {path.name: path.stat().st_ino for path in copy.iterdir()}
    assert not copied(run, copy)
    assert {path.name: path.stat().st_ino for path in copy.iterdir()} == before


def test_a_named_pipe_is_not_copied(tmp_path):
    run = directory(tmp_path / "run", config="{}")
    os.mkfifo(run / "pipe")  # whoever opens it waits
    assert copied(run, tmp_path / "copy") == []
    assert content(tmp_path / "copy") == {"config": b"{}"}


def test_a_resumed_run_drops_the_checkpoints_of_the_copy_that_it_has_overtaken(tmp_path):
    run, copy = directory(tmp_path / "run", config="{}", checkpoints__5__a="5"), tmp_path / "copy"
    assert not copied(run, copy)
    shutil.rmtree(run / "checkpoints" / "5")
    directory(run, checkpoints__7__a="7")
    directory(copy, checkpoints__9__a="of a machine that was lost")
    assert not copied(run, copy)
    assert set(content(copy)) == {"config", "checkpoints/7/a", "checkpoints/9/a"}


def test_errors_of_others_stay_in_the_place_of_the_copy(tmp_path):
    ours, place = {"study.json": "{}", "e1__0__config.json": "{}"}, tmp_path / "place"
    directory(place, **{"e2__0__error.txt": "of another machine", "notes__error.txt": "mine"})
    directory(place, **{"e1__0__error.txt": "removed since", "e1__0__error1.txt": "likewise"})
    assert not copied(directory(tmp_path / "study", **ours), place)
    assert set(content(place)) == {
        "study.json",
        "e1/0/config.json",
        "e2/0/error.txt",
        "notes/error.txt",
    }


def test_the_copy_of_another_run_is_never_overwritten(tmp_path, monkeypatch):
    monkeypatch.setattr("runs.mirror._RETRY_SECONDS", (1e9,))  # nothing to wait for
    theirs = directory(tmp_path / "theirs", **{"config.json": '{"a": 1}'})
    ours = directory(tmp_path / "ours", **{"config.json": '{"a": 2}'})
    said = copied(ours, theirs)
    assert "config.json there belongs to another run; give another --mirror" in said[0]
    assert said[1].endswith("the same command with another --mirror copies it")
    assert content(theirs) == {"config.json": b'{"a": 1}'}


def test_a_study_that_has_grown_is_still_its_own_copy(tmp_path, monkeypatch):
    monkeypatch.setattr("runs.mirror._RETRY_SECONDS", ())
    outdir, copy = tmp_path / "study", tmp_path / "copy"
    for plan in (study(trials=1), study(trials=2, searches=3)):
        open_study(plan, outdir)
        record = records.read_json(outdir / records.STUDY)
        records.write_json(outdir / records.STUDY, record | {"commit": "a" * plan.trials})
        assert not copied(outdir, copy)
        assert content(copy) == content(outdir)
    other = tmp_path / "other"
    open_study(study(trials=2, searches=3, batch_size=64), other)
    assert "study.json there belongs to another run" in copied(other, copy)[0]
    assert content(copy) == content(outdir)


def test_a_failed_copy_is_one_warning_and_is_tried_again(tmp_path, monkeypatch):
    monkeypatch.setattr("runs.mirror._RETRY_SECONDS", (0.0,))
    run = directory(tmp_path / "run", config="{}")
    place = directory(tmp_path, not_a_directory="") / "not_a_directory"
    said = copied(run, place / "copy")
    assert len(said) == 2
    assert said[0].startswith(f"warning: {run} could not be copied to {place}/copy (")
    assert said[1].startswith(f"warning: {place}/copy is not up to date; {run} is complete")
    place.unlink()
    assert not copied(run, place / "copy")
    assert content(place / "copy") == content(run)


def test_a_study_is_mirrored_with_its_trials(tmp_path):
    outdir, copy = tmp_path / "study", tmp_path / "copy"
    tools = tooling.Tools(mirror=str(copy), root=outdir)
    said = RecordedProgress()
    sweep.run(study(trials=1, conditions=("baseline",)), outdir, said, tools=tools)
    assert content(copy) == content(outdir)
    assert {"study.json", "baseline/0/0/result.json"} <= content(copy).keys()
    assert not [line for line in said.lines if "warning" in line]


def test_the_mirror_of_a_study_that_is_running_can_be_resumed(tmp_path):
    outdir, copy, lost = (tmp_path / name for name in ("study", "copy", "lost"))
    plan, finished = study(conditions=("baseline",)), "baseline/0/0/result.json"

    def lose_the_machine(step):
        if step == 1 and (outdir / finished).exists():  # in the second of two trials
            shutil.copytree(copy, lost)

    with on_each_step(lose_the_machine):
        sweep.run(plan, outdir, QUIET, tools=tooling.Tools(mirror=str(copy), root=outdir))
    before = content(lost)[finished]
    assert sweep.run(plan, lost, QUIET) == "finished"
    assert len(list(lost.rglob(records.RESULT))) == 2
    assert content(lost)[finished] == before
