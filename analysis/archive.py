"""Packs a study's records into one file: `python -m analysis DIR --pack=FILE`.

The file holds what analysis reads, study.json and the four records of each trial, without
checkpoints and TensorBoard files, and can be analyzed in place of the directory. Numbers in
metrics.jsonl have nine significant digits, which give back a float32 exactly, and times and shares
of time three decimals. This makes a file about a quarter smaller. Metrics that are averaged on the
host are float64, and lose digits, except those that decide whether a value is at the target. With
`--thin=0.02`, evaluations that follow another one within 2% of its fresh examples are left out,
except those that scores depend on, and so are measurements of gradients and lines about training.

The reader trusts nothing in the file: it reads it once, copies the members that are records by name
and place into a directory of its own, and skips everything else. Limits on the unpacked size apply
while it unpacks.
"""

import io
import json
import lzma
import math
import os
import pathlib
import tarfile
import tempfile
from collections.abc import Iterator
from typing import Any

from runs import records
from runs.cli import InputError, damage_explained, is_disk_full
from runs.study import Study

SUFFIX = ".tar.xz"

# Limits of an unpacked file. A study of 20 conditions with 5 searches of 100 trials has 40,001
# members and, if trials take days, about 1 GB.
MAX_BYTES = 2 * 1024**3
MAX_MEMBERS = 200_000
# Records compress by a factor of 12 to 20. A file may unpack to _MIN_LIMIT plus _MAX_RATIO times
# its own size.
_MAX_RATIO, _MIN_LIMIT = 200, 64 * 1024**2

_KEPT = (records.STUDY, records.CONFIG, records.HPARAMS, records.METRICS, records.RESULT)
_CLOCK = ("train_seconds", "wall_seconds", "input_wait_fraction")
_MAX_HEADER = 1024**2  # bytes before a member's content; long names have headers of their own
_XZ_MEMORY = 256 * 1024**2  # bytes to unpack; files from `pack` need up to 65 MB
# Bytes in which repetition is found; packing needs ten times as much memory.
_XZ_WINDOW = 8 * 1024**2, 64 * 1024**2
_directories: list[tempfile.TemporaryDirectory] = []  # kept until the process ends
_unpacked: dict[tuple, pathlib.Path] = {}  # by file and version


def pack(
    study: str | os.PathLike, archive: str | os.PathLike, thin: float = 0.0
) -> tuple[int, int]:
    """Writes the records of a study's directory into `archive`, whole or not at all.

    Args:
        study: its directory.
        archive: a file name that ends in .tar.xz.
        thin: evaluations are kept if they follow the one kept before by at least this share of its
            fresh examples, or are the first, the last, the best, the first at the target, or the
            last with fewer fresh examples than that; scores and best values stay what they
            were. Measurements of gradients, and lines about training, are kept by their distance
            alone. 0 keeps all.

    Returns:
        The number of trials, of which those without a result are left out, and the bytes of their
        records.

    Raises:
        InputError: `study` is not a study's directory, its study.json is damaged, the file name
            does not end in .tar.xz, a record cannot be read, the records exceed the limits of
            `unpack`, or `archive` cannot be written.
    """
    study, archive = pathlib.Path(study), pathlib.Path(archive)
    if not archive.name.endswith(SUFFIX):
        raise InputError(f"--pack is {archive}; allowed: a file name that ends in {SUFFIX}")
    if not (study / records.STUDY).exists():
        raise InputError(f"{study} contains no {records.STUDY}; give the directory of one study")
    with damage_explained(f"the study in {study}"):
        target = Study.read(study).target
    trials = [path for _, path in records.trials_on_disk(study) if (path / records.RESULT).exists()]
    files = [study / records.STUDY, *(trial / name for trial in trials for name in _KEPT[1:])]
    files = [file for file in files if file.is_file()]  # a damaged trial stays damaged
    size = sum(file.stat().st_size for file in files)
    if size > MAX_BYTES or len(files) > MAX_MEMBERS:
        raise InputError(
            f"{study} contains {len(files):,} records of {size:,} bytes; allowed in one file: "
            f"{MAX_MEMBERS:,} and {MAX_BYTES:,}"
        )
    root = os.path.basename(os.path.abspath(study))  # `study` may be '.'
    window = min(max(size, _XZ_WINDOW[0]), _XZ_WINDOW[1])
    lzma2 = {"id": lzma.FILTER_LZMA2, "preset": 6 | lzma.PRESET_EXTREME, "dict_size": window}
    try:
        records.remove_stale(archive.parent)
        with records.temporary_path(archive) as temporary:
            with temporary.open("xb") as packed:
                with (
                    lzma.open(packed, "wb", filters=[lzma2]) as compressed,
                    tarfile.open(fileobj=compressed, mode="w", dereference=True) as tar,
                ):
                    for entry, content in _entries(study, root, files, thin, target):
                        tar.addfile(entry, io.BytesIO(content))
                records.force_to_disk(packed)
            os.replace(temporary, archive)
    except OSError as error:
        raise InputError(f"cannot write {archive} ({error}); give another --pack") from error
    return len(trials), size


def _entries(
    study: pathlib.Path, root: str, files: list[pathlib.Path], thin: float, target: records.Target
) -> Iterator[tuple[tarfile.TarInfo, bytes]]:
    """The members of a packed study, below `root`, with their content."""
    for file in files:
        try:
            content = file.read_bytes()
        except FileNotFoundError:  # a launch has just resumed the trial
            continue
        except OSError as error:
            raise InputError(
                f"cannot read {file} ({error}); make it readable, or restore it from a copy"
            ) from error
        if file.name == records.METRICS:
            lines = content.split(b"\n")
            lines = _thinned(lines, thin, target) if thin else lines
            content = b"\n".join(_shortened(line, target) for line in lines)
        entry = tarfile.TarInfo(f"{root}/{file.relative_to(study).as_posix()}")
        entry.size = len(content)  # neither owner nor time: equal records, equal files
        yield entry, content


def opened(path: str | os.PathLike) -> pathlib.Path:
    """`path`, or for a packed study the directory it is unpacked to; raises InputError."""
    path = pathlib.Path(path)
    return unpack(path) if path.name.endswith(SUFFIX) and path.is_file() else path


def unpack(archive: pathlib.Path) -> pathlib.Path:
    """A directory with the records of the study in `archive`; it lasts as long as the process.

    A file is unpacked again only if it was written or replaced.

    Raises:
        InputError: the file is not one that `pack` writes, or the disk is full.
    """
    try:
        status = archive.stat()
    except OSError as error:
        raise InputError(f"cannot read {archive} ({error}); give another file") from error
    version = archive.resolve(), status.st_mtime_ns, status.st_size, status.st_ino
    if version not in _unpacked:
        _unpacked[version] = _unpack(archive)
    return _unpacked[version]


def _unpack(archive: pathlib.Path) -> pathlib.Path:
    directory = tempfile.TemporaryDirectory(prefix="study_")
    _directories.append(directory)
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
        if is_disk_full(error):
            raise InputError(
                f"{archive} cannot be unpacked, since no space is left in {tempfile.gettempdir()}; "
                "free some, or set TMPDIR to another directory"
            ) from error
        raise InputError(
            f"{archive} contains no study's records ({error}); make one with "
            "python -m analysis DIR --pack=FILE"
        ) from error
    return pathlib.Path(directory.name, root)


def _members(archive: pathlib.Path) -> Iterator[tuple[str, str, bytes]]:
    """Yields (study name, path in the study, content) of each record in a packed study."""
    with archive.open("rb") as file:
        plain = _Bounded(file)
        with tarfile.open(fileobj=plain, mode="r|") as tar:
            for number in range(MAX_MEMBERS + 1):
                if (member := tar.next()) is None:
                    return
                if number == MAX_MEMBERS:
                    raise ValueError(f"it has more than {MAX_MEMBERS:,} members")
                plain.allow(member.size + _MAX_HEADER)
                if (place := _place(member)) is not None:
                    content = tar.extractfile(member)
                    assert content is not None  # a regular file
                    yield *place, content.read()


def _place(member: tarfile.TarInfo) -> tuple[str, str] | None:
    """The study name and the path in it of a member that is a record; None for other members."""
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
    """The unpacked bytes of an xz file, within a limit that depends on its size and a limit for the
    next member.

    Raises ValueError beyond the limits. The second is needed because tarfile believes the length
    that a header states for itself.
    """

    def __init__(self, file: io.BufferedIOBase):
        self._file, self._read, self._allowed = file, 0, _MAX_HEADER
        self._max_bytes = min(MAX_BYTES, _MIN_LIMIT + _MAX_RATIO * os.fstat(file.fileno()).st_size)
        self._xz = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY)

    def allow(self, count: int) -> None:
        """Permits reading the next `count` bytes."""
        self._allowed = self._read + count

    def read(self, size: int = -1) -> bytes:
        """Up to `size` bytes; b"" at the end. `size` must be given."""
        content = b""
        while not content and not self._xz.eof:
            packed = self._file.read(io.DEFAULT_BUFFER_SIZE) if self._xz.needs_input else b""
            if self._xz.needs_input and not packed:
                raise EOFError("it is truncated")
            content = self._xz.decompress(packed, size)
        self._read += len(content)
        if self._read > self._max_bytes:
            raise ValueError(f"it unpacks to more than {self._max_bytes:,} bytes")
        if self._read > self._allowed:
            raise ValueError("a member's header is longer than allowed")
        return content


def _thinned(lines: list[bytes], thin: float, target: records.Target) -> list[bytes]:
    """The lines of a metrics.jsonl without those that `pack` leaves out."""
    evaluations = list(_values(lines, "validation", target.metric))
    kept, best = {0, len(evaluations) - 1, *_spaced(evaluations, thin)}, None
    for place, (*_, value) in enumerate(evaluations):
        if target.better(value, None if best is None else evaluations[best][-1]):
            best = place
    hits = (place for place, (*_, value) in enumerate(evaluations) if target.reached(value))
    if (first := next(hits, None)) is not None:
        earlier = (k for k in range(first) if evaluations[k][1] < evaluations[first][1])
        kept |= {first, max(earlier, default=0)}
    kept.add(best or 0)
    left_out = {index for place, (index, *_) in enumerate(evaluations) if place not in kept}
    for split in (records.GRADIENTS, "train"):
        others = list(_values(lines, split, ""))
        kept = set(_spaced(others, thin))
        left_out |= {index for place, (index, *_) in enumerate(others) if place not in kept}
    return [line for index, line in enumerate(lines) if index not in left_out]


def _spaced(lines: list[tuple[int, float, float]], thin: float) -> Iterator[int]:
    """Yields the places of lines that are far enough from the one yielded before."""
    spaced = 0.0
    for place, (_, fresh, _) in enumerate(lines):
        if fresh >= spaced * (1 + thin):
            yield place
            spaced = fresh


def _values(lines: list[bytes], split: str, metric: str) -> Iterator[tuple[int, float, float]]:
    """Yields the index, the fresh examples, and the value (NaN if there is none) of each line of a
    split; damaged lines belong to none."""
    for index, line in enumerate(lines):
        try:
            record = json.loads(line)
            if record["split"] != split:
                continue
            value = record.get(metric)
            fresh = float(record["fresh_examples"])
            value = math.nan if value is None else float(value)
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
            continue
        yield index, fresh, value


def _shortened(line: bytes, target: records.Target) -> bytes:
    """A line of metrics.jsonl with shorter numbers; a damaged one as it is.

    A value keeps the digits that decide whether it is at the target.
    """
    try:
        record = json.loads(line)
        short = {name: _short(name, value) for name, value in record.items()}
        value = record.get(target.metric)
        if isinstance(value, float) and target.reached(value) != target.reached(
            short[target.metric]
        ):
            short[target.metric] = value
        return json.dumps(short).encode()
    except (ValueError, AttributeError, RecursionError):
        return line


def _short(name: str, value: Any) -> Any:
    if not isinstance(value, float):
        return value
    return round(value, 3) if name in _CLOCK else float(f"{value:.9g}")
