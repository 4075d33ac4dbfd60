"""The files of a run and of a study: written here, read here, and nowhere else.

A run's directory (WORKDIR) holds `config.json`, `metrics.jsonl`, `result.json`; a study's directory
holds `study.json` and one WORKDIR a trial at `<condition>/<search>/<trial>/`, each with
`hparams.json`. JSON files are written whole or not at all; `metrics.jsonl` grows by whole lines,
and a checkpoint stores its length and SHA-256, so that resuming can cut it back to what the
checkpoint covers, and notices when that is no longer there.
"""

import dataclasses
import hashlib
import itertools
import json
import math
import os
import pathlib
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
    write_bytes(path, (json.dumps(value, indent=2, allow_nan=False) + "\n").encode())


def write_bytes(path: str | os.PathLike, content: bytes) -> None:
    """Writes a file whole or not at all (write aside, fsync, rename)."""
    path = pathlib.Path(path)
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with aside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise


def read_json(path: str | os.PathLike) -> Any:
    """The value at `path`, or None where there is no such file."""
    try:
        return json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None


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


class Damaged(ValueError):
    """A record is not what was written there; the message names the file and says why."""


# What a result's fields are, where they are not null.
_RESULT_KINDS = {
    "target": dict,
    "best": dict,
    "step": int,
    "fresh_examples": int,
    "train_seconds": float,
    "wall_seconds": float,
    "input_wait_fraction": float,
    "fresh_examples_to_target": int,
    "steps_to_target": int,
    "seconds_to_target": float,
}


def read_result(workdir: str | os.PathLike) -> dict[str, Any] | None:
    """The content of a run's result.json, None where there is none; raises Damaged."""
    try:
        result = read_json(pathlib.Path(workdir) / RESULT)
    except (ValueError, RecursionError) as error:
        raise Damaged(f"{RESULT} cannot be read ({error})") from error
    if result is None:
        return None
    if not isinstance(result, dict) or result.get("status") not in STATUSES:
        raise Damaged(f"{RESULT} has no status")
    for name, kind in _RESULT_KINDS.items():
        value = result.get(name)
        kinds = (int, float) if kind is float else (kind,)
        if isinstance(value, bool) or not isinstance(value, (*kinds, type(None))):
            raise Damaged(f"{name} is {value!r} in {RESULT}")
    return result


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
    path = pathlib.Path(workdir) / METRICS
    return read_lines(path) if path.exists() else []


def read_lines(path: str | os.PathLike) -> list[dict[str, Any]]:
    """The records of a LinesWriter, in order; a last line cut off by a crash is left out.

    Raises:
        OSError: the file cannot be read.
        ValueError: a line before the last one is not a JSON object; the message names it.
    """
    *lines, _torn = (
        pathlib.Path(path).read_bytes().split(b"\n")
    )  # after the last newline: nothing, or a torn line
    records = []
    for number, line in enumerate(lines, start=1):
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}, line {number}: not a JSON object ({error})") from error
    return records


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
        if path.is_dir() and search.isdigit() and trial.isdigit():
            found.append((condition, int(search), int(trial), path))
    for condition, search, trial, path in sorted(found):
        yield TrialPath(condition, search, trial), path
