"""Copies a run's or a study's directory to another place, such as a bucket, after each checkpoint.

A copy can be resumed from: checkpoints and records have checksums, so what an interrupted copy left
incomplete is not used. Nothing is removed there but checkpoints that the run itself has replaced.
"""

import contextlib
import os
import pathlib
import time
from collections.abc import Callable, Iterator
from typing import Any

from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from runs import records
from runs.cli import InputError
from runs.study import MAY_CHANGE

_RETRY_SECONDS = (1.0, 5.0)  # waits before the last copy is tried again

# What changes in a run's or a study's own record: how it resumed, how it grew.
_VARIES = (records.RESUMED, *MAY_CHANGE, *records.ORIGIN)


class Mirror:
    """A follower (see tracking.py) that keeps a copy of `directory` at `url` up to date.

    Args:
        say: called with a warning when a copy fails; the next checkpoint tries it again.
    """

    def __init__(self, directory: pathlib.Path, url: str, say: Callable[[str], None]):
        self._directory, self._url, self._say = directory, url, say
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
        """Copies what has changed: records, then checkpoints, then results."""
        filesystem, root = url_to_fs(self._url, use_listings_cache=False)
        root = root.rstrip("/")
        if not self._copied:
            self._check_is_copy(filesystem, root)
        found = filesystem.find(root, detail=True)
        there = {path[len(root) + 1 :]: entry["size"] for path, entry in found.items()}
        for path in sorted(_files(self._directory), key=_order):
            with contextlib.suppress(FileNotFoundError):  # an old checkpoint was removed just now
                status = (self._directory / path).stat()
                version = (status.st_size, status.st_mtime_ns)
                # records of one size may differ; other files never change but by growing
                known = ".json" not in path or self._copied.get(path) == version
                if not known or there.get(path) != status.st_size:
                    filesystem.makedirs(os.path.dirname(f"{root}/{path}"), exist_ok=True)
                    filesystem.put_file(str(self._directory / path), f"{root}/{path}")
                self._copied[path] = version
        for folder in set(filter(None, map(_checkpoint, there))):
            if not (self._directory / folder).exists() and self._has_newer(folder):
                filesystem.rm(f"{root}/{folder}", recursive=True)

    def _has_newer(self, folder: str) -> bool:
        own = self._directory / folder
        steps = [int(path.name) for path in own.parent.glob("*") if path.name.isdigit()]
        return own.name.isdigit() and max(steps, default=0) > int(own.name)

    def _check_is_copy(self, filesystem: Any, root: str) -> None:
        """Raises InputError if the URL has the copy of another run or study."""
        for name in (records.CONFIG, records.STUDY):
            if filesystem.exists(f"{root}/{name}"):
                there = _fixed(filesystem.cat_file(f"{root}/{name}"))
                if there != _fixed(records.read_bytes(self._directory / name)):
                    raise InputError(f"{name} there belongs to another run; give another --mirror")


def _fixed(content: bytes | None) -> Any:
    """What never changes in config.json or study.json; None if it is damaged."""
    with contextlib.suppress(ValueError, TypeError, AttributeError):
        record = records.parse_json(content or b"", "")
        return {name: value for name, value in record.items() if name not in _VARIES}
    return None


def check(url: str, directory: pathlib.Path) -> None:
    """Raises InputError if a directory cannot be copied to a URL, as far as this is known here: the
    protocol is unknown, its package is missing, or the copy would lie within the directory."""
    try:
        filesystem, root = url_to_fs(url, use_listings_cache=False)
    except Exception as error:  # some drivers connect at once, and raise many types
        why = " ".join(str(error).split())
        raise InputError(
            f"--mirror is {url!r} ({why}); allowed: s3://BUCKET/PATH, gs://BUCKET/PATH, a "
            "directory, or another URL that fsspec writes to, whose package is installed"
        ) from error
    local = isinstance(filesystem, LocalFileSystem)
    if not url or (local and pathlib.Path(root).is_relative_to(directory.absolute())):
        raise InputError(f"--mirror is {url!r}; allowed: a place outside of {directory}")


def _files(directory: pathlib.Path) -> Iterator[str]:
    """Paths of the files to copy; hidden files and directories are being written."""
    for parent, folders, names in os.walk(directory):
        folders[:] = [n for n in folders if not n.startswith(".") and ".orbax-checkpoint" not in n]
        for name in names:
            path = pathlib.Path(parent, name)
            if name != records.LOCK and not name.startswith(".") and path.is_file():
                yield path.relative_to(directory).as_posix()


def _order(path: str) -> tuple[int, str]:
    return 2 if path.endswith(records.RESULT) else int(bool(_checkpoint(path))), path


def _checkpoint(path: str) -> str | None:
    """The checkpoint that a file belongs to, such as 'e2/0/3/checkpoints/120'."""
    parts = path.split("/")
    place = parts.index(records.CHECKPOINTS) + 2 if records.CHECKPOINTS in parts else len(parts)
    return "/".join(parts[:place]) if place < len(parts) else None
