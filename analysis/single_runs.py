"""Single runs as a study: equal settings are one condition, an equal data order one search."""

import collections
import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

from runs import records
from runs.cli import InputError
from runs.records import flat, nested, plain
from runs.study import ECHO_SETTINGS, INSERTIONS, Condition, Study, setting_label

# How the fields begin that do not make another condition: a search tunes them, scores account for
# them, or they say where and how often a run reads and writes files, and what is evaluated later.
_SAME_CONDITION = ("optimizer.", "seed.", "budget.", "target.", "echo.placement", "echo.replay")
_SAME_CONDITION += ("evaluate_every", "checkpoint_every", "log_every")
_SAME_CONDITION += ("dataset.data_dir", "dataset.cache_dir", "dataset.test_split", "augment_on")
# Fields that a condition and its baseline may differ in, besides all of echoing.
_SPACED_EPOCHS = "dataset.spaced_epochs"
_MAY_DIFFER = ("echo.", "batch_size", _SPACED_EPOCHS)

Snapshots = Mapping[pathlib.Path, Mapping[str, Any]]  # config.json by directory


def study_of(
    name: str, snapshots: Snapshots, target: float | None = None
) -> tuple[Study, list[tuple[records.TrialPath, pathlib.Path]]]:
    """The study that runs make, and the condition, search, and trial of each.

    Runs that differ in a field that no search tunes are different conditions, which the differing
    fields name. A condition is compared with the runs without echoing that agree in the rest.

    Args:
        name: of the study.
        snapshots: config.json of each run.
        target: a value at which runs with targets of different values are judged.

    Raises:
        InputError: the runs have different targets or data sets, so one score cannot compare them.
    """
    configs = {path: snapshot["config"] for path, snapshot in snapshots.items()}
    goal = _target(list(configs.values()), target)
    _check_data(snapshots)
    differing = _differing(list(configs.values()))
    conditions = {path: _condition(config, differing) for path, config in configs.items()}
    seeds = list(dict.fromkeys(nested(config, "seed.data") for config in configs.values()))
    trials: collections.Counter[tuple[str, int]] = collections.Counter()
    places = []
    for path, config in configs.items():
        search = conditions[path].name, seeds.index(nested(config, "seed.data"))
        places.append((records.TrialPath(*search, trials[search]), path))
        trials[search] += 1
    first = next(iter(snapshots.values()))
    budgets = {nested(config, "budget.fresh_examples") for config in configs.values()}
    origin = {"target": dataclasses.asdict(goal), "workload": first["config"].get("workload")}
    study = Study(
        name=plain(name, 200),
        conditions=tuple(sorted({c.name: c for c in conditions.values()}.values(), key=_order)),
        target=goal,
        budget=budgets.pop() if len(budgets) == 1 else None,
        record=dict(first) | origin,
    )
    return study, places


def _differing(configs: list[Mapping[str, Any]]) -> list[str]:
    """The fields, sorted, that make different conditions. A field that a record lacks is newer than
    that record, and does not differ."""
    values: dict[str, set[str]] = {}  # as text
    for config in configs:
        for name, value in flat(config).items():
            if not name.startswith(_SAME_CONDITION):
                values.setdefault(name, set()).add(repr(value))
    return sorted(name for name, different in values.items() if len(different) > 1)


def _condition(config: Mapping[str, Any], differing: list[str]) -> Condition:
    """The condition of a run. Its name is its label: the echo setting, and what differs."""
    values = flat(config)
    own = {name: values[name] for name in differing if name in values}
    problem = {name: value for name, value in own.items() if not name.startswith(_MAY_DIFFER)}
    condition = Condition.of("", problem, config)
    unsaid = ECHO_SETTINGS[:4] if condition.insertion != "none" else ("echo.",)
    said = {name: value for name, value in own.items() if not name.startswith(unsaid)}
    if said.get(_SPACED_EPOCHS) == 1:
        del said[_SPACED_EPOCHS]
    label = ", ".join([condition.label, *(plain(setting_label(*item)) for item in said.items())])
    return dataclasses.replace(condition, name=label, label=plain(label, 200))


def _target(configs: list[Mapping[str, Any]], value: float | None) -> records.Target:
    """The easiest target of the runs."""
    targets = list(dict.fromkeys(records.Target(**config["target"]) for config in configs))
    one_metric = len({(target.metric, target.mode) for target in targets}) == 1
    if not one_metric or (len(targets) > 1 and value is None):
        listed = "; ".join(f"{t.metric} {t.mode} {t.value:g}" for t in targets)
        advice = "give --target=X to judge all of them at one value"
        advice = advice if one_metric else "analyze runs of one metric at a time"
        raise InputError(f"these runs have different targets ({listed}); {advice}")
    return min(targets, key=lambda t: t.value if t.mode == "above" else -t.value)


def _check_data(snapshots: Snapshots) -> None:
    datasets = [snapshot.get("dataset") or {} for snapshot in snapshots.values()]
    names = {str(d["fingerprint"]): d.get("name") for d in datasets if d.get("fingerprint")}
    if len(names) > 1:
        listed = "; ".join(plain(f"{name}, fingerprint {hashed}") for hashed, name in names.items())
        raise InputError(
            f"these runs have different data sets ({listed}); analyze those of one at a time"
        )


def _order(condition: Condition) -> tuple:
    rank = list(INSERTIONS).index(condition.insertion)
    return rank, condition.policy, condition.factor, condition.shuffle_buffer, condition.name
