"""Checkpoints of a run: arrays and a JSON value that belong together, saved in the background.

What is read back is what was saved, or an error: the value carries a SHA-256 of itself, and of each
array a checksum that does not depend on how it is sharded.
"""

import hashlib
import json
import logging
import os
import pathlib
import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax
import orbax.checkpoint as ocp

from runs import distributed, fingerprint, records
from runs.records import Damaged

# Orbax and its file layer log every save, and failures by the page; errors are raised as well, and
# a command's output is its own.
for _name in ("absl", "asyncio"):
    logging.getLogger(_name).setLevel(logging.CRITICAL)


def _without_orbax(unraisable: Any, report: Callable = sys.unraisablehook) -> None:
    """After an error, parts of Orbax's work that were under way complain that the others ended.

    The error itself has been raised, and says all.
    """
    code = getattr(unraisable.object, "cr_code", None)  # of a coroutine
    of_orbax = code is not None and ocp.__name__.replace(".", os.sep) in code.co_filename
    if not of_orbax and str(unraisable.exc_value) != "Event loop is closed":
        report(unraisable)


sys.unraisablehook = _without_orbax

_KEPT = 2  # the newest ones, and the best

# What a damaged file makes Orbax and its file layer raise. Others, such as a device that is out of
# memory, say nothing about the files.
_DAMAGE = (ValueError, KeyError, TypeError, AttributeError, OSError, RecursionError)


def _reason(error: Exception) -> Exception:
    """The error itself, not the bare Exception that Orbax makes of it when it reads an array."""
    bare = type(error) is Exception and isinstance(error.__cause__, Exception)
    return error.__cause__ if bare else error


class Checkpoints:
    """The newest two checkpoints of a run, and the best one.

    Args:
        directory: made when the first checkpoint is saved.
    """

    def __init__(self, directory: str | os.PathLike):
        self._directory = pathlib.Path(directory).absolute()
        self._keep = _NewestAndBest()
        self._opened: ocp.CheckpointManager | None = None

    def save(self, step: int, arrays: Any, value: Any, best_step: int) -> None:
        """Saves without waiting for the disk.

        Args:
            step: names the checkpoint; one of the same step is replaced.
            arrays: a pytree of arrays; it may be changed once this returns.
            value: what JSON can hold.
            best_step: the checkpoint to be kept however old it gets.
        """
        self._keep.best_step = best_step
        named = by_path(arrays)
        content = {"value": value, "arrays": fingerprint.of_arrays(named)}
        content["sha256"] = _sha256(content)
        manager = self._manager()
        if step in manager.all_steps():
            manager.wait_until_finished()  # it may still be on its way to the disk
            manager.delete(step)
        manager.save(
            step,
            args=ocp.args.Composite(
                arrays=ocp.args.StandardSave(named), value=ocp.args.JsonSave(content)
            ),
        )

    def steps(self) -> list[int]:
        """Those that are there, damaged ones too; the newest first."""

        def listed() -> list[int]:
            names = [path.name for path in self._directory.glob("*") if path.is_dir()]
            return sorted((int(name) for name in names if name.isdecimal()), reverse=True)

        return distributed.decided_by_first(listed)

    def value(self, step: int) -> Any:
        """The value of a checkpoint; raises Damaged."""
        return self._content(step)["value"]

    def restore(self, step: int, like: Any) -> Any:
        """The arrays of a checkpoint, with structure and sharding of `like`; raises Damaged."""
        expected = self._content(step)["arrays"]
        leaves, structure = jax.tree.flatten(like)
        specs = [jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding) for x in leaves]
        wanted = by_path(jax.tree.unflatten(structure, specs))
        reader = ocp.Checkpointer(ocp.CompositeCheckpointHandler())
        try:
            arguments = ocp.args.Composite(arrays=ocp.args.StandardRestore(wanted))
            arrays = reader.restore(self._directory / str(step), args=arguments).arrays
        except Exception as error:
            if not isinstance(_reason(error), _DAMAGE):
                raise
            raise Damaged(f"its arrays cannot be read ({_first_line(_reason(error))})") from error
        finally:
            reader.close()
        if fingerprint.of_arrays(arrays) != expected:
            raise Damaged("its arrays are not those that were saved")
        return jax.tree.unflatten(structure, [arrays[name] for name in wanted])

    def set_aside(self, step: int, directory: pathlib.Path) -> None:
        """Moves a checkpoint into another directory."""
        records.set_aside(self._directory / str(step), directory, f"checkpoint_{step}")

    def close(self) -> None:
        """Waits for what is being saved."""
        if self._opened is not None:
            self._opened.wait_until_finished()
            self._opened.close()
            self._opened = None

    def _manager(self) -> ocp.CheckpointManager:
        if self._opened is None:
            options = ocp.CheckpointManagerOptions(preservation_policy=self._keep, create=True)
            self._opened = ocp.CheckpointManager(self._directory, options=options)
        return self._opened

    def _content(self, step: int) -> dict[str, Any]:
        """What was saved beside the arrays, checked."""

        def read() -> dict[str, Any]:
            try:
                content = ocp.JsonCheckpointHandler().restore(self._directory / str(step) / "value")
                expected = content.pop("sha256")
                if _sha256(content) == expected:
                    return {"content": content}
                return {"error": "its values are not those that were saved"}
            except _DAMAGE as error:
                return {"error": f"its values cannot be read ({_first_line(error)})"}

        outcome = distributed.decided_by_first(read)
        if "error" in outcome:
            raise Damaged(outcome["error"])
        return outcome["content"]


class _NewestAndBest:
    """Orbax's PreservationPolicy: which checkpoints are kept."""

    best_step = -1

    def should_preserve(self, checkpoints: Sequence[Any], *, context: Any) -> list[bool]:
        del context
        newest = len(checkpoints) - _KEPT
        return [i >= newest or each.step == self.best_step for i, each in enumerate(checkpoints)]


def by_path(tree: Any) -> dict[str, Any]:
    """Leaves by name, such as 'params/blocks/0/conv1/conv/kernel', in the tree's own order."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}


def _sha256(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _first_line(error: BaseException) -> str:
    """What an error says, without the pages that a file layer may add."""
    text = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {text[:200]}" if text else type(error).__name__
