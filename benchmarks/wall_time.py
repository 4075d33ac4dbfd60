"""Seconds to the target behind an upstream that is R times slower than the step (figure 5).

    python -m benchmarks.wall_time --out=results/wall_time.md     about half an hour
    python -m benchmarks.wall_time --batch-size=128 --budget=30000 --out=...
    python -m benchmarks.wall_time --quick                        a one-minute smoke run

ResNet-8 on the digits mini, batches of 512, echoed before augmentation. The training step is the
real one; a rate limit on reading sets R. Each factor gets its own hyperparameters from a
quasi-random search with the same number of trials, and so does `auto`, which is given neither R nor
e. Factors are searched without the rate limit, because fresh examples and steps to the target do
not depend on it; their trials are ranked by the timing model.

Then every condition is trained with the same new seeds behind the limit, in shuffled order, and
compared with no echoing seed by seed: geometric means of the ratios, with 95 % t intervals of their
logarithms. An interval covers the speedup at the selected hyperparameters over new seeds. It does
not cover the choice of hyperparameters, which would differ in another search
(`python -m benchmarks.coverage` measures how much that matters). Seconds exclude compilation and
evaluation.
"""

import dataclasses
import functools
import math
import pathlib
import random
import tempfile
from collections.abc import Callable
from typing import Any

import numpy as np
from ml_collections import ConfigDict
from scipy import stats

import sweep
import train
from benchmarks import common
from configs import cifar10
from runs import records
from runs.progress import Progress
from studies.search import make_study

STUDY_AT_5 = 3.25  # Choi et al. 2019, figure 5: ResNet-50 on ImageNet, R about 6
COVERS = (
    "which covers the speedup at the hyperparameters that one search found for each factor, over "
    "new seeds of data and model, but not what another search would have found"
)
QUIET = Progress(quiet=True)


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is measured."""

    ratio: float = 6.0
    factors: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 7, 8)
    on_device: tuple[int, ...] = (5, 6, 8)
    trials: int = 12
    seeds: int = 10
    batch_size: int = 512
    budget: int = 60_000
    target: float = 0.97


# A search may set the schedule's horizon to budget / 32, which must hold a batch.
QUICK = Plan(
    factors=(1, 4), on_device=(4,), trials=2, seeds=2, batch_size=128, budget=6_000, target=0.5
)


@dataclasses.dataclass(frozen=True)
class Condition:
    """A row of the table.

    Attributes:
        label: the first column.
        overrides: values of configuration fields, by dotted name.
        search: the search whose best trial sets its hyperparameters.
        ideal: min(e, R).
    """

    label: str
    overrides: dict[str, Any]
    search: str
    ideal: float


def conditions(plan: Plan) -> list[Condition]:
    result = []
    for e in plan.factors:
        insertion = "before_augmentation" if e > 1 else "none"
        overrides = {"echo.insertion": insertion, "echo.factor": float(e)}
        overrides |= {"echo.shuffle_buffer": 4 * plan.batch_size if e > 1 else 0}
        result.append(Condition(f"e = {e}", overrides, f"e{e}", min(e, plan.ratio)))
    for e in plan.on_device:
        on_host = result[plan.factors.index(e)]
        overrides = on_host.overrides | {"echo.placement": "device", "augment_on": "device"}
        label = f"{on_host.label}, device"
        result.append(Condition(label, overrides, on_host.search, on_host.ideal))
    auto = {
        "echo.insertion": "before_augmentation",
        "echo.policy": "auto",
        "echo.max_factor": 16,
        "echo.shuffle_buffer": 8 * plan.batch_size,
    }
    return [*result, Condition("auto", auto, "auto", plan.ratio)]


def configuration(plan: Plan) -> ConfigDict:
    config = cifar10.get_config("mini")
    config.batch_size = plan.batch_size
    config.budget.fresh_examples = plan.budget
    config.target.value = plan.target
    config.evaluate_every_fresh_examples = max(400, plan.batch_size)
    config.checkpoint_every_fresh_examples = 0
    return config


def run_searches(
    plan: Plan, config: ConfigDict, chosen: list[Condition], outdir: pathlib.Path
) -> list[dict[str, Any]]:
    """Runs one search per condition; its trials as {search, hparams, result}."""
    study = make_study(
        "wall_time",
        config,
        {condition.search: condition.overrides for condition in chosen},
        cifar10.get_search_space("mini"),
        trials=plan.trials,
        searches=1,
        baseline=chosen[0].search,
        config_flag="configs/cifar10.py:mini",
    )
    sweep.run(study, outdir, QUIET)
    return [
        {
            "search": place.condition,
            "hparams": records.read_json(directory / records.HPARAMS)["hparams"],
            "result": records.read_json(directory / records.RESULT),
        }
        for place, directory in records.trials_on_disk(outdir)
    ]


def best_trials(
    trials: list[dict[str, Any]], seconds: Callable[[dict[str, Any]], float]
) -> dict[str, tuple[float, dict[str, Any]]]:
    """(smallest `seconds(result)`, hyperparameters) by search, where a trial reached the target."""
    best: dict[str, tuple[float, dict[str, Any]]] = {}
    for trial in trials:
        if trial["result"]["status"] == "reached":
            candidate = (seconds(trial["result"]), trial["hparams"])
            best[trial["search"]] = min(
                candidate, best.get(trial["search"], candidate), key=lambda pair: pair[0]
            )
    return best


def seconds_per_step(plan: Plan, config: ConfigDict, root: pathlib.Path) -> float:
    """Seconds per step without waiting for input; the median of three runs of 100 steps."""
    config.target.value = 2.0  # never
    config.budget.fresh_examples = math.ceil(100 * plan.batch_size / config.echo.factor)
    results = [train.train(config, root / str(number), QUIET) for number in range(3)]
    return float(np.median([result["train_seconds"] / result["step"] for result in results]))


def tune(plan: Plan, root: pathlib.Path) -> tuple[dict[str, dict[str, Any]], float, float]:
    """(hyperparameters by search, seconds per step, examples per second of the upstream)."""
    config, chosen = configuration(plan), conditions(plan)
    fixed = [c for c in chosen if c.search != "auto" and "device" not in c.label]
    trials = run_searches(plan, config, fixed, root / "fixed")
    step_seconds = seconds_per_step(
        plan, common.overridden(config, fixed[-1].overrides), root / "step"
    )
    rate = plan.batch_size / (plan.ratio * step_seconds)
    common.progress(f"a step takes {step_seconds * 1e3:.2f} ms; upstream: {rate:.0f} examples/s")

    def modeled_seconds(result: dict[str, Any]) -> float:
        fresh, steps = result["fresh_examples_to_target"], result["steps_to_target"]
        return max(fresh / rate, steps * step_seconds)

    best = best_trials(trials, modeled_seconds)
    limited = common.overridden(config, {"upstream.examples_per_second": rate})
    auto = run_searches(plan, limited, [chosen[-1]], root / "auto")
    best |= best_trials(auto, lambda result: result["seconds_to_target"])
    missing = {c.search for c in chosen} - set(best)
    if missing:
        raise SystemExit(f"no trial of {', '.join(sorted(missing))} reached the target")
    for name, (seconds, hparams) in best.items():
        common.progress(f"{name}: {seconds:.2f} s with {hparams}")
    return {name: hparams for name, (_, hparams) in best.items()}, step_seconds, rate


def run_seeds(
    plan: Plan, hparams: dict[str, dict[str, Any]], rate: float, root: pathlib.Path
) -> dict[str, list[dict[str, Any]]]:
    """Trains every condition with every seed behind the limit; results by label, in seed order."""
    config, chosen = configuration(plan), conditions(plan)
    results: dict[str, list[dict[str, Any]]] = {condition.label: [] for condition in chosen}
    order = random.Random(0)
    for seed in range(plan.seeds):
        for condition in order.sample(chosen, len(chosen)):
            overrides = condition.overrides | hparams[condition.search]
            overrides |= {"seed.data": 1000 + seed, "seed.model": 1000 + seed}
            overrides |= {"upstream.examples_per_second": rate}
            workdir = root / "paired" / condition.label.replace(" ", "") / str(seed)
            result = train.train(common.overridden(config, overrides), workdir, QUIET)
            results[condition.label].append(result)
        common.progress(f"seed {seed + 1} of {plan.seeds}")
    return results


def interval(ratios: np.ndarray) -> tuple[float, float, float]:
    """(geometric mean, low, high): a 95 % t interval of the logarithms, exponentiated."""
    logs = np.log(ratios)
    half = stats.t.ppf(0.975, len(logs) - 1) * logs.std(ddof=1) / math.sqrt(len(logs))
    mean, low, high = np.exp([logs.mean(), logs.mean() - half, logs.mean() + half]).tolist()
    return mean, low, high


def seconds_to_target(results: list[dict[str, Any]]) -> np.ndarray:
    """Seconds to the target; a lower bound, the run's seconds, where a run did not reach it."""
    return np.asarray([r["seconds_to_target"] or r["train_seconds"] for r in results])


def missed(results: list[dict[str, Any]]) -> bool:
    """Whether any run missed the target, so that its seconds are only a lower bound."""
    return any(r["seconds_to_target"] is None for r in results)


def speedup_text(ratio: tuple[float, float, float], baseline_missed: bool, own_missed: bool) -> str:
    """A speedup and its interval; only a bound where a run missed the target."""
    if baseline_missed and own_missed:
        return "undetermined"
    if baseline_missed or own_missed:
        return f"{'≥' if baseline_missed else '≤'}{ratio[0]:.2f}"
    return f"{ratio[0]:.2f} ({ratio[1]:.2f} to {ratio[2]:.2f})"


def report(
    plan: Plan, results: dict[str, list[dict[str, Any]]], step_seconds: float, rate: float
) -> tuple[str, list[tuple[Condition, float, float, float]]]:
    """(text, (condition, speedup, low, high) of every condition)."""
    without = results[f"e = {plan.factors[0]}"]
    baseline, baseline_missed = seconds_to_target(without), missed(without)
    lines, ratios = [], []
    for condition in conditions(plan):
        runs = results[condition.label]
        seconds = seconds_to_target(runs)
        ratio = interval(baseline / seconds)
        ratios.append((condition, *ratio))
        step_rates = [r["step"] / r["train_seconds"] for r in runs]
        lines.append(
            [
                condition.label,
                f"{np.median(seconds):.2f}",
                speedup_text(ratio, baseline_missed, missed(runs)),
                f"{condition.ideal:g}",
                f"{np.median([r['fresh_examples'] for r in runs]):,.0f}",
                f"{np.median(step_rates):.1f}",
                f"{sum(r['status'] == 'reached' for r in runs)}/{len(runs)}",
            ]
        )
    header = ["", "seconds", "speedup over e = 1 (95 %, new seeds)", "min(e, R)"]
    header += ["fresh examples", "steps/s"]
    text = [
        f"# Seconds to {plan.target:.0%} behind an upstream with R = {plan.ratio:g}",
        f"Medians over {plan.seeds} paired seeds. Speedup: geometric mean of the ratios by seed, "
        f"with a 95 % t interval, {COVERS}. "
        f"A step takes {step_seconds * 1e3:.2f} ms at batch size "
        f"{plan.batch_size}; the upstream delivers {rate:.0f} examples per second. {plan.trials} "
        "trials per search. " + common.machine(["jax", "grain", "numpy"]),
        common.markdown_table([*header, "reached"], lines),
        f"The study reached {STUDY_AT_5}x at e = 5 with R about 6 (ResNet-50 on ImageNet).",
    ]
    return "\n\n".join(text), ratios


def save_figure(ratios, plan: Plan, path: pathlib.Path) -> None:
    """Saves speedup by factor, with min(e, R) as a line."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.5, 3.6), layout="constrained")
    axes = figure.subplots()
    axes.plot([1, plan.ratio, max(plan.factors)], [1, plan.ratio, plan.ratio], color="0.6")
    axes.annotate(
        "ideal, min(e, R)",
        (plan.ratio, plan.ratio),
        (-4, 4),
        ha="right",
        color="0.4",
        textcoords="offset points",
        fontsize=8,
    )
    axes.plot(5, STUDY_AT_5, "k*", markersize=9)
    axes.annotate(
        "the study",
        (5, STUDY_AT_5),
        (0, -14),
        ha="center",
        fontsize=8,
        textcoords="offset points",
    )
    for condition, mean, low, high in ratios:
        device, auto = "device" in condition.label, condition.label == "auto"
        place = max(plan.factors) + 1 if auto else condition.overrides["echo.factor"]
        color = "C2" if auto else "C1" if device else "C0"
        axes.plot([place + 0.12 * device] * 2, [low, high], color=color)
        axes.plot(place + 0.12 * device, mean, "s" if device else "o", color=color)
    places = [*plan.factors, max(plan.factors) + 1]
    axes.set_xticks(places, [*map(str, plan.factors), "auto"])
    axes.set(
        xlabel="echo factor e (squares: stored on the device)",
        ylabel="speedup over no echoing",
        ylim=(0, None),
    )
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)


def main(argv: list[str] | None = None) -> None:
    parser = common.arguments(
        "wall_time",
        __doc__,
        Plan(),
        QUICK,
        trials="trials per search",
        seeds="paired seeds",
        batch_size="examples per batch",
        budget="fresh examples per trial",
    )
    parser.add_argument(
        "--runs",
        type=pathlib.Path,
        metavar="DIR",
        help="keep the runs in DIR, so that starting again resumes (default: do not keep them)",
    )
    options = parser.parse_args(argv)
    plan = common.plan(options, Plan(), QUICK)
    with tempfile.TemporaryDirectory() as scratch:
        root = options.runs or pathlib.Path(scratch)
        hparams, step_seconds, rate = tune(plan, root)
        results = run_seeds(plan, hparams, rate, root)
    text, ratios = report(plan, results, step_seconds, rate)
    common.publish(text, options.out, functools.partial(save_figure, ratios, plan))


if __name__ == "__main__":
    main()
