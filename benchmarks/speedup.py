"""Seconds to the target, or steps per second, behind an input that is R times slower than the step.

    python -m benchmarks.speedup --out=results/time.md       about 10 minutes (figure 5)
    python -m benchmarks.speedup --quick                     a smoke run of a minute
    python -m benchmarks.speedup --where=augment             augmentation is slow, not reading
    python -m benchmarks.speedup --source=burst              input that comes in bursts
    python -m benchmarks.speedup --measure=steps             steps per second, without a target
    python -m benchmarks.speedup --problem=sentences --batch-size=32 --factors=2,4,8
    python -m benchmarks.speedup --tuned=DIR                 conditions tuned by a finished study

Every cell is a run of train.py with the real training step. A step without waiting is timed first,
with the largest factor; a limit on reading (`--where=read`) or on the examples that the host
augments (`--where=augment`) then makes the input R times slower. With `--source=burst` it has the
same mean, but comes during 16 of every 64 steps' time, at four times the mean. Conditions are no
echoing, each factor of `--factors` before augmentation, on the host and on the device, and `auto`,
which is given neither R nor e. With `--where=augment` they are the insertion points.

The order of the conditions is shuffled for each seed. Every condition is evaluated equally often
per step. Seconds exclude compilation and evaluation. The speedup is over no echoing with the same
seed: the median over the seeds, with the smallest and the largest. Runs that miss the target give
bounds.

Without `--tuned`, every condition has the hyperparameters of the configuration. A study with the
same conditions tunes them (`sweep.py --study=wall_time`); `--tuned=DIR` then takes the best trial
of each search, and runs it with new seeds. The speedup is the geometric mean over the seeds of a
search; its median over searches and their range include the variation of tuning.
"""

import dataclasses
import math
import pathlib
import random
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from ml_collections import ConfigDict

import train
from analysis import bounds, load, scores
from benchmarks import common
from configs import catalog, cifar10, problems
from runs import records
from runs.study import FRESH_EXAMPLES

FACTOR = 4  # with --where=augment, at every insertion point
PERIOD, BURST = 64.0, 16.0  # of a bursty input, in steps' time
WARM_UP_STEPS = 20
STATUSES = ("reached", "exhausted", "diverged")


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is measured. Batch size, budget, target, and depth are those of the digits; where they
    are 0 with `--problem`, the problem's own."""

    ratio: float = 6.0
    seeds: int = 5
    steps: int = 100  # of the runs that measure a step or steps per second
    batch_size: int = 512
    budget: int = 60_000
    target: float = 0.97
    depth: int = 8  # of the ResNet; 0 is logistic regression


QUICK = Plan(seeds=1, steps=20, batch_size=64, budget=2_400, target=0.5, depth=0)


@dataclasses.dataclass(frozen=True)
class Condition:
    """A row of the table: its label, and the configuration of each search, or of each seed."""

    label: str
    configs: tuple[ConfigDict, ...]

    @property
    def config(self) -> ConfigDict:
        return self.configs[0]

    @property
    def echoes(self) -> bool:
        return self.config.echo.insertion != "none"

    def copies(self, ratio: float) -> float:
        """Of a fresh example, if input comes R times slower than batches are used."""
        return ratio if self.config.echo.policy == "auto" else float(self.config.echo.factor)

    def bound(self, where: str, ratio: float) -> float:
        """The speedup over no echoing if a repeat were as good as a fresh example, and augmentation
        on the device took no time."""
        if where == "augment" and self.config.augment_on == "device":
            return ratio
        if where == "augment" and self.config.echo.insertion == "before_augmentation":
            return 1.0
        return min(self.copies(ratio), ratio)


# --- conditions


def configuration(plan: Plan, problem: str) -> ConfigDict:
    """The configuration of the digits, or of a problem of configs/problems.py."""
    config = problems.get_config(problem) if problem else cifar10.get_config("mini")
    changes: dict[str, Any] = {
        "batch_size": plan.batch_size,
        "budget.fresh_examples": plan.budget,
        "target.value": plan.target,
    }
    if not problem:
        changes["model.depth"] = plan.depth
    changes = {name: value for name, value in changes.items() if value or name == "model.depth"}
    config.update_from_flattened_dict(changes)
    config.checkpoint_every_fresh_examples = 0
    config.evaluate_every_fresh_examples = max(400, config.batch_size)
    return config


def conditions(
    config: ConfigDict, where: str, factors: Sequence[int], placements: Sequence[str]
) -> list[Condition]:
    """The rows of the table; the first one is what the others are compared with."""
    batch, rows = config.batch_size, {"no echoing": catalog.echo("none", 1.0, 0)}
    if where == "augment":
        for insertion, buffer in (
            ("before_augmentation", 4 * batch),
            ("after_augmentation", 4 * batch),
            ("after_batching", 4),
        ):
            label = f"{insertion.replace('_', ' ')}, e = {FACTOR}"
            rows[label] = catalog.echo(insertion, float(FACTOR), buffer)
        rows["no echoing, device"] = rows["no echoing"] | {"augment_on": "device"}
    else:
        for placement in placements:
            on_device = placement == "device"
            for factor in factors:
                fields = catalog.echo("before_augmentation", float(factor), 4 * batch)
                fields |= {"echo.placement": placement, "augment_on": placement}
                rows[f"e = {factor}{', device' * on_device}"] = fields
        rows["auto"] = catalog.auto(16, 8 * batch)
    return [Condition(label, (common.overridden(config, own),)) for label, own in rows.items()]


def tuned(directory: pathlib.Path) -> list[Condition]:
    """The conditions of a finished study, no echoing first, with the best trial of each search: the
    fewest fresh examples to the target, or if no trial reached it, the best value."""
    loaded = load.read(directory)
    study = dataclasses.replace(loaded.study, score=FRESH_EXAMPLES)
    best = scores.leaders(loaded.trials, scores.search_scores(loaded.trials, study))
    found = []
    for label, own in best.groupby("label", sort=False):
        configs = []
        for path in own["path"]:
            record = records.read_json(pathlib.Path(path) / records.CONFIG)
            configs.append(ConfigDict(record["config"]))
            for name in ("examples_per_second", "augmented_examples_per_second"):
                configs[-1].upstream[name] = 0.0
        found.append(Condition(str(label), tuple(configs)))
    return sorted(found, key=lambda condition: condition.echoes)


# --- runs


def limits(where: str, source: str, rate: float, step_seconds: float) -> dict[str, Any]:
    """The fields that limit the input to `rate` examples per second on average."""
    if where == "augment":
        return {"upstream.augmented_examples_per_second": rate}
    if source == "rate":
        return {"upstream.examples_per_second": rate}
    return {
        "upstream.examples_per_second": rate * PERIOD / BURST,
        "upstream.stall_every_seconds": BURST * step_seconds,
        "upstream.stall_seconds": (PERIOD - BURST) * step_seconds,
    }


def trained(config: ConfigDict, fields: Mapping[str, Any], workdir: pathlib.Path) -> dict[str, Any]:
    """The result of a run; SystemExit if it neither reached its target nor used its budget."""
    result = train.train(common.overridden(config, fields), workdir)
    if result["status"] not in STATUSES:
        raise SystemExit(f"{workdir} ended as {result['status']}, so its time means nothing")
    return result


@dataclasses.dataclass(frozen=True)
class Steady:
    """Steps per second, and fresh examples per second."""

    steps: float
    fresh_examples: float


def steady(
    condition: Condition, ratio: float, steps: int, fields: Mapping[str, Any], seed: int = 0
) -> Steady:
    """The pace of a run without a target over `steps` steps, after WARM_UP_STEPS others."""
    config = condition.config
    batches = math.ceil((WARM_UP_STEPS + steps) / condition.copies(ratio)) + 1
    never = {"target.value": 2.0 if config.target.mode == "above" else 0.0}
    never |= {"log_every_steps": 1, "evaluate_every_fresh_examples": 0}
    buffered = 0
    if condition.echoes:  # it is filled first, and emitted last, when nothing is read
        per_slot = config.batch_size if config.echo.insertion == "after_batching" else 1
        buffered = config.echo.shuffle_buffer * per_slot
    never |= {"budget.fresh_examples": batches * config.batch_size + buffered}
    never |= {"seed.data": seed, "seed.model": seed}
    with tempfile.TemporaryDirectory() as scratch:
        workdir = pathlib.Path(scratch) / "run"
        trained(config, never | dict(fields), workdir)
        rows = [row for row in records.read_metrics(workdir) if row["split"] == "train"]
    return pace(rows)


def pace(rows: Sequence[Mapping[str, Any]]) -> Steady:
    """The slopes of steps and fresh examples over the seconds of training records, after the first
    WARM_UP_STEPS and until everything has been read."""
    last = rows[-1]["fresh_examples"]
    kept = [row for row in rows[WARM_UP_STEPS:] if row["fresh_examples"] < last]
    if len(kept) < 2:
        raise SystemExit("too few steps to measure a pace; give more --steps")
    seconds = [row["train_seconds"] for row in kept]
    step, fresh = (
        float(np.polyfit(seconds, [row[name] for row in kept], 1)[0])
        for name in ("step", "fresh_examples")
    )
    return Steady(step, fresh)


def step_seconds(chosen: Sequence[Condition], plan: Plan) -> float:
    """Seconds per step without waiting for input; the median of three runs."""
    rounds = (steady(_largest(chosen), 1, plan.steps, {}) for _ in range(3))
    return float(np.median([1 / own.steps for own in rounds]))


def _largest(chosen: Sequence[Condition]) -> Condition:
    """The condition with the largest fixed factor, which waits least for input."""
    return max(chosen, key=lambda c: (c.config.echo.policy != "auto", c.config.echo.factor))


def paces(
    chosen: Sequence[Condition], plan: Plan, limited: Callable[[float], dict[str, Any]]
) -> list[tuple[Steady, dict[str, Steady]]]:
    """A round per seed: the pace without a limit, which sets R for the others, and by label."""
    rounds, order = [], random.Random(0)
    for seed in range(plan.seeds):
        free = steady(_largest(chosen), 1, plan.steps, {}, seed)
        limit, own = limited(1 / free.steps), {}
        for condition in order.sample(list(chosen), len(chosen)):
            own[condition.label] = steady(condition, plan.ratio, plan.steps, limit, seed)
        rounds.append((free, own))
        common.progress(f"round {seed + 1} of {plan.seeds}")
    return rounds


Results = dict[str, list[list[dict[str, Any]]]]  # by label, search, and seed


def seconds_to_target(
    chosen: Sequence[Condition],
    plan: Plan,
    limit: Mapping[str, Any],
    where: str,
    keep: pathlib.Path | None = None,
) -> Results:
    """Trains every condition with every seed behind the limit; `keep` gets the runs' directories,
    CONDITION/RUN, with the records of each."""
    searches = len(chosen[0].configs)
    results: Results = {c.label: [[] for _ in range(searches)] for c in chosen}
    order = random.Random(0)
    # An example counts once, so after batching, a condition cannot be evaluated after each step.
    steps = FACTOR if where == "augment" else 1
    with tempfile.TemporaryDirectory() as scratch:
        for run in range(searches * plan.seeds):
            for condition in order.sample(list(chosen), len(chosen)):
                config = condition.configs[run // plan.seeds]
                every = steps * config.batch_size / condition.copies(plan.ratio)
                fields = {"seed.data": 1000 + run, "seed.model": 1000 + run}
                fields |= {"evaluate_every_fresh_examples": max(1, round(every)), **limit}
                name = condition.label.replace(" ", "")
                workdir = (keep or pathlib.Path(scratch)) / name / str(run)
                result = trained(config, fields, workdir)
                results[condition.label][run // plan.seeds].append(result)
            common.progress(f"run {run + 1} of {searches * plan.seeds}")
    return results


# --- the table

Ends = tuple[np.ndarray, np.ndarray]  # lower and upper bounds, [searches, seeds]


def ends(results: Sequence[Sequence[Mapping[str, Any]]], field: str, spent: str) -> Ends:
    """Bounds of a quantity to the target; a run that missed it would need more than it spent."""
    low = np.array([[r[spent] if r[field] is None else r[field] for r in s] for s in results])
    missed = np.array([[r[field] is None for r in seeds] for seeds in results])
    return low.astype(float), np.where(missed, np.inf, low)


def speedup(base: Ends, own: Ends) -> bounds.Summary:
    """The geometric mean over seeds of base / own: its median over searches, and their range."""
    with np.errstate(divide="ignore"):
        return bounds.summary(*(np.exp(np.log(end).mean(-1)) for end in bounds.ratio(base, own)))


def target_table(chosen: Sequence[Condition], results: Results, plan: Plan, where: str) -> str:
    number, rows = "{:.2f}".format, []
    base = ends(results[chosen[0].label], "seconds_to_target", "train_seconds")
    for condition in chosen:
        runs = [result for seeds in results[condition.label] for result in seeds]
        own = ends(results[condition.label], "seconds_to_target", "train_seconds")
        fresh = ends(results[condition.label], "fresh_examples_to_target", "fresh_examples")
        ratio = speedup(base, own)
        medians = [float(np.median(end)) for end in (*own, *fresh)]
        middle = bounds.text(ratio.low, ratio.high, number)
        rows.append(
            [
                condition.label,
                bounds.text(medians[0], medians[1], number),
                f"{middle} [{bounds.range_text(ratio, number)}]",
                f"{condition.bound(where, plan.ratio):.3g}",
                bounds.text(medians[2], medians[3], "{:,.0f}".format),
                f"{np.median([r['step'] / r['train_seconds'] for r in runs]):.1f}",
                f"{sum(r['status'] == 'reached' for r in runs)}/{len(runs)}",
            ]
        )
    header = ["", "seconds", f"speedup over {chosen[0].label}", "bound", "fresh examples"]
    return common.markdown_table([*header, "steps/s", "runs reached"], rows)


def steps_table(
    chosen: Sequence[Condition],
    rounds: Sequence[tuple[Steady, Mapping[str, Steady]]],
    plan: Plan,
    where: str,
) -> str:
    """Steps per second and shares; `rounds` are (the pace without a limit, the pace by label)."""
    rows = []
    for condition in chosen:
        rates, busy, used, shares = [], [], [], []
        for free, paces in rounds:
            own, mean = paces[condition.label], free.steps / plan.ratio
            rates.append(own.steps)
            busy.append(own.steps / free.steps)
            used.append(own.fresh_examples / (mean * condition.config.batch_size))
            shares.append(own.steps / (mean * condition.bound(where, plan.ratio)))
        columns = (common.Spread(tuple(values)) for values in (shares, busy, used))
        rows.append([condition.label, f"{common.Spread(tuple(rates)):.1f}"])
        rows[-1] += [f"{spread:.2f}" for spread in columns]
    header = ["", "steps/s", "share of the bound", "device busy", "input used"]
    return common.markdown_table(header, rows)


def main(argv: list[str] | None = None) -> None:
    parser = common.arguments(
        __spec__.name,
        __doc__,
        Plan(),
        QUICK,
        ratio="R",
        seeds="new seeds per condition, or per search",
        steps="steps of runs without a target",
        batch_size="examples per batch",
        budget="fresh examples per run",
    )
    parser.add_argument("--where", choices=("read", "augment"), default="read", help="what is slow")
    parser.add_argument("--source", choices=("rate", "burst"), default="rate", help="how it comes")
    parser.add_argument("--measure", choices=("target", "steps"), default="target")
    parser.add_argument("--problem", choices=problems.PROBLEMS, help="instead of the digits mini")
    parser.add_argument("--tuned", type=pathlib.Path, metavar="DIR", help="a finished study")
    text = "target: keep the records of each run there, for benchmarks.leaderboard"
    parser.add_argument("--keep", type=pathlib.Path, metavar="DIR", help=text)
    common.add_list(parser, "--factors", common.number(2), "2,4,6,8")
    common.add_list(parser, "--placements", common.one_of(("host", "device")), "host")
    options = parser.parse_args(argv)
    if options.where == "augment" and options.source == "burst":
        parser.error("--source=burst: only reading comes in bursts; leave out --where=augment")
    plan = common.plan(options, Plan(), QUICK)
    if options.problem:
        given = {"batch_size": options.batch_size or 0, "budget": options.budget or 0}
        plan = dataclasses.replace(plan, target=0.0, **given)
    config = configuration(plan, options.problem)
    chosen = conditions(config, options.where, options.factors, options.placements)
    if options.tuned:
        chosen = tuned(options.tuned)
    elif options.measure == "target":  # each seed stands for a search
        chosen = [dataclasses.replace(c, configs=c.configs * plan.seeds) for c in chosen]
        plan = dataclasses.replace(plan, seeds=1)

    def limited(seconds: float) -> dict[str, Any]:
        rate = chosen[0].config.batch_size / (plan.ratio * seconds)
        return limits(options.where, options.source, rate, seconds)

    if options.measure == "steps":
        rounds = paces(chosen, plan, limited)
        seconds = float(np.median([1 / free.steps for free, _ in rounds]))
        what, table = "Steps per second", steps_table(chosen, rounds, plan, options.where)
    else:
        seconds = step_seconds(chosen, plan)
        limit = limited(seconds)
        results = seconds_to_target(chosen, plan, limit, options.where, options.keep)
        what, table = "Seconds to the target", target_table(chosen, results, plan, options.where)
    slow = "augmentation" if options.where == "augment" else "reading"
    bursts = ", in bursts" * (options.source == "burst")
    text = [
        f"# {what} behind {slow} with R = {plan.ratio:g}{bursts}",
        f"Measured by `python -m benchmarks.speedup` on {options.problem or 'the digits mini'}, "
        f"batch size {chosen[0].config.batch_size}. A step takes {seconds * 1e3:.2f} ms without "
        f"waiting. {len(chosen[0].configs) * plan.seeds} runs of each condition. "
        + common.machine(["jax", "grain", "numpy"]),
        table,
    ]
    common.publish("\n\n".join(text), options.out)


if __name__ == "__main__":
    common.command(main)
