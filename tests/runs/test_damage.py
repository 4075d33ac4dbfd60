"""Damaged files, a second process, a lost terminal, a full disk: equal numbers, or one sentence."""

import pathlib
import shutil
import signal
import subprocess
import sys
import time

import jax.numpy as jnp
import numpy as np
import pytest

import sweep
import train
from runs import cli, records, signals, workdirs
from runs.checkpoints import Checkpoints
from tests.helpers.runs import (
    HANGS,
    ROOT,
    assert_equal_runs,
    command,
    contents,
    echoing,
    flags,
    held_training,
    last_saved,
    latest_step,
    mini,
    recorded,
    records_of,
    stop_at,
    without_clocks,
)

CONFIG = mini(**echoing("before_augmentation", 100))  # 50 steps, checkpoints after 25 and more
WORDS = ["--config=configs/cifar10.py:mini", *flags(CONFIG)]


@pytest.fixture
def ended(tmp_path, uninterrupted):
    """A copy of a run whose process died after its last checkpoint and before its result."""
    shutil.copytree(uninterrupted(CONFIG), tmp_path / "run")
    (tmp_path / "run" / records.RESULT).unlink()
    return tmp_path / "run"


def steps(workdir):
    return Checkpoints(workdir / records.CHECKPOINTS).steps()


def truncated(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def test_a_run_in_use_is_refused_and_a_finished_one_needs_no_lock(ended, uninterrupted):
    with workdirs.held(ended / records.LOCK) as here:
        assert here
        with workdirs.held(ended / records.LOCK) as again:
            assert not again
        before = contents(ended)
        with pytest.raises(cli.InputError, match="another process"):
            train.train(CONFIG, ended)
        assert contents(ended) == before
    finished = uninterrupted(CONFIG)
    with workdirs.held(finished / records.LOCK):
        assert train.train(CONFIG, finished) == records.read_json(finished / records.RESULT)


def cut_records(workdir):
    """Metrics that only the oldest checkpoint finds whole."""
    checkpoints = Checkpoints(workdir / records.CHECKPOINTS)
    kept = checkpoints.value(checkpoints.steps()[-1])["records"][records.METRICS]["bytes"]
    with (workdir / records.METRICS).open("r+b") as file:
        file.truncate(kept + 7)


def of_newest(damage):
    return lambda workdir: damage(workdir / records.CHECKPOINTS / str(steps(workdir)[0]))


def copied(number):
    return of_newest(lambda path: shutil.copytree(path, path.with_name(str(number))))


def write(name, content):
    return lambda workdir: (workdir / name).write_bytes(content)


def one_digit(workdir):
    content = (workdir / records.METRICS).read_bytes().replace(b'"step": 5', b'"step": 6', 1)
    (workdir / records.METRICS).write_bytes(content)


# What is moved to damaged/, by name; N is the newest checkpoint.
SET_ASIDE = [
    ("checkpoint_N", cut_records),
    ("checkpoint_N", of_newest(lambda path: (path / "_CHECKPOINT_METADATA").write_text("[1]"))),
    ("checkpoint_N", of_newest(lambda path: truncated(path / "value" / "metadata"))),
    ("checkpoint_N", of_newest(lambda path: shutil.rmtree(path / "arrays"))),
    ("checkpoint_N", of_newest(lambda path: [shutil.rmtree(path), path.mkdir()])),
    # Orbax reads arrays in the background, where the others complain when one has failed
    ("checkpoint_N", of_newest(lambda path: [*map(truncated, path.glob("arrays/*_0/d/*"))])),
    ("checkpoint_1", copied(1)),
    ("checkpoint_999", copied(999)),
]


@pytest.mark.parametrize(("aside", "damage"), SET_ASIDE)
def test_what_is_damaged_is_set_aside_and_an_older_checkpoint_used(
    aside, damage, ended, uninterrupted, capfd
):
    name = aside.replace("N", str(steps(ended)[0]))
    damage(ended)
    assert cli.guarded(train.main, [*WORDS, f"--workdir={ended}"]) == cli.OK
    said = [line for line in capfd.readouterr().err.splitlines() if "input wait" not in line]
    assert name.replace("_", " ") in said[0]
    assert 2 <= len(said) <= 5
    assert (ended / records.DAMAGED / name).exists()
    assert_equal_runs(CONFIG, uninterrupted(CONFIG), ended)


REFUSED = [
    (records.METRICS, lambda workdir: (workdir / records.METRICS).unlink()),
    (records.METRICS, write(records.METRICS, b"")),
    (records.METRICS, one_digit),
    *(
        (records.CONFIG, write(records.CONFIG, content))
        for content in (b"", b'{"config": {', b"[]", b"{}", b'{"schema_version": 8}')
    ),
]


@pytest.mark.parametrize(("name", "damage"), REFUSED)
def test_a_run_without_its_records_is_refused_and_left_unchanged(name, damage, ended, capsys):
    damage(ended)
    (ended / records.RESULT).write_text('{"status": "exhau')
    before = contents(ended)
    assert cli.guarded(train.main, [*WORDS, f"--workdir={ended}"]) == cli.WRONG_INPUT
    (said,) = capsys.readouterr().err.splitlines()
    assert name in said
    assert contents(ended) == before


@pytest.mark.parametrize("content", [None, b"", b'{"status": "reached", "step": "x"}'])
def test_a_result_that_is_missing_or_damaged_is_computed_again(content, tmp_path):
    """As if the process had been killed after its last checkpoint."""
    config = mini(**echoing("before_augmentation", 100), target__value=0.15)
    workdir = tmp_path / "run"
    expected = train.train(config, workdir)
    assert expected["status"] == "reached"
    assert expected["fresh_examples"] < config.budget.fresh_examples
    curve = records_of(workdir)
    (workdir / records.RESULT).unlink()
    if content is not None:
        (workdir / records.RESULT).write_bytes(content)
    assert without_clocks(train.train(config, workdir)) == without_clocks(expected)
    assert records_of(workdir) == curve


def test_decisions_after_the_last_checkpoint_are_repeated_before_new_ones(tmp_path):
    """As after a kill: what was decided since the checkpoint comes again, and so do its numbers."""
    settings = echoing("before_augmentation", 50, factor=1) | {"echo__policy": "auto"}
    settings["echo__max_factor"] = 1000  # enough for the steps before the rest arrives
    config = mini(**settings, log_every_steps=1)
    workdir, resumed = tmp_path / "run", tmp_path / "resumed"
    with held_training(30, "--late=100:20", *command(config, workdir)):
        pass  # and is killed in step 30, perhaps while a checkpoint is being saved
    shutil.copytree(workdir, resumed)
    # what was last written may be torn
    with (resumed / records.DECISIONS).open("ab") as file:
        file.write(b'{"step": 31, "fre')
    decided, _ = records.read_decisions(workdir / records.DECISIONS)
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
    ours, theirs = (last_saved(config, tmp_path / d)[1] for d in ("replayed", "resumed"))
    assert ours["counters"] == theirs["counters"]


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
    # Orbax globs, and TensorStore takes a backslash for a slash
    "pattern": lambda tmp: tmp / "lr=[0.1]",
    "pattern_above": lambda tmp: tmp / "a*" / "run",
    "backslash": lambda tmp: f"{tmp}/a\\b",
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    ("main", "words"),
    [(train.main, ["--workdir"]), (sweep.main, ["--study=demo", "--outdir"])],
    ids=["run", "study"],
)
def test_a_path_that_cannot_be_written_to_is_one_sentence(main, words, place, tmp_path, capsys):
    directory = PLACES[place](tmp_path)
    before = contents(tmp_path)
    argv = [WORDS[0], *words[:-1], f"{words[-1]}={directory}"]
    assert cli.guarded(main, argv) == cli.WRONG_INPUT
    assert capsys.readouterr().err.count("\n") == 1
    assert contents(tmp_path) == before


# Names that a shell, a glob, a URL, or a tool of ours could take for something else.
ODD = (
    "{a,b} a%20b a#b a@b a:b a;b a&b a|b a'b a\"b ~a $HOME -a .a a. ..a e\u0301 日本 a+b a=b,c (a)"
)
ODD += f" <a> !a ^a `a` a::b file: a%5Bb %s 12 {records.LOCK} a.orbax-checkpoint-tmp-1"


def test_checkpoints_are_found_under_odd_names(tmp_path):
    for name in (*ODD.split(), " a", "a "):
        places = {*tmp_path.iterdir()}
        kept = Checkpoints(tmp_path / name)
        for step in (1, 2):
            kept.save(step, {"w": np.full(3, step)}, {"step": step}, 1)
        kept.close()
        for step in (2, 1):
            restored = Checkpoints(tmp_path / name).restore(step, {"w": jnp.zeros(3, int)})
            np.testing.assert_array_equal(restored["w"], step)
        assert {*tmp_path.iterdir()} - places == {tmp_path / name}


def test_a_run_in_a_directory_with_an_odd_name_stops_resumes_and_is_evaluated(tmp_path):
    link = tmp_path / " {a,b}%5B#@:;&|'\"$HOME~-日本::file:"
    (tmp_path / "lr=[0.1]").mkdir()
    link.symlink_to(tmp_path / "lr=[0.1]")
    workdir = link / "lock"
    words = [*WORDS, f"--workdir={workdir}"]
    assert cli.guarded(lambda argv: train.main(argv, stop_at(13)), words) == cli.PREEMPTED
    assert cli.guarded(train.main, words) == cli.OK
    assert cli.guarded(train.main, [f"--evaluate={workdir}"]) == cli.OK


@pytest.mark.parametrize("main", [train.main, sweep.main])
def test_a_cache_in_the_directory_of_the_run_or_study_is_one_sentence(main, tmp_path, capsys):
    """It would be written before the directory is known to be usable."""
    words = ["--config=configs/lm1b.py:mini", f"--config.dataset.cache_dir={tmp_path / 'below'}"]
    words += ["--workdir"] if main is train.main else ["--study=factor", "--outdir"]
    assert cli.guarded(main, [*words, str(tmp_path)]) == cli.WRONG_INPUT
    (said,) = capsys.readouterr().err.splitlines()
    assert "dataset.cache_dir" in said
    assert not [*tmp_path.iterdir()]


def test_a_full_disk_is_one_sentence(tmp_path):
    if subprocess.run("unshare -rm true", shell=True, capture_output=True).returncode:
        pytest.skip("needs user namespaces")
    small = tmp_path / "small"
    small.mkdir()
    config = mini(**echoing("before_augmentation", 100), model__depth=8, model__width=4)
    mount = 'mount -t tmpfs -o size=300k tmpfs "$0" && exec "$@"'
    words = ["unshare", "-rm", "sh", "-c", mount, str(small), sys.executable, "train.py"]
    words += [WORDS[0], f"--workdir={small / 'run'}", *flags(config)]
    run = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=HANGS)
    assert run.returncode == cli.FAILED, run.stderr
    assert "no space is left" in run.stderr.splitlines()[-1]
    assert "Traceback" not in run.stderr


def test_a_run_continues_without_its_terminal(tmp_path):
    with held_training(3, *WORDS, f"--workdir={tmp_path / 'run'}") as process:
        process.send_signal(signal.SIGHUP)
        process.stdout.close()
        process.stderr.close()
        process.stdin.close()
        assert process.wait(timeout=HANGS) == 0
    assert records.read_json(tmp_path / "run" / records.RESULT)["status"] == "exhausted"


@pytest.mark.parametrize(
    ("number", "code"),
    [(signal.SIGINT, signals.INTERRUPTED), (signal.SIGTERM, cli.PREEMPTED)],
)
def test_a_signal_during_the_imports_of_a_command_ends_it_quietly(number, code):
    words = [sys.executable, "-X", "importtime", "train.py", "--help"]
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    process = subprocess.Popen(words, cwd=ROOT, text=True, **pipes)
    for line in process.stderr:  # a line for each import that is done
        if line.rpartition("|")[2].strip() == "numpy.version":
            break
    process.send_signal(number)
    left = process.communicate(timeout=HANGS)[1]
    assert process.returncode == code
    assert "Traceback" not in left


def test_a_second_ctrl_c_ends_a_run_that_waits_and_it_resumes(tmp_path):
    """As one does whose source does not answer."""
    workdir = tmp_path / "run"
    with held_training(3, *WORDS, f"--workdir={workdir}") as process:
        while process.poll() is None:
            process.send_signal(signal.SIGINT)
            time.sleep(0.05)
        assert process.returncode == signals.INTERRUPTED
        assert "Traceback" not in process.stderr.read()
    assert train.train(CONFIG, workdir)["status"] == "exhausted"
