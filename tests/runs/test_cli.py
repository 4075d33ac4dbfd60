"""The command line: help that teaches, and one sentence with exit code 2 for what is wrong."""

import errno
import os
import re
import subprocess
import sys

import jax
import pytest

import advise
import sweep
import train
from analysis import __main__ as analysis
from configs import base
from data import storage
from runs import cli, workdirs
from tests.helpers.runs import ROOT, cpu_devices, flags, mini, run_command


@pytest.mark.parametrize("script", ["train.py", "sweep.py", "advise.py"])
def test_help_explains_the_command_and_every_field(script):
    done = run_command(script, "--help")
    assert done.returncode == 0
    for field in base.FIELDS:
        assert (
            f"  {field.name} = {field.default!r}\n        {field.help}\n"
            f"        allowed: {field.range_text}\n"
        ) in done.stdout


def test_help_with_a_configuration_shows_its_values_those_of_echoing_first(capsys):
    parser = cli.Parser("", base.FIELDS)
    parser.add_argument("--config")
    with pytest.raises(SystemExit):
        parser.parse_args(["--config=configs/lm1b.py:mini", "--help"])
    text = capsys.readouterr().out
    assert "  workload = 'lm1b'\n" in text
    assert re.findall(r"^  (\S+) = ", text, re.MULTILINE)[0] == "echo.insertion"
    with pytest.raises(cli.InputError, match=r"no\.py is not a readable configuration file"):
        parser.parse_args(["--help", "--config=no.py"])


def test_the_home_directory_of_nobody_is_one_sentence(tmp_path):
    config = mini(dataset__cache_dir="~nobody-here/cache")
    opened = (
        lambda: workdirs.check_apart(tmp_path, config, "--workdir"),
        lambda: storage.Tree(str(tmp_path), []).cache(config.dataset.cache_dir),
        lambda: cli.Parser("").parse_args(["--workdir=~nobody-here/cache"]),
    )
    for refused in opened:
        with pytest.raises(cli.InputError, match="~nobody-here/cache is in the home directory of"):
            refused()


def test_a_loop_of_symbolic_links_is_left_to_those_who_open_it(tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    config = mini(dataset__cache_dir=str(tmp_path / "loop"))
    workdirs.check_apart(tmp_path / "run", config, "--workdir")
    with pytest.raises(cli.InputError, match=r"cache_dir is .*loop, which is in --workdir="):
        workdirs.check_apart(tmp_path, config, "--workdir")


@pytest.mark.slow
@pytest.mark.parametrize("command", ["train.py", "sweep.py", "advise.py", "analysis"])
@pytest.mark.parametrize("flag", ["--help", "--bogus"])
def test_help_and_wrong_flags_answer_before_slow_imports(command, flag):
    words = [command] if command.endswith(".py") else ["-m", command]
    done = subprocess.run(
        [sys.executable, "-X", "importtime", *words, flag], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == (cli.OK if flag == "--help" else cli.WRONG_INPUT)
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert {"jax", "grain", "pandas", "scipy", "matplotlib"}.isdisjoint(imported)
    assert "argparse" in imported


WRONG = [
    (["--config.workload=resnet"], "config.workload is 'resnet'; allowed: cifar10"),
    (["--config.echo.insertion=before"], "allowed: 'none', 'before_augmentation'"),
    (["--config.echo.factr=2"], "there is no field config.echo.factr (did you mean echo.factor?)"),
    (["--config.factor=2"], "did you mean echo.factor?"),
    (["--config.echo.factor=0.5"], "config.echo.factor is 0.5; allowed: a number from 1"),
    (["--config.echo.factor=two"], "config.echo.factor is 'two'; allowed: a number"),
    (["--config.echo.factor=nan"], "config.echo.factor is nan; allowed: a number from 1"),
    (["--config.echo.factor=2"], "1 where insertion is 'none'"),
    (["--config.echo.shuffle_buffer=-1"], "config.echo.shuffle_buffer is -1; allowed: a whole"),
    (["--config.echo.streams=5"], "config.echo.streams is 5, which does not divide"),
    (
        ["--config.echo.placement=disk"],
        "config.echo.placement is 'disk'; allowed: 'host', 'device'",
    ),
    (["--config.batch_size=0"], "config.batch_size is 0; allowed: a whole number from 1"),
    (["--config.batch_size=2.5"], "config.batch_size is 2.5; allowed: a whole number"),
    (["--config.mesh.data=64"], "config.mesh is data=64"),
    (["--config.budget.fresh_examples=31"], "which gives no batch of 32"),
    (["--config.target.metric=mAP"], "does not report; allowed: accuracy, loss"),
    (["--config.target.mode=over"], "config.target.mode is 'over'; allowed: 'above', 'below'"),
    (["--config.target.metric=loss"], "with target.metric='loss', so that an untrained network"),
    (["--config.target.mode=below"], "with target.metric='accuracy', so that an untrained"),
    (["--config.target.value=90"], "config.target.value is 90, which accuracy, a share, cannot"),
    (["--config.optimizer.name=sgd"], "allowed: 'nesterov', 'momentum'"),
    (["--config.optimizer.momentum=1"], "config.optimizer.momentum is 1; allowed: a number fr"),
    (["--config.optimizer.learning_rate=inf"], "config.optimizer.learning_rate is inf"),
    (["--config.model.depth=9"], "config.model.depth is 9; allowed: 6n + 2"),
    (["--config.dataset.name=cifar10"], "data set 'cifar10' is not prepared in"),
    (["--config.dataset.validation_split=dev"], "allowed: train, validation, test"),
    (["--config.seed.data=-1"], "config.seed.data is -1; allowed"),
    (["--config.dataset.fused_decode=true"], "which workload 'cifar10' does not have; allowed"),
    (["--config.augment_on=gpu"], "config.augment_on is 'gpu'; allowed: 'host', 'device'"),
    (["--config.batch_size"], "config.batch_size has no value"),
    (["--wrkdir=x"], "--wrkdir=x is not understood (did you mean --workdir?)"),
    (["extra"], "extra is not understood"),
    (["--evaluate=--"], "argument --evaluate: '--' is not a value"),
]


@pytest.mark.parametrize(("words", "says"), WRONG, ids=[" ".join(words) for words, _ in WRONG])
def test_wrong_input_is_one_sentence_and_writes_nothing(words, says, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))
    workdir = tmp_path / "run"
    argv = ["--config=configs/cifar10.py:mini", f"--workdir={workdir}", *words]
    assert cli.guarded(train.main, argv) == cli.WRONG_INPUT
    error = capsys.readouterr().err
    assert says in error
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert not workdir.exists()


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        ([], "the following arguments are required: --config"),
        (["--config=configs/cifar10.py:mini"], "required: --workdir"),
        (["--config=configs/cifar.py", "--workdir=x"], "give one of configs/cifar10.py"),
        (
            ["--config=configs/cifar10.py:tiny", "--workdir=x"],
            "error: --config is configs/cifar10.py:tiny: configs/cifar10.py has no variant 'tiny'; "
            "allowed: mini, or none\n",
        ),
        (
            ["--config=configs/problems.py:tiny", "--workdir=x"],
            "error: --config is configs/problems.py:tiny: no variant 'tiny'; allowed: digits, ",
        ),
        (
            ["--config=configs/problems.py", "--workdir=x"],
            "error: --config is configs/problems.py: no variant ''; allowed: digits, ",
        ),
    ],
)
def test_wrong_configurations_are_one_sentence(argv, says, capsys):
    assert cli.guarded(train.main, argv) == cli.WRONG_INPUT
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1
    assert not (ROOT / "x").exists()


@pytest.mark.slow
def test_a_batch_that_the_devices_cannot_share_is_refused(tmp_path):
    """In a process of its own, as a user would see it."""
    done = run_command(
        "train.py",
        "--config=configs/cifar10.py:mini",
        f"--workdir={tmp_path / 'run'}",
        "--config.batch_size=30",
        env=cpu_devices(8),
    )
    assert done.returncode == cli.WRONG_INPUT
    assert "config.batch_size is 30, which 8 devices cannot share evenly" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_directory_with_another_run_is_refused_with_the_difference(uninterrupted, capsys):
    workdir = uninterrupted(mini())
    before = sorted(workdir.rglob("*"))
    other = mini(optimizer__learning_rate=0.5)
    words = ["--config=configs/cifar10.py:mini", f"--workdir={workdir}", *flags(other)]
    assert cli.guarded(train.main, words) == cli.WRONG_INPUT
    assert "optimizer.learning_rate (0.1 there, 0.5 here)" in capsys.readouterr().err
    assert sorted(workdir.rglob("*")) == before


@pytest.mark.parametrize(
    ("parse", "words", "flag"),
    [
        (train.parse, ["--config=configs/cifar10.py", "--workdir=~/run"], "workdir"),
        (train.parse, ["--evaluate=~/run"], "evaluate"),
        (
            sweep.parse,
            ["--config=configs/cifar10.py:mini", "--study=demo", "--outdir=~/run"],
            "outdir",
        ),
        (analysis.parse, ["study", "--out=~/run"], "out"),
    ],
)
def test_a_path_may_start_at_the_home_directory(parse, words, flag, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    parsed = parse(words)
    arguments = parsed[0] if isinstance(parsed, tuple) else parsed
    assert os.fspath(getattr(arguments, flag)) == str(tmp_path / "run")


def test_a_directory_with_something_else_is_refused(tmp_path, capsys):
    (tmp_path / "thesis.tex").write_text("precious")
    words = ["--config=configs/cifar10.py:mini", f"--workdir={tmp_path}", *flags(mini())]
    assert cli.guarded(train.main, words) == cli.WRONG_INPUT
    assert "contains no run" in capsys.readouterr().err
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


DISK_FULL = [
    *(OSError(code, os.strerror(code)) for code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)),
    # as Orbax passes it on
    *(
        ValueError(f"writing x: {os.strerror(code)}")
        for code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    ),
]


@pytest.mark.parametrize("error", DISK_FULL, ids=str)
def test_a_full_disk_ends_any_command_with_one_sentence(error, capsys):
    def writes(argv):
        raise error

    assert cli.guarded(writes, []) == cli.FAILED
    said = capsys.readouterr().err
    assert said.startswith("error: no space is left on the disk, or your quota or limit of file ")
    assert said.count("\n") == 1


@pytest.mark.parametrize("error", [RuntimeError("Unable to initialize 'x'"), AssertionError()])
@pytest.mark.parametrize(
    ("command", "words"),
    [
        (train, ["--workdir={tmp}/run"]),
        (sweep, ["--study=demo", "--outdir={tmp}/study"]),
        (sweep, ["--study=demo", "--dry-run"]),
        (advise, []),
    ],
)
def test_a_platform_without_a_device_is_one_sentence(
    command, words, error, tmp_path, capsys, monkeypatch
):
    def devices(*_):
        raise error

    monkeypatch.setattr(jax, "devices", devices)
    monkeypatch.setenv("JAX_PLATFORMS", "x")
    words = ["--config=configs/cifar10.py:mini", *(w.format(tmp=tmp_path) for w in words)]
    assert cli.guarded(command.main, words) == cli.WRONG_INPUT
    said = capsys.readouterr().err
    assert said.startswith("error: JAX finds no device for JAX_PLATFORMS=x (")
    assert said.count("\n") == 1
    assert not [*tmp_path.iterdir()]


def test_a_platform_that_does_not_exist_is_one_sentence(tmp_path):
    words = ("--config=configs/cifar10.py:mini", f"--workdir={tmp_path / 'run'}")
    done = run_command("train.py", *words, env=os.environ | {"JAX_PLATFORMS": "abacus"})
    assert done.returncode == cli.WRONG_INPUT
    assert "error: JAX finds no device for JAX_PLATFORMS=abacus (Unable to" in done.stderr
    assert "Traceback" not in done.stderr


HOST = """
import jax
from jax._src import xla_bridge
from jaxlib import xla_client
from runs import distributed
xla_bridge.register_backend_factory("chip", xla_client.make_cpu_client, priority=500)
distributed._keep_host()  # check_devices would take this platform for a CPU
print(*xla_bridge.backends(), len(jax.local_devices(backend="cpu")))
"""


def test_the_host_is_there_beside_the_only_platform():
    """Images are augmented there."""
    environment = os.environ | {"JAX_PLATFORMS": "chip"}
    done = subprocess.run([sys.executable, "-c", HOST], env=environment, capture_output=True)
    assert done.stdout.split() == [b"chip", b"cpu", b"1"], done.stderr


def test_a_gpu_that_is_not_there_is_one_sentence(tmp_path):
    words = ("--config=configs/cifar10.py:mini", f"--workdir={tmp_path / 'run'}")
    environment = os.environ | {"JAX_PLATFORMS": "cuda", "CUDA_VISIBLE_DEVICES": ""}
    done = run_command("train.py", *words, env=environment)
    assert done.returncode == cli.WRONG_INPUT
    assert "error: JAX finds no device for JAX_PLATFORMS=cuda (" in done.stderr
    assert "Traceback" not in done.stderr


def test_fields_take_the_types_of_their_defaults():
    config = mini()
    for name, text, value in [
        ("echo.factor", "2", 2.0),
        ("budget.fresh_examples", "1e6", 1_000_000),
        ("budget.fresh_examples", "1_000", 1000),
        ("augmentation.flip", "false", False),
        ("dataset.name", "123", "123"),
    ]:
        cli.set_field(config, name, text, base.FIELDS)
        assert cli.get_field(config, name) == value
        assert type(cli.get_field(config, name)) is type(value)


def test_a_users_configuration_is_found_by_its_path(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "from configs import cifar10\n\n\ndef get_config():\n    c = cifar10.get_config('mini')\n"
        "    c.batch_size = 16\n    return c\n"
    )
    config, _ = cli.load_config(str(file), [], base.FIELDS)
    assert config.batch_size == 16


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("import nothing_of_this_name\n", "mine.py, line 1: ModuleNotFoundError: No module named"),
        ("def f(:\n", "mine.py, line 1: SyntaxError: invalid syntax"),
        ("x = 1\nraise SystemExit(3)\n", "mine.py, line 2: SystemExit: 3"),
        ("def get_config():\n    return 1 / 0\n", "line 2: ZeroDivisionError: division by zero"),
        ("def get_config():\n    assert not 'a\\nb'\n", "mine.py, line 2: AssertionError"),
        ("def get_config():\n    raise OSError('a\\nb')\n", "line 2: OSError: a b; correct it"),
        ("def get_config():\n    return get_config()\n", "line 2: RecursionError"),
        ("def get_config(a, b):\n    pass\n", "mine.py: TypeError: get_config() missing 2"),
        (
            "from configs import base\nc = base.get_config()\nc.echo.fctor = 2.0\n",
            "mine.py, line 3: there is no field fctor (did you mean factor?); correct it there\n",
        ),
        (
            "from configs import base\nbase.get_config()['ech'].factor = 2.0\n",
            "mine.py, line 2: there is no field ech (did you mean echo?); correct it there\n",
        ),
        (
            "from configs import base\nbase.get_config().zzz = 2.0\n",
            "mine.py, line 2: there is no field zzz; correct it there\n",
        ),
        ("def get_config():\n    pass\n", "returns a value of type NoneType"),
        (
            "import ml_collections as m\ndef get_config():\n    return m.ConfigDict()\n",
            "returns no field workload",
        ),
        (
            "from configs import base\ndef get_config():\n    c = base.get_config().unlock()\n"
            "    c.echo.fctor = 2.0\n    return c\n",
            "returns a field echo.fctor, which does not exist (did you mean echo.factor?); leave",
        ),
    ],
)
def test_an_error_in_a_configuration_file_is_shown_with_its_line(text, says, tmp_path, capsys):
    (tmp_path / "mine.py").write_text(text)
    words = [f"--config={tmp_path / 'mine.py'}", f"--workdir={tmp_path / 'run'}"]
    assert cli.guarded(train.main, words) == cli.WRONG_INPUT
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_a_configuration_file_may_postpone_its_annotations(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from __future__ import annotations\nimport dataclasses\nfrom configs import cifar10\n"
        "@dataclasses.dataclass\nclass Settings:\n    batch_size: int = 16\n"
        "def get_config():\n    config = cifar10.get_config('mini')\n"
        "    config.batch_size = Settings().batch_size\n    return config\n"
    )
    config, _ = cli.load_config(str(tmp_path / "mine.py"), [], base.FIELDS)
    assert config.batch_size == 16


def test_a_variant_of_a_file_without_variants(tmp_path, capsys):
    (tmp_path / "mine.py").write_text("def get_config():\n    pass\n")
    words = [f"--config={tmp_path}/mine.py:mini", f"--workdir={tmp_path}/run"]
    assert cli.guarded(train.main, words) == cli.WRONG_INPUT
    assert "mine.py has no variants; leave out :mini\n" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["a" * 5000 + ".py", "a/" * 2500 + "b.py", "a\0b.py"])
def test_a_configuration_file_of_an_impossible_name(name):
    with pytest.raises(cli.InputError, match="is not a readable configuration file"):
        cli.load_config(name, [], base.FIELDS)


PRINTS = """
from runs import cli, terminal
def main(argv):
    terminal.write("e \\u2264 4")
    terminal.write("the end")
    return cli.OK
cli.guarded(main)
"""


def test_characters_that_standard_output_cannot_encode_are_escaped():
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    words = [sys.executable, "-c", PRINTS]
    said = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, check=True).stdout
    assert said == rb"e \u2264 4" + b"\nthe end\n"
