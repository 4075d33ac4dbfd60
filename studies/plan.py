"""The plan of a study: loaded from a configuration file, described, and kept in study.json."""

import copy
import dataclasses
import itertools
import json
import pathlib
import re
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import ml_collections

from configs import base
from data.splits import open_splits
from echo.spec import abbreviated, checked_integer
from runs import cli, origins, records, workdirs
from runs.progress import several
from runs.study import (
    CADENCES,
    ECHO_SETTINGS,
    FRESH_EXAMPLES,
    MAX_TRIALS_FACTOR,
    MAY_CHANGE,
    SCORES,
    SEEDS_PER_SEARCH,
    SIZES,
    Condition,
    Study,
    condition_label,
)
from studies import search
from studies.search import errors_of, refuse

MAX_TRIALS = SEEDS_PER_SEARCH // MAX_TRIALS_FACTOR
MAX_SEARCHES = 1_000  # far more than anyone runs, and few enough to list

_NAME = re.compile(r"[A-Za-z0-9_=-][A-Za-z0-9_.=-]{0,99}")  # of a directory on any file system
_RESERVED = (records.STUDY, records.CHECKPOINTS, "report")  # other entries of such a directory

# Held while study.json is written; hidden, since a condition may be named `lock`.
_LOCK = f".{records.LOCK}"


def load_study(
    config: ml_collections.ConfigDict,
    module: Any,
    config_flag: str,
    name: str,
    overrides: Sequence[str] = (),
    **sizes: int,
) -> Study:
    """The study `name` of a configuration file.

    Args:
        config: the file's configuration; the study's own overrides are written into it.
        module: the file, with get_studies(variant) and get_search_space(variant).
        config_flag: FILE[:VARIANT].
        overrides: '--config.FIELD=VALUE' arguments, which take precedence over the study's own.
        sizes: `trials` and `searches`, instead of the study's own.

    Raises:
        cli.InputError: there is no such study, or its definition is wrong. `search.check` checks
            what needs the data.
    """
    variant = config_flag.partition(":")[2]
    studies = all_studies(module, variant)
    if name not in studies:
        known = ", ".join(map(str, studies)) or "none; add get_studies() to it"
        raise cli.InputError(f"--study is {name!r}; allowed with {config_flag}: {known}")
    with cli.errors_of_file(module.__file__), errors_of(f"study {name!r}"):
        keys = {"overrides": {}, "space": None, "not_searched": (), "about": ""}
        keys |= studies[name] | sizes
        own, axes, left_out, _ = map(keys.pop, ("overrides", "space", "not_searched", "about"))
        for field, value in own.items():
            cli.set_field(config, field, value)
        cli.override(config, overrides)
        for field in left_out:
            search.check_field(field)
        axes = module.get_search_space(variant) if axes is None else axes
        axes = [axis for axis in axes if axis.get("field") not in left_out]
        both = ", ".join(axis["field"] for axis in axes if axis.get("field") in own)
        refuse(both, f"it overrides {both}, which it searches; name it in not_searched, too")
        return make_study(name, config, config_flag=config_flag, space=axes, **keys)


def make_study(
    name: str,
    config: ml_collections.ConfigDict,
    *,
    conditions: Mapping[str, Mapping[str, Any]],
    baseline: str | None,
    trials: int,
    searches: int,
    space: Sequence[Mapping[str, Any]] = (),
    score: str = FRESH_EXAMPLES,
    cadence: str = CADENCES[0],
    config_flag: str = "",
) -> Study:
    """A study of a configuration; see docs/studies.md.

    Args:
        conditions: overrides by condition name, in order of presentation.
        baseline: the condition without echoing that others are compared with; None = the first, or
            what it is compared with.
        space: axes of the searches, as dicts.

    Raises:
        ValueError, cli.InputError: what is not allowed.
    """
    config.loader.workers = max(0, config.loader.workers)  # not chosen: seconds are compared
    checked_integer("trials", trials, 1, MAX_TRIALS)
    checked_integer("searches", searches, 1, MAX_SEARCHES)
    for key, value, allowed in (("score", score, SCORES), ("cadence", cadence, CADENCES)):
        refuse(value not in allowed, f"{key} is {value!r}; allowed: {', '.join(allowed)}")
    given = {condition: _overrides(condition, own) for condition, own in conditions.items()}
    labels = {condition: condition_label(own, config) for condition, own in given.items()}
    count = Counter(labels.values())
    for condition, own in given.items():
        if count[labels[condition]] > 1:
            labels[condition] += f", buffer {Condition.of('', own, config).shuffle_buffer:,}"
    study = Study(
        name=name,
        conditions=tuple(Condition.of(c, own, config, labels[c]) for c, own in given.items()),
        target=records.Target(**config.target.to_dict()),
        baseline=baseline or "",
        trials=trials,
        searches=searches,
        budget=config.budget.fresh_examples,
        space=tuple(search.resolved_axis(axis, config) for axis in space),
        score=score,
        cadence=cadence,
        config=config,
        config_flag=config_flag,
    )
    varied = {*ECHO_SETTINGS}.union(*given.values())
    for axis in study.space:
        refuse(
            axis.field in varied,
            f"it searches {axis.field}, which another axis or a condition sets, or by which "
            "conditions differ; leave one out",
        )
        varied.add(axis.field)
    if baseline is None:
        first = study.conditions[0]
        return dataclasses.replace(study, baseline=study.baseline_of(first) or first.name)
    compared = [c.name for c in study.conditions if study.baseline_of(c) == c.name]
    refuse(
        baseline not in compared,
        f"its baseline is {abbreviated(baseline)}; allowed: {' or '.join(compared)}, a condition "
        "without echoing",
    )
    return study


def _overrides(condition: Any, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that a condition sets; raises ValueError or InputError."""
    # its name is a directory's, appears in messages, and must not be another entry's
    if not isinstance(condition, str) or not _NAME.fullmatch(condition) or condition in _RESERVED:
        raise ValueError(
            f"a condition is named {abbreviated(condition)}, as the directory of its trials will "
            "be; allowed: up to 100 letters, digits, '_', '-', '=', and '.', not starting with "
            f"'.', except {', '.join(_RESERVED)}"
        )
    with errors_of(f"condition {condition!r}"):
        for field in fields:
            search.check_field(field)
        return {field: search.plain_value(field, value) for field, value in fields.items()}


def vary(
    config: ml_collections.ConfigDict, config_flag: str, flags: Sequence[str], **sizes: int
) -> Study:
    """A study of each combination of the values of some fields, at the configuration's own
    hyperparameters, without a search.

    Args:
        flags: 'FIELD=VALUE,VALUE,...'. An echo.factor other than 1 without an insertion point is
            inserted before augmentation; echo.factor=1 is no echoing.

    Raises:
        cli.InputError: a field cannot have such a value.
    """
    values: dict[str, list[Any]] = {}
    for flag in flags:
        with errors_of(f"--vary={flag}"):
            name, _, texts = flag.partition("=")
            refuse(not texts, "allowed: FIELD=VALUE,VALUE,...")
            search.check_field(name)
            read = [cli.read(name, text) for text in texts.split(",")]
            twice = len({*read}) < len(read) or name in values
            refuse(twice, f"{name} has a value twice; give each once")
            values[name] = read
    conditions = {}
    for combination in itertools.product(*values.values()):
        own = dict(zip(values, combination, strict=True))
        factor, insertion = own.get("echo.factor"), own.get("echo.insertion")
        without = {}
        if factor == 1 or (insertion == "none" and factor is None):
            # one condition, since without echoing its other settings change nothing
            named = "echo.insertion" if factor is None else "echo.factor"
            own = {k: v for k, v in own.items() if k == named or k not in ECHO_SETTINGS}
            without = {"echo.insertion": "none", "echo.factor": 1.0}
        elif factor and config.echo.insertion == "none":
            own.setdefault("echo.insertion", "before_augmentation")
        varied = [field for field in values if field in own]
        name = "_".join(f"{field.rpartition('.')[2]}={own[field]}" for field in varied)
        conditions[name] = own | without
    with errors_of("--vary"):
        keys: dict[str, Any] = {"trials": 1, "searches": 3, "baseline": None} | sizes
        return make_study("vary", config, conditions=conditions, config_flag=config_flag, **keys)


def check_overrides(study: Study, overrides: Sequence[str]) -> None:
    """Checks that '--config.FIELD=VALUE' arguments have an effect, and that of the budget on all
    conditions, which may have it in proportion; raises InputError."""
    for flag in (word.partition("=")[0] for word in overrides):
        field = flag.removeprefix("--config.")
        setting = [condition.name for condition in study.conditions if field in condition.overrides]
        searched = any(axis.field == field for axis in study.space)
        budget = field == "budget.fresh_examples" and setting
        if searched or budget or len(setting) == len(study.conditions):
            raise cli.InputError(
                f"{flag} does not hold for study {study.name!r}, where "
                f"{'the search' if searched else ', '.join(setting)} sets {field}; leave it out, "
                "or define a study of your own (docs/studies.md)"
            )


def all_studies(module: Any, variant: str) -> dict[str, dict[str, Any]]:
    """The studies of a configuration file by name; raises InputError for an error in its code."""
    if not hasattr(module, "get_studies"):
        return {}
    with cli.errors_of_file(module.__file__):
        studies = module.get_studies(variant)
        if not isinstance(studies, dict) or any(name in ("", "list") for name in studies):
            raise ValueError("get_studies() must return a dict by name, none of them 'list'")
    return studies


def listing(
    config: ml_collections.ConfigDict, module: Any, config_flag: str, overrides: Sequence[str]
) -> str:
    """Each study of a configuration file: what it is for, and what it costs."""
    texts = []
    for name, definition in all_studies(module, config_flag.partition(":")[2]).items():
        study = load_study(copy.deepcopy(config), module, config_flag, name, overrides)
        lines = textwrap.wrap(f"{definition.get('about', '')} {cost(study)}", 96)
        texts.append("\n    ".join([name, *lines]))
    return "\n\n".join(texts) or f"{config_flag} has no studies; add get_studies() to it"


def dry_run(study: Study) -> str:
    """The plan: target, conditions, search space, and cost."""
    target, sign = study.target, ">=" if study.target.mode == "above" else "<="
    lines = [
        f"study {study.name} of {study.config_flag}: {target.metric} {sign} {target.value:g}, "
        f"scored by {study.score}",
        "conditions (* = baseline):",
    ]
    for condition in study.conditions:
        mark = "*" if condition.name == study.baseline else " "
        lines.append(f" {mark} {condition.name}: {condition.label}")
        lines += [f"       {name} = {value}" for name, value in condition.overrides.items()]
    lines += ["search space:", *(f"   {axis}" for axis in study.space)]
    return "\n".join([*lines, cost(study)])


def cost(study: Study) -> str:
    """Trials and fresh examples, as far as they are known in advance."""
    searches = len(study.conditions) * study.searches
    return (
        f"Cost: {several(searches * study.trials, 'trial')} of {study.budgets} fresh examples or "
        f"less ({several(len(study.conditions), 'condition')} x "
        f"{several(study.searches, 'search')} x {several(study.trials, 'trial')}); those that "
        f"diverge are replaced, up to {several(searches * study.max_trials, 'attempt')}."
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
        cli.InputError: the directory contains something else, or another study; nothing has been
            written.
        records.Damaged: study.json is damaged, or of another schema version.
    """
    plan = dict((study if study.record else with_record(study)).record)
    if _grown(study_dir, plan):
        study_dir.mkdir(parents=True, exist_ok=True)
        with workdirs.held(study_dir / _LOCK, wait=True):
            if grown := _grown(study_dir, plan):  # another launch may have written it meanwhile
                records.write_json(study_dir / records.STUDY, grown | origins.describe())
    there = records.read_json(study_dir / records.STUDY)
    sizes = [f"{there[name]} {name} ({plan[name]} here)" for name in ("trials", "searches")]
    kept = any(there[name] > plan[name] for name in SIZES)
    return f"the study in {study_dir} keeps its {' and '.join(sizes)}" if kept else ""


def _grown(study_dir: pathlib.Path, plan: dict[str, Any]) -> dict[str, Any] | None:
    """What study.json must become for the plan to run; None if nothing changes. Raises InputError
    if it is of another plan, or if the directory contains something else."""
    if not (study_dir / records.STUDY).exists():
        names = [path.name for path in study_dir.iterdir()] if study_dir.exists() else []
        if any(not name.startswith(".") for name in names if name != records.STUDY):
            raise cli.InputError(
                f"{study_dir} exists but contains no study; give a new or empty --outdir"
            )
        return plan
    existing = dict(Study.read(study_dir).record)
    here, there = plan["resolved_config"], existing["resolved_config"]
    changed = records.differences(there, here, base.MAY_CHANGE_IN_STUDY)
    changed = [f"config.{difference}" for difference in changed]
    changed += records.differences(_fixed(existing), _fixed(plan), ())
    if changed:
        raise cli.InputError(
            f"{study_dir} holds a study of another plan, which differs in {'; '.join(changed)}; "
            "give those values, or another --outdir"
        )
    larger = {name: max(existing[name], plan[name]) for name in SIZES}
    grown = existing | {"config": plan["config"]} | larger
    return None if grown == existing else grown


def _fixed(record: Mapping[str, Any]) -> dict[str, Any]:
    """What no later launch of a study may change in its study.json, besides `resolved_config`."""
    free = ("resolved_config", *MAY_CHANGE, *records.ORIGIN)
    fixed = {name: value for name, value in record.items() if name not in free}
    # notes are not part of the data, which the fingerprint tells apart
    fixed["dataset"] = {**record["dataset"], "notes": ()}
    fixed["conditions"] = {c["name"]: c["overrides"] for c in record["conditions"]}
    fixed["search_space"] = dict(enumerate(record["search_space"]))  # points depend on the order
    return fixed
