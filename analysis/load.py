"""Reads the records of a study, or of single runs: one row per trial, one row per evaluation.

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

from analysis import archive, single_runs
from runs import origins, records, trial_records
from runs.cli import InputError
from runs.progress import several
from runs.records import check_target_value, nested
from runs.study import Study, is_number, plain

UNFINISHED = "unfinished"  # no result.json yet
THEN = ", then "  # between the devices, or the commits, of a trial that resumed with another

SETTINGS = ("label", "insertion", "factor", "shuffle_buffer", "batch_size")
_PLACE = ["condition", "search", "trial"]
_HEAD = ("condition", *SETTINGS, "search", "trial")
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
_MAX_NAMED = 12  # trials that are set aside; a study may have thousands
Paths = str | os.PathLike | Sequence[str | os.PathLike]
Place = tuple[records.TrialPath, pathlib.Path]
SetAside = tuple[pathlib.Path, str]  # directory, reason


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
    set_aside: tuple[SetAside, ...] = ()

    def warning(self) -> str | None:
        """One sentence that names what was set aside, or the first of it; None if nothing was."""
        if not self.set_aside:
            return None
        named = [plain(f"{path} ({reason})") for path, reason in self.set_aside[:_MAX_NAMED]]
        if more := len(self.set_aside) - len(named):
            named.append(f"and {more:,} more")
        number = len(self.set_aside)
        noun = "directory" if number == 1 else "directories"
        return f"Set aside {number} unusable trial {noun}: {'; '.join(named)}."


def read(directories: Paths, target: float | None = None, study: str = "") -> LoadedStudy:
    """Reads the trials of a study, or of directories of single runs.

    Args:
        directories: one path or several; at most one study. Or a trials.parquet (archive.py).
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
        InputError: no such directory, no records in it, several studies, or a target in percent.
    """
    single = isinstance(directories, str | os.PathLike)
    paths = [directories] if single else list(directories)
    roots = [pathlib.Path(path) for path in paths]
    alone = [r for r in roots if archive.is_published(r) or (r / records.STUDY).exists()]
    if alone and len(roots) > 1:
        raise InputError(
            f"{alone[0]} is a study; give one study alone, or several directories of single runs"
        )
    if alone and archive.is_published(alone[0]):
        return _published(alone[0], study, target)
    if study:
        raise InputError(
            f"--study is {study!r}, but {roots[0]} is no {archive.TRIALS}; leave it out"
        )
    for root in roots:
        if not root.is_dir():
            raise InputError(f"no such directory: {root}; give that of a study or of single runs")
    plan, places, set_aside = _study(roots[0]) if alone else _runs(roots, target)
    plan, rows = at_target(plan, target), []
    for place, path in places:
        try:
            rows.append(_row(place, path, plan))
        except records.Damaged as error:
            set_aside.append((path, plain(str(error))))
    if not rows:
        raise InputError(_nothing_in(roots, set_aside))
    return LoadedStudy(plan, _table(rows, plan), tuple(set_aside))


def _published(file: pathlib.Path, name: str, target: float | None) -> LoadedStudy:
    study, rows = archive.read(file, name)
    loaded = LoadedStudy(study, _table(rows.to_dict("records"), study))
    at = at_target(study, target).target
    if at == study.target:
        return loaded
    points = curves(loaded.trials, at.metric)
    if points.empty:
        raise InputError(f"--target needs curves, which {archive.CURVES} does not have of {name}")
    return judged_at(loaded, points, at.value)


def at_target(study: Study, value: float | None) -> Study:
    """The study with another value of its target (None: its own).

    Raises:
        InputError: it is a percentage, and the metric is a share.
    """
    if value is None:
        return study
    target = dataclasses.replace(study.target, value=value)
    try:
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
    if len(trials) and (place := archive.place(trials["path"].iloc[0])):
        points = archive.curves(*place)[[*_PLACE, "step", "fresh_examples", "value"]]
        if len(points):
            _check_best(points, trials, *place)
        points = trials[kept].merge(points, on=_PLACE, sort=False)
        points.insert(len(points.columns) - 1, "train_seconds", math.nan)
        return points
    names = ("step", "fresh_examples", "train_seconds", metric)
    points, recorded = [], set()
    for row, path in zip(trials.index, trials["path"], strict=True):
        evaluations = trial_records.read(path).validation
        recorded.update(*evaluations[:1])
        points += [(row, *map(record.get, names)) for record in evaluations]
    if recorded and metric not in recorded:
        raise InputError(f"metric is {metric!r}, which no evaluation has")
    columns = ["row", *names[:-1], "value"]
    types = dict.fromkeys(columns, float) | dict.fromkeys(columns[1:3], int) | {"row": int}
    frame = pd.DataFrame(points, columns=columns).astype(types)
    return trials[kept].loc[frame.pop("row")].reset_index(drop=True).join(frame)


def _check_best(points: pd.DataFrame, trials: pd.DataFrame, file: pathlib.Path, study: str) -> None:
    """Checks that published evaluations have the best one of each trial; raises InputError."""
    best = trials.dropna(subset="best_fresh_examples").astype({"best_fresh_examples": int})
    best = best[[*_PLACE, "best_fresh_examples", "best_value"]]
    found = best.merge(
        points,
        left_on=[*_PLACE, "best_fresh_examples"],
        right_on=[*_PLACE, "fresh_examples"],
        how="left",
    )
    # published values may be rounded, and a run that drains its buffer reads nothing
    same = np.isclose(found["value"], found["best_value"], rtol=1e-6, atol=0)
    if len(found[same].drop_duplicates(_PLACE)) < len(best):
        raise InputError(
            f"{archive.CURVES} beside {file} is of other trials of {study}; restore both"
        )


def judged_at(loaded: LoadedStudy, evaluations: pd.DataFrame, value: float) -> LoadedStudy:
    """The study judged at another value of its metric, like `read(directories, target=value)`.

    Args:
        loaded: the study.
        evaluations: `curves` of all of its trials.
        value: of the target's metric.
    """
    study = at_target(loaded.study, value)
    named = evaluations.rename(columns={"value": study.target.metric})
    curves_of = {place: own.to_dict("records") for place, own in named.groupby(_PLACE)}
    places = loaded.trials[_PLACE].itertuples(index=False, name=None)
    scores = [_score({}, curves_of.get(place, ()), study.target) for place in places]
    columns = pd.DataFrame(scores, index=loaded.trials.index)
    trials = loaded.trials.assign(**columns).astype(loaded.trials.dtypes)
    return LoadedStudy(study, trials.assign(counted=counted(trials, study)), loaded.set_aside)


def hyperparameters(trials: pd.DataFrame) -> list[str]:
    """The columns of `trials` that hold hyperparameters, by dotted name."""
    columns = list(trials)
    return columns[columns.index("trial") + 1 : columns.index("status")]


def counted(trials: pd.DataFrame, study: Study) -> pd.Series:
    """Which trials count: the first N of each search, in order of their numbers, that ended without
    diverging or failing; all of them where no N is planned.

    At an easier target than the runs had, so does a trial that reached it and diverged or failed
    later: a run with that target would have ended there.
    """
    ended = trials["status"].isin(records.COUNTABLE)
    if not study.scores_values:
        broken = trials["status"].isin(("diverged", "failed"))
        ended |= broken & trials["fresh_examples_to_target"].notna()
    rank = ended.groupby([trials["condition"], trials["search"]]).cumsum()
    return ended & (rank <= study.trials) if study.trials else ended


def _study(root: pathlib.Path) -> tuple[Study, list[Place], list[SetAside]]:
    try:
        study = Study.read(root)
    except records.Damaged as error:
        raise InputError(
            f"{root / records.STUDY} is not readable ({plain(str(error))}); restore it, or give "
            "the directories of single trials instead"
        ) from error
    known = {condition.name for condition in study.conditions}
    places, others = [], []
    for place, path in records.trials_on_disk(root):
        if place.condition in known:
            places.append((place, path))
        else:
            others.append((path, f"its condition is not in {records.STUDY}"))
    return study, places, others


def _runs(
    roots: Sequence[pathlib.Path], target: float | None
) -> tuple[Study, list[Place], list[SetAside]]:
    snapshots, contents, set_aside = {}, {}, []
    for path in sorted({path.resolve() for root in roots for path in _run_directories(root)}):
        try:
            config = records.read_json(path / records.CONFIG)
            content = records.read_bytes(path / records.METRICS)
        except records.Damaged as error:
            set_aside.append((path, plain(str(error))))
            continue
        if content and (first := contents.setdefault(content, path)) != path:  # the same clocks
            set_aside.append((path, f"it is a copy of {first}"))
        else:
            snapshots[path] = config
    if not snapshots:
        raise InputError(_nothing_in(roots, set_aside))
    name = plain(", ".join(root.resolve().name for root in roots), 60)
    return *single_runs.study_of(name, snapshots, target), set_aside


def _run_directories(root: pathlib.Path) -> list[pathlib.Path]:
    if study := next(root.rglob(records.STUDY), None):
        raise InputError(f"{root} contains the study {study.parent}; give that directory alone")
    configs = [(path, path.relative_to(root).parts) for path in root.rglob(records.CONFIG)]
    ignored = {records.CHECKPOINTS, records.DAMAGED}
    found = [path.parent for path, parts in configs if not ignored & set(parts)]
    trials = [path for path in found if path != root and (path / records.HPARAMS).exists()]
    if any(not (trial.parents[2] / records.STUDY).exists() for trial in trials):
        raise InputError(
            f"{root} holds trials of a study without its {records.STUDY}; restore that, or give "
            "the directories of single trials"
        )
    return found


def _nothing_in(roots: Sequence[pathlib.Path], set_aside: Sequence[SetAside]) -> str:
    where = ", ".join(map(str, roots))
    if set_aside:
        path, reason = set_aside[0]
        return (
            f"no usable trial in {where} ({len(set_aside)} unusable, the first is {path}: {reason})"
        )
    return (
        f"no run records in {where}; a study holds {records.STUDY} and CONDITION/SEARCH/TRIAL "
        f"directories, a run holds {records.CONFIG} and {records.METRICS}"
    )


def _row(place: records.TrialPath, path: pathlib.Path, study: Study) -> dict[str, Any]:
    """One trial's row; raises records.Damaged."""
    trial = trial_records.read(path, place, study) if study.searches else trial_records.read(path)
    if trial.metrics and not trial.config:  # which is written first
        raise records.Damaged(f"{records.CONFIG} is missing")
    config = trial.config.get("config") or {}
    hparams = trial.search.get("hparams") or {}
    if not study.searches:  # trials of two studies differ in more than they drew
        hparams = _optimizer_settings(config) | hparams
    elif not trial.search and not (trial.config or trial.metrics or trial.result):
        hparams = {axis.field: math.nan for axis in study.space}  # only its lock is taken yet
    if missing := [axis.field for axis in study.space if axis.field not in hparams]:
        raise records.Damaged(f"{records.HPARAMS}: {missing[0]} is missing")
    trained_with = origins.of_run(trial.config)
    return {
        **{name: math.nan if value is None else value for name, value in hparams.items()},
        **dataclasses.asdict(place),
        "status": trial.result.get("status", UNFINISHED),
        **_score(trial.result, trial.validation, study.target),
        **_extent(trial.result),
        "model_seed": nested(config, "seed.model"),
        "lanes": trial.search.get("lanes") or 1,
        "workers": trial.search.get("workers") or 1,
        "evaluation_interval": nested(config, "evaluate_every_fresh_examples"),
        "device": _in_order(_device(origin["hardware"] or {}) for origin in trained_with),
        "commit": _in_order(origin["commit"] for origin in trained_with),
        "path": str(path),
    }


def _optimizer_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers and names of the optimizer and its schedule, of a run that is not part of a
    search."""
    settings: dict[str, Any] = {}
    for group in ("optimizer", "optimizer.schedule"):
        for key, value in (nested(config, group) or {}).items():
            if is_number(value) or isinstance(value, str):
                settings[f"{group}.{key}"] = value if is_number(value) else plain(value)
    return settings


def _score(result: Mapping, validation: Sequence[Mapping], target: records.Target) -> dict:
    """Where the target was reached: from the result if the run had this target, else from its
    curve, whose first record at the target or past it scores."""
    columns = {
        "fresh_examples_to_target": "fresh_examples",
        "steps_to_target": "step",
        "seconds_to_target": "train_seconds",
    }
    score = dict.fromkeys(columns)
    if result and records.Target(**result["target"]) == target:
        score = {name: result[name] for name in columns}
    else:
        for record in validation:
            value = record.get(target.metric)
            if value is not None and target.reached(value):
                score = {name: record[key] for name, key in columns.items()}
                break
    fresh, before = score["fresh_examples_to_target"], {}
    if fresh is not None:
        earlier = [record for record in validation if record["fresh_examples"] < fresh]
        before = earlier[-1] if earlier else {"fresh_examples": 0, "train_seconds": 0.0}
    return score | {
        "fresh_examples_before_target": before.get("fresh_examples"),
        "seconds_before_target": before.get("train_seconds"),
    }


def _extent(result: Mapping[str, Any]) -> dict[str, Any]:
    """How far the trial went, and its best value; missing without a result."""
    best = result.get("best") or {}
    return {
        "best_value": best.get("value"),
        "best_fresh_examples": best.get("fresh_examples"),
        "steps": result.get("step"),
        "fresh_examples": result.get("fresh_examples"),
        "train_seconds": result.get("train_seconds"),
    }


def _device(hardware: Mapping[str, Any]) -> str | None:
    """The devices, and what they are a part of if they are CPUs, whose kind says nothing."""
    if "device_kind" not in hardware:
        return None
    device = f"{hardware.get('devices', 1)} x {hardware['device_kind']}"
    cores, cpu = hardware.get("cpu_count"), hardware.get("cpu")
    if hardware["device_kind"] != "cpu" or not (cores and cpu):
        return device
    return f"{device} ({several(cores, 'core')} of {cpu})"


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
    others = [name for name in table if name not in (*_HEAD, *axes, *_TAIL)]
    table = table.assign(path=paths, counted=False).reindex(
        columns=[*_HEAD, *axes, *others, *_TAIL]
    )
    table = table.astype({name: kind for name, kind in _TAIL.items() if kind is not object})
    return table.assign(counted=counted(table, study))
