"""Worker processes, shards, concurrent launches, and Ray write the records of sequential trials."""

import contextlib
import dataclasses
import errno
import functools
import multiprocessing
import os
import pathlib
import shutil
import signal
import sys
import threading
import time

import pytest
from studies.ray_executor import RayExecutor

import sweep
from analysis import load, watch
from runs import cli, records
from studies import ray_executor
from studies.executors import InProcessExecutor, PoolExecutor
from studies.plan import load_study
from studies.runner import MAX_WORKER_FAILURES, run
from studies.trial import Unit, run_unit
from tests.helpers import forked
from tests.helpers.runs import HANGS, ROOT, flags, mini
from tests.helpers.small_studies import QUIET, RecordedProgress, study

KEPT = ("target", "best", "step", "fresh_examples")
COMPARED = ("step", "fresh_examples", "loss", "split")


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


def values(workdir):
    found = [{n: r.get(n) for n in COMPARED} for r in records.read_metrics(workdir)]
    return found, records.read_json(workdir / records.RESULT)["status"]


def assert_same_trials(directory, other):
    found = {place: values(path) for place, path in records.trials_on_disk(directory)}
    assert found == {place: values(path) for place, path in records.trials_on_disk(other)}


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


needs_proc = pytest.mark.skipif(
    not pathlib.Path("/proc").is_dir(), reason="finds processes in /proc"
)
TWO = functools.partial(PoolExecutor, number=2)


def kill(process):
    os.kill(process, signal.SIGKILL)


@pytest.mark.long
@pytest.mark.multiprocess
@needs_proc
def test_workers_write_what_one_process_writes_even_if_one_is_killed(alone, tmp_path):
    with struck(tmp_path / "study", kill):
        assert run(longer(), tmp_path / "study", QUIET, TWO) == "finished"
    assert_same_trials(tmp_path / "study", alone)


@pytest.mark.long
@pytest.mark.multiprocess
@needs_proc
def test_ctrl_c_does_not_interrupt_the_imports_of_a_worker(tmp_path):
    """In a terminal it reaches every process, and the main process tells the workers to stop."""
    with contextlib.closing(PoolExecutor(study(), tmp_path, QUIET, 1)) as executor:
        executor.submit(Unit("no such condition", 0, (0,)), "")  # fails after the imports
        [worker] = multiprocessing.active_children()
        status = pathlib.Path(f"/proc/{worker.pid}/status")
        while not (ended := executor.wait(0.01)):
            lines = status.read_text().splitlines()
            masks = dict(line.split(":\t") for line in lines if line.startswith("Sig"))
            unheard = int(masks["SigBlk"], 16) | int(masks["SigIgn"], 16)
            assert unheard >> (signal.SIGINT - 1) & 1
    [(_, outcome)] = ended
    assert outcome is not None
    assert outcome.error


class FirstTrialKills(InProcessExecutor):
    """The worker of trial 0 is killed, after `before` has been called with the trial's directory.
    The other trials train."""

    before = staticmethod(lambda workdir: None)

    def submit(self, unit, label):
        if unit.trials != (0,):
            super().submit(unit, label)
            return
        self.before(unit.workdir(0, self._study_dir))
        self._ended.append((unit, None))


def test_a_trial_that_is_given_up_has_failed_and_is_tried_again_by_a_later_launch(tmp_path):
    plan, said = study(trials=1, conditions=("baseline",)), RecordedProgress()
    assert run(plan, tmp_path, said, FirstTrialKills) == "finished"
    assert "failed: given up after 3 workers were killed" in said.lines[2]
    loaded = load.read(tmp_path)
    assert loaded.trials["status"].tolist() == ["failed", "exhausted"]
    assert not loaded.set_aside
    assert watch.ended(loaded)
    said = RecordedProgress()
    assert run(plan, tmp_path, said) == "finished"
    assert len(said.lines) == 1  # nothing was damaged
    assert load.read(tmp_path).trials["status"].tolist() == ["exhausted"] * 2


def test_a_trial_that_is_given_up_keeps_what_it_has_recorded(tmp_path):
    plan = study(trials=1, conditions=("baseline",), evaluate_every_fresh_examples=64)
    run(plan, tmp_path, QUIET)
    path = tmp_path / "baseline" / "0" / "0" / records.RESULT
    before = records.read_json(path)
    path.unlink()  # as if its worker had been killed just before the end
    run(plan, tmp_path, QUIET, FirstTrialKills)
    result = records.read_json(path)
    assert result["status"] == "failed"
    assert [result[n] for n in KEPT] == [before[n] for n in KEPT]
    assert list(result) == [*before, "error"]


def test_a_trial_that_finished_before_its_last_worker_was_killed_is_not_given_up(
    tmp_path, monkeypatch
):
    plan, other = study(trials=1, conditions=("baseline",)), tmp_path / "other"
    run(plan, other, QUIET)
    deaths = []

    def dies(workdir):
        deaths.append(workdir)
        if len(deaths) == MAX_WORKER_FAILURES:
            shutil.copytree(other / "baseline" / "0" / "0", workdir)

    monkeypatch.setattr(FirstTrialKills, "before", staticmethod(dies))
    assert run(plan, tmp_path / "study", QUIET, FirstTrialKills) == "finished"
    assert load.read(tmp_path / "study").trials["status"].tolist() == ["exhausted"]


@pytest.mark.long
@pytest.mark.multiprocess
@needs_proc
def test_stopped_workers_save_and_resume(alone, tmp_path):
    directory = tmp_path / "study"
    with struck(directory, lambda owner: os.kill(os.getpid(), signal.SIGTERM)):
        assert run(longer(), directory, QUIET, TWO) == "preempted"
    found = [records.read_json(p / records.RESULT) for _, p in records.trials_on_disk(directory)]
    stopped = [result for result in found if result and result["status"] == "preempted"]
    assert stopped, [r and (r["status"], r.get("error"), r["step"]) for r in found]
    assert any(result["step"] > 0 for result in stopped)  # the other may have been compiling
    assert run(longer(), directory, QUIET) == "finished"
    assert_same_trials(directory, alone)


@pytest.mark.extras
@pytest.mark.multiprocess
@needs_proc
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
        shared = {
            records.read_json(path)["workers"]
            for path in (tmp_path / "study").rglob("hparams.json")
        }
        assert shared == {2}  # so analysis does not compare their seconds
        with pytest.raises(cli.InputError, match="--gpus-per-trial is 64"):
            run(longer(), tmp_path / "study", QUIET, functools.partial(RayExecutor, gpus=64))
    finally:
        ray.shutdown()
    assert_same_trials(tmp_path / "study", alone)


@pytest.mark.extras
@pytest.mark.multiprocess
def test_ray_workers_import_from_where_the_launch_does(tmp_path, monkeypatch):
    ray = pytest.importorskip("ray")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    executor = RayExecutor(study(), tmp_path / "study", QUIET)
    try:
        path = ray.get(ray.remote(os.getenv).remote("PYTHONPATH")).split(os.pathsep)
    finally:
        executor.close()
    assert path[:2] == [str(ROOT), str(tmp_path)]


@pytest.mark.extras
def test_ray_workers_of_a_running_cluster_share_a_gpu_as_the_launch_does(tmp_path, monkeypatch):
    ray, given = pytest.importorskip("ray"), {}

    def init(**options):
        given.update(options)
        raise ConnectionError("no cluster is needed")

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    with pytest.raises(cli.InputError, match="no cluster is needed"):
        RayExecutor(study(), tmp_path / "study", QUIET)
    assert given["runtime_env"]["env_vars"]["XLA_PYTHON_CLIENT_PREALLOCATE"] == "false"


def command_line(plan, outdir, *more):
    words = ["--config=configs/cifar10.py:mini", "--study=insertion", "--searches=1"]
    return [*words, f"--trials={plan.trials}", f"--outdir={outdir}", *flags(plan.config), *more]


@pytest.mark.long
@pytest.mark.multiprocess
def test_two_launches_on_one_directory_share_the_work(tmp_path, monkeypatch):
    directory, progress = tmp_path / "study", RecordedProgress()
    words = command_line(longer(), directory)
    monkeypatch.chdir(ROOT)
    config, module = cli.load_config(words[0].partition("=")[2], [])
    overrides = flags(longer().config)
    cli.override(config, overrides)
    plan = load_study(config, module, "configs/cifar10.py:mini", "insertion", 2, 1, overrides)
    other = forked.start(["sweep.py", *words], dict(os.environ))
    try:
        while not list(directory.glob(f"*/*/*/{records.METRICS}")) and other.poll() is None:
            time.sleep(0.05)
        assert run(plan, directory, progress) == "finished"
        said = other.communicate(timeout=HANGS)[1].splitlines()
    finally:
        other.kill()
    assert other.returncode == cli.OK
    trained = [
        [line.partition("] ")[2].partition(":")[0] for line in lines if "best" in line]
        for lines in (progress.lines, said)
    ]
    assert all(trained)
    assert len(set(trained[0] + trained[1])) == len(trained[0] + trained[1]) == 8


def test_a_trial_that_another_launch_finishes_meanwhile_is_not_reported_again(tmp_path):
    """Between the look at its records and its lock, the launch that held it may have ended it."""

    class Late(InProcessExecutor):
        def submit(self, unit, label):
            if unit.search == 0:
                assert run_unit(self._study, unit, self._study_dir, QUIET).trained == unit.trials
            super().submit(unit, label)

    progress = RecordedProgress()
    assert run(study(trials=1, searches=2), tmp_path / "study", progress, Late) == "finished"
    lines = [line for line in progress.lines if "best" in line]
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


@pytest.mark.slow
def test_lanes_write_what_separate_trials_write(tmp_path):
    directory = tmp_path / "lanes"
    assert run(study(trials=3), directory, QUIET, lanes=2) == "finished"
    assert run(study(trials=3), tmp_path / "alone", QUIET) == "finished"
    assert_same_trials(directory, tmp_path / "alone")
    together = [
        records.read_json(path / records.HPARAMS)["lanes"]
        for _, path in records.trials_on_disk(directory)
    ]
    assert together == [2, 2, 1] * 2


@pytest.mark.parametrize(
    "error",
    [OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), ValueError(os.strerror(errno.EDQUOT))],
    ids=str,
)
def test_full_disk_stops_the_study_with_one_sentence(error, tmp_path, monkeypatch):
    directory, fsync, calls = tmp_path / "study", os.fsync, []

    def full(descriptor):
        calls.append(descriptor)
        if len(calls) > 6:
            raise error
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(cli.DiskFull, match=r"no space is left on the disk of .*study.*again"):
        run(study(trials=3), directory, QUIET)
    monkeypatch.setattr(os, "fsync", fsync)
    results = [
        records.read_json(path / records.RESULT) for _, path in records.trials_on_disk(directory)
    ]
    assert None in results
    assert all(result["status"] == "exhausted" for result in results if result)
    assert run(study(trials=3), directory, QUIET) == "finished"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--shard=3/2"], "--shard is '3/2'; allowed: i/n"),
        (["--shard=0/99"], "n up to 4"),
        (["--shard=a"], "--shard is 'a'"),
        (["--lanes-stacked"], "--lanes-stacked is given with --lanes=1, which leaves nothing"),
        (["--lanes=0"], "'0' is not allowed; give 1, 2, 3"),
        (["--study=wall_time", "--lanes=2"], "scored in seconds"),
        (["--executor=ray", "--ray-address=127.0.0.1:1"], "no Ray cluster answers"),
        (["--executor=ry"], "invalid choice"),
        (["--cpus-per-trial=1"], "--cpus-per-trial is given with --executor=local, which does not"),
        (["--workers=2", "--executor=ray"], "--workers is given with --executor=ray, which does"),
    ],
)
def test_wrong_input_is_one_sentence(words, says, tmp_path, capsys, monkeypatch):
    if "ray" in words[0]:
        pytest.importorskip("ray")
    monkeypatch.chdir(ROOT)
    given = [*command_line(longer(), tmp_path / "study"), *words]
    assert cli.guarded(sweep.main, given) == cli.WRONG_INPUT
    assert says in capsys.readouterr().err
    assert not (tmp_path / "study").exists()


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("echo.policy", "auto", "other than 'fixed', which depends on the time of a step"),
        ("echo.placement", "device", "other than 'host', which each lane would fill"),
    ],
)
def test_lanes_refuse_what_they_cannot_share(field, value, says, tmp_path):
    plan = study(overrides={field: value})
    with pytest.raises(cli.InputError, match=says):
        run(plan, tmp_path / "study", QUIET, lanes=2)
    axis = {"field": "augmentation.pad", "scale": "choice", "values": (0, 1)}
    with pytest.raises(cli.InputError, match=r"varies augmentation\.pad"):
        run(study(axes=[axis]), tmp_path / "study", QUIET, lanes=2)
    assert not (tmp_path / "study").exists()


@pytest.mark.parametrize("address", ["nowhere", ":6379", "127.0.0.1:²", "..:6379"])
def test_a_wrong_address_of_a_ray_cluster_is_one_sentence(address):
    with pytest.raises(cli.InputError, match="no Ray cluster answers at --ray-address="):
        ray_executor._check_answers(address)


def test_missing_ray_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(cli.InputError, match="pip install ray"):
        run(study(), tmp_path / "study", QUIET, RayExecutor)
    assert not (tmp_path / "study").exists()


def test_study_in_a_file_of_the_user(tmp_path, capsys):
    text = """
from configs import catalog, cifar10

def get_config():
    return cifar10.get_config("mini")

def get_search_space(variant):
    return ({"field": "optimizer.learning_rate", "scale": "log", "min": 0.01},)

def get_studies(variant):
    conditions = {"baseline": catalog.echo("none", 1, 0)}
    plan = {"conditions": conditions, "baseline": BASE, "trials": 2, "searches": 1}
    return {"mine": plan | MORE}
"""
    file = tmp_path / "mine.py"
    words = [f"--config={file}", "--study=mine", "--dry-run"]

    def says(base, more, space='"min": 0.01, "max": 1.0'):
        full = text.replace('"min": 0.01', space).replace("BASE", base).replace("MORE", more)
        file.write_text(full)
        code = cli.guarded(sweep.main, words)
        out, error = capsys.readouterr()
        assert code == (cli.WRONG_INPUT if error else cli.OK)
        return error or out

    assert "* baseline: no echoing" in says("'baseline'", "{}")
    assert "baseline is 'other'; allowed: one of its conditions, baseline" in says("'other'", "{}")
    assert "score is 'speed'; allowed: fresh_examples" in says("'baseline'", "{'score': 'speed'}")
    assert "max is missing; a log axis needs it" in says("'baseline'", "{}", '"min": 0.01')

    sizes = (
        '"min": 0.01, "max": 1.0}, {"field": "batch_size", "scale": "choice", "values": [16, 64]'
    )
    budget = ', {"field": "budget.fresh_examples", "scale": "linear", "min": 320, "max": 6400'
    said = says("'baseline'", "{}", f"{sizes}}}{budget}")
    assert "at most 400 steps" in said
    assert "12,800 fresh examples if each trial uses the largest budget" in said


@pytest.mark.long
@pytest.mark.multiprocess
def test_workers_know_a_workload_that_the_file_of_the_user_adds(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "import workloads\nworkloads.CLASSES['mine'] = workloads.CLASSES['cifar10']\n"
        "def get_config(): ...\n"
    )
    plan = study(trials=1, conditions=("baseline",), workload="mine")
    plan = dataclasses.replace(plan, config_flag=f"{file}")
    with contextlib.closing(PoolExecutor(plan, tmp_path, QUIET, 1)) as executor:
        executor.submit(Unit("baseline", 0, (0,)), "")
        while not (ended := executor.wait(1)):
            pass
    [(_, outcome)] = ended
    assert outcome is not None
    assert outcome.checked()[0]["status"] == "exhausted"


def test_dry_run_prints_the_plan_and_writes_nothing(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert sweep.main(command_line(longer(), tmp_path / "study", "--dry-run")) == cli.OK
    said = capsys.readouterr().out
    for words in (
        "* baseline: no echoing",
        "echo.factor = 2",
        "seed.model = 0 + 10000",
        "8 trials",
    ):
        assert words in said
    assert not (tmp_path / "study").exists()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cifar10", "imagenet", "coco", "lm1b", "common_crawl", "vit"])
def test_every_study_is_listed_with_its_cost(name, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert sweep.main([f"--config=configs/{name}.py:mini", "--study=list"]) == cli.OK
    said = capsys.readouterr().out
    for name in ("insertion", "controls", "quality"):
        assert f"{name}\n" in said
    assert "fresh examples if each trial uses its whole budget" in " ".join(said.split())


def test_study_of_real_data_can_be_planned(tmp_path, capsys, monkeypatch):
    """Its data set is not part of the repository, so the study is only listed."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    config = "--config=configs/real_data.py:sentences"
    assert sweep.main([config, "--study=list"]) == cli.OK
    assert capsys.readouterr().out.startswith("factor\n")
    words = [config, "--study=factor", "--dry-run"]
    assert cli.guarded(sweep.main, words) == cli.WRONG_INPUT
    assert "is not prepared in" in capsys.readouterr().err
