"""Files that are computed once from a data set and kept: written whole, by whoever is first."""

import hashlib
import json
import os
import pathlib
import tempfile
from typing import Any

from pipeline.sources import SourceError


def named(stem: str, suffix: str, settings: dict[str, Any]) -> str:
    """A file name that carries a hash of all that its content depends on."""
    described = json.dumps(settings, sort_keys=True).encode()
    return f"{stem}-{hashlib.sha256(described).hexdigest()[:12]}{suffix}"


def publish(path: pathlib.Path, content: bytes) -> None:
    """Puts a file at `path`, unless one is there: of several processes the first one wins, and
    nobody ever sees half a file.

    Raises:
        SourceError: the directory cannot be written to.
    """
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
        _link(aside, path)
    finally:
        pathlib.Path(aside).unlink(missing_ok=True)


def _link(aside: str, path: pathlib.Path) -> None:
    try:
        os.link(aside, path)
    except FileExistsError:
        pass
    except OSError:  # a file system without hard links: the last one wins, with equal content
        os.replace(aside, path)
