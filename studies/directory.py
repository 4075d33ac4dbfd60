"""A study's directory: study.json, written by the first launch and checked by the others."""

import dataclasses
import json
import pathlib
from typing import Any

import train
from runs import cli, environment, records, workdirs
from studies.plan import Study
from studies.trial import finished
from studies.trial_queue import Search

# What may differ between two launches on one directory: a study may grow.
_MAY_CHANGE = ("trials", "max_trials", "searches", "config")


def open_study(study: Study, outdir: pathlib.Path) -> None:
    """Writes study.json, or checks that the one there is of this study; it may have grown.

    A finished study of another schema version is left as it is.

    Raises:
        command.InputError: the directory holds something else, or an unfinished study of another
            schema version; nothing has been written.
    """
    source, _, info = train.open_data(study.config)
    plan = {
        "schema_version": records.SCHEMA_VERSION,
        "study": study.name,
        "config": study.config_flag,
        "workload": study.config.workload,
        "resolved_config": study.config.to_dict(),
        "target": study.config.target.to_dict(),
        "score": study.score,
        "budget_fresh_examples": study.config.budget.fresh_examples,
        "dataset": dataclasses.asdict(info) | {"train_examples": len(source)},
        "baseline": study.baseline,
        "conditions": list(study.conditions),
        "search_space": list(study.space),
        "trials": study.trials,
        "max_trials": study.max_trials,
        "searches": study.searches,
        "seeds": {"data": study.config.seed.data, "model": study.config.seed.model},
    }
    plan = json.loads(json.dumps(plan))  # as it will be read: tuples are lists
    with cli.writing_to(outdir):
        there = _recorded(outdir) or _created(outdir, plan | environment.describe(train.ROOT))
    if records.schema_version(there) != records.SCHEMA_VERSION:
        changed = workdirs.differences_in_shared(there, plan, (*_MAY_CHANGE, "schema_version"))
        if changed or not _finished(study, outdir):
            raise cli.InputError(workdirs.version_sentence(outdir, there, "study", "--outdir"))
        return
    fixed = set(plan) - set(_MAY_CHANGE)
    changed = [name for name in sorted(fixed) if there.get(name) != plan[name]]
    if changed:
        raise cli.InputError(
            f"{outdir} holds a study of another plan, which differs in {', '.join(changed)}; "
            "give another --outdir"
        )
    records.remove_stale(outdir)
    if any(there.get(name) != plan[name] for name in _MAY_CHANGE):
        records.write_json(outdir / records.STUDY, plan | environment.describe(train.ROOT))


def _recorded(outdir: pathlib.Path) -> dict[str, Any] | None:
    """The content of study.json, None where there is none; InputError for a damaged one."""
    try:
        return records.read_object(outdir / records.STUDY)
    except records.Damaged as error:
        raise cli.InputError(
            f"the study in {outdir} is damaged ({error}); restore that file from a copy, or give "
            "another --outdir"
        ) from error


def _created(outdir: pathlib.Path, plan: dict[str, Any]) -> dict[str, Any]:
    """Makes the directory and its study.json; returns the plan there, which is that of another
    launch if that was faster."""
    # a launch that has begun meanwhile has put its study.json there before anything else
    if outdir.exists() and not _is_new(outdir) and not (outdir / records.STUDY).exists():
        raise cli.InputError(
            f"{outdir} is there already and holds no study; give a new or empty --outdir"
        )
    outdir.mkdir(parents=True, exist_ok=True)
    try:
        records.create_json(outdir / records.STUDY, plan)
    except FileExistsError:
        return _recorded(outdir) or plan
    return plan


def _finished(study: Study, outdir: pathlib.Path) -> bool:
    """Whether every search has its trials."""
    return all(
        _search_finished(study, outdir, condition["name"], search)
        for condition, search in study.searches_in_order()
    )


def _search_finished(study: Study, outdir: pathlib.Path, condition: str, number: int) -> bool:
    search = Search(condition, number, study.trials, study.max_trials)
    while taken := search.take(1):
        result = finished(outdir, condition, number, taken[0])
        if not result:
            return False
        search.end(taken[0], result["status"])
    return True


def _is_new(outdir: pathlib.Path) -> bool:
    """Empty, but for a study.json that is being written, or was when its writer was killed: hidden
    names, as of `records.is_temporary`."""
    return outdir.is_dir() and all(path.name.startswith(".") for path in outdir.iterdir())
