"""Copies a run's or a study's directory to another place, such as a bucket, after each checkpoint.

A copy can be resumed from: checkpoints and records have checksums, so what an interrupted copy left
incomplete is not used. A mirror belongs to one run or study, whose `mirror.json` it holds. Nothing
is removed there but checkpoints that the run itself has replaced. File systems are only given exact
names: many take `[` and `*` for patterns where they remove, find, or expand paths.
"""

import contextlib
import os
import pathlib
import secrets
import time
from collections.abc import Callable, Iterator
from typing import Any

from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from runs import records
from runs.cli import InputError

_RETRY_SECONDS = (1.0, 5.0)  # waits before the last copy is tried again
_LARGE = 2**20  # bytes


class Mirror:
    """A follower (see tracking.py) that keeps a copy of a directory up to date.

    Args:
        root: the directory of the run or study that the mirror belongs to.
        url: where its copy is.
        directory: what to copy, `root` or below it; its copy is at the same place below `url`.
        say: called with a warning when a copy fails; the next checkpoint tries it again.
    """

    def __init__(
        self,
        root: pathlib.Path,
        url: str,
        directory: pathlib.Path,
        say: Callable[[str], None],
    ):
        with contextlib.suppress(FileExistsError):
            records.create_json(root / records.MIRROR, {"identity": secrets.token_hex(16)})
        self._root, self._url, self._directory, self._say = root, url, directory, say
        self._copied: dict[str, tuple[int, int]] = {}  # (size, mtime in ns) by path

    def saved(self) -> None:
        try:
            self._copy()
        except InputError:
            raise
        except Exception as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            self._say(f"warning: {self._url} is not up to date ({reason}); it is tried again")

    def close(self) -> None:
        for seconds in _RETRY_SECONDS:
            with contextlib.suppress(OSError):
                return self._copy()
            time.sleep(seconds)
        self._copy()

    def _copy(self) -> None:
        """Copies what has changed: mirror.json, records, checkpoints, and last results."""
        filesystem, top = _opened(self._url)
        _check_owner(filesystem, top, self._root, self._url)
        below = self._directory.absolute().relative_to(self._root.absolute()).as_posix()
        place = top if below == "." else f"{top}/{below}"
        found = filesystem.find(place, detail=True)
        there = {path[len(place) + 1 :]: entry["size"] for path, entry in found.items()}
        for path in sorted(_files(self._directory), key=_order):
            source, copy = self._directory / path, f"{place}/{path}"
            try:
                status = source.stat()
                version = (status.st_size, status.st_mtime_ns)
                # Records of one size may differ, and so may what describes a checkpoint that was
                # copied from a machine that is lost. The names of arrays' files never recur.
                array = status.st_size > _LARGE and ".json" not in path
                known = array or self._copied.get(path) == version
                if not known or there.get(path) != status.st_size:
                    _make_directory(filesystem, os.path.dirname(copy))
                    filesystem.put_file(str(source), copy)
                self._copied[path] = version
            except FileNotFoundError:  # an old checkpoint was removed just now
                if source.exists():
                    raise
        for folder in set(filter(None, map(_checkpoint, there))):
            if not (self._directory / folder).exists() and self._has_newer(folder):
                for path in [path for path in there if path.startswith(f"{folder}/")]:
                    filesystem.rm_file(f"{place}/{path}")
                if isinstance(filesystem, LocalFileSystem):
                    for parent, *_ in os.walk(f"{place}/{folder}", topdown=False):
                        os.rmdir(parent)

    def _has_newer(self, folder: str) -> bool:
        own = self._directory / folder
        steps = [int(path.name) for path in own.parent.glob("*") if path.name.isdigit()]
        return own.name.isdigit() and max(steps, default=0) > int(own.name)


def check(url: str, root: pathlib.Path) -> None:
    """Raises InputError if `root` can have no mirror at a URL: the protocol is unknown, its package
    is missing, or one would lie within the other, perhaps through symbolic links."""
    try:
        if "://" in url and "::" in url:
            raise ValueError("a URL of one file system has no '::'")
        filesystem, place = _opened(url)
    except Exception as error:  # some drivers connect at once, and raise many types
        why = " ".join(str(error).split())
        raise InputError(
            f"--mirror is {url!r} ({why}); allowed: s3://BUCKET/PATH, gs://BUCKET/PATH, a "
            "directory, or another URL that fsspec writes to, whose package is installed"
        ) from error
    own, other = (pathlib.Path(os.path.realpath(path)) for path in (root, place))
    nested = own.is_relative_to(other) or other.is_relative_to(own)
    if not url or (isinstance(filesystem, LocalFileSystem) and nested):
        raise InputError(f"--mirror is {url!r}; allowed: a place outside of {root}, not around it")


def check_writable(url: str, root: pathlib.Path) -> None:
    """Raises InputError if the mirror at `url` cannot be written to, or contains something else
    than a copy of `root`. Leaves nothing there."""
    filesystem, place = _opened(url)
    if isinstance(filesystem, LocalFileSystem):
        paths = (
            os.path.join(parent, name)
            for parent, folders, names in os.walk(place)
            for name in (*folders, *names)
        )
        if linked := next(filter(os.path.islink, paths), None):
            raise InputError(f"--mirror={url} contains the link {linked}; remove it")
    try:
        _check_owner(filesystem, place, root, url)
        _make_directory(filesystem, place)
        name = f"{place}/.{secrets.token_hex(8)}.tmp"
        filesystem.pipe_file(name, b"mirror")
        filesystem.rm_file(name)
    except InputError:
        raise
    except Exception as error:  # of any driver
        why = " ".join(f"{type(error).__name__}: {error}".split())
        raise InputError(
            f"--mirror={url} cannot be written to ({why}); create the bucket, or give another place"
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
        folders[:] = [n for n in folders if not n.startswith(".") and ".orbax-checkpoint" not in n]
        for name in names:
            path = pathlib.Path(parent, name)
            if name != records.LOCK and not name.startswith(".") and path.is_file():
                yield path.relative_to(directory).as_posix()


def _order(path: str) -> tuple[int, str]:
    if path == records.MIRROR:
        return 0, path
    return 3 if path.endswith(records.RESULT) else 1 + bool(_checkpoint(path)), path


def _checkpoint(path: str) -> str | None:
    """The checkpoint that a file belongs to, such as 'e2/0/3/checkpoints/120'."""
    parts = path.split("/")
    place = parts.index(records.CHECKPOINTS) + 2 if records.CHECKPOINTS in parts else len(parts)
    return "/".join(parts[:place]) if place < len(parts) else None
