"""Worker processes, shards, concurrent launches, and Ray write the records of sequential trials."""

import contextlib
import dataclasses
import errno
import functools
import itertools
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import pytest

import sweep
from analysis import load
from runs import cli, records
from runs.progress import Progress
from studies.executors import InProcessExecutor, PoolExecutor
from studies.ray_executor import RayExecutor
from studies.runner import MAX_WORKER_FAILURES, run
from studies.trial import Outcome, run_unit
from tests.helpers.runs import HANGS, ROOT, mini, records_of
from tests.helpers.small_studies import AXES, QUIET, study


def longer():
    """Trials of a small network that take long enough to be interrupted, on any machine: the
    upstream sets the pace."""
    config = mini(
        budget__fresh_examples=6400,
        evaluate_every_fresh_examples=3200,
        checkpoint_every_fresh_examples=3200,
        upstream__examples_per_second=3200.0,
    )
    return dataclasses.replace(study(trials=2), config=config)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """The study, with sequential trials in this process."""
    directory = tmp_path_factory.mktemp("alone") / "study"
    assert run(longer(), directory, QUIET) == "finished"
    return directory


def assert_same_trials(directory, other):
    def ended(path):
        return records_of(path), records.read_json(path / records.RESULT)["status"]

    trials = {place: ended(path) for place, path in records.trials_on_disk(directory)}
    assert trials == {place: ended(path) for place, path in records.trials_on_disk(other)}


@contextlib.contextmanager
def struck(directory, strike):
    """Calls `strike` once, with the id of a process that is in the middle of a trial below
    `directory`."""
    done = threading.Event()

    def watch():
        while not done.is_set():
            for path in directory.glob(f"*/*/*/{records.METRICS}"):
                result = path.parent / records.RESULT
                with contextlib.suppress(OSError, StopIteration):
                    if path.stat().st_size and not result.exists():
                        owner = next(owners(path.parent / records.LOCK))
                        assert owner != os.getpid()
                        struck_processes.append(owner)
                        strike(owner)
                        return
            time.sleep(0.05)

    struck_processes = []
    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
    assert struck_processes, "no trial was interrupted"


def owners(path):
    """The processes that have the file open."""
    for entry in pathlib.Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError):
            if os.readlink(entry) == str(path):
                yield int(entry.parts[2])


TWO = functools.partial(PoolExecutor, number=2)


def kill(process):
    os.kill(process, signal.SIGKILL)


def test_workers_write_what_one_process_writes_even_if_one_is_killed(alone, tmp_path):
    with struck(tmp_path / "study", kill):
        assert run(longer(), tmp_path / "study", QUIET, TWO) == "finished"
    assert_same_trials(tmp_path / "study", alone)


class FirstTrialKills(InProcessExecutor):
    """The worker of trial 0 is always killed. The other trials train."""

    def submit(self, unit, label):
        if unit.trials != (0,):
            super().submit(unit, label)
        else:
            self._ended.append((unit, Outcome({})))


def test_a_trial_that_kills_its_workers_ends_the_launch_and_a_later_one_trains_it(tmp_path):
    plan, said = study(trials=1, conditions=("baseline",)), Progress(quiet=True)
    with pytest.raises(cli.Failed, match="trial 0"):
        run(plan, tmp_path, said, FirstTrialKills)
    assert len(said.unsaid) == MAX_WORKER_FAILURES - 1
    assert run(plan, tmp_path, QUIET) == "finished"
    assert load.read(tmp_path).trials["status"].tolist() == ["exhausted"]


KILLED = """
import os, pathlib, signal
from runs.progress import Progress
from studies.executors import PoolExecutor
pool = PoolExecutor(None, pathlib.Path(), Progress(quiet=True), 1)
pool.submit(None, "")  # fails in the worker, which then waits for the next unit
(_, outcome), = pool.wait(None)
assert outcome.error
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_workers_end_with_a_launch_that_is_killed():
    """Else they would wait for work forever, and so would whoever reads their output."""
    words = [sys.executable, "-c", KILLED]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, timeout=HANGS)
    assert done.returncode == -signal.SIGKILL


@pytest.mark.long
def test_stopped_workers_save_and_resume(alone, tmp_path):
    directory = tmp_path / "study"
    with struck(directory, lambda owner: os.kill(os.getpid(), signal.SIGTERM)):
        assert run(longer(), directory, QUIET, TWO) == "preempted"
    results = [records.read_json(p / records.RESULT) for _, p in records.trials_on_disk(directory)]
    stopped = [result["step"] for result in results if result.get("status") == "preempted"]
    assert max(stopped) > 0, results  # another may have been compiling
    assert run(longer(), directory, QUIET) == "finished"
    assert_same_trials(directory, alone)


@pytest.mark.extras
def test_ray_writes_what_one_process_writes_even_if_a_worker_is_killed(alone, tmp_path):
    ray = pytest.importorskip("ray")
    try:
        ray.init(
            num_cpus=2,
            include_dashboard=False,
            log_to_driver=False,
            runtime_env={"env_vars": {"PYTHONPATH": str(ROOT)}},
        )
        with struck(tmp_path / "study", kill):
            assert run(longer(), tmp_path / "study", QUIET, RayExecutor) == "finished"
        written = (tmp_path / "study").rglob(records.HPARAMS)
        # so analysis does not compare their seconds
        assert {records.read_json(path)["workers"] for path in written} == {2}
        with pytest.raises(cli.InputError, match="--gpus-per-trial is 64"):
            run(longer(), tmp_path / "study", QUIET, functools.partial(RayExecutor, gpus=64))
    finally:
        ray.shutdown()
    assert_same_trials(tmp_path / "study", alone)


@pytest.mark.extras
def test_ray_workers_import_from_where_the_launch_does(tmp_path, monkeypatch):
    ray = pytest.importorskip("ray")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    executor = RayExecutor(study(), tmp_path / "study", QUIET)
    try:
        path = ray.get(ray.remote(os.getenv).remote("PYTHONPATH")).split(os.pathsep)
    finally:
        executor.close()
    assert path[:2] == [str(ROOT), str(tmp_path)]


def test_a_trial_that_another_launch_finishes_meanwhile_is_not_reported_again(tmp_path):
    """Between the look at its records and its lock, the launch that held it may have ended it."""

    class Late(InProcessExecutor):
        def submit(self, unit, label):
            if unit.search == 0:
                assert run_unit(self._study, unit, self._study_dir, QUIET).trained == unit.trials
            super().submit(unit, label)

    progress = Progress(quiet=True)
    assert run(study(trials=1, searches=2), tmp_path / "study", progress, Late) == "finished"
    lines = [line for line in progress.unsaid if "best" in line]
    assert len(lines) == 2
    assert all("search 1, trial 0: " in line for line in lines)


def test_shards_cover_the_study_without_overlap(tmp_path):
    plan = study(trials=1, searches=2)
    parts = []
    for i in range(3):
        directory = tmp_path / str(i)
        run(plan, directory, QUIET, shard=(i, 3))
        parts.append({(p.condition, p.search) for p, _ in records.trials_on_disk(directory)})
    assert [len(part) for part in parts] == [2, 1, 1]
    assert len(set.union(*parts)) == 4


@pytest.mark.parametrize(
    "axes", [AXES, [{"field": "model.width", "scale": "choice", "values": (1, 2)}]]
)
def test_lanes_write_what_separate_trials_write(axes, tmp_path):
    """Any axis that leaves the input alone will do; networks may differ."""
    directory, plan = tmp_path / "lanes", study(trials=3, axes=axes)
    assert run(plan, directory, QUIET, lanes=2) == "finished"
    assert run(plan, tmp_path / "alone", QUIET) == "finished"
    assert_same_trials(directory, tmp_path / "alone")
    hparams = [records.read_json(p / records.HPARAMS) for _, p in records.trials_on_disk(directory)]
    assert [record["lanes"] for record in hparams] == [2, 2, 1] * 2


def test_full_disk_stops_the_study_with_one_sentence(tmp_path, monkeypatch):
    calls, fsync = itertools.count(1), os.fsync

    def full(descriptor):
        if next(calls) > 6:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
        run(study(trials=3), tmp_path, QUIET)
    monkeypatch.undo()
    results = [records.read_json(p / records.RESULT) for _, p in records.trials_on_disk(tmp_path)]
    assert {None} <= {result.get("status") for result in results} <= {None, "exhausted"}
    assert run(study(trials=3), tmp_path, QUIET) == "finished"


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"overrides": {"echo.policy": "auto"}}, "echo.policy"),
        ({"overrides": {"echo.placement": "device"}}, "echo.placement"),
        ({"axes": [{"field": "augmentation.pad", "scale": "linear", "min": 0, "max": 1}]}, "pad"),
        ({"axes": [{"field": "batch_size", "scale": "choice", "values": (16, 32)}]}, "batch_size"),
    ],
)
def test_lanes_refuse_what_they_cannot_share(changes, named, tmp_path):
    with pytest.raises(cli.InputError, match=named):
        run(study(**changes), tmp_path / "study", QUIET, lanes=2)
    assert not (tmp_path / "study").exists()


def test_missing_ray_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(cli.InputError, match="pip install ray"):
        run(study(), tmp_path / "study", QUIET, RayExecutor)
    assert not (tmp_path / "study").exists()


@pytest.mark.long
def test_workers_know_what_the_file_of_the_user_adds(tmp_path):
    """A field, a network, and a workload; those of the input know them, too."""
    file = tmp_path / "mine.py"
    file.write_text(MINE)
    words = [f"--config={file}", "--study=mine", f"--outdir={tmp_path / 'study'}", "--workers=2"]
    words += ["--config.model.scale=0.5", "--config.loader.workers=1", "--tracker=none"]
    assert cli.guarded(sweep.main, words) == cli.OK
    loaded = load.read(tmp_path / "study")
    assert loaded.trials["status"].tolist() == ["exhausted"] * 2
    config = records.read_json(tmp_path / "study" / "baseline" / "0" / "0" / records.CONFIG)
    assert config["config"]["model"]["scale"] == 0.5


MINE = """
import workloads
from configs import base, catalog, cifar10
from configs.fields import Field
from workloads import networks

base.add(Field("model.scale", 1.0, "of nothing", 0.1, 10))
workloads.CLASSES["mine"] = workloads.CLASSES["cifar10"]
networks.add("my_resnet")(networks.cifar_resnet)

def get_config():
    config = cifar10.get_config("mini")
    config.workload, config.model.name, config.model.depth = "mine", "my_resnet", 0
    config.budget.fresh_examples = int(320 * config.model.scale)
    return config

def get_studies(variant):
    plan = {"conditions": catalog.BASELINE, "baseline": "baseline", "trials": 2, "searches": 1}
    return {"mine": plan | {"space": ()}}
"""
