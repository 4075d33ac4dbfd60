"""Single runs as a study: equal echo settings are one condition, an equal data order one search."""

import dataclasses
import pathlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from runs import records
from runs.cli import InputError
from runs.study import (
    ECHO_SETTINGS,
    INSERTIONS,
    Condition,
    Study,
    flat,
    is_number,
    nested,
    plain,
    setting_label,
)

# How fields begin that may differ between runs: a search tunes them, scores account for them, they
# tell conditions apart, or they say where the data are augmented, where and how often a run reads
# and writes files, and what is evaluated after it.
_MAY_DIFFER = ("optimizer.", "seed.", "batch_size", "budget.", "target.")
# Not echo.streams, which no condition tells apart: another number is another order of examples.
_MAY_DIFFER += (*ECHO_SETTINGS, "echo.placement", "echo.replay")
_MAY_DIFFER += ("evaluate_every", "checkpoint_every", "log_every", "gradient_statistics_every")
_MAY_DIFFER += ("dataset.data_dir", "dataset.cache_dir", "dataset.test_split", "augment_on")
_SPACED_EPOCHS = "dataset.spaced_epochs"
_MAY_DIFFER += (_SPACED_EPOCHS,)

# How fields begin by which runs train on different problems.
_PROBLEM = ("workload", "model.", "loss.", "dataset.", "augmentation.")


def condition_of(snapshot: Mapping[str, Any]) -> Condition:
    """The condition of a run, given its config.json. Its name and label are the settings."""
    spaced_epochs = nested(snapshot["config"], _SPACED_EPOCHS) or 1
    overrides = {_SPACED_EPOCHS: spaced_epochs} if spaced_epochs > 1 else {}
    condition = Condition.of("", overrides, snapshot["config"])
    parts = [condition.label]
    if condition.shuffle_buffer:
        parts.append(f"buffer {condition.shuffle_buffer:,}")
    if condition.batch_size:
        parts.append(f"batch {condition.batch_size:,}")
    parts += [setting_label(*override) for override in overrides.items()]
    label = ", ".join(parts)
    return dataclasses.replace(condition, name=label, label=label)


def study_of(
    name: str, snapshots: Sequence[Mapping[str, Any]], target: float | None = None
) -> Study:
    """The study that runs make, given the config.json of each.

    Args:
        name: of the study.
        snapshots: config.json of each run.
        target: a value at which runs with targets of different values are judged.

    Raises:
        InputError: the runs have different targets or data sets, so one score cannot compare them.
    """
    configs = [snapshot["config"] for snapshot in snapshots]
    targets = list(dict.fromkeys(records.Target(**config["target"]) for config in configs))
    metrics = {(target.metric, target.mode) for target in targets}
    if len(metrics) > 1 or (len(targets) > 1 and target is None):
        listed = "; ".join(f"{t.metric} {t.mode} {t.value:g}" for t in targets)
        advice = (
            "analyze runs of one metric at a time"
            if len(metrics) > 1
            else "give --target=X to judge all of them at one value"
        )
        raise InputError(f"these runs have different targets ({listed}); {advice}")
    datasets = [snapshot.get("dataset") or {} for snapshot in snapshots]
    names = {str(d["fingerprint"]): d.get("name") for d in datasets if d.get("fingerprint")}
    if len(names) > 1:
        listed = "; ".join(plain(f"{name}, fingerprint {hashed}") for hashed, name in names.items())
        raise InputError(
            f"these runs have different data sets ({listed}); analyze those of one at a time"
        )
    conditions = {condition.name: condition for condition in map(condition_of, snapshots)}
    ordered = sorted(conditions.values(), key=_presentation)
    without_echo = [c.name for c in ordered if c.insertion == "none" and not c.overrides]
    budgets = {nested(config, "budget.fresh_examples") for config in configs}
    easiest = min(targets, key=lambda t: t.value if t.mode == "above" else -t.value)
    origin = {"target": dataclasses.asdict(easiest), "workload": configs[0].get("workload")}
    return Study(
        name=plain(name, 200),
        conditions=tuple(ordered),
        target=easiest,
        baseline=without_echo[0] if len(without_echo) == 1 else "",
        budget=budgets.pop() if len(budgets) == 1 else None,
        record=dict(snapshots[0]) | origin,
    )


def differing_fields(snapshots: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """The fields, sorted, in which runs differ though no search would tune them.

    A field that a record lacks is newer than the record, and does not differ.
    """
    values: dict[str, set[str]] = {}  # as text
    for snapshot in snapshots:
        for name, value in flat(snapshot["config"]).items():
            if not name.startswith(_MAY_DIFFER):
                values.setdefault(name, set()).add(repr(value))
    return tuple(sorted(name for name, different in values.items() if len(different) > 1))


def problem_of(config: Mapping[str, Any], differing: Iterable[str]) -> dict[str, Any]:
    """The values of those of the `differing` fields by which a run trains on another problem."""
    values = flat(config)
    return {
        name: values[name] if is_number(values[name]) else plain(str(values[name]))
        for name in differing
        if name.startswith(_PROBLEM) and name in values
    }


def places(
    snapshots: Mapping[pathlib.Path, Mapping[str, Any]],
) -> Iterator[tuple[records.TrialPath, pathlib.Path]]:
    """Condition, search, and trial of each run; runs that share a data seed are in one search."""
    searches: dict[Any, int] = {}
    trials: dict[tuple[str, int], int] = {}
    for path, snapshot in snapshots.items():
        order = nested(snapshot["config"], "seed.data")
        search = searches.setdefault(order, len(searches))
        key = (condition_of(snapshot).name, search)
        trial = trials[key] = trials.get(key, -1) + 1
        yield records.TrialPath(*key, trial), path


def _presentation(condition: Condition) -> tuple:
    rank = list(INSERTIONS).index(condition.insertion)
    return rank, condition.policy, condition.factor, condition.shuffle_buffer, condition.name
