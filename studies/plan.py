"""A study as a value: conditions, search space and seeds, and what each trial's numbers are."""

import contextlib
import copy
import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any

from scipy.stats import qmc

import train
from configs import base
from runs import cli
from runs.study import check_axis, check_name, is_number, short
from training import check as config_check
from training import experiment

# Diverged trials do not count, and about half of a wide search diverges (Shallue et al. 2018), so
# a search may try this many times as many points as it needs.
MAX_TRIALS_FACTOR = 2

# Model seeds of two searches never meet, and a trial's does not depend on the number of trials.
SEEDS_PER_SEARCH = 10_000
MAX_TRIALS = SEEDS_PER_SEARCH // MAX_TRIALS_FACTOR
MAX_SEARCHES = 1_000  # far more than anyone runs, and few enough to be listed

# What trials are compared by: fresh examples or seconds until the target, or the best value within
# the budget.
SCORES = ("fresh_examples", "seconds", "best_value")

_CADENCE = "evaluate_every_fresh_examples"

# Searched fields that leave a trial's batches as they are, so that lanes can share them.
_LANE_FIELDS = ("optimizer.", "loss.")

_DEFAULTS = {field.name: field.default for field in base.FIELDS}
_WHOLE_NUMBERS = {name for name, default in _DEFAULTS.items() if type(default) is int}

# (field, its value with lanes, why no other)
_LANES_NEED = (
    ("echo.policy", "fixed", "which goes by how long a step takes, another time in lanes"),
    ("echo.placement", "host", "which each lane would fill for itself"),
)


@dataclasses.dataclass(frozen=True)
class Study:
    """What is run: conditions x searches x trials of one configuration.

    Attributes:
        config: the configuration that all trials start from.
        conditions: dicts with `name`, `label` and `overrides`, in the order of presentation.
        space: axes of the search: dicts with `field`, `scale` and `min`, `max` or `values`.
        trials: trials of a search that must not have diverged.
        searches: independent repetitions of each condition's search.
        baseline: the name of the condition that the others are compared with.
        score: one of SCORES.
    """

    name: str
    config: Any
    config_flag: str
    conditions: tuple[dict[str, Any], ...]
    space: tuple[dict[str, Any], ...]
    trials: int
    searches: int
    baseline: str
    score: str = "fresh_examples"

    @property
    def max_trials(self) -> int:
        return MAX_TRIALS_FACTOR * self.trials

    def condition(self, name: str) -> dict[str, Any]:
        """The condition of that name."""
        return next(each for each in self.conditions if each["name"] == name)

    def searches_in_order(self) -> Iterator[tuple[dict[str, Any], int]]:
        """(condition, search) pairs in the order in which they are run: every condition's first
        search, then every condition's second one."""
        for search in range(self.searches):
            for condition in self.conditions:
                yield condition, search


def point(space: Sequence[dict[str, Any]], search: int, trial: int) -> dict[str, Any]:
    """The hyperparameters of one trial: point `trial` of the search's scrambled Halton sequence."""
    sequence = qmc.Halton(d=len(space), scramble=True, rng=search)
    if trial:
        sequence.fast_forward(trial)
    units = sequence.random(1)[0]
    return {axis["field"]: scaled(axis, float(u)) for axis, u in zip(space, units, strict=True)}


def scaled(axis: dict[str, Any], unit: float) -> Any:
    """The value at `unit` in [0, 1) along an axis, evenly spaced in the axis's scale; the nearest
    whole number where the field is one."""
    if axis["scale"] == "choice":
        return axis["values"][int(unit * len(axis["values"]))]
    low, high = axis["min"], axis["max"]
    if axis["scale"] == "linear":
        value = low + (high - low) * unit
    else:
        value = math.exp(math.log(low) + (math.log(high) - math.log(low)) * unit)
    if axis["scale"] == "log_one_minus":
        value = 1.0 - value
    return round(value) if axis.get("field") in _WHOLE_NUMBERS else value


def trial_config(study: Study, condition: dict[str, Any], search: int, trial: int) -> Any:
    """A trial's whole configuration. The data seed is the search's, the model seed the trial's.

    Neither seeds nor hyperparameters depend on the condition, so equal trials of two conditions are
    a pair: the same network, the same order of examples, the same learning rate.
    """
    config = copy.deepcopy(study.config)
    values = condition["overrides"] | point(study.space, search, trial)
    values.setdefault(_CADENCE, _cadence(study.config, values))
    values |= _seeds(study, search, trial)
    for name, value in values.items():
        cli.set_field(config, name, value, base.FIELDS)
    return config


def _seeds(study: Study, search: int, trial: int) -> dict[str, int]:
    return {
        "seed.data": study.config.seed.data + search,
        "seed.model": study.config.seed.model + SEEDS_PER_SEARCH * search + trial,
    }


def _cadence(config: Any, values: dict[str, Any]) -> int:
    """Fresh examples between evaluations: the configuration's, divided by the copies of each.

    Every condition is then evaluated equally often per step. A cadence in common would give the
    scores of large factors coarsely, since they need fewer fresh examples.
    """
    fields = ("echo.factor", "dataset.spaced_epochs")
    copies = math.prod(float(values.get(f, cli.get_field(config, f))) for f in fields)
    every = cli.get_field(config, _CADENCE)
    return max(1, round(every / copies)) if every and copies > 0 else every


def check(study: Study, lanes: int = 1) -> None:
    """Checks the plan, and that every condition can be trained wherever the search may lead.

    Raises:
        command.InputError: what cannot be; nothing has been written.
    """
    _check_numbers(study)
    _check_axes(study)
    if lanes > 1:
        _check_lanes(study)
    _check_values(study)
    tested = set()
    for condition in study.conditions:
        prepared = train.prepare(trial_config(study, condition, 0, 0))
        dataset = prepared.config.dataset
        if dataset.test_split and dataset.to_json() not in tested:  # read after training alone
            experiment.test_split(prepared)
            tested.add(dataset.to_json())


def _check_numbers(study: Study) -> None:
    """Checks how many trials and searches there are."""
    for name, most in (("trials", MAX_TRIALS), ("searches", MAX_SEARCHES)):
        number = getattr(study, name)
        if type(number) is not int or not 1 <= number <= most:
            raise cli.InputError(
                f"study {study.name!r} has {name} {short(number)}; allowed: a whole number from 1 "
                f"to {most:,}"
            )


def _check_axes(study: Study) -> None:
    """Checks each axis, and that it is the only place that varies its field."""
    for axis in study.space:
        with _about(study.name):
            check_axis(axis)
            _check_field(axis["field"], numeric=axis["scale"] != "choice")
        for value in _extremes(axis):
            with _about(study.name, _searched(axis, value)):
                base.check_value(axis["field"], value)
    fields = [axis["field"] for axis in study.space]
    if twice := [name for name in fields if fields.count(name) > 1]:
        raise cli.InputError(
            f"study {study.name!r} searches {twice[0]} on {fields.count(twice[0])} axes; leave one"
        )
    for condition in study.conditions:
        both = set(fields) & set(condition["overrides"])
        if both:
            raise cli.InputError(
                f"condition {condition['name']!r} sets {', '.join(sorted(both))}, which the search "
                "space varies too; leave it out of one of them"
            )


def _check_values(study: Study) -> None:
    """Checks the ends or choices of each axis in each condition, beside a point of the others, and
    the seeds of the last trial."""
    for condition in study.conditions:
        config = trial_config(study, condition, 0, 0)
        for axis in study.space:
            for value in _extremes(axis):
                searched = _searched(axis, value)
                with _about(study.name, f"condition {condition['name']!r}: {searched}"):
                    _check_value(config, axis["field"], value)
    last = (study.searches - 1, study.max_trials - 1)
    config = trial_config(study, study.condition(study.baseline), *last)
    for name, value in _seeds(study, *last).items():
        with _about(study.name, f"its last trial has {name} = {value}"):
            _check_value(config, name, value)
    for axis in study.space:
        if not axis["field"].startswith(_LANE_FIELDS):  # what the network and the data depend on
            _check_prepared(study, axis)


def _searched(axis: dict[str, Any], value: Any) -> str:
    return f"the search may set {axis['field']} to {short(value)}"


def _extremes(axis: dict[str, Any]) -> list[Any]:
    """The ends of an axis as values of the field, or all of its choices."""
    if axis["scale"] == "choice":
        return list(axis["values"])
    ends = [1 - axis[e] if axis["scale"] == "log_one_minus" else axis[e] for e in ("min", "max")]
    return [round(end) if axis["field"] in _WHOLE_NUMBERS else end for end in ends]


def _check_prepared(study: Study, axis: dict[str, Any]) -> None:
    """Checks that the baseline can be trained at the ends or choices of an axis."""
    baseline = study.condition(study.baseline)
    for value in _extremes(axis):
        config = trial_config(study, baseline, 0, 0)
        cli.set_field(config, axis["field"], value, base.FIELDS)
        with _about(study.name, _searched(axis, value)):
            train.prepare(config)


def _check_field(name: str, numeric: bool = False) -> None:
    """Checks that a study may vary a field."""
    cli.set_field(base.get_config(), name, _DEFAULTS.get(name), base.FIELDS)  # if there is one
    if name.startswith("seed."):
        raise ValueError(f"{name} is varied, which search and trial decide; leave it out")
    if numeric and type(_DEFAULTS[name]) not in (int, float):
        raise ValueError(f"{name} has a scale, but is no number; allowed: the scale choice")


def _check_value(config: Any, field: str, value: Any) -> None:
    """Checks that `field` may have this value in `config`; raises ValueError or InputError."""
    if not isinstance(value, str | bool) and not is_number(value):
        raise ValueError(f"{field} is {short(value)}; allowed: a finite number, text, true, false")
    if isinstance(value, bool) and type(_DEFAULTS.get(field)) in (int, float):
        raise ValueError(f"{field} is {value}; allowed: a number")
    changed = copy.deepcopy(config)
    cli.set_field(changed, field, value, base.FIELDS)
    try:
        config_check.check(changed)
    except config_check.ConfigError as error:
        raise ValueError(str(error)) from error


@contextlib.contextmanager
def _about(study: str, what: str = "") -> Iterator[None]:
    """Makes of an error in the block an InputError that says of which study."""
    try:
        yield
    except (ValueError, cli.InputError) as error:
        raise cli.InputError(f"study {study!r}: {what}{': ' if what else ''}{error}") from error


def _check_lanes(study: Study) -> None:
    """Lanes see the same batches, so nothing that a batch depends on may vary between trials."""
    others = [a["field"] for a in study.space if not a["field"].startswith(_LANE_FIELDS)]
    if others:
        raise cli.InputError(
            f"the search space varies {', '.join(others)}, so trials cannot share their input; "
            "allowed with --lanes: optimizer and loss fields alone"
        )
    for field, allowed, reason in _LANES_NEED:
        set_to = cli.get_field(study.config, field)
        for condition in study.conditions:
            if condition["overrides"].get(field, set_to) != allowed:
                raise cli.InputError(
                    f"condition {condition['name']!r} has {field} other than {allowed!r}, "
                    f"{reason}; leave out --lanes"
                )
    if study.score == "seconds":
        raise cli.InputError(
            f"study {study.name!r} is scored in seconds, which lanes would share; leave out --lanes"
        )


def load_study(
    config: Any,
    module: Any,
    config_flag: str,
    name: str,
    trials: int | None = None,
    searches: int | None = None,
    overrides: Sequence[str] = (),
) -> Study:
    """The study `name` of a configuration file.

    Args:
        config: the file's configuration, which the study's own overrides are written into.
        module: the file, with get_studies(variant) and get_search_space(variant).
        trials, searches: None means as many as the study says.
        overrides: '--config.FIELD=VALUE' words, which win over what the study overrides.

    Raises:
        command.InputError: there is no such study, or the file says something of it that may not
            be; `check` looks further, at what opening the data shows.
    """
    variant = config_flag.partition(":")[2]
    studies = named(module, variant)
    if name not in studies:
        known = ", ".join(map(str, studies)) or "none; add get_studies() to it"
        raise cli.InputError(f"--study is {name!r}; allowed with {config_flag}: {known}")
    plan = studies[name]
    with _about(name):
        _check_plan(plan)
        for field, value in plan.get("overrides", {}).items():
            _set(config, field, value)
        for condition, fields in plan["conditions"].items():
            _check_overrides(config, condition, fields)
    cli.override(config, overrides, base.FIELDS)
    with _about(name):
        space = resolved(_axes(plan, module, variant), config)
    study = Study(
        name=name,
        config=config,
        config_flag=config_flag,
        conditions=_labelled(plan["conditions"], config),
        space=space,
        trials=plan["trials"] if trials is None else trials,
        searches=plan["searches"] if searches is None else searches,
        baseline=plan["baseline"],
        score=plan.get("score", "fresh_examples"),
    )
    _check_numbers(study)
    _check_axes(study)
    return study


def _axes(plan: dict[str, Any], module: Any, variant: str) -> list[dict[str, Any]]:
    """The axes of a study, as its file gives them; raises ValueError."""
    axes = plan.get("space")
    if not axes:
        if not hasattr(module, "get_search_space"):
            raise ValueError("it has no space, and its file no get_search_space(); allowed: either")
        with cli.errors_of_file(module.__file__):
            axes = module.get_search_space(variant)
    if not isinstance(axes, list | tuple):
        raise ValueError(f"its search space is {short(axes)}; allowed: a list of axes")
    for axis in axes:
        check_axis(axis)
    return [axis for axis in axes if axis["field"] not in plan.get("not_searched", ())]


def _set(config: Any, field: Any, value: Any) -> None:
    """Sets a field that a study overrides; raises ValueError or InputError."""
    if not isinstance(field, str):
        raise ValueError(f"overrides set {short(field)}; allowed: names of fields")
    if not isinstance(value, str | bool) and not is_number(value):
        raise ValueError(
            f"overrides set {field} to {short(value)}; allowed: a finite number, text, true, false"
        )
    cli.set_field(config, field, value, base.FIELDS)


def _check_overrides(config: Any, condition: str, overrides: Any) -> None:
    """Checks the overrides of one condition; raises ValueError or InputError."""
    check_name(condition)
    if not isinstance(overrides, dict):
        raise ValueError(
            f"condition {condition!r} is {short(overrides)}; allowed: a dict of values by field"
        )
    config = copy.deepcopy(config)
    for field, value in overrides.items():
        _set(config, field, value)
        _check_field(field)


def resolved(axes: Sequence[dict[str, Any]], config: Any) -> tuple[dict[str, Any], ...]:
    """Axes of a search with plain ends, where those of some are multiples of a field's value."""
    return tuple(_resolved(axis, config) for axis in axes)


def _resolved(axis: dict[str, Any], config: Any) -> dict[str, Any]:
    if "times" not in axis:
        return axis
    if type(_DEFAULTS.get(axis["times"])) not in (int, float) or axis["scale"] == "choice":
        raise ValueError(
            f"{axis['field']}: times is {short(axis['times'])}; allowed: a field that is a number, "
            "on an axis with min and max"
        )
    unit = cli.get_field(config, axis["times"])
    ends = {end: axis[end] * unit for end in ("min", "max")}
    return {name: value for name, value in axis.items() if name != "times"} | ends


_NEEDED = {"conditions": dict, "baseline": str, "trials": int, "searches": int}
_OPTIONAL = {
    "about": str,
    "overrides": dict,
    "space": (list, tuple),
    "not_searched": (list, tuple, set),
    "score": str,
}
_WORDS = {dict: "a dict", str: "text", int: "a whole number"}


def _check_plan(plan: Any) -> None:
    """Checks what a file's get_studies() says of one study; raises ValueError."""
    if not isinstance(plan, dict):
        raise ValueError(f"it is {short(plan)}; allowed: a dict")
    if missing := set(_NEEDED) - set(plan):
        raise ValueError(f"it does not say {', '.join(sorted(missing))}; add it in get_studies()")
    for key, value in plan.items():
        kinds = (_NEEDED | _OPTIONAL).get(key)
        if kinds is None:
            allowed = ", ".join([*_NEEDED, *_OPTIONAL])
            raise ValueError(f"it says {short(key)}, which is not understood; allowed: {allowed}")
        if not isinstance(value, kinds) or isinstance(value, bool):
            wanted = _WORDS.get(kinds, "a list")
            raise ValueError(f"{key} is {short(value)}; allowed: {wanted}")
    for condition in plan["conditions"]:
        check_name(condition)
    if plan["baseline"] not in plan["conditions"]:
        raise ValueError(
            f"its baseline is {plan['baseline']!r}; allowed: one of its conditions, "
            f"{', '.join(plan['conditions']) or 'of which there is none'}"
        )
    if plan.get("score", SCORES[0]) not in SCORES:
        raise ValueError(f"its score is {plan['score']!r}; allowed: {', '.join(SCORES)}")


def named(module: Any, variant: str) -> dict[str, dict[str, Any]]:
    """The studies of a configuration file by name; InputError where its code fails."""
    if not hasattr(module, "get_studies"):
        return {}
    with cli.errors_of_file(module.__file__):
        studies = module.get_studies(variant)
    if not isinstance(studies, dict):
        raise cli.InputError(
            f"get_studies() of {module.__file__} returns {short(studies)}; allowed: a dict of "
            "studies by name"
        )
    return studies


_SLOTS = {
    "before_augmentation": "before augmentation",
    "after_augmentation": "after augmentation",
    "after_batching": "batch echoing",
}


def label(overrides: dict[str, Any]) -> str:
    """What a condition is called in tables and figures: 'before augmentation, e = 2'."""
    insertion = overrides.get("echo.insertion", "none")
    words = ["no echoing"]
    if insertion != "none":
        words = [_SLOTS.get(insertion, insertion), f"e = {float(overrides['echo.factor']):g}"]
    mentioned = ("echo.insertion", "echo.factor", "echo.shuffle_buffer")
    words += [f"{k.rpartition('.')[2]} = {v}" for k, v in overrides.items() if k not in mentioned]
    return ", ".join(words)


def _labelled(conditions: dict[str, dict[str, Any]], config: Any) -> tuple[dict[str, Any], ...]:
    """Conditions with labels; where several would be called the same, the buffer tells them
    apart."""
    echo = {name: cli.get_field(config, name) for name in ("echo.insertion", "echo.factor")}
    labels = [label(echo | overrides) for overrides in conditions.values()]
    found = []
    for (name, overrides), words in zip(conditions.items(), labels, strict=True):
        if labels.count(words) > 1:
            words += f", buffer {overrides.get('echo.shuffle_buffer', 0):,}"
        found.append({"name": name, "label": words, "overrides": overrides})
    return tuple(found)
