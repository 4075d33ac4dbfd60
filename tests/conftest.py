"""Shrunk copies of the shipped configurations, shared by the tests.

No test's verdict may depend on how fast the machine is or how its processor rounds. Tests wait for
events, or go by clocks of their own; a timeout only ends what hangs.
"""

import contextlib
import hashlib
import os
import pathlib
import platform
import signal
import subprocess
import sys

import jax
import pytest
from hypothesis import HealthCheck, settings

import train
from configs import base, cifar10
from runs import command, records
from runs.checkpoints import Checkpoints

ROOT = pathlib.Path(__file__).resolve().parent.parent

# Seconds after which something hangs: far more than it takes on a busy machine.
HANGS = 900

settings.register_profile("any speed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any speed")


def _share_what_is_compiled() -> None:
    """All processes of the tests, and the next run of them, find what others have compiled.

    Most of the tests' time is the compiler's. JAX's key of an entry holds the program, the flags
    and the versions; the directory's name adds the processor, whose instructions the entries use.
    """
    cpuinfo = pathlib.Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    features = sorted({line for line in lines if line.startswith(("model name", "flags", "Feat"))})
    machine = "\n".join([platform.platform(), platform.processor(), *features])
    name = f"jax-{jax.__version__}-{hashlib.sha256(machine.encode()).hexdigest()[:12]}"
    for option, value in {
        "jax_compilation_cache_dir": str(ROOT / ".pytest_cache" / "compiled" / name),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }.items():
        os.environ[option.upper()] = str(value)
        jax.config.update(option, value)


_share_what_is_compiled()

# A shell starts a background job with SIGINT ignored, and commands under test would inherit that.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Small enough for a run of seconds; everything else is the shipped mini.
SHRUNK = {
    "model.width": 4,
    "budget.fresh_examples": 640,
    "evaluate_every_fresh_examples": 160,
    "checkpoint_every_fresh_examples": 320,
    "log_every_steps": 5,
    "target.value": 1.1,  # out of reach, so that a run uses its whole budget
}

# (insertion, shuffle buffer): every slot, with copies adjacent and mixed.
SLOTS = (
    ("none", 0),
    ("before_augmentation", 0),
    ("before_augmentation", 100),
    ("after_augmentation", 0),
    ("after_augmentation", 100),
    ("after_batching", 0),
    ("after_batching", 4),
)


def mini(**fields):
    """The mini of CIFAR-10, shrunk, with `fields` given as echo__factor=2."""
    config = cifar10.get_config("mini")
    overrides = SHRUNK | {name.replace("__", "."): value for name, value in fields.items()}
    for name, value in overrides.items():
        command.set_field(config, name, value, base.FIELDS)
    return config


def slot(insertion, buffer, factor=2.5):
    """Fields that fill a slot."""
    return {
        "echo__insertion": insertion,
        "echo__factor": 1 if insertion == "none" else factor,
        "echo__shuffle_buffer": buffer,
    }


def placed(insertion, buffer, factor=2.5):
    """The same with the echoed items kept on the device, where they are augmented too."""
    fields = {"echo__placement": "device", "augment_on": "device"}
    return slot(insertion, buffer, factor) | fields


# A slot for every condition, on the host and on the device.
CONDITIONS = [slot(*at) for at in SLOTS] + [placed(*at) for at in SLOTS[1:]]


def latest_step(workdir):
    """The newest checkpoint of a run; None where there is none."""
    return next(iter(Checkpoints(workdir / records.CHECKPOINTS).steps()), None)


def last_saved(config, workdir):
    """Arrays (NumPy, in a list) and value of a run's newest checkpoint."""
    like = train.prepare(config).program.init(config.seed.model)
    checkpoints, step = Checkpoints(workdir / records.CHECKPOINTS), latest_step(workdir)
    leaves = jax.tree.leaves(jax.device_get(checkpoints.restore(step, like)))
    return leaves, checkpoints.value(step)


def flags(config):
    """The command-line overrides that make the mini into `config`."""
    shipped = cifar10.get_config("mini")
    names = [field.name for field in base.FIELDS]
    changed = [n for n in names if command.get_field(config, n) != command.get_field(shipped, n)]
    return [f"--config.{name}={command.get_field(config, name)}" for name in changed]


def run_command(script, *arguments, **options):
    """Runs one of the project's commands as a user would; the completed process."""
    return subprocess.run(
        [sys.executable, *([script] if script.endswith(".py") else ["-m", script]), *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=HANGS,
        **options,
    )


@contextlib.contextmanager
def held_training(step, *words):
    """train.py's command as a process that has taken `step` steps; it goes on once its standard
    input is closed, as by `communicate`. See held_training.py."""
    process = subprocess.Popen(
        [sys.executable, "tests/held_training.py", str(step), *words],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait_until_held(process)
        yield process
    finally:
        process.kill()
        process.communicate()


def wait_until_held(process):
    """Waits for held_training.py to say that it is held."""
    if "held\n" not in process.stdout:  # other libraries print there, too
        raise AssertionError(process.communicate()[1])


@pytest.fixture(scope="session")
def uninterrupted(tmp_path_factory):
    """Runs a configuration once a session and hands out its directory."""
    import train

    done = {}

    def directory(config):
        key = config.to_json()
        if key not in done:
            done[key] = tmp_path_factory.mktemp("run") / "workdir"
            train.train(config, done[key])
        return done[key]

    return directory
