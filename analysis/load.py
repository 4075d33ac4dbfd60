"""Reads run records into tidy tables: one row a trial, one row a validation record.

A trial directory that cannot be read is named and set aside; the rest is analysed.
"""

import dataclasses
import os
import pathlib
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from analysis import archive
from analysis import study as studies
from analysis.study import InputError, Study
from runs import records, trial_records
from runs.study import is_number, short

# Trials that a search may count: trained to their end without diverging or failing. Preempted and
# unfinished ones are not over, so what they will score is not known yet.
COUNTABLE = ("reached", "exhausted")
UNFINISHED = "unfinished"  # no result.json yet

_COUNTS = ("fresh_examples_to_target", "steps_to_target", "best_fresh_examples")
_COUNTS += ("steps", "fresh_examples", "model_seed")
_FLOATS = ("seconds_to_target", "fresh_examples_before_target", "seconds_before_target")
_FLOATS += ("best_value", "train_seconds", "evaluation_interval")
# Columns that a hyperparameter may not be named like; see `load`.
_TAKEN = {"condition", "label", "insertion", "factor", "shuffle_buffer", "search"}
_TAKEN |= {"trial", "hparams", "status", "counted", "device", "commit", "path", *_COUNTS, *_FLOATS}
Paths = str | os.PathLike | Sequence[str | os.PathLike]


@dataclasses.dataclass(frozen=True)
class Records:
    """What was found on disk.

    Attributes:
        study: what the trials set out to do.
        trials: one row a trial, see `load`.
        set_aside: (directory, reason) of each trial that could not be read.
    """

    study: Study
    trials: pd.DataFrame
    set_aside: tuple[tuple[pathlib.Path, str], ...]

    def warning(self) -> str | None:
        """One sentence that names what was set aside, or None where nothing was."""
        if not self.set_aside:
            return None
        listed = "; ".join(studies.plain(f"{path} ({why})") for path, why in self.set_aside)
        noun = "trial directory" if len(self.set_aside) == 1 else "trial directories"
        return f"Set aside {len(self.set_aside)} unreadable {noun}: {listed}."


def load(directories: Paths, target: float | None = None) -> pd.DataFrame:
    """The trials below a study, or below one or several directories of single runs.

    Args:
        directories: one path or several; at most one study, which may be packed (see archive.py).
        target: judge the trials at this value of the study's metric, from their kept curves.

    Returns:
        One row a trial, ordered by condition, search and trial: condition, label, insertion,
        factor, shuffle_buffer, batch_size, search, trial, one column per hyperparameter by its
        dotted name, status, fresh_examples_to_target, steps_to_target, seconds_to_target
        (missing where the target was not reached), fresh_examples_before_target and
        seconds_before_target (at the evaluation before that one, 0 where there was none; missing
        likewise), best_value, best_fresh_examples,
        steps, fresh_examples, train_seconds, counted, model_seed, evaluation_interval (fresh
        examples), device, commit, path.

    Raises:
        InputError: no such directory, nothing to read in it, or studies mixed.
    """
    found = read(directories, target)
    if found.set_aside:
        warnings.warn(found.warning(), stacklevel=2)
    return found.trials


def read(directories: Paths, target: float | None = None) -> Records:
    """As `load`, and with it the study and the list of what was set aside."""
    roots = _existing(directories)
    planned = [root for root in roots if (root / records.STUDY).exists()]
    if planned and len(roots) > 1:
        raise InputError(
            f"{planned[0]} is a study; give one study alone, or several directories of single runs."
        )
    if planned:
        study, places, set_aside = _study_places(planned[0])
    else:
        study, places, set_aside = _run_places(roots)
    study = study.with_target_value(target)
    rows = []
    for place in places:
        try:
            rows.append(_trial_row(place, study))
        except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
            set_aside.append((place.path, studies.plain(studies.describe(error))))
    if not rows:
        raise InputError(_nothing_in(roots, set_aside))
    return Records(study, _table(rows, study), tuple(set_aside))


def curves(trials: pd.DataFrame, metric: str) -> pd.DataFrame:
    """The validation records of `trials`: condition, label, insertion, factor, search, trial, step,
    fresh_examples, train_seconds, value (of `metric`, missing where it was not finite)."""
    kept = ["condition", "label", "insertion", "factor", "search", "trial"]
    rows = [
        {name: trial[name] for name in kept}
        | {name: record[name] for name in ("step", "fresh_examples", "train_seconds")}
        | {"value": record.get(metric)}
        for trial in trials.to_dict("records")
        for record in trial_records.read(trial["path"]).validation
    ]
    columns = [*kept, "step", "fresh_examples", "train_seconds", "value"]
    return pd.DataFrame(rows, columns=columns).astype({"value": float})


@dataclasses.dataclass(frozen=True)
class _Place:
    """A trial's directory and what its place says about it."""

    condition: str
    search: int
    trial: int
    path: pathlib.Path


def _existing(directories: Paths) -> list[pathlib.Path]:
    given = [directories] if isinstance(directories, str | os.PathLike) else list(directories)
    roots = [archive.opened(each) for each in given]
    for root in roots:
        if not root.is_dir():
            raise InputError(
                f"no such directory: {root}; give a study's directory (it holds study.json) or "
                "the directories of single runs."
            )
    return roots


def _study_places(root: pathlib.Path) -> tuple[Study, list[_Place], list]:
    study = studies.read_study(root)
    known = {condition.name for condition in study.conditions}
    places, set_aside = [], []
    for where, path in records.trials_on_disk(root):
        if where.condition in known:
            places.append(_Place(where.condition, where.search, where.trial, path))
        else:
            set_aside.append((path, "its condition is not in study.json"))
    return study, places, set_aside


def _run_places(roots: Sequence[pathlib.Path]) -> tuple[Study, list[_Place], list]:
    """Single runs: a search per order of the data, which follows from data seed and version."""
    readable, set_aside = [], []
    for path in sorted({path for root in roots for path in _run_directories(root)}):
        try:
            snapshot = trial_records.read_config(path)
            studies.check_run(snapshot)
            readable.append((path, snapshot, studies.run_condition(snapshot).name))
        except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
            set_aside.append((path, studies.plain(studies.describe(error))))
    if not readable:
        raise InputError(_nothing_in(roots, set_aside))
    study = studies.study_of_runs(roots[0].resolve().name, [snap for _, snap, _ in readable])
    seeds = [
        (records.schema_version(snapshot), studies.field(snapshot["config"], "seed.data"))
        for _, snapshot, _ in readable
    ]
    searches = {seed: number for number, seed in enumerate(dict.fromkeys(seeds))}
    places, taken = [], {}
    for (path, _, condition), seed in zip(readable, seeds, strict=True):
        search = searches[seed]
        trial = taken.get((condition, search), 0)
        taken[condition, search] = trial + 1
        places.append(_Place(condition, search, trial, path))
    return study, places, set_aside


def _run_directories(root: pathlib.Path) -> Iterable[pathlib.Path]:
    for path in root.rglob(records.CONFIG):
        within = path.relative_to(root).parts
        if records.CHECKPOINTS not in within and records.DAMAGED not in within:
            yield path.parent


def _nothing_in(roots: Sequence[pathlib.Path], set_aside: Sequence) -> str:
    where = ", ".join(map(str, roots))
    if set_aside:
        path, reason = set_aside[0]
        return (
            f"no readable trial in {where} ({len(set_aside)} unreadable, the first is {path}: "
            f"{reason})."
        )
    return (
        f"no run records in {where}; a study holds {records.STUDY} and CONDITION/SEARCH/TRIAL "
        f"directories, a run holds {records.CONFIG} and {records.METRICS}."
    )


def _trial_row(place: _Place, study: Study) -> dict[str, Any]:
    """One trial's row. Raises ValueError, KeyError or TypeError where its files are damaged."""
    trial = trial_records.read(place.path)
    result, validation = trial.result, trial.validation
    config = trial.config.get("config") or {}
    row = {"condition": place.condition, "search": place.search, "trial": place.trial}
    row["hparams"] = dict(_hparams(config) if trial.hparams is None else trial.hparams)
    _check_hparams(row["hparams"], study)
    row["status"] = result.get("status", UNFINISHED)
    row |= _score(result, validation, study.target) | _extent(result)
    row["model_seed"] = _checked(studies.field(config, "seed.model"), "seed.model", whole=True)
    interval = "evaluate_every_fresh_examples"
    row["evaluation_interval"] = _checked(config.get(interval), interval)
    row["device"] = _device(trial.config.get("hardware") or {})
    row["commit"] = trial.config.get("commit") and studies.plain(trial.config["commit"])
    return row | {"path": str(place.path)}


def _checked(value: Any, name: str, whole: bool = False) -> Any:
    """A number of config.json, or None."""
    if value is None:
        return None
    if is_number(value) and 0 <= value < 2**53 and (value == int(value) or not whole):
        return value
    raise ValueError(f"{records.CONFIG}: {name} is {short(value)}, not a number that it may be")


def _check_hparams(hparams: Mapping[str, Any], study: Study) -> None:
    """Checks that what a study searched is there, and numbers where its axes are."""
    for axis in study.search_space:
        name, value = axis["field"], hparams.get(axis["field"])
        if value is not None and axis["scale"] != "choice" and not is_number(value):
            raise ValueError(f"{records.HPARAMS}: {name} is {short(value)}, not a number")
    if hparams.keys() & _TAKEN:
        raise ValueError(f"{records.HPARAMS}: {sorted(hparams.keys() & _TAKEN)[0]} is no field")


def _hparams(config: Mapping[str, Any]) -> dict[str, Any]:
    """The optimizer's numbers of a run that no search drew."""
    optimizer = config.get("optimizer") or {}
    numbers = {key: value for key, value in optimizer.items() if is_number(value)}
    return {f"optimizer.{key}": value for key, value in numbers.items()}


def _score(result: Mapping, validation: Sequence[Mapping], target: records.Target) -> dict:
    """Where the target was reached: from the result if it was judged at this target, else from
    the curve, whose first record at the target or past it scores."""
    names = ("fresh_examples_to_target", "steps_to_target", "seconds_to_target")
    score = dict.fromkeys(names)
    judged_at = result.get("target")  # a trial that failed at its start may have none
    if judged_at and studies.parse_target(judged_at) == target:
        score = {name: _number(result, name) for name in names}
    else:
        for record in validation:
            value = _number(record, target.metric)
            if value is not None and target.reached(value):
                fields = ("fresh_examples", "step", "train_seconds")
                score = {n: _number(record, key) for n, key in zip(names, fields, strict=True)}
                break
    return score | _before(score["fresh_examples_to_target"], validation)


def _before(score: float | None, validation: Sequence[Mapping]) -> dict[str, float | None]:
    """The last evaluation before the one that scored: the target was reached after it."""
    if score is None:
        return {"fresh_examples_before_target": None, "seconds_before_target": None}
    earlier = [r for r in validation if _number(r, "fresh_examples") < score]
    last = earlier[-1] if earlier else {"fresh_examples": 0, "train_seconds": 0.0}
    return {
        "fresh_examples_before_target": _number(last, "fresh_examples"),
        "seconds_before_target": _number(last, "train_seconds"),
    }


def _extent(result: Mapping[str, Any]) -> dict[str, Any]:
    """How far the trial went, and its best value; nothing yet where there is no result."""
    best = result.get("best") or {}
    return {
        "best_value": _number(best, "value"),
        "best_fresh_examples": _number(best, "fresh_examples"),
        "steps": _number(result, "step"),
        "fresh_examples": _number(result, "fresh_examples"),
        "train_seconds": _number(result, "train_seconds"),
    }


def _number(values: Mapping[str, Any], name: str) -> float | int | None:
    value = values.get(name)
    if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
        raise ValueError(f"{name} is {value!r}, not a number")
    return value


def _device(hardware: Mapping[str, Any]) -> str | None:
    if "device_kind" not in hardware:
        return None
    return studies.plain(f"{hardware.get('devices', 1)} x {hardware['device_kind']}")


def _table(rows: Sequence[Mapping[str, Any]], study: Study) -> pd.DataFrame:
    settings = {condition.name: dataclasses.asdict(condition) for condition in study.conditions}
    places = {condition.name: number for number, condition in enumerate(study.conditions)}
    kept = ("label", "insertion", "factor", "shuffle_buffer", "batch_size")
    ordered = sorted(rows, key=lambda row: (places[row["condition"]], row["search"], row["trial"]))
    full = [
        row | {name: settings[row["condition"]][name] for name in kept} | row["hparams"]
        for row in ordered
    ]
    head = ["condition", *kept, "search", "trial"]
    hparams = list(dict.fromkeys(name for row in ordered for name in row["hparams"]))
    hparams = [name for name in hparams if name not in head]  # a searched batch size
    tail = [name for name in ordered[0] if name not in (*head, "hparams")]
    table = pd.DataFrame(full, columns=[*head, *hparams, *tail])
    table = table.astype(dict.fromkeys(_COUNTS, "Int64"))
    for name in _FLOATS:
        table[name] = table[name].astype(float)
    table.insert(table.columns.get_loc("model_seed"), "counted", counted(table, study))
    return table


def counted(trials: pd.DataFrame, study: Study) -> pd.Series:
    """Which trials count: the first N of each search, in trial order, that ended without diverging
    or failing (N is the study's; where no study says, all of them)."""
    ended = trials["status"].isin(COUNTABLE)
    place = ended.groupby([trials["condition"], trials["search"]]).cumsum()
    return ended if study.trials is None else ended & (place <= study.trials)
