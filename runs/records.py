"""The files of a run and of a study: written here, read here, and nowhere else.

A run's directory (WORKDIR) holds `config.json`, `metrics.jsonl`, `result.json`; a study's directory
holds `study.json` and one WORKDIR a trial at `<condition>/<search>/<trial>/`, each with
`hparams.json`. JSON files are written whole or not at all; `metrics.jsonl` grows by whole lines,
and a checkpoint stores its length and SHA-256, so that resuming can cut it back to what the
checkpoint covers, and notices when that is no longer there.
"""

import contextlib
import dataclasses
import errno
import hashlib
import itertools
import json
import math
import os
import pathlib
import re
import secrets
import stat
import time
from collections.abc import Iterator
from typing import Any

# 2: echo.shuffle_buffer is the total of all streams (1: of each, before batching), and the order of
# an epoch comes from a hash of data seed and epoch (1: from their sum). Older records are read as
# what they are, and never resumed.
SCHEMA_VERSION = 2

CONFIG, METRICS, RESULT = "config.json", "metrics.jsonl", "result.json"
STUDY, HPARAMS = "study.json", "hparams.json"
GRADIENTS = "gradients"  # a metrics record's split: statistics of one step's gradient
LOCK = "lock"  # of a trial: held by the process that trains it
CHECKPOINTS, TENSORBOARD = "checkpoints", "tensorboard"
DAMAGED = "damaged"  # what could not be used any more, set aside for a person to look at
DECISIONS = "echo_decisions.jsonl"  # of echo.policy=auto: fresh examples taken, step by step
EVALUATION, PARAMETERS = "evaluation.json", "parameters.npz"  # of a finished run's best checkpoint

# Every way a run ends. A FINISHED run is never trained again; others go on when started again.
STATUSES = ("reached", "exhausted", "diverged", "failed", "preempted")
FINISHED = ("reached", "exhausted", "diverged")


@dataclasses.dataclass(frozen=True)
class Target:
    """A metric's goal. `mode` says on which side of `value` the goal lies: above or below."""

    metric: str
    value: float
    mode: str

    def __post_init__(self):
        if self.mode not in ("above", "below"):
            raise ValueError(f"target.mode is {self.mode!r}; allowed: 'above', 'below'")

    def reached(self, value: float) -> bool:
        """Whether `value` is at the target or past it (NaN never is)."""
        return value >= self.value if self.mode == "above" else value <= self.value

    def better(self, value: float, than: float | None) -> bool:
        """Whether `value` is strictly better than `than`; anything beats None, NaN nothing."""
        if math.isnan(value):
            return False
        if than is None:
            return True
        return value > than if self.mode == "above" else value < than


def schema_version(record: dict[str, Any]) -> int:
    """The version of a config.json or study.json."""
    return record.get("schema_version", 1)


def write_json(path: str | os.PathLike, value: Any) -> None:
    """Writes `value` as JSON at `path`, whole or not at all."""
    write_bytes(path, _json(value))


def write_bytes(path: str | os.PathLike, content: bytes) -> None:
    """Writes a file whole or not at all (write aside, fsync, rename)."""
    with _aside(pathlib.Path(path), content) as aside:
        os.replace(aside, path)


def create_json(path: str | os.PathLike, value: Any) -> None:
    """Writes `value` as JSON at `path`, unless something is there: of several processes that
    create it at once, on one machine or on several, one does.

    Raises:
        FileExistsError: something is at `path`; it is left as it is.
    """
    path, content = pathlib.Path(path), _json(value)
    with _aside(path, content) as aside:
        try:
            os.link(aside, path)  # unlike a rename, a link replaces nothing
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            _create(path, content)
        aside.unlink()


_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK)


@contextlib.contextmanager
def _aside(path: pathlib.Path, content: bytes) -> Iterator[pathlib.Path]:
    """A file with `content` beside `path`, which the caller moves; removed after an error.

    Its name is random: process numbers repeat between containers and machines.
    """
    aside = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    _create(aside, content)
    try:
        yield aside
    except BaseException:
        aside.unlink(missing_ok=True)
        raise


def _create(path: pathlib.Path, content: bytes) -> None:
    with path.open("xb") as file:
        try:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        except BaseException:
            path.unlink(missing_ok=True)
            raise


# The names of `_aside`, and those of earlier versions, which ended in a process number.
_ASIDE = (STUDY, CONFIG, HPARAMS, RESULT, EVALUATION, PARAMETERS)
_TEMPORARY = re.compile(rf"\.({'|'.join(map(re.escape, _ASIDE))})\.([0-9a-f]{{16}}\.tmp|[0-9]+)")

# A file is aside for seconds. Clocks of machines may differ by hours, so only those of days ago
# are surely nobody's.
STALE_SECONDS = 2 * 24 * 3600.0


def is_temporary(name: str) -> bool:
    """Whether a file of this name is one that is being written, or was when its writer died."""
    return _TEMPORARY.fullmatch(name) is not None


def remove_stale(directory: str | os.PathLike) -> None:
    """Removes temporary files in `directory` that were written STALE_SECONDS ago or earlier, by
    processes that were killed. What cannot be removed stays."""
    with contextlib.suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            if is_temporary(entry.name) and entry.is_file(follow_symlinks=False):
                age = time.time() - entry.stat(follow_symlinks=False).st_mtime
                if age > STALE_SECONDS:
                    with contextlib.suppress(OSError):
                        os.unlink(entry.path)


class Damaged(ValueError):
    """A record is not what was written there; the message names the file and says why."""


# No record comes near: the largest, of long runs, is metrics.jsonl with some megabytes.
MAX_BYTES = 256 * 1024**2

# Failures of reading that are the file's, not the process's (such as too many open files).
_UNREADABLE = (errno.EACCES, errno.EPERM, errno.EIO, errno.ELOOP)


def read_json(path: str | os.PathLike) -> Any:
    """The value at `path`, or None where there is no such file.

    Raises:
        Damaged: it holds no JSON (NaN and infinities are none), or cannot be read.
    """
    content = read_bytes(path)
    return None if content is None else _parsed(content, pathlib.Path(path).name)


def read_object(path: str | os.PathLike) -> dict[str, Any] | None:
    """The JSON object at `path`, or None where there is no such file; raises as `read_json`."""
    content, name = read_bytes(path), pathlib.Path(path).name
    return None if content is None else _object(_parsed(content, name), name)


def read_bytes(path: str | os.PathLike) -> bytes | None:
    """The content of a record, or None where there is no such file.

    Raises:
        Damaged: it is no file, cannot be read, or is far larger than any record.
    """
    path = pathlib.Path(path)
    try:
        with open(path, "rb", opener=_open_at_once) as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise Damaged(f"{path.name} is no file")
            if found.st_size > MAX_BYTES:
                raise Damaged(f"{path.name} has {found.st_size:,} bytes, more than {MAX_BYTES:,}")
            return file.read(MAX_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except IsADirectoryError:
        raise Damaged(f"{path.name} is no file") from None
    except OSError as error:
        if error.errno not in _UNREADABLE:
            raise
        raise Damaged(f"{path.name} cannot be read: {error.strerror}") from error


def _open_at_once(path: str, flags: int) -> int:
    """Opens a pipe too, where another opening would wait for its writer."""
    return os.open(path, flags | os.O_NONBLOCK)


def _refused(word: str):
    raise ValueError(f"it holds {word}")


_DECODER = json.JSONDecoder(parse_constant=_refused)


def _parsed(content: bytes, name: str) -> Any:
    try:
        return _DECODER.decode(content.decode("utf-8"))
    except RecursionError:
        raise Damaged(f"{name} is not JSON: it is nested too deeply") from None
    except ValueError as error:  # of JSON, of UTF-8, and of numbers with thousands of digits
        raise Damaged(f"{name} is not JSON: {error}") from error


def _object(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Damaged(f"{name} holds {type(value).__name__}, not an object")
    return value


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=2, allow_nan=False) + "\n").encode()


@dataclasses.dataclass(frozen=True)
class Extent:
    """The first `bytes` of a file, and their SHA-256 in hexadecimal."""

    bytes: int = 0
    sha256: str = hashlib.sha256().hexdigest()

    def missing_from(self, path: str | os.PathLike) -> str:
        """Why `path` does not begin with this extent; '' if it does."""
        try:
            with open(path, "rb") as file:
                content = file.read(self.bytes)
        except FileNotFoundError:
            content = b""
        if len(content) < self.bytes:
            return f"{pathlib.Path(path).name} has {len(content):,} of its {self.bytes:,} bytes"
        if hashlib.sha256(content).hexdigest() != self.sha256:
            return f"{pathlib.Path(path).name} has other content than then"
        return ""


def set_aside(path: pathlib.Path, directory: pathlib.Path, name: str = "") -> pathlib.Path:
    """Moves a damaged file or directory into `directory`, under a name that is free there."""
    directory.mkdir(exist_ok=True)
    name = name or path.name
    names = (f"{name}.{number}" if number else name for number in itertools.count())
    free = next(directory / each for each in names if not os.path.lexists(directory / each))
    return path.rename(free)


class LinesWriter:
    """Appends records to a file such as `metrics.jsonl`, one JSON object a line.

    Args:
        path: the file.
        keep_bytes: how much of an existing file to keep, at most what it has; what lies beyond was
            written after the checkpoint that the run resumes from, and will be written again.
    """

    def __init__(self, path: str | os.PathLike, keep_bytes: int = 0):
        self._file = open(path, "a+b")  # noqa: SIM115, closed by close()
        self._file.truncate(keep_bytes)
        self._file.seek(0)
        self._sha256 = hashlib.sha256(self._file.read())

    def write(self, record: dict[str, Any]) -> None:
        """Appends one record. Numbers that JSON cannot hold (NaN, infinities) become null."""
        clean = {k: None if _not_json(v) else v for k, v in record.items()}
        line = json.dumps(clean, allow_nan=False).encode() + b"\n"
        self._file.write(line)
        self._file.flush()
        self._sha256.update(line)

    def sync(self) -> Extent:
        """Forces what was written to disk; returns how far the file goes."""
        self._file.flush()
        os.fsync(self._file.fileno())
        return Extent(self._file.tell(), self._sha256.hexdigest())

    def close(self) -> None:
        self._file.close()


def _not_json(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def read_metrics(workdir: str | os.PathLike) -> list[dict[str, Any]]:
    """The records of `metrics.jsonl`; see `read_lines`. None is there before the run has begun."""
    try:
        return read_lines(pathlib.Path(workdir) / METRICS)
    except FileNotFoundError:
        return []


def read_lines(path: str | os.PathLike) -> list[dict[str, Any]]:
    """The records of a LinesWriter, in order; a last line cut off by a crash is left out.

    Raises:
        FileNotFoundError: there is no such file.
        Damaged: it cannot be read, or a line before the last one is not a JSON object.
    """
    content, name = read_bytes(path), pathlib.Path(path).name
    if content is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    *lines, _torn = content.split(b"\n")  # after the last newline: nothing, or a torn line
    named = ((f"{name}, line {number},", line) for number, line in enumerate(lines, start=1))
    return [_object(_parsed(line, where), where) for where, line in named]


def read_decisions(path: str | os.PathLike) -> tuple[list[list[int]], int]:
    """The decisions in `path` from step 1 on, as far as they are whole.

    Returns:
        Of each step, without a gap, the fresh examples of each stream; and the length of the file
        up to there, in bytes.
    """
    decisions, length = [], 0
    content = pathlib.Path(path).read_bytes() if os.path.exists(path) else b""
    for line in content.split(b"\n")[:-1]:
        try:
            decision = json.loads(line)
            follows = decision["step"] == len(decisions) + 1
            follows = follows and all(type(fresh) is int for fresh in decision["fresh"])
        except (ValueError, KeyError, TypeError, RecursionError):
            follows = False
        if not follows:
            break
        decisions.append(decision["fresh"])
        length += len(line) + 1
    return decisions, length


@dataclasses.dataclass(frozen=True)
class TrialPath:
    """Where a trial of a study lies: `STUDY/<condition>/<search>/<trial>/`."""

    condition: str
    search: int
    trial: int

    def under(self, study_dir: str | os.PathLike) -> pathlib.Path:
        return pathlib.Path(study_dir) / self.condition / str(self.search) / str(self.trial)


def trials_on_disk(study_dir: str | os.PathLike) -> Iterator[tuple[TrialPath, pathlib.Path]]:
    """The trial directories below a study, ordered by condition, search and trial number."""
    found = []
    for path in pathlib.Path(study_dir).glob("*/*/*"):
        condition, search, trial = path.parts[-3:]
        if path.is_dir() and _is_number(search) and _is_number(trial):
            found.append((condition, int(search), int(trial), path))
    for condition, search, trial, path in sorted(found):
        yield TrialPath(condition, search, trial), path


def _is_number(name: str) -> bool:
    """Whether a directory's name is that of a search or trial: 0, 10, but neither 010 nor ²."""
    return name.isascii() and name.isdigit() and name == str(int(name))
