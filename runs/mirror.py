"""Copies a run's or a study's directory to another place in the background, such as a bucket.

A copy can always be resumed from: records go before the checkpoints that cover them, and outdated
checkpoints are removed last.
"""

import contextlib
import datetime
import json
import os
import pathlib
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem

from runs import records
from runs.cli import InputError
from runs.observers import Observer
from runs.study import MAY_CHANGE

# Waits before the last copy is tried again.
_RETRY_SECONDS = (1.0, 5.0)


class Mirror(Observer):
    """Keeps a copy of a directory up to date. Failures are warnings, and are tried again.

    Args:
        directory: of the run or the study.
        url: where the copy goes, anything that fsspec writes to.
        say: called with warnings.
        only: the only file to copy, by its path within `directory`; None for all.
    """

    def __init__(
        self,
        directory: pathlib.Path,
        url: str,
        say: Callable[[str], None],
        only: str | None = None,
    ):
        self._directory, self._url, self._say, self._only = directory, url, say, only
        self._copied: dict[str, tuple[int, int]] = {}  # (size, mtime in ns) by path
        self._warned, self._refused = False, False
        self._due, self._ended = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._work, name="mirror", daemon=True)
        self._thread.start()

    def saved(self) -> None:
        self._due.set()

    def end(self, result: Mapping[str, Any]) -> None:
        self._ended.set()
        self._due.set()
        self._thread.join()

    def _work(self) -> None:
        while not self._ended.is_set():
            self._due.wait()
            self._due.clear()
            if not self._ended.is_set():
                self._attempt()
        for seconds in (*_RETRY_SECONDS, None):
            if self._attempt():
                return
            if self._refused:
                break
            if seconds is not None:
                time.sleep(seconds)
        again = " with another --mirror" if self._refused else ""
        self._say(
            f"warning: {self._url} is not up to date; {self._directory} is complete, and the same "
            f"command{again} copies it"
        )

    def _attempt(self) -> bool:
        try:
            self._copy()
        except Exception as error:
            self._refused = isinstance(error, InputError)
            if not self._warned:
                self._warned = True
                reason = " ".join(f"{type(error).__name__}: {error}".split())
                self._say(
                    f"warning: {self._directory} could not be copied to {self._url} ({reason}); "
                    "the run continues, and the copy is tried again"
                )
            return False
        return True

    def _copy(self) -> None:
        """Copies what has changed, then removes checkpoints and errors that the directory no longer
        has."""
        filesystem, root = opened(self._url)
        if not self._copied:
            self._check_is_copy(filesystem, root)
        there = {} if self._copied or self._only else filesystem.find(root, detail=True)
        local = isinstance(filesystem, LocalFileSystem)
        if local:  # once, for what killed processes left
            for folder in {pathlib.Path(path).parent for path in there}:
                records.remove_stale(folder)
        for path in [self._only] if self._only else _in_order(self._directory):
            with contextlib.suppress(FileNotFoundError):  # an old checkpoint was removed just now
                status = (self._directory / path).stat()
                version, target = (status.st_size, status.st_mtime_ns), f"{root}/{path}"
                current = _is_current(there.get(target), status, local)
                if self._copied.get(path) != version and not current:
                    _upload(filesystem, self._directory / path, target)
                self._copied[path] = version
        earlier = [path.removeprefix(f"{root}/") for path in there]  # copied by earlier processes
        outdated = {folder for path in earlier if (folder := _checkpoint(path))}
        outdated = {folder for folder in outdated if self._has_newer(folder)}
        for folder in outdated | set(filter(None, map(_checkpoint, self._copied))):
            if not (self._directory / folder).exists():
                filesystem.rm(f"{root}/{folder}", recursive=True)
                self._copied = {p: v for p, v in self._copied.items() if _checkpoint(p) != folder}
        for path in {*earlier, *self._copied}:  # a checkpoint that is saved again has other files
            folder, own = _checkpoint(path), self._directory / path
            kept = folder and (self._directory / folder).exists()
            # an error of a run that is here; the place may hold others' files, too
            error = records.is_error_file(own.name) and (own.parent / records.CONFIG).exists()
            if (kept or error) and not own.exists():
                filesystem.rm(f"{root}/{path}")
                self._copied.pop(path, None)

    def _has_newer(self, folder: str) -> bool:
        """Whether the directory has a checkpoint of a later step than that of `folder`."""
        own = self._directory / folder
        names = [path.name for path in own.parent.glob("*") if records.is_numbered(path.name)]
        return records.is_numbered(own.name) and any(int(name) > int(own.name) for name in names)

    def _check_is_copy(self, filesystem: Any, root: str) -> None:
        """Raises InputError if the URL has the copy of another run or study."""
        for name in (records.CONFIG, records.STUDY):
            if filesystem.exists(f"{root}/{name}"):
                there = filesystem.cat_file(f"{root}/{name}")
                if _fixed(name, there) != _fixed(name, records.read_bytes(self._directory / name)):
                    raise InputError(f"{name} there belongs to another run; give another --mirror")


def _fixed(name: str, content: bytes | None) -> Any:
    """What never changes in config.json or study.json. A launch that extends a study writes the
    latter again, with its own origin, and a run that resumes may list its own in the former."""
    written = {records.CONFIG: (records.RESUMED,), records.STUDY: (*MAY_CHANGE, *records.ORIGIN)}
    if content is not None:
        with contextlib.suppress(ValueError, AttributeError):  # it is damaged
            return {k: value for k, value in json.loads(content).items() if k not in written[name]}
    return content


def check(url: str, directory: pathlib.Path) -> None:
    """Checks that a directory can be copied to a URL, as far as this is known without asking there.

    Raises:
        InputError: the protocol is unknown, its package is missing, a server that its driver asks
            at once does not answer, or the copy would lie within the directory.
    """
    try:
        filesystem, root = opened(url)
    except ImportError as error:
        raise InputError(
            f"--mirror is {url}, which needs a package that is not installed ({error}); install it"
        ) from error
    except Exception as error:  # some drivers connect at once, and raise many types
        why = " ".join(str(error).split())
        raise InputError(
            f"--mirror is {url} ({why}); allowed: s3://BUCKET/PATH, gs://BUCKET/PATH, a "
            "directory, or another URL that fsspec writes to"
        ) from error
    here = directory.absolute()
    if isinstance(filesystem, LocalFileSystem) and pathlib.Path(root).is_relative_to(here):
        raise InputError(f"--mirror is {url}, within {directory}; give a place outside of it")


def opened(url: str) -> tuple[Any, str]:
    """The file system of a URL, and the path there."""
    filesystem, root = url_to_fs(url, use_listings_cache=False)
    return filesystem, root.rstrip("/")


def _in_order(directory: pathlib.Path) -> list[str]:
    """The files to copy: records, then checkpoints, then results, which say that a run is over."""
    paths = []
    for parent, folders, names in os.walk(directory):
        folders[:] = [name for name in folders if not _is_unfinished(name)]
        files = (
            pathlib.Path(parent, name)
            for name in names
            if name != records.LOCK and not _is_unfinished(name)
        )
        # what is no file, such as a named pipe, cannot be copied
        paths += [path.relative_to(directory).as_posix() for path in files if path.is_file()]

    def rank(path: str) -> int:
        checkpoint = f"/{records.CHECKPOINTS}/" in f"/{path}"
        return 2 if path.endswith(records.RESULT) else int(checkpoint)

    return sorted(paths, key=lambda path: (rank(path), path))


def _is_unfinished(name: str) -> bool:
    """Whether a file or directory is being written, or was when its process was killed."""
    return name.startswith(".") or ".orbax-checkpoint-tmp" in name


def _is_current(copy: Mapping[str, Any] | None, status: os.stat_result, local: bool) -> bool:
    """Whether a copy has the size of a file and its time.

    In a directory (`local`) that is the file's own time, since the clocks of machines differ. A
    bucket gives a copy the time at which it was sent; it must not be older than the file.
    """
    if copy is None or copy["size"] != status.st_size:
        return False
    modified = copy.get("mtime") or copy.get("LastModified") or copy.get("updated")
    if isinstance(modified, str):
        modified = datetime.datetime.fromisoformat(modified)
    if isinstance(modified, datetime.datetime):
        modified = modified.timestamp()
    written = int(status.st_mtime)  # S3 and some file systems round down
    if not isinstance(modified, float):
        return False
    return int(modified) == written if local else modified >= written


def _upload(filesystem: Any, path: pathlib.Path, target: str) -> None:
    """Copies a file whole or not at all."""
    if not isinstance(filesystem, LocalFileSystem):
        filesystem.put_file(str(path), target)  # buckets show a file once it is complete
        return
    place = pathlib.Path(target)
    place.parent.mkdir(parents=True, exist_ok=True)
    with records.temporary_path(place) as partial:  # several launches may copy the same file
        with path.open("rb") as file, partial.open("xb") as copy:
            status = os.fstat(file.fileno())  # before: the file may grow meanwhile
            shutil.copyfileobj(file, copy)
            records.force_to_disk(copy)
        partial.replace(place)
    # See _is_current. After the rename: an old temporary file may be removed by another launch.
    with contextlib.suppress(OSError):  # some file systems refuse it, and get the file again
        os.utime(place, ns=(status.st_atime_ns, status.st_mtime_ns))


def _checkpoint(path: str) -> str | None:
    """The checkpoint that a file belongs to, such as 'e2/0/3/checkpoints/120'."""
    parts = path.split("/")
    place = parts.index(records.CHECKPOINTS) + 2 if records.CHECKPOINTS in parts else len(parts)
    return "/".join(parts[:place]) if place < len(parts) else None
