"""The files of deploy/: linted, and run as far as a machine without Slurm, Docker, or Ray allows.

A stand-in for `srun` starts its command as many times as Slurm would; what it starts is real.
"""

import importlib.metadata
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys

import pytest

import sweep
from configs import problems
from runs import cli, records
from tests.helpers.runs import HANGS, ROOT, SHRUNK

DEPLOY = ROOT / "deploy"
SCRIPTS = sorted(path.name for path in DEPLOY.glob("*.sh"))
MINI = "--config=configs/cifar10.py:mini"
SMALL = [f"--config.{name}={value}" for name, value in SHRUNK.items()]
OTHERS = ("requirements-dev.txt", "requirements-extras.txt")  # what some flags need

SRUN = """#!/usr/bin/env bash
echo "$@" >> "$CALLS"
for ((i = 1; i < SLURM_NTASKS; i++)); do SLURM_PROCID=$i SLURM_LOCALID=$i "$@" & done
SLURM_PROCID=0 SLURM_LOCALID=0 "$@"; code=$?; wait; exit $code
"""
SCONTROL = """#!/usr/bin/env bash
echo "scontrol $*" >> "$CALLS"
"""


@pytest.fixture
def submitted(tmp_path):
    """Runs a script with the variables that Slurm sets; returns the process, and the commands that
    it called."""
    for name, text in (("srun", SRUN), ("scontrol", SCONTROL)):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)

    def run(script, *words, python=sys.executable, **variables):
        environment = os.environ | {
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
            "CALLS": str(tmp_path / "calls"),
            "PYTHON": python,
            "SLURM_SUBMIT_DIR": str(ROOT),
            "SLURM_JOB_ID": "7",
            "SLURM_CPUS_PER_TASK": "8",
            "SLURM_NTASKS": "1",
            **variables,
        }
        command = ["bash", str(DEPLOY / script), *words]
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=HANGS
        )
        return done, (tmp_path / "calls").read_text().splitlines()

    return run


def array(task, first, count, step=1):
    last = first + step * (count - 1)
    variables = {"ID": task, "MIN": first, "MAX": last, "COUNT": count}
    return {f"SLURM_ARRAY_TASK_{name}": str(value) for name, value in variables.items()}


@pytest.mark.extras
@pytest.mark.parametrize(
    ("linter", "name"),
    [*(("shellcheck", script) for script in SCRIPTS), ("hadolint", "Dockerfile")],
)
def test_linters_find_nothing(linter, name):
    found = shutil.which(linter, path=f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}")
    if not found:
        pytest.skip(f"{linter} is not installed")
    done = subprocess.run([found, DEPLOY / name], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("script", SCRIPTS)
@pytest.mark.parametrize("code", [0, 2, 75])
def test_a_job_has_all_its_cores_and_is_queued_again_only_if_it_was_preempted(
    script, code, submitted, tmp_path
):
    assert os.access(DEPLOY / script, os.X_OK)
    python = tmp_path / "python"
    # From Slurm 22.05 on, srun reads SRUN_CPUS_PER_TASK and not the job's variable.
    python.write_text(f'#!/bin/sh\necho "$SRUN_CPUS_PER_TASK cores"\nexit {code}\n')
    python.chmod(0o755)
    done, calls = submitted(script, python=str(python), **array(0, 0, 1))
    assert (done.returncode, done.stdout) == (code, "8 cores\n")
    assert calls[1:] == (["scontrol requeue 7"] if code == 75 else [])


def test_an_array_with_gaps_would_leave_parts_of_a_study_out_and_is_refused(submitted, tmp_path):
    (tmp_path / "calls").touch()
    done, calls = submitted("slurm_sweep.sh", **array(task=2, first=0, count=4, step=2))
    assert (done.returncode, calls) == (cli.WRONG_INPUT, [])
    assert "--array=0-N" in done.stderr


@pytest.mark.long
def test_the_elements_of_an_array_plan_their_shares_of_a_study(submitted):
    words = (MINI, "--study=demo", "--dry-run")
    done, calls = submitted("slurm_sweep.sh", *words, **array(task=4, first=3, count=10))
    assert done.returncode == cli.OK, done.stderr
    assert "no echoing" in done.stdout
    assert calls[0].endswith("--shard=1/10")
    done, _ = submitted("slurm_sweep.sh", *words, **array(task=0, first=0, count=26))
    assert done.returncode == cli.WRONG_INPUT
    assert "25" in done.stderr


@pytest.mark.long
def test_two_hosts_train_one_run(submitted, tmp_path):
    # JAX takes a port by the job's number.
    variables = {"SLURM_NTASKS": "2", "SLURM_JOB_ID": str(os.getpid()), "JAX_PLATFORMS": "cpu"}
    variables["SLURM_STEP_NODELIST"] = "localhost"
    words = (MINI, f"--workdir={tmp_path / 'run'}", *SMALL, "--config.budget.fresh_examples=96")
    done, _ = submitted("slurm_train.sh", *words, **variables)
    assert done.returncode == cli.OK, done.stderr
    config = records.read_json(tmp_path / "run" / "config.json")
    assert config["config"]["echo"]["streams"] == 2
    assert config["hardware"]["processes"] == 2
    assert records.read_json(tmp_path / "run" / "result.json")["fresh_examples"] == 96


@pytest.mark.extras
def test_ray_accepts_the_cluster_and_sweep_its_command():
    yaml = pytest.importorskip("yaml")
    ray_util = pytest.importorskip("ray.autoscaler._private.util")
    text = (DEPLOY / "ray_cluster.yaml").read_text()
    ray_util.validate_config(ray_util.prepare_config(yaml.safe_load(text)))
    comment = " ".join(line.lstrip("# ") for line in text.splitlines() if line.startswith("#"))
    words = shlex.split(re.search(r"sweep\.py (--config.*?)'", comment)[1])
    arguments, overrides = sweep.parse(words)
    cli.load_config(arguments.config, overrides)
    assert arguments.executor == "ray"


def copied():
    """The names that the image takes from the checkout."""
    lines = re.findall(r"^COPY (.*) \S+$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    return {name.rstrip("/") for line in lines for name in line.split()}


def test_the_image_installs_what_make_installs_and_holds_every_package():
    text = (DEPLOY / "Dockerfile").read_text()
    makefile = (ROOT / "Makefile").read_text()
    assert "pip install --quiet --disable-pip-version-check -r requirements.txt" in makefile
    assert "pip install --no-cache-dir -r requirements.txt" in text
    low = re.search(r'requires-python = ">=3\.(\d+)"', (ROOT / "pyproject.toml").read_text())[1]
    assert int(low) <= int(re.search(r"^FROM python:3\.(\d+)-slim$", text, re.M)[1])
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")}
    commands = {path.name for path in ROOT.glob("*.py")}
    read = {"requirements.txt", str(problems.PLANS.relative_to(ROOT))}
    assert copied() == packages - {"examples"} | commands | read


def test_requirements_list_what_the_packages_import():
    pinned = "".join((ROOT / name).read_text() for name in ("requirements.txt", *OTHERS))
    listed = {name.lower() for name in re.findall(r"^[\w.-]+", pinned, re.M)}
    distributions = importlib.metadata.packages_distributions()
    distributions.pop("echo", None)  # after `pip install .`
    for name in copied() - {"requirements.txt"}:
        place = ROOT / name
        for path in place.rglob("*.py") if place.is_dir() else [place]:
            imported = re.findall(r"^\s*(?:import|from) (\w+)", path.read_text(), re.M)
            for module in {*imported} & distributions.keys():
                names = {d.lower().replace("_", "-") for d in distributions[module]}
                assert names & {n.replace("_", "-") for n in listed}, f"{path}: {module}"


@pytest.mark.long
def test_what_the_image_holds_is_enough_to_train(tmp_path):
    for name in copied():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, tmp_path / name)
    command = [sys.executable, "train.py", MINI, "--workdir=out", *SMALL]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=HANGS)
    assert done.returncode == cli.OK, done.stderr
