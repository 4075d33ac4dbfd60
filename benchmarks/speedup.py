"""Seconds to the target, or steps per second, behind an input that is R times slower than the step.

    python -m benchmarks.speedup                             about 10 minutes (figure 5)
    python -m benchmarks.speedup --quick                     a smoke run of a minute
    python -m benchmarks.speedup --where=augment             augmentation is slow, not reading
    python -m benchmarks.speedup --source=burst              input that comes in bursts
    python -m benchmarks.speedup --measure=steps             steps per second, without a target
    python -m benchmarks.speedup --problem=sentences --batch-size=32 --factors=2,4,8
    python -m benchmarks.speedup --tuned=DIR                 conditions tuned by a study

Every cell is a run of train.py with the real training step. For each seed, a step without waiting
is timed first, with the largest factor; a limit on reading (`--where=read`) or on the examples that
the host augments (`--where=augment`) then makes the input R times slower. With `--source=burst` it
has the same mean, but comes during 16 of every 64 steps' time, at four times the mean. Conditions
are no echoing, each factor of `--factors` before augmentation, on the host and on the device, and
`auto`, which is given neither R nor e. With `--where=augment` they are the insertion points.

The order of the conditions is shuffled for each seed. Every condition is evaluated equally often
per fresh example. Seconds exclude compilation and evaluation. The speedup is over no echoing with
the same seed: the median over the seeds, with the smallest and the largest. Runs that miss the
target give bounds.

Without `--tuned`, every condition has the hyperparameters of the configuration. `--tuned` takes
those of the best trial of each search of a study, a directory of sweep.py or one that is published
(`--tuned=results/trials.parquet --study=grid/common_cadence_sentences`), and runs them with new
seeds. Factors that the study lacks, and `auto`, have the hyperparameters of its largest factor
below theirs. The speedup is the geometric mean over the seeds of a search; its median over searches
and their range include the variation of tuning.
"""

import dataclasses
import math
import pathlib
import random
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from ml_collections import ConfigDict

import train
from analysis import bounds, load, scores
from benchmarks import common
from configs import base, catalog, cifar10, problems
from runs import origins, records
from runs.cli import InputError
from runs.study import FRESH_EXAMPLES
from training.evaluate import evaluate

FACTOR = 4  # with --where=augment, at every insertion point
PERIOD, BURST = 64.0, 16.0  # of a bursty input, in steps' time
WARM_UP_STEPS = 20
LIMITS = {
    "read": "upstream.examples_per_second",
    "augment": "upstream.augmented_examples_per_second",
}


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


def rows(
    where: str, factors: Sequence[int], placements: Sequence[str], batch: int, buffer: int
) -> dict[str, dict[str, Any]]:
    """How each row of the table echoes; the first one is what the others are compared with."""
    found = {"no echoing": catalog.echo("none", 1.0, 0)}
    if where == "augment":
        for insertion, size in (
            ("before_augmentation", buffer),
            ("after_augmentation", buffer),
            ("after_batching", buffer // batch),
        ):
            label = f"{insertion.replace('_', ' ')}, e = {FACTOR}"
            found[label] = catalog.echo(insertion, float(FACTOR), size)
        found["no echoing, device"] = found["no echoing"] | {"augment_on": "device"}
    else:
        for placement in placements:
            on_device = placement == "device"
            for factor in factors:
                fields = catalog.echo("before_augmentation", float(factor), buffer)
                fields |= {"echo.placement": placement, "augment_on": placement}
                found[f"e = {factor}{', device' * on_device}"] = fields
        found["auto"] = catalog.auto(16, 2 * buffer) | {"echo.factor": 1.0}
    return found


def conditions(
    config: ConfigDict, where: str, factors: Sequence[int], placements: Sequence[str]
) -> list[Condition]:
    """The rows of the table with the hyperparameters of the configuration."""
    batch = config.batch_size
    found = rows(where, factors, placements, batch, 4 * batch)
    return [Condition(label, (common.overridden(config, own),)) for label, own in found.items()]


def tuned(
    place: pathlib.Path,
    study: str,
    where: str,
    factors: Sequence[int],
    placements: Sequence[str],
    ratio: float,
) -> list[Condition]:
    """The rows of the table, or with where=augment the conditions of a study, with the best trial
    of each search: the fewest fresh examples to the target, or if no trial reached it, the best
    value. Of several conditions with a factor, the study's first is taken."""
    loaded = load.read(place, study=study)
    plan = dataclasses.replace(loaded.study, score=FRESH_EXAMPLES, cadence="fresh_examples")
    best = scores.leaders(loaded.trials, scores.search_scores(loaded.trials, plan))
    config, found = base.get_config(), []
    with config.unlocked():
        config.update(ConfigDict(plan.config))  # which may be older than some fields
    unlimited = dict.fromkeys(LIMITS.values(), 0.0)
    for name, own in best.groupby("condition", sort=False):
        condition, configs = plan.condition(str(name)), []
        for trial in own.sort_values("search").to_dict("records"):
            hparams = {axis.field: trial[axis.field] for axis in plan.space}
            fields = plan.trial_settings(condition, trial["search"], trial["trial"], hparams)
            configs.append(common.overridden(config, fields | unlimited))
        found.append(Condition(condition.label, tuple(configs)))
    found.sort(key=lambda condition: condition.echoes)
    if where == "augment":
        return found
    known: dict[float, Condition] = {}
    for condition in found:
        if condition.config.echo.insertion in ("none", "before_augmentation"):
            known.setdefault(float(condition.config.echo.factor), condition)
    if 1.0 not in known:
        raise InputError(f"{place} has no condition without echoing; give another study")
    buffer = max(condition.config.echo.shuffle_buffer for condition in known.values())
    chosen = []
    for label, fields in rows(where, factors, placements, config.batch_size, buffer).items():
        factor = ratio if label == "auto" else fields["echo.factor"]
        nearest = known[max(own for own in known if own <= factor)]
        configs = tuple(common.overridden(own, fields) for own in nearest.configs)
        chosen.append(Condition(label, configs))
    return chosen


# --- runs


def limits(where: str, source: str, rate: float, step_seconds: float) -> dict[str, Any]:
    """The fields that limit the input to `rate` examples per second on average."""
    if where == "augment" or source == "rate":
        return {LIMITS[where]: rate}
    return {
        LIMITS[where]: rate * PERIOD / BURST,
        "upstream.stall_every_seconds": BURST * step_seconds,
        "upstream.stall_seconds": (PERIOD - BURST) * step_seconds,
    }


def trained(config: ConfigDict, fields: Mapping[str, Any], workdir: pathlib.Path) -> dict[str, Any]:
    """The result of a run; SystemExit if it neither reached its target nor used its budget."""
    result = train.train(common.overridden(config, fields), workdir)
    if result["status"] not in records.FINISHED:
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


_RESULT = ["status", "seconds_to_target", "train_seconds", "fresh_examples_to_target"]
_RESULT += ["fresh_examples", "step"]


def seconds_to_target(
    chosen: Sequence[Condition],
    plan: Plan,
    limited: Callable[[float], dict[str, Any]],
    where: str,
    test_split: str = "",
    keep: pathlib.Path | None = None,
) -> pd.DataFrame:
    """Trains every condition with every seed behind the limit for a step's time, which is measured
    for each seed: a row per run, with the metric on the test split, if one is given. `keep` gets
    the runs' directories, CONDITION/RUN, with the records of each."""
    table, order = [], random.Random(0)
    with tempfile.TemporaryDirectory() as scratch:
        for run in range(len(chosen[0].configs) * plan.seeds):
            search, seed = divmod(run, plan.seeds)
            seconds = 1 / steady(_largest(chosen), 1, plan.steps, {}, run).steps
            for condition in order.sample(list(chosen), len(chosen)):
                seeds = {"seed.data": 1000 + run, "seed.model": 1000 + run}
                config = common.overridden(condition.configs[search], seeds)
                workdir = (keep or pathlib.Path(scratch)) / condition.label.replace(" ", "")
                result = trained(config, limited(seconds), workdir / str(run))
                row = {"condition": condition.label, "bound": condition.bound(where, plan.ratio)}
                row |= {"search": search, "seed": seed, "step_seconds": seconds}
                row |= {name: result[name] for name in _RESULT}
                if test_split:
                    row["test"] = tested(config, test_split, workdir / str(run), result["step"])
                table.append(row)
            common.progress(f"run {run + 1} of {len(chosen[0].configs) * plan.seeds}")
    labels = {condition.label: place for place, condition in enumerate(chosen)}
    return pd.DataFrame(sorted(table, key=lambda row: labels[row["condition"]]))


def tested(config: ConfigDict, split: str, run: pathlib.Path, steps: int) -> float:
    """The target's metric on a test split, of the best parameters of a run of so many steps. It had
    no checkpoints, since saving them takes the cores' time, so it is trained again, without a
    limit."""
    fields = {"dataset.test_split": split, "checkpoint_every_fresh_examples": 10**9}
    if config.echo.policy == "auto":
        fields["echo.replay"] = str(run / records.DECISIONS)
    with tempfile.TemporaryDirectory() as scratch:
        workdir = pathlib.Path(scratch) / "run"
        result = trained(config, fields, workdir)
        if result["step"] != steps:
            raise SystemExit(f"{run} took {steps} steps, and {result['step']} when repeated")
        if not result.get("best"):  # it diverged before its first evaluation
            return math.nan
        return evaluate(workdir)["splits"][split][config.target.metric]


# --- the table

Ends = tuple[np.ndarray, np.ndarray]  # lower and upper bounds, [searches, seeds]


def ends(runs: pd.DataFrame, field: str, spent: str) -> Ends:
    """Bounds of a quantity to the target; a run that missed it would need more than it spent."""
    table = runs.pivot(index="search", columns="seed", values=[field, spent]).astype(float)
    known = table[field].to_numpy()
    missed = np.isnan(known)
    return np.where(missed, table[spent], known), np.where(missed, np.inf, known)


def speedup(base: Ends, own: Ends) -> bounds.Summary:
    """The geometric mean over seeds of base / own: its median over searches, and their range."""
    with np.errstate(divide="ignore"):
        return bounds.summary(*(np.exp(np.log(end).mean(-1)) for end in bounds.ratio(base, own)))


def target_rows(runs: pd.DataFrame) -> tuple[list[str], list[list[str]]]:
    """The header and the rows of the table of runs, no echoing first; a star marks a speedup above
    its bound. Metrics on a test split are the median, then differences: means over the seeds of a
    search, their median and range over the searches."""
    number, rows, first, base = "{:.2f}".format, [], None, None
    for label, own in runs.groupby("condition", sort=False):
        taken = ends(own, "seconds_to_target", "train_seconds")
        fresh = ends(own, "fresh_examples_to_target", "fresh_examples")
        first = first or taken
        ratio = speedup(first, taken)
        medians = [float(np.median(end)) for end in (*taken, *fresh)]
        star = "*" * bool(ratio.low > own["bound"].iloc[0])
        middle = bounds.text(ratio.low, ratio.high, number) + star
        rows.append(
            [
                str(label),
                bounds.text(medians[0], medians[1], number),
                f"{middle} [{bounds.range_text(ratio, number)}]" if len(rows) else "1",
                f"{own['bound'].iloc[0]:.3g}",
                bounds.text(medians[2], medians[3], "{:,.0f}".format),
                f"{(own['step'] / own['train_seconds']).median():.1f}",
                f"{(own['status'] == 'reached').sum()}/{len(own)}",
            ]
        )
        if "test" in runs:
            values = own.pivot(index="search", columns="seed", values="test")
            base = values if base is None else base
            differences = (values - base).mean(axis=1)
            low, high = differences.min(), differences.max()
            text = f"{differences.median():+.3f} [{low:+.3f}, {high:+.3f}]"
            rows[-1].append(text if len(rows) > 1 else f"{own['test'].median():.3f}")
    header = ["", "seconds", "speedup", "bound", "fresh examples", "steps/s", "runs reached"]
    return header + ["on the test split"] * ("test" in runs), rows


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
    )
    parser.add_argument("--where", choices=("read", "augment"), default="read", help="what is slow")
    parser.add_argument("--source", choices=("rate", "burst"), default="rate", help="how it comes")
    parser.add_argument("--measure", choices=("target", "steps"), default="target")
    parser.add_argument("--problem", choices=problems.PROBLEMS, help="instead of the digits mini")
    parser.add_argument("--tuned", type=pathlib.Path, metavar="DIR", help="a finished study")
    parser.add_argument("--study", default="", help="with --tuned=.../trials.parquet: its name")
    text = "target: evaluate the best parameters of each run there"
    parser.add_argument("--test-split", default="", metavar="SPLIT", help=text)
    text = "target: add a row per run to this table"
    parser.add_argument("--csv", type=pathlib.Path, metavar="FILE", help=text)
    text = "target: keep the records of each run there, for benchmarks.leaderboard"
    parser.add_argument("--keep", type=pathlib.Path, metavar="DIR", help=text)
    common.add_list(parser, "--factors", common.number(2), "2,4,6,8")
    common.add_list(parser, "--placements", common.one_of(("host", "device")), "host")
    options = parser.parse_args(argv)
    if options.where == "augment" and options.source == "burst":
        parser.error("--source=burst: only reading comes in bursts; leave out --where=augment")
    if options.measure == "steps" and (options.csv or options.keep or options.test_split):
        parser.error("--csv, --keep, --test-split: need runs to a target, --measure=target")
    if options.study and not options.tuned:
        parser.error(f"--study={options.study}: name its records with --tuned")
    plan = common.plan(options, Plan(), QUICK)
    if options.problem:
        plan = dataclasses.replace(plan, target=0.0, budget=0, batch_size=options.batch_size or 0)
    config = configuration(plan, options.problem)
    chosen = conditions(config, options.where, options.factors, options.placements)
    if options.tuned:
        given = options.where, options.factors, options.placements, plan.ratio
        chosen = tuned(options.tuned, options.study, *given)
    elif options.measure == "target":  # each seed stands for a search
        chosen = [dataclasses.replace(c, configs=c.configs * plan.seeds) for c in chosen]
        plan = dataclasses.replace(plan, seeds=1)

    problem = options.problem or chosen[0].config.dataset.name

    def limited(seconds: float) -> dict[str, Any]:
        rate = chosen[0].config.batch_size / (plan.ratio * seconds)
        return limits(options.where, options.source, rate, seconds)

    if options.measure == "steps":
        rounds = paces(chosen, plan, limited)
        seconds = float(np.median([1 / free.steps for free, _ in rounds]))
        what, table = "Steps per second", steps_table(chosen, rounds, plan, options.where)
    else:
        own = options.where, options.test_split, options.keep
        runs = seconds_to_target(chosen, plan, limited, *own)
        seconds = runs["step_seconds"].median()
        what, table = "Seconds to the target", common.markdown_table(*target_rows(runs))
        if options.csv:
            own = runs.assign(commit=origins.commit())
            own.insert(0, "problem", problem)
            old = [pd.read_csv(options.csv)] if options.csv.exists() else []
            pd.concat([*old, own]).to_csv(options.csv, index=False)
    slow = "augmentation" if options.where == "augment" else "reading"
    bursts = ", in bursts" * (options.source == "burst")
    text = [
        f"# {what} behind {slow} with R = {plan.ratio:g}{bursts}",
        f"Measured by `python -m benchmarks.speedup` on {problem}, "
        f"batch size {chosen[0].config.batch_size}. A step takes {seconds * 1e3:.2f} ms without "
        f"waiting. {len(chosen[0].configs) * plan.seeds} runs of each condition. "
        + common.machine(["jax", "grain", "numpy"]),
        table,
    ]
    print("\n\n".join(text))


if __name__ == "__main__":
    common.command(main)
