"""The records of one trial, read and checked: what may be relied on by whoever reads them.

A file that was cut, overwritten or replaced by something else raises `records.Damaged`, which names
it and says why. Numbers are looked at too, since a count of 1e30 or a time of "soon" would only
fail much later, in whatever computes with it.
"""

import dataclasses
import math
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from runs import records
from runs.records import Damaged
from runs.study import is_number, short

_MOST = 2**53  # of a count: above, numbers of JSON are no longer exact

_RESULT_COUNTS = ("fresh_examples_to_target", "steps_to_target", "step", "fresh_examples")
_RESULT_SECONDS = ("seconds_to_target", "train_seconds", "wall_seconds")
_PLACE_COUNTS = ("step", "fresh_examples")  # of every evaluation


@dataclasses.dataclass(frozen=True)
class TrialRecords:
    """What a trial's directory says.

    Attributes:
        config: the content of config.json, empty before the run has begun.
        hparams: what a search drew, by field; None where no search did.
        result: the content of result.json, empty while the trial is not over.
        metrics: the records of metrics.jsonl.
    """

    config: dict[str, Any]
    hparams: dict[str, Any] | None
    result: dict[str, Any]
    metrics: list[dict[str, Any]]

    @property
    def validation(self) -> list[dict[str, Any]]:
        return [record for record in self.metrics if record.get("split") == "validation"]


def read(workdir: str | os.PathLike) -> TrialRecords:
    """All records of a trial; raises Damaged."""
    workdir = pathlib.Path(workdir)
    found = TrialRecords(
        read_config(workdir), read_hparams(workdir), read_result(workdir), read_metrics(workdir)
    )
    if found.result and not found.config:
        raise Damaged(f"{records.CONFIG} is missing, beside a {records.RESULT}")
    _check_whole(found.result, found.validation)
    return found


def read_config(workdir: pathlib.Path) -> dict[str, Any]:
    """The content of config.json, empty where there is none; raises Damaged."""
    found = records.read_object(workdir / records.CONFIG) or {}
    for name in ("config", "dataset", "hardware", "packages"):
        _check_kind(records.CONFIG, found, name, dict)
    _check_kind(records.CONFIG, found, "commit", str)
    _check_kind(records.CONFIG, found, "schema_version", int)
    return found


def read_hparams(workdir: pathlib.Path) -> dict[str, Any] | None:
    """What a search drew, None where there is no hparams.json; raises Damaged."""
    found = records.read_object(workdir / records.HPARAMS) or {}
    _check_kind(records.HPARAMS, found, "hparams", dict)
    for name, value in (found.get("hparams") or {}).items():
        if not name.isprintable() or (isinstance(value, str) and not value.isprintable()):
            raise Damaged(f"{records.HPARAMS}: {short(name)} is {short(value)}, which is no text")
        if not isinstance(value, str | bool):
            _number(records.HPARAMS, {name: value}, name, -math.inf)
    return found.get("hparams")


def read_result(workdir: pathlib.Path) -> dict[str, Any]:
    """The content of result.json, empty where there is none; raises Damaged."""
    found = records.read_object(workdir / records.RESULT)
    if found is None:
        return {}
    if "status" not in found:
        raise Damaged(f"{records.RESULT}: 'status' is missing")
    if found["status"] not in records.STATUSES:
        allowed = ", ".join(records.STATUSES)
        raise Damaged(f"{records.RESULT}: status is {short(found['status'])}; allowed: {allowed}")
    _check_kind(records.RESULT, found, "best", dict)
    _check_kind(records.RESULT, found, "target", dict)
    best = found.get("best") or {}
    _number(records.RESULT, best, "value", -math.inf)
    _check_counts(records.RESULT, best, ("fresh_examples",))
    _check_counts(records.RESULT, found, _RESULT_COUNTS)
    for name in _RESULT_SECONDS:
        _number(records.RESULT, found, name, 0.0)
    return found


def read_metrics(workdir: pathlib.Path) -> list[dict[str, Any]]:
    """The records of metrics.jsonl, those of evaluations checked; raises Damaged."""
    found = records.read_metrics(workdir)
    for number, record in enumerate(found, start=1):
        if record.get("split") == "validation":
            where = f"{records.METRICS}, line {number}"
            for name in (*_PLACE_COUNTS, "train_seconds"):
                if record.get(name) is None:
                    raise Damaged(f"{where}: {name!r} is missing")
            _check_counts(where, record, _PLACE_COUNTS)
            _number(where, record, "train_seconds", 0.0)
            for name in record.keys() - {"split", "train_seconds", *_PLACE_COUNTS}:
                _number(where, record, name, -math.inf)
    return found


def _check_whole(result: Mapping[str, Any], validation: Sequence[Mapping[str, Any]]) -> None:
    """A trial that trained to its end was evaluated there."""
    if result.get("status") in ("reached", "exhausted") and result.get("step") is not None:
        last = validation[-1]["step"] if validation else 0
        if last != result["step"]:
            raise Damaged(
                f"{records.METRICS} has its last evaluation at step {last}, and "
                f"{records.RESULT} is of step {result['step']}"
            )


def _check_kind(file: str, values: Mapping[str, Any], name: str, kind: type) -> None:
    value = values.get(name)
    if value is not None and not isinstance(value, kind):
        raise Damaged(f"{file}: {name} is {short(value)}, not {_KINDS[kind]}")


_KINDS = {dict: "an object", str: "text", int: "a whole number"}


def _check_counts(file: str, values: Mapping[str, Any], names: Sequence[str]) -> None:
    for name in names:
        value = _number(file, values, name, 0)
        if value is not None and (value != int(value) or value > _MOST):
            raise Damaged(f"{file}: {name} is {short(value)}, not a whole number up to 2^53")


def _number(file: str, values: Mapping[str, Any], name: str, least: float) -> float | None:
    """The finite number under `name`, None where there is none; raises Damaged."""
    value = values.get(name)
    if value is None:
        return None
    if not is_number(value):
        raise Damaged(f"{file}: {name} is {short(value)}, not a number")
    if value < least:
        raise Damaged(f"{file}: {name} is {short(value)}, below {least:g}")
    return value
