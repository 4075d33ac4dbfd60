"""The digits as image files on a disk that the kernel slows down; see `wall_time --disk`.

Linux limits the reads per second of a process on a disk (cgroup v1, `blkio`), which requires root.
A digit is a file of one block, so reading it is one read, if the kernel does not have it in memory
already. Another process therefore makes the kernel forget the files all the time, as it would if
there were more of them than fit into memory:

    python -m benchmarks.slow_disk DIR     until its standard input ends
"""

import contextlib
import os
import pathlib
import resource
import subprocess
import sys
import time
from typing import Any

import cv2

from data import packaged
from runs.cli import InputError

_GROUPS = pathlib.Path("/sys/fs/cgroup/blkio")
_LIMIT = "blkio.throttle.read_iops_device"
_FORGET_SECONDS = 0.02


class SlowDisk:
    """The digits in `directory`/SPLIT/CLASS/NUMBER.png, and a limit on reading them.

    A context manager: the limit, which holds for this process and those that it starts, ends with
    it. Raises InputError if there can be none.
    """

    def __init__(self, directory: pathlib.Path):
        self._directory = directory
        self._group = _GROUPS / f"echo_{os.getpid()}"
        self._forgetting: subprocess.Popen | None = None

    def __enter__(self) -> "SlowDisk":
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            self._disk = _disk(self._directory)
            self._group.mkdir()
            self.limit(0)
            (self._group / "cgroup.procs").write_text(f"{os.getpid()}")
        except OSError as error:
            self.__exit__()
            raise InputError(
                f"--disk={self._directory} cannot be slowed down ({error}); this requires Linux, "
                "root, and cgroup v1 with blkio"
            ) from error
        try:
            for split in ("train", "validation"):
                _write_images(self._directory / split, split)
            os.sync()  # only what has been written can be forgotten
            command = [sys.executable, "-m", "benchmarks.slow_disk", str(self._directory)]
            self._forgetting = subprocess.Popen(command, stdin=subprocess.PIPE)
        except BaseException:  # Python calls no __exit__ after an __enter__ that raises
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._forgetting:
            self._forgetting.communicate()
        if self._group.exists():
            for process in (self._group / "cgroup.procs").read_text().split():
                with contextlib.suppress(ProcessLookupError):  # it has just ended
                    (_GROUPS / "cgroup.procs").write_text(process)
            self._group.rmdir()

    def limit(self, reads_per_second: float) -> dict[str, Any]:
        """Sets the limit, 0 for none; returns the fields of a configuration that it takes."""
        (self._group / _LIMIT).write_text(f"{self._disk} {round(reads_per_second)}")
        return {}


def _write_images(root: pathlib.Path, split: str) -> None:
    source, _ = packaged.open_source("digits", split)
    for number in range(len(source)):
        record = source[number]
        path = root / str(record["label"]) / f"{number:04}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        if not cv2.imwrite(str(path), record["image"]):
            raise InputError(f"{path} cannot be written; give a directory on a disk with space")


def _disk(directory: pathlib.Path) -> str:
    """MAJOR:MINOR of the whole disk that a directory is on; limits do not apply to partitions."""
    device = directory.stat().st_dev
    place = pathlib.Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}")
    if not place.exists():
        raise InputError(f"--disk={directory} is not on a disk; give a directory on one")
    disk = place.resolve().parent if (place / "partition").exists() else place
    return (disk / "dev").read_text().strip()


def _forget(directory: pathlib.Path) -> None:
    """Makes the kernel forget what it has read of the files in a directory, until input ends."""
    paths = list(directory.rglob("*.png"))
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(paths) + 100, hard))
    files = [os.open(path, os.O_RDONLY) for path in paths]
    os.set_blocking(sys.stdin.fileno(), False)
    while sys.stdin.buffer.read(1) is None:  # b"" at the end
        for file in files:
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
        time.sleep(_FORGET_SECONDS)


if __name__ == "__main__":
    _forget(pathlib.Path(sys.argv[1]))
