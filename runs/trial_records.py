"""Reads and checks the records of one trial.

A file that was truncated, overwritten, or replaced raises `records.Damaged`, which names the file
and the reason. Numbers are checked too: a count of 1e30 or a time of "soon" would only fail much
later, in the code that computes with it.
"""

import dataclasses
import math
import operator
import os
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from runs import records
from runs.records import Damaged
from runs.study import (
    CADENCE,
    MAY_DIFFER_IN_TRIALS,
    Study,
    flat,
    is_number,
    nested,
    parse_target,
    short,
)

_RESULT_COUNTS = ("fresh_examples_to_target", "steps_to_target", "step", "fresh_examples")
_RESULT_SECONDS = ("seconds_to_target", "train_seconds", "wall_seconds")
_RESULT_OBJECTS = {
    "best": ("metric", "value", "fresh_examples"),
    "target": ("metric", "value", "mode"),
}
_EVALUATION_COUNTS = ("step", "fresh_examples")
_PACKED = 1e-8  # packed records have nine significant digits (analysis/archive.py)


@dataclasses.dataclass(frozen=True)
class TrialRecords:
    """The records in a trial's directory.

    Attributes:
        config: the content of config.json; empty before the run has started.
        search: the content of hparams.json: the hyperparameters that a search drew, and how many
            trials shared the machine; empty for a single run.
        result: the content of result.json; empty until the trial has ended.
        metrics: the records of metrics.jsonl.
    """

    config: dict[str, Any]
    search: dict[str, Any]
    result: dict[str, Any]
    metrics: list[dict[str, Any]]

    @property
    def validation(self) -> list[dict[str, Any]]:
        return [record for record in self.metrics if record.get("split") == "validation"]


def read(
    workdir: str | os.PathLike,
    place: records.TrialPath | None = None,
    study: Study | None = None,
) -> TrialRecords:
    """All records of a trial.

    Args:
        workdir: its directory.
        place: its place in its study; None for a single run.
        study: that study.

    Raises:
        Damaged: a record is not what was written; they are of another condition, search, or trial
            than `place`: copied there, they would count twice; or they are of another plan or
            other data than the study's, as on a machine whose command or files differed.
    """
    workdir = pathlib.Path(workdir)
    trial = TrialRecords(
        read_config(workdir), read_hparams(workdir), read_result(workdir), read_metrics(workdir)
    )
    # a trial whose workers were killed before it began has failed without any other record
    began = trial.metrics or trial.result.get("status") != "failed"
    if trial.result and began and not trial.config:
        raise Damaged(f"{records.CONFIG} is missing, but {records.RESULT} exists")
    if place and trial.result and not trial.search:
        raise Damaged(f"{records.HPARAMS} is missing, but {records.RESULT} exists")
    for name, own in dataclasses.asdict(place).items() if place else ():
        if trial.search.get(name, own) != own:
            raise Damaged(f"{records.HPARAMS} is of {name} {short(trial.search[name])}")
    _check_last_evaluation(trial.result, trial.validation)
    _check_best(trial.result, trial.validation)
    if place and study and trial.config:
        _check_planned(trial, place, study)
        check_data(trial.config, place, study)
    return trial


def _check_planned(trial: TrialRecords, place: records.TrialPath, study: Study) -> None:
    """Checks that a trial has the configuration that its study plans for it; raises Damaged.

    Fields that only one of the records has are as old, or as new, as that record.
    """
    recorded = trial.search.get("hparams") or {}
    hparams = {axis.field: recorded[axis.field] for axis in study.space if axis.field in recorded}
    for axis in study.space:
        value = hparams.get(axis.field)
        if (axis.values or is_number(value)) and value is not None and not axis.draws(value):
            raise Damaged(
                f"{records.HPARAMS}: {axis.field} is {short(value)}, which the search of the study "
                f"does not draw ({axis})"
            )
    condition = study.condition(place.condition)
    planned = study.settings | study.trial_settings(condition, place.search, place.trial, hparams)
    unknown = {axis.field for axis in study.space if axis.field not in hparams}
    # versions 1 and 2 did not divide it by the copies of an example, and studies of best values did
    if study.scores_values or records.schema_version(trial.config) != records.SCHEMA_VERSION:
        unknown.add(CADENCE)
    for name, value in flat(trial.config.get("config") or {}).items():
        own = planned.get(name, value)
        same = own == value or (isinstance(own, str) and _reads_as(own, value))
        if not same and name not in unknown and name not in MAY_DIFFER_IN_TRIALS:
            raise Damaged(
                f"{records.CONFIG} is of another plan: {name} is {short(value)}, and the study's "
                f"is {short(own)}"
            )


def _reads_as(text: str, value: Any) -> bool:
    """Whether a field reads `text`, as which a study may give any value, as `value`."""
    if isinstance(value, bool):
        return text.lower() in (("true", "1") if value else ("false", "0"))
    try:
        return is_number(value) and float(text) == value
    except ValueError:
        return False


def check_data(config: Mapping[str, Any], place: records.TrialPath, study: Study) -> None:
    """Checks that a trial, given its config.json, has the data of its study; raises Damaged.

    A study whose condition or search chooses the data says nothing about them.
    """
    varied = {*study.condition(place.condition).overrides, *(axis.field for axis in study.space)}
    if any(name.startswith("dataset.") for name in varied - {"dataset.spaced_epochs"}):
        return
    own, planned = (nested(r, "dataset.fingerprint") for r in (config, study.record))
    if own is not None and planned is not None and own != planned:
        raise Damaged(
            f"{records.CONFIG} is of other data (fingerprint {short(own)}, and the study's is "
            f"{short(planned)})"
        )


def read_config(workdir: pathlib.Path) -> dict[str, Any]:
    """The content of config.json, empty if it does not exist; raises Damaged."""
    config = records.read_object(workdir / records.CONFIG) or {}
    for name in ("config", "dataset"):
        _check_kind(records.CONFIG, config, name, dict)
    _check_origin(records.CONFIG, config)
    _check_kind(records.CONFIG, config, "schema_version", int)
    _check_kind(records.CONFIG, config, records.RESUMED, list)
    where = f"{records.CONFIG}, {records.RESUMED}"
    for entry in config.get(records.RESUMED) or ():
        if not isinstance(entry, dict):
            raise Damaged(f"{where}: {short(entry)} is not an object")
        _check_present(where, entry, ("step", *records.ORIGIN, "fields"))
        _check_counts(where, entry, ("step",))
        _check_origin(where, entry)
        for name, kind in (("step", int), ("fields", dict)):
            if not isinstance(entry[name], kind):
                raise Damaged(f"{where}: {name} is {short(entry[name])}, not {_KINDS[kind]}")
    return config


def _check_origin(where: str, values: Mapping[str, Any]) -> None:
    _check_kind(where, values, "commit", str)
    for name in ("packages", "hardware"):
        _check_kind(where, values, name, dict)


def read_hparams(workdir: pathlib.Path) -> dict[str, Any]:
    """The content of hparams.json, empty if it does not exist; raises Damaged."""
    record = records.read_object(workdir / records.HPARAMS) or {}
    _check_kind(records.HPARAMS, record, "hparams", dict)
    for name, value in (record.get("hparams") or {}).items():
        if not name.isprintable() or (isinstance(value, str) and not value.isprintable()):
            raise Damaged(f"{records.HPARAMS}: {short(name)} is {short(value)}, which is no text")
        if not isinstance(value, str | bool):
            _number(records.HPARAMS, {name: value}, name, -math.inf)
    _check_counts(records.HPARAMS, record, ("lanes", "workers"))
    return record


def read_result(workdir: pathlib.Path) -> dict[str, Any]:
    """The content of result.json, empty if it does not exist; raises Damaged."""
    result = records.read_object(workdir / records.RESULT)
    if result is None:
        return {}
    _check_present(records.RESULT, result, ("status",))
    if result["status"] not in records.STATUSES:
        allowed = ", ".join(records.STATUSES)
        raise Damaged(f"{records.RESULT}: status is {short(result['status'])}; allowed: {allowed}")
    for name in _RESULT_OBJECTS:
        _check_kind(records.RESULT, result, name, dict)
        holder = result.get(name) or {}
        _number(records.RESULT, holder, "value", -math.inf)
        _check_counts(records.RESULT, holder, ("fresh_examples",))
    _check_counts(records.RESULT, result, _RESULT_COUNTS)
    for name in _RESULT_SECONDS:
        _number(records.RESULT, result, name, 0.0)
    names = (*_RESULT_COUNTS, *_RESULT_SECONDS, "input_wait_fraction")
    _check_present(records.RESULT, result, names)
    for name, members in _RESULT_OBJECTS.items():
        _check_present(f"{records.RESULT}, {name}", result.get(name) or {}, members)
    try:
        parse_target(result["target"])
    except ValueError as error:
        raise Damaged(f"{records.RESULT}: {error}") from error
    return result


def intact_result(workdir: pathlib.Path) -> dict[str, Any]:
    """The content of result.json, empty if it does not exist or is damaged."""
    try:
        return read_result(workdir)
    except Damaged:
        return {}


def read_metrics(workdir: pathlib.Path) -> list[dict[str, Any]]:
    """The records of metrics.jsonl; those of evaluations are checked. Raises Damaged."""
    metrics = records.read_metrics(workdir)
    for number, record in enumerate(metrics, start=1):
        if record.get("split") == "validation" and not _is_evaluation(record):
            where = f"{records.METRICS}, line {number}"
            for name in (*_EVALUATION_COUNTS, "train_seconds"):
                if record.get(name) is None:
                    raise Damaged(f"{where}: {name!r} is missing")
            _check_counts(where, record, _EVALUATION_COUNTS)
            _number(where, record, "train_seconds", 0.0)
            for name in record.keys() - {"split", "train_seconds", *_EVALUATION_COUNTS}:
                _number(where, record, name, -math.inf)
    return metrics


def _is_evaluation(record: Mapping[str, Any]) -> bool:
    """Whether a record is that of an evaluation, by a check that is quick and may miss some."""
    step, fresh = (record.get(name, -1) for name in _EVALUATION_COUNTS)
    seconds = record.get("train_seconds", -1)
    if not (type(step) is type(fresh) is int and type(seconds) is float):
        return False
    values = [value for name, value in record.items() if name != "split" and value is not None]
    if not set(map(type, values)) <= {int, float}:
        return False
    try:
        finite = math.isfinite(sum(values))
    except OverflowError:
        return False
    return finite and min(step, fresh, seconds) >= 0 and max(step, fresh) <= records.MAX_COUNT


def _check_last_evaluation(
    result: Mapping[str, Any], validation: Sequence[Mapping[str, Any]]
) -> None:
    """Checks that a trial that reached its end was evaluated there, and its target not before."""
    if result.get("status") in records.COUNTABLE and result.get("step") is not None:
        start = {"step": 0, "fresh_examples": 0}
        last = validation[-1] if validation else start
        for name, noun in (("step", "step"), ("fresh_examples", "fresh example")):
            if result[name] is not None and last[name] != result[name]:
                raise Damaged(
                    f"{records.METRICS} has its last evaluation at {noun} {last[name]}, but "
                    f"{records.RESULT} is of {noun} {result[name]}"
                )
    if result.get("status") == "reached":
        target = parse_target(result["target"])
        for record in validation[:-1]:
            value = record.get(target.metric)
            if value is not None and target.reached(value):
                raise Damaged(
                    f"{records.METRICS} was at the target at step {record['step']}, but "
                    f"{records.RESULT} is of step {result.get('step')}"
                )


def _check_best(result: Mapping[str, Any], validation: Sequence[Mapping[str, Any]]) -> None:
    """Checks that the best value of a finished trial is that of its curve, which may be thinned and
    shortened, but keeps it (analysis/archive.py)."""
    if result.get("status") not in records.FINISHED:
        return  # a run that resumed may have been evaluated since
    target, best = parse_target(result["target"]), result.get("best") or {}
    values = [
        (record[target.metric], record["fresh_examples"])
        for record in validation
        if record.get(target.metric) is not None
    ]
    value, fresh = best.get("value"), best.get("fresh_examples")
    if not values and value is None:
        return
    own, at = None, None
    if values:
        best_of = max if target.mode == "above" else min
        own, at = best_of(values, key=operator.itemgetter(0))
        equal = {at for other, at in values if math.isclose(other, own, rel_tol=_PACKED)}
        if value is not None and math.isclose(value, own, rel_tol=_PACKED) and fresh in equal:
            return
    raise Damaged(
        f"{records.METRICS} has its best {target.metric} {short(own)} at fresh example {at}, but "
        f"{records.RESULT} has {short(value)} at {fresh}"
    )


def _check_present(where: str, values: Mapping[str, Any], names: Sequence[str]) -> None:
    for name in names:
        if name not in values:
            raise Damaged(f"{where}: {name!r} is missing")


def _check_kind(file: str, values: Mapping[str, Any], name: str, kind: type) -> None:
    value = values.get(name)
    if value is not None and not isinstance(value, kind):
        raise Damaged(f"{file}: {name} is {short(value)}, not {_KINDS[kind]}")


_KINDS = {dict: "an object", list: "a list", str: "text", int: "a whole number"}


def _check_counts(file: str, values: Mapping[str, Any], names: Sequence[str]) -> None:
    for name in names:
        value = _number(file, values, name, 0)
        if value is not None and (value != int(value) or value > records.MAX_COUNT):
            raise Damaged(f"{file}: {name} is {short(value)}, not a whole number up to 2^53")


def _number(file: str, values: Mapping[str, Any], name: str, minimum: float) -> float | None:
    """The finite number `name`, None if it is missing; raises Damaged."""
    value = values.get(name)
    if value is None:
        return None
    if not is_number(value):
        raise Damaged(f"{file}: {name} is {short(value)}, not a number")
    if value < minimum:
        raise Damaged(f"{file}: {name} is {short(value)}, below {minimum:g}")
    return value
