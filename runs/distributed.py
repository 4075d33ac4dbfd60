"""Several processes that train together: how they find each other and agree.

Process 0 writes a run's files and makes all decisions that the processes do not compute
identically. A single process does not communicate.
"""

import atexit
import itertools
import json
import os
import pathlib
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from runs import terminal
from runs.cli import FAILED, Failed, InputError, is_whole_number
from runs.study import short

# Set by the user or a custom launcher. JAX itself reads only the first.
ADDRESS, COUNT, INDEX = "JAX_COORDINATOR_ADDRESS", "JAX_NUM_PROCESSES", "JAX_PROCESS_ID"

# (variables that a launcher sets, the variable with the number of processes). JAX detects the rest.
# It is not asked in a single process, where it may look for a metadata server for minutes.
_LAUNCHERS = (
    (("SLURM_JOB_ID", "SLURM_STEP_NODELIST", "SLURM_PROCID", "SLURM_LOCALID"), "SLURM_NTASKS"),
    (("OMPI_MCA_orte_hnp_uri",), "OMPI_COMM_WORLD_SIZE"),
)
# How long a process that ends waits for the others. Normally they end within seconds; if only one
# process fails, all of them wait this long.
_SHUTDOWN_SECONDS = 60

# How long processes wait for one another at the start, silently at first.
_JOIN_SECONDS, _SILENT_SECONDS = 300, 10.0

_RETRY_SECONDS = 0.1  # between attempts to reach process 0 after it closed the connection

_PLATFORMS, _HOST = "JAX_PLATFORMS", ",cpu"

_TPU_HOSTS = ("TPU_PROCESS_ADDRESSES", "TPU_WORKER_HOSTNAMES")  # separated by commas


def initialize() -> None:
    """Joins the other processes if a launcher started this process as one of several.

    Must be called before JAX initializes its devices. If the others do not come, it says so, and
    JAX ends this process after five minutes.

    Raises:
        InputError: the launcher's variables are incomplete or wrong, or a single process has no
            device of JAX_PLATFORMS.
    """
    if jax.distributed.is_initialized():
        return
    arguments = detect(os.environ)
    if arguments is None:
        check_devices()
        return
    platforms = os.environ.get(_PLATFORMS, "")
    _keep_host()
    message = f"waiting for the other processes of this run, at most {_JOIN_SECONDS} s"
    timer = threading.Timer(_SILENT_SECONDS, terminal.write, (message, sys.stderr))
    timer.daemon = True
    timer.start()
    try:
        jax.distributed.initialize(
            **arguments,
            initialization_timeout=_JOIN_SECONDS,
            shutdown_timeout_seconds=_SHUTDOWN_SECONDS,
        )
    except (ValueError, RuntimeError) as error:
        raise InputError(f"the processes of this run cannot be joined: {error}") from error
    finally:
        timer.cancel()
    check_devices(platforms)
    if not is_first():
        leaving = threading.Event()
        atexit.register(leaving.set)  # runs before JAX disconnects, after which process 0 may end
        threading.Thread(target=_end_with_first, args=(leaving,), daemon=True).start()


def check_devices(platforms: str | None = None) -> None:
    """Initializes JAX's devices; raises InputError if this process has none of `platforms`, by
    default JAX_PLATFORMS."""
    if platforms is None:
        platforms = os.environ.get(_PLATFORMS, "")
    _keep_host()
    try:
        jax.devices()
        kinds = {device.platform for device in jax.local_devices()}
        if kinds == {"cpu"} and platforms and "cpu" not in platforms.split(","):
            raise AssertionError  # as JAX does for "cuda" without a GPU, if the host is not added
    except (RuntimeError, AssertionError) as error:
        if not platforms:
            raise
        text, _, _ = str(error).partition(" (set JAX_PLATFORMS")
        reason = " ".join(text.split()) or "there is no GPU"
        raise InputError(
            f"JAX finds no device for JAX_PLATFORMS={platforms} ({reason}); set it to what this "
            "machine has, such as cpu, or leave it unset"
        ) from error


def _keep_host() -> None:
    """Adds the host to JAX_PLATFORMS, last, also for worker processes: it augments images."""
    platforms: str | None = jax.config.jax_platforms  # pyright: ignore[reportAttributeAccessIssue]
    if platforms and _HOST not in f",{platforms}":
        os.environ[_PLATFORMS] = platforms + _HOST
        jax.config.update("jax_platforms", platforms + _HOST)


def _end_with_first(leaving: threading.Event) -> None:
    """Ends this process with one sentence when process 0, which runs the coordinator, has ended.

    JAX detects this too and aborts with its own messages, perhaps slightly earlier.
    """
    from jax._src import distributed

    host, _, port = str(distributed.global_state.coordinator_address).rpartition(":")
    while not leaving.is_set():
        try:
            with socket.create_connection((host.strip("[]"), int(port)), timeout=10) as connection:
                connection.settimeout(None)
                # The coordinator sends a greeting, and closes at the end.
                while connection.recv(4096):
                    pass
        except ConnectionRefusedError:
            if not leaving.is_set():
                terminal.write(
                    f"process {jax.process_index()}: process 0 is gone; its own output says why, "
                    "and the same command resumes from the last checkpoint",
                    sys.stderr,
                )
                os._exit(FAILED)
        except OSError:  # a reset connection, or a slow network: try again
            pass
        leaving.wait(_RETRY_SECONDS)


def detect(environment: Mapping[str, str]) -> dict[str, Any] | None:
    """Arguments for `jax.distributed.initialize`; None in a single process."""
    explicit = [name for name in (ADDRESS, COUNT, INDEX) if environment.get(name)]
    if explicit and explicit != [ADDRESS]:
        return _explicit(environment, explicit)
    for variables, count in _LAUNCHERS:
        if all(name in environment for name in variables) and _several(environment.get(count)):
            return {}
    if any("," in environment.get(name, "") for name in _TPU_HOSTS):
        return {}
    return None


def _explicit(environment: Mapping[str, str], given: list[str]) -> dict[str, Any] | None:
    address, count, index = (environment.get(name, "") for name in (ADDRESS, COUNT, INDEX))
    numbered = _is_count(count) and _is_count(index)
    if address and numbered and not _several(count):
        return None
    host, _, port = address.rpartition(":")
    if not (host and _is_count(port) and numbered and int(index) < int(count)):
        listed = ", ".join(f"{name}={short(environment[name])}" for name in given)
        raise InputError(
            f"the environment has {listed}, with which this process cannot join others; set "
            f"{ADDRESS}=HOST:PORT, {COUNT}=N and {INDEX}=0..N-1, or none of them"
        )
    return {
        "coordinator_address": address,
        "num_processes": int(count),
        "process_id": int(index),
        "cluster_detection_method": "deactivate",
    }


def _several(count: str | None) -> bool:
    return count is not None and _is_count(count) and int(count) > 1


def _is_count(text: str) -> bool:
    return is_whole_number(text, max_digits=9)  # JAX takes 32 bits


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
        except InputError as error:
            outcome = {"error": str(error)}
    first_outcome = gather(outcome)[0]
    if "error" in first_outcome:
        raise InputError(first_outcome["error"])
    return first_outcome["value"]


def check_same(values: Mapping[str, Any]) -> None:
    """Checks that JSON values by name are the same in all processes.

    Raises:
        InputError: in every process; the message names the first value that differs.
    """
    everywhere = gather(dict(values))
    for index, others in enumerate(everywhere):
        for name, value in everywhere[0].items():
            if others.get(name) != value:
                raise InputError(
                    f"{name} is {others.get(name)!r} in process {index} and {value!r} in process "
                    "0; allowed: the same configuration and data in all processes"
                )


def raise_if_failed(result: Mapping[str, Any], workdir: pathlib.Path) -> None:
    """Raises Failed if there are several processes, and a run has failed in this one.

    The others may still wait for it in that run, so it must not move on to another.
    """
    if result["status"] == "failed" and jax.process_count() > 1:
        raise Failed(
            f"process {jax.process_index()}: {workdir} has failed ({result['error']}); the same "
            "command resumes"
        )


def wait_for_all() -> None:
    """Waits until all processes have come here, however long process 0 writes files."""
    gather(None)


class PeerLeft(Exception):
    """Another process has left the run; the message names it."""


class Exchange:
    """Exchanges values between processes in rounds: process 0 collects and distributes them.

    Uses the key-value store of JAX's coordinator, which has no public API; single processes do
    not depend on it. A collective on the devices (`gather`) would be queued behind the running
    step and block the host.

    All processes must create their exchanges in the same order and take part in every round.
    """

    _numbers = itertools.count()
    _ROUNDS_PER_BLOCK = 64  # keys are deleted by block

    def __init__(self):
        self._name, self._round = f"exchange/{next(self._numbers)}", 0
        self._open = jax.process_count() > 1
        if self._open:
            from jax._src import distributed

            self._client: Any = distributed.global_state.client

    def __call__(self, value: Any) -> list[Any]:
        """The JSON values that all processes passed in this round, in order, in every process.

        Raises:
            PeerLeft: a process has closed its exchange, or process 0 has ended.
        """
        if jax.process_count() == 1:
            return [value]
        posts = self._posts([value])
        left = [index for index, post in enumerate(posts) if not post]
        if left:
            self._open = False
            raise PeerLeft(
                f"process {left[0]} has left the run; its own output says why, and the same "
                "command resumes from the last checkpoint"
            )
        self._round += 1
        return [value for (value,) in posts]

    def close(self) -> None:
        """Leaves the exchange; processes that wait in the current round raise PeerLeft."""
        if self._open:
            self._open = False
            if is_first():
                self._set("all", [[]])
            else:
                self._set(jax.process_index(), [])

    def _posts(self, post: list[Any]) -> list[list[Any]]:
        """What each process posted; [] for a process that has left."""
        if not is_first():
            self._set(jax.process_index(), post)
            return self._get("all")
        posts = [post, *map(self._get, range(1, jax.process_count()))]
        self._set("all", posts)
        block, first = divmod(self._round, self._ROUNDS_PER_BLOCK)
        if block and not first:  # every process has reached this round, so older keys are unused
            self._client.key_value_delete(f"{self._name}/{block - 1}")
        return posts

    def _key(self, name: Any) -> str:
        return f"{self._name}/{self._round // self._ROUNDS_PER_BLOCK}/{self._round}/{name}"

    def _set(self, name: Any, value: Any) -> None:
        self._client.key_value_set(self._key(name), json.dumps(value))

    def _get(self, name: Any) -> Any:
        while True:  # one second at a time, so that Python handles Ctrl-C in between
            try:
                return json.loads(self._client.blocking_key_value_get(self._key(name), 1000))
            except jax.errors.JaxRuntimeError as error:
                if "DEADLINE_EXCEEDED" not in str(error):
                    raise PeerLeft("process 0 is gone; see its own output") from error
