"""Several processes that train together: finding each other, and agreeing.

Process 0 writes a run's files and decides what is not a number that all of them compute alike. In
a single process nothing here communicates.
"""

import atexit
import itertools
import json
import os
import socket
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils

from runs import terminal
from runs.cli import FAILED, InputError

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

_LOOK_SECONDS = 0.1  # between looks at process 0 once it has hung up

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
    if not is_first():
        leaving = threading.Event()
        atexit.register(leaving.set)  # before JAX leaves, after which process 0 may end
        threading.Thread(target=_end_with_first, args=(leaving,), daemon=True).start()


def _end_with_first(leaving: threading.Event) -> None:
    """Ends this process with a sentence once process 0 is gone, which serves the coordinator.

    JAX notices it too, and aborts with messages of its own, perhaps a moment earlier.
    """
    from jax._src import distributed

    host, _, port = distributed.global_state.coordinator_address.rpartition(":")
    while not leaving.is_set():
        try:
            with socket.create_connection((host.strip("[]"), int(port)), timeout=10) as connection:
                connection.settimeout(None)
                while connection.recv(4096):  # the coordinator says hello, and hangs up in the end
                    pass
        except ConnectionRefusedError:
            if not leaving.is_set():
                terminal.write(
                    f"process {jax.process_index()}: process 0 is gone; its own output says why, "
                    "and the same command resumes from the last checkpoint",
                    sys.stderr,
                )
                os._exit(FAILED)
        except OSError:  # reset, or a network that is slow: another look says more
            pass
        leaving.wait(_LOOK_SECONDS)


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


class PeerLeft(Exception):
    """Another process has left the run; the message says which."""


class Exchange:
    """Rounds in which each process tells something, and process 0 passes on what all have told.

    It goes through the key-value store of JAX's coordinator, which has no public name: several
    processes alone depend on that. A collective on the devices (`gather`) would queue behind the
    running step, and the host wait for that.

    All processes make their exchanges in the same order, and take part in each round.
    """

    _numbers = itertools.count()
    _ROUNDS = 64  # whose keys are deleted together

    def __init__(self):
        self._name, self._round = f"exchange/{next(self._numbers)}", 0
        self._open = jax.process_count() > 1
        if self._open:
            from jax._src import distributed

            self._client = distributed.global_state.client

    def __call__(self, told: Any) -> list[Any]:
        """What each process told in this round (JSON), in the order of processes, in all of them.

        Raises:
            Left: a process has closed its exchange, or process 0 is gone.
        """
        if jax.process_count() == 1:
            return [told]
        posts = self._posts([told])
        gone = [number for number, post in enumerate(posts) if not post]
        if gone:
            self._open = False
            raise PeerLeft(
                f"process {gone[0]} has left the run; its own output says why, and the same "
                "command goes on from the last checkpoint"
            )
        self._round += 1
        return [told for (told,) in posts]

    def close(self) -> None:
        """Takes part no longer: ends the round that others may wait in, by an error there."""
        if self._open:
            self._open = False
            self._set("all", [[]]) if is_first() else self._set(jax.process_index(), [])

    def _posts(self, post: list[Any]) -> list[list[Any]]:
        """What each process posted, [] where it has left."""
        if not is_first():
            self._set(jax.process_index(), post)
            return self._get("all")
        posts = [post, *map(self._get, range(1, jax.process_count()))]
        self._set("all", posts)
        block, first = divmod(self._round, self._ROUNDS)
        if block and not first:  # all are here, so nobody asks for what was before
            self._client.key_value_delete(f"{self._name}/{block - 1}")
        return posts

    def _key(self, name: Any) -> str:
        return f"{self._name}/{self._round // self._ROUNDS}/{self._round}/{name}"

    def _set(self, name: Any, value: Any) -> None:
        self._client.key_value_set(self._key(name), json.dumps(value))

    def _get(self, name: Any) -> Any:
        while True:  # by the second, so that Python hears Ctrl-C in between
            try:
                return json.loads(self._client.blocking_key_value_get(self._key(name), 1000))
            except jax.errors.JaxRuntimeError as error:
                if "DEADLINE_EXCEEDED" not in str(error):
                    raise PeerLeft("process 0 is gone; see its own output") from error
