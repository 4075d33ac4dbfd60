"""Checkpoints of a run: arrays and a JSON value, saved together in the background.

Restoring returns exactly what was saved, or raises: a checkpoint contains a SHA-256 of its value
and a checksum of each array, which does not depend on how the array is sharded.
"""

import hashlib
import itertools
import json
import os
import pathlib
import threading
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import orbax.checkpoint as ocp
from etils import epath
from jax import lax
from orbax.checkpoint.checkpoint_managers import AnyPreservationPolicy, CustomSteps, LatestN

from echo.spec import abbreviated
from runs import processes, records
from runs.cli import InputError
from runs.records import Damaged

_NUM_NEWEST = 2  # checkpoints to keep, besides the best

_numbers = itertools.count()  # of all Checkpoints in this process

# Errors that Orbax and its file layer raise for damaged files. Others, such as an out-of-memory
# error of a device, say nothing about the files.
_DAMAGE_ERRORS = (ValueError, KeyError, TypeError, AttributeError, OSError, RecursionError)


def check_path(directory: str | os.PathLike) -> None:
    """Raises InputError if Orbax would read or write elsewhere than in a directory, whose absolute
    path it takes for a pattern, with a backslash for a slash."""
    path = os.path.abspath(directory)
    if odd := {*path} & {*"*?[]\\"}:
        raise InputError(
            f"{abbreviated(path)} contains {' and '.join(sorted(odd))}; allowed: an absolute path "
            "without * ? [ ] \\, with which checkpoints would go astray; give another directory, "
            "or a symbolic link to this one"
        )


class Checkpoints:
    """The newest two checkpoints of a run, and the best one; raises InputError, see `check_path`.

    Args:
        directory: created when the first checkpoint is saved.
        on_saved: called in the background once a checkpoint is complete.

    Several processes must create theirs in the same order.
    """

    def __init__(self, directory: str | os.PathLike, on_saved: Callable[[], None] = lambda: None):
        check_path(directory)
        self._directory, self._on_saved = pathlib.Path(directory).absolute(), on_saved
        self._reporting: threading.Thread | None = None
        # Runs that train together save at the same time. With equal names, the background barrier
        # of one would meet that of another.
        self._barriers = f"checkpoints{next(_numbers)}"
        self._keep = AnyPreservationPolicy([])
        self._opened: ocp.CheckpointManager | None = None

    def save(self, step: int, arrays: Any, value: Any, best_step: int) -> None:
        """Saves a checkpoint in the background, unless there is one of the same step.

        Args:
            step: names the checkpoint.
            arrays: a pytree of arrays, which may be modified once this returns.
            value: a JSON value.
            best_step: the step of the best checkpoint, which is kept however old it is.
        """
        self._keep.policies = [LatestN(_NUM_NEWEST), CustomSteps([best_step])]
        manager = self._manager()
        if step in manager.all_steps():
            return
        named = by_path(arrays)
        content = {"value": value, "arrays": checksums(named)}
        content["sha256"] = _sha256(content)
        manager.save(
            step,
            args=ocp.args.Composite(
                arrays=ocp.args.StandardSave(named), value=ocp.args.JsonSave(content)
            ),
        )
        # Orbax's own callback comes before the checkpoint gets its name.
        self._reporting = threading.Thread(target=self._report, args=(manager,), daemon=True)
        self._reporting.start()

    def _report(self, manager: ocp.CheckpointManager) -> None:
        try:
            manager.wait_until_finished()
        except Exception:  # which the next save, or the end, raises too
            return
        self._on_saved()

    def steps(self) -> list[int]:
        """The steps of all checkpoints, from the newest to the oldest, including damaged ones."""

        def list_directory() -> list[int]:
            names = (path.name for path in self._directory.glob("*") if path.is_dir())
            return sorted((int(name) for name in names if records.is_numbered(name)), reverse=True)

        return processes.decided_by_first(list_directory)

    def value(self, step: int) -> Any:
        """The value of a checkpoint; raises Damaged."""
        return self._content(step)["value"]

    def restore(self, step: int, like: Any) -> Any:
        """The arrays of a checkpoint, with the structure and sharding of `like`; raises Damaged."""
        expected = self._content(step)["arrays"]
        leaves, structure = jax.tree.flatten(like)
        specs = [jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding) for x in leaves]
        specs_by_name = by_path(jax.tree.unflatten(structure, specs))
        reader, arrays, why = ocp.CompositeCheckpointHandler(), {}, ""
        try:
            arguments = ocp.args.Composite(arrays=ocp.args.StandardRestore(specs_by_name))
            arrays = reader.restore(epath.Path(self._directory / str(step)), args=arguments).arrays
        except Exception as error:
            # Orbax raises a bare Exception from the one of its file layer
            cause = error.__cause__ if type(error) is Exception and error.__cause__ else error
            if not isinstance(cause, _DAMAGE_ERRORS):
                raise
            why = f"its arrays cannot be read ({_summary(cause)})"
        finally:
            reader.close()
        # each process reads its own part, which may be the only one that is damaged
        if why := next(filter(None, processes.gather(why)), None):
            raise Damaged(why)
        if checksums(arrays) != expected:
            raise Damaged("its arrays are not those that were saved")
        return jax.tree.unflatten(structure, [arrays[name] for name in specs_by_name])

    def set_aside(self, step: int, directory: pathlib.Path) -> None:
        """Moves a checkpoint into another directory."""
        aside = records.free_path(directory, f"checkpoint_{step}")
        (self._directory / str(step)).rename(aside)

    def close(self) -> None:
        """Waits until the last checkpoint is saved."""
        if self._opened is not None:
            self._opened.wait_until_finished()
            if self._reporting is not None:
                self._reporting.join()
            self._opened.close()
            self._opened = None

    def _manager(self) -> ocp.CheckpointManager:
        if self._opened is None:
            barriers = ocp.options.MultiprocessingOptions(barrier_sync_key_prefix=self._barriers)
            options = ocp.CheckpointManagerOptions(
                preservation_policy=self._keep, create=True, multiprocessing_options=barriers
            )
            self._opened = _Manager(self._directory, options=options)
        return self._opened

    def _content(self, step: int) -> dict[str, Any]:
        """The verified value of a checkpoint, and the checksums of its arrays."""

        def read() -> dict[str, Any]:
            place = epath.Path(self._directory / str(step))
            try:
                _ = ocp.path.step.Metadata(step, place).commit_timestamp_nsecs
                content: Any = ocp.JsonCheckpointHandler().restore(place / "value")
                expected = content.pop("sha256")
            except _DAMAGE_ERRORS as error:
                return {"error": f"it cannot be read ({_summary(error)})"}
            if _sha256(content) != expected:
                return {"error": "its values are not those that were saved"}
            return {"content": content}

        outcome = processes.decided_by_first(read)
        if "error" in outcome:
            raise Damaged(outcome["error"])
        return outcome["content"]


class _Manager(ocp.CheckpointManager):
    """Does not report steps to JAX's preemption service.

    Orbax does so when it saves and, in the background of process 0 only, when a checkpoint is
    complete: then of an old step, from which JAX may compute a stop that this process has passed.
    The training loop reports for itself (see runs/signals.py).
    """

    def reached_preemption(self, step: int) -> bool:
        return False


def by_path(tree: Any) -> dict[str, Any]:
    """Leaves by path, such as 'params/blocks/0/conv1/conv/kernel', in the tree's order."""
    leaves = jax.tree.leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}


def checksums(arrays: dict[str, Any]) -> dict[str, str]:
    """16 hexadecimal digits for each array, by name, computed on its devices.

    They detect every change of a single element, and other changes except with probability 2^-64.
    They detect damage, not malice. Sums modulo 2^32 do not depend on the order of summation: each
    device sums its own part, whatever the sharding.
    """
    # One at a time. The sums of an array that processes share wait for one another, and a client
    # runs a limited number of programs at once: if each process filled it with others, all would
    # wait forever.
    sums = {name: jax.device_get(_sums(array)) for name, array in arrays.items()}
    return {name: "".join(f"{int(part):08x}" for part in both) for name, both in sums.items()}


_GOLDEN = 0x9E3779B9  # 2^32 over the golden ratio: neighboring positions map to distant numbers
_SEEDS = (0, 0x7F4A7C15)  # two sums, 64 bits together


@jax.jit
def _sums(array: jax.Array) -> tuple[jax.Array, ...]:
    """For each seed, the sum over elements of mix(bits + position * golden); uint32 scalars."""
    if array.dtype == jnp.bool_:
        words = array.astype(jnp.uint32)
    else:  # one word of an element, or two
        bits = jnp.dtype(f"uint{min(32, 8 * array.dtype.itemsize)}")
        words = lax.bitcast_convert_type(array, bits).astype(jnp.uint32)
    position, stride = jnp.uint32(0), 1
    for axis in reversed(range(words.ndim)):
        along = lax.broadcasted_iota(jnp.uint32, words.shape, axis)
        position = position + along * np.uint32(stride % 2**32)
        stride *= words.shape[axis]
    numbered = words + position * np.uint32(_GOLDEN)
    return tuple(jnp.sum(_mixed(numbered ^ np.uint32(seed)), dtype=jnp.uint32) for seed in _SEEDS)


def _mixed(x: jax.Array) -> jax.Array:
    """The finalizer of MurmurHash3, a bijection of uint32 that mixes all bits."""
    x = (x ^ (x >> 16)) * np.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * np.uint32(0xC2B2AE35)
    return x ^ (x >> 16)


def _sha256(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _summary(error: BaseException) -> str:
    """The type and the first line of an error's message; a file layer may append pages."""
    return f"{type(error).__name__}: {abbreviated(str(error).strip().partition(chr(10))[0])}"
