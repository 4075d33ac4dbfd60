"""What a study is and costs, in words: for --study=list and --dry-run. Nothing is written."""

import copy
import textwrap
from collections.abc import Sequence
from typing import Any

from pipeline import accounting
from studies import plan
from studies.plan import Study

_WIDTH = 100
_DISPLAYED_TRIALS = 3


def listing(config: Any, module: Any, config_flag: str, overrides: Sequence[str]) -> str:
    """Each study of a configuration file: what it is for, and what it costs."""
    variant = config_flag.partition(":")[2]
    names = plan.named(module, variant)
    if not names:
        return f"{config_flag} has no studies; add get_studies() to it"
    lines = []
    for name, each in names.items():
        study = plan.load_study(
            copy.deepcopy(config), module, config_flag, name, overrides=overrides
        )
        lines += [name, *_wrapped(each.get("about", "")), *_wrapped(cost(study)), ""]
    return "\n".join(lines).rstrip()


def dry_run(study: Study) -> str:
    """Conditions, search space, the first trials, seeds and cost."""
    target, seed = study.config.target, study.config.seed
    sign = ">=" if target.mode == "above" else "<="
    lines = [
        f"study {study.name} of {study.config_flag}",
        f"target: {target.metric} {sign} {target.value:g}; scored by {study.score}",
        "",
        "conditions (the baseline is marked *):",
    ]
    for condition in study.conditions:
        mark = "*" if condition["name"] == study.baseline else " "
        steps = accounting.total_steps(plan.trial_config(study, condition, 0, 0))
        lines.append(f" {mark} {condition['name']}: {condition['label']}; at most {steps:,} steps")
        lines += [f"       {name} = {value}" for name, value in condition["overrides"].items()]
    lines += ["", "search space:", *(f"   {_axis(axis)}" for axis in study.space), ""]
    lines += [f"the first trials of search 0, of {study.trials}:"]
    for trial in range(min(_DISPLAYED_TRIALS, study.trials)):
        values = plan.point(study.space, 0, trial)
        shown = (
            f"{n} = {x:.4g}" if isinstance(x, float) else f"{n} = {x}" for n, x in values.items()
        )
        lines.append(f"   {trial}: {', '.join(shown)}")
    lines += [
        "",
        f"seeds: seed.data = {seed.data} + search; seed.model = {seed.model} + "
        f"{plan.SEEDS_PER_SEARCH} * search + trial; the same in every condition",
        f"cost: {cost(study)}",
    ]
    return "\n".join(lines)


def cost(study: Study) -> str:
    """Trials and fresh examples, as far as they can be known before."""
    a_search = len(study.conditions) * study.searches
    budgets = [
        plan.trial_config(study, condition, 0, 0).budget.fresh_examples
        for condition in study.conditions
    ]
    fresh = sum(budgets) * study.searches * study.trials
    return (
        f"{len(study.conditions)} conditions x {study.searches} searches x {study.trials} trials = "
        f"{a_search * study.trials:,} trials that do not diverge ({a_search * study.max_trials:,} "
        f"tries at most), {fresh:,} fresh examples if each uses its whole budget"
    )


def _axis(axis: dict[str, Any]) -> str:
    if axis["scale"] == "choice":
        return f"{axis['field']}: one of {', '.join(map(str, axis['values']))}"
    scale = "log of 1 - value" if axis["scale"] == "log_one_minus" else axis["scale"]
    return f"{axis['field']}: {axis['min']:g} to {axis['max']:g}, {scale}"


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent="    ", subsequent_indent="    ")
