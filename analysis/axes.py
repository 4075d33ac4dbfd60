"""Which number a study varies, if it varies one: the echoing factor, batch size or shuffle buffer.

A study whose conditions form series along such a number is drawn against it; any other study is a
list of conditions, drawn as bars.
"""

import dataclasses
import itertools
from collections.abc import Iterable, Sequence

from analysis.study import Condition, Study, factor_text

# A factor's first point is the baseline (e = 1), so two more make a series.
_POINTS = {"factor": 3, "batch_size": 2, "buffer_examples": 2}
LABELS = {
    "factor": "echoing factor e",
    "batch_size": "batch size (examples)",
    "buffer_examples": "shuffle buffer (examples)",
}
_SLOTS = {"none": "no echoing", "after_batching": "batch echoing"}


@dataclasses.dataclass(frozen=True)
class Series:
    """Conditions that differ in one number alone: (number, condition's name), in its order."""

    label: str
    insertion: str
    points: tuple[tuple[float, str], ...]


@dataclasses.dataclass(frozen=True)
class Axis:
    """The number that a study varies.

    Attributes:
        name: factor, batch_size or buffer_examples.
        series: lines along it.
        reference: the condition that has no place on it, a baseline; None where all have one.
    """

    name: str
    series: tuple[Series, ...]
    reference: str | None


def numeric_axis(study: Study) -> Axis | None:
    """The axis with the longest series on which every condition of the study has its place."""
    axes = [axis for name in _POINTS if (axis := _along(study, name)) is not None]
    longest = [max(len(series.points) for series in axis.series) for axis in axes]
    return axes[longest.index(max(longest))] if axes else None


def _along(study: Study, name: str) -> Axis | None:
    others = [each for each in _POINTS if each != name]
    for count in range(len(others) + 1):
        for split in itertools.combinations(others, count):
            groups = _groups(study, name, split)
            if all(_distinct(group, name) for group in groups):
                return _axis(study, name, groups)
    return None


def _groups(study: Study, name: str, split: Sequence[str]) -> list[list[Condition]]:
    """Conditions alike in insertion, policy, whatever else they set, and the numbers in `split`."""
    found: dict[tuple, list[Condition]] = {}
    for each in study.conditions:
        if each.insertion == "none" and name != "batch_size":
            continue  # e = 1 joins every series, and has no buffer
        key = (each.insertion, each.policy, each.others, *(getattr(each, n) for n in split))
        found.setdefault(key, []).append(each)
    by_name = {each.name: each for each in study.conditions}
    if name == "factor":
        for group in found.values():
            baseline = by_name.get(study.baseline_of(group[0]))
            if baseline and not any(each.factor == 1 for each in group):
                group.insert(0, baseline)
    return list(found.values())


def _distinct(group: Iterable[Condition], name: str) -> bool:
    values = [getattr(each, name) for each in group]
    return None not in values and len(set(values)) == len(values)


def _axis(study: Study, name: str, groups: Sequence[list[Condition]]) -> Axis | None:
    lone = [group for group in groups if len(group) == 1 and group[0].insertion == "none"]
    groups = [group for group in groups if group not in lone]
    placed = {each.name for group in groups for each in group}
    left = [each.name for each in study.conditions if each.name not in placed]
    if not groups or len(left) > 1 or min(map(len, groups)) < _POINTS[name]:
        return None
    series = [
        Series(
            _label(group[-1], groups, name),
            group[-1].insertion,
            tuple(sorted((float(getattr(each, name)), each.name) for each in group)),
        )
        for group in groups
    ]
    return Axis(name, tuple(series), left[0] if left else None)


def _label(condition: Condition, groups: Sequence[list[Condition]], name: str) -> str:
    """The insertion point, with the numbers that tell this series from another."""
    words = [_SLOTS.get(condition.insertion, condition.insertion.replace("_", " "))]
    if name != "factor" and condition.insertion != "none":
        words.append(f"e = {factor_text(condition.factor)}")
    ends = [group[-1] for group in groups]
    if name != "batch_size" and len({each.batch_size for each in ends}) > 1:
        words.append(f"batch {condition.batch_size:,}")
    if name != "buffer_examples" and any(
        each.insertion == condition.insertion and each.buffer_examples != condition.buffer_examples
        for each in ends
        if each.batch_size == condition.batch_size or name == "batch_size"
    ):
        words.append(f"buffer {condition.buffer_examples:,}")
    return ", ".join(words)
