"""Loads the studies that a configuration file defines in get_studies(), and checks them."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import ml_collections

from configs import base
from runs import cli
from runs.study import FRESH_EXAMPLES, Study, check_name, check_score, is_number, short
from studies import search

_REQUIRED = {"conditions": dict, "baseline": str, "trials": int, "searches": int}
_OPTIONAL = {
    "about": str,
    "overrides": dict,
    "space": (list, tuple),
    "not_searched": (list, tuple, set),
    "score": str,
}
_NUMERIC = {field.name for field in base.FIELDS if type(field.default) in (int, float)}
_BUDGET = "budget.fresh_examples"
_KINDS = {dict: "a dict", str: "text", int: "a whole number"}


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
        for field, value in definition.get("overrides", {}).items():
            _set(config, field, value)
        for condition, fields in definition["conditions"].items():
            _check_condition(config, condition, fields)
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
    search.check_counts(study)
    search.check_axes(study)
    _check_baseline(study)
    if both := {axis.field for axis in study.space} & set(definition.get("overrides", {})):
        raise cli.InputError(
            f"study {name!r} overrides {', '.join(sorted(both))}, which its search space varies; "
            "name it in not_searched too, or leave the override out"
        )
    return study


def check_overrides(study: Study, overrides: Sequence[str]) -> None:
    """Checks that '--config.FIELD=VALUE' arguments have an effect, and that of the budget on all
    conditions, which may have it in proportion; raises InputError."""
    searched = {axis.field for axis in study.space}
    for word in overrides:
        flag = word.partition("=")[0]
        field = flag.removeprefix("--config.")
        if field in searched:
            why = "searches it"
        elif all(field in condition.overrides for condition in study.conditions):
            why = "sets it in every condition"
        elif field == _BUDGET and (own := _with_own_budget(study)):
            raise cli.InputError(
                f"{flag} would change the budget of some conditions of study {study.name!r} only, "
                f"since {', '.join(own)} set their own; leave it out, or define a study of your "
                "own (docs/studies.md)"
            )
        else:
            continue
        raise cli.InputError(
            f"{flag} has no effect on study {study.name!r}, which {why}; leave it out, or "
            "define a study of your own (docs/studies.md)"
        )


def _with_own_budget(study: Study) -> list[str]:
    return [condition.name for condition in study.conditions if _BUDGET in condition.overrides]


def all_studies(module: Any, variant: str) -> dict[str, dict[str, Any]]:
    """The studies of a configuration file by name; raises InputError for an error in its code."""
    if not hasattr(module, "get_studies"):
        return {}
    with cli.errors_of_file(module.__file__):
        studies = module.get_studies(variant)
    if not isinstance(studies, dict):
        raise cli.InputError(
            f"get_studies() of {module.__file__} returns {short(studies)}; allowed: a dict of "
            "studies by name"
        )
    for name in studies:
        if not isinstance(name, str) or not name.isprintable() or name in ("", "list"):
            raise cli.InputError(
                f"get_studies() of {module.__file__} names a study {short(name)}; allowed: text on "
                "one line, other than list, which --study=list needs"
            )
    return studies


def _axes(definition: dict[str, Any], module: Any, variant: str) -> list[Any]:
    """The axes of a study as its file gives them, without those that it does not search."""
    axes = definition.get("space")
    if axes is None:
        if not hasattr(module, "get_search_space"):
            raise ValueError(
                "it has no space, and its file has no get_search_space(); allowed: either"
            )
        with cli.errors_of_file(module.__file__):
            axes = module.get_search_space(variant)
    if not isinstance(axes, list | tuple):
        raise ValueError(f"its search space is {short(axes)}; allowed: a list of axes")
    left_out = definition.get("not_searched", ())
    for field in left_out:
        if not isinstance(field, str):
            raise ValueError(f"not_searched contains {short(field)}; allowed: names of fields")
        search.check_field(field)
    return [axis for axis in axes if _field(axis) not in left_out]


def _field(axis: Any) -> str:
    field = axis.get("field") if isinstance(axis, Mapping) else None
    return field if isinstance(field, str) else ""


def _set(config: ml_collections.ConfigDict, field: Any, value: Any) -> None:
    """Sets a field that a study overrides; raises ValueError or InputError."""
    if not isinstance(field, str):
        raise ValueError(f"overrides set {short(field)}; allowed: names of fields")
    if not isinstance(value, str | bool) and not is_number(value):
        raise ValueError(
            f"overrides set {field} to {short(value)}; allowed: a finite number, text, true, false"
        )
    if isinstance(value, str) and field in _NUMERIC:  # the analysis reads what is written here
        raise ValueError(f"overrides set {field} to {short(value)}; allowed: a number, not text")
    cli.set_field(config, field, value)


def _check_condition(config: ml_collections.ConfigDict, name: str, overrides: Any) -> None:
    """Checks what a condition sets; raises ValueError or InputError."""
    if not isinstance(overrides, dict):
        raise ValueError(
            f"condition {name!r} is {short(overrides)}; allowed: a dict of values by field"
        )
    config = copy.deepcopy(config)
    for field, value in overrides.items():
        _set(config, field, value)
        search.check_field(field)


def _check_baseline(study: Study) -> None:
    """Checks that the analysis compares with the baseline that is given; raises InputError."""
    compared = study.baseline_of(study.condition(study.baseline))
    if compared != study.baseline:
        raise cli.InputError(
            f"study {study.name!r}: its baseline is {study.baseline!r}, but conditions are "
            f"compared with no echoing at the same batch size; give {compared!r}"
        )


def _check_definition(definition: Any) -> None:
    """Checks the keys of one study in get_studies(), and their types; raises ValueError."""
    if not isinstance(definition, dict):
        raise ValueError(f"it is {short(definition)}; allowed: a dict")
    if missing := set(_REQUIRED) - set(definition):
        raise ValueError(f"{', '.join(sorted(missing))} is missing; add it in get_studies()")
    for key, value in definition.items():
        kinds = (_REQUIRED | _OPTIONAL).get(key)
        if kinds is None:
            allowed = ", ".join([*_REQUIRED, *_OPTIONAL])
            raise ValueError(f"{short(key)} is not a key of a study; allowed: {allowed}")
        if not isinstance(value, kinds) or isinstance(value, bool):
            raise ValueError(f"{key} is {short(value)}; allowed: {_KINDS.get(kinds, 'a list')}")
    names: dict[str, str] = {}
    for condition in definition["conditions"]:
        check_name(condition)
        if (other := names.setdefault(condition.lower(), condition)) != condition:
            raise ValueError(
                f"conditions {other!r} and {condition!r} differ only in case, and some file "
                "systems would give them one directory; rename one of them"
            )
    if definition["baseline"] not in definition["conditions"]:
        raise ValueError(
            f"its baseline is {definition['baseline']!r}; allowed: one of its conditions, "
            f"{', '.join(definition['conditions']) or 'of which it has none'}"
        )
    check_score(definition.get("score", FRESH_EXAMPLES))
