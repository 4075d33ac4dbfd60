"""The plan of a study: loaded from a configuration file, described, and kept in study.json."""

import copy
import dataclasses
import itertools
import json
import pathlib
import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import ml_collections

from configs import base
from data.splits import open_splits
from echo.spec import abbreviated
from pipeline import accounting
from runs import cli, origins, records, workdirs
from runs.progress import several
from runs.study import FRESH_EXAMPLES, MAY_CHANGE, SCORES, SIZES, Study, nested
from studies import search

_REQUIRED = ("conditions", "baseline", "trials", "searches")
_OPTIONAL = ("about", "overrides", "space", "not_searched", "score")
_BUDGET = "budget.fresh_examples"
_DISPLAYED_TRIALS = 3

# A condition's name is a directory name on any file system, and appears in messages.
_NAME = re.compile(r"[A-Za-z0-9_=-][A-Za-z0-9_.=-]{0,99}")
_RESERVED_NAMES = (records.STUDY, "report")  # other entries of a study's directory

# Held while study.json is extended; hidden, since a condition may be named `lock`.
_LOCK = f".{records.LOCK}"

# What a later launch may change. Where the data lie stays in study.json as it was at first, and so
# do the notes on data, which the fingerprint tells apart.
_MAY_CHANGE = (*MAY_CHANGE, *(f"resolved_config.{name}" for name in base.MAY_CHANGE_IN_STUDY))
_MAY_CHANGE += ("dataset.notes",)


def load_study(
    config: ml_collections.ConfigDict,
    module: Any,
    config_flag: str,
    name: str,
    trials: int | None = None,
    searches: int | None = None,
    overrides: Sequence[str] = (),
) -> Study:
    """The study `name` of a configuration file.

    Args:
        config: the file's configuration; the study's own overrides are written into it.
        module: the file, with get_studies(variant) and get_search_space(variant).
        config_flag: FILE[:VARIANT].
        trials, searches: None = what the study says.
        overrides: '--config.FIELD=VALUE' arguments, which take precedence over the study's own.

    Raises:
        cli.InputError: there is no such study, or its definition is wrong. `search.check` checks
            what needs the data.
    """
    variant = config_flag.partition(":")[2]
    studies = all_studies(module, variant)
    if name not in studies:
        known = ", ".join(map(str, studies)) or "none; add get_studies() to it"
        raise cli.InputError(f"--study is {name!r}; allowed with {config_flag}: {known}")
    definition = studies[name]
    with search.errors_of(name):
        _check_definition(definition)
        _set(config, definition.get("overrides", {}))
        for condition, fields in definition["conditions"].items():
            with search.errors_of(name, f"condition {condition!r}"):
                _set(copy.deepcopy(config), fields)
                for field in fields:
                    search.check_field(field)
    cli.override(config, overrides)
    with search.errors_of(name):
        study = search.make_study(
            name,
            config,
            definition["conditions"],
            _axes(definition, module, variant),
            trials=definition["trials"] if trials is None else trials,
            searches=definition["searches"] if searches is None else searches,
            baseline=definition["baseline"],
            score=definition.get("score", FRESH_EXAMPLES),
            config_flag=config_flag,
        )
        search.check_axes(study)
        compared = study.baseline_of(study.condition(study.baseline))
        search.refuse(
            compared != study.baseline,
            f"its baseline is {study.baseline!r}, but conditions are compared with no echoing at "
            f"the same batch size; give {compared!r}",
        )
        both = {axis.field for axis in study.space} & {*definition.get("overrides", {})}
        search.refuse(
            both,
            f"it overrides {', '.join(sorted(both))}, which its search space varies; name it in "
            "not_searched too, or leave the override out",
        )
    return study


def vary(
    config: ml_collections.ConfigDict,
    config_flag: str,
    flags: Sequence[str],
    trials: int | None = None,
    searches: int | None = None,
) -> Study:
    """A study of each combination of the values of some fields, at the configuration's own
    hyperparameters, without a search.

    Args:
        flags: 'FIELD=VALUE,VALUE,...'. An echo.factor other than 1 without an insertion point is
            inserted before augmentation; echo.factor=1 is no echoing.

    Raises:
        cli.InputError: a field cannot have such a value.
    """
    fields, values = [], []
    for flag in flags:
        name, equals, text = flag.partition("=")
        if not equals or not text:
            raise cli.InputError(f"--vary is {flag!r}; allowed: FIELD=VALUE,VALUE,...")
        with search.errors_of("vary", f"--vary={flag}"):
            search.check_field(name)
            read = [cli.read(name, value) for value in text.split(",")]
            twice = len({*read}) < len(read) or name in fields
            search.refuse(twice, f"{name} has a value twice; give each once")
        fields.append(name)
        values.append(read)
    conditions = {}
    for combination in itertools.product(*values):
        overrides = dict(zip(fields, combination, strict=True))
        name = "_".join(f"{f.rpartition('.')[2]}={v}" for f, v in overrides.items())
        if overrides.get("echo.factor") == 1:
            overrides["echo.insertion"] = "none"
        elif "echo.factor" in fields and "echo.insertion" not in fields:
            default = config.echo.insertion
            overrides["echo.insertion"] = "before_augmentation" if default == "none" else default
        check_name(name)
        conditions[name] = overrides
    with search.errors_of("vary"):
        study = search.make_study(
            "vary",
            config,
            conditions,
            (),
            trials=1 if trials is None else trials,
            searches=3 if searches is None else searches,
            baseline=next(iter(conditions)),
            config_flag=config_flag,
        )
        baseline = study.baseline_of(study.conditions[0])
        search.check_axes(study)
    return dataclasses.replace(study, baseline=baseline)


def check_overrides(study: Study, overrides: Sequence[str]) -> None:
    """Checks that '--config.FIELD=VALUE' arguments have an effect, and that of the budget on all
    conditions, which may have it in proportion; raises InputError."""
    searched = {axis.field for axis in study.space}
    for word in overrides:
        flag = word.partition("=")[0]
        field = flag.removeprefix("--config.")
        setting = [condition.name for condition in study.conditions if field in condition.overrides]
        if field in searched:
            problem = "has no effect, since the study searches it"
        elif len(setting) == len(study.conditions):
            problem = "has no effect, since every condition sets it"
        elif field == _BUDGET and setting:
            problem = f"would spare {', '.join(setting)}, which set their own"
        else:
            continue
        raise cli.InputError(
            f"{flag} with study {study.name!r} {problem}; leave it out, or define a study of your "
            "own (docs/studies.md)"
        )


def all_studies(module: Any, variant: str) -> dict[str, dict[str, Any]]:
    """The studies of a configuration file by name; raises InputError for an error in its code."""
    if not hasattr(module, "get_studies"):
        return {}
    with cli.errors_of_file(module.__file__):
        studies = module.get_studies(variant)
    if not isinstance(studies, dict) or any(name in ("", "list") for name in studies):
        raise cli.InputError(
            f"get_studies() of {module.__file__} returns {abbreviated(studies)}; allowed: a dict "
            "of studies by name, none of them 'list'"
        )
    return studies


def _axes(definition: dict[str, Any], module: Any, variant: str) -> list[Any]:
    """The axes of a study as its file gives them, without those that it does not search."""
    axes = definition.get("space")
    if axes is None:
        given = hasattr(module, "get_search_space")
        search.refuse(not given, "it has no space, and its file no get_search_space(); add either")
        with cli.errors_of_file(module.__file__):
            axes = module.get_search_space(variant)
    left_out = definition.get("not_searched", ())
    for field in left_out:
        search.check_field(str(field))
    listed = isinstance(axes, list | tuple)
    search.refuse(not listed, f"its search space is {abbreviated(axes)}; allowed: a list of axes")
    return [a for a in axes if not isinstance(a, Mapping) or a.get("field") not in left_out]


def _set(config: ml_collections.ConfigDict, overrides: Any) -> None:
    """Sets fields that a study overrides; raises ValueError or InputError."""
    given = isinstance(overrides, Mapping)
    search.refuse(not given, f"{abbreviated(overrides)} is not a dict of values by field")
    for field, value in overrides.items():
        cli.set_field(config, str(field), value)
        # the analysis reads what is written here
        text = isinstance(value, str) and not isinstance(nested(config, field), str)
        search.refuse(text, f"{field} is {abbreviated(value)}; allowed: a number, not text")


def _check_definition(definition: Any) -> None:
    """Checks the keys of one study in get_studies(), and the values that others do not; raises
    ValueError."""
    given = {*definition} if isinstance(definition, dict) else set()
    missing, unknown = {*_REQUIRED} - given, given - {*_REQUIRED, *_OPTIONAL}
    allowed = ", ".join([*_REQUIRED, *_OPTIONAL])
    search.refuse(missing, f"{abbreviated(missing)} is missing; add it in get_studies()")
    search.refuse(unknown, f"{abbreviated(unknown)} is no key of a study; allowed: {allowed}")
    conditions, score = definition["conditions"], definition.get("score", FRESH_EXAMPLES)
    search.refuse(
        not isinstance(conditions, dict), f"conditions is {abbreviated(conditions)}, not a dict"
    )
    names = abbreviated([*conditions])
    for name in conditions:
        check_name(name)
    search.refuse(
        len({name.lower() for name in conditions}) < len(conditions),
        f"its conditions {names} include names that differ only in case, and some file systems "
        "would give them one directory; rename one of them",
    )
    search.refuse(
        definition["baseline"] not in [*conditions],
        f"its baseline is {abbreviated(definition['baseline'])}; allowed: one of its conditions, "
        f"{names}",
    )
    search.refuse(
        score not in SCORES, f"score is {abbreviated(score)}; allowed: {', '.join(SCORES)}"
    )


def check_name(name: Any) -> None:
    """Checks that a condition's name can be that of its directory; raises ValueError."""
    if not isinstance(name, str) or not _NAME.fullmatch(name) or name in _RESERVED_NAMES:
        raise ValueError(
            f"a condition is named {abbreviated(name)}, as the directory of its trials will be; "
            "allowed: up to 100 letters, digits, '_', '-', '=', and '.', not starting with '.', "
            f"except {' and '.join(_RESERVED_NAMES)}"
        )


def listing(
    config: ml_collections.ConfigDict, module: Any, config_flag: str, overrides: Sequence[str]
) -> str:
    """Each study of a configuration file: what it is for, and what it costs."""
    studies = all_studies(module, config_flag.partition(":")[2])
    if not studies:
        return f"{config_flag} has no studies; add get_studies() to it"
    lines = []
    for name, definition in studies.items():
        own = copy.deepcopy(config)
        study = load_study(own, module, config_flag, name, overrides=overrides)
        about = (str(definition.get("about", "")), cost(study))
        lines += [
            name,
            *(
                textwrap.fill(t, 100, initial_indent="    ", subsequent_indent="    ")
                for t in about
            ),
            "",
        ]
    return "\n".join(lines).rstrip()


def dry_run(study: Study) -> str:
    """Conditions, search space, first trials, seeds, and cost."""
    seed = study.config.seed
    sign = ">=" if study.target.mode == "above" else "<="
    lines = [
        f"study {study.name} of {study.config_flag}",
        f"target: {study.target.metric} {sign} {study.target.value:g}; scored by {study.score}",
        "",
        "conditions (* = baseline):",
    ]
    for condition in study.conditions:
        mark = "*" if condition.name == study.baseline else " "
        steps = max(map(accounting.total_steps, search.longest_trials(study, condition)))
        lines.append(
            f" {mark} {condition.name}: {condition.label}; at most {several(steps, 'step')}"
        )
        lines += [f"       {name} = {value}" for name, value in condition.overrides.items()]
    lines += ["", "search space:", *([f"   {axis}" for axis in study.space] or ["   none"])]
    if study.space:
        lines += ["", f"first trials of search 0, which has {study.trials}:"]
        for number in range(min(_DISPLAYED_TRIALS, study.trials)):
            point = search.point(study.space, 0, number).items()
            values = [f"{n} = {x:.4g}" if isinstance(x, float) else f"{n} = {x}" for n, x in point]
            lines.append(f"   {number}: {', '.join(values)}")
    lines += [
        "",
        f"seeds: seed.data = {seed.data} + search; seed.model = {seed.model} + "
        f"{search.SEEDS_PER_SEARCH} * search + trial; equal in all conditions",
        f"cost: {cost(study)}",
    ]
    return "\n".join(lines)


def cost(study: Study) -> str:
    """Trials and fresh examples, as far as they are known in advance."""
    searches = len(study.conditions) * study.searches
    budgets = [
        max(config.budget.fresh_examples for config in search.longest_trials(study, condition))
        for condition in study.conditions
    ]
    fresh_examples = sum(budgets) * study.searches * study.trials
    largest = any(axis.field == _BUDGET for axis in study.space)
    return (
        f"{several(len(study.conditions), 'condition')} x {several(study.searches, 'search')} x "
        f"{several(study.trials, 'trial')} = {several(searches * study.trials, 'trial')}, "
        f"diverged ones not counted (at most {several(searches * study.max_trials, 'attempt')}); "
        f"{fresh_examples:,} fresh examples if each trial uses "
        + ("the largest budget" if largest else "its whole budget")
    )


def with_record(study: Study) -> Study:
    """The study with the content of its study.json, which names its data, as `record`."""
    source, _, info = open_splits(study.config.dataset)
    dataset = info.to_record() | {"train_examples": len(source)}
    record = json.loads(json.dumps(study.to_record(dataset)))  # as it is read: tuples become lists
    return dataclasses.replace(study, record=record)


def open_study(study: Study, study_dir: pathlib.Path) -> str:
    """Writes study.json, or checks that the existing one is of this study, which may have grown.

    A study never shrinks, since that would change its results.

    Returns:
        A sentence if the study there has more trials or searches than this launch; else ''.

    Raises:
        cli.InputError: the directory contains something else, or a study of another schema
            version; nothing has been written.
    """
    study = study if study.record else with_record(study)
    plan = dict(study.record)
    with cli.writing_to(study_dir):
        existing = _read_record(study_dir) or _create(study_dir, plan | origins.describe())
    # fields that are newer than the study have had their defaults
    there = existing | {"resolved_config": base.with_defaults(existing["resolved_config"])}
    if changed := _changed(there, plan):
        raise cli.InputError(
            f"{study_dir} holds a study of another plan, which differs in {'; '.join(changed)}; "
            "give those values, or another --outdir"
        )
    if not _covers(existing, plan):
        # another launch may be extending the study, too
        with cli.writing_to(study_dir), workdirs.held(study_dir / _LOCK, wait=True):
            existing = _read_record(study_dir) or existing
            if not _covers(existing, plan):
                grown = {name: plan[name] for name in MAY_CHANGE} | _larger(existing, plan)
                grown = existing | grown | origins.describe()
                records.write_json(study_dir / records.STUDY, grown)
    words = {"trials": "trials per search", "searches": "searches per condition"}
    kept = [
        f"{number} {words[name]}, of which this launch runs {plan[name]}"
        for name, number in _larger(existing, plan).items()
        if name in words
    ]
    return f"the study in {study_dir} keeps its {', and its '.join(kept)}" if kept else ""


def _larger(existing: dict[str, Any], plan: dict[str, Any]) -> dict[str, int]:
    """The sizes of the study on disk that exceed those of the plan."""
    return {name: existing[name] for name in SIZES if existing[name] > plan[name]}


def _covers(existing: dict[str, Any], plan: dict[str, Any]) -> bool:
    """Whether the study on disk needs no change for the plan to run."""
    larger = _larger(existing, plan)
    return all(name in larger or existing.get(name) == plan[name] for name in MAY_CHANGE)


def _changed(existing: dict[str, Any], plan: dict[str, Any]) -> list[str]:
    """What differs from the plan of the study on disk, and must not; of lists only the names."""
    lists = [name for name, value in plan.items() if isinstance(value, list)]
    here = {name: value for name, value in plan.items() if name not in lists}
    changed = workdirs.differences({name: existing.get(name) for name in here}, here, _MAY_CHANGE)
    changed = [text.replace("resolved_config.", "config.", 1) for text in changed]
    return changed + [name for name in lists if existing.get(name) != plan[name]]


def _read_record(study_dir: pathlib.Path) -> dict[str, Any] | None:
    """The content of study.json, None if it does not exist; raises InputError if it is damaged."""
    if not (study_dir / records.STUDY).exists():
        return None
    try:
        return dict(Study.read(study_dir).record)
    except records.Damaged as error:
        raise cli.InputError(
            f"the study in {study_dir} cannot be used ({error}); give another --outdir"
        ) from error


def _create(study_dir: pathlib.Path, plan: dict[str, Any]) -> dict[str, Any]:
    """Creates the directory and its study.json; returns the content of that file, which another
    launch may have created first."""
    # A concurrent launch writes its study.json before anything else, under a hidden name.
    study_dir.mkdir(parents=True, exist_ok=True)
    others = [path for path in study_dir.iterdir() if not path.name.startswith(".")]
    if others and not (study_dir / records.STUDY).exists():
        raise cli.InputError(
            f"{study_dir} exists but contains no study; give a new or empty --outdir"
        )
    try:
        records.create_json(study_dir / records.STUDY, plan)
    except FileExistsError:
        return _read_record(study_dir) or plan
    return plan
