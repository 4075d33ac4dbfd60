"""Files that are computed once from a data set and kept: written whole, by whoever is first.

Beside each lies its SHA-256, as `sha256sum --check` reads it. A file without one, from an earlier
version, is taken as it is.
"""

import hashlib
import json
import os
import pathlib
import re
import tempfile
from collections.abc import Callable
from typing import Any

from data.errors import SourceError, reason

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")


def named(stem: str, suffix: str, settings: dict[str, Any]) -> str:
    """A file name that carries a hash of all that its content depends on."""
    described = json.dumps(settings, sort_keys=True).encode()
    return f"{stem}-{hashlib.sha256(described).hexdigest()[:12]}{suffix}"


def kept(path: pathlib.Path, make: Callable[[], bytes]) -> bytes:
    """The content of `path`, which `make` gives where there is no such file yet.

    Raises:
        SourceError: the file is damaged, or the directory cannot be written to.
    """
    if _URL.match(str(path)):
        raise SourceError(
            f"{path} is in a bucket, and what is computed from a data set once is kept in a "
            "directory; give one as config.dataset.cache_dir"
        )
    checksum = path.with_name(f"{path.name}.sha256")
    if not path.exists():
        made = make()
        _write(checksum, _described(path, made), os.replace)  # there may be one of a deleted file
        publish(path, made)
        if (there := _read(path)) != made:  # another process was first, on another processor
            _write(checksum, _described(path, there), os.replace)
    content = _read(path)
    if checksum.exists() and _read(checksum) != _described(path, content):
        raise damaged(path, f"it does not have the checksum in {checksum.name}")
    return content


def damaged(path: pathlib.Path, error: Exception | str) -> SourceError:
    """The error for a kept file that cannot be used."""
    why = error if isinstance(error, str) else reason(error)
    return SourceError(
        f"{path} cannot be used ({why}); delete it, and it is made again from the data set"
    )


def _described(path: pathlib.Path, content: bytes) -> bytes:
    return f"{hashlib.sha256(content).hexdigest()}  {path.name}\n".encode()


def _read(path: pathlib.Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise damaged(path, error) from error


def publish(path: pathlib.Path, content: bytes) -> None:
    """Puts a file at `path`, unless one is there: of several processes the first one wins, and
    nobody ever sees half a file.

    Raises:
        SourceError: the directory cannot be written to.
    """
    _write(path, content, _link)


def _write(path: pathlib.Path, content: bytes, put: Callable[[str, pathlib.Path], None]) -> None:
    """Writes a file aside, and puts it at `path`."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, aside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise SourceError(
            f"{path.parent} cannot be written to ({error.strerror}), and what is computed from a "
            "data set once is kept there; give another directory as config.dataset.cache_dir"
        ) from error
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(aside, 0o644)  # a temporary file is its owner's alone
        put(aside, path)
    finally:
        pathlib.Path(aside).unlink(missing_ok=True)


def _link(aside: str, path: pathlib.Path) -> None:
    try:
        os.link(aside, path)
    except FileExistsError:
        pass
    except OSError:  # a file system without hard links: the last one wins, with equal content
        os.replace(aside, path)
