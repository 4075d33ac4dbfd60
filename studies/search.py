"""The quasi-random search: which hyperparameters and seeds each trial has, checked in advance."""

import contextlib
import copy
import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import ml_collections
from scipy.stats import qmc

from configs import base
from echo.spec import abbreviated
from runs import cli, records
from runs.study import (
    ECHO_SETTINGS,
    FRESH_EXAMPLES,
    MAX_TRIALS_FACTOR,
    SCALES,
    SECONDS,
    SEEDS_PER_SEARCH,
    Axis,
    Condition,
    Study,
    condition_label,
    is_number,
    nested,
)
from training import check as config_check
from training.experiment import batches_of_test_split, make_experiment

MAX_TRIALS = SEEDS_PER_SEARCH // MAX_TRIALS_FACTOR
MAX_SEARCHES = 1_000  # far more than anyone runs, and few enough to list
_MAX_CHECKED = 1_000  # planned trials whose whole numbers and choices are checked in advance

# Searched fields that change neither the network nor the data.
_HYPERPARAMETERS = ("optimizer.", "loss.")

# Fields that decide how many steps and fresh examples a trial has, and may be searched.
_LENGTH_FIELDS = ("batch_size", "budget.fresh_examples")

# Fields of the input, which lanes share: they must be equal in all trials of a search.
_INPUT = ("workload", "dataset.", "augment", "batch_size", "budget.", "echo.", "upstream.")
_INPUT += ("prefetch", "mesh.", "sharding", "seed.data")

# (field, the value that lanes require, why)
_LANES_REQUIRE = (
    ("echo.policy", "fixed", "which depends on the time of a step, and lanes change that"),
    ("echo.placement", "host", "which each lane would fill for itself"),
)


def make_study(
    name: str,
    config: ml_collections.ConfigDict,
    conditions: Mapping[str, Mapping[str, Any]],
    axes: Sequence[Any],
    *,
    trials: int,
    searches: int,
    baseline: str,
    score: str = FRESH_EXAMPLES,
    config_flag: str = "",
) -> Study:
    """A study of a configuration.

    Args:
        conditions: overrides by condition name, in order of presentation.
        axes: dicts, see docs/studies.md; ends with `times` are multiples of that field's value.

    Raises:
        ValueError: an axis or a setting of the echo stage that is not allowed.
    """
    labels = {name: condition_label(overrides, config) for name, overrides in conditions.items()}
    count = Counter(labels.values())
    for condition, overrides in conditions.items():
        if count[labels[condition]] > 1:
            size = Condition.of(condition, overrides, config).shuffle_buffer
            labels[condition] += f", buffer {size:,}"
    return Study(
        name=name,
        conditions=tuple(
            Condition.of(name, overrides, config, labels[name])
            for name, overrides in conditions.items()
        ),
        target=records.Target(**config.target.to_dict()),
        baseline=baseline,
        trials=trials,
        searches=searches,
        budget=config.budget.fresh_examples,
        space=tuple(resolved_axis(axis, config) for axis in axes),
        score=score,
        config=config,
        config_flag=config_flag,
    )


def refuse(wrong: Any, message: str) -> None:
    """Raises ValueError with the message if something is wrong."""
    if wrong:
        raise ValueError(message)


def resolved_axis(record: Any, config: ml_collections.ConfigDict) -> Axis:
    """The axis of a dict. `times` names a field by whose value `min` and `max` are multiplied;
    raises ValueError."""
    refuse(not isinstance(record, Mapping), f"its axis {abbreviated(record)} is not a dict")
    axis = {name: value for name, value in record.items() if name != "times"}
    field, scale = record.get("field"), record.get("scale")
    refuse(
        not isinstance(field, str) or scale not in SCALES,
        f"an axis has field {abbreviated(field)} and scale {abbreviated(scale)}; allowed: the name "
        f"of a field, and {', '.join(SCALES)}",
    )
    keys = ["field", "scale", *(["values"] if scale == "choice" else ["min", "max"])]
    refuse(
        {*keys} - {*axis} or {*axis} - {"field", "scale", "min", "max", "values"},
        f"{field}: the axis has {abbreviated([*record])}; allowed with scale {scale!r}: "
        f"{', '.join(keys)}",
    )
    if scale == "choice":
        values = axis["values"]
        listed = isinstance(values, list | tuple) and values and "times" not in record
        refuse(not listed, f"{field}: values is {abbreviated(values)}; allowed: a list")
        return Axis(field, scale, values=tuple(values))
    low, high, unit = axis["min"], axis["max"], 1
    refuse(
        not (is_number(low) and is_number(high) and low <= high and (scale == "linear" or low > 0)),
        f"{field}: min is {abbreviated(low)} and max is {abbreviated(high)}; allowed: finite "
        f"numbers, min <= max{', above 0' * (scale != 'linear')}",
    )
    if "times" in record:
        unit: Any = nested(config, str(record["times"]))
        refuse(
            not is_number(unit) or unit <= 0,
            f"{field}: times is {abbreviated(record['times'])}, which is {abbreviated(unit)}; "
            "allowed: the name of a field above 0",
        )
    return Axis(field, scale, low * unit, high * unit)


def point(space: Sequence[Axis], search: int, trial: int) -> dict[str, Any]:
    """The hyperparameters of one trial by field: point `trial` of the scrambled Halton sequence
    that is seeded with `search`. The values of integer fields are rounded. Empty without axes."""
    return next(_points(space, search, trial, 1), {})


def _points(
    space: Sequence[Axis], search: int, first: int, number: int
) -> Iterator[dict[str, Any]]:
    """Yields so many points of a search, from that of trial `first`; none without axes."""
    if not space:
        return
    sequence = qmc.Halton(d=len(space), scramble=True, rng=search)
    if first:
        sequence.fast_forward(first)
    for positions in sequence.random(number):
        yield {
            axis.field: _cast(axis, axis.value_at(float(position)))
            for axis, position in zip(space, positions, strict=True)
        }


def _cast(axis: Axis, value: Any) -> Any:
    whole = type(_defaults().get(axis.field)) is int
    return round(value) if whole and not axis.values else value


def _extremes(axis: Axis) -> list[Any]:
    return [_cast(axis, value) for value in axis.extremes()]


def _defaults() -> dict[str, Any]:
    return {field.name: field.default for field in base.FIELDS}


def trial_config(
    study: Study, condition: Condition, search: int, trial: int
) -> ml_collections.ConfigDict:
    """The complete configuration of a trial."""
    hparams = point(study.space, search, trial)
    return _configured(study.config, study.trial_settings(condition, search, trial, hparams))


def longest_trials(study: Study, condition: Condition) -> list[ml_collections.ConfigDict]:
    """Configurations of a condition that include the trial with the most steps and the one with the
    most fresh examples: with both ends of the axes that decide these numbers."""
    ends = {axis.field: _extremes(axis) for axis in study.space if axis.field in _LENGTH_FIELDS}
    settings = study.trial_settings(condition, 0, 0, point(study.space, 0, 0))
    return [
        _configured(study.config, settings | dict(zip(ends, values, strict=True)))
        for values in itertools.product(*ends.values())
    ]


def _configured(
    config: ml_collections.ConfigDict, settings: Mapping[str, Any]
) -> ml_collections.ConfigDict:
    config = copy.deepcopy(config)
    for name, value in settings.items():
        cli.set_field(config, name, value)
    return config


def searches_in_order(study: Study) -> list[tuple[Condition, int]]:
    """(condition, search) pairs in the order in which they run: the first search of every
    condition, then the second search of every condition, and so on."""
    return [(c, search) for search in range(study.searches) for c in study.conditions]


def check(study: Study, lanes: int = 1) -> None:
    """Checks the study, and that every condition can be trained wherever the search may lead.

    Raises:
        cli.InputError: what is not allowed; nothing has been written.
    """
    check_axes(study)
    if lanes > 1:
        _check_lanes(study)
    check_values(study)
    opened = set()
    for condition in study.conditions:
        prepared = make_experiment(trial_config(study, condition, 0, 0))
        dataset = prepared.config.dataset
        if dataset.test_split and dataset.to_json() not in opened:  # read only after training
            with errors_of(study.name, f"config.dataset.test_split is {dataset.test_split!r}"):
                batches_of_test_split(prepared)
            opened.add(dataset.to_json())


def check_axes(study: Study) -> None:
    """Checks the numbers of trials and searches, that each axis stays within what its field allows,
    and that nothing else varies that field; raises InputError."""
    for name, maximum in (("trials", MAX_TRIALS), ("searches", MAX_SEARCHES)):
        number = getattr(study, name)
        if type(number) is not int or not 1 <= number <= maximum:
            raise cli.InputError(
                f"study {study.name!r} has {name} {abbreviated(number)}; allowed: a whole number "
                f"from 1 to {maximum:,}"
            )
    fields = Counter(axis.field for axis in study.space)
    for axis in study.space:
        with errors_of(study.name):
            check_field(axis.field, numeric=not axis.values)
            for value in _extremes(axis):
                with errors_of(study.name, _searched(axis, value)):
                    cli.set_field(base.get_config(), axis.field, value)
            refuse(fields[axis.field] > 1, f"it searches {axis.field} on two axes; keep one")
            refuse(
                axis.field in ECHO_SETTINGS,
                f"it searches {axis.field}, by which conditions differ; make a condition of each",
            )
            refuse(
                any(axis.field in condition.overrides for condition in study.conditions),
                f"a condition sets {axis.field}, which the search space varies too; leave one out",
            )


def check_values(study: Study) -> None:
    """Checks the extremes of each axis in each condition, combined with a drawn point of the other
    axes, the points of the trials, and the seeds of the last one; raises
    InputError."""
    drawn = list(_drawn(study))
    for condition in study.conditions:
        subject = f"condition {condition.name!r}"
        config = trial_config(study, condition, 0, 0)
        try:
            config_check.check(config)
        except config_check.ConfigError:
            # what fails without the axes, too, is not the fault of one
            alone = study.trial_settings(condition, 0, 0, {})
            with errors_of(study.name, subject):
                config_check.check(_configured(study.config, alone))
        for axis in study.space:
            for value in _extremes(axis):
                with errors_of(study.name, f"{subject}: {_searched(axis, value)}"):
                    config_check.check(_configured(config, {axis.field: value}))
        for trial, values in drawn:
            with errors_of(study.name, f"{subject}, {trial}"):
                for name, value in values.items():
                    cli.set_field(config, name, value)
                config_check.check_rules(config)
    baseline, last = study.condition(study.baseline), (study.searches - 1, study.max_trials - 1)
    with errors_of(study.name, "its last trial"):
        config_check.check(trial_config(study, baseline, *last))
    config = trial_config(study, baseline, 0, 0)
    for axis in study.space:
        for value in [] if axis.field.startswith(_HYPERPARAMETERS) else _extremes(axis):
            make_experiment(config)  # else what is wrong without the axis would be blamed on it
            with errors_of(study.name, _searched(axis, value)):
                make_experiment(_configured(config, {axis.field: value}))


def _drawn(study: Study) -> Iterator[tuple[str, dict[str, Any]]]:
    """Planned trials, by name. Rules may refuse one though the ends of each axis are allowed: a
    batch size that is no multiple, say."""
    if all(type(value) is float for axis in study.space for value in _extremes(axis)):
        return
    for search in range(min(study.searches, math.ceil(_MAX_CHECKED / study.max_trials))):
        for trial, values in enumerate(_points(study.space, search, 0, study.max_trials)):
            listed = ", ".join(f"{field} = {abbreviated(x)}" for field, x in values.items())
            yield f"search {search}, trial {trial} ({listed})", values


def check_field(name: str, numeric: bool = False) -> None:
    """Checks that a study may vary a field; raises ValueError or InputError."""
    default = _defaults().get(name)
    cli.set_field(base.get_config(), name, default)  # if it exists
    refuse(
        name.startswith(("seed.", "target.")),
        f"{name} is varied, but search and trial decide the seeds, and one target judges all "
        "trials; leave it out, or set it in overrides",
    )
    number = type(default) in (int, float)
    refuse(numeric and not number, f"{name} is no number; allowed: the scale choice")


@contextlib.contextmanager
def errors_of(study: str, subject: str = "") -> Iterator[None]:
    """Turns an error in the block into an InputError that names the study."""
    try:
        yield
    except (ValueError, cli.InputError) as error:
        named = "" if str(error).startswith("study ") else f"study {study!r}: "
        raise cli.InputError(f"{named}{subject}{': ' if subject else ''}{error}") from error


def _searched(axis: Axis, value: Any) -> str:
    return f"the search may set {axis.field} to {abbreviated(value)}"


def _check_lanes(study: Study) -> None:
    """Checks that lanes can share the input of all trials of a search."""
    if shared := [axis.field for axis in study.space if axis.field.startswith(_INPUT)]:
        raise cli.InputError(
            f"the search varies {', '.join(shared)}, so that trials cannot share their input; "
            "leave out --lanes, or those axes"
        )
    for field, required, reason in _LANES_REQUIRE:
        default = nested(study.config, field)
        for condition in study.conditions:
            if condition.overrides.get(field, default) != required:
                raise cli.InputError(
                    f"condition {condition.name!r} has {field} other than {required!r}, {reason}; "
                    "leave out --lanes"
                )
    if study.score == SECONDS:
        raise cli.InputError(
            f"study {study.name!r} is scored in seconds, which lanes would share; leave out --lanes"
        )
