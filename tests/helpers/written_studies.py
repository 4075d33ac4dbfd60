"""Writes the records of studies and runs by hand, for the tests of the analysis."""

import copy
import itertools

from analysis import load, scores
from analysis.__main__ import main
from runs import cli, records
from runs.records import flat

TARGET = {"metric": "accuracy", "value": 0.9, "mode": "above"}
EVERY = 100  # fresh examples between evaluations
_CLOCK = itertools.count()  # no two runs have the same clocks


def setting(name, insertion="none", factor=1.0, buffer=0, **overrides):
    kind = insertion.replace("_", " ")
    label = "no echoing" if insertion == "none" else f"{kind}, e = {factor:g}"
    overrides["echo.insertion"], overrides["echo.factor"] = insertion, float(factor)
    overrides["echo.shuffle_buffer"] = buffer
    return {"name": name, "label": label, "overrides": overrides}


BASELINE = setting("baseline")
BEFORE = setting("before_e2", "before_augmentation", 2.0, 50)


def config(**changes):
    nested = {
        "workload": "cifar10",
        "target": TARGET,
        "optimizer": {"name": "sgd", "learning_rate": 0.1},
        "budget": {"fresh_examples": 1000},
        "evaluate_every_fresh_examples": EVERY,
        "echo": {"insertion": "none", "factor": 1.0, "shuffle_buffer": 0},
        "batch_size": 10,
        "seed": {"data": 0, "model": 0},
    }
    return nested | changes


def with_values(settings, values):
    """A nested configuration with fields, by dotted name, set to other values."""
    settings = copy.deepcopy(settings)
    for name, value in values.items():
        *groups, field = name.split(".")
        group = settings
        for key in groups:
            group = group.setdefault(key, {})
        group[field] = value
    return settings


def change(path, **fields):
    """Writes a record again with other fields."""
    records.write_json(path, records.read_json(path) | fields)


def write_trial(directory, values, status=None, factor=1.0, target=TARGET, settings=None, **origin):
    """A trial that reports `values` of the metric, one per EVERY fresh examples, in batches of 10.

    `status` follows from the values by default; "unfinished" writes no result.
    """
    directory.mkdir(parents=True)
    goal = records.Target(**target)
    writer, score, best = records.LinesWriter(directory / records.METRICS), None, (None, None)
    at = {"step": 0, "fresh_examples": 0, "train_seconds": 0.0}
    for number, value in enumerate(values, start=1):
        fresh = number * EVERY
        steps = int(fresh * factor / 10)
        at = {"step": steps, "fresh_examples": fresh, "train_seconds": fresh / 50}
        writer.write(at | {"split": "train", "loss": 1.0, "wall_seconds": next(_CLOCK)})
        writer.write(at | {"split": "validation", goal.metric: value})
        if score is None and goal.reached(value):
            score = at
        if goal.better(value, best[0]):
            best = (value, fresh)
    writer.close()
    origin = {"hardware": {"device_kind": "cpu", "devices": 1}} | origin
    snapshot = {"schema_version": records.SCHEMA_VERSION, "config": settings or config(), **origin}
    records.write_json(directory / records.CONFIG, snapshot)
    if status == "unfinished":
        return
    status = status or ("exhausted" if score is None else "reached")
    best = {"metric": goal.metric, "value": best[0], "fresh_examples": best[1]}
    position = at | {"wall_seconds": 1.0, "input_wait_fraction": 0.0}
    position |= {"core_seconds": 2 * at["train_seconds"], "bytes_read": 1000 * at["fresh_examples"]}
    result = records.run_result(status, goal, position, best, None)
    names = {"fresh_examples": "fresh_examples", "steps": "step", "seconds": "train_seconds"}
    result |= {f"{name}_to_target": score and score[key] for name, key in names.items()}
    records.write_json(directory / records.RESULT, result)


def write_study(root, conditions, outcomes, **changes):
    """A study whose outcomes are {(condition, search, trial): values, or (values, status)}."""
    root.mkdir()
    plan = {
        "schema_version": records.SCHEMA_VERSION,
        "study": "small",
        "config": "configs/cifar10.py:mini",
        "workload": "cifar10",
        "resolved_config": {"batch_size": 10},
        "target": TARGET,
        "budget_fresh_examples": 1000,
        "dataset": {"name": "digits", "train_examples": 1437, "notes": []},
        "baseline": conditions[0]["name"],
        "conditions": conditions,
        "search_space": [
            {"field": "optimizer.learning_rate", "scale": "log", "min": 0.001, "max": 1.0}
        ],
        "trials": 2,
        "max_trials": 4,
        "searches": 2,
        "seeds": {"data": 11, "model": 12},
        "commit": "abc1234",
        "packages": {"jax": "0.10.2"},
        "hardware": {"device_kind": "cpu", "devices": 1},
    }
    plan |= changes
    records.write_json(root / records.STUDY, plan)
    overrides = {c["name"]: c["overrides"] for c in conditions}
    for (condition, search, trial), outcome in outcomes.items():
        values, status = outcome if isinstance(outcome, tuple) else (outcome, None)
        place = records.TrialPath(condition, search, trial)
        hparams = {"optimizer.learning_rate": 0.01 * (trial + 1)}
        fields = flat(plan["resolved_config"]) | overrides[condition] | hparams
        settings = config(seed={"data": search, "model": 100 * search + trial})
        factor, settings = overrides[condition]["echo.factor"], with_values(settings, fields)
        write_trial(place.under(root), values, status, factor, plan["target"], settings)
        placed = {"condition": condition, "search": search, "trial": trial, "hparams": hparams}
        records.write_json(place.under(root) / records.HPARAMS, placed)
    return root


SMALL = {
    # Search 0: a diverged trial does not count, so trials 1 and 2 count, and trial 3 does not.
    ("baseline", 0, 0): ([0.2, 0.1], "diverged"),
    ("baseline", 0, 1): [0.1] * 7 + [0.9],  # 800
    ("baseline", 0, 2): [0.1] * 5 + [0.95],  # 600
    ("baseline", 0, 3): [0.91],  # 100, not counted
    ("baseline", 1, 0): [0.1] * 9 + [0.92],  # 1000
    ("baseline", 1, 1): [0.5] * 10,
    ("before_e2", 0, 0): [0.1, 0.3, 0.85, 0.93],  # 400
    ("before_e2", 0, 1): ([0.1], "failed"),
    ("before_e2", 0, 2): [0.1] * 4 + [0.9],  # 500
    ("before_e2", 1, 0): [0.6] * 10,
    ("before_e2", 1, 1): [0.7] * 10,
}


def study_of(root, conditions, needed=lambda condition: 4, searches=2, trials=3, **changes):
    """A study in which trial k of a condition takes `needed` + k + search evaluations."""
    values = {
        (c["name"], search, trial): [0.2] * (needed(c) + search + trial) + [0.9]
        for c in conditions
        for search in range(searches)
        for trial in range(trials)
    }
    return write_study(root, conditions, values, searches=searches, trials=trials, **changes)


def analyzed(directory, target=None):
    """What was loaded, its searches, and the rows of its conditions."""
    loaded = load.read(directory, target)
    searches = scores.search_scores(loaded.trials, loaded.study)
    return loaded, searches, scores.condition_scores(loaded.trials, loaded.study)


def run_analysis(*arguments):
    """The exit code of `python -m analysis`, in this process."""
    return cli.guarded(main, list(map(str, arguments)))
