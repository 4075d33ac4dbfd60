"""Files that are computed once from a data set and kept. The first line is a checksum."""

import hashlib
import json
import pathlib
from collections.abc import Callable
from typing import Any

from data.sources import SourceError, reason
from runs import cli, records


def cached(
    directory: pathlib.Path | None, name: str, settings: dict[str, Any], make: Callable[[], bytes]
) -> bytes:
    """What `make` computes, kept in a file of `directory`; None keeps nothing.

    Processes that compute it at the same time compute the same; each file appears whole.

    Args:
        name: the file's name; a hash of `settings` is added to it.
        settings: everything that the content depends on.

    Raises:
        SourceError: the file is damaged, or the directory is not writable.
    """
    if directory is None:
        return make()
    hashed = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:12]
    file = pathlib.PurePath(name)
    path = directory / f"{file.stem}-{hashed}{file.suffix}"
    try:
        if not path.exists():
            content = make()
            path.parent.mkdir(parents=True, exist_ok=True)
            checksum = hashlib.sha256(content).hexdigest().encode()
            records.write_bytes(path, checksum + b"\n" + content)
        checksum, _, content = path.read_bytes().partition(b"\n")
    except OSError as error:
        if cli.is_disk_full(error):
            raise
        raise SourceError(
            f"{path} cannot be written or read ({reason(error)}); give another directory for files "
            "computed from a data set as config.dataset.cache_dir"
        ) from error
    if hashlib.sha256(content).hexdigest().encode() != checksum:
        raise SourceError(f"{path} is damaged; delete it, and it is made again from the data set")
    return content
