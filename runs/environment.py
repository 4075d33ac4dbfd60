"""Where a run took place, for its record: commit, package versions, hardware."""

import functools
import importlib.metadata
import os
import pathlib
import platform
import subprocess
from typing import Any

import jax

from runs.cli import ROOT

PACKAGES = (
    "jax",
    "jaxlib",
    "flax",
    "optax",
    "orbax-checkpoint",
    "grain",
    "numpy",
    "ml-collections",
    "sentencepiece",
)


@functools.cache  # a process loads its code once; asking Git and the packages takes 50 ms
def describe() -> dict[str, Any]:
    """Commit (with '+changes' if the checkout differs from it), package versions, and hardware."""
    return {"commit": _commit(), "packages": _packages(), "hardware": _hardware()}


def _commit() -> str | None:
    def git(*arguments: str) -> str | None:
        try:
            run = subprocess.run(
                ["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, timeout=10
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return run.stdout.strip() if run.returncode == 0 else None

    head = git("rev-parse", "--short=12", "HEAD")
    if head is None:
        return None
    return f"{head}+changes" if git("status", "--porcelain", "--untracked-files=no") else head


def _packages() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return versions


def _hardware() -> dict[str, Any]:
    device = jax.devices()[0]
    return {
        "platform": device.platform,
        "device_kind": device.device_kind,
        "devices": jax.device_count(),
        "processes": jax.process_count(),
        "cpu": _cpu_name(),
        "cpu_count": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "system": platform.platform(terse=True),
    }


def _cpu_name() -> str:
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.machine()
