"""What a study set out to do: its conditions in order, target, protocol and search space.

Read from `study.json`, or, where single runs are compared without one, put together from the
configurations of the runs: equal echo settings are one condition, an equal order of the data (by
data seed and schema version) one search.
"""

import dataclasses
import math
import pathlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from runs import records, trial_records
from runs.study import check_axis, check_name, is_number, short

INSERTIONS = ("none", "before_augmentation", "after_augmentation", "after_batching")

# How a trial is judged: by what the target cost it, or, where no target is meant to be reached, by
# its best value within the budget.
SCORES = FRESH_EXAMPLES, SECONDS, BEST_VALUE = "fresh_examples", "seconds", "best_value"


class InputError(ValueError):
    """What was given cannot be analysed; the message is one sentence for the person who gave it."""


@dataclasses.dataclass(frozen=True)
class Condition:
    """One setting of the echo stage, tuned by its own searches.

    `factor` is the echoing factor e; under the policy `auto` it is the largest number of showings
    allowed, so what follows from it (the ideal of 1/e) is a bound.
    """

    name: str
    label: str
    insertion: str
    factor: float
    shuffle_buffer: int
    policy: str = "fixed"
    batch_size: int | None = None
    others: tuple[tuple[str, str], ...] = ()  # (field, value) of whatever else it overrides

    @property
    def buffer_examples(self) -> int:
        """The shuffle buffer in examples, also where it holds batches."""
        held = (self.batch_size or 1) if self.insertion == "after_batching" else 1
        return self.shuffle_buffer * held


@dataclasses.dataclass(frozen=True)
class Study:
    """The plan that trials are judged against. Fields that single runs do not define are None.

    Attributes:
        name: the study's name, or that of the directory.
        conditions: in the order of presentation.
        target: what a trial has to reach.
        baseline: the name of the condition that the others are compared with.
        trials: how many trials of each search count (neither diverged nor failed).
        searches: how many independent searches each condition was planned to have.
        budget: fresh examples after which a trial ends.
        search_space: one mapping per tuned field, as in `study.json`.
        facts: `study.json` as it is (or what the first run's `config.json` says in its place).
        score: what a trial is judged by, one of SCORES.
    """

    name: str
    conditions: tuple[Condition, ...]
    target: records.Target
    baseline: str | None
    trials: int | None
    searches: int | None
    budget: int | None
    search_space: tuple[Mapping[str, Any], ...]
    facts: Mapping[str, Any]
    score: str = FRESH_EXAMPLES

    def baseline_of(self, condition: Condition) -> str | None:
        """The condition that this one is compared with: no echoing at the same batch size, the
        study's baseline among several; None where there is none."""
        alike = [
            each.name
            for each in self.conditions
            if each.insertion == "none" and each.batch_size == condition.batch_size
        ]
        return self.baseline if self.baseline in alike or not alike else alike[0]

    @property
    def score_column(self) -> str:
        """The trials' column that holds what they scored."""
        return self.score if self.score == BEST_VALUE else f"{self.score}_to_target"

    @property
    def higher_is_better(self) -> bool:
        return self.score == BEST_VALUE and self.target.mode == "above"

    @property
    def train_examples(self) -> int | None:
        return (self.facts.get("dataset") or {}).get("train_examples")

    @property
    def planned_target(self) -> records.Target:
        """The target that the trials were trained for, which `target` may since have replaced."""
        return parse_target(self.facts["target"])

    def with_target_value(self, value: float | None) -> "Study":
        """The same study judged at another value of its metric (None keeps the planned one)."""
        if value is None:
            return self
        return dataclasses.replace(self, target=dataclasses.replace(self.target, value=value))


def parse_target(value: Any) -> records.Target:
    """`{"metric", "value", "mode"}` as a Target; raises ValueError where it is not one."""
    try:
        metric, number = value["metric"], value["value"]
        if not isinstance(metric, str) or not metric.isprintable() or not is_number(number):
            raise TypeError
        return records.Target(metric, float(number), value["mode"])
    except (KeyError, TypeError) as error:
        raise ValueError(f"target is {short(value)}; wanted: metric, value, mode") from error


def plain(text: str, most: int | None = None) -> str:
    """Text of a record as one line that a terminal and a page can show, cut to `most` signs."""
    line = " ".join("".join(sign if sign.isprintable() else " " for sign in text).split())
    return line if most is None or len(line) <= most else f"{line[: most - 3]}..."


def target_text(target: records.Target) -> str:
    """The target in words: '97% validation accuracy', 'a validation loss of 3.9'."""
    if target.metric.endswith("accuracy") and target.value <= 1:
        return f"{100 * target.value:.6g}% validation {target.metric}"
    return f"a validation {target.metric} of {target.value:g}"


def field(config: Mapping[str, Any], path: str, default: Any = None) -> Any:
    """The value at a dotted path of a nested configuration, or `default`."""
    for key in path.split("."):
        if not isinstance(config, Mapping) or key not in config:
            return default
        config = config[key]
    return config


def factor_text(factor: float) -> str:
    """The echoing factor without needless zeros: 2, 1.5."""
    return f"{factor:g}"


_ECHO = ("insertion", "policy", "factor", "max_factor", "shuffle_buffer")
_SETTINGS = (*(f"echo.{name}" for name in _ECHO), "batch_size")


def condition_of(
    name: str,
    label: str | None,
    setting: Mapping[str, Any],
    overrides: Mapping[str, Any] | None = None,
    schema_version: int = records.SCHEMA_VERSION,
) -> Condition:
    """The condition that dotted settings describe; without a stage, e = 1 and no buffer.

    `setting` holds `echo.*` and `batch_size`, `overrides` what a study sets on purpose;
    `schema_version` is that of the records, which says what their shuffle buffer is.

    Raises:
        ValueError: an unknown insertion point, or numbers that cannot be.
    """
    _check_setting(setting)
    label = None if label is None else plain(label, _LONGEST)
    insertion = setting.get("echo.insertion", "none")
    policy = setting.get("echo.policy", "fixed")
    if insertion not in INSERTIONS:
        raise ValueError(f"echo.insertion is {insertion!r}; allowed: {', '.join(INSERTIONS)}")
    rest = {
        "batch_size": setting.get("batch_size"),
        "others": tuple(
            (key, plain(str(value), _LONGEST))
            for key, value in (overrides or {}).items()
            if key not in _SETTINGS
        ),
    }
    if insertion == "none":
        return Condition(name, label or "no echoing", "none", 1.0, 0, **rest)
    factor = float(setting.get("echo.max_factor" if policy == "auto" else "echo.factor", 1))
    sign = "≤" if policy == "auto" else "="
    words = f"{insertion.replace('_', ' ')}, e {sign} {factor_text(factor)}"
    buffer = int(setting.get("echo.shuffle_buffer", 0))
    if schema_version == 1 and insertion != "after_batching":
        buffer *= int(setting.get("echo.streams", 1))  # each stream had so many slots
    return Condition(name, label or words, insertion, factor, buffer, policy, **rest)


_LONGEST = 200  # of a label, in signs; figures have no room for that many


def _check_setting(setting: Mapping[str, Any]) -> None:
    """Checks the numbers that `condition_of` takes; raises ValueError."""
    for name, least in (
        ("echo.factor", 1),
        ("echo.max_factor", 1),
        ("echo.shuffle_buffer", 0),
        ("echo.streams", 1),
        ("batch_size", 1),
    ):
        value = setting.get(name)
        if value is not None and not (is_number(value) and least <= value <= 2**53):
            raise ValueError(f"{name} is {short(value)}; allowed: a number from {least}")


def settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """The `echo.*` values and the batch size of a nested configuration, by dotted name."""
    echo = config.get("echo") or {}
    if not isinstance(echo, Mapping):
        raise ValueError(f"echo is {short(echo)}, not an object")
    found = {f"echo.{key}": value for key, value in echo.items()}
    return found | ({"batch_size": config["batch_size"]} if "batch_size" in config else {})


def _first_settings(directory: pathlib.Path) -> dict[str, Any]:
    """The settings of any readable trial below a condition's directory; empty if none is."""
    for path in sorted(directory.glob(f"*/*/{records.CONFIG}")):
        try:
            found = settings(trial_records.read_config(path.parent)["config"])
            condition_of("", None, found)
            return found
        except (ValueError, KeyError, TypeError, OSError):
            continue  # named by load, which reads every trial
    return {}


_KINDS = {
    "study": str,
    "config": str,
    "workload": str,
    "baseline": str,
    "commit": str,
    "schema_version": int,
    **dict.fromkeys(("resolved_config", "dataset", "seeds", "hardware", "packages"), dict),
    **dict.fromkeys(("conditions", "search_space"), list),
}


def _checked(facts: Mapping[str, Any]) -> Mapping[str, Any]:
    """study.json, once its parts are known to be of the kinds that they are written as."""
    for name, kind in _KINDS.items():
        if facts.get(name) is not None and not isinstance(facts[name], kind):
            raise ValueError(f"{name} is {short(facts[name])}")
    for name in ("trials", "searches"):
        if type(facts[name]) is not int or facts[name] < 1:
            raise ValueError(f"{name} is {short(facts[name])}; allowed: a whole number from 1")
    size = (facts.get("dataset") or {}).get("train_examples")
    for value in (facts.get("max_trials"), facts.get("budget_fresh_examples"), size):
        if value is not None and not is_number(value):
            raise ValueError(f"it holds {short(value)} for a number")
    for axis in facts.get("search_space") or ():
        check_axis(axis)
    names = [condition["name"] for condition in facts["conditions"]]
    for condition in facts["conditions"]:
        check_name(condition["name"])
        if names.count(condition["name"]) > 1:
            raise ValueError(f"two conditions are named {condition['name']}")
        for name, kind in (("label", str), ("overrides", dict)):
            if not isinstance(condition.get(name, kind()), kind):
                raise ValueError(f"{condition['name']}: {name} is {short(condition[name])}")
    return facts


def read_study(directory: pathlib.Path) -> Study:
    """The study at `directory`; overrides left out of `study.json` come from a trial's own record.

    Raises:
        InputError: `study.json` cannot be read as one.
    """
    path = directory / records.STUDY
    try:
        facts = _checked(records.read_object(path) or {})
        conditions = _distinguished(
            condition_of(
                each["name"],
                each.get("label"),
                settings(facts.get("resolved_config") or {})
                | _first_settings(directory / each["name"])
                | each.get("overrides", {}),
                each.get("overrides", {}),
                records.schema_version(facts),
            )
            for each in facts["conditions"]
        )
        return Study(
            name=plain(facts.get("study") or directory.name, _LONGEST),
            conditions=conditions,
            target=parse_target(facts["target"]),
            baseline=facts.get("baseline"),
            trials=facts["trials"],
            searches=facts["searches"],
            budget=facts.get("budget_fresh_examples"),
            search_space=tuple(facts.get("search_space") or ()),
            facts=facts,
            score=_score(facts.get("score", FRESH_EXAMPLES)),
        )
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        raise InputError(
            f"{path} is not a readable study record ({plain(describe(error))}); fix it, or give "
            "the directories of single trials instead."
        ) from error


def _distinguished(conditions: Iterable[Condition]) -> tuple[Condition, ...]:
    """The conditions, those of equal labels with their names added."""
    conditions = tuple(conditions)
    labels = [each.label for each in conditions]
    return tuple(
        dataclasses.replace(each, label=f"{each.label} ({each.name})")
        if labels.count(each.label) > 1
        else each
        for each in conditions
    )


def _score(name: str) -> str:
    if name not in SCORES:
        raise ValueError(f"score is {name!r}; allowed: {', '.join(SCORES)}")
    return name


def study_of_runs(name: str, snapshots: Sequence[Mapping[str, Any]]) -> Study:
    """A study put together from single runs, given the contents of each one's `config.json`.

    Raises:
        InputError: the runs have different targets, so one score cannot compare them.
    """
    configs = [snapshot["config"] for snapshot in snapshots]
    targets = list(dict.fromkeys(parse_target(config["target"]) for config in configs))
    if len(targets) > 1:
        listed = "; ".join(f"{t.metric} {t.mode} {t.value:g}" for t in targets)
        raise InputError(
            f"these runs have different targets ({listed}); analyse runs of one target at a time."
        )
    conditions = tuple(
        sorted({run_condition(snapshot) for snapshot in snapshots}, key=_presentation)
    )
    without = [each.name for each in conditions if each.insertion == "none"]
    budgets = {field(config, "budget.fresh_examples") for config in configs}
    facts = dict(snapshots[0]) | {"target": dataclasses.asdict(targets[0])}
    facts["workload"] = field(configs[0], "workload")
    return Study(
        name=plain(name, _LONGEST),
        conditions=conditions,
        target=targets[0],
        baseline=without[0] if len(without) == 1 else None,
        trials=None,
        searches=None,
        budget=budgets.pop() if len(budgets) == 1 else None,
        search_space=(),
        facts=facts,
    )


def check_run(snapshot: Mapping[str, Any]) -> None:
    """Checks what `study_of_runs` takes of a single run's `config.json`; raises ValueError or
    KeyError."""
    config = snapshot["config"]
    parse_target(config["target"])
    for name in ("budget.fresh_examples", "seed.data", "batch_size"):
        value = field(config, name)
        if value is not None and not is_number(value):
            raise ValueError(f"{name} is {short(value)}, not a number")
    if not isinstance(field(config, "workload", ""), str):
        raise ValueError(f"workload is {short(config['workload'])}, not text")


def run_condition(snapshot: Mapping[str, Any]) -> Condition:
    """The condition that a single run belongs to, given its `config.json`; the batch size is part
    of it, being a choice."""
    config, version = snapshot["config"], records.schema_version(snapshot)
    plain = condition_of("", None, settings(config), schema_version=version)
    parts = [plain.label]
    if plain.shuffle_buffer:
        parts.append(f"buffer {plain.shuffle_buffer:,}")
    if batch_size := config.get("batch_size"):
        parts.append(f"batch {batch_size:,}")
    label = ", ".join(parts)
    return dataclasses.replace(plain, name=label, label=label)


def _presentation(condition: Condition) -> tuple:
    place = INSERTIONS.index(condition.insertion)
    return place, condition.policy, condition.factor, condition.shuffle_buffer, condition.name


def describe(error: Exception) -> str:
    """An error in a few words, naming what was missing where only a key is known."""
    return f"{error} is missing" if isinstance(error, KeyError) else str(error) or repr(error)


def axis_position(axis: Mapping[str, Any], value: float) -> float | None:
    """Where `value` lies on an axis of the search space: 0 at its low end, 1 at its high end.

    Measured in the axis's own scale; `log_one_minus` is logarithmic in 1 - value, so its low end
    is the value nearest to one. None where the axis has no ends (a choice) or the value no place.
    """
    if axis.get("scale") not in ("linear", "log", "log_one_minus"):
        return None
    low, high, point = float(axis["min"]), float(axis["max"]), float(value)
    if axis["scale"] == "log_one_minus":
        point = 1 - point
    if axis["scale"] != "linear":
        if min(low, high, point) <= 0:
            return None
        low, high, point = math.log(low), math.log(high), math.log(point)
    return (point - low) / (high - low) if high != low else None


EDGE = 0.05  # of an axis's length, in its own scale


def near_end(axis: Mapping[str, Any], value: float) -> str | None:
    """The end of an axis, "min" or "max", that `value` lies within EDGE of; None in between."""
    place = None if value is None or value != value else axis_position(axis, value)
    if place is None or EDGE < place < 1 - EDGE:
        return None
    return "min" if place <= EDGE else "max"
