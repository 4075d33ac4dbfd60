"""Several processes that train together: finding each other, and agreeing.

Process 0 writes a run's files and decides what is not a number that all of them compute alike. In
a single process nothing here communicates.
"""

import json
import os
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from runs.command import InputError

# Set by hand or by a launcher of one's own; JAX itself reads the first of them alone.
ADDRESS, COUNT, NUMBER = "JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"

# (variables that a launcher sets, the one that says how many processes it started). JAX finds the
# rest out; but asked in a process that is alone, it may look for a metadata server for minutes.
_LAUNCHERS = (
    (("SLURM_JOB_ID", "SLURM_STEP_NODELIST", "SLURM_PROCID", "SLURM_LOCALID"), "SLURM_NTASKS"),
    (("OMPI_MCA_orte_hnp_uri",), "OMPI_COMM_WORLD_SIZE"),
)
# How long a process that ends waits for the others to end too. When all is well that is seconds; a
# process that failed alone waits in vain, and the others with it.
_LEAVE_SECONDS = 60

_TPU_HOSTS = ("TPU_PROCESS_ADDRESSES", "TPU_WORKER_HOSTNAMES")  # separated by commas


def initialize() -> None:
    """Joins the other processes, if a cluster started this one as one of several.

    Call it before anything asks JAX for devices.

    Raises:
        InputError: the cluster's variables are not whole, or the others cannot be found.
    """
    if jax.distributed.is_initialized():
        return
    arguments = detected(os.environ)
    if arguments is None:
        return
    try:
        jax.distributed.initialize(**arguments, shutdown_timeout_seconds=_LEAVE_SECONDS)
    except (ValueError, RuntimeError) as error:
        raise InputError(f"the processes of this run cannot be joined: {error}") from error


def detected(environment: Mapping[str, str]) -> dict[str, Any] | None:
    """What `jax.distributed.initialize` has to be told; None in a process that is alone."""
    explicit = [name for name in (ADDRESS, COUNT, NUMBER) if environment.get(name)]
    if explicit and explicit != [ADDRESS]:
        return _explicit(environment, explicit)
    for variables, count in _LAUNCHERS:
        if all(name in environment for name in variables) and _several(environment.get(count)):
            return {}
    if any("," in environment.get(name, "") for name in _TPU_HOSTS):
        return {}
    return None


def _explicit(environment: Mapping[str, str], given: list[str]) -> dict[str, Any] | None:
    missing = [name for name in (ADDRESS, COUNT, NUMBER) if name not in given]
    whole = [name for name in (COUNT, NUMBER) if name in given]
    if missing or not all(environment[name].isdigit() for name in whole):
        raise InputError(
            f"{', '.join(given)} are set, which is not enough to join other processes; set "
            f"{ADDRESS}=HOST:PORT, {COUNT}=N and {NUMBER}=0..N-1, or none of them"
        )
    if not _several(environment[COUNT]):
        return None
    return {
        "coordinator_address": environment[ADDRESS],
        "num_processes": int(environment[COUNT]),
        "process_id": int(environment[NUMBER]),
        "cluster_detection_method": "deactivate",
    }


def _several(count: str | None) -> bool:
    return bool(count) and count.isdigit() and int(count) > 1


def is_first() -> bool:
    """Whether this is the process that writes files and shows progress."""
    return jax.process_index() == 0


def gather(value: Any) -> list[Any]:
    """Each process's `value`, which JSON can hold, in the order of processes, in all of them."""
    if jax.process_count() == 1:
        return [value]
    text = np.frombuffer(json.dumps(value).encode(), np.uint8)
    lengths = multihost_utils.process_allgather(np.int32(len(text)))
    texts = multihost_utils.process_allgather(np.pad(text, (0, int(lengths.max()) - len(text))))
    pairs = zip(texts, lengths, strict=True)
    return [json.loads(padded[:length].tobytes()) for padded, length in pairs]


def decided_by_first(decide: Callable[[], Any]) -> Any:
    """What `decide()`, called in process 0 alone, returns (JSON) or raises as InputError."""
    if jax.process_count() == 1:
        return decide()
    outcome = None
    if is_first():
        try:
            outcome = {"value": decide()}
        except InputError as error:
            outcome = {"error": str(error)}
    outcome = gather(outcome)[0]
    if "error" in outcome:
        raise InputError(outcome["error"])
    return outcome["value"]
