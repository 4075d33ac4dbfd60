"""A study as a value: conditions, search space and seeds, and what each trial's numbers are."""

import copy
import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any

from scipy.stats import qmc

import train
from configs import base
from runs import command

# Diverged trials do not count, and about half of a wide search diverges (Shallue et al. 2018), so
# a search may try this many times as many points as it needs.
MAX_TRIALS_FACTOR = 2

# Model seeds of two searches never meet, and a trial's does not depend on the number of trials.
SEEDS_A_SEARCH = 10_000

# What trials are compared by: fresh examples or seconds until the target, or the best value within
# the budget.
SCORES = ("fresh_examples", "seconds", "best_value")

_CADENCE = "evaluate_every_fresh_examples"

# Searched fields that leave a trial's batches as they are, so that lanes can share them.
_LANE_FIELDS = ("optimizer.", "loss.")

_WHOLE_NUMBERS = {name for name, default, _ in base.FIELDS if type(default) is int}

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
    values |= {
        "seed.data": study.config.seed.data + search,
        "seed.model": study.config.seed.model + SEEDS_A_SEARCH * search + trial,
    }
    for name, value in values.items():
        command.set_field(config, name, value, base.FIELDS)
    return config


def _cadence(config: Any, values: dict[str, Any]) -> int:
    """Fresh examples between evaluations: the configuration's, divided by the copies of each.

    Every condition is then evaluated equally often per step. A cadence in common would give the
    scores of large factors coarsely, since they need fewer fresh examples.
    """
    fields = ("echo.factor", "dataset.spaced_epochs")
    copies = math.prod(float(values.get(f, command.get_field(config, f))) for f in fields)
    every = command.get_field(config, _CADENCE)
    return max(1, round(every / copies)) if every else every


def check(study: Study, lanes: int = 1) -> None:
    """Checks the plan, and that every condition can be trained.

    Raises:
        command.InputError: what cannot be; nothing has been written.
    """
    for axis in study.space:
        _check_axis(axis)
    searched = {axis["field"] for axis in study.space}
    for condition in study.conditions:
        both = searched & set(condition["overrides"])
        if both:
            raise command.InputError(
                f"condition {condition['name']!r} sets {', '.join(sorted(both))}, which the search "
                "space varies too; leave it out of one of them"
            )
    if lanes > 1:
        _check_lanes(study)
    for condition in study.conditions:
        train.prepare(trial_config(study, condition, 0, 0))


def _check_axis(axis: dict[str, Any]) -> None:
    scales = ("linear", "log", "log_one_minus", "choice")
    name, scale = axis["field"], axis["scale"]
    if scale not in scales:
        raise command.InputError(f"{name}: scale is {scale!r}; allowed: {', '.join(scales)}")
    missing = ({"values"} if scale == "choice" else {"min", "max"}) - set(axis)
    if missing:
        raise command.InputError(
            f"{name}: {', '.join(sorted(missing))} is missing; a {scale} axis needs it"
        )
    if scale == "choice":
        if not axis["values"]:
            raise command.InputError(f"{name}: values are empty; allowed: at least one")
    elif not axis["min"] <= axis["max"]:
        raise command.InputError(
            f"{name}: min {axis['min']} is above max {axis['max']}; allowed: min <= max"
        )
    elif scale.startswith("log") and axis["min"] <= 0:
        raise command.InputError(
            f"{name}: min is {axis['min']}; allowed on a {scale} axis: above 0"
        )


def _check_lanes(study: Study) -> None:
    """Lanes see the same batches, so nothing that a batch depends on may vary between trials."""
    others = [a["field"] for a in study.space if not a["field"].startswith(_LANE_FIELDS)]
    if others:
        raise command.InputError(
            f"the search space varies {', '.join(others)}, so trials cannot share their input; "
            "allowed with --lanes: optimizer and loss fields alone"
        )
    for field, allowed, reason in _LANES_NEED:
        set_to = command.get_field(study.config, field)
        for condition in study.conditions:
            if condition["overrides"].get(field, set_to) != allowed:
                raise command.InputError(
                    f"condition {condition['name']!r} has {field} other than {allowed!r}, "
                    f"{reason}; leave out --lanes"
                )
    if study.score == "seconds":
        raise command.InputError(
            f"study {study.name!r} is scored in seconds, which lanes would share; leave out --lanes"
        )


def load_study(
    config: Any,
    module: Any,
    config_flag: str,
    name: str,
    trials: int,
    searches: int,
    overrides: Sequence[str] = (),
) -> Study:
    """The study `name` of a configuration file.

    Args:
        config: the file's configuration, which the study's own overrides are written into.
        module: the file, with get_studies(variant) and get_search_space(variant).
        trials, searches: 0 means as many as the study says.
        overrides: '--config.FIELD=VALUE' words, which win over what the study overrides.
    """
    variant = config_flag.partition(":")[2]
    studies = named(module, variant)
    if name not in studies:
        known = ", ".join(studies) or "none; add get_studies() to it"
        raise command.InputError(f"--study is {name!r}; allowed with {config_flag}: {known}")
    plan = studies[name]
    _check_plan(name, plan)
    for field, value in plan.get("overrides", {}).items():
        command.set_field(config, field, value, base.FIELDS)
    command.override(config, overrides, base.FIELDS)
    axes = plan.get("space") or module.get_search_space(variant)
    left_out = plan.get("not_searched", ())
    return Study(
        name=name,
        config=config,
        config_flag=config_flag,
        conditions=_labelled(plan["conditions"]),
        space=resolved([axis for axis in axes if axis.get("field") not in left_out], config),
        trials=trials or plan["trials"],
        searches=searches or plan["searches"],
        baseline=plan["baseline"],
        score=plan.get("score", "fresh_examples"),
    )


def resolved(axes: Sequence[dict[str, Any]], config: Any) -> tuple[dict[str, Any], ...]:
    """Axes of a search with plain ends, where those of some are multiples of a field's value."""
    return tuple(_resolved(axis, config) for axis in axes)


def _resolved(axis: dict[str, Any], config: Any) -> dict[str, Any]:
    if "times" not in axis:
        return axis
    unit = command.get_field(config, axis["times"])
    ends = {end: axis[end] * unit for end in ("min", "max")}
    return {name: value for name, value in axis.items() if name != "times"} | ends


def _check_plan(name: str, plan: dict[str, Any]) -> None:
    """Checks what a file's get_studies() says of one study."""
    missing = {"conditions", "baseline", "trials", "searches"} - set(plan)
    if missing:
        raise command.InputError(
            f"study {name!r} does not say {', '.join(sorted(missing))}; add it in get_studies()"
        )
    if plan["baseline"] not in plan["conditions"]:
        raise command.InputError(
            f"study {name!r} has baseline {plan['baseline']!r}; allowed: one of its conditions, "
            f"{', '.join(plan['conditions'])}"
        )
    if plan.get("score", SCORES[0]) not in SCORES:
        raise command.InputError(
            f"study {name!r} has score {plan['score']!r}; allowed: {', '.join(SCORES)}"
        )


def named(module: Any, variant: str) -> dict[str, dict[str, Any]]:
    """The studies of a configuration file by name."""
    return module.get_studies(variant) if hasattr(module, "get_studies") else {}


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
        words = [_SLOTS[insertion], f"e = {overrides['echo.factor']:g}"]
    mentioned = ("echo.insertion", "echo.factor", "echo.shuffle_buffer")
    words += [f"{k.rpartition('.')[2]} = {v}" for k, v in overrides.items() if k not in mentioned]
    return ", ".join(words)


def _labelled(conditions: dict[str, dict[str, Any]]) -> tuple[dict[str, Any], ...]:
    """Conditions with labels; where several would be called the same, the buffer tells them
    apart."""
    labels = [label(overrides) for overrides in conditions.values()]
    found = []
    for (name, overrides), words in zip(conditions.items(), labels, strict=True):
        if labels.count(words) > 1:
            words += f", buffer {overrides.get('echo.shuffle_buffer', 0):,}"
        found.append({"name": name, "label": words, "overrides": overrides})
    return tuple(found)
