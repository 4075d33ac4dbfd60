"""Whole runs for tests: shrunk copies of the shipped minis, the commands, and what a run leaves."""

import contextlib
import itertools
import os
import pathlib
import signal
import subprocess
import sys

import jax
import numpy as np

import train
from configs import base, cifar10
from runs import cli, records
from runs.checkpoints import Checkpoints
from runs.progress import Progress
from runs.records import nested
from training.experiment import make_experiment
from training.run import Run

ROOT = pathlib.Path(__file__).resolve().parents[2]


# Added to XLA_FLAGS by conftest.py. Newer versions compute wrong colors at level 0, where XLA's CPU
# compiler miscompiles a fusion of dm_pix, and end a process that names the second flag.
NOT_OPTIMIZING = "--xla_backend_optimization_level=1"
if jax.__version_info__ <= (0, 10, 2):
    NOT_OPTIMIZING = "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"


# Seconds after which something hangs: far more than it takes on a busy machine.
HANGS = 900


# Small enough for a run of seconds; everything else is the shipped mini.
SHRUNK = {
    "model.depth": 0,  # logistic regression, which compiles in no time
    "budget.fresh_examples": 640,
    "evaluate_every_fresh_examples": 160,
    "checkpoint_every_fresh_examples": 320,
    "log_every_steps": 5,
    "target.value": 1.1,  # out of reach, so that a run uses its whole budget
    "echo.max_factor": 16,  # so that a run can take many steps before late examples arrive
}


# Fields of `mini` for a small ResNet-8, where its layers or its pace matter: seconds to compile.
RESNET = {"model__depth": 8, "model__width": 4}


# (insertion, shuffle buffer): every insertion point, with copies adjacent and mixed.
INSERTIONS_AND_BUFFERS = (
    ("none", 0),
    ("before_augmentation", 0),
    ("before_augmentation", 100),
    ("after_augmentation", 0),
    ("after_augmentation", 100),
    ("after_batching", 0),
    ("after_batching", 4),
)


# The minis of the language workloads, shrunk.
SMALL_TEXT = {
    "dataset.vocabulary_size": 200,
    "dataset.sequence_length": 16,
    "model.layers": 1,
    "model.dim": 16,
    "model.mlp_dim": 32,
    "model.heads": 2,
    "log_every_steps": 1,
    "target.value": 0.0,
}

# Fields of `mini` for a run of eight steps of logistic regression.
EIGHT_STEPS = {
    "batch_size": 16,
    "budget__fresh_examples": 128,
    "evaluate_every_fresh_examples": 64,
    "checkpoint_every_fresh_examples": 64,
}


def shrunk(module, values, fields):
    """A shipped mini with `values` by name, and `fields` given as echo__factor=2."""
    config = module.get_config("mini")
    for name, value in (values | {k.replace("__", "."): v for k, v in fields.items()}).items():
        cli.set_field(config, name, value)
    return config


def mini(**fields):
    """The mini of CIFAR-10, shrunk."""
    return shrunk(cifar10, SHRUNK, fields)


def echoing(insertion, buffer, factor=2.5):
    """Fields of `mini` that echo at an insertion point."""
    return {
        "echo__insertion": insertion,
        "echo__factor": 1 if insertion == "none" else factor,
        "echo__shuffle_buffer": buffer,
    }


def placed(insertion, buffer, factor=2.5):
    """The same with the echoed items kept on the device, where they are augmented too."""
    fields = {"echo__placement": "device", "augment_on": "device"}
    return echoing(insertion, buffer, factor) | fields


def latest_step(workdir):
    """The newest checkpoint of a run; None where there is none."""
    return next(iter(Checkpoints(workdir / records.CHECKPOINTS).steps()), None)


def last_saved(config, workdir):
    """Arrays (NumPy, in a list) and value of a run's newest checkpoint."""
    like = make_experiment(config).program.init(config.seed.model)
    checkpoints, step = Checkpoints(workdir / records.CHECKPOINTS), latest_step(workdir)
    leaves = jax.tree.leaves(jax.device_get(checkpoints.restore(step, like)))
    return leaves, checkpoints.value(step)


def flags(config):
    """The command-line overrides that make the mini into `config`."""
    shipped = cifar10.get_config("mini")
    names = [field.name for field in base.FIELDS]
    changed = [n for n in names if nested(config, n) != nested(shipped, n)]
    return [f"--config.{name}={nested(config, name)}" for name in changed]


def command(config, workdir):
    """The arguments of train.py for this configuration, a changed mini."""
    return ["--config=configs/cifar10.py:mini", f"--workdir={workdir}", *flags(config)]


def cpu_devices(count):
    """The environment of a process that sees so many CPU devices."""
    flags = f"{os.environ['XLA_FLAGS']} --xla_force_host_platform_device_count={count}"
    return os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}


def optimizing():
    """The environment of a process that takes longer to compute than LLVM to optimize; see
    conftest.py."""
    flags = os.environ["XLA_FLAGS"].removesuffix(NOT_OPTIMIZING).strip()
    return os.environ | {"XLA_FLAGS": flags}


def start_python(words, env=os.environ):
    """Starts `python *words` in the repository; its streams are pipes, in text."""
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen([sys.executable, *words], cwd=ROOT, env=env, text=True, **pipes)


def run_python(words, env=os.environ):
    """Does `start_python` and waits for the end; the completed process."""
    with start_python(words, env) as process:
        try:
            printed = process.communicate(timeout=HANGS)
        finally:
            process.kill()
    return subprocess.CompletedProcess(words, process.returncode, *printed)


def refusal(main, words, capsys, code=cli.WRONG_INPUT):
    """The one sentence with which a command ends instead of doing its work."""
    assert cli.guarded(main, words) == code
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert len(line) < 1000
    return line


def run_command(script, *arguments, env=os.environ):
    """Runs one of the project's commands as a user would; the completed process."""
    return run_python([*([script] if script.endswith(".py") else ["-m", script]), *arguments], env)


@contextlib.contextmanager
def held_training(step, *words):
    """train.py's command as a process that has taken `step` steps; it resumes once its standard
    input is closed, as by `communicate`. See held_training.py."""
    words = ["-m", "tests.helpers.held_training", str(step), *words]
    with start_python(words) as process:
        try:
            wait_until_held(process)
            yield process
        finally:
            process.kill()


def wait_until_held(process):
    """Waits for held_training.py to say that it is held."""
    if "held\n" not in process.stdout:  # other libraries print there, too
        raise AssertionError(process.communicate()[1])


# What a run measures of itself, and the checksum of a file that holds it.
CLOCKS = ("train_seconds", "wall_seconds", "core_seconds", "input_wait_fraction")
CLOCKS += ("seconds_to_target", "records")


def without_clocks(record, *others):
    return {name: value for name, value in record.items() if name not in (*CLOCKS, *others)}


def contents(directory):
    """What is below a directory but locks, by path: the bytes of files."""
    paths = (path for path in directory.rglob("*") if records.LOCK not in path.parts)
    return {path: path.read_bytes() if path.is_file() else None for path in paths}


def train_lines(workdir):
    """The records of a run's training steps."""
    return [line for line in records.read_metrics(workdir) if line["split"] == "train"]


def losses_of(workdir):
    return [line["loss"] for line in train_lines(workdir)]


def records_of(workdir):
    """All that must not depend on how often a run was stopped: a resumed run sends pending items to
    the device again."""
    return [without_clocks(record, "bytes_sent") for record in records.read_metrics(workdir)]


def assert_equal_runs(config, one, other):
    """Equal records but for clocks, and equal arrays and positions in the last checkpoints."""
    assert records_of(one) == records_of(other)
    step = latest_step(one)
    assert step == latest_step(other)
    ours, theirs = (records.read_json(d / records.RESULT) for d in (one, other))
    assert not (ours and theirs) or without_clocks(ours) == without_clocks(theirs)
    if step is None:
        return
    (one_arrays, one_value), (arrays, value) = (last_saved(config, d) for d in (one, other))
    # a run that was stopped in its last evaluation was saved before it; its result has the rest
    saved = ("step", "fresh_examples", "saved", "initial_loss")
    assert [one_value["counters"][n] for n in saved] == [value["counters"][n] for n in saved]
    assert one_value["input"] == value["input"]
    for left, right in zip(one_arrays, arrays, strict=True):
        np.testing.assert_array_equal(left, right)


def stop_at(step):
    """An `on_step` hook: asks the run to stop, by a signal, once it has taken `step` steps."""

    def hook(taken):
        if taken == step:
            os.kill(os.getpid(), signal.SIGTERM)

    return hook


def preempt(config, workdir, step):
    """Trains until a run has taken `step` steps, and stops it."""
    result = train.train(config, workdir, Progress(quiet=True), on_step=stop_at(step))
    assert (result["status"], result["step"]) == ("preempted", step)


def stop_at_call(number, what=signal.SIGTERM):
    """An `on_step` hook for several runs: this signal after `number` steps of all of them."""
    calls = itertools.count(1)

    def hook(_):
        if next(calls) == number:
            os.kill(os.getpid(), what)

    return hook


class StopsAt(list):
    """Batches of a validation split: asks the process to stop, by a signal, once the first batch of
    an evaluation is read.

    Args:
        batches: of the split.
        number: of the evaluation, from 1.
    """

    def __init__(self, batches, number):
        super().__init__(batches)
        self.number = number
        self.evaluated = []  # batches of each evaluation

    def __iter__(self):
        self.evaluated.append(0)
        for batch in super().__iter__():
            if len(self.evaluated) == self.number:
                os.kill(os.getpid(), signal.SIGTERM)
            self.evaluated[-1] += 1
            yield batch


@contextlib.contextmanager
def on_each_step(hook):
    """Within, `hook(step)` is called after each step of every run in this process, also of runs
    that a command or a sweep starts."""
    original = Run.step

    def step(run, stop=False):
        taken = original(run, stop)
        if taken:
            hook(run.counters.step)
        return taken

    Run.step = step
    try:
        yield
    finally:
        Run.step = original


def recorded(workdir):
    return records.read_decisions(workdir / records.DECISIONS)[0]


def decisions_file(path, decisions):
    writer = records.LinesWriter(path)
    for step, fresh in enumerate(decisions, start=1):
        writer.write({"step": step, "fresh": fresh})
    writer.close()
    return str(path)


def batches_of(config):
    iterator = iter(make_experiment(config).batches)
    try:
        return list(iterator)
    finally:
        iterator.close()
