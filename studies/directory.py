"""A study's directory: the first launch writes study.json, later launches check against it."""

import dataclasses
import json
import pathlib
from typing import Any

from configs import base
from data.splits import open_splits
from runs import cli, environment, records, workdirs
from runs.study import MAY_CHANGE, SIZES, Study
from studies.search import searches_in_order
from studies.trial import finished_result
from studies.trial_queue import SearchQueue

# Held while study.json is extended; hidden, since a condition may be named `lock`.
_LOCK = f".{records.LOCK}"

# What a later launch may change. Where the data lie stays in study.json as it was at first, and so
# do the notes on data, which the fingerprint tells apart.
_MAY_CHANGE = (*MAY_CHANGE, *(f"resolved_config.{name}" for name in base.MAY_CHANGE_IN_STUDY))
_MAY_CHANGE += ("dataset.notes",)


def with_record(study: Study) -> Study:
    """The study with the content of its study.json, which names its data, as `record`."""
    source, _, info = open_splits(study.config.dataset)
    dataset = info.to_record() | {"train_examples": len(source)}
    record = json.loads(json.dumps(study.to_record(dataset)))  # as it is read: tuples become lists
    return dataclasses.replace(study, record=record)


def open_study(study: Study, study_dir: pathlib.Path) -> str:
    """Writes study.json, or checks that the existing one is of this study, which may have grown.

    A study never shrinks, since that would change its results. A finished study of another schema
    version is left unchanged.

    Returns:
        A sentence if the study there has more trials or searches than this launch; else ''.

    Raises:
        cli.InputError: the directory contains something else, or an unfinished study of another
            schema version; nothing has been written.
    """
    study = study if study.record else with_record(study)
    plan = dict(study.record)
    with cli.writing_to(study_dir):
        existing = _read(study_dir) or _create(study_dir, plan | environment.describe())
    if records.schema_version(existing) != records.SCHEMA_VERSION:
        changed = workdirs.differences_in_shared(existing, plan, (*_MAY_CHANGE, "schema_version"))
        if changed or not _is_finished(study, study_dir):
            raise cli.InputError(
                workdirs.version_sentence(study_dir, existing, "study", "--outdir")
            )
        return ""
    if changed := _changed(existing, plan):
        raise cli.InputError(
            f"{study_dir} holds a study of another plan, which differs in {'; '.join(changed)}; "
            "give those values, or another --outdir"
        )
    records.remove_stale(study_dir)
    if not _covers(existing, plan):
        # another launch may be extending the study, too
        with cli.writing_to(study_dir), workdirs.held(study_dir / _LOCK, wait=True):
            existing = _read(study_dir) or existing
            if not _covers(existing, plan):
                grown = {name: plan[name] for name in MAY_CHANGE} | _larger(existing, plan)
                grown = existing | grown | environment.describe()
                records.write_json(study_dir / records.STUDY, grown)
    return _larger_than(study, study_dir, _larger(existing, plan))


def _larger(existing: dict[str, Any], plan: dict[str, Any]) -> dict[str, int]:
    """The sizes of the study on disk that exceed those of the plan."""
    there = {name: existing.get(name) for name in SIZES}
    return {name: n for name, n in there.items() if type(n) is int and n > plan[name]}


def _covers(existing: dict[str, Any], plan: dict[str, Any]) -> bool:
    """Whether the study on disk needs no change for the plan to run."""
    larger = _larger(existing, plan)
    return all(name in larger or existing.get(name) == plan[name] for name in MAY_CHANGE)


def _changed(existing: dict[str, Any], plan: dict[str, Any]) -> list[str]:
    """What differs from the plan of the study on disk, and must not; of lists only the names."""
    lists = [name for name, value in plan.items() if isinstance(value, list)]
    here = {name: value for name, value in plan.items() if name not in lists}
    changed = workdirs.differences({name: existing.get(name) for name in here}, here, _MAY_CHANGE)
    for own, name in (("resolved_config.", "config."), ("budget_fresh", "budget.fresh")):
        changed = [text.replace(own, name, 1) for text in changed]
    once = [text for text in changed if f"config.{text}" not in changed]
    return once + [name for name in lists if existing.get(name) != plan[name]]


def _larger_than(study: Study, study_dir: pathlib.Path, larger: dict[str, int]) -> str:
    """The sentence that `open_study` returns; `larger` are the sizes of the study on disk that
    exceed those of `study`."""
    words = {"trials": "trials per search", "searches": "searches per condition"}
    kept = [
        f"{larger[name]} {what}, of which this launch runs {getattr(study, name)}"
        for name, what in words.items()
        if name in larger
    ]
    return f"the study in {study_dir} keeps its {', and its '.join(kept)}" if kept else ""


def _read(study_dir: pathlib.Path) -> dict[str, Any] | None:
    """The content of study.json, None if it does not exist; raises InputError if it is damaged."""
    advice = "restore that file from a copy, or give another --outdir"
    with cli.damage_explained(f"the study in {study_dir}", advice):
        there = (study_dir / records.STUDY).exists()
        return dict(Study.read(study_dir).record) if there else None


def _create(study_dir: pathlib.Path, plan: dict[str, Any]) -> dict[str, Any]:
    """Creates the directory and its study.json; returns the content of that file, which another
    launch may have created first."""
    # a concurrent launch writes its study.json before anything else
    if study_dir.exists() and not _is_new(study_dir) and not (study_dir / records.STUDY).exists():
        raise cli.InputError(
            f"{study_dir} exists but contains no study; give a new or empty --outdir"
        )
    study_dir.mkdir(parents=True, exist_ok=True)
    try:
        records.create_json(study_dir / records.STUDY, plan)
    except FileExistsError:
        return _read(study_dir) or plan
    return plan


def _is_finished(study: Study, study_dir: pathlib.Path) -> bool:
    """Whether every search has its trials."""
    for condition, number in searches_in_order(study):
        queue = SearchQueue(condition.name, number, study.trials, study.max_trials)
        while taken := queue.take(1):
            result = finished_result(study, study_dir, condition.name, number, taken[0])
            if not result:
                return False
            queue.end(taken[0], result["status"])
    return True


def _is_new(study_dir: pathlib.Path) -> bool:
    """Whether it is empty except for hidden files: a study.json that is being written, or that a
    killed launch left unfinished (`records.is_temporary`)."""
    return study_dir.is_dir() and all(path.name.startswith(".") for path in study_dir.iterdir())
