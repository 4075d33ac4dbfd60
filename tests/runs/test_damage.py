"""Damaged files, a second process, a lost a full disk: equal numbers, or one sentence."""

import os
import pathlib
import pickle
import re
import shutil
import signal
import subprocess
import sys
import time

import pytest

import sweep
import train
from runs import cli, records, signals, trial_records, workdirs
from runs.checkpoints import Checkpoints
from runs.resuming import NothingToResume
from tests.helpers import forked
from tests.helpers.runs import (
    HANGS,
    RESNET,
    ROOT,
    assert_equal_runs,
    echoing,
    flags,
    held_training,
    last_saved,
    latest_step,
    mini,
    recorded,
    records_of,
    run_command,
    without_clocks,
)
from tests.helpers.small_studies import RecordedProgress
from training.experiment import make_experiment
from training.run import Run

CONFIG = mini(**echoing("before_augmentation", 100))  # 50 steps, checkpoints after 25 and more


@pytest.fixture
def ended(tmp_path, uninterrupted):
    """A copy of a run whose process died after its last checkpoint and before its result."""
    shutil.copytree(uninterrupted(CONFIG), tmp_path / "run")
    (tmp_path / "run" / records.RESULT).unlink()
    return tmp_path / "run"


def everything(directory):
    return {
        str(path.relative_to(directory)): path.read_bytes() if path.is_file() else None
        for path in directory.rglob("*")
        if records.LOCK not in path.parts
    }


def extent(workdir, step):
    """The bytes of metrics.jsonl that a checkpoint covers."""
    checkpoints = Checkpoints(workdir / records.CHECKPOINTS)
    return checkpoints.value(step)["records"][records.METRICS]["bytes"]


def steps(workdir):
    return Checkpoints(workdir / records.CHECKPOINTS).steps()


@pytest.mark.slow
def test_a_second_process_on_a_run_is_refused_without_disturbing_the_first(tmp_path, uninterrupted):
    workdir = tmp_path / "run"
    parts = make_experiment(CONFIG)
    first = Run(parts, workdir)
    with pytest.raises(cli.InputError, match="is in use by another process; wait"):
        train.train(CONFIG, workdir)
    with workdirs.held(workdir / records.LOCK) as here:
        assert not here
    while first.step():
        pass
    result = first.result
    assert result["status"] == "exhausted"
    assert_equal_runs(CONFIG, uninterrupted(CONFIG), workdir)
    # a finished run takes no lock: it can be asked for while somebody holds it
    with workdirs.held(workdir / records.LOCK) as here:
        assert here
        assert train.train(CONFIG, workdir) == result


@pytest.mark.slow
def test_missing_records_disqualify_only_the_checkpoints_that_cover_them(ended, uninterrupted):
    newest, *_, oldest = steps(ended)
    kept = extent(ended, oldest)
    assert kept < extent(ended, newest)
    with (ended / records.METRICS).open("r+b") as file:
        file.truncate(kept + 7)
    said = RecordedProgress()
    assert train.train(CONFIG, ended, said)["status"] == "exhausted"
    assert f"checkpoint {newest} of {ended} cannot be used: metrics.jsonl has" in said.lines[0]
    assert f"resuming from checkpoint {oldest}" in said.lines[-1]
    assert b"\0" not in (ended / records.METRICS).read_bytes()
    assert_equal_runs(CONFIG, uninterrupted(CONFIG), ended)


@pytest.mark.parametrize("damage", ["removed", "empty", "digit"])
def test_a_run_without_its_records_is_refused_and_left_unchanged(ended, damage, capsys):
    path = ended / records.METRICS
    if damage == "removed":
        path.unlink()
    elif damage == "empty":
        path.write_bytes(b"")
    else:
        path.write_bytes(path.read_bytes().replace(b'"step": 5', b'"step": 6', 1))
    # and whatever else would be moved, put back, or removed on resuming
    newest = ended / records.CHECKPOINTS / str(steps(ended)[0])
    newest.rename(newest.with_name(f".{newest.name}"))
    (ended / records.RESULT).write_text('{"status": "exhau')
    stale = ended / f".{records.RESULT}.{'a' * 16}.tmp"
    stale.touch()
    os.utime(stale, (0, 0))
    before = everything(ended)
    words = ["--config=configs/cifar10.py:mini", f"--workdir={ended}", *flags(CONFIG)]
    assert cli.guarded(train.main, words) == cli.WRONG_INPUT
    (said,) = capsys.readouterr().err.splitlines()
    assert re.search(r"cannot be resumed .*metrics.jsonl has .*restore", said)
    assert everything(ended) == before


def test_the_refusal_reaches_another_process_as_it_is():
    error = NothingToResume(pathlib.Path("run"), "checkpoint 5: it is empty")
    received = pickle.loads(pickle.dumps(error))
    assert (type(received), str(received)) == (NothingToResume, str(error))
    assert (received.workdir, received.reasons) == (error.workdir, error.reasons)


def truncated(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def largest(directory):
    return max((p for p in directory.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size)


@pytest.mark.slow
@pytest.mark.parametrize(
    "damage",
    [
        lambda checkpoint: truncated(checkpoint / "value" / "metadata"),
        lambda checkpoint: truncated(largest(checkpoint / "arrays" / "d")),
        lambda checkpoint: shutil.rmtree(checkpoint / "arrays"),
        lambda checkpoint: [shutil.rmtree(checkpoint), checkpoint.mkdir()],
    ],
    ids=["metadata", "array", "arrays_gone", "empty"],
)
def test_a_damaged_newest_checkpoint_is_set_aside_and_the_previous_one_used(
    ended, damage, uninterrupted
):
    newest, before = steps(ended)[:2]
    damage(ended / records.CHECKPOINTS / str(newest))
    said = RecordedProgress()
    assert train.train(CONFIG, ended, said)["status"] == "exhausted"
    assert f"checkpoint {newest} of {ended} cannot be used" in said.lines[0]
    assert f"resuming from checkpoint {before}" in said.lines[-1]
    assert (ended / records.DAMAGED / f"checkpoint_{newest}").is_dir()
    assert_equal_runs(CONFIG, uninterrupted(CONFIG), ended)


@pytest.mark.parametrize("both", [False, True])
def test_a_checkpoint_that_a_damaged_one_was_replacing_is_used(both, ended, uninterrupted):
    newest, before = steps(ended)[:2]
    place = ended / records.CHECKPOINTS / str(newest)
    replaced = shutil.copytree(place, place.with_name(f".{newest}"))
    for path in (place, replaced)[: 1 + both]:
        truncated(path / "value" / "metadata")
    said = RecordedProgress()
    assert train.train(CONFIG, ended, said)["status"] == "exhausted"
    assert f"resuming from checkpoint {before if both else newest};" in said.lines[-1]
    damaged = {path.name for path in (ended / records.DAMAGED).iterdir()}
    names = [f"checkpoint_{newest}", f"checkpoint_{newest}.1"]
    assert damaged == {*names[: 1 + both]}
    assert not list(place.parent.glob(".*"))
    assert_equal_runs(CONFIG, uninterrupted(CONFIG), ended)


KILLED = """
import os, sys
import train
from runs import checkpoints, cli
save, saved = checkpoints._Manager.save, []
def save_once(self, step, **arguments):
    if step in saved:
        os._exit(9)
    saved.append(step)
    return save(self, step, **arguments)
checkpoints._Manager.save = save_once
cli.guarded(train.main, sys.argv[1:])
"""


@pytest.mark.slow
def test_a_run_killed_while_it_replaces_its_only_checkpoint_resumes_from_it(
    tmp_path, uninterrupted
):
    """Its last step is saved before the final evaluation, and again with its value."""
    config = mini(evaluate_every_fresh_examples=1280, checkpoint_every_fresh_examples=640)
    workdir, steps = tmp_path / "run", []
    words = ["--config=configs/cifar10.py:mini", f"--workdir={workdir}", *flags(config)]
    assert forked.run(["-c", KILLED, *words], dict(os.environ), HANGS).returncode == 9
    assert train.train(config, workdir, on_step=steps.append)["status"] == "exhausted"
    assert not steps
    assert [path.name for path in (workdir / records.CHECKPOINTS).iterdir()] == ["20"]
    assert_equal_runs(config, uninterrupted(config), workdir)


@pytest.mark.parametrize(
    ("name", "is_file"), [("007", False), ("٩", False), ("007", True), (".7", True), (".20", True)]
)
def test_what_is_no_checkpoint_is_left_where_it_is(name, is_file, ended, uninterrupted):
    foreign = ended / records.CHECKPOINTS / name
    foreign.write_text("") if is_file else foreign.mkdir()
    assert train.train(CONFIG, ended)["status"] == "exhausted"
    assert foreign.exists()
    assert_equal_runs(CONFIG, ended, uninterrupted(CONFIG))


class Complains:
    """Raises what a coroutine of Orbax may raise when it is freed after its event loop."""

    def __del__(self):
        raise RuntimeError("Event loop is closed")


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
def test_what_outlives_an_event_loop_of_orbax_is_quiet():
    Complains()


def test_an_older_checkpoint_that_orbax_cannot_list_is_set_aside(ended, uninterrupted):
    """Otherwise the next save fails."""
    newest, before = steps(ended)[:2]
    metadata = ended / records.CHECKPOINTS / str(before) / "_CHECKPOINT_METADATA"
    records.write_json(metadata, records.read_json(metadata) | {"metrics": 1e30})
    said = RecordedProgress()
    assert train.train(CONFIG, ended, said)["status"] == "exhausted"
    assert f"checkpoint {before} of {ended} cannot be used: its metadata" in said.lines[0]
    assert f"resuming from checkpoint {newest}" in said.lines[-1]
    assert_equal_runs(CONFIG, uninterrupted(CONFIG), ended)


@pytest.mark.slow
def test_the_command_prints_one_line_for_a_damaged_array(ended):
    """Orbax reads arrays in the background, where the others complain when one has failed."""
    newest = steps(ended)[0]
    for path in (ended / records.CHECKPOINTS / str(newest)).glob("arrays/ocdbt.process_*/d/*"):
        truncated(path)
    run = run_command(
        "train.py", "--config=configs/cifar10.py:mini", f"--workdir={ended}", *flags(CONFIG)
    )
    assert run.returncode == 0, run.stderr
    lines = [line for line in run.stderr.splitlines() if "input wait" not in line]
    assert [line.partition(" ")[0] for line in lines] == ["warning:", "resuming", "exhausted:"], (
        lines
    )
    assert "its arrays cannot be read (ValueError: " in lines[0]


def test_the_command_sets_aside_a_result_that_is_not_a_file(tmp_path, uninterrupted, capsys):
    workdir = tmp_path / "run"
    shutil.copytree(uninterrupted(CONFIG), workdir)
    (workdir / records.RESULT).unlink()
    (workdir / records.RESULT).mkdir()
    words = ["--config=configs/cifar10.py:mini", f"--workdir={workdir}", *flags(CONFIG)]
    assert cli.guarded(train.main, words) == cli.OK
    assert "result.json is not a file; it is moved to" in capsys.readouterr().err.replace("\n", " ")
    assert_equal_runs(CONFIG, uninterrupted(CONFIG), workdir)


def test_a_result_without_its_configuration_is_damaged(tmp_path, uninterrupted):
    workdir = tmp_path / "run"
    shutil.copytree(uninterrupted(CONFIG), workdir)
    assert trial_records.read(workdir).config
    (workdir / records.CONFIG).unlink()
    with pytest.raises(records.Damaged, match=r"config.json is missing, but result.json exists"):
        trial_records.read(workdir)


@pytest.mark.slow
def test_a_result_that_is_missing_at_the_target_is_computed_again(tmp_path):
    """As if the process had been killed after its last checkpoint."""
    config, workdir = (
        mini(**echoing("before_augmentation", 100), target__value=0.15),
        tmp_path / "run",
    )
    expected = train.train(config, workdir)
    assert expected["status"] == "reached"
    assert expected["fresh_examples"] < config.budget.fresh_examples
    curve = (workdir / records.METRICS).read_bytes()
    (workdir / records.RESULT).unlink()
    assert without_clocks(train.train(config, workdir)) == without_clocks(expected)
    assert (workdir / records.METRICS).read_bytes() == curve


@pytest.mark.slow
@pytest.mark.parametrize(
    "content", [b"", b'{"status": "rea', b'{"status": "reached", "step": "x"}']
)
def test_a_damaged_result_is_set_aside_and_computed_again(tmp_path, content, uninterrupted):
    workdir = tmp_path / "run"
    shutil.copytree(uninterrupted(CONFIG), workdir)
    expected = records.read_json(workdir / records.RESULT)
    (workdir / records.RESULT).write_bytes(content)
    said = RecordedProgress()
    result = train.train(CONFIG, workdir, said)
    assert without_clocks(result) == without_clocks(expected)
    assert "result.json" in said.lines[0]
    assert (workdir / records.DAMAGED / records.RESULT).read_bytes() == content


def test_a_result_whose_field_has_another_name_is_damaged(tmp_path, uninterrupted):
    result = records.read_json(uninterrupted(CONFIG) / records.RESULT)
    path = tmp_path / records.RESULT
    for within in (result, result["best"], result["target"]):
        for name in tuple(within):
            within["x"] = within.pop(name)
            records.write_json(path, result)
            with pytest.raises(records.Damaged, match=r"result\.json"):
                trial_records.read_result(tmp_path)
            within[name] = within.pop("x")
    records.write_json(path, result)
    assert trial_records.read_result(tmp_path) == result


@pytest.mark.parametrize(
    "field", [{"mode": "sideways"}, {"value": None}, {"metric": ["accuracy"]}, {"metric": 3}]
)
def test_a_result_whose_target_makes_no_sense_is_damaged(field, tmp_path, uninterrupted):
    result = records.read_json(uninterrupted(CONFIG) / records.RESULT)
    records.write_json(tmp_path / records.RESULT, result | {"target": result["target"] | field})
    with pytest.raises(records.Damaged, match=r"result\.json: target"):
        trial_records.read_result(tmp_path)


@pytest.mark.parametrize("content", [b"", b'{"config": {', b"[]", b"{}", b"[" * 100_000])
def test_a_damaged_config_is_one_sentence(tmp_path, content, uninterrupted):
    workdir = tmp_path / "run"
    shutil.copytree(uninterrupted(CONFIG), workdir)
    (workdir / records.CONFIG).write_bytes(content)
    before = everything(workdir)
    with pytest.raises(cli.InputError, match=r"is damaged \(config.json .*restore that file"):
        train.train(CONFIG, workdir)
    assert everything(workdir) == before


@pytest.mark.slow
def test_decisions_after_the_last_checkpoint_are_repeated_before_new_ones(tmp_path):
    """As after a kill: what was decided since the checkpoint comes again, and so do its numbers."""
    settings = echoing("before_augmentation", 50, factor=1) | {"echo__policy": "auto"}
    settings["echo__max_factor"] = 1000  # enough for the steps before the rest arrives
    config = mini(**settings, log_every_steps=1)
    workdir, resumed = tmp_path / "run", tmp_path / "resumed"
    words = ["--late=100:20", "--config=configs/cifar10.py:mini", f"--workdir={workdir}"]
    with held_training(30, *words, *flags(config)):
        pass  # and is killed in step 30, perhaps while a checkpoint is being saved
    shutil.copytree(workdir, resumed)
    # what was last written may be torn
    with (resumed / records.DECISIONS).open("ab") as file:
        file.write(b'{"step": 31, "fre')
    decided = recorded_so_far(workdir)
    saved = latest_step(resumed) or 0
    assert saved < len(decided) == 30
    lines = [r for r in records_of(resumed) if r["step"] > saved]
    result = train.train(config, resumed)
    assert recorded(resumed)[:30] == decided
    assert len(recorded(resumed)) == result["step"]
    again = {(r["step"], r["split"]): r for r in records_of(resumed)}
    for line in lines:
        assert again[line["step"], line["split"]] == line
    # and the whole is what its decisions say
    replayed = mini(**settings, log_every_steps=1, echo__replay=str(resumed / records.DECISIONS))
    train.train(replayed, tmp_path / "replayed")
    assert records_of(tmp_path / "replayed") == records_of(resumed)
    ours, theirs = (
        last_saved(config, tmp_path / d)[1]["counters"] for d in ("replayed", "resumed")
    )
    assert ours == theirs


def recorded_so_far(workdir):
    return records.read_decisions(workdir / records.DECISIONS)[0]


@pytest.mark.slow
def test_a_run_continues_without_its_terminal(tmp_path):
    words = ["--config=configs/cifar10.py:mini", f"--workdir={tmp_path / 'run'}", *flags(CONFIG)]
    with held_training(3, *words) as process:
        process.send_signal(signal.SIGHUP)
        process.stdout.close()
        process.stderr.close()
        process.stdin.close()
        assert process.wait(timeout=HANGS) == 0
        process.stdin = process.stdout = process.stderr = None
    assert records.read_json(tmp_path / "run" / records.RESULT)["status"] == "exhausted"


@pytest.mark.long
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
@pytest.mark.parametrize("arguments", [["--help"], ["--evaluate", "nowhere"]])
def test_output_that_cannot_be_written_changes_no_exit_code(arguments):
    codes = []
    for device in ("/dev/null", "/dev/full"):
        with open(device, "w") as output:
            run = subprocess.run(
                [sys.executable, "train.py", *arguments], cwd=ROOT, stdout=output, stderr=output
            )
        codes.append(run.returncode)
    assert codes[0] == codes[1]


PLACES = {
    "file": lambda tmp: (tmp / "file").write_text("mine") and tmp / "file",
    "below_a_file": lambda tmp: (tmp / "file").write_text("mine") and tmp / "file" / "run",
    "dangling": lambda tmp: [(tmp / "link").symlink_to(tmp / "nowhere"), tmp / "link"][-1],
    "device": lambda tmp: pathlib.Path("/dev/null"),
    "too_long": lambda tmp: tmp / ("x" * 5000),
    "read_only": lambda tmp: pathlib.Path("/proc/run"),
    "url": lambda tmp: "gs://bucket/run",
    "not_utf8": lambda tmp: f"{tmp}/\udcff",
    "zero_byte": lambda tmp: f"{tmp}/a\0b",
}


@pytest.mark.parametrize("place", PLACES)
def test_a_path_that_cannot_contain_a_run_is_one_sentence(tmp_path, place):
    workdir = PLACES[place](tmp_path)
    before = everything(tmp_path)
    with pytest.raises(cli.InputError, match=r"; give a") as caught:
        train.train(CONFIG, workdir)
    assert len(str(caught.value)) < 400
    assert "\n" not in str(caught.value)
    assert everything(tmp_path) == before


@pytest.mark.parametrize("place", PLACES)
def test_a_path_that_cannot_contain_a_study_is_one_sentence(tmp_path, place, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    outdir = PLACES[place](tmp_path)
    before = everything(tmp_path)
    words = ["--config=configs/cifar10.py:mini", "--study=demo", f"--outdir={outdir}"]
    assert cli.guarded(sweep.main, words) == cli.WRONG_INPUT
    (said,) = capsys.readouterr().err.splitlines()
    assert re.match(r"error: .*; give a", said)
    assert everything(tmp_path) == before


@pytest.mark.parametrize("below", ["", "vocabularies"])
def test_a_cache_in_the_directory_of_the_run_or_study_is_one_sentence(tmp_path, below, capsys):
    """It would be written before the directory is known to be usable."""
    words = ["--config=configs/lm1b.py:mini", f"--config.dataset.cache_dir={tmp_path / below}"]
    for main, flag in ((train.main, ["--workdir"]), (sweep.main, ["--study=factor", "--outdir"])):
        argv = [*words, *flag[:-1], f"{flag[-1]}={tmp_path}"]
        assert cli.guarded(main, argv) == cli.WRONG_INPUT
        (said,) = capsys.readouterr().err.splitlines()
        assert f"is in {flag[-1]}={tmp_path}; allowed: a directory outside it" in said
        assert everything(tmp_path) == everything(tmp_path / "none")


def _can_mount():
    words = ["unshare", "-rm", "true"]
    try:
        return subprocess.run(words, capture_output=True).returncode == 0
    except OSError:
        return False


@pytest.mark.slow
@pytest.mark.skipif(not _can_mount(), reason="needs user namespaces, to mount a small disk")
def test_a_full_disk_is_one_sentence(tmp_path):
    small = tmp_path / "small"
    small.mkdir()
    words = [f"--workdir={small / 'run'}", *flags(mini(**RESNET))]
    run = subprocess.run(
        [
            *("unshare", "-rm", "sh", "-c"),
            'mount -t tmpfs -o size=300k tmpfs "$0" && exec "$@"',
            *(str(small), sys.executable, "train.py", "--config=configs/cifar10.py:mini", *words),
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=HANGS,
    )
    said = [line for line in run.stderr.splitlines() if "input wait" not in line]
    assert run.returncode == cli.FAILED, said
    assert len(said) == 1, said
    assert said[0].startswith(f"error: no space is left on the disk of {small / 'run'}, or your ")


@pytest.mark.long
def test_a_limit_that_only_tensorboard_exceeds_costs_its_file_alone(tmp_path):
    """Its file is the largest. The run has more to record than fits into a pipe that nobody
    reads."""
    limit = 270_000
    config = mini(
        budget__fresh_examples=24_000,
        checkpoint_every_fresh_examples=0,
        evaluate_every_fresh_examples=0,
        log_every_steps=1,
    )
    environment = {k: v for k, v in os.environ.items() if k != "JAX_COMPILATION_CACHE_DIR"}
    workdir = tmp_path / "run"
    words = ["--config=configs/cifar10.py:mini", f"--workdir={workdir}", *flags(config)]
    limited = (
        f"import os, resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit})); "
        "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
    )
    run = subprocess.run(
        [sys.executable, "-c", limited, "train.py", *words],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=HANGS,
    )
    assert run.returncode == cli.OK, run.stderr
    assert "Traceback" not in run.stderr
    assert (
        "warning: --tracker=tensorboard failed (OSError: [Errno 27] File too large)" in run.stderr
    )
    (events,) = (workdir / records.TENSORBOARD).iterdir()
    assert (workdir / records.METRICS).stat().st_size < limit == events.stat().st_size


@pytest.mark.parametrize(
    ("command", "number", "code", "message"),
    [
        ("train.py", signal.SIGINT, signals.INTERRUPTED, "interrupted"),
        ("train.py", signal.SIGTERM, cli.PREEMPTED, "run the same command again"),
        ("sweep.py", signal.SIGTERM, cli.PREEMPTED, "run the same command again"),
    ],
)
def test_a_signal_during_the_imports_of_a_command_ends_it_quietly(command, number, code, message):
    process = subprocess.Popen(
        [sys.executable, "-X", "importtime", command, "--help"],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    for line in process.stderr:  # a line for each import that is done
        if line.rpartition("|")[2].strip() == "numpy.version":
            break
    process.send_signal(number)
    left = process.communicate(timeout=HANGS)[1]
    assert process.returncode == code
    assert "Traceback" not in left
    assert message in left


@pytest.mark.slow
def test_a_second_ctrl_c_ends_a_run_at_once_without_a_traceback(tmp_path):
    words = ["--config=configs/cifar10.py:mini", f"--workdir={tmp_path / 'run'}", *flags(CONFIG)]
    with held_training(3, *words) as process:
        while process.poll() is None:  # two that come at once are one
            process.send_signal(signal.SIGINT)
            time.sleep(0.05)
        assert process.returncode == signals.INTERRUPTED
        assert "Traceback" not in process.stderr.read()
