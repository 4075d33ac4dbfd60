"""What a study is: conditions, search axes, score, and target, as study.json holds them.

Running a study and analyzing one use the same classes. They check nothing: studies/ checks what
users give before it writes study.json.
"""

import dataclasses
import functools
import math
import pathlib
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from echo import spec
from runs import records
from runs.records import flat, nested

# What a trial is judged by: the cost of reaching the target, or the best value within the budget.
SCORES = FRESH_EXAMPLES, SECONDS, BEST_VALUE = "fresh_examples", "seconds", "best_value"

# Insertion points in pipeline order, with their labels.
_LABELS = ("no echoing", "before augmentation", "after augmentation", "batch echoing")
INSERTIONS: dict[str, str] = dict(zip(spec.INSERTIONS, _LABELS, strict=True))

# Diverged trials do not count. About half of a wide search diverges (Shallue et al. 2018,
# arXiv 1811.03600), so a search may run this many times as many trials as must count.
MAX_TRIALS_FACTOR = 2

# What a later launch may change in study.json, besides its origin (commit, packages, hardware): a
# study may grow.
SIZES = ("trials", "max_trials", "searches")
MAY_CHANGE = (*SIZES, "config")

# The model seeds of two searches never overlap, whatever the number of trials.
SEEDS_PER_SEARCH = 10_000

CADENCE = "evaluate_every_fresh_examples"
CADENCES = ("fresh_examples", "step")  # per which of them conditions are evaluated equally often

EDGE = 0.05  # share of an axis that counts as near its end

ECHO_SETTINGS = ("echo.insertion", "echo.policy", "echo.factor")
ECHO_SETTINGS += ("echo.max_factor", "echo.shuffle_buffer")

# By scale: the transform under which an axis is evenly spaced, and its inverse.
_TRANSFORMS: dict[str, tuple[Callable[[float], float], Callable[[float], float]]] = {
    "linear": (float, float),
    "log": (math.log, math.exp),
    "log_one_minus": (math.log, math.exp),
}
SCALES = (*_TRANSFORMS, "choice")


@dataclasses.dataclass(frozen=True)
class Axis:
    """One axis of a search space: a field of the configuration and the values it may take.

    Attributes:
        field: dotted name.
        scale: `linear`, `log`, `log_one_minus` (1 - value is spaced logarithmically), or `choice`.
        min, max: ends of a numeric axis as coordinates: the value, or 1 - value for
            `log_one_minus`. NaN for a choice.
        values: of a choice; empty for a numeric axis.
    """

    field: str
    scale: str
    min: float = math.nan
    max: float = math.nan
    values: tuple[Any, ...] = ()

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> "Axis":
        """The axis that `to_record` gave."""
        return cls(**{**record, "values": tuple(record.get("values", ()))})

    def to_record(self) -> dict[str, Any]:
        """The axis as study.json holds it."""
        record: dict[str, Any] = {"field": self.field, "scale": self.scale}
        if self.values:
            return record | {"values": list(self.values)}
        return record | {"min": self.min, "max": self.max}

    def value_at(self, position: float) -> Any:
        """The value at a position in [0, 1): from `min` on, evenly spaced in the axis's scale; each
        choice takes an equal share."""
        if self.values:
            return self.values[int(position * len(self.values))]
        transform, inverse = _TRANSFORMS[self.scale]
        low, high = transform(self.min), transform(self.max)
        return self._mirrored(inverse(low + (high - low) * position))

    def position(self, value: float) -> float | None:
        """The inverse of `value_at`. None for a choice, an axis of no length, and a value that has
        no logarithm."""
        if self.values or self.min == self.max:
            return None
        coordinate = self._mirrored(value)
        if self.scale != "linear" and coordinate <= 0:
            return None
        transform, _ = _TRANSFORMS[self.scale]
        low, high = transform(self.min), transform(self.max)
        return (transform(coordinate) - low) / (high - low)

    def near_end(self, value: Any) -> str | None:
        """The end, "min" or "max", that `value` is within EDGE of; None for neither, for a choice,
        and without a value. A whole number stands for all that is rounded to it: on an axis from 0
        to 2, half of all draws are 0 or 2, and say nothing about its ends."""
        if self.values or value is None or math.isnan(value):
            return None
        half = 0.5 if float(value).is_integer() else 0.0
        low, high = self.position(value - half), self.position(value + half)
        if high is not None and high <= EDGE:
            return "min"
        return "max" if low is not None and low >= 1 - EDGE else None

    def extremes(self) -> list[Any]:
        """The values at both ends, or all choices."""
        return list(self.values) or [self._mirrored(self.min), self._mirrored(self.max)]

    def __str__(self) -> str:
        if self.values:
            return f"{self.field}: one of {', '.join(map(str, self.values))}"
        scale = "log of 1 - value" if self.scale == "log_one_minus" else self.scale
        return f"{self.field}: {self.min:g} to {self.max:g}, {scale}"

    def _mirrored(self, value: float) -> float:
        """The value of a coordinate, and the coordinate of a value."""
        return 1.0 - value if self.scale == "log_one_minus" else value


@dataclasses.dataclass(frozen=True)
class Condition:
    """One setting of the echo stage, tuned by its own searches.

    Attributes:
        name: the name of its directory.
        label: its name in tables and figures.
        overrides: the fields that it sets, by dotted name.
        insertion, policy, batch_size: fields of its configuration; `batch_size` is None if unknown.
        factor: the echo factor e. Under the policy `auto` it is the maximum number of copies, and
            what follows from it (the ideal ratio 1/e) is a bound.
        shuffle_buffer: items in the shuffle buffer, the total of all streams.
    """

    name: str
    label: str
    overrides: Mapping[str, Any]
    insertion: str = "none"
    policy: str = "fixed"
    factor: float = 1.0
    shuffle_buffer: int = 0
    batch_size: int | None = None

    @classmethod
    def of(
        cls,
        name: str,
        overrides: Mapping[str, Any],
        config: Any,
        label: str | None = None,
    ) -> "Condition":
        """The condition that overrides of a configuration make.

        Args:
            config: nested configuration (a ConfigDict or a dict) that the overrides apply to.
            label: derived from the settings if None.
        """
        settings = {f"echo.{name}": value for name, value in (nested(config, "echo") or {}).items()}
        settings |= {"batch_size": nested(config, "batch_size")} | dict(overrides)
        insertion, batch_size = settings.get("echo.insertion", "none"), settings["batch_size"]
        if insertion == "none":
            return cls(name, label or INSERTIONS["none"], overrides, batch_size=batch_size)
        policy = settings.get("echo.policy", "fixed")
        factor = float(settings.get("echo.max_factor" if policy == "auto" else "echo.factor", 1))
        buffer = int(settings.get("echo.shuffle_buffer", 0))
        if policy == "auto":
            augmented = augments_repeats(config, overrides)
            factor = factor or float(default_max_factor(batch_size or 1, augmented))
            buffer = buffer or default_buffer(insertion, batch_size or 1)
        label = label or echo_label(insertion, factor, policy)
        return cls(name, label, overrides, insertion, policy, factor, buffer, batch_size)

    @property
    def buffer_examples(self) -> int:
        """The size of the shuffle buffer in examples, including a buffer of whole batches."""
        examples_per_item = self.batch_size if self.insertion == "after_batching" else 1
        return self.shuffle_buffer * (examples_per_item or 1)

    @property
    def other_overrides(self) -> tuple[tuple[str, str], ...]:
        """(field, value) of what it sets besides the echo stage and the batch size."""
        own = (*ECHO_SETTINGS, "batch_size")
        return tuple((k, str(v)) for k, v in self.overrides.items() if k not in own)


def default_max_factor(batch_size: int, augmented: bool) -> int:
    """The maximum copies of an item under echo.policy=auto where echo.max_factor is 0: up to so
    many, a repeat was usually worth its step (docs/auto.md). `augmented`: whether every repeat is
    re-augmented."""
    return max(2, batch_size // (2 if augmented else 4))


def augments_repeats(config: Any, overrides: Mapping[str, Any] = MappingProxyType({})) -> bool:
    """Whether a nested configuration with overrides re-augments each copy of an example."""

    names = ("workload", "augmentation.pad", "augmentation.flip", "echo.insertion")
    workload, *shifts, insertion = (overrides.get(name, nested(config, name)) for name in names)
    # imagenet and coco always crop at random
    augments = workload in ("imagenet", "coco") or (workload == "cifar10" and any(shifts))
    return insertion == "before_augmentation" and augments


def default_buffer(insertion: str, batch_size: int) -> int:
    """The items stored under echo.policy=auto where echo.shuffle_buffer is 0: eight batches."""
    return 8 * (1 if insertion == "after_batching" else batch_size)


def echo_label(insertion: str, factor: float, policy: str = "fixed") -> str:
    """A setting of the echo stage: 'before augmentation, e = 2', 'batch echoing, e ≤ 4'."""
    label, sign = INSERTIONS.get(insertion, insertion), "≤" if policy == "auto" else "="
    return label if insertion == "none" else f"{label}, e {sign} {factor:g}"


def condition_label(overrides: Mapping[str, Any], config: Any = None) -> str:
    """The label of a planned condition: its echo setting, then each other field that it sets."""
    others = (setting_label(*item) for item in overrides.items() if item[0] not in ECHO_SETTINGS)
    return ", ".join([Condition.of("", overrides, config).label, *others])


def setting_label(field: str, value: Any) -> str:
    """A field that a condition sets, as labels name it: 'weight_decay = 0.01', 'budget 24,000'."""
    name = field.rpartition(".")[2]
    words = _IN_WORDS.get(name, "") if isinstance(value, int) else ""
    return words.format(value) or f"{name} = {value}"


# How labels name a whole number that a condition sets.
_IN_WORDS = {
    "batch_size": "batch {:,}",
    "evaluate_every_fresh_examples": "evaluated every {:,}",
    "fresh_examples": "budget {:,}",
    "horizon_fresh_examples": "decay over {:,}",
    "spaced_epochs": "{:,} copies an epoch apart",
}


@dataclasses.dataclass(frozen=True)
class Study:
    """Conditions x searches x trials of one configuration.

    Attributes:
        name: the study's name.
        conditions: in order of presentation.
        target: what a trial has to reach.
        baseline: name of the condition that the others are compared with; '' = none.
        trials: how many trials of each search count.
        searches: independent repetitions of each condition's search.
        budget: fresh examples after which a trial ends, unless its condition sets another number.
        space: axes of the search.
        score: one of SCORES.
        cadence: one of CADENCES.
        config: the configuration that all trials start from: a ConfigDict when the study is run,
            the dict in study.json when it is read.
        config_flag: the --config that it came from.
        record: study.json, as it was read or will be written; empty before.
    """

    name: str
    conditions: tuple[Condition, ...]
    target: records.Target
    baseline: str = ""
    trials: int = 0
    searches: int = 0
    budget: int = 0
    space: tuple[Axis, ...] = ()
    score: str = FRESH_EXAMPLES
    cadence: str = CADENCES[0]
    config: Any = None
    config_flag: str = ""
    record: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def max_trials(self) -> int:
        """The most trials that a search may run."""
        return MAX_TRIALS_FACTOR * self.trials

    def condition(self, name: str) -> Condition:
        """The condition of that name."""
        return next(condition for condition in self.conditions if condition.name == name)

    def baseline_of(self, condition: Condition) -> str | None:
        """The condition that `condition` is compared with: no echoing at the same batch size, and
        the study's baseline if there are several; None if there is none."""
        candidates = [
            other.name
            for other in self.conditions
            if other.insertion == "none" and other.batch_size == condition.batch_size
        ]
        if self.baseline in candidates or not candidates:
            return self.baseline or None
        return candidates[0]

    @property
    def budgets(self) -> str:
        """The budgets of all conditions: '12,000', or '6,000 to 24,000'."""
        name = "budget.fresh_examples"
        known = sorted({int(c.overrides.get(name, self.budget)) for c in self.conditions})
        return " to ".join(f"{end:,}" for end in known[:1] + known[1:][-1:])

    @property
    def scores_values(self) -> bool:
        """Whether trials are judged by their best value, not by the cost of reaching the target."""
        return self.score == BEST_VALUE

    @property
    def score_column(self) -> str:
        """The column of the trials' table that holds their scores."""
        return self.score if self.scores_values else f"{self.score}_to_target"

    @property
    def planned_target(self) -> records.Target:
        """The target that the trials were trained for; `target` may be another one."""
        return records.Target(**self.record["target"])

    @functools.cached_property
    def settings(self) -> dict[str, Any]:
        """The values of `config`, by dotted name."""
        config: Any = self.config or {}
        return flat(config.to_dict() if hasattr(config, "to_dict") else config)

    def trial_settings(
        self, condition: Condition, search: int, trial: int, hparams: Mapping[str, Any]
    ) -> dict[str, Any]:
        """The fields that a trial sets in `config`, by dotted name: those of its condition, its
        hyperparameters, its cadence, and its seeds.

        Neither seeds nor hyperparameters depend on the condition, so equal trials of two conditions
        are a pair with matched seeds: the same initial parameters, data order, and hyperparameters.
        The cadence of evaluations is the configuration's. Equally often per step, it is divided by
        the copies per example, which favors echoing: a noisy metric is looked at more often. Best
        values never are, since the best of more evaluations is better by chance.
        """
        settings = dict(condition.overrides) | dict(hparams)
        every = nested(self.config, CADENCE)
        if every and CADENCE not in settings and self.cadence == "step" and not self.scores_values:
            fields = ("echo.factor", "dataset.spaced_epochs")
            copies = math.prod(float(settings.get(f, nested(self.config, f) or 1)) for f in fields)
            settings[CADENCE] = max(1, round(every / copies))
        return settings | self.seeds(search, trial)

    def seeds(self, search: int, trial: int) -> dict[str, int]:
        """The seeds of a trial, by dotted name; without those that `config` lacks."""
        offsets = {"seed.data": search, "seed.model": SEEDS_PER_SEARCH * search + trial}
        firsts = {name: nested(self.config, name) for name in offsets}
        return {name: firsts[name] + n for name, n in offsets.items() if firsts[name] is not None}

    def to_record(self, dataset: Mapping[str, Any]) -> dict[str, Any]:
        """The content of study.json, without what describes the environment."""
        return {
            "schema_version": records.SCHEMA_VERSION,
            "study": self.name,
            "config": self.config_flag,
            "workload": self.config.workload,
            "resolved_config": self.config.to_dict(),
            "target": dataclasses.asdict(self.target),
            "score": self.score,
            "cadence": self.cadence,
            "budget_fresh_examples": self.budget,
            "dataset": dict(dataset),
            "baseline": self.baseline,
            "conditions": [
                {"name": c.name, "label": c.label, "overrides": dict(c.overrides)}
                for c in self.conditions
            ],
            "search_space": [axis.to_record() for axis in self.space],
            "trials": self.trials,
            "max_trials": self.max_trials,
            "searches": self.searches,
            "seeds": {"data": self.config.seed.data, "model": self.config.seed.model},
        }

    @classmethod
    def read(cls, directory: pathlib.Path) -> "Study":
        """The study in a directory with a study.json; raises records.Damaged."""
        try:
            return cls.from_record(records.read_json(directory / records.STUDY))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise records.Damaged(f"{records.STUDY} is not a study's ({error!r})") from error

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> "Study":
        """The study in a study.json. Equal labels of conditions are followed by their names."""
        config = record["resolved_config"]
        labels = [c["label"] for c in record["conditions"]]
        conditions = (
            Condition.of(
                c["name"],
                c["overrides"],
                config,
                c["label"] if labels.count(c["label"]) == 1 else f"{c['label']} ({c['name']})",
            )
            for c in record["conditions"]
        )
        return cls(
            name=record["study"],
            conditions=tuple(conditions),
            target=records.Target(**record["target"]),
            baseline=record["baseline"],
            trials=record["trials"],
            searches=record["searches"],
            budget=record["budget_fresh_examples"],
            space=tuple(map(Axis.from_record, record["search_space"])),
            score=record.get("score", FRESH_EXAMPLES),
            cadence=record.get("cadence", "step"),  # as before it was stored
            config=config,
            config_flag=record["config"],
            record=record,
        )
