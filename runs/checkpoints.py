"""Checkpoints of a run: arrays and a JSON value, saved together in the background.

A checkpoint gets its name once it is complete, with a manifest: the SHA-256 of each of its files.
They are checked before anything is read, so restoring returns exactly what was saved, or raises.
"""

import hashlib
import os
import pathlib
import shutil
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import jax
import orbax.checkpoint as ocp
from etils import epath

from echo.spec import abbreviated
from echo.threads import DaemonPool
from runs import processes, records
from runs.cli import InputError
from runs.records import Damaged

MANIFEST = "sha256.json"  # in a checkpoint's directory

_NUM_NEWEST = 2  # checkpoints to keep, besides the best


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
    """

    def __init__(self, directory: str | os.PathLike, on_saved: Callable[[], None] = lambda: None):
        check_path(directory)
        self._directory, self._on_saved = pathlib.Path(directory).absolute(), on_saved
        self._writer: ocp.AsyncCheckpointer | None = None
        self._background: DaemonPool | None = None
        self._saving: Future | None = None
        self._intact: set[int] = set()  # steps whose files have been checked

    def save(self, step: int, arrays: Any, value: Any, best_step: int) -> None:
        """Saves a checkpoint in the background, then removes the older ones but for the best.

        Args:
            step: names the checkpoint; there must be none of this name.
            arrays: a pytree of arrays, which may be modified once this returns.
            value: a JSON value.
            best_step: the step of the best checkpoint, which is kept however old it is.
        """
        self._wait()
        if self._writer is None or self._background is None:
            self._directory.mkdir(exist_ok=True)
            for half in self._directory.glob(".saving_*") if processes.is_first() else ():
                shutil.rmtree(half)  # of a process that was killed
            self._writer = ocp.AsyncCheckpointer(ocp.CompositeCheckpointHandler())
            self._background = DaemonPool(1)
        arguments = ocp.args.Composite(
            arrays=ocp.args.StandardSave(by_path(arrays)), value=ocp.args.JsonSave(value)
        )
        self._writer.save(self._directory / f".saving_{step}", args=arguments)
        self._saving = self._background.submit(self._complete, self._writer, step, best_step)

    def _wait(self) -> None:
        """Waits until the last checkpoint is saved, or raises its error, once."""
        saving, self._saving = self._saving, None
        if saving is not None:
            saving.result()

    def _complete(self, writer: ocp.AsyncCheckpointer, step: int, best_step: int) -> None:
        writer.wait_until_finished()
        if processes.is_first():
            place = self._directory / f".saving_{step}"
            records.write_json(place / MANIFEST, {"files": _digests(place)})
            place.rename(self._place(step))
            for old in self.steps()[_NUM_NEWEST:]:
                if old != best_step:  # hidden first, or, if killed, it would seem damaged
                    half = self._place(old).rename(self._directory / f".saving_{old}")
                    shutil.rmtree(half, ignore_errors=True)
        self._on_saved()

    def steps(self) -> list[int]:
        """The steps of all checkpoints, from the newest to the oldest, including damaged ones."""
        names = (path.name for path in self._directory.glob("*") if path.is_dir())
        return sorted((int(name) for name in names if records.is_numbered(name)), reverse=True)

    def value(self, step: int) -> Any:
        """The value of a checkpoint, all of whose files are as they were saved; raises Damaged."""
        self._check(step)
        return ocp.JsonCheckpointHandler().restore(epath.Path(self._place(step) / "value"))

    def restore(self, step: int, like: Any) -> Any:
        """The arrays of a checkpoint, with the structure and sharding of `like`; raises Damaged.
        All processes call it."""
        processes.decided_by_first(lambda: self._check(step))
        leaves, structure = jax.tree.flatten(like)
        specs = [jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding) for x in leaves]
        specs_by_name = by_path(jax.tree.unflatten(structure, specs))
        arguments = ocp.args.Composite(arrays=ocp.args.StandardRestore(specs_by_name))
        reader = ocp.CompositeCheckpointHandler()
        try:
            arrays = reader.restore(epath.Path(self._place(step)), args=arguments).arrays
        except (ValueError, KeyError, TypeError) as error:  # the code of the network was edited
            text = records.plain(f"{type(error).__name__}: {error}", 200)
            raise Damaged(
                f"the arrays in {self._place(step)} are not those of this model ({text})"
            ) from error
        finally:
            reader.close()
        return jax.tree.unflatten(structure, [arrays[name] for name in specs_by_name])

    def set_aside(self, step: int, directory: pathlib.Path) -> None:
        """Moves a checkpoint into another directory."""
        self._place(step).rename(records.free_path(directory, f"checkpoint_{step}"))

    def close(self) -> None:
        """Waits until the last checkpoint is saved."""
        try:
            self._wait()
        finally:
            for part in filter(None, (self._background, self._writer)):
                part.close()
            self._background = self._writer = None

    def _place(self, step: int) -> pathlib.Path:
        return self._directory / str(step)

    def _check(self, step: int) -> None:
        """Raises Damaged unless the files of a checkpoint are those that were saved."""
        if step in self._intact:
            return
        place = self._place(step)
        expected = records.read_json(place / MANIFEST).get("files", {MANIFEST: ""})
        found = _digests(place)
        if differing := [name for name, digest in expected.items() if found.get(name) != digest]:
            raise Damaged(f"{differing[0]} is missing or has changed")
        self._intact.add(step)


def by_path(tree: Any) -> dict[str, Any]:
    """Leaves by path, such as 'params/blocks/0/conv1/conv/kernel', in the tree's order."""
    leaves = jax.tree.leaves_with_path(tree)
    return {jax.tree_util.keystr(path, simple=True, separator="/"): leaf for path, leaf in leaves}


def _digests(place: pathlib.Path) -> dict[str, str]:
    """The SHA-256 of all files below a directory but the manifest, by path."""
    digests = {}
    for path in sorted(place.rglob("*")):
        if path.is_file() and path.name != MANIFEST:
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            digests[path.relative_to(place).as_posix()] = digest
    return digests
