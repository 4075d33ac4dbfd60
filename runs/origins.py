"""What a run is trained with: config.json says how it began, and what differed when it resumed."""

import contextlib
import functools
import importlib.metadata
import os
import pathlib
import platform
import re
import subprocess
from collections.abc import Mapping
from typing import Any

from echo.threads import usable_cores
from runs import records
from runs.cli import OWN_FILES, ROOT

PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "numpy")
PACKAGES += ("ml-collections", "sentencepiece")
_FLAGS = ("XLA_FLAGS", "LIBTPU_INIT_ARGS", "NVIDIA_TF32_OVERRIDE")  # of the environment


def of_run(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What a run was trained with, in order, given the content of its config.json.

    Each entry has the `step` from which it holds, its `commit`, `packages`, and `hardware`, and the
    `fields` that differ from `config`, by dotted name. The first entry is of step 0. config.json
    lists the others in `resumed`.
    """
    resumed = list(record.get(records.RESUMED) or [])
    if resumed and resumed[0]["step"] == 0:  # it started over before its first checkpoint
        return resumed
    first = {name: record.get(name) for name in records.ORIGIN}
    return [{"step": 0, **first, "fields": {}}, *resumed]


def describe() -> dict[str, Any]:
    """Commit (with '+changes' if the checkout differs from it, and the configuration files outside
    of it), package versions, and hardware."""
    packages = {"python": platform.python_version()}
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            packages[name] = importlib.metadata.version(name)
    own = sorted(f"{pathlib.Path(path).name}:{digest}" for path, digest in OWN_FILES.items())
    code = " ".join(filter(None, (commit(), *own))) or None
    return {"commit": code, "packages": packages, "hardware": _hardware()}


@functools.cache  # a process loads its code once; asking Git takes tens of milliseconds
def commit() -> str | None:
    """The checkout's commit, with '+changes' if it differs from it; None if it has none."""
    # Not that of a repository around the checkout, or of GIT_DIR. Unlike `describe --dirty`, it
    # takes no lock, which it would leave behind if it were killed.
    own = "--no-optional-locks", f"--git-dir={ROOT / '.git'}", f"--work-tree={ROOT}"
    status = "status", "--porcelain=v2", "--branch", "--untracked-files=no"
    try:
        run = subprocess.run(["git", *own, *status], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    head = re.search(r"^# branch\.oid (\w{12})", run.stdout, re.MULTILINE)
    changed = re.search(r"^[^#]", run.stdout, re.MULTILINE)
    return f"{head[1]}{'+changes' if changed else ''}" if head else None


def _hardware() -> dict[str, Any]:
    import jax  # analysis, which reads what this module writes, does without

    device = jax.devices()[0]
    cpu = platform.processor() or platform.machine()
    with contextlib.suppress(OSError):
        text = pathlib.Path("/proc/cpuinfo").read_text()
        if found := re.search(r"^model name\s*: (.*\S)", text, re.MULTILINE):
            cpu = found[1]
    # What was set of that which may change numbers by rounding; see also runs/processes.py.
    settings = {name: os.environ.get(name) for name in _FLAGS}
    settings["matmul_precision"] = jax.config.values["jax_default_matmul_precision"]
    return {
        "platform": device.platform,
        "device_kind": device.device_kind,
        "devices": jax.device_count(),
        "processes": jax.process_count(),
        "cpu": cpu,
        "cpu_count": usable_cores(),
        "system": platform.platform(terse=True),
        **{name: value for name, value in settings.items() if value},
    }
