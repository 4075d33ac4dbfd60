"""The command line: help that teaches, and one sentence with exit code 2 for what is wrong."""

import errno
import os

import jax
import pytest

import advise
import sweep
import train
from analysis import __main__ as analysis
from configs import base
from runs import cli, records
from runs.records import nested
from tests.helpers.runs import flags, mini, refusal, run_python

MINI = "--config=configs/cifar10.py:mini"


@pytest.mark.parametrize("words", [[], ["--config=configs/lm1b.py:mini"]])
def test_help_explains_every_field_those_of_echoing_first(words, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "5000")
    with pytest.raises(SystemExit):
        train.parse(["--help", *words])
    text = capsys.readouterr().out
    config = cli.load_config("configs/lm1b.py:mini")[0] if words else base.get_config()
    told = text.split("--config.")
    assert told[-len(base.FIELDS)].startswith("echo.insertion ")
    told = {" ".join(part.split()) for part in told}
    for field in base.FIELDS:
        value = nested(config, field.name)
        assert f"{field.name} VALUE {field.help}; allowed: {field.allowed} (now {value!r})" in told


WRONG = [
    ("--config.workload=resnet", "config.workload"),
    ("--config.echo.insertion=before", "before_augmentation"),
    ("--config.echo.factr=2", "echo.factor"),
    ("--config.factor=2", "echo.factor"),
    ("--config.echo.factor=two", "config.echo.factor"),
    ("--config.echo.factor=2", "echo.insertion"),
    ("--config.target.value=90", "config.target.value"),
    ("--config.model.depth=9", "config.model.depth"),
    ("--config.model.name=mine", "--config adds"),
    ("--config.dataset.name=cifar10", "cifar10"),
    ("--config.dataset.validation_split=dev", "dev"),
    ("--config.batch_size", "--config.batch_size=VALUE"),
    ("--wrkdir=x", "--workdir"),
    ("extra", "extra"),
    ("--evaluate=--", "--evaluate"),
    ("--config=configs/cifar.py", "configs/cifar10.py"),
    ("--config=configs/cifar10.py:tiny", "mini"),
    ("--config=configs/problems.py", "digits"),
    *(("--config=" + path, ".py") for path in ("a" * 5000 + ".py", "a\0.py", ".")),
    ("--workdir=", "--mirror"),
    ("--workdir=s3://bucket/run", "--mirror"),
    ("--workdir=~nobody-here/run", "~nobody-here/run"),
    ("--tracker=tensorbord", "--tracker"),
    ("--tracker=", "--tracker"),
    *((f"--profile={steps}", "--profile") for steps in ("5", "0:3", "3:3")),
    *((f"--mirror={url}", "--mirror") for url in ("", "nowhere://x", "memory://a::b", "{}/run/m")),
    ("--mirror=ftp://me:word@127.0.0.1:1/x", "***@"),
]


@pytest.mark.parametrize(("word", "named"), WRONG, ids=range(len(WRONG)))
def test_wrong_input_is_one_sentence_and_writes_nothing(word, named, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    words = [word] if word.startswith("--config=") else [MINI, word.format(tmp_path)]
    assert named in refusal(train.main, [f"--workdir={tmp_path / 'run'}", *words], capsys)
    assert not [*tmp_path.iterdir()]


def test_the_flags_that_are_missing_are_named(capsys):
    assert "--config" in refusal(train.main, [], capsys)
    assert "--workdir" in refusal(train.main, [MINI], capsys)


def test_a_directory_with_another_run_or_something_else_is_refused(uninterrupted, tmp_path, capsys):
    (tmp_path / "thesis.tex").write_text("precious")
    assert str(tmp_path) in refusal(train.main, [MINI, f"--workdir={tmp_path}"], capsys)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]
    workdir = uninterrupted(mini())
    before = sorted(workdir.rglob("*"))
    words = [MINI, f"--workdir={workdir}", *flags(mini(optimizer__learning_rate=0.5))]
    assert "optimizer.learning_rate (0.1 there, 0.5 here)" in refusal(train.main, words, capsys)
    assert sorted(workdir.rglob("*")) == before


def test_a_path_may_start_at_the_home_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert train.parse([MINI, "--workdir=~/run"])[0].workdir == tmp_path / "run"
    assert analysis.parse(["study", "--out=~/run"]).out == tmp_path / "run"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        *((OSError(n, os.strerror(n)), cli.FAILED) for n in (errno.ENOSPC, errno.EDQUOT)),
        (ValueError("RESOURCE_EXHAUSTED: text [os_error_code='28']"), cli.FAILED),  # TensorStore's
        (OSError(errno.EACCES, "text", "/a/path"), cli.WRONG_INPUT),
        (OSError(errno.ENOTCONN, "text", "/a/path"), cli.WRONG_INPUT),  # a mount that is gone
        (records.Damaged("/a/path has changed"), cli.WRONG_INPUT),
        (ValueError("text [os_error_code='13']"), None),
        (OSError(errno.EIO, "text"), None),
    ],
)
def test_an_error_of_files_ends_any_command_with_one_sentence(error, code, capsys):
    def fails(argv):
        if not argv:
            raise error
        raise RuntimeError("writing x") from error

    if code is None:
        with pytest.raises(type(error)):
            cli.guarded(fails, [])
        return
    assert ("no space" if code == cli.FAILED else "/a/path") in refusal(fails, [], capsys, code)
    if code == cli.FAILED:
        assert "no space" in refusal(fails, ["behind another"], capsys, code)


@pytest.mark.parametrize("error", [RuntimeError("Unable to initialize 'x'"), AssertionError()])
@pytest.mark.parametrize(
    ("command", "words"),
    [(train, ["--workdir={}/run"]), (sweep, ["--study=demo", "--dry-run"]), (advise, [])],
)
def test_a_platform_without_a_device_is_one_sentence(
    command, words, error, tmp_path, capsys, monkeypatch
):
    def devices(*_):
        raise error

    monkeypatch.setattr(jax, "devices", devices)
    monkeypatch.setenv("JAX_PLATFORMS", "x")  # which the command extends
    before = jax.config.jax_platforms
    jax.config.update("jax_platforms", "x")
    try:
        said = refusal(command.main, [MINI, *(w.format(tmp_path) for w in words)], capsys)
    finally:
        jax.config.update("jax_platforms", before)
    assert "JAX_PLATFORMS=x" in said
    assert not [*tmp_path.iterdir()]


BASE = "from configs import base\nc = base.get_config()\n"


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("import nothing_of_this_name\n", "mine.py, line 1: ModuleNotFoundError"),
        ("def f(:\n", "SyntaxError: invalid syntax (mine.py, line 1)"),
        ("x = 1\nraise SystemExit(3)\n", "mine.py, line 2: SystemExit"),
        ("def get_config():\n    raise OSError('a\\nb')\n", "line 2: OSError: a b"),
        ("def get_config():\n    return get_config()\n", "line 2: RecursionError"),
        ("def get_config(a, b):\n    pass\n", "mine.py: TypeError"),
        ("def get_config():\n    pass\n", "ConfigDict"),
        (BASE + "c.echo.fctor = 2.0\n", '"factor" instead of "fctor"'),
        (BASE + "c['ech'].factor = 2.0\n", '"echo" instead of "ech"'),
        (BASE + "c.unlock().echo.fctor = 2\ndef get_config():\n    return c\n", "echo.factor?"),
        (BASE + "with c.unlocked():\n    del c.echo['factor']\nget_config = lambda: c\n", "echo.f"),
    ],
)
def test_an_error_in_a_configuration_file_is_shown_with_its_line(text, named, tmp_path, capsys):
    (tmp_path / "mine.py").write_text(text)
    words = [f"--config={tmp_path / 'mine.py'}", f"--workdir={tmp_path / 'run'}"]
    assert named in refusal(train.main, words, capsys)
    assert not (tmp_path / "run").exists()


def test_characters_that_standard_output_cannot_encode_are_escaped():
    prints = "from runs import cli; from runs.progress import write; "
    prints += "cli.guarded(lambda argv: write('e \\u2264 4') or cli.OK)"
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    assert run_python(["-c", prints], environment).stdout == r"e \u2264 4" + "\n"
