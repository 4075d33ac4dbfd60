"""Ensures that only one process trains in a run's directory, or extends a study's record.

A lock is an flock on a file in the directory. The kernel releases it when its owner ends, even if
it was killed, so no stale lock remains. On file systems whose locks are local to a machine (some
NFS and FUSE mounts) it does not exclude processes on other machines.
"""

import contextlib
import fcntl
import pathlib
from collections.abc import Iterator

from runs.cli import InputError


@contextlib.contextmanager
def held(path: pathlib.Path, wait: bool = False) -> Iterator[bool]:
    """Locks the file `path` within the context; yields False if another process holds the lock.

    Args:
        path: the file, which is created if it does not exist.
        wait: whether to wait until no other process holds the lock.

    Raises:
        InputError: the file system does not support locks.
    """
    with path.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
            return
        except OSError as error:
            raise InputError(
                f"{path} cannot be locked ({error.strerror}); give a directory on a file system "
                "that supports locks"
            ) from error
        yield True
