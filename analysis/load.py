"""Reads the records of a study: one row per trial, one row per evaluation.

Trial directories that cannot be read, or are not of their study, are set aside and named; the rest
is analyzed.
"""

import dataclasses
import math
import os
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from analysis import archive
from analysis.archive import PLACE
from runs import origins, records, trial_records
from runs.cli import InputError
from runs.progress import several
from runs.records import check_target_value, nested, plain
from runs.study import Study

UNFINISHED = "unfinished"  # no result.json yet
THEN = ", then "  # between the devices, or the commits, of a trial that resumed with another

SETTINGS = ("label", "insertion", "factor", "shuffle_buffer", "batch_size")
_HEAD = ("condition", *SETTINGS, "search", "trial")
# The columns at the target, by the field of an evaluation that they hold.
_AT_TARGET = {
    "fresh_examples": "fresh_examples_to_target",
    "step": "steps_to_target",
    "train_seconds": "seconds_to_target",
}
# The columns that follow the hyperparameters, with their types.
_TAIL: dict[str, Any] = {
    "status": object,
    **dict.fromkeys(("fresh_examples_to_target", "steps_to_target"), "Int64"),
    **dict.fromkeys(("seconds_to_target", "fresh_examples_before_target"), float),
    **dict.fromkeys(("seconds_before_target", "best_value"), float),
    **dict.fromkeys(("best_fresh_examples", "steps", "fresh_examples"), "Int64"),
    "train_seconds": float,
    "counted": bool,
    **dict.fromkeys(("model_seed", "lanes", "workers"), "Int64"),
    "evaluation_interval": float,
    **dict.fromkeys(("device", "commit", "path"), object),
}
_MAX_LISTED = 12  # a study may have thousands of searches


@dataclasses.dataclass(frozen=True)
class LoadedStudy:
    """A study and the records of its trials.

    Attributes:
        study: the plan.
        trials: one row per trial, see `read`.
        set_aside: (directory, reason) of each trial whose records are damaged, or of another plan
            or other data than the study's.
    """

    study: Study
    trials: pd.DataFrame
    set_aside: Sequence[tuple[pathlib.Path, str]] = ()

    def warning(self, root: str | os.PathLike | None = None) -> str | None:
        """One sentence that names what was set aside, relative to `root`; None if nothing was."""
        if not self.set_aside:
            return None
        shown = ((os.path.relpath(p, root) if root else p, why) for p, why in self.set_aside)
        named = listed([plain(f"{path} ({reason})") for path, reason in shown], "; ")
        return f"Set aside {several(len(self.set_aside), 'unusable trial')}: {named}."


def listed(parts: Sequence[str], separator: str = ", ") -> str:
    """A list whose items beyond the first dozen are counted."""
    more = [f"and {len(parts) - _MAX_LISTED:,} more"] if len(parts) > _MAX_LISTED else []
    return separator.join([*parts[:_MAX_LISTED], *more])


def read(directory: str | os.PathLike, target: float | None = None, study: str = "") -> LoadedStudy:
    """Reads the trials of a study.

    Args:
        directory: that of the study, with study.json; or a trials.parquet (archive.py).
        target: judge the trials at this value of the study's metric, from their curves.
        study: its name, if a trials.parquet has several.

    Returns:
        Its `trials` are ordered by condition, search, and trial: condition, label, insertion,
        factor, shuffle_buffer, batch_size, search, trial, one column per hyperparameter (by dotted
        name), status, fresh_examples_to_target, steps_to_target, seconds_to_target (missing if the
        target was not reached), fresh_examples_before_target, seconds_before_target (at the
        evaluation before that one, 0 if there was none; missing likewise), best_value,
        best_fresh_examples, steps, fresh_examples, train_seconds, counted, model_seed, lanes
        (trials that took turns on its input), workers (processes that shared the machine),
        evaluation_interval (fresh examples), device, commit (all of a trial that resumed with
        others, separated by THEN), path.

    Raises:
        InputError: no such directory, no records in it, or a target in percent.
    """
    root = pathlib.Path(directory)
    if root.name == archive.TRIALS:
        return _published(root, target, study)
    if study:
        raise InputError(f"--study is {study!r}, but {root} is no {archive.TRIALS}; leave it out")
    if not (root / records.STUDY).exists():
        raise InputError(f"{root} has no {records.STUDY}; give the directory of one study")
    try:
        plan = _at_target(Study.read(root), target)
    except records.Damaged as error:
        why = plain(str(error))
        raise InputError(f"{root / records.STUDY} is not readable ({why}); restore it") from error
    known = {condition.name for condition in plan.conditions}
    rows, set_aside = [], []
    for place, path in records.trials_on_disk(root):
        try:
            if place.condition not in known:
                raise records.Damaged(f"its condition is not in {records.STUDY}")
            rows.append(_row(place, path, plan))
        except records.Damaged as error:
            set_aside.append((path, plain(str(error))))
    if not rows:
        unusable = "".join(f"; unusable is {path}: {reason}" for path, reason in set_aside[:1])
        raise InputError(f"no trials in {root}{unusable}; start the study, or restore its trials")
    return LoadedStudy(plan, _table(rows, plan), tuple(set_aside))


def _published(file: pathlib.Path, target: float | None, name: str) -> LoadedStudy:
    study, rows = archive.read(file, name)
    loaded = LoadedStudy(study, _table(rows.to_dict("records"), study))
    judged = _at_target(study, target)
    if judged.target == study.target:
        return loaded
    points = curves(loaded.trials, judged.target.metric)
    if points.empty:
        raise InputError(f"--target needs curves, which {archive.CURVES} does not have of {name}")
    curve_of = {place: own.to_dict("records") for place, own in points.groupby(PLACE)}
    scores = [
        _score(curve_of.get(place, ()), "value", judged.target)
        for place in loaded.trials[PLACE].itertuples(index=False, name=None)
    ]
    trials = loaded.trials.assign(**pd.DataFrame(scores)).astype(loaded.trials.dtypes)
    return LoadedStudy(judged, trials.assign(counted=counted(trials, judged)))


def _at_target(study: Study, value: float | None) -> Study:
    """The study with another value of its target (None: its own); raises InputError if that is not
    finite, or a percentage of a metric that is a share."""
    if value is None:
        return study
    target = dataclasses.replace(study.target, value=value)
    try:
        if not math.isfinite(value):
            raise ValueError(f"--target is {value}; allowed: a finite number such as 0.95")
        check_target_value("--target", target)
    except ValueError as error:
        raise InputError(str(error)) from error
    return dataclasses.replace(study, target=target)


def curves(trials: pd.DataFrame, metric: str) -> pd.DataFrame:
    """The validation records of `trials`: condition, label, insertion, factor, search, trial, step,
    fresh_examples, train_seconds, value (of `metric`; missing if it was not finite). Published
    records have the target's metric only, and no train_seconds.

    Raises:
        InputError: no evaluation has this metric.
    """
    kept = ["condition", "label", "insertion", "factor", "search", "trial"]
    names = ("step", "fresh_examples", "train_seconds", metric)
    if len(trials) and (file := archive.place(trials["path"].iloc[0])):
        return _published_curves(trials, *file, kept)
    points, recorded = [], set()
    for row, path in zip(trials.index, trials["path"], strict=True):
        evaluations = trial_records.read(path).validation
        recorded.update(*evaluations[:1])
        points += [(row, *map(record.get, names)) for record in evaluations]
    if recorded and metric not in recorded:
        raise InputError(f"metric is {metric!r}, which no evaluation has")
    columns = ["row", *names[:-1], "value"]
    types = dict.fromkeys(columns, float) | dict.fromkeys(columns[:3], int)
    frame = pd.DataFrame(points, columns=columns).astype(types)
    return trials[kept].loc[frame.pop("row")].reset_index(drop=True).join(frame)


def _published_curves(
    trials: pd.DataFrame, file: pathlib.Path, study: str, kept: list[str]
) -> pd.DataFrame:
    own = trials[[*kept, "best_value"]].merge(archive.curves(file, study), on=PLACE, sort=False)
    # The best value of each trial is among its evaluations, perhaps rounded.
    best = own[np.isclose(own["value"], own["best_value"], rtol=1e-6, atol=0)]
    if len(own) and len(best.groupby(PLACE)) < trials["best_value"].notna().sum():
        raise InputError(
            f"{archive.CURVES} beside {file} is of other trials of {study}; restore both"
        )
    own = own.assign(train_seconds=math.nan)
    return own[[*kept, "step", "fresh_examples", "train_seconds", "value"]]


def hyperparameters(trials: pd.DataFrame) -> list[str]:
    """The columns of `trials` that hold hyperparameters, by dotted name."""
    columns = list(trials)
    return columns[columns.index("trial") + 1 : columns.index("status")]


def counted(trials: pd.DataFrame, study: Study) -> pd.Series:
    """Which trials count: the first N of each search, in order of their numbers, that ended without
    diverging or failing.

    At an easier target than the runs had, so does a trial that reached it and diverged or failed
    later: a run with that target would have ended there.
    """
    ended = trials["status"].isin(records.COUNTABLE)
    if not study.scores_values:
        broken = trials["status"].isin(("diverged", "failed"))
        ended |= broken & trials["fresh_examples_to_target"].notna()
    rank = ended.groupby([trials["condition"], trials["search"]]).cumsum()
    return ended & (rank <= study.trials)


# --- Rows


def _row(place: records.TrialPath, path: pathlib.Path, study: Study) -> dict[str, Any]:
    """One trial's row; raises records.Damaged."""
    trial = trial_records.read(path, place, study)
    config, result = trial.config.get("config") or {}, trial.result
    hparams = trial.search.get("hparams") or {}
    if not trial.search and not (trial.config or trial.metrics or result):
        hparams = {axis.field: math.nan for axis in study.space}  # only its lock is taken yet
    if missing := [axis.field for axis in study.space if axis.field not in hparams]:
        raise records.Damaged(f"{records.HPARAMS}: {missing[0]} is missing")
    score = _score(trial.validation, study.target.metric, study.target)
    if result and records.Target(**result["target"]) == study.target:
        own = {name: result[name] for name in _AT_TARGET.values()}  # whose clock is later
        score = score | own if result["status"] == "reached" else dict.fromkeys(score)
    best, trained_with = result.get("best") or {}, origins.of_run(trial.config)
    return {
        **{name: math.nan if value is None else value for name, value in hparams.items()},
        **dataclasses.asdict(place),
        "status": result.get("status", UNFINISHED),
        **score,
        "best_value": best.get("value"),
        "best_fresh_examples": best.get("fresh_examples"),
        "steps": result.get("step"),
        "fresh_examples": result.get("fresh_examples"),
        "train_seconds": result.get("train_seconds"),
        "model_seed": nested(config, "seed.model"),
        "lanes": trial.search.get("lanes") or 1,
        "workers": trial.search.get("workers") or 1,
        "evaluation_interval": nested(config, "evaluate_every_fresh_examples"),
        "device": _in_order(_device(origin["hardware"] or {}) for origin in trained_with),
        "commit": _in_order(origin["commit"] for origin in trained_with),
        "path": str(path),
    }


def _score(
    evaluations: Sequence[Mapping[str, Any]], metric: str, target: records.Target
) -> dict[str, Any]:
    """The first evaluation whose `metric` is at the target or past it, and the one before."""
    names = (*_AT_TARGET.values(), "fresh_examples_before_target", "seconds_before_target")
    for record in evaluations:
        value = record.get(metric)
        if value is not None and target.reached(value):
            earlier = [r for r in evaluations if r["fresh_examples"] < record["fresh_examples"]]
            before = earlier[-1] if earlier else {"fresh_examples": 0, "train_seconds": 0.0}
            places = *(record[name] for name in _AT_TARGET), before["fresh_examples"]
            return dict(zip(names, (*places, before["train_seconds"]), strict=True))
    return dict.fromkeys(names)


def _device(hardware: Mapping[str, Any]) -> str | None:
    """The devices, and what they are a part of if they are CPUs, whose kind says nothing."""
    if "device_kind" not in hardware:
        return None
    device, cores = hardware["device_kind"], hardware.get("cpu_count")
    part = f" ({several(cores, 'core')} of {hardware.get('cpu')})" if cores else ""
    return f"{hardware.get('devices', 1)} x {device}{part if device == 'cpu' else ''}"


def _in_order(names: Iterable[str | None]) -> str | None:
    """The different names, separated by THEN; None without any."""
    return THEN.join(dict.fromkeys(plain(name) for name in names if name)) or None


def _table(rows: Sequence[dict[str, Any]], study: Study) -> pd.DataFrame:
    conditions = {condition.name: condition for condition in study.conditions}
    order = list(conditions)
    rows = sorted(rows, key=lambda r: (order.index(r["condition"]), r["search"], r["trial"]))
    # An Arrow column, which pandas infers for text, cannot hold a name that is not UTF-8.
    paths = pd.Series([row.pop("path") for row in rows], dtype=object)
    settings = [{s: getattr(conditions[row["condition"]], s) for s in SETTINGS} for row in rows]
    table = pd.DataFrame([own | row for own, row in zip(settings, rows, strict=True)])
    axes = [axis.field for axis in study.space if axis.field not in _HEAD]
    table = table.assign(path=paths, counted=False).reindex(columns=[*_HEAD, *axes, *_TAIL])
    table = table.astype({name: kind for name, kind in _TAIL.items() if kind is not object})
    return table.assign(counted=counted(table, study))
