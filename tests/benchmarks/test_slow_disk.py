import os
import pathlib

import pytest

from benchmarks import slow_disk
from data import packaged
from runs.cli import InputError

GROUPS = pathlib.Path("/sys/fs/cgroup/blkio")


limitable = pytest.mark.skipif(
    not os.access(GROUPS, os.W_OK), reason="needs root and cgroup v1 with blkio"
)


@limitable
def test_reading_an_image_is_one_read_of_a_limited_disk(tmp_path):
    try:
        with slow_disk.SlowDisk(tmp_path) as disk:
            (group,) = (g for g in GROUPS.iterdir() if g.name == f"echo_{os.getpid()}")
            assert disk.limit(1_000) == {}
            limits = (group / "blkio.throttle.read_iops_device").read_text().split()
            assert limits[1:] == ["1000"]
            paths = sorted((tmp_path / "train").rglob("*.png"))
            source, _ = packaged.open_source("digits", "train")
            assert len(paths) == len(source)
            before = _num_reads(group, limits[0])
            for path in paths[:100]:
                with path.open("rb") as file:
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                    file.read()
            assert _num_reads(group, limits[0]) - before >= 100
    except InputError as error:
        pytest.skip(f"temporary files are not on a disk that can be limited: {error}")
    assert not group.exists()


@limitable
def test_no_limit_remains_if_the_images_cannot_be_written(tmp_path):
    (tmp_path / "train").write_text("in the way of a directory")
    with pytest.raises((OSError, InputError)), slow_disk.SlowDisk(tmp_path):
        raise AssertionError("unreachable")
    assert not (GROUPS / f"echo_{os.getpid()}").exists()


def test_an_image_that_cannot_be_written_is_named(tmp_path):
    source, _ = packaged.open_source("digits", "train")
    path = tmp_path / str(source[0]["label"]) / "0000.png"
    path.mkdir(parents=True)
    with pytest.raises(InputError, match=r"0000\.png cannot be written; give a directory"):
        slow_disk._write_images(tmp_path, "train")


def _num_reads(group, disk):
    lines = (group / "blkio.throttle.io_serviced").read_text().splitlines()
    return sum(int(line.split()[2]) for line in lines if line.startswith(f"{disk} Read"))


def test_a_directory_without_a_disk_is_refused():
    with pytest.raises(InputError, match="is not on a disk; give a directory on one"):
        slow_disk._disk(pathlib.Path("/proc"))
