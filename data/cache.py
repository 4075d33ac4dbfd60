"""Files that are computed once from a data set and kept: written atomically, by the first process.

Next to each file is its SHA-256 in the format of `sha256sum --check`. A file without one was
written by an earlier version, or by a process that was killed, and is used as it is.
"""

import functools
import hashlib
import json
import os
import pathlib
from collections.abc import Callable
from typing import Any

from data.sources import SourceError, reason
from runs import cli, records


def file_name(stem: str, suffix: str, settings: dict[str, Any]) -> str:
    """A file name that contains a hash of everything that the content depends on."""
    encoded = json.dumps(settings, sort_keys=True).encode()
    return f"{stem}-{hashlib.sha256(encoded).hexdigest()[:12]}{suffix}"


def cached(path: pathlib.Path, make: Callable[[], bytes]) -> bytes:
    """The content of `path`; `make` computes it if the file does not exist.

    Raises:
        SourceError: the file is damaged, or the directory is not writable.
    """
    if cli.is_url(str(path)):
        raise SourceError(
            f"{path} is in a bucket, but files computed from a data set are cached in a directory; "
            "give one as config.dataset.cache_dir"
        )
    checksum = path.with_name(f"{path.name}.sha256")
    if not path.exists():
        content = make()
        if not path.exists():  # no other process was faster
            # The file never has another's checksum, in case this process is killed: that of a
            # deleted file goes first, and the new one, of what was published here or elsewhere,
            # comes last.
            _write(path, content, functools.partial(_link_without, checksum))
            _write(checksum, _checksum_line(path, _read(path)), os.replace)
    content = _read(path)
    try:
        expected = records.file_content(checksum)
    except FileNotFoundError:
        return content
    except OSError as error:
        raise damaged(checksum, error) from error
    if expected != _checksum_line(path, content):
        raise damaged(path, f"it does not have the checksum in {checksum.name}")
    return content


def damaged(path: pathlib.Path, error: Exception | str) -> SourceError:
    """The error for a cached file that cannot be used."""
    why = error if isinstance(error, str) else reason(error)
    return SourceError(
        f"{path} cannot be used ({why}); delete it, and it is made again from the data set"
    )


def publish(path: pathlib.Path, content: bytes) -> None:
    """Writes a file atomically unless it exists: of several processes, the first one wins.

    Raises:
        SourceError: the directory is not writable.
    """
    _write(path, content, _link)


def make_file(path: pathlib.Path, make: Callable[[pathlib.Path], None]) -> None:
    """Has `make` write a large file, which appears at `path` when it is whole.

    Raises:
        SourceError: `make` failed, or the directory is not writable.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with records.temporary_path(path) as temporary:
            make(temporary)
            os.replace(temporary, path)
    except Exception as error:  # of file systems in buckets, and of parsers
        if cli.is_disk_full(error) or isinstance(error, SourceError):
            raise
        raise SourceError(
            f"{path} cannot be made ({reason(error)}); start again, or give another directory as "
            "config.dataset.cache_dir"
        ) from error


def _checksum_line(path: pathlib.Path, content: bytes) -> bytes:
    return f"{hashlib.sha256(content).hexdigest()}  {path.name}\n".encode()


def _read(path: pathlib.Path) -> bytes:
    try:
        return records.file_content(path)
    except OSError as error:
        raise damaged(path, error) from error


def _write(
    path: pathlib.Path, content: bytes, move: Callable[[pathlib.Path, pathlib.Path], None]
) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with records.temporary_file(path, content) as temporary:
            move(temporary, path)
    except OSError as error:
        if cli.is_disk_full(error):
            raise
        raise SourceError(
            f"{path.parent} is not writable ({error.strerror}), and files computed from a data set "
            "are cached there; give another directory as config.dataset.cache_dir"
        ) from error


def _link_without(checksum: pathlib.Path, temporary: pathlib.Path, path: pathlib.Path) -> None:
    checksum.unlink(missing_ok=True)
    _link(temporary, path)


def _link(temporary: pathlib.Path, path: pathlib.Path) -> None:
    try:
        os.link(temporary, path)
    except FileExistsError:
        pass
    except OSError:  # a file system without hard links: the last process wins, with equal content
        os.replace(temporary, path)
