"""Copies a run's or a study's directory to another place, such as a bucket, after each checkpoint.

A copy can be resumed from: checkpoints and records have checksums, so what an interrupted copy left
incomplete is not used. A mirror belongs to one run or study, whose `mirror.json` it holds. Nothing
is removed there but checkpoints that this process has copied and the run has replaced. File systems
are only given exact names: many take `[` and `*` for patterns.
"""

import contextlib
import os
import pathlib
import re
import secrets
import shutil
from collections.abc import Callable, Iterator
from typing import Any

from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from runs import records, workdirs
from runs.checkpoints import MANIFEST
from runs.cli import InputError

_LARGE = 2**20  # bytes; of arrays, whose names never recur, so an earlier process's copy is known
_CHECKPOINT = re.compile(rf"(?:.*/)?{records.CHECKPOINTS}/[0-9]+(?=/)")  # of a file's path


class Mirror:
    """A follower (see tracking.py) that keeps a copy of a directory up to date.

    Args:
        root: the directory of the run or study that the mirror belongs to.
        url: where its copy is.
        directory: what to copy, `root` or below it; its copy is at the same place below `url`.
        say: called with a warning when a copy fails.
    """

    def __init__(
        self, root: pathlib.Path, url: str, directory: pathlib.Path, say: Callable[[str], None]
    ):
        self._root, self._url, self._directory, self._say = root, url, directory, say
        self._copied: dict[str, tuple[int, int]] = {}  # (size, mtime in ns) by path

    def start(self, fresh_examples: int) -> None:  # what is replaced later is known from now on
        self.saved()

    def saved(self) -> None:
        self._update("the next checkpoint tries it again")

    def close(self) -> None:
        self._update(f"{self._directory} is complete; start the same command again to copy it")

    def _update(self, advice: str) -> None:
        try:
            self._copy()
        except InputError:  # it is another's
            raise
        except Exception as error:  # of any driver
            reason = records.plain(f"{type(error).__name__}: {error}")
            self._say(f"warning: {self._url} is not up to date ({reason}); {advice}")

    def _copy(self) -> None:
        """Copies what has changed: mirror.json, records, checkpoints, and last results."""
        with workdirs.held(self._root / f".{records.LOCK}", wait=True):  # of all launches
            if not (self._root / records.MIRROR).exists():
                identity = {"identity": secrets.token_hex(16)}
                records.write_json(self._root / records.MIRROR, identity)
        filesystem, top = _opened(self._url)
        _check_owner(filesystem, top, self._root, self._url)
        below = self._directory.absolute().relative_to(self._root.absolute()).as_posix()
        place = top if below == "." else f"{top}/{below}"
        for path in sorted(_files(self._directory), key=_order):
            source, copy = self._directory / path, f"{place}/{path}"
            try:
                status = source.stat()
                version = status.st_size, status.st_mtime_ns
                large = status.st_size > _LARGE and "/arrays/" in path
                known = large and path not in self._copied and filesystem.exists(copy)
                there = filesystem.size(copy) if known else None
                if self._copied.get(path) != version and there != status.st_size:
                    _make_directory(filesystem, os.path.dirname(copy))
                    filesystem.put_file(str(source), copy)
                self._copied[path] = version
            except FileNotFoundError:  # an old checkpoint was removed just now
                if source.exists():
                    raise
        for path in list(self._copied):
            folder = _CHECKPOINT.match(path)
            if folder and not (self._directory / folder[0]).exists():
                del self._copied[path]
                if isinstance(filesystem, LocalFileSystem):  # with its directories
                    shutil.rmtree(f"{place}/{folder[0]}", ignore_errors=True)
                else:
                    filesystem.rm_file(f"{place}/{path}")


def check(url: str, root: pathlib.Path) -> None:
    """Raises InputError if `root` can have no mirror at a URL: it cannot be written to, it contains
    anything but the mirror of `root`, or one would lie within the other, perhaps through symbolic
    links. Leaves nothing there."""
    try:
        if "://" in url and "::" in url:
            raise ValueError("a URL of one file system has no '::'")
        filesystem, place = _opened(url)
        own, other = (pathlib.Path(os.path.realpath(path)) for path in (root, place))
        nested = own.is_relative_to(other) or other.is_relative_to(own)
        if isinstance(filesystem, LocalFileSystem) and nested:
            raise ValueError(f"{root} is around it, or in it")
        _check_owner(filesystem, place, root, url)
        _make_directory(filesystem, place)
        name = f"{place}/.{secrets.token_hex(8)}.tmp"
        filesystem.pipe_file(name, b"mirror")
        filesystem.rm_file(name)
    except InputError:
        raise
    except Exception as error:  # drivers raise many types
        raise InputError(
            f"--mirror is {url!r} ({records.plain(error)}); allowed: s3://BUCKET/PATH or "
            "gs://BUCKET/PATH in a bucket that exists, a directory elsewhere, or another URL that "
            "fsspec writes to, whose package is installed"
        ) from error


def _opened(url: str) -> tuple[Any, str]:
    if "://" not in url:
        return LocalFileSystem(), os.path.abspath(url)
    filesystem, place = url_to_fs(url, use_listings_cache=False)
    return filesystem, place.rstrip("/")


def _make_directory(filesystem: Any, path: str) -> None:
    if not filesystem.async_impl:  # object stores have no directories, but would create the bucket
        filesystem.makedirs(path, exist_ok=True)


def _check_owner(filesystem: Any, place: str, root: pathlib.Path, url: str) -> None:
    """Raises InputError if there is anything at a place but the mirror of `root`."""
    names, owner = [], b""
    with contextlib.suppress(FileNotFoundError):
        names = filesystem.ls(place, detail=False)  # of a bucket, perhaps the place itself
        owner = filesystem.cat_file(f"{place}/{records.MIRROR}")
    taken = any(name.rstrip("/") != place for name in names)
    if taken and owner != records.read_bytes(root / records.MIRROR):
        raise InputError(
            f"--mirror={url} exists, and is no copy of {root}; give a new or empty place, or copy "
            "it back and resume there"
        )


def _files(directory: pathlib.Path) -> Iterator[str]:
    """Paths of the files to copy; hidden files and directories are being written."""
    for parent, folders, names in os.walk(directory, followlinks=True):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            path = pathlib.Path(parent, name)
            if name != records.LOCK and not name.startswith(".") and path.is_file():
                yield path.relative_to(directory).as_posix()


def _order(path: str) -> tuple:
    """What a checkpoint needs is copied before it, its manifest after it, and a result last."""
    parts = path.split("/")
    last = parts[-1] == MANIFEST, records.RESULT in parts
    return path != records.MIRROR, records.CHECKPOINTS in parts, *last, path
