"""Runs a study on a Ray cluster: one task per unit, as many at once as the cluster has room for.

Every machine needs this checkout at the same path, the same packages, and the study's directory on
a shared file system.
"""

import logging
import os
import pathlib
import socket
import warnings
from typing import Any

from runs.cli import ROOT, InputError
from runs.progress import Progress
from runs.study import Study
from studies.executors import Ended
from studies.trial import Outcome, Unit, attempt

# Waiting tasks tell the cluster's autoscaler what to add; more than this add no information.
_MAX_TASKS = 1_000

_CONNECT_SECONDS = 10.0


class RayExecutor:
    """Runs units as Ray tasks.

    Args:
        address: HOST:PORT of a cluster's head; '' = the cluster in RAY_ADDRESS, or one that is
            started on this machine and stopped with the study.
        cpus, gpus: what Ray reserves for each unit, a trial or a group of lanes.

    Raises:
        InputError: Ray is not installed, or no cluster answers at the address.
    """

    here = False
    workers = 2  # or more: Ray lets every task use all of its machine

    def __init__(
        self,
        study: Study,
        study_dir: pathlib.Path,
        progress: Progress,
        address: str = "",
        cpus: float = 1.0,
        gpus: float = 0.0,
    ):
        try:
            import ray  # pyright: ignore[reportMissingImports]
            import ray.exceptions  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise InputError(
                "--executor=ray needs the package ray; pip install ray, or use --executor=local"
            ) from error

        self._ray, self._starts = ray, not ray.is_initialized()
        if self._starts:
            self._connect(address or os.environ.get("RAY_ADDRESS", ""))
        available = ray.cluster_resources()
        for name, amount in (("CPU", cpus), ("GPU", gpus)):
            if amount > (most := available.get(name, 0)):
                raise InputError(
                    f"--{name.lower()}s-per-trial is {amount:g}; allowed: up to {most:g}, which "
                    "the Ray cluster has"
                )
        # no retries: the runner submits the unit of a dead worker again
        task = ray.remote(max_retries=0)(attempt)
        self._task = task.options(num_cpus=cpus, num_gpus=gpus)
        self._shared, self._study_dir = ray.put(study), study_dir.absolute()
        self._units: dict[Any, Unit] = {}  # by reference

    def free(self) -> int:
        return _MAX_TASKS - len(self._units)

    def submit(self, unit: Unit, label: str) -> None:
        self._units[self._task.remote(self._shared, unit, self._study_dir)] = unit

    def wait(self, seconds: float) -> Ended:
        references = list(self._units)
        if not references or not self._ray.wait(references, timeout=seconds)[0]:
            return []
        done, _ = self._ray.wait(references, num_returns=len(references), timeout=0)
        ended: Ended = []
        for reference in done:
            unit = self._units.pop(reference)
            try:
                ended.append((unit, self._ray.get(reference)))
            except self._ray.exceptions.RayTaskError as error:
                raise InputError(
                    f"a Ray worker could not start ({error.cause}); every machine needs this "
                    "checkout at the same path, and the same packages"
                ) from error
            except self._ray.exceptions.RayError:  # killed, cancelled, or its machine was lost
                ended.append((unit, Outcome({})))
        return ended

    def stop(self) -> None:
        for reference in self._units:
            self._ray.cancel(reference)  # interrupts the run, which saves itself

    def close(self) -> None:
        self.stop()
        if self._starts:
            self._ray.shutdown()

    def _connect(self, address: str) -> None:
        # task processes import the project's modules from this checkout, and then what we import
        path = filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))
        variables = {"PYTHONPATH": os.pathsep.join(path)}
        preallocate = "XLA_PYTHON_CLIENT_PREALLOCATE"  # false in sweeps, whose tasks share a GPU
        variables[preallocate] = os.environ.get(preallocate, "true")
        try:
            if address not in ("", "auto", "local"):  # Ray itself would try for minutes
                host, _, port = address.rpartition("//")[2].rpartition(":")
                socket.create_connection((host or "?", int(port)), _CONNECT_SECONDS).close()
            with warnings.catch_warnings():
                # Ray forks only to execute other programs, which is safe; JAX cannot know.
                warnings.filterwarnings("ignore", message=r"os\.fork\(\) was called")
                self._ray.init(
                    address=address or None,
                    runtime_env={"env_vars": variables},
                    include_dashboard=None if address else False,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                )
        except Exception as error:  # a start that takes too long raises a bare Exception
            raise InputError(
                f"no Ray cluster can be used at {address or 'this machine'} ({error}); give "
                "another --ray-address (ray start --head), or use --executor=local"
            ) from error
