"""Several processes that train together: how they find each other and agree.

Process 0 writes a run's files and makes all decisions that the processes do not compute
identically. A single process does not communicate.
"""

import contextlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from runs.cli import InputError, explained
from runs.records import whole_number

# Set by the user or a custom launcher. JAX itself reads only the first.
ADDRESS, COUNT, INDEX = "JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"

# What launchers set that JAX detects, and where they state the number of processes. JAX is not
# asked in a single process, where it may look for a metadata server for minutes.
_LAUNCHERS = {
    "SLURM_STEP_NODELIST": "SLURM_NTASKS",
    "OMPI_MCA_orte_hnp_uri": "OMPI_COMM_WORLD_SIZE",
}
_TPU_HOSTS = ("TPU_PROCESS_ADDRESSES", "TPU_WORKER_HOSTNAMES")  # separated by commas


# Settings of JAX with which a run would compute other numbers, or nothing. The environment and
# the caller of `train.train` may have set others.
_SETTINGS = {
    "jax_enable_x64": False,
    "jax_default_prng_impl": "threefry2x32",
    "jax_threefry_partitionable": True,
    "jax_random_seed_offset": 0,
    "jax_numpy_dtype_promotion": "standard",
    "jax_numpy_rank_promotion": "allow",
    "jax_legacy_prng_key": "allow",
    "jax_disable_jit": False,
    "jax_no_execution": False,
    "jax_debug_key_reuse": False,
    "jax_transfer_guard": "allow",
}


def initialize() -> None:
    """Joins the other processes if a launcher started this process as one of several, and
    initializes JAX's devices.

    JAX ends this process if the others do not come within five minutes, or if process 0 ends.

    Raises:
        InputError: the launcher's variables are incomplete or wrong, or this process has no device
            of JAX_PLATFORMS.
    """
    arguments = detect(os.environ)
    if arguments is not None and not jax.distributed.is_initialized():
        try:
            jax.distributed.initialize(**arguments, shutdown_timeout_seconds=60)
        except (ValueError, RuntimeError) as error:
            raise InputError(f"the processes of this run cannot be joined: {error}") from error
    check_devices()


@contextlib.contextmanager
def fixed_settings() -> Iterator[None]:
    """Within, JAX's settings are those that runs need; see runs/origins.py for the others."""
    before = {name: getattr(jax.config, name) for name in _SETTINGS}
    try:
        for name, value in _SETTINGS.items():
            jax.config.update(name, value)
        yield
    finally:
        for name, value in before.items():
            jax.config.update(name, value)


def check_devices() -> None:
    """Initializes JAX's settings and devices, which include the host, since it augments images;
    raises InputError if this process has none of JAX_PLATFORMS."""
    for name, value in _SETTINGS.items():
        jax.config.update(name, value)
    asked: str = jax.config.jax_platforms or ""  # pyright: ignore[reportAttributeAccessIssue]
    if asked and "cpu" not in asked.split(","):
        os.environ["JAX_PLATFORMS"] = f"{asked},cpu"  # also for worker processes
        jax.config.update("jax_platforms", f"{asked},cpu")
    why = "there is no GPU"  # without the host, JAX says so by an AssertionError
    try:
        jax.devices()
        if not asked or "cpu" in asked.split(",") or jax.local_devices()[0].platform != "cpu":
            return
    except (RuntimeError, AssertionError) as error:
        if not asked:
            raise
        why = " ".join(str(error).partition(" (set JAX_PLATFORMS")[0].split()) or why
    raise InputError(
        f"JAX finds no device for JAX_PLATFORMS={asked} ({why}); set it to what this machine has, "
        "such as cpu, or leave it unset"
    )


def detect(environment: Mapping[str, str]) -> dict[str, Any] | None:
    """Arguments for `jax.distributed.initialize`; None in a single process."""
    address, count, index = (environment.get(name, "") for name in (ADDRESS, COUNT, INDEX))
    if not (count or index):
        counts = [environment.get(_LAUNCHERS[name], "") for name in _LAUNCHERS.keys() & environment]
        hosts = any("," in environment.get(name, "") for name in _TPU_HOSTS)
        return {} if hosts or max(map(whole_number, counts), default=0) > 1 else None
    if whole_number(count) == 1:
        return None
    host, _, port = address.rpartition(":")
    in_order = 0 <= whole_number(index) < whole_number(count) < 2**31  # which JAX takes
    if not (host and whole_number(port) >= 0 and in_order):
        raise InputError(
            f"the environment has {ADDRESS}={address!r}, {COUNT}={count!r} and {INDEX}={index!r}, "
            f"with which this process cannot join others; set {ADDRESS}=HOST:PORT, {COUNT}=N and "
            f"{INDEX}=0..N-1, or none of them"
        )
    return {
        "coordinator_address": address,
        "num_processes": int(count),
        "process_id": int(index),
        "cluster_detection_method": "deactivate",
    }


def is_first() -> bool:
    """Whether this is process 0, which writes files and shows progress."""
    return jax.process_index() == 0


def gather(value: Any) -> list[Any]:
    """The JSON values of all processes, in order, in every process."""
    if jax.process_count() == 1:
        return [value]
    text = np.frombuffer(json.dumps(value).encode(), np.uint8)
    lengths = multihost_utils.process_allgather(np.int32(len(text)))
    texts = multihost_utils.process_allgather(np.pad(text, (0, int(lengths.max()) - len(text))))
    pairs = zip(texts, lengths, strict=True)
    return [json.loads(padded[:length].tobytes()) for padded, length in pairs]


def decided_by_first(decide: Callable[[], Any]) -> Any:
    """The JSON value that `decide()` returns in process 0, or its InputError, in every process."""
    if jax.process_count() == 1:
        return decide()
    outcome = None
    if is_first():
        try:
            outcome = {"value": decide()}
        except Exception as error:
            known = explained(error)
            if not isinstance(known, InputError):
                raise
            outcome = {"error": str(known)}
    outcome = gather(outcome)[0]
    if "error" in outcome:
        raise InputError(outcome["error"])
    return outcome["value"]
