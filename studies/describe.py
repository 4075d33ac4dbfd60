"""Prints what a study is and what it costs, for --study=list and --dry-run."""

import copy
import textwrap
from collections.abc import Sequence
from typing import Any

import ml_collections

from pipeline import accounting
from runs.progress import several
from runs.study import Study
from studies import definitions, search

_WIDTH = 100
_DISPLAYED_TRIALS = 3


def listing(
    config: ml_collections.ConfigDict, module: Any, config_flag: str, overrides: Sequence[str]
) -> str:
    """Each study of a configuration file: what it is for, and what it costs."""
    studies = definitions.all_studies(module, config_flag.partition(":")[2])
    if not studies:
        return f"{config_flag} has no studies; add get_studies() to it"
    lines = []
    for name, definition in studies.items():
        study = definitions.load_study(
            copy.deepcopy(config), module, config_flag, name, overrides=overrides
        )
        lines += [name, *_wrapped(definition.get("about", "")), *_wrapped(cost(study)), ""]
    return "\n".join(lines).rstrip()


def dry_run(study: Study) -> str:
    """Conditions, search space, first trials, seeds, and cost."""
    seed = study.config.seed
    sign = ">=" if study.target.mode == "above" else "<="
    lines = [
        f"study {study.name} of {study.config_flag}",
        f"target: {study.target.metric} {sign} {study.target.value:g}; scored by {study.score}",
        "",
        "conditions (* = baseline):",
    ]
    for condition in study.conditions:
        mark = "*" if condition.name == study.baseline else " "
        steps = max(map(accounting.total_steps, search.longest_trials(study, condition)))
        lines.append(
            f" {mark} {condition.name}: {condition.label}; at most {several(steps, 'step')}"
        )
        lines += [f"       {name} = {value}" for name, value in condition.overrides.items()]
    lines += ["", "search space:", *([f"   {axis}" for axis in study.space] or ["   none"])]
    if study.space:
        lines += ["", f"first trials of search 0, which has {study.trials}:"]
        lines += [_trial(study, n) for n in range(min(_DISPLAYED_TRIALS, study.trials))]
    lines += [
        "",
        f"seeds: seed.data = {seed.data} + search; seed.model = {seed.model} + "
        f"{search.SEEDS_PER_SEARCH} * search + trial; equal in all conditions",
        f"cost: {cost(study)}",
    ]
    return "\n".join(lines)


def _trial(study: Study, number: int) -> str:
    """A line for the hyperparameters of a trial of search 0."""
    point = search.point(study.space, 0, number).items()
    values = [f"{n} = {x:.4g}" if isinstance(x, float) else f"{n} = {x}" for n, x in point]
    return f"   {number}: {', '.join(values)}"


def cost(study: Study) -> str:
    """Trials and fresh examples, as far as they are known in advance."""
    searches = len(study.conditions) * study.searches
    budgets = [
        max(config.budget.fresh_examples for config in search.longest_trials(study, condition))
        for condition in study.conditions
    ]
    fresh_examples = sum(budgets) * study.searches * study.trials
    largest = any(axis.field == "budget.fresh_examples" for axis in study.space)
    return (
        f"{several(len(study.conditions), 'condition')} x {several(study.searches, 'search')} x "
        f"{several(study.trials, 'trial')} = {several(searches * study.trials, 'trial')}, "
        f"diverged ones not counted (at most {several(searches * study.max_trials, 'attempt')}); "
        f"{fresh_examples:,} fresh examples if each trial uses "
        + ("the largest budget" if largest else "its whole budget")
    )


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent="    ", subsequent_indent="    ")
