"""A study's records as one file, to keep and to hand on: `python -m analysis DIR --pack=FILE`.

The file holds what analysis reads, study.json and the four records of each trial, and neither
checkpoints nor TensorBoard's files; it is read in place of the directory that it was made of.

Nothing is extracted: the reader goes through the file once, takes the records that it knows by name
and place, and writes those into a directory of its own. What else is in the file is passed over,
and how much may be unpacked is bounded while it is unpacked.
"""

import functools
import io
import lzma
import os
import pathlib
import tarfile
import tempfile
from collections.abc import Iterator

from analysis.study import InputError
from runs import records

SUFFIX = ".tar.xz"

# Of an unpacked file: a study of 20 conditions, 5 searches and 100 trials each has 40,001 members
# and, with trials of some days, about 1 GB.
MAX_BYTES = 2 * 1024**3
MAX_MEMBERS = 200_000
# Records take 12 to 20 times their packed size. A small file may not unpack to much.
_RATIO, _FREE = 200, 64 * 1024**2

_KEPT = (records.STUDY, records.CONFIG, records.HPARAMS, records.METRICS, records.RESULT)
_HEADERS = 1024**2  # bytes before a member's content; a name's own header may be long
_MEMORY = 256 * 1024**2  # bytes that xz may take for itself; `pack` writes files that take 9 MB
_unpacked: list[tempfile.TemporaryDirectory] = []  # until the process ends


def pack(study: str | os.PathLike, archive: str | os.PathLike) -> None:
    """Writes the records of a study's directory into `archive`, whole or not at all.

    Raises:
        InputError: it is no study's directory, the name does not end in .tar.xz, or the records are
            more than `unpack` takes.
    """
    study, archive = pathlib.Path(study), pathlib.Path(archive)
    if not archive.name.endswith(SUFFIX):
        raise InputError(f"--pack is {archive}; allowed: a file name that ends in {SUFFIX}")
    if not (study / records.STUDY).exists():
        raise InputError(f"{study} holds no {records.STUDY}; give the directory of one study")
    trials = [path for _, path in records.trials_on_disk(study) if (path / records.RESULT).exists()]
    files = [study / records.STUDY, *(trial / name for trial in trials for name in _KEPT[1:])]
    files = [file for file in files if file.is_file()]  # a damaged trial stays one
    size = sum(file.stat().st_size for file in files)
    if size > MAX_BYTES or len(files) > MAX_MEMBERS:
        raise InputError(
            f"{study} holds {len(files):,} records of {size:,} bytes; allowed in one file: "
            f"{MAX_MEMBERS:,} and {MAX_BYTES:,}"
        )
    try:
        with tempfile.TemporaryDirectory(dir=archive.parent) as aside:
            written = pathlib.Path(aside) / archive.name
            with tarfile.open(written, "w:xz", dereference=True) as tar:
                for file in files:
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
    """A directory with the records of the study in `archive`, which lasts as long as the process.

    Raises:
        InputError: it is not what `pack` writes.
    """
    directory = tempfile.TemporaryDirectory(prefix="study_")
    _unpacked.append(directory)
    roots = set()
    try:
        for root, place, content in _members(archive):
            file = pathlib.Path(directory.name, root, place)
            file.parent.mkdir(parents=True, exist_ok=True)
            with file.open("xb") as new:
                new.write(content)
            if place == records.STUDY:
                roots.add(root)
        (root,) = roots
    except (tarfile.TarError, lzma.LZMAError, OSError, EOFError, ValueError) as error:
        raise InputError(
            f"{archive} holds no study's records ({error}); make one with "
            "python -m analysis DIR --pack=FILE"
        ) from error
    return pathlib.Path(directory.name, root)


def _members(archive: pathlib.Path) -> Iterator[tuple[str, str, bytes]]:
    """(study's name, place in it, content) of each record in a packed study, one after another."""
    with archive.open("rb") as file:
        plain = _Bounded(file)
        with tarfile.open(fileobj=plain, mode="r|") as tar:
            for number in range(MAX_MEMBERS + 1):
                if (member := tar.next()) is None:
                    return
                if number == MAX_MEMBERS:
                    raise ValueError(f"it has more than {MAX_MEMBERS:,} members")
                plain.allow(member.size + _HEADERS)
                if (place := _place(member)) is not None:
                    yield *place, tar.extractfile(member).read()


def _place(member: tarfile.TarInfo) -> tuple[str, str] | None:
    """The study's name and the place in it of a member that is a record, None of any other."""
    if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or member.sparse is not None:
        return None
    parts = member.name.split("/")
    if any(part in ("", ".", "..") or "\0" in part for part in parts):
        return None
    trial = len(parts) == 5 and parts[-1] in _KEPT[1:]
    if not trial and not (len(parts) == 2 and parts[-1] == records.STUDY):
        return None
    if member.size > records.MAX_BYTES:
        raise ValueError(f"{member.name} has {member.size:,} bytes, more than any record")
    return parts[0], "/".join(parts[1:])


class _Bounded(io.RawIOBase):
    """The unpacked bytes of an xz file: MAX_BYTES at most, fewer of a small file, and no more at
    once than was allowed.

    Raises ValueError beyond: tarfile reads a header as long as it says that it is.
    """

    def __init__(self, file: io.BufferedIOBase):
        self._file, self._given, self._allowed = file, 0, _HEADERS
        self._most = min(MAX_BYTES, _FREE + _RATIO * os.fstat(file.fileno()).st_size)
        self._xz = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_MEMORY)

    def allow(self, more: int) -> None:
        """Lets the next so many bytes be read."""
        self._allowed = self._given + more

    def read(self, size: int = -1) -> bytes:
        """Up to `size` bytes, which has to be given; b"" at the end."""
        content = b""
        while not content and not self._xz.eof:
            packed = self._file.read(io.DEFAULT_BUFFER_SIZE) if self._xz.needs_input else b""
            if self._xz.needs_input and not packed:
                raise EOFError("it ends too early")
            content = self._xz.decompress(packed, size)
        self._given += len(content)
        if self._given > self._most:
            raise ValueError(f"it unpacks to more than {self._most:,} bytes")
        if self._given > self._allowed:
            raise ValueError("a member's header is longer than any")
        return content


def _anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """Without who made it and when, so that equal records are equal files."""
    entry.uid = entry.gid = entry.mtime = 0
    entry.uname = entry.gname = ""
    return entry
