"""The files of a run and of a study: written here, read here, and nowhere else.

A run's directory (WORKDIR) holds `config.json`, `metrics.jsonl`, and `result.json`. A study's
directory holds `study.json` and one WORKDIR per trial at `<condition>/<search>/<trial>/`, each with
`hparams.json`. JSON files are written atomically. `metrics.jsonl` grows by whole lines; a
checkpoint stores its length and SHA-256, so that resuming can truncate it to what the checkpoint
covers and detects when that part is missing.
"""

import contextlib
import dataclasses
import errno
import fcntl
import hashlib
import io
import itertools
import json
import math
import os
import pathlib
import re
import secrets
import stat
import time
from collections.abc import Iterator, Mapping
from typing import IO, Any

# 2: echo.shuffle_buffer is the total of all streams (1: per stream, before batching), and the order
# of an epoch derives from a hash of data seed and epoch (1: from their sum).
# 3: crops on the host are resized by another library, within one gray level, and the default of
# echo.max_factor follows from the batch size (2: 16).
# 4: the default of echo.max_factor is a quarter of the batch size (3: an eighth).
# 5: colors on the host are distorted by another library, within one gray level.
# 6: echo.policy=auto spreads the copies of an example over more batches.
# 7: the default of echo.max_factor is half of the batch size where each repeat is augmented anew;
# echo.policy=auto may hold a reserve of copies back (so did the last commits of version 6).
# 8: photographs are resized by another routine on AMD's processors, within one gray level. The
# state of echo.policy=auto is that of an earlier batch and the decisions since then.
# Older records remain readable and are never resumed.
SCHEMA_VERSION = 8

CONFIG, METRICS, RESULT = "config.json", "metrics.jsonl", "result.json"
STUDY, HPARAMS = "study.json", "hparams.json"
GRADIENTS = "gradients"  # the split of metrics records on one step's gradient
ORIGIN = ("commit", "packages", "hardware")  # in config.json and study.json
RESUMED = "resumed"  # in config.json: what the run resumed with; see origins.py
LOCK = "lock"  # held by the process that trains in this directory
CHECKPOINTS, TENSORBOARD, PROFILE = "checkpoints", "tensorboard", "profile"
TRACKED = "trackers.json"  # the run's identities with experiment trackers
DAMAGED = "damaged"  # unusable files and directories, kept for inspection
DECISIONS = "echo_decisions.jsonl"  # of echo.policy=auto: fresh examples taken in each step
EVALUATION, PARAMETERS = "evaluation.json", "parameters.npz"  # of a run's best checkpoint

_ERROR = re.compile(r"error([1-9][0-9]*)?\.txt")

# Every way a run ends. A search may count COUNTABLE trials. A FINISHED run is never trained again;
# others resume when started again. An ENDED one has ended by itself: a preempted one was stopped.
COUNTABLE = ("reached", "exhausted")
FINISHED = (*COUNTABLE, "diverged")
ENDED = (*FINISHED, "failed")
STATUSES = (*ENDED, "preempted")

MAX_COUNT = 2**53  # JSON numbers above this are not exact


@dataclasses.dataclass(frozen=True)
class Target:
    """The goal of a run: a metric at or beyond `value`, on the side `mode`: 'above' or 'below'."""

    metric: str
    value: float
    mode: str

    def __post_init__(self):
        if self.mode not in ("above", "below"):
            raise ValueError(f"target.mode is {self.mode!r}; allowed: 'above', 'below'")

    def reached(self, value: float) -> bool:
        """Whether `value` is at or beyond the target (NaN never is)."""
        return value >= self.value if self.mode == "above" else value <= self.value

    def better(self, value: float, than: float | None) -> bool:
        """Whether `value` is strictly better than `than`. Any finite number beats None; NaN and
        infinities beat nothing."""
        if not math.isfinite(value):
            return False
        if than is None:
            return True
        return value > than if self.mode == "above" else value < than


def run_result(
    status: str,
    target: Target,
    position: Mapping[str, Any],
    best: Mapping[str, Any] | None,
    error: str | None,
) -> dict[str, Any]:
    """The content of result.json.

    Args:
        status: one of STATUSES.
        target: the goal of the run.
        position: `step`, `fresh_examples`, `train_seconds`, `wall_seconds`, and
            `input_wait_fraction` at the end, None where unknown.
        best: the best validation value, {metric, value, fresh_examples}; None if there is none.
        error: why the run diverged or failed.
    """
    reached = position if status == "reached" else {}
    return {
        "status": status,
        "target": dataclasses.asdict(target),
        "fresh_examples_to_target": reached.get("fresh_examples"),
        "steps_to_target": reached.get("step"),
        "seconds_to_target": reached.get("train_seconds"),
        "best": best or {"metric": target.metric, "value": None, "fresh_examples": None},
        "step": position["step"],
        "fresh_examples": position["fresh_examples"],
        "train_seconds": position["train_seconds"],
        "wall_seconds": position["wall_seconds"],
        "input_wait_fraction": position["input_wait_fraction"],
        **({"error": error} if error else {}),
    }


def schema_version(record: Mapping[str, Any]) -> int:
    """The version of a config.json or study.json."""
    return record.get("schema_version", 1)


def check_readable(record: Mapping[str, Any]) -> None:
    """Raises ValueError if the version of a config.json or study.json is not known here: what later
    code has written may mean something else."""
    version = schema_version(record)
    if version is None or not 1 <= version <= SCHEMA_VERSION:
        raise ValueError(
            f"schema_version is {version}; this code reads 1 to {SCHEMA_VERSION}, so analyze it "
            "with the code that wrote it"
        )


def error_file(process: int) -> str:
    """The name of the file in which process number `process` of a run writes why it failed."""
    return f"error{process or ''}.txt"


def is_error_file(name: str) -> bool:
    """Whether this is a name that `error_file` returns."""
    return _ERROR.fullmatch(name) is not None


# --- Writing


def write_json(path: str | os.PathLike, value: Any) -> None:
    """Writes `value` as JSON at `path`, atomically."""
    write_bytes(path, _json(value))


def write_bytes(path: str | os.PathLike, content: bytes) -> None:
    """Writes a file atomically: writes a temporary file, forces it to disk, and renames it."""
    with temporary_file(pathlib.Path(path), content) as temporary:
        os.replace(temporary, path)


def create_json(path: str | os.PathLike, value: Any) -> None:
    """Writes `value` as JSON at `path` unless it exists.

    If several processes, on one machine or more, create the same file, exactly one succeeds. (On a
    file system without links whose locks exclude only processes of one machine, this holds for
    those.)

    Raises:
        FileExistsError: `path` exists; it is left unchanged.
    """
    path, content = pathlib.Path(path), _json(value)
    with temporary_file(path, content) as temporary:
        try:
            os.link(temporary, path)  # unlike a rename, a link never replaces a file
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            _move(temporary, path)


_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK)


def _move(temporary: pathlib.Path, path: pathlib.Path) -> None:
    """Renames a file; raises FileExistsError if `path` exists."""
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
    except OSError:  # without locks, one creator matters more than a whole file at every moment
        with path.open("xb") as file:
            file.write(temporary.read_bytes())
            force_to_disk(file)
    else:
        if os.path.lexists(path):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
        os.replace(temporary, path)
    finally:
        os.close(directory)


@contextlib.contextmanager
def temporary_file(path: pathlib.Path, content: bytes) -> Iterator[pathlib.Path]:
    """A file with `content` next to `path`, for the caller to rename or link; removed on exit."""
    with temporary_path(path) as temporary:
        with temporary.open("xb") as file:
            file.write(content)
            force_to_disk(file)
        yield temporary


@contextlib.contextmanager
def temporary_path(path: pathlib.Path) -> Iterator[pathlib.Path]:
    """A free path next to `path`, for the caller to write to and rename; removed on exit.

    Its name is random, since process numbers repeat between containers and machines.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


def force_to_disk(file: IO[bytes]) -> None:
    """Returns when everything that was written to `file` would survive a power failure."""
    file.flush()
    os.fsync(file.fileno())


# Names of `temporary_path`, and those of earlier versions, which ended in a process number.
_WRITTEN = (STUDY, CONFIG, HPARAMS, RESULT, EVALUATION, PARAMETERS, TRACKED)
_TEMPORARY = re.compile(
    rf"\..+\.[0-9a-f]{{16}}\.tmp|\.({'|'.join(map(re.escape, _WRITTEN))})\.[0-9]+"
)

# A temporary file exists for seconds, but clocks of machines may differ by hours.
STALE_SECONDS = 2 * 24 * 3600.0


def is_temporary(name: str) -> bool:
    """Whether this is the name of a temporary file, in use or left by a process that was killed."""
    return _TEMPORARY.fullmatch(name) is not None


def remove_stale(directory: str | os.PathLike) -> None:
    """Removes temporary files in `directory` older than STALE_SECONDS, left by killed processes.

    Files that cannot be removed stay.
    """
    with contextlib.suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            if is_temporary(entry.name) and entry.is_file(follow_symlinks=False):
                age = time.time() - entry.stat(follow_symlinks=False).st_mtime
                if age > STALE_SECONDS:
                    with contextlib.suppress(OSError):
                        os.unlink(entry.path)


def set_aside(path: pathlib.Path, directory: pathlib.Path, name: str = "") -> pathlib.Path:
    """Moves a damaged file or directory into `directory`, under a name that is free there."""
    directory.mkdir(exist_ok=True)
    return path.rename(free_path(directory, name or path.name))


def free_path(directory: pathlib.Path, name: str) -> pathlib.Path:
    """`directory` / `name`, with a number appended if that exists."""
    names = (f"{name}.{number}" if number else name for number in itertools.count())
    return next(directory / free for free in names if not os.path.lexists(directory / free))


# --- Reading


class Damaged(ValueError):
    """A record is not what was written; the message names the file and gives the reason."""


# Far larger than any record: metrics.jsonl of a long run has a few megabytes.
MAX_BYTES = 256 * 1024**2

# Errors of reading that are caused by the file, not by the process (as too many open files are).
_UNREADABLE = (errno.EACCES, errno.EPERM, errno.EIO, errno.ELOOP)


def read_json(path: str | os.PathLike) -> Any:
    """The value at `path`, or None if there is no such file.

    Raises:
        Damaged: it is not JSON (which excludes NaN and infinities), or cannot be read.
    """
    content = read_bytes(path)
    return None if content is None else _parsed(content, pathlib.Path(path).name)


def read_object(path: str | os.PathLike) -> dict[str, Any] | None:
    """The JSON object at `path`, or None if there is no such file.

    Raises:
        Damaged: it is not a JSON object, or cannot be read.
    """
    content, name = read_bytes(path), pathlib.Path(path).name
    return None if content is None else _object(_parsed(content, name), name)


def read_bytes(path: str | os.PathLike) -> bytes | None:
    """The content of a record, or None if there is no such file.

    Raises:
        Damaged: it is not a regular file, cannot be read, or is far larger than any record.
    """
    path = pathlib.Path(path)
    try:
        with open_file(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size > MAX_BYTES:
                raise Damaged(f"{path.name} has {size:,} bytes, more than {MAX_BYTES:,}")
            return file.read(MAX_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (IsADirectoryError, io.UnsupportedOperation):
        raise Damaged(f"{path.name} is not a file") from None
    except OSError as error:
        if error.errno not in _UNREADABLE:
            raise
        raise Damaged(f"{path.name} cannot be read: {error.strerror}") from error


def open_file(path: str | os.PathLike) -> io.BufferedReader:
    """Opens a file for reading, but not a named pipe, where `open` would wait for a writer.

    Raises:
        io.UnsupportedOperation (an OSError): it is not a regular file.
    """
    file = open(path, "rb", opener=_open_nonblocking)  # noqa: SIM115, closed by the caller
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise io.UnsupportedOperation(f"{path} is not a file")
    return file


def file_content(path: str | os.PathLike) -> bytes:
    """The bytes of a file of any size; raises as `open_file`, and OSError."""
    with open_file(path) as file:
        return file.read()


def _open_nonblocking(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


def _refuse_constant(text: str):
    raise ValueError(f"it holds {text}")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


def _parsed(content: bytes, name: str) -> Any:
    try:
        return _DECODER.decode(content.decode("utf-8"))
    except RecursionError:
        raise Damaged(f"{name} is not JSON: it is nested too deeply") from None
    except ValueError as error:  # from JSON, UTF-8, or numbers with thousands of digits
        raise Damaged(f"{name} is not JSON: {error}") from error


def parse_object(content: bytes, name: str) -> dict[str, Any]:
    """The JSON object that `content`, of the file `name`, represents; raises Damaged."""
    return _object(_parsed(content, name), name)


def _object(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise Damaged(f"{name} holds {type(value).__name__}, not an object")
    return value


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=2, allow_nan=False) + "\n").encode()


# --- Files that grow by lines


@dataclasses.dataclass(frozen=True)
class Extent:
    """The first `bytes` of a file, and their SHA-256 in hexadecimal."""

    bytes: int = 0
    sha256: str = hashlib.sha256().hexdigest()

    def missing_from(self, path: str | os.PathLike) -> str:
        """The reason why `path` does not begin with this extent; '' if it does."""
        try:
            with open(path, "rb") as file:
                content = file.read(self.bytes)
        except FileNotFoundError:
            content = b""
        if len(content) < self.bytes:
            return f"{pathlib.Path(path).name} has {len(content):,} of its {self.bytes:,} bytes"
        if hashlib.sha256(content).hexdigest() != self.sha256:
            return f"{pathlib.Path(path).name} has changed since"
        return ""


class LinesWriter:
    """Appends records to a file such as `metrics.jsonl`, one JSON object per line.

    Args:
        path: the file.
        keep_bytes: how much of an existing file to keep. The rest was written after the checkpoint
            that the run resumes from, and will be written again.
    """

    def __init__(self, path: str | os.PathLike, keep_bytes: int = 0):
        self._file = open(path, "a+b")  # noqa: SIM115, closed by close()
        self._file.truncate(keep_bytes)
        self._file.seek(0)
        self._sha256 = hashlib.sha256(self._file.read())

    def write(self, record: dict[str, Any]) -> None:
        """Appends a record. Numbers that JSON cannot represent (NaN, infinities) become null."""
        line = json.dumps(without_nonfinite(record), allow_nan=False).encode() + b"\n"
        self._file.write(line)
        self._file.flush()
        self._sha256.update(line)

    def sync(self) -> Extent:
        """Forces the file to disk; returns its extent."""
        force_to_disk(self._file)
        return Extent(self._file.tell(), self._sha256.hexdigest())

    def close(self) -> None:
        self._file.close()


def without_nonfinite(record: dict[str, Any]) -> dict[str, Any]:
    """A record with None in place of the numbers that JSON cannot represent (NaN, infinities)."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in record.items()
    }


def read_metrics(workdir: str | os.PathLike) -> list[dict[str, Any]]:
    """The records of `metrics.jsonl`, empty before the run has begun; raises Damaged."""
    try:
        return read_lines(pathlib.Path(workdir) / METRICS)
    except FileNotFoundError:
        return []


def read_lines(path: str | os.PathLike) -> list[dict[str, Any]]:
    """The records of a LinesWriter, in order, without a last line that a crash cut off.

    Raises:
        FileNotFoundError: there is no such file.
        Damaged: it cannot be read, or a line before the last one is not a JSON object.
    """
    content, name = read_bytes(path), pathlib.Path(path).name
    if content is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
    *lines, _incomplete = content.split(b"\n")
    # All lines at once, which takes a third of the time; one by one only to name the damaged one.
    with contextlib.suppress(Damaged):
        values = _parsed(b"[" + b",".join(lines) + b"]", name)
        if len(values) == len(lines) and all(type(value) is dict for value in values):
            return values
    named = ((f"{name}, line {number},", line) for number, line in enumerate(lines, start=1))
    return [_object(_parsed(line, where), where) for where, line in named]


def read_decisions(path: str | os.PathLike) -> tuple[list[list[int]], int]:
    """The decisions in `path` from step 1 up to the first damaged or missing line.

    Returns:
        The fresh examples of each stream, for each step; and the length of these lines in bytes.
    """
    decisions, length = [], 0
    content = pathlib.Path(path).read_bytes() if os.path.exists(path) else b""
    for line in content.split(b"\n")[:-1]:
        try:
            decision = json.loads(line)
            valid = decision["step"] == len(decisions) + 1
            valid = valid and all(type(fresh) is int for fresh in decision["fresh"])
        except (ValueError, KeyError, TypeError, RecursionError):
            valid = False
        if not valid:
            break
        decisions.append(decision["fresh"])
        length += len(line) + 1
    return decisions, length


# --- Trials of a study


@dataclasses.dataclass(frozen=True)
class TrialPath:
    """Identifies a trial of a study, which lies in `STUDY/<condition>/<search>/<trial>/`."""

    condition: str
    search: int
    trial: int

    def under(self, study_dir: str | os.PathLike) -> pathlib.Path:
        return pathlib.Path(study_dir) / self.condition / str(self.search) / str(self.trial)


def trials_on_disk(study_dir: str | os.PathLike) -> Iterator[tuple[TrialPath, pathlib.Path]]:
    """The trial directories of a study, ordered by condition, search, and trial number."""
    for condition in sorted(_directories(study_dir)):
        condition_dir = pathlib.Path(study_dir, condition)
        for search in _numbered(condition_dir):
            search_dir = condition_dir / str(search)
            for trial in _numbered(search_dir):
                yield TrialPath(condition, search, trial), search_dir / str(trial)


def _directories(path: str | os.PathLike) -> list[str]:
    """The names of the directories in `path`; none if it cannot be listed."""
    try:
        with os.scandir(path) as entries:
            return [entry.name for entry in entries if entry.is_dir()]
    except OSError:
        return []


def _numbered(path: pathlib.Path) -> list[int]:
    """The numbers of the searches or trials in `path`, sorted."""
    return sorted(int(name) for name in _directories(path) if is_numbered(name))


def is_numbered(name: str) -> bool:
    """Whether a name is that of a search, a trial, or a checkpoint: 0 or 10, but not 010 or ²."""
    return name.isascii() and name.isdigit() and name == str(int(name))
