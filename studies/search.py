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
from data.sources import RecordError, SourceError
from runs import cli, records
from runs.study import (
    ECHO_SETTINGS,
    FRESH_EXAMPLES,
    MAX_TRIALS_FACTOR,
    SECONDS,
    SEEDS_PER_SEARCH,
    Axis,
    Condition,
    Study,
    condition_label,
    nested,
    short,
)
from training import check as config_check
from training.experiment import batches_of_test_split, make_experiment

MAX_TRIALS = SEEDS_PER_SEARCH // MAX_TRIALS_FACTOR
MAX_SEARCHES = 1_000  # far more than anyone runs, and few enough to list
_MAX_CHECKED = 1_000  # planned trials whose whole numbers and choices are checked in advance

# Searched fields that leave a trial's batches unchanged, so that lanes can share them.
_LANE_FIELDS = ("optimizer.", "loss.")

# Fields that decide how many steps and fresh examples a trial has, and may be searched.
_LENGTH_FIELDS = ("batch_size", "budget.fresh_examples")

# (field, the value that lanes require, why)
_LANES_REQUIRE = (
    ("echo.policy", "fixed", "which depends on the time of a step, and lanes change that"),
    ("echo.placement", "host", "which each lane would fill for itself"),
)

_DEFAULTS = {field.name: field.default for field in base.FIELDS}
_INTEGER_FIELDS = {name for name, default in _DEFAULTS.items() if type(default) is int}


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
    return Study(
        name=name,
        conditions=_labeled(conditions, config),
        target=records.Target(**nested(config, "target").to_dict()),
        baseline=baseline,
        trials=trials,
        searches=searches,
        budget=nested(config, "budget.fresh_examples"),
        space=tuple(resolved_axis(axis, config) for axis in axes),
        score=score,
        config=config,
        config_flag=config_flag,
    )


def resolved_axis(record: Any, config: ml_collections.ConfigDict) -> Axis:
    """The axis of a dict. `times` names a field by whose value `min` and `max` are multiplied;
    raises ValueError."""
    if not isinstance(record, Mapping) or "times" not in record:
        return Axis.from_record(record)
    axis = Axis.from_record({key: value for key, value in record.items() if key != "times"})
    field = record["times"]
    numeric = isinstance(field, str) and type(_DEFAULTS.get(field)) in (int, float)
    if not numeric or axis.values:
        raise ValueError(
            f"{axis.field}: times is {short(field)}; allowed: the name of a numeric field, on an "
            "axis with min and max"
        )
    unit = nested(config, field)
    if unit <= 0:
        raise ValueError(
            f"{axis.field}: times is {field!r}, which is {unit:g}; allowed: a field above 0"
        )
    return Axis(axis.field, axis.scale, axis.min * unit, axis.max * unit)


def _labeled(
    conditions: Mapping[str, Mapping[str, Any]], config: ml_collections.ConfigDict
) -> tuple[Condition, ...]:
    """Conditions with labels; the buffer size follows a label that several would share."""
    labels = {name: condition_label(overrides, config) for name, overrides in conditions.items()}
    count = Counter(labels.values())
    for name, overrides in conditions.items():
        if count[labels[name]] > 1:
            size = Condition.of(name, overrides, config).shuffle_buffer
            labels[name] += f", buffer {size:,}"
    return tuple(
        Condition.of(name, overrides, config, labels[name])
        for name, overrides in conditions.items()
    )


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
    return round(value) if axis.field in _INTEGER_FIELDS and not axis.values else value


def trial_config(
    study: Study, condition: Condition, search: int, trial: int
) -> ml_collections.ConfigDict:
    """The complete configuration of a trial."""
    hparams = point(study.space, search, trial)
    return _configured(study, study.trial_settings(condition, search, trial, hparams))


def longest_trials(study: Study, condition: Condition) -> list[ml_collections.ConfigDict]:
    """Configurations of a condition that include the trial with the most steps and the one with the
    most fresh examples: with both ends of the axes that decide these numbers."""
    ends = {axis.field: _extremes(axis) for axis in study.space if axis.field in _LENGTH_FIELDS}
    settings = study.trial_settings(condition, 0, 0, point(study.space, 0, 0))
    return [
        _configured(study, settings | dict(zip(ends, values, strict=True)))
        for values in itertools.product(*ends.values())
    ]


def _configured(study: Study, settings: Mapping[str, Any]) -> ml_collections.ConfigDict:
    config = copy.deepcopy(study.config)
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
    check_counts(study)
    check_axes(study)
    if lanes > 1:
        _check_lanes(study)
    check_values(study)
    opened = set()
    for condition in study.conditions:
        prepared = make_experiment(trial_config(study, condition, 0, 0))
        dataset = prepared.config.dataset
        if dataset.test_split and dataset.to_json() not in opened:  # read only after training
            try:
                batches_of_test_split(prepared)
            except (SourceError, RecordError) as error:
                raise cli.InputError(
                    f"config.dataset.test_split is {dataset.test_split!r} (allowed: '', for none): "
                    f"{error}"
                ) from error
            opened.add(dataset.to_json())


def check_counts(study: Study) -> None:
    """Checks the numbers of trials and searches; raises InputError."""
    for name, maximum in (("trials", MAX_TRIALS), ("searches", MAX_SEARCHES)):
        number = getattr(study, name)
        if type(number) is not int or not 1 <= number <= maximum:
            raise cli.InputError(
                f"study {study.name!r} has {name} {short(number)}; allowed: a whole number from 1 "
                f"to {maximum:,}"
            )


def check_axes(study: Study) -> None:
    """Checks that each axis stays within what its field allows, and that nothing else varies that
    field; raises InputError."""
    for axis in study.space:
        with errors_of(study.name):
            check_field(axis.field, numeric=not axis.values)
        for value in _extremes(axis):
            with errors_of(study.name, _searched(axis, value)):
                cli.set_field(base.get_config(), axis.field, value)
    for field, number in Counter(axis.field for axis in study.space).items():
        if number > 1:
            raise cli.InputError(
                f"study {study.name!r} searches {field} on {number} axes; keep one of them"
            )
    for condition in study.conditions:
        if both := {axis.field for axis in study.space} & set(condition.overrides):
            raise cli.InputError(
                f"condition {condition.name!r} sets {', '.join(sorted(both))}, which the search "
                "space varies too; leave it out of one of them"
            )
    for axis in study.space:
        if axis.field in ECHO_SETTINGS:
            raise cli.InputError(
                f"study {study.name!r} searches {axis.field}, by which its conditions differ; give "
                "each of its values a condition instead"
            )


def check_values(study: Study) -> None:
    """Checks the extremes of each axis in each condition, combined with a drawn point of the other
    axes, the whole numbers and choices of the trials, and the seeds of the last one; raises
    InputError."""
    for condition in study.conditions:
        config = trial_config(study, condition, 0, 0)
        try:
            config_check.check(config)
        except config_check.ConfigError:
            # what fails without the axes, too, is not the fault of one
            with errors_of(study.name, f"condition {condition.name!r}"):
                config_check.check(_configured(study, study.trial_settings(condition, 0, 0, {})))
        for axis in study.space:
            for value in _extremes(axis):
                searched = _searched(axis, value)
                with errors_of(study.name, f"condition {condition.name!r}: {searched}"):
                    _check_value(config, axis.field, value)
    _check_combinations(study)
    last = (study.searches - 1, study.max_trials - 1)
    baseline = study.condition(study.baseline)
    config = trial_config(study, baseline, *last)
    for name, value in study.seeds(*last).items():
        with errors_of(study.name, f"its last trial has {name} = {value}"):
            _check_value(config, name, value)
    # neither the network nor the data depend on the others
    axes = [axis for axis in study.space if not axis.field.startswith(_LANE_FIELDS)]
    if axes:
        make_experiment(trial_config(study, baseline, 0, 0))
    for axis in axes:
        for value in _extremes(axis):
            config = trial_config(study, baseline, 0, 0)
            cli.set_field(config, axis.field, value)
            with errors_of(study.name, _searched(axis, value)):
                make_experiment(config)


def _check_combinations(study: Study) -> None:
    """Checks each combination of whole numbers and choices that trials will have, which may be
    refused though the ends of each axis are allowed: a batch size that is no multiple, say."""
    fields = [a.field for a in study.space if a.values or a.field in _INTEGER_FIELDS]
    combinations = {}
    searches = min(study.searches, math.ceil(_MAX_CHECKED / study.max_trials))
    for search in range(searches if fields else 0):
        for trial, values in enumerate(_points(study.space, search, 0, study.max_trials)):
            key = tuple(values[field] for field in fields)
            combinations.setdefault(key, (search, trial, values))
    for condition in study.conditions:
        config = trial_config(study, condition, 0, 0)
        for search, trial, values in combinations.values():
            listed = ", ".join(f"{field} = {short(values[field])}" for field in fields)
            subject = f"condition {condition.name!r}, search {search}, trial {trial} ({listed})"
            with errors_of(study.name, subject):
                for name, value in values.items():
                    cli.set_field(config, name, value)
                config_check.check_rules(config)


def check_field(name: str, numeric: bool = False) -> None:
    """Checks that a study may vary a field; raises ValueError or InputError."""
    cli.set_field(base.get_config(), name, _DEFAULTS.get(name))  # if it exists
    if name.startswith("seed."):
        raise ValueError(f"{name} is varied, but search and trial decide it; leave it out")
    if name.startswith("target."):
        raise ValueError(
            f"{name} is varied, but one target judges all trials; set it in overrides instead"
        )
    if numeric and type(_DEFAULTS[name]) not in (int, float):
        raise ValueError(f"{name} has a numeric scale, but is no number; allowed: the scale choice")


@contextlib.contextmanager
def errors_of(study: str, subject: str = "") -> Iterator[None]:
    """Turns an error in the block into an InputError that names the study."""
    try:
        yield
    except (ValueError, cli.InputError) as error:
        raise cli.InputError(
            f"study {study!r}: {subject}{': ' if subject else ''}{error}"
        ) from error


def _searched(axis: Axis, value: Any) -> str:
    return f"the search may set {axis.field} to {short(value)}"


def _extremes(axis: Axis) -> list[Any]:
    return [_cast(axis, value) for value in axis.extremes()]


def _check_value(config: ml_collections.ConfigDict, field: str, value: Any) -> None:
    """Checks that `field` may have this value in `config`; raises InputError."""
    changed = copy.deepcopy(config)
    cli.set_field(changed, field, value)
    config_check.check(changed)


def _check_lanes(study: Study) -> None:
    """Checks that batches do not vary between the trials of a search, since lanes share them."""
    others = [axis.field for axis in study.space if not axis.field.startswith(_LANE_FIELDS)]
    if others:
        raise cli.InputError(
            f"the search space varies {', '.join(others)}, so trials cannot share their input; "
            "allowed with --lanes: optimizer and loss fields"
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
