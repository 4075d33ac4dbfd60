"""One process at a time in each run's directory, whatever becomes of the process.

The lock is the operating system's (flock on a file in the directory): the kernel releases it when
its owner ends, also when that was killed, so that no stale lock is ever left. It protects against
processes that see the same locks: on file systems whose locks are local to a machine (some NFS and
FUSE mounts) those of other machines go unseen.
"""

import contextlib
import fcntl
import pathlib
from collections.abc import Iterator

from runs.cli import InputError


@contextlib.contextmanager
def held(path: pathlib.Path) -> Iterator[bool]:
    """Holds the lock of the file `path`, unless another process does; whether it is held here.

    Raises:
        InputError: the file system has no locks.
    """
    with path.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        except OSError as error:
            raise InputError(
                f"{path} cannot be locked ({error.strerror}); give a directory on a file system "
                "that has locks"
            ) from error
        yield True
