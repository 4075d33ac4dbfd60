"""Seconds to the target behind an upstream that is R times slower than the step (figure 5).

    python -m benchmarks.wall_time --out=results/wall_time.md     about half an hour
    python -m benchmarks.wall_time --batch-size=128 --budget=30000 --out=...
    python -m benchmarks.wall_time --quick                        a minute, to see it work

ResNet-8 on the digits' mini, batches of 512, echoed before augmentation; the training step is the
real one, and `config.upstream` limits reading so that R holds. Each factor, and `auto`, which is
told neither R nor e, gets hyperparameters of its own from a quasi-random search with as many trials
as the others; factors are searched without the limit, since fresh examples and steps to the target
do not depend on it, and judged by the timing model. Then every condition is trained from the same
new seeds behind the limit, in turns, and compared with no echoing seed by seed: geometric means of
the ratios, with 95 % t-intervals of their logarithms. An interval covers the speedup at the
hyperparameters that were found, over new seeds; what another search would have found is not in it
(`python -m benchmarks.coverage` shows how much that leaves out). Compilation and evaluation are
left out of seconds.
"""

import copy
import dataclasses
import functools
import math
import pathlib
import random
import tempfile

import numpy as np
from scipy import stats

import sweep
import train
from benchmarks import common
from configs import base, cifar10
from runs import cli, records
from runs.progress import Progress

STUDY_AT_5 = 3.25  # Choi et al. 2019, figure 5: ResNet-50 on ImageNet, R about 6
COVERS = (
    "which covers the speedup at the hyperparameters that one search found for each factor, over "
    "new seeds of data and model: it leaves out that another search would have found others"
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


QUICK = Plan(factors=(1, 4), on_device=(4,), trials=2, seeds=2, budget=6_000, target=0.5)


@dataclasses.dataclass(frozen=True)
class Condition:
    """One line of the table: what it overrides, and the search whose best trial it takes."""

    label: str
    overrides: dict
    search: str
    ideal: float


def conditions(plan: Plan) -> list[Condition]:
    found = []
    for e in plan.factors:
        slot = "before_augmentation" if e > 1 else "none"
        overrides = {"echo.insertion": slot, "echo.factor": float(e)}
        overrides |= {"echo.shuffle_buffer": 4 * plan.batch_size if e > 1 else 0}
        found.append(Condition(f"e = {e}", overrides, f"e{e}", min(e, plan.ratio)))
    for e in plan.on_device:
        placed = found[plan.factors.index(e)]
        overrides = placed.overrides | {"echo.placement": "device", "augment_on": "device"}
        label = f"{placed.label}, device"
        found.append(Condition(label, overrides, placed.search, placed.ideal))
    auto = {
        "echo.insertion": "before_augmentation",
        "echo.policy": "auto",
        "echo.shuffle_buffer": 8 * plan.batch_size,
    }
    return [*found, Condition("auto", auto, "auto", plan.ratio)]


def configuration(plan: Plan):
    config = cifar10.get_config("mini")
    config.batch_size = plan.batch_size
    config.budget.fresh_examples = plan.budget
    config.target.value = plan.target
    config.evaluate_every_fresh_examples = max(400, plan.batch_size)
    config.checkpoint_every_fresh_examples = 0
    return config


def overridden(config, overrides: dict):
    config = copy.deepcopy(config)
    for name, value in overrides.items():
        cli.set_field(config, name, value, base.FIELDS)
    return config


def searched(plan: Plan, config, chosen: list[Condition], outdir: pathlib.Path) -> list[dict]:
    """The finished trials of one search a condition: {search, hparams, result}."""
    study = sweep.Study(
        name="wall_time",
        config=config,
        config_flag="configs/cifar10.py:mini",
        conditions=tuple(
            {"name": c.search, "label": c.label, "overrides": c.overrides} for c in chosen
        ),
        space=sweep.resolved(cifar10.get_search_space("mini"), config),
        trials=plan.trials,
        searches=1,
        baseline=chosen[0].search,
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


def best(trials: list[dict], seconds) -> dict[str, tuple[float, dict]]:
    """The smallest `seconds(result)` of each search, and its hyperparameters."""
    found: dict[str, tuple[float, dict]] = {}
    for trial in trials:
        if trial["result"]["status"] == "reached":
            candidate = (seconds(trial["result"]), trial["hparams"])
            found[trial["search"]] = min(
                candidate, found.get(trial["search"], candidate), key=lambda pair: pair[0]
            )
    return found


def seconds_per_step(plan: Plan, config, root: pathlib.Path) -> float:
    """Of training that does not wait for its input; the median of three runs of 100 steps."""
    config.target.value = 2.0  # never
    config.budget.fresh_examples = math.ceil(100 * plan.batch_size / config.echo.factor)
    results = [train.train(config, root / str(number), QUIET) for number in range(3)]
    return float(np.median([result["train_seconds"] / result["step"] for result in results]))


def tuned(plan: Plan, root: pathlib.Path) -> tuple[dict[str, dict], float, float]:
    """(hyperparameters by search, seconds a step, upstream's examples a second)."""
    config, chosen = configuration(plan), conditions(plan)
    fixed = [c for c in chosen if c.search != "auto" and "device" not in c.label]
    trials = searched(plan, config, fixed, root / "fixed")
    step_seconds = seconds_per_step(plan, overridden(config, fixed[-1].overrides), root / "step")
    rate = plan.batch_size / (plan.ratio * step_seconds)
    common.progress(f"a step takes {step_seconds * 1e3:.2f} ms; upstream: {rate:.0f} examples/s")

    def modelled(result: dict) -> float:
        fresh, steps = result["fresh_examples_to_target"], result["steps_to_target"]
        return max(fresh / rate, steps * step_seconds)

    found = best(trials, modelled)
    limited = overridden(config, {"upstream.examples_per_second": rate})
    auto = searched(plan, limited, [chosen[-1]], root / "auto")
    found |= best(auto, lambda result: result["seconds_to_target"])
    missing = {c.search for c in chosen} - set(found)
    if missing:
        raise SystemExit(f"no trial of {', '.join(sorted(missing))} reached the target")
    for name, (seconds, hparams) in found.items():
        common.progress(f"{name}: {seconds:.2f} s with {hparams}")
    return {name: hparams for name, (_, hparams) in found.items()}, step_seconds, rate


def paired(
    plan: Plan, hparams: dict[str, dict], rate: float, root: pathlib.Path
) -> dict[str, list[dict]]:
    """Results of every condition, seed by seed, behind the limit."""
    config, chosen = configuration(plan), conditions(plan)
    found: dict[str, list[dict]] = {condition.label: [] for condition in chosen}
    order = random.Random(0)
    for seed in range(plan.seeds):
        for condition in order.sample(chosen, len(chosen)):
            overrides = condition.overrides | hparams[condition.search]
            overrides |= {"seed.data": 1000 + seed, "seed.model": 1000 + seed}
            overrides |= {"upstream.examples_per_second": rate}
            workdir = root / "paired" / condition.label.replace(" ", "") / str(seed)
            result = train.train(overridden(config, overrides), workdir, QUIET)
            found[condition.label].append(result)
        common.progress(f"seed {seed + 1} of {plan.seeds}")
    return found


def interval(ratios: np.ndarray) -> tuple[float, float, float]:
    """Geometric mean, and the 95 % t-interval of the logarithms, turned back."""
    logs = np.log(ratios)
    half = stats.t.ppf(0.975, len(logs) - 1) * logs.std(ddof=1) / math.sqrt(len(logs))
    return tuple(np.exp([logs.mean(), logs.mean() - half, logs.mean() + half]))


def seconds_of(results: list[dict]) -> np.ndarray:
    """To the target; of a run that did not reach it, to its end, which is less."""
    return np.asarray([r["seconds_to_target"] or r["train_seconds"] for r in results])


def missed(results: list[dict]) -> bool:
    """Whether a run did not reach the target, so that its seconds are only a lower bound."""
    return any(r["seconds_to_target"] is None for r in results)


def speedup_text(ratio: tuple[float, float, float], baseline_missed: bool, own_missed: bool) -> str:
    """A speedup and its interval; a bound without one where a run did not reach the target."""
    if baseline_missed and own_missed:
        return "undetermined"
    if baseline_missed or own_missed:
        return f"{'≥' if baseline_missed else '≤'}{ratio[0]:.2f}"
    return f"{ratio[0]:.2f} ({ratio[1]:.2f} to {ratio[2]:.2f})"


def report(plan: Plan, results: dict[str, list[dict]], step_seconds: float, rate: float):
    """(text, (label, ratio, low, high) of each condition)."""
    without = results[f"e = {plan.factors[0]}"]
    baseline, baseline_missed = seconds_of(without), missed(without)
    lines, ratios = [], []
    for condition in conditions(plan):
        runs = results[condition.label]
        seconds = seconds_of(runs)
        ratio = interval(baseline / seconds)
        ratios.append((condition, *ratio))
        speed = [r["step"] / r["train_seconds"] for r in runs]
        lines.append(
            [
                condition.label,
                f"{np.median(seconds):.2f}",
                speedup_text(ratio, baseline_missed, missed(runs)),
                f"{condition.ideal:g}",
                f"{np.median([r['fresh_examples'] for r in runs]):,.0f}",
                f"{np.median(speed):.1f}",
                f"{sum(r['status'] == 'reached' for r in runs)}/{len(runs)}",
            ]
        )
    header = ["", "seconds", "speedup over e = 1 (95 % of new seeds)", "min(e, R)"]
    header += ["fresh examples", "steps/s"]
    text = [
        f"# Seconds to {plan.target:.0%} behind an upstream with R = {plan.ratio:g}",
        f"Medians over {plan.seeds} paired seeds; speedup: geometric mean of the seeds' ratios "
        f"with its 95 % t interval, {COVERS}. "
        f"A step takes {step_seconds * 1e3:.2f} ms at batch size "
        f"{plan.batch_size}; upstream gives {rate:.0f} examples a second. {plan.trials} trials a "
        "search. " + common.machine(["jax", "grain", "numpy"]),
        common.markdown_table([*header, "reached"], lines),
        f"The study reached {STUDY_AT_5}x at e = 5 with R about 6 (ResNet-50 on ImageNet).",
    ]
    return "\n\n".join(text), ratios


def draw(ratios, plan: Plan, path: pathlib.Path) -> None:
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
        xlabel="echoing factor e (squares: kept on the device)",
        ylabel="speedup over no echoing",
        ylim=(0, None),
    )
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)


def main(argv: list[str] | None = None) -> None:
    parser = common.arguments("wall_time", __doc__)
    parser.add_argument("--quick", action="store_true", help="two factors, two seeds: a smoke run")
    parser.add_argument("--trials", type=int, help=f"a search (default: {Plan.trials})")
    parser.add_argument("--seeds", type=int, help=f"paired (default: {Plan.seeds})")
    parser.add_argument("--batch-size", type=int, help=f"(default: {Plan.batch_size})")
    parser.add_argument("--budget", type=int, help=f"fresh examples (default: {Plan.budget:,})")
    parser.add_argument(
        "--runs",
        type=pathlib.Path,
        metavar="DIR",
        help="where runs are kept, so that a second start goes on; default: nowhere",
    )
    options = parser.parse_args(argv)
    plan = QUICK if options.quick else Plan()
    given = ("trials", "seeds", "batch_size", "budget")
    plan = dataclasses.replace(plan, **{k: v for k in given if (v := getattr(options, k))})
    with tempfile.TemporaryDirectory() as scratch:
        root = options.runs or pathlib.Path(scratch)
        hparams, step_seconds, rate = tuned(plan, root)
        results = paired(plan, hparams, rate, root)
    text, ratios = report(plan, results, step_seconds, rate)
    common.publish(text, options.out, functools.partial(draw, ratios, plan))


if __name__ == "__main__":
    main()
