"""The data of the interactive part of report.html: the curves of all trials, and tables by target.

web/explorer.js draws them. It looks up what a table prints and computes none of it, so its numbers
are those of `tables` for the same target.
"""

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.colors import to_hex
from matplotlib.ticker import MaxNLocator

from analysis import load, scores, tables, uncertainty
from analysis.figures.style import COLORS, lighter
from analysis.load import LoadedStudy
from runs.study import FRESH_EXAMPLES, Axis, Study

MAX_TRIALS = 5_000  # a browser draws each of them, and the page holds their curves
_TARGETS = 14  # at most about so many; the tables of each are computed
_POSITION = ["fresh_examples", "step", "train_seconds"]  # in order of tables.COSTS


def data(loaded: LoadedStudy) -> dict[str, Any] | None:
    """What explorer.js shows, as JSON values; None if no trial was evaluated, or for more than
    MAX_TRIALS.

    A study that scores best values is explored by the fresh examples to a target.
    """
    if len(loaded.trials) > MAX_TRIALS:
        return None
    evaluations = load.curves(loaded.trials, loaded.study.target.metric)
    finite = evaluations.dropna(subset="value")
    if finite.empty:
        return None
    targets = _targets(loaded, finite)
    if loaded.study.scores_values:
        study = dataclasses.replace(loaded.study, score=FRESH_EXAMPLES)
        trials = loaded.trials.assign(counted=load.counted(loaded.trials, study))
        loaded = dataclasses.replace(loaded, study=study, trials=trials)
    study, target = loaded.study, loaded.study.target.value
    shared = scores.is_shared(loaded.trials).any()
    measures = [name for name in tables.COSTS if not (name == "seconds" and shared)]
    judged = [load.judged_at(loaded, evaluations, target) for target in targets]
    axes = _axes(loaded)
    return {
        "metric": study.target.metric,
        "above": study.target.mode == "above",
        "measures": [{"name": name, "label": tables.COSTS[name]} for name in measures],
        "conditions": [
            {"label": tables.unbroken(condition.label), "color": color}
            for condition, color in zip(study.conditions, _colors(study), strict=True)
        ],
        "hyperparameters": [
            {"label": axis.label, "log": axis.scale.startswith("log"), "choices": list(axis.values)}
            for axis in axes
        ],
        "trials": _trials(loaded, finite, axes),
        "measure": measures.index(study.score) if study.score in measures else 0,
        "start": targets.index(target) if target in targets else len(targets) // 2,
        "targets": [_at_target(at_target, measures) for at_target in judged],
    }


def _colors(study: Study) -> list[str]:
    """A color per condition; conditions of one insertion point differ in their shade."""
    insertions = [condition.insertion for condition in study.conditions]
    shades = [insertions[:index].count(name) for index, name in enumerate(insertions)]
    return [
        to_hex(lighter(COLORS[name], 0.7 * shade / insertions.count(name)))
        for name, shade in zip(insertions, shades, strict=True)
    ]


def _targets(loaded: LoadedStudy, evaluations: pd.DataFrame) -> list[float]:
    """Round values of the metric, easiest first, and the study's target: from what half of the
    best trials had reached after a quarter of their evaluations up to the planned target, or the
    best value."""
    study, trials = loaded.study, loaded.trials
    best = scores.leaders(trials, scores.search_scores(trials, study))
    key = ["condition", "search", "trial"]
    curves = evaluations.merge(best[key], on=key).groupby(key)["value"]
    early = [own.iloc[len(own) // 4] for _, own in curves]
    above = study.target.mode == "above"
    extreme = evaluations["value"].max() if above else evaluations["value"].min()
    planned = [study.target.value, study.planned_target.value]
    hardest = max(planned) if above else min(planned)
    if study.target.better(hardest, than=extreme):  # never reached
        hardest = extreme
    easiest = statistics.median(early) if early else extreme
    low, high = sorted((float(easiest), float(hardest)))
    ticks = MaxNLocator(_TARGETS, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high)
    rounded = {round(float(tick), 12) for tick in ticks if low <= tick <= high}
    if not study.scores_values or study.target.reached(float(extreme)):
        rounded.add(study.target.value)
    if not rounded:  # no round value lies between two ends that coincide
        rounded.add(float(extreme))
    return sorted(rounded, reverse=not above)


def _axes(loaded: LoadedStudy) -> list[Axis]:
    """The axes of the hyperparameters that differ between trials."""
    # a searched batch size has its column among the settings
    searched = [axis.field for axis in loaded.study.space if axis.field in loaded.trials]
    names = dict.fromkeys([*searched, *load.hyperparameters(loaded.trials)])
    varied = [name for name in names if loaded.trials[name].astype(str).nunique() > 1]
    return [_axis(loaded, name) for name in varied]


def _axis(loaded: LoadedStudy, name: str) -> Axis:
    """The axis of the search space; of single runs, one that holds their numbers or texts."""
    for axis in loaded.study.space:
        if axis.field == name:
            return axis
    values = loaded.trials[name].dropna()
    if len(values) and values.map(lambda value: isinstance(value, str)).all():
        return Axis(name, "choice", values=tuple(sorted(set(values))))
    return Axis(name, "linear")


def _trials(
    loaded: LoadedStudy, evaluations: pd.DataFrame, axes: Sequence[Axis]
) -> list[dict[str, Any]]:
    """Each trial with the evaluations that improved on those before, in order of `loaded.trials`.

    These decide where a trial reaches any target.
    """
    conditions = [condition.name for condition in loaded.study.conditions]
    key = ["condition", "search", "trial"]
    above = loaded.study.target.mode == "above"
    groups = evaluations.groupby(key)["value"]
    best = groups.cummax() if above else groups.cummin()
    improved = evaluations[best != best.groupby([evaluations[name] for name in key]).shift()]
    curves = {place: own[[*_POSITION, "value"]] for place, own in improved.groupby(key)}
    rows = []
    for trial in loaded.trials.to_dict("records"):
        curve = curves.get(tuple(trial[name] for name in key))
        values = {axis.field: trial[axis.field] for axis in axes if pd.notna(trial[axis.field])}
        rows.append(
            {
                "condition": conditions.index(trial["condition"]),
                "name": f"search {trial['search']}, trial {trial['trial']}: {trial['status']}",
                "hyperparameters": [_coordinate(axis, values.get(axis.field)) for axis in axes],
                "values": [
                    f"{name.rpartition('.')[2].replace('_', ' ')} {_value(value)}"
                    for name, value in values.items()
                ],
                "curve": [] if curve is None else curve.round({"train_seconds": 2}).values.tolist(),
            }
        )
    return rows


def _coordinate(axis: Axis, value: Any) -> float | None:
    """Where a value is drawn; None if it is missing, or no number."""
    if value is None or (isinstance(value, str) and not axis.values):
        return None
    coordinate = axis.coordinate(value)
    return None if pd.isna(coordinate) else float(coordinate)


def _value(value: Any) -> str:
    return f"{value:,.4g}" if isinstance(value, float) else str(value)


def _at_target(judged: LoadedStudy, measures: list[str]) -> dict[str, Any]:
    """Tables and scores at one target, by measure."""
    study, trials = judged.study, judged.trials
    names = [condition.name for condition in study.conditions]
    conditions = scores.condition_scores(trials, study)
    searches = scores.search_scores(trials, study)
    effects = uncertainty.paired_effects(uncertainty.pairs(trials, study), study)
    return {
        "value": study.target.value,
        "text": tables.target_text(study.target),
        "leaders": [trials.index.get_loc(label) for label in searches["leader"].dropna()],
        "uncounted": np.flatnonzero(~trials["counted"]).tolist(),
        "measures": [
            {
                "table": tables.at_target(conditions, effects, study, measure),
                "conditions": [
                    [
                        *_bounds(row, measure),
                        *(_json(row[f"{measure}_{end}"]) for end in ("min", "max_low")),
                    ]
                    for row in conditions.to_dict("records")
                ],
                "searches": [
                    [
                        names.index(row["condition"]),
                        row["search"],
                        _bounds(row, measure)[0],
                        bool(row[f"{measure}_high"] != row[f"{measure}_low"]),
                    ]
                    for row in searches.to_dict("records")
                ],
            }
            for measure in measures
        ],
    }


def _bounds(row: Mapping[str, Any], measure: str) -> list[float | None]:
    """The lower and the upper bound of a cost; no lower bound if nothing is known of it."""
    low, high = (row[f"{measure}_{end}"] for end in ("low", "high"))
    return [None if low <= 0 and high == float("inf") else _json(low), _json(high)]


def _json(value: float) -> float | None:
    """JSON has no infinity and no NaN."""
    return None if pd.isna(value) or abs(value) == float("inf") else float(value)
