"""Checkpoints of a run: arrays and a JSON value, saved together in the background.

Restoring returns exactly what was saved, or raises: a checkpoint contains a SHA-256 of its value
and a checksum of each array, which does not depend on how the array is sharded.
"""

import hashlib
import itertools
import json
import logging
import os
import pathlib
import shutil
import sys
import threading
from collections.abc import Callable, Sequence
from typing import Any

import jax
import orbax.checkpoint as ocp
from etils import epath

from runs import fingerprint, processes, records
from runs.records import Damaged

# Orbax and its file layer log every save, and long reports of failures, which are also raised.
for _name in ("absl", "asyncio"):
    logging.getLogger(_name).setLevel(logging.CRITICAL)


def _ignore_orbax(unraisable: Any, report: Callable = sys.unraisablehook) -> None:
    """Silences Orbax's coroutines, which complain after an error that the others have ended.

    The error itself has already been raised.
    """
    code = getattr(unraisable.object, "cr_code", None)  # of a coroutine
    in_orbax = code is not None and ocp.__name__.replace(".", os.sep) in code.co_filename
    if not in_orbax and str(unraisable.exc_value) != "Event loop is closed":
        report(unraisable)


sys.unraisablehook = _ignore_orbax

_NUM_NEWEST = 2  # checkpoints to keep, besides the best

_numbers = itertools.count()  # of all Checkpoints in this process

# Errors that Orbax and its file layer raise for damaged files. Others, such as an out-of-memory
# error of a device, say nothing about the files.
_DAMAGE_ERRORS = (ValueError, KeyError, TypeError, AttributeError, OSError, RecursionError)


def _cause(error: Exception) -> Exception:
    """Unwraps the bare Exception that Orbax raises when it cannot read an array."""
    if type(error) is Exception and isinstance(error.__cause__, Exception):
        return error.__cause__
    return error


class Checkpoints:
    """The newest two checkpoints of a run, and the best one.

    Args:
        directory: created when the first checkpoint is saved.
        on_saved: called in the background once a checkpoint is complete.

    Several processes must create theirs in the same order.
    """

    def __init__(self, directory: str | os.PathLike, on_saved: Callable[[], None] = lambda: None):
        self._on_saved = on_saved
        self._reporting: threading.Thread | None = None
        # Runs that train together save at the same time. With equal names, the background barrier
        # of one would meet that of another.
        self._barriers = f"checkpoints{next(_numbers)}"
        self._directory = pathlib.Path(directory).absolute()
        self._keep = _NewestAndBest()
        self._damaged: set[int] = set()  # steps, see `use_replaced`
        self._opened: ocp.CheckpointManager | None = None

    def save(self, step: int, arrays: Any, value: Any, best_step: int) -> None:
        """Saves a checkpoint in the background.

        Args:
            step: names the checkpoint; an existing one of the same step is replaced.
            arrays: a pytree of arrays, which may be modified once this returns.
            value: a JSON value.
            best_step: the step of the best checkpoint, which is kept however old it is.
        """
        self._keep.best_step = best_step
        named = by_path(arrays)
        content = {"value": value, "arrays": fingerprint.of_arrays(named)}
        content["sha256"] = _sha256(content)
        manager = self._manager()
        if step in manager.all_steps():
            manager.wait_until_finished()  # it may still be being written
            if self._reporting is not None:
                self._reporting.join()
            # A process that is killed before the new one is complete still has the earlier one.
            processes.decided_by_first(lambda: self._move_aside(step))
            manager.delete(step)  # from its list; there is no such directory any more
        manager.save(
            step,
            args=ocp.args.Composite(
                arrays=ocp.args.StandardSave(named), value=ocp.args.JsonSave(content)
            ),
        )
        # Orbax's own callback comes before the checkpoint gets its name.
        self._reporting = threading.Thread(target=self._report, args=(manager, step), daemon=True)
        self._reporting.start()

    def _report(self, manager: ocp.CheckpointManager, step: int) -> None:
        try:
            manager.wait_until_finished()
        except Exception:  # which the next save, or the end, raises too
            return
        if processes.is_first():
            shutil.rmtree(self._aside(step), ignore_errors=True)
        self._on_saved()

    def _place(self, step: int) -> pathlib.Path:
        """Where a checkpoint is."""
        path = self._directory / str(step)
        return path if path.exists() and step not in self._damaged else self._aside(step)

    def _aside(self, step: int) -> pathlib.Path:
        """Where a checkpoint is while it is replaced: hidden from Orbax and mirrors."""
        return self._directory / f".{step}"

    def _move_aside(self, step: int) -> None:
        shutil.rmtree(self._aside(step), ignore_errors=True)  # what could not be removed before
        (self._directory / str(step)).rename(self._aside(step))

    def use_replaced(self, step: int) -> bool:
        """From now on, reads the checkpoint that a damaged one was replacing; returns whether there
        is one, and it was not read yet."""
        paths = self._directory / str(step), self._aside(step)
        both = processes.decided_by_first(lambda: all(path.is_dir() for path in paths))
        if not both or step in self._damaged:
            return False
        self._damaged.add(step)
        return True

    def recover(self) -> None:
        """Puts a checkpoint back that was being replaced when its process was killed.

        Must be called before the first `save`. No process may be saving to the directory.
        """

        def put_back() -> None:
            for path in self._directory.glob(".*"):
                step = path.name[1:]
                if not (records.is_numbered(step) and path.is_dir()):
                    continue
                if (self._directory / step).exists():
                    shutil.rmtree(path)
                else:
                    path.rename(self._directory / step)

        processes.decided_by_first(put_back)
        self._damaged.clear()

    def steps(self) -> list[int]:
        """The steps of all checkpoints, from the newest to the oldest, including damaged ones and
        one that was being replaced when its process was killed."""

        def list_directory() -> list[int]:
            paths = [path for path in self._directory.glob("*") if path.is_dir()]
            names = {path.name.removeprefix(".") for path in paths}
            return sorted((int(name) for name in names if records.is_numbered(name)), reverse=True)

        return processes.decided_by_first(list_directory)

    def check_metadata(self, step: int) -> None:
        """Raises Damaged if Orbax cannot read the metadata of a checkpoint."""

        def read() -> str:
            try:
                place = epath.Path(self._place(step))
                _ = ocp.path.step.Metadata(step, place).commit_timestamp_nsecs
            except _DAMAGE_ERRORS as error:
                return f"its metadata cannot be read ({_first_line(error)})"
            return ""

        if why := processes.decided_by_first(read):
            raise Damaged(why)

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
            arrays = reader.restore(epath.Path(self._place(step)), args=arguments).arrays
        except Exception as error:
            if not isinstance(_cause(error), _DAMAGE_ERRORS):
                raise
            why = f"its arrays cannot be read ({_first_line(_cause(error))})"
        finally:
            reader.close()
        # each process reads its own part, which may be the only one that is damaged
        if why := next(filter(None, processes.gather(why)), None):
            raise Damaged(why)
        if fingerprint.of_arrays(arrays) != expected:
            raise Damaged("its arrays are not those that were saved")
        return jax.tree.unflatten(structure, [arrays[name] for name in specs_by_name])

    def set_aside(self, step: int, directory: pathlib.Path) -> None:
        """Moves a checkpoint into another directory; called again, the one it was replacing."""
        path = self._directory / str(step)
        path = path if path.exists() else self._aside(step)
        records.set_aside(path, directory, f"checkpoint_{step}")

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
            options = ocp.CheckpointManagerOptions(
                preservation_policy=self._keep,
                create=True,
                multiprocessing_options=ocp.options.MultiprocessingOptions(
                    barrier_sync_key_prefix=self._barriers
                ),
            )
            self._opened = _Manager(self._directory, options=options)
        return self._opened

    def _content(self, step: int) -> dict[str, Any]:
        """The verified value of a checkpoint, and the checksums of its arrays."""

        def read() -> dict[str, Any]:
            try:
                path = epath.Path(self._place(step) / "value")
                content: Any = ocp.JsonCheckpointHandler().restore(path)
                expected = content.pop("sha256")
                if _sha256(content) == expected:
                    return {"content": content}
                return {"error": "its values are not those that were saved"}
            except _DAMAGE_ERRORS as error:
                return {"error": f"its values cannot be read ({_first_line(error)})"}

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


class _NewestAndBest:
    """A PreservationPolicy of Orbax: keeps the newest checkpoints and the best one."""

    best_step = -1

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> list[bool]:
        del context
        newest = len(checkpoints) - _NUM_NEWEST
        return [
            i >= newest or checkpoint.step == self.best_step
            for i, checkpoint in enumerate(checkpoints)
        ]


def by_path(tree: Any) -> dict[str, Any]:
    """Leaves by path, such as 'params/blocks/0/conv1/conv/kernel', in the tree's order."""
    leaves = jax.tree.leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}


def _sha256(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _first_line(error: BaseException) -> str:
    """The type and the first line of an error's message; a file layer may append pages."""
    text = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {text[:200]}" if text else type(error).__name__
