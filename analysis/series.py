"""Finds the setting that a study varies: the echo factor, batch size, or shuffle buffer.

A study whose conditions form series along such a setting is plotted against it. Any other study is
a list of conditions, drawn as rows.
"""

import dataclasses
import itertools
from collections.abc import Iterable, Sequence

from runs.study import (
    INSERTIONS,
    Condition,
    Study,
    echo_label,
    plain,
    setting_label,
)

# By setting, the points that make a series. The baseline (e = 1) is the first point of a factor.
_MIN_POINTS = {"factor": 3, "batch_size": 2, "buffer_examples": 2}
LABELS = {
    "factor": "echo factor e",
    "batch_size": "batch size (examples)",
    "buffer_examples": "shuffle buffer (examples)",
}


@dataclasses.dataclass(frozen=True)
class Series:
    """Conditions that differ only in one setting: (value, condition name), sorted by value."""

    label: str
    insertion: str
    points: tuple[tuple[float, str], ...]


@dataclasses.dataclass(frozen=True)
class VariedSetting:
    """The setting that a study varies.

    Attributes:
        name: factor, batch_size, or buffer_examples.
        series: the lines of a plot against it.
        reference: a baseline that has no value of the setting; None if every condition has one.
    """

    name: str
    series: tuple[Series, ...]
    reference: str | None


def varied_setting(study: Study) -> VariedSetting | None:
    """The setting with the longest series that include every condition of the study."""
    candidates = [setting for name in _MIN_POINTS if (setting := _along(study, name)) is not None]
    lengths = [max(len(series.points) for series in setting.series) for setting in candidates]
    return candidates[lengths.index(max(lengths))] if candidates else None


def _along(study: Study, name: str) -> VariedSetting | None:
    """Splits the conditions by as few of the other settings as give each series distinct values."""
    others = [other for other in _MIN_POINTS if other != name]
    for count in range(len(others) + 1):
        for split in itertools.combinations(others, count):
            groups = _groups(study, name, split)
            if all(_has_distinct_values(group, name) for group in groups):
                return _varied(study, name, groups)
    return None


def _groups(study: Study, name: str, split: Sequence[str]) -> list[list[Condition]]:
    """Conditions that agree in insertion, policy, the settings in `split`, and other overrides."""
    groups: dict[tuple, list[Condition]] = {}
    for condition in study.conditions:
        if condition.insertion == "none" and name != "batch_size":
            continue  # e = 1 belongs to every series, and has no buffer
        numbers = (getattr(condition, setting) for setting in split)
        key = (condition.insertion, condition.policy, condition.other_overrides, *numbers)
        groups.setdefault(key, []).append(condition)
    if name == "factor":
        by_name = {condition.name: condition for condition in study.conditions}
        for group in groups.values():
            baseline = by_name.get(study.baseline_of(group[0]) or "")
            if baseline and not any(condition.factor == 1 for condition in group):
                group.insert(0, baseline)
    return list(groups.values())


def _has_distinct_values(group: Iterable[Condition], name: str) -> bool:
    values = [getattr(condition, name) for condition in group]
    return None not in values and len(set(values)) == len(values)


def _varied(study: Study, name: str, groups: list[list[Condition]]) -> VariedSetting | None:
    groups = [group for group in groups if len(group) > 1 or group[0].insertion != "none"]
    included = {condition.name for group in groups for condition in group}
    left_out = [c.name for c in study.conditions if c.name not in included]
    if not groups or len(left_out) > 1 or min(map(len, groups)) < _MIN_POINTS[name]:
        return None
    series = tuple(
        Series(
            _label(group[-1], groups, name),
            group[-1].insertion,
            tuple(sorted((float(getattr(c, name)), c.name) for c in group)),
        )
        for group in groups
    )
    return VariedSetting(name, series, left_out[0] if left_out else None)


def _label(condition: Condition, groups: Sequence[list[Condition]], name: str) -> str:
    """The insertion point, with the settings that distinguish this series from the others."""
    others = [group[-1] for group in groups]
    if name != "factor":
        parts = [echo_label(condition.insertion, condition.factor, condition.policy)]
    else:
        parts = [INSERTIONS[condition.insertion]]
        if condition.policy == "auto" and len({other.policy for other in others}) > 1:
            parts.append("auto")
    several = len({other.batch_size for other in others}) > 1
    if name != "batch_size" and several and condition.batch_size is not None:
        parts.append(f"batch {condition.batch_size:,}")
    if name != "buffer_examples" and any(
        other.insertion == condition.insertion
        and other.buffer_examples != condition.buffer_examples
        for other in others
        if other.batch_size == condition.batch_size or name == "batch_size"
    ):
        parts.append(f"buffer {condition.buffer_examples:,}")
    for setting in condition.other_overrides:
        if any(setting not in other.other_overrides for other in others):
            parts.append(plain(setting_label(*setting), 200))
    return ", ".join(parts)
