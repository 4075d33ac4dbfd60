"""The files of a run and of a study: written here, read here, and nowhere else.

A run's directory (WORKDIR) holds `config.json`, `metrics.jsonl`, and `result.json`. A study's
directory holds `study.json` and one WORKDIR per trial at `<condition>/<search>/<trial>/`, each with
`hparams.json`. One rule protects them: a file is written whole, under a name of its own until it is
renamed, and has a checksum. A JSON file holds its own, in the field `sha256`; that of
`metrics.jsonl`, which grows by lines, is in each checkpoint and in `result.json`. A file that does
not match its checksum is `Damaged`, and nothing in it is used. WORKDIR needs a POSIX file system.
"""

import dataclasses
import hashlib
import itertools
import json
import math
import os
import pathlib
import re
import secrets
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from configs import base

# Records of other versions are refused.
SCHEMA_VERSION = 12

CONFIG, METRICS, RESULT = "config.json", "metrics.jsonl", "result.json"
STUDY, HPARAMS = "study.json", "hparams.json"
ORIGIN = ("commit", "packages", "hardware")  # in config.json and study.json
RESUMED = "resumed"  # in config.json: what the run resumed with; see origins.py
LOCK = "lock"  # held by the process that trains in this directory
CHECKPOINTS, TENSORBOARD, PROFILE = "checkpoints", "tensorboard", "profile"
TRACKED = "trackers.json"  # the run's identities with experiment trackers
MIRROR = "mirror.json"  # whose mirror it is; also in the mirror
DAMAGED = "damaged"  # unusable files and directories, kept for inspection
DECISIONS = "echo_decisions.jsonl"  # of echo.policy=auto: fresh examples taken in each step
EVALUATION, PARAMETERS = "evaluation.json", "parameters.npz"  # of a run's best checkpoint

# Every way a run ends. A search may count COUNTABLE trials. A FINISHED run is never trained again;
# others resume when started again. An ENDED one has ended by itself: a preempted one was stopped.
COUNTABLE = ("reached", "exhausted")
FINISHED = (*COUNTABLE, "diverged")
ENDED = (*FINISHED, "failed")
STATUSES = (*ENDED, "preempted")


@dataclasses.dataclass(frozen=True)
class Target:
    """The goal of a run: a metric at or beyond `value`, on the side `mode`: 'above' or 'below'."""

    metric: str
    value: float
    mode: str

    def reached(self, value: float) -> bool:
        """Whether `value` is at or beyond the target (NaN never is)."""
        return value >= self.value if self.mode == "above" else value <= self.value

    def better(self, value: float, than: float | None) -> bool:
        """Whether `value` is strictly better than `than`. Any finite number beats None; NaN and
        infinities beat nothing."""
        if than is None or not math.isfinite(value):
            return math.isfinite(value)
        return value > than if self.mode == "above" else value < than


def is_share(metric: str) -> bool:
    """Whether a metric is a share, from 0 to 1, which training raises: accuracy, and COCO's metrics
    of detection (mAP, AP50, AR_large)."""
    return re.fullmatch(r"accuracy|mAP|A[PR]_?\w+", metric) is not None


def check_target_value(name: str, target: Target) -> None:
    """Checks that the target of a share is not a percentage; raises ValueError. `name` is what the
    user calls the value."""
    if is_share(target.metric) and target.value > 2:
        raise ValueError(
            f"{name} is {target.value:g}, which {target.metric}, a share, cannot reach; allowed: "
            f"0 to 1, such as 0.9 (up to 2 for a target that no run reaches)"
        )


# What a run has used: CPU seconds while it trained, and bytes of the records read.
USED = ("core_seconds", "bytes_read")

# Counts of examples that were damaged, with dataset.damaged=skip.
SKIPPED = ("skipped_examples", "skipped_validation_examples")


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
            `input_wait_fraction` at the end, None where unknown; perhaps USED and SKIPPED.
        best: the best validation value, {metric, value, fresh_examples}; None if there is none.
        error: why the run diverged or failed.
    """
    reached = position if status == "reached" else {}
    none = {"metric": target.metric, "value": None, "fresh_examples": None, "step": None}
    at = ("step", "fresh_examples", "train_seconds", "wall_seconds", "input_wait_fraction")
    return {
        "status": status,
        "target": dataclasses.asdict(target),
        "fresh_examples_to_target": reached.get("fresh_examples"),
        "steps_to_target": reached.get("step"),
        "seconds_to_target": reached.get("train_seconds"),
        "best": best or none,
        **{name: position[name] for name in at},
        **{name: position.get(name) for name in USED},
        **{name: position[name] for name in SKIPPED if name in position},
        **({"error": redacted(error)} if error else {}),
    }


# --- Writing


def write_json(path: str | os.PathLike, value: Mapping[str, Any]) -> None:
    """Writes an object as JSON with its checksum at `path`, atomically."""
    plain = json.loads(json.dumps(value, allow_nan=False))  # as it will be read: lists for tuples
    content = plain | {"sha256": _checksum(plain)}
    write_bytes(path, (json.dumps(content, indent=2) + "\n").encode())


def write_bytes(path: str | os.PathLike, content: bytes) -> None:
    """Writes a file atomically: writes a temporary file, forces it to disk, and renames it."""
    path = pathlib.Path(path)
    # a random name, since process numbers repeat between containers and machines
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        with temporary.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def free_path(directory: pathlib.Path, name: str) -> pathlib.Path:
    """A path in `directory`, which is created, where nothing is: `name`, `name.1`, `name.2`, ..."""
    directory.mkdir(exist_ok=True)
    names = itertools.chain([name], (f"{name}.{number}" for number in itertools.count(1)))
    return next(directory / free for free in names if not os.path.lexists(directory / free))


# --- Reading


class Damaged(ValueError):
    """A record is not what was written; the message names the file and gives the reason."""


def read_json(path: str | os.PathLike) -> dict[str, Any]:
    """The object that `write_json` wrote at `path`; empty if there is no such file.

    Raises:
        Damaged: the file is not as it was written, or of another schema version.
    """
    content, name = read_bytes(path), pathlib.Path(path).name
    if content is None:
        return {}
    value = _object(content, name)
    checksum, version = value.pop("sha256", None), value.get("schema_version", SCHEMA_VERSION)
    if version != SCHEMA_VERSION:
        raise Damaged(
            f"{name} is of schema version {version}, and this code reads {SCHEMA_VERSION} (use the "
            "code that wrote it)"
        )
    if checksum != _checksum(value):
        raise Damaged(f"{name} has changed since it was written")
    return value


def intact_result(workdir: pathlib.Path) -> dict[str, Any]:
    """The content of result.json, empty if it does not exist or is damaged."""
    try:
        return read_json(workdir / RESULT)
    except Damaged:
        return {}


def read_bytes(path: str | os.PathLike) -> bytes | None:
    """The content of a file, or None if there is no such file; raises Damaged if it is a directory,
    or cannot be read."""
    path = pathlib.Path(path)
    try:
        if path.exists() and not path.is_file():  # to open a named pipe would wait for a writer
            raise Damaged(f"{path.name} is not a file")
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except PermissionError as error:
        raise Damaged(f"{path.name} cannot be read: {error.strerror}") from error


def _object(content: bytes, name: str) -> dict[str, Any]:
    try:
        value = json.loads(content)
    except (ValueError, RecursionError) as error:  # also from UTF-8, or thousands of digits
        raise Damaged(f"{name} is not JSON: {error}") from error
    if not isinstance(value, dict):
        raise Damaged(f"{name} holds {type(value).__name__}, not an object")
    return value


def _checksum(value: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()


# --- Files that grow by lines


@dataclasses.dataclass(frozen=True)
class Extent:
    """The first `bytes` of a file, and their SHA-256 in hexadecimal."""

    bytes: int = 0
    sha256: str = hashlib.sha256().hexdigest()

    def missing_from(self, path: str | os.PathLike) -> str:
        """The reason why `path` does not begin with this extent; '' if it does."""
        there, name = _extent((read_bytes(path) or b"")[: self.bytes]), pathlib.Path(path).name
        if there.bytes < self.bytes:
            return f"{name} has {there.bytes:,} of its {self.bytes:,} bytes"
        return "" if there == self else f"{name} has changed since it was written"


def _extent(content: bytes) -> Extent:
    return Extent(len(content), hashlib.sha256(content).hexdigest())


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
        # of what is written here, so that what is changed while the run lasts is noticed
        self._sha256 = hashlib.sha256(self._file.read())

    def write(self, record: dict[str, Any]) -> None:
        """Appends a record. Numbers that JSON cannot represent (NaN, infinities) become null."""
        line = json.dumps(without_nonfinite(record), allow_nan=False).encode() + b"\n"
        self._file.write(line)
        self._file.flush()
        self._sha256.update(line)

    def sync(self) -> Extent:
        """Forces the file to disk; returns its extent."""
        os.fsync(self._file.fileno())
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
    """The records of `metrics.jsonl`, without a last line that a crash cut off; empty before the
    run has begun.

    Raises:
        Damaged: a line is not a JSON object, or the file is not the one that result.json covers.
    """
    path = pathlib.Path(workdir) / METRICS
    content = read_bytes(path) or b""
    if covered := read_json(path.with_name(RESULT)).get("records"):
        extent = Extent(**covered[METRICS])
        if why := extent.missing_from(path):
            raise Damaged(why)
        if len(content) > extent.bytes:
            raise Damaged(f"{METRICS} has grown since {RESULT} was written")
    lines = content.split(b"\n")[:-1]
    return [_object(line, f"{METRICS}, line {n},") for n, line in enumerate(lines, start=1)]


def read_decisions(path: str | os.PathLike) -> tuple[list[list[int]], int]:
    """The decisions in `path` from step 1 up to the first damaged or missing line.

    Returns:
        The fresh examples of each stream, for each step; and the length of these lines in bytes.
    """
    decisions, length = [], 0
    for step, line in enumerate((read_bytes(path) or b"").split(b"\n")[:-1], start=1):
        try:
            decision = _object(line, "")
        except Damaged:
            break
        fresh = decision.get("fresh")
        whole = isinstance(fresh, list) and all(type(number) is int for number in fresh)
        if decision.get("step") != step or not whole:
            break
        decisions.append(fresh)
        length += len(line) + 1
    return decisions, length


# In a URL: a user and password, which may contain a slash or an @; and a value named as a secret.
_PASSWORD = re.compile(r"(://)(?:[^/\s'\"]*|[^/\s'\":]*:(?!\d+/)[^\s'\"]*)(?=@)")
_NAMED = r"token|secret|passw|key|sig|credential|auth"
_SECRET = re.compile(rf"([?&][^=&\s]*(?:{_NAMED})[^=&\s]*=)[^&\s'\"]+", re.IGNORECASE)


def redacted(text: str) -> str:
    """A text without passwords, tokens, and keys in URLs, for messages and records."""
    return _SECRET.sub(r"\1***", _PASSWORD.sub(r"\1***", text))


def plain(text: object, max_length: int | None = None) -> str:
    """Text as one printable line, cut to `max_length` characters."""
    line = " ".join("".join(c if c.isprintable() else " " for c in str(text)).split())
    if max_length is None or len(line) <= max_length:
        return line
    return f"{line[: max_length - 3]}..."


# --- Nested configurations


def nested(config: Any, path: str) -> Any:
    """The value at a dotted path of a nested dict or ConfigDict; None if there is none."""
    for key in path.split("."):
        if not hasattr(config, "items") or key not in config:
            return None
        config = config[key]
    return config


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """The values of nested mappings, by dotted name; an empty mapping is a value."""
    values: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, Mapping) and value:
            values |= flat(value, f"{prefix}{name}.")
        else:
            values[f"{prefix}{name}"] = value
    return values


def differences(
    there: Mapping[str, Any], here: Mapping[str, Any], may_change: Collection[str]
) -> list[str]:
    """Fields that differ but must not, such as 'echo.factor (2.0 there, 4.0 here)'. A field that
    did not exist then had its default."""
    defaults = {field.name: field.default for field in base.FIELDS}
    old, new = ({**defaults, **flat(config)} for config in (there, here))
    return [
        f"{name} ({old.get(name)!r} there, {new.get(name)!r} here)"
        for name in sorted({*old, *new})
        if old.get(name) != new.get(name) and name not in may_change
    ]


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
    places = [
        TrialPath(trial.parts[-3], int(trial.parts[-2]), int(trial.name))
        for trial in pathlib.Path(study_dir).glob("*/*/*")
        if all(map(is_numbered, trial.parts[-2:])) and trial.is_dir()
    ]
    for place in sorted(places, key=dataclasses.astuple):
        yield place, place.under(study_dir)


def is_numbered(name: str) -> bool:
    """Whether a name is that of a search, a trial, or a checkpoint: 0 or 10, but not 010."""
    return whole_number(name) >= 0 and name == str(whole_number(name))


def whole_number(text: str) -> int:
    """The number that a text of at most 18 digits is; -1 for any other text, such as '²'."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else -1
