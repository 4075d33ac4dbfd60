"""Shrunk copies of the shipped configurations, shared by the tests."""

import pathlib
import subprocess
import sys

import pytest

from configs import base, cifar10
from runs import command

ROOT = pathlib.Path(__file__).resolve().parent.parent

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


def flags(config):
    """The command-line overrides that make the mini into `config`."""
    shipped = cifar10.get_config("mini")
    names = [name for name, _, _ in base.FIELDS]
    changed = [n for n in names if command.get_field(config, n) != command.get_field(shipped, n)]
    return [f"--config.{name}={command.get_field(config, name)}" for name in changed]


def run_command(script, *arguments, **options):
    """Runs one of the project's commands as a user would; the completed process."""
    return subprocess.run(
        [sys.executable, *([script] if script.endswith(".py") else ["-m", script]), *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=900,
        **options,
    )


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
