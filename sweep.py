"""Runs a study: a quasi-random search for every condition, repeated, scored in fresh examples.

    python sweep.py --config=configs/cifar10.py:mini --study=demo --outdir=DIR

A condition is a set of overrides (where and how often to echo); its learning rate and the other
searched fields are tuned anew. Trial k of a search has the same hyperparameters whatever the number
of trials, so a study can be stopped, continued and extended: finished trials are kept, a half-done
one goes on where it stopped. Then `python -m analysis DIR` makes the table and the figures.
"""

import argparse
import copy
import dataclasses
import json
import math
import pathlib
import sys
import time
from collections.abc import Sequence
from typing import Any

from scipy.stats import qmc

import train
from configs import base
from runs import command, environment, processes, records
from runs.progress import Progress, duration

# Diverged trials do not count, and about half of a wide search diverges (Shallue et al. 2018), so
# a search may try this many times as many points as it needs.
MAX_TRIALS_FACTOR = 2

# Model seeds of two searches never meet, and a trial's does not depend on the number of trials.
SEEDS_A_SEARCH = 10_000


@dataclasses.dataclass(frozen=True)
class Study:
    """What is run: conditions x searches x trials of one configuration.

    Attributes:
        config: the configuration that all trials start from.
        conditions: dicts with `name`, `label` and `overrides`, in the order of presentation.
        space: axes of the search: dicts with `field`, `scale` and `min`, `max` or `values`.
        trials: trials of a search that must not have diverged.
        searches: independent repetitions of each condition's search.
        baseline: the name of the condition that the others are compared with.
    """

    name: str
    config: Any
    config_flag: str
    conditions: tuple[dict[str, Any], ...]
    space: tuple[dict[str, Any], ...]
    trials: int
    searches: int
    baseline: str

    @property
    def max_trials(self) -> int:
        return MAX_TRIALS_FACTOR * self.trials


def point(space: Sequence[dict[str, Any]], search: int, trial: int) -> dict[str, Any]:
    """The hyperparameters of one trial: point `trial` of the search's scrambled Halton sequence."""
    sequence = qmc.Halton(d=len(space), scramble=True, rng=search)
    if trial:
        sequence.fast_forward(trial)
    units = sequence.random(1)[0]
    return {axis["field"]: scaled(axis, float(u)) for axis, u in zip(space, units, strict=True)}


def scaled(axis: dict[str, Any], unit: float) -> Any:
    """The value at `unit` in [0, 1) along an axis, evenly spaced in the axis's scale."""
    if axis["scale"] == "choice":
        return axis["values"][int(unit * len(axis["values"]))]
    low, high = axis["min"], axis["max"]
    if axis["scale"] == "linear":
        return low + (high - low) * unit
    value = math.exp(math.log(low) + (math.log(high) - math.log(low)) * unit)
    return 1.0 - value if axis["scale"] == "log_one_minus" else value


def trial_config(study: Study, condition: dict[str, Any], search: int, trial: int) -> Any:
    """A trial's whole configuration. The data seed is the search's, the model seed the trial's."""
    config = copy.deepcopy(study.config)
    values = condition["overrides"] | point(study.space, search, trial)
    values |= {
        "seed.data": study.config.seed.data + search,
        "seed.model": study.config.seed.model + SEEDS_A_SEARCH * search + trial,
    }
    for name, value in values.items():
        command.set_field(config, name, value, base.FIELDS)
    return config


def run(study: Study, outdir: pathlib.Path, progress: Progress) -> str:
    """Runs what is not finished yet; returns 'finished' or 'preempted'.

    Raises:
        command.InputError: a condition that cannot be trained, or a directory with another study;
            nothing has been written then.
    """
    check(study)
    processes.decided_by_first(lambda: open_study(study, outdir))
    tally = _Tally(study)
    for search in range(study.searches):
        for condition in study.conditions:
            counted = 0
            for trial in range(study.max_trials):
                result = run_trial(study, condition, search, trial, outdir, progress, tally)
                if result["status"] == "preempted":
                    return "preempted"
                counted += result["status"] in ("reached", "exhausted")
                if counted == study.trials:
                    break
            else:
                progress.say(
                    f"warning: {condition['name']}, search {search}: only {counted} of "
                    f"{study.trials} trials did not diverge or fail in {study.max_trials} tries"
                )
            tally.search_done(condition["name"], search)
    return "finished"


def run_trial(
    study: Study,
    condition: dict[str, Any],
    search: int,
    trial: int,
    outdir: pathlib.Path,
    progress: Progress,
    tally: "_Tally",
) -> dict[str, Any]:
    """Trains one trial in its directory, unless it is finished there already; its result."""
    workdir = records.TrialPath(condition["name"], search, trial).under(outdir)
    result = processes.decided_by_first(lambda: records.read_json(workdir / records.RESULT))
    if result and result["status"] in records.FINISHED:
        tally.trial_done(None)
        return result
    hparams = point(study.space, search, trial)
    start = time.monotonic()
    where = f"{tally} {condition['name']}, search {search}, trial {trial}"
    shown = Progress(prefix=f"{where}: ", quiet=progress.quiet)
    config = trial_config(study, condition, search, trial)
    if processes.is_first():
        workdir.mkdir(parents=True, exist_ok=True)
        place = {"condition": condition["name"], "search": search, "trial": trial}
        records.write_json(workdir / records.HPARAMS, place | {"hparams": hparams})
    result = train.train(config, workdir, shown)
    tally.trial_done(time.monotonic() - start)
    values = ", ".join(f"{name.rpartition('.')[2]} {value:.3g}" for name, value in hparams.items())
    progress.say(f"{where}: {_outcome(result)} ({values}) | {tally.time_left()} left")
    return result


def _outcome(result: dict[str, Any]) -> str:
    if result["status"] == "reached":
        return f"target after {result['fresh_examples_to_target']:,} fresh examples"
    if "error" in result:
        return f"{result['status']}: {result['error']}"
    best = result["best"]["value"]
    return f"{result['status']}, best {'none' if best is None else format(best, '.4g')}"


class _Tally:
    """How far a study has come, and how long the rest will take at the pace so far."""

    def __init__(self, study: Study):
        self._trials = study.trials
        self._searches_left = len(study.conditions) * study.searches
        self._done = self._in_search = self._ran = 0
        self._seconds = 0.0
        self._total = self._searches_left * study.trials

    def trial_done(self, seconds: float | None) -> None:
        """`seconds` is None for a trial that was finished before."""
        self._done += 1
        self._in_search += 1
        if seconds is not None:
            self._ran += 1
            self._seconds += seconds

    def search_done(self, condition: str, search: int) -> None:
        self._searches_left -= 1
        self._in_search = 0

    def time_left(self) -> str:
        """About: diverged trials are tried again, and conditions differ in length."""
        if not self._ran:
            return duration(None)
        left = self._searches_left * self._trials - self._in_search
        return duration(max(left, 0) * self._seconds / self._ran)

    def __str__(self) -> str:
        return f"[{min(self._done + 1, self._total)}/{self._total}]"


def check(study: Study) -> None:
    """Checks the plan, and that every condition can be trained."""
    for axis in study.space:
        _check_axis(axis)
    searched = {axis["field"] for axis in study.space}
    for condition in study.conditions:
        both = searched & set(condition["overrides"])
        if both:
            raise command.InputError(
                f"condition {condition['name']!r} sets {', '.join(sorted(both))}, which the search "
                "space varies too; leave it out of one of them"
            )
        train.prepare(trial_config(study, condition, 0, 0))


def _check_axis(axis: dict[str, Any]) -> None:
    scales = ("linear", "log", "log_one_minus", "choice")
    name, scale = axis["field"], axis["scale"]
    if scale not in scales:
        raise command.InputError(f"{name}: scale is {scale!r}; allowed: {', '.join(scales)}")
    if scale == "choice":
        if not axis["values"]:
            raise command.InputError(f"{name}: values are empty; allowed: at least one")
    elif not axis["min"] <= axis["max"]:
        raise command.InputError(
            f"{name}: min {axis['min']} is above max {axis['max']}; allowed: min <= max"
        )
    elif scale.startswith("log") and axis["min"] <= 0:
        raise command.InputError(
            f"{name}: min is {axis['min']}; allowed on a {scale} axis: above 0"
        )


def open_study(study: Study, outdir: pathlib.Path) -> None:
    """Writes study.json, or checks that the one there is of this study; it may have grown."""
    source, _, info = train.open_data(study.config)
    plan = {
        "schema_version": records.SCHEMA_VERSION,
        "study": study.name,
        "config": study.config_flag,
        "workload": study.config.workload,
        "resolved_config": study.config.to_dict(),
        "target": study.config.target.to_dict(),
        "budget_fresh_examples": study.config.budget.fresh_examples,
        "dataset": dataclasses.asdict(info) | {"train_examples": len(source)},
        "baseline": study.baseline,
        "conditions": list(study.conditions),
        "search_space": list(study.space),
        "trials": study.trials,
        "max_trials": study.max_trials,
        "searches": study.searches,
        "seeds": {"data": study.config.seed.data, "model": study.config.seed.model},
    }
    there = records.read_json(outdir / records.STUDY)
    if there is None and outdir.exists() and (not outdir.is_dir() or any(outdir.iterdir())):
        raise command.InputError(
            f"{outdir} is there already and holds no study; give a new or empty --outdir"
        )
    plan = json.loads(json.dumps(plan))  # as it will be read: tuples are lists
    fixed = set(plan) - {"trials", "max_trials", "searches", "config"}
    changed = [name for name in sorted(fixed) if there and there.get(name) != plan[name]]
    if changed:
        raise command.InputError(
            f"{outdir} holds a study of another plan, which differs in {', '.join(changed)}; "
            "give another --outdir"
        )
    outdir.mkdir(parents=True, exist_ok=True)
    records.write_json(outdir / records.STUDY, plan | environment.describe(train.ROOT))


def load_study(
    config: Any, module: Any, config_flag: str, name: str, trials: int, searches: int
) -> Study:
    """The study `name` of a configuration file; 0 trials or searches means as many as it says."""
    variant = config_flag.partition(":")[2]
    studies = module.get_studies(variant) if hasattr(module, "get_studies") else {}
    if name not in studies:
        known = ", ".join(studies) or "none; add get_studies() to it"
        raise command.InputError(f"--study is {name!r}; allowed with {config_flag}: {known}")
    plan = studies[name]
    for field, value in plan.get("overrides", {}).items():
        command.set_field(config, field, value, base.FIELDS)
    return Study(
        name=name,
        config=config,
        config_flag=config_flag,
        conditions=tuple(
            {"name": name, "label": label(overrides), "overrides": overrides}
            for name, overrides in plan["conditions"].items()
        ),
        space=tuple(module.get_search_space(variant)),
        trials=trials or plan["trials"],
        searches=searches or plan["searches"],
        baseline=plan["baseline"],
    )


_SLOTS = {
    "before_augmentation": "before augmentation",
    "after_augmentation": "after augmentation",
    "after_batching": "batch echoing",
}


def label(overrides: dict[str, Any]) -> str:
    """What a condition is called in tables and figures: 'before augmentation, e = 2'."""
    insertion = overrides.get("echo.insertion", "none")
    words = ["no echoing"]
    if insertion != "none":
        words = [_SLOTS[insertion], f"e = {overrides['echo.factor']:g}"]
    named = ("echo.insertion", "echo.factor", "echo.shuffle_buffer")
    words += [f"{k.rpartition('.')[2]} = {v}" for k, v in overrides.items() if k not in named]
    return ", ".join(words)


def main(argv: Sequence[str]) -> int:
    parser = command.Parser(__doc__, base.FIELDS)
    parser.add_argument(
        "--config", required=True, help="FILE[:VARIANT], such as configs/cifar10.py"
    )
    parser.add_argument("--study", required=True, help="a name from the file's get_studies()")
    parser.add_argument("--outdir", required=True, type=pathlib.Path, help="the study's directory")
    parser.add_argument("--trials", type=_count, default=0, help="trials a search (0: the study's)")
    parser.add_argument("--searches", type=_count, default=0, help="searches (0: the study's)")
    arguments, overrides = command.parse(parser, argv)
    config, module = command.load_config(arguments.config, overrides, base.FIELDS, train.ROOT)
    processes.initialize()
    study = load_study(
        config, module, arguments.config, arguments.study, arguments.trials, arguments.searches
    )
    progress = Progress(quiet=not processes.is_first())
    outcome = run(study, arguments.outdir, progress)
    if outcome == "preempted":
        progress.say("stopped; start the same command again to go on")
        return command.PREEMPTED
    progress.say(f"finished; for tables and figures: python -m analysis {arguments.outdir}")
    return command.OK


def _count(text: str) -> int:
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed; give 0, 1, 2, ...")
    return int(text)


if __name__ == "__main__":
    sys.exit(command.guarded(main))
