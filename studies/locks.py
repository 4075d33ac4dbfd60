"""One process at a time for each trial, whatever becomes of the process.

The lock is the operating system's (flock on a file in the trial's directory): the kernel gives it
back when its owner ends, also when that was killed, so that no stale lock is ever left.
"""

import contextlib
import fcntl
import pathlib
from collections.abc import Iterator

from runs.command import InputError


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
                f"{path} cannot be locked ({error.strerror}); give an --outdir on a file system "
                "that has locks"
            ) from error
        yield True
