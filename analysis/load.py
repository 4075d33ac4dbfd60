"""Reads run records into tables: one row per trial, or one row per validation record.

Trial directories that cannot be read, or are not of their study, are set aside and named; the rest
is analyzed.
"""

import dataclasses
import math
import os
import pathlib
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from analysis import archive, single_runs
from runs import origins, records, trial_records
from runs.cli import InputError
from runs.progress import several
from runs.study import Study, check_target_value, is_number, nested, plain

UNFINISHED = "unfinished"  # no result.json yet
THEN = ", then "  # between the devices, or the commits, of a trial that resumed with another

_COUNTS = ("fresh_examples_to_target", "steps_to_target", "best_fresh_examples")
_COUNTS += ("steps", "fresh_examples", "model_seed", "lanes", "workers")
_FLOATS = ("seconds_to_target", "fresh_examples_before_target", "seconds_before_target")
_FLOATS += ("best_value", "train_seconds", "evaluation_interval")
# The columns of `load` that follow the hyperparameters.
_TAIL = ("status", "fresh_examples_to_target", "steps_to_target", "seconds_to_target")
_TAIL += ("fresh_examples_before_target", "seconds_before_target", "best_value")
_TAIL += ("best_fresh_examples", "steps", "fresh_examples", "train_seconds", "counted")
_TAIL += ("model_seed", "lanes", "workers", "evaluation_interval", "device", "commit", "path")
_MAX_NAMED = 12  # trials that are set aside; a study may have thousands
SETTINGS = ("label", "insertion", "factor", "shuffle_buffer", "batch_size")
_DAMAGE = (ValueError, KeyError, TypeError, AttributeError, OSError)  # errors of damaged records
Paths = str | os.PathLike | Sequence[str | os.PathLike]
SetAside = list[tuple[pathlib.Path, str]]  # (directory, reason)


@dataclasses.dataclass(frozen=True)
class LoadedStudy:
    """A study and the records of its trials.

    Attributes:
        study: the plan.
        trials: one row per trial, see `load`.
        set_aside: (directory, reason) of each trial whose records are damaged, or of another plan
            or other data than the study's.
        differing: of single runs, `single_runs.differing_fields`.
    """

    study: Study
    trials: pd.DataFrame
    set_aside: tuple[tuple[pathlib.Path, str], ...]
    differing: tuple[str, ...] = ()

    def warning(self) -> str | None:
        """One sentence that names what was set aside, or the first of it; None if nothing was."""
        if not self.set_aside:
            return None
        number = len(self.set_aside)
        listed = [plain(f"{path} ({reason})") for path, reason in self.set_aside[:_MAX_NAMED]]
        if number > _MAX_NAMED:
            listed.append(f"and {number - _MAX_NAMED:,} more")
        noun = "trial directory" if number == 1 else "trial directories"
        return f"Set aside {number} unusable {noun}: {'; '.join(listed)}."


def load(directories: Paths, target: float | None = None, study: str = "") -> pd.DataFrame:
    """The trials of a study, or of directories of single runs.

    Args:
        directories: one path or several; at most one study. Or a trials.parquet (archive.py).
        target: judge the trials at this value of the study's metric, from their curves.
        study: its name, if a trials.parquet has several.

    Returns:
        One row per trial, ordered by condition, search, and trial: condition, label, insertion,
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
    loaded = read(directories, target, study)
    if warning := loaded.warning():
        warnings.warn(warning, stacklevel=2)
    return loaded.trials


def read(
    directories: Paths,
    target: float | None = None,
    study: str = "",
) -> LoadedStudy:
    """The study, its trials, and what was set aside; arguments and errors are those of `load`."""
    single = isinstance(directories, str | os.PathLike)
    paths = [directories] if single else list(directories)
    if any(map(archive.is_published, paths)):
        if len(paths) > 1:
            raise InputError(f"give {archive.TRIALS} alone, or several directories of single runs")
        return _published(paths[0], study, target)
    roots = [pathlib.Path(path) for path in paths]
    for root in roots:
        if not root.is_dir():
            raise InputError(
                f"no such directory: {root}; give a study's directory (with study.json) or the "
                "directories of single runs"
            )
    studies = [root for root in roots if (root / records.STUDY).exists()]
    if studies and len(roots) > 1:
        path = paths[roots.index(studies[0])]  # not where a packed study was unpacked
        raise InputError(
            f"{path} is a study; give one study alone, or several directories of single runs"
        )
    read_plan = _study(studies[0]) if studies else _runs(roots, target)
    plan, places, set_aside, differing = read_plan
    plan = at_target(plan, target)
    rows = []
    for place, path in places:
        try:
            rows.append(_trial_row(place, path, plan, differing))
        except _DAMAGE as error:
            set_aside.append((path, plain(_reason(error))))
    if not rows:
        raise InputError(_nothing_in(paths, set_aside))
    return LoadedStudy(plan, _table(rows, plan), tuple(set_aside), differing)


def _published(file: str | os.PathLike, name: str, target: float | None) -> LoadedStudy:
    study, trials = archive.read(file, name)
    at = at_target(study, target).target
    settings = {condition.name: condition for condition in study.conditions}
    for setting in SETTINGS:
        trials[setting] = [getattr(settings[own], setting) for own in trials["condition"]]
    axes = [axis.field for axis in study.space]
    others = [column for column in trials if "." in column and column not in axes]
    head = ["condition", *SETTINGS, "search", "trial"]
    hparams = [column for column in (*axes, *others) if column not in head]
    trials = trials.reindex(columns=[*head, *hparams, *_TAIL])
    trials = trials.astype(dict.fromkeys(_COUNTS, "Int64") | dict.fromkeys(_FLOATS, float))
    loaded = LoadedStudy(study, trials.astype({"counted": bool}), ())
    if at == study.target:
        return loaded
    return judged_at(loaded, curves(loaded.trials, at.metric), at.value)


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


def read_study(directory: pathlib.Path) -> Study:
    """The study at `directory`; raises InputError if study.json is damaged."""
    path = directory / records.STUDY
    try:
        return Study.read(directory)
    except (ValueError, OSError) as error:
        raise InputError(
            f"{path} is not a readable study record ({plain(_reason(error))}); fix it, or give the "
            "directories of single trials instead"
        ) from error


def curves(trials: pd.DataFrame, metric: str) -> pd.DataFrame:
    """The validation records of `trials`: condition, label, insertion, factor, search, trial, step,
    fresh_examples, train_seconds, value (of `metric`; missing if it was not finite). Published
    records have the target's metric only, and no train_seconds.

    Raises:
        InputError: no evaluation has this metric.
    """
    kept = ["condition", "label", "insertion", "factor", "search", "trial"]
    if len(trials) and (place := archive.place(trials["path"].iloc[0])):
        key = ["condition", "search", "trial"]
        points = archive.curves(*place)[[*key, "step", "fresh_examples", "value"]]
        points = trials[kept].merge(points, on=key, sort=False)
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


def judged_at(loaded: LoadedStudy, evaluations: pd.DataFrame, value: float) -> LoadedStudy:
    """The study judged at another value of its metric, like `read(directories, target=value)`.

    Args:
        loaded: the study.
        evaluations: `curves` of all of its trials.
        value: of the target's metric.
    """
    target = dataclasses.replace(loaded.study.target, value=value)
    key = ["condition", "search", "trial"]
    named = evaluations.rename(columns={"value": target.metric})
    curves_of = {place: own.to_dict("records") for place, own in named.groupby(key)}
    places = loaded.trials[key].itertuples(index=False, name=None)
    scores = [_score({}, curves_of.get(place, ()), target) for place in places]
    columns = pd.DataFrame(scores, index=loaded.trials.index)
    trials = loaded.trials.assign(**columns).astype(loaded.trials.dtypes)
    study = dataclasses.replace(loaded.study, target=target)
    trials = trials.assign(counted=counted(trials, study))
    return dataclasses.replace(loaded, study=study, trials=trials)


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


# The study, its trials, those set aside, and the fields in which single runs differ.
_Plan = tuple[Study, list[tuple[records.TrialPath, pathlib.Path]], SetAside, tuple[str, ...]]


def _study(root: pathlib.Path) -> _Plan:
    study = read_study(root)
    known = {condition.name for condition in study.conditions}
    places, set_aside = [], []
    for place, path in records.trials_on_disk(root):
        if place.condition in known:
            places.append((place, path))
        else:
            set_aside.append((path, "its condition is not in study.json"))
    return study, places, set_aside, ()


def _runs(roots: Sequence[pathlib.Path], target: float | None) -> _Plan:
    snapshots, set_aside = {}, []
    directories = (path for root in roots for path in _run_directories(root))
    for path in sorted({path.resolve(): path for path in directories}.values()):
        try:
            snapshots[path] = records.read_json(path / records.CONFIG)
        except _DAMAGE as error:
            set_aside.append((path, plain(_reason(error))))
    if not snapshots:
        raise InputError(_nothing_in(roots, set_aside))
    name = plain(", ".join(root.resolve().name for root in roots), 60)
    study = single_runs.study_of(name, list(snapshots.values()), target)
    differing = single_runs.differing_fields(snapshots.values())
    return study, list(single_runs.places(snapshots)), set_aside, differing


def _run_directories(root: pathlib.Path) -> list[pathlib.Path]:
    configs = [(path, path.relative_to(root).parts) for path in root.rglob(records.CONFIG)]
    ignored = {records.CHECKPOINTS, records.DAMAGED}
    return [path.parent for path, parts in configs if not ignored & set(parts)]


def _nothing_in(paths: Sequence[str | os.PathLike], set_aside: SetAside) -> str:
    where = ", ".join(map(str, paths))
    if set_aside:
        path, reason = set_aside[0]
        return (
            f"no usable trial in {where} ({len(set_aside)} unusable, the first is {path}: {reason})"
        )
    return (
        f"no run records in {where}; a study holds {records.STUDY} and CONDITION/SEARCH/TRIAL "
        f"directories, a run holds {records.CONFIG} and {records.METRICS}"
    )


def _reason(error: Exception) -> str:
    return f"{error} is missing" if isinstance(error, KeyError) else str(error) or repr(error)


def _trial_row(
    place: records.TrialPath, path: pathlib.Path, study: Study, differing: Sequence[str]
) -> dict[str, Any]:
    """One trial's row; raises one of _DAMAGE if its files are damaged."""
    trial = trial_records.read(path, place, study) if study.searches else trial_records.read(path)
    if trial.metrics and not trial.config:
        raise ValueError(f"{records.CONFIG} is missing")  # it is written first
    config = trial.config.get("config") or {}
    hparams = trial.search.get("hparams")
    if hparams is None and study.space:
        if trial.config or trial.metrics or trial.result:
            raise ValueError(f"{records.HPARAMS} is missing")
        hparams = dict.fromkeys(axis.field for axis in study.space)  # only its lock is taken yet
    if hparams is None or not study.searches:  # trials of two studies differ in more than they drew
        problem = single_runs.problem_of(config, differing)
        hparams = _optimizer_settings(config) | (hparams or {}) | problem
    if missing := [axis.field for axis in study.space if axis.field not in hparams]:
        raise ValueError(f"{records.HPARAMS}: {missing[0]} is missing")
    trained_with = origins.of_run(trial.config)
    return {
        "condition": place.condition,
        "search": place.search,
        "trial": place.trial,
        "hparams": {name: math.nan if x is None else x for name, x in hparams.items()},
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


def _table(rows: Sequence[Mapping[str, Any]], study: Study) -> pd.DataFrame:
    conditions = {condition.name: condition for condition in study.conditions}
    order = list(conditions)
    rows = sorted(rows, key=lambda r: (order.index(r["condition"]), r["search"], r["trial"]))
    complete = [
        {**row, **{name: getattr(conditions[row["condition"]], name) for name in SETTINGS}}
        | row["hparams"]
        for row in rows
    ]
    head = ["condition", *SETTINGS, "search", "trial"]
    hparams = list(dict.fromkeys(name for row in rows for name in row["hparams"]))
    hparams = [name for name in hparams if name not in head]  # a searched batch size
    tail = [name for name in rows[0] if name not in (*head, "hparams", "path")]
    table = pd.DataFrame(complete, columns=[*head, *hparams, *tail])
    # An Arrow column, which pandas infers for text, cannot hold a name that is not UTF-8.
    table["path"] = pd.Series([row["path"] for row in rows], dtype=object)
    table = table.astype(dict.fromkeys(_COUNTS, "Int64") | dict.fromkeys(_FLOATS, float))
    table.insert(table.columns.get_loc("model_seed"), "counted", counted(table, study))
    return table
