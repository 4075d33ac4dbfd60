"""The quasi-random search: which hyperparameters and seeds each trial has, checked in advance."""

import contextlib
import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import ml_collections
from scipy.stats import qmc

from configs import base
from echo.spec import abbreviated
from runs import cli
from runs.records import nested
from runs.study import SCALES, SECONDS, Axis, Condition, Study
from training import check as config_check
from training.experiment import make_experiment

_MAX_END = 1e300  # of an axis; its logarithm and multiples are finite

# Searched fields that change neither the network nor the data.
_HYPERPARAMETERS = ("optimizer.", "loss.")

# Fields of the input, which lanes share: they must be equal in all trials of a search.
_INPUT = ("workload", "dataset.", "augment", "batch_size", "budget.", "echo.", "upstream.")
_INPUT += ("prefetch", "mesh.", "sharding", "seed.data")


def resolved_axis(record: Mapping[str, Any], config: ml_collections.ConfigDict) -> Axis:
    """The axis of a dict, whose ends the field allows."""
    axis = dict(record)
    field, scale = str(axis.get("field")), str(axis.get("scale"))
    ends = {"values"} if scale == "choice" else {"min", "max"}
    refuse(
        scale not in SCALES or {*axis} - {"times"} != {"field", "scale", *ends},
        f"{field}: the axis is {abbreviated(axis)}; allowed: field, scale ({', '.join(SCALES)}), "
        "and min and max, perhaps times; or values, if the scale is choice",
    )
    default = check_field(field)
    if ends == {"values"}:
        # the order of a set would be another one in each process
        listed = isinstance(axis["values"], list | tuple) and axis["values"]
        refuse(not listed, f"{field}: values is {abbreviated(axis['values'])}; allowed: a list")
        resolved = Axis(field, scale, values=tuple(plain_value(field, v) for v in axis["values"]))
    else:
        refuse(type(default) not in (int, float), f"{field} is no number; allowed: scale choice")
        times, given = axis.get("times"), (axis["min"], axis["max"])
        unit = nested(config, str(times)) if times else 1
        smallest = -_MAX_END if scale == "linear" else 1 / _MAX_END
        with errors_of(f"{field}: min and max are {abbreviated(given)}, times {times or 1}"):
            low, high = (x if type(x) is int else float(x) for x in given)
            fits = unit > 0 and smallest <= low * unit <= high * unit <= _MAX_END
            refuse(not fits, "allowed: numbers, min up to max, above 0 with a logarithm")
        resolved = Axis(field, scale, low * unit, high * unit)
    for value in _extremes(resolved):
        with errors_of(f"the search may set {field} to {abbreviated(value)}"):
            cli.read(field, value)
    return resolved


def plain_value(field: str, value: Any) -> Any:
    """A value that a study gives a field: as it is if it is a plain number, so that tables show it
    as it was written; else, such as text or NumPy's numbers, in the field's type."""
    read = cli.read(field, value)
    return value if type(value) in (int, float) else read


def check_field(name: str) -> Any:
    """Checks that a study may vary a field, and returns its default; raises ValueError or
    InputError."""
    defaults = {field.name: field.default for field in base.FIELDS}
    cli.read(name, defaults.get(name))  # if it exists
    refuse(
        name.startswith(("seed.", "target.")),
        f"{name} is varied, but search and trial decide the seeds, and one target judges all "
        "trials; leave it out, or set it in overrides",
    )
    return defaults[name]


def refuse(wrong: Any, message: str) -> None:
    """Raises ValueError with the message if something is wrong."""
    if wrong:
        raise ValueError(message)


@contextlib.contextmanager
def errors_of(subject: str) -> Iterator[None]:
    """Turns an error in the block into an InputError that names the subject."""
    try:
        yield
    except (ValueError, cli.InputError) as error:
        raise cli.InputError(f"{subject}: {error}") from error


def point(space: Sequence[Axis], search: int, trial: int) -> dict[str, Any]:
    """The hyperparameters of one trial by field: point `trial` of the scrambled Halton sequence
    that is seeded with `search`. The values of integer fields are rounded. Empty without axes."""
    return _points(space, search, trial, 1)[0]


def _points(space: Sequence[Axis], search: int, first: int, number: int) -> list[dict[str, Any]]:
    """So many points of a search, from that of trial `first`."""
    if not space:
        return [{}] * number
    places = qmc.Halton(d=len(space), scramble=True, rng=search).random(first + number)[first:]
    return [
        {a.field: _cast(a, a.value_at(float(x))) for a, x in zip(space, xs, strict=True)}
        for xs in places
    ]


def _cast(axis: Axis, value: Any) -> Any:
    whole = any(f.name == axis.field and type(f.default) is int for f in base.FIELDS)
    return round(value) if whole and not axis.values else value


def _extremes(axis: Axis) -> list[Any]:
    return [_cast(axis, value) for value in axis.extremes()]


def trial_config(
    study: Study,
    condition: Condition,
    search: int,
    trial: int,
    changes: Mapping[str, Any] | None = None,
) -> ml_collections.ConfigDict:
    """The complete configuration of a trial; with `changes` to its hyperparameters."""
    hparams = point(study.space, search, trial) | dict(changes or {})
    config = copy.deepcopy(study.config)
    for name, value in study.trial_settings(condition, search, trial, hparams).items():
        cli.set_field(config, name, value)
    return config


def check(study: Study, lanes: int = 1) -> None:
    """Checks that every condition can be trained, and what the search may draw at its ends.

    Raises:
        cli.InputError: what is not allowed; nothing has been written.
    """
    if lanes > 1:
        _check_lanes(study)
    check_values(study)
    for condition in study.conditions:
        with errors_of(f"condition {condition.name!r}"):
            make_experiment(trial_config(study, condition, 0, 0))
    for axis in study.space:
        for end in () if axis.field.startswith(_HYPERPARAMETERS) else _extremes(axis):
            with errors_of(f"the search may set {axis.field} to {abbreviated(end)}"):
                config = trial_config(study, study.conditions[0], 0, 0, {axis.field: end})
                make_experiment(config)


def check_values(study: Study) -> None:
    """Checks the rules between fields in each condition: at the trials of the first search, and at
    the ends of each axis, combined with a drawn point of the others; raises InputError."""
    points = _points(study.space, 0, 0, study.max_trials)
    points += [points[0] | {a.field: end} for a in study.space for end in _extremes(a)]
    for condition in study.conditions:
        config = trial_config(study, condition, 0, 0)
        for values in points:
            at = f" with {in_words(values)}" if values else ""
            with errors_of(f"condition {condition.name!r}{at}"):
                for name, value in values.items():
                    cli.set_field(config, name, value)
                config_check.check_rules(config)


def in_words(hparams: Mapping[str, Any]) -> str:
    """Hyperparameters in one line: 'learning_rate 0.123, momentum 0.9'."""
    return ", ".join(
        f"{name.rpartition('.')[2]} {f'{x:.3g}' if isinstance(x, float) else x}"
        for name, x in hparams.items()
    )


def _check_lanes(study: Study) -> None:
    """Checks that lanes can share the input of all trials of a search."""
    with errors_of("--lanes"):
        shared = [axis.field for axis in study.space if axis.field.startswith(_INPUT)]
        refuse(
            shared,
            f"the search varies {', '.join(shared)}, so that trials cannot share their input; "
            "leave out --lanes, or those axes",
        )
        for condition in study.conditions:
            echo = trial_config(study, condition, 0, 0).echo
            refuse(
                (echo.policy, echo.placement) != ("fixed", "host"),
                f"condition {condition.name!r} has echo.policy={echo.policy} and echo.placement="
                f"{echo.placement}; lanes share only what is fixed and on the host",
            )
        refuse(study.score == SECONDS, "lanes would share the seconds by which it is scored")
