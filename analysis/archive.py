"""A study's records as one file, to keep and to hand on: `python -m analysis DIR --pack=FILE`.

The file holds what analysis reads, study.json and the four records of each trial, and neither
checkpoints nor TensorBoard's files; it is read in place of the directory that it was made of.
"""

import functools
import os
import pathlib
import tarfile
import tempfile

from analysis.study import InputError
from runs import records

SUFFIX = ".tar.xz"

_KEPT = (records.STUDY, records.CONFIG, records.HPARAMS, records.METRICS, records.RESULT)
# Nothing outside the directory, no links; Python knows the filter from 3.11.4 on.
_DATA_ALONE = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
_unpacked: list[tempfile.TemporaryDirectory] = []  # until the process ends


def pack(study: str | os.PathLike, archive: str | os.PathLike) -> None:
    """Writes the records of a study's directory into `archive`, whole or not at all.

    Raises:
        InputError: it is no study's directory, or the name does not end in .tar.xz.
    """
    study, archive = pathlib.Path(study), pathlib.Path(archive)
    if not archive.name.endswith(SUFFIX):
        raise InputError(f"--pack is {archive}; allowed: a file name that ends in {SUFFIX}")
    if not (study / records.STUDY).exists():
        raise InputError(f"{study} holds no {records.STUDY}; give the directory of one study")
    trials = sorted(path.parent for path in study.glob(f"*/*/*/{records.RESULT}"))
    files = [study / records.STUDY, *(trial / name for trial in trials for name in _KEPT[1:])]
    try:
        with tempfile.TemporaryDirectory(dir=archive.parent) as aside:
            written = pathlib.Path(aside) / archive.name
            with tarfile.open(written, "w:xz") as tar:
                for file in files:
                    if file.exists():  # a damaged trial stays one
                        tar.add(file, file.relative_to(study.parent), filter=_anonymous)
            os.replace(written, archive)
    except OSError as error:
        raise InputError(f"cannot write {archive} ({error}); give another --pack") from error


def opened(path: str | os.PathLike) -> pathlib.Path:
    """`path`, or where it is a packed study, the directory of that; raises as `unpack`."""
    path = pathlib.Path(path)
    return unpack(path) if path.name.endswith(SUFFIX) and path.is_file() else path


@functools.cache
def unpack(archive: pathlib.Path) -> pathlib.Path:
    """The directory of the study in `archive`, which lasts as long as the process.

    Raises:
        InputError: it is not what `pack` writes.
    """
    directory = tempfile.TemporaryDirectory(prefix="study_")
    _unpacked.append(directory)
    try:
        with tarfile.open(archive, "r:xz") as tar:
            tar.extractall(directory.name, **_DATA_ALONE)
        (found,) = pathlib.Path(directory.name).glob(f"*/{records.STUDY}")
    except (tarfile.TarError, OSError, EOFError, ValueError) as error:
        raise InputError(
            f"{archive} holds no study's records ({error}); make one with "
            "python -m analysis DIR --pack=FILE"
        ) from error
    return found.parent


def _anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """Without who made it and when, so that equal records are equal files."""
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    return entry
