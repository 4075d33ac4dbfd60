"""Seconds to the target behind an upstream that is R times slower than the step (figure 5).

    python -m benchmarks.wall_time --out=results/wall_time.md     an hour and a half
    python -m benchmarks.wall_time --disk=out/images --out=results/wall_time_disk.md
                                        half an hour; Linux, root, and cgroup v1 (slow_disk.py)
    python -m benchmarks.wall_time --augmentation --out=results/wall_time_augmentation.md
                                                                  half an hour
    python -m benchmarks.wall_time --problem=cells --out=results/wall_time_cells.md
                                        half an hour; documents, too; sentences: minutes; data in
                                        $TFDS_DATA_DIR
    python -m benchmarks.wall_time --batch-size=128 --budget=30000 --out=...
    python -m benchmarks.wall_time --quick                        a one-minute smoke run

ResNet-8 on the digits mini, batches of 512, echoed before augmentation. The training step is the
real one; a rate limit on reading sets R. With `--disk`, every image is a file on a disk whose reads
per second the kernel limits, and there are fewer conditions. Each factor is tuned by several quasi-
random searches, and so is `auto`, which is given neither R nor e, and has a buffer twice as large.
Factors are searched without the limit, because fresh examples and steps to the target do not depend
on it, and several trials at a time; they are ranked by the timing model.

With `--augmentation`, the limit is on the examples that the host augments, as if that were
expensive, and the conditions are others: no echoing, e = 4 at each insertion point, and no echoing
with augmentation on the device, which has no limit.

With `--problem`, a problem of configs/problems.py takes the place of the digits, at its first batch
size, with no echoing and e = 4. The searches are those of its grid in results/.

Then the best trial of every search is trained again, one run at a time, behind the limit with new
seeds, which are the same for all conditions, in shuffled order. The speedup of a search is the
geometric mean over its seeds of the seconds without echoing over those of the condition, each with
its own best hyperparameters of that search. The median over searches and their range are those of
docs/statistics.md: they include the variation of tuning. A search without a trial at the target
takes its trial with the best value, and runs that miss the target give bounds; the page counts
both. Every condition is evaluated equally often per step, with `--augmentation` after every fourth
step, since a batch that is emitted four times counts once. Seconds exclude compilation and
evaluation.
"""

import contextlib
import dataclasses
import functools
import math
import pathlib
import random
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from ml_collections import ConfigDict

import sweep
import train
from analysis import bounds, load, scores
from benchmarks import common
from benchmarks.slow_disk import SlowDisk
from configs import catalog, cifar10, problems
from runs import records
from runs.cli import InputError
from runs.progress import Progress
from studies.executors import PoolExecutor
from studies.search import make_study

STUDY_AT_5 = 3.25  # Choi et al. 2019, figure 5: ResNet-50 on ImageNet, R about 6
FACTOR = 4  # with --augmentation, at every insertion point
LANES, WORKERS = 4, 2  # trials at a time where only fresh examples and steps are read
QUIET = Progress(quiet=True)
RECORDS = pathlib.Path("results/trials.parquet")
GRID_BUFFER = 256  # examples that its conditions shuffle


@dataclasses.dataclass(frozen=True)
class Plan:
    """What is measured."""

    ratio: float = 6.0
    factors: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 8)
    on_device: tuple[int, ...] = (5, 6)
    trials: int = 12
    searches: int = 5
    seeds: int = 2
    batch_size: int = 512
    budget: int = 60_000
    target: float = 0.97
    timed_steps: int = 100  # of each of the runs that measure a step
    depth: int = 8  # of the ResNet; 0 is logistic regression
    disk: pathlib.Path | None = None  # where the images are files on a disk that is slowed down
    # Whether augmentation is slow, and not reading. `factors` and `on_device` do not count then.
    augmentation: bool = False
    problem: str = ""  # whose grid tunes; "" = the digits mini, which is searched here


ON_DISK = Plan(factors=(1, 5, 8), on_device=())


def of_problem(plan: Plan, name: str) -> Plan:
    """The plan for a problem of the grid, with its finished searches."""
    config = problems.get_config(name)
    plan = dataclasses.replace(
        plan,
        factors=(1, FACTOR),
        on_device=(),
        batch_size=config.batch_size,
        budget=config.budget.fresh_examples,
        target=config.target.value,
        problem=name,
    )
    hparams, _ = best_of_grid(plan)
    finished = [
        search
        for search in range(plan.searches)
        if all((condition.search, search) in hparams for condition in conditions(plan))
    ]
    return dataclasses.replace(plan, searches=len(finished))


# A search may set the schedule's horizon to budget / 32, which must hold a batch.
QUICK = Plan(
    factors=(1, 4),
    on_device=(4,),
    trials=2,
    searches=2,
    seeds=1,
    batch_size=64,
    budget=2_400,
    target=0.5,
    timed_steps=20,
    depth=0,
)


@dataclasses.dataclass(frozen=True)
class Condition:
    """A row of the table.

    Attributes:
        label: the first column.
        overrides: values of configuration fields, by dotted name.
        search: the condition whose searches set its hyperparameters.
        ideal: the speedup if a repeat were as good as a fresh example, and augmentation on the
            device took no time.
    """

    label: str
    overrides: dict[str, Any]
    search: str
    ideal: float


Hyperparameters = dict[tuple[str, int], dict[str, Any]]  # by condition and search


@dataclasses.dataclass(frozen=True)
class Tuned:
    """What the searches found.

    Attributes:
        hparams: of the best trial of every search.
        missed: searches of which no trial reached the target, by condition.
        step_seconds: seconds per step without waiting for input.
        rate: examples per second of what is slow.
        limit: the fields that set this rate.
    """

    hparams: Hyperparameters
    missed: Counter[str]
    step_seconds: float
    rate: float
    limit: dict[str, Any] = dataclasses.field(default_factory=dict)


def conditions(plan: Plan) -> list[Condition]:
    """The rows of the table; the first one is what the others are compared with."""
    return _insertion_points(plan) if plan.augmentation else _factors(plan)


def _insertion_points(plan: Plan) -> list[Condition]:
    plain = {"echo.insertion": "none", "echo.factor": 1.0, "echo.shuffle_buffer": 0}
    none = Condition("no echoing", plain, "none", 1)
    result = [none]
    for insertion, buffer in (
        ("before_augmentation", 4 * plan.batch_size),
        ("after_augmentation", 4 * plan.batch_size),
        ("after_batching", 4),
    ):
        overrides = {"echo.insertion": insertion, "echo.factor": float(FACTOR)}
        overrides |= {"echo.shuffle_buffer": buffer}
        label = f"{insertion.replace('_', ' ')}, e = {FACTOR}"
        ideal = 1 if insertion == "before_augmentation" else min(FACTOR, plan.ratio)
        result.append(Condition(label, overrides, insertion, ideal))
    on_device = plain | {"augment_on": "device"}
    return [*result, Condition("no echoing, device", on_device, none.search, plan.ratio)]


def _factors(plan: Plan) -> list[Condition]:
    result, buffer = [], GRID_BUFFER if plan.problem else 4 * plan.batch_size
    for e in plan.factors:
        insertion = "before_augmentation" if e > 1 else "none"
        overrides = {"echo.insertion": insertion, "echo.factor": float(e)}
        overrides |= {"echo.shuffle_buffer": buffer if e > 1 else 0}
        result.append(Condition(f"e = {e}", overrides, f"e{e}", min(e, plan.ratio)))
    for e in plan.on_device:
        on_host = result[plan.factors.index(e)]
        overrides = on_host.overrides | {"echo.placement": "device", "augment_on": "device"}
        label = f"{on_host.label}, device"
        result.append(Condition(label, overrides, on_host.search, on_host.ideal))
    if plan.problem:
        return result
    auto = catalog.auto(16, 8 * plan.batch_size)
    return [*result, Condition("auto", auto, "auto", plan.ratio)]


def timed(plan: Plan) -> str:
    """The label of the condition whose step, without any limit, is the one in R."""
    return f"after augmentation, e = {FACTOR}" if plan.augmentation else f"e = {plan.factors[-1]}"


def configuration(plan: Plan) -> ConfigDict:
    if plan.problem:
        config = problems.get_config(plan.problem)
        config.gradient_statistics_every_steps = 0
        return config
    config = cifar10.get_config("mini")
    config.model.depth = plan.depth
    config.batch_size = plan.batch_size
    config.budget.fresh_examples = plan.budget
    config.target.value = plan.target
    config.evaluate_every_fresh_examples = max(400, plan.batch_size)
    config.checkpoint_every_fresh_examples = 0
    if plan.disk:
        config.dataset.name = f"folder:{plan.disk.resolve()}"
        config.dataset.test_split = ""
    return config


def upstream(plan: Plan, rate: float) -> dict[str, Any]:
    if plan.augmentation:
        return {"upstream.augmented_examples_per_second": rate}
    return {"upstream.examples_per_second": rate}


def run_searches(
    plan: Plan, config: ConfigDict, chosen: list[Condition], outdir: pathlib.Path, **together: Any
) -> list[dict[str, Any]]:
    """Runs the searches of each condition; their trials as {place, hparams, result}, where the
    place is (condition, search). `together` says how many trials train at a time. Raises SystemExit
    if it is stopped."""
    study = make_study(
        "wall_time",
        config,
        {condition.search: condition.overrides for condition in chosen},
        cifar10.get_search_space("mini"),
        trials=plan.trials,
        searches=plan.searches,
        baseline=chosen[0].search,
        config_flag="configs/cifar10.py:mini",
    )
    if sweep.run(study, outdir, QUIET, **together) != "finished":
        raise SystemExit("stopped; with --runs=DIR, the same command resumes")
    return [
        {
            "place": (place.condition, place.search),
            "hparams": records.read_json(directory / records.HPARAMS)["hparams"],
            "result": records.read_json(directory / records.RESULT),
        }
        for place, directory in records.trials_on_disk(outdir)
    ]


def best_trials(
    trials: list[dict[str, Any]], seconds: Callable[[dict[str, Any]], float]
) -> tuple[Hyperparameters, Counter[str]]:
    """The best trial of every search, and the searches of which no trial reached the target.

    Returns:
        Hyperparameters by (condition, search): those of the trial that reached the target with the
        smallest `seconds(result)`, or if none did, of the one with the best value; and the number
        of searches without a trial at the target, by condition.
    """

    def rank(trial: dict[str, Any]) -> tuple[float, float]:
        result = trial["result"]
        if result["status"] == "reached":
            return seconds(result), 0.0
        return math.inf, -result["best"]["value"]

    ended = [trial for trial in trials if trial["result"]["status"] in ("reached", "exhausted")]
    ended.sort(key=rank, reverse=True)  # so that the best is entered last
    best = {trial["place"]: trial for trial in ended}
    missed = [place for place, trial in best.items() if trial["result"]["status"] != "reached"]
    hparams = {place: trial["hparams"] for place, trial in best.items()}
    return hparams, Counter(condition for condition, _ in missed)


def best_of_grid(plan: Plan) -> tuple[Hyperparameters, Counter[str]]:
    """What `best_trials` returns, from the grid of the plan's problem."""
    grid = load.read(RECORDS, study=f"grid/{plan.problem}")
    searches = scores.search_scores(grid.trials, grid.study)
    fields = [axis.field for axis in grid.study.space]
    hparams: Hyperparameters = {}
    missed: Counter[str] = Counter()
    for condition in conditions(plan):
        echoed = condition.overrides["echo.factor"] > 1
        kind = f"before_augmentation_{condition.search}" if echoed else "baseline"
        own: Any = searches[searches["condition"] == f"{kind}_b{plan.batch_size}"]
        best = scores.leaders(grid.trials, own)
        for trial in best.to_dict("records"):
            hparams[condition.search, trial["search"]] = {field: trial[field] for field in fields}
            missed[condition.search] += trial["status"] != "reached"
    return hparams, missed


def seconds_per_step(plan: Plan, config: ConfigDict, root: pathlib.Path) -> float:
    """Seconds per step without waiting for input; the median of three runs."""
    config.target.value = 2.0  # never
    examples = plan.timed_steps * plan.batch_size
    config.budget.fresh_examples = math.ceil(examples / config.echo.factor)
    results = [train.train(config, root / str(number), QUIET) for number in range(3)]
    return float(np.median([result["train_seconds"] / result["step"] for result in results]))


def tune(plan: Plan, root: pathlib.Path, limit: Callable[[float], dict[str, Any]]) -> Tuned:
    """Searches all conditions and measures the step. Raises SystemExit if a search diverged as a
    whole.

    Args:
        plan: what is measured.
        root: where the runs are.
        limit: sets a limit in examples per second, or returns the fields that do.
    """
    config, chosen = configuration(plan), conditions(plan)
    fixed = [c for c in chosen if c.search != "auto" and "device" not in c.label]
    trials = []
    if not plan.problem:
        workers = functools.partial(PoolExecutor, number=WORKERS)
        together = {"make_executor": workers, "lanes": LANES}
        trials = run_searches(plan, config, fixed, root / "fixed", **together)
    echoed = [condition for condition in fixed if condition.label == timed(plan)]
    step_seconds = seconds_per_step(
        plan, common.overridden(config, echoed[0].overrides), root / "step"
    )
    rate = plan.batch_size / (plan.ratio * step_seconds)
    common.progress(f"a step takes {step_seconds * 1e3:.2f} ms; limit: {rate:.0f} examples/s")

    # Within a condition, steps, fresh examples, and augmented copies grow together, so that this
    # ranks its trials behind either limit.
    def modeled_seconds(result: dict[str, Any]) -> float:
        fresh, steps = result["fresh_examples_to_target"], result["steps_to_target"]
        return max(fresh / rate, steps * step_seconds)

    best, missed = best_of_grid(plan) if plan.problem else best_trials(trials, modeled_seconds)
    limits = limit(rate)
    if adaptive := [condition for condition in chosen if condition.search == "auto"]:
        # once per step where the limit keeps every step waiting, like the fixed factors
        every = round(config.evaluate_every_fresh_examples / plan.ratio)
        limited = common.overridden(config, limits | {"evaluate_every_fresh_examples": every})
        auto = run_searches(plan, limited, adaptive, root / "auto")
        best_auto, missed_auto = best_trials(auto, lambda result: result["seconds_to_target"])
        best, missed = best | best_auto, missed + missed_auto
    for search in range(plan.searches):
        for name in (c.search for c in chosen):
            if (name, search) not in best:
                raise SystemExit(f"all trials of search {search} of {name} diverged")
    return Tuned(best, missed, step_seconds, rate, limits)


Results = dict[str, list[list[dict[str, Any]]]]  # by label, search, and seed


def run_seeds(plan: Plan, tuned: Tuned, root: pathlib.Path) -> Results:
    """Trains the best trial of every search behind the limit with new seeds."""
    config, chosen = configuration(plan), conditions(plan)
    results: Results = {c.label: [[] for _ in range(plan.searches)] for c in chosen}
    order = random.Random(0)
    for run in range(plan.searches * plan.seeds):
        search = run // plan.seeds
        for condition in order.sample(chosen, len(chosen)):
            overrides = condition.overrides | tuned.hparams[condition.search, search]
            overrides |= {"seed.data": 1000 + run, "seed.model": 1000 + run}
            overrides |= tuned.limit
            copies = overrides.get("echo.factor", plan.ratio)
            steps = FACTOR if plan.augmentation else 1
            every = round(steps * config.evaluate_every_fresh_examples / copies)
            overrides |= {"evaluate_every_fresh_examples": every}
            workdir = root / "paired" / condition.label.replace(" ", "") / str(run)
            result = train.train(common.overridden(config, overrides), workdir, QUIET)
            if result["status"] not in ("reached", "exhausted", "diverged"):
                raise SystemExit(f"{workdir}: {result['status']}; with --runs=DIR, it resumes")
            results[condition.label][search].append(result)
        common.progress(f"seeds {run + 1} of {plan.searches * plan.seeds}")
    return results


Ends = tuple[np.ndarray, np.ndarray]  # lower and upper bounds, [searches, seeds]


def seconds_to_target(results: list[list[dict[str, Any]]]) -> Ends:
    """Bounds of the seconds; a run that missed the target would take longer than it ran."""
    runs = [[(r["seconds_to_target"], r["train_seconds"]) for r in seeds] for seeds in results]
    low = [[ran if at is None else at for at, ran in seeds] for seeds in runs]
    high = [[math.inf if at is None else at for at, _ in seeds] for seeds in runs]
    return np.array(low), np.array(high)


def fresh_examples(runs: Sequence[Mapping[str, Any]]) -> Ends:
    """Bounds of the fresh examples to the target of several runs."""
    low = np.array([float(run["fresh_examples"]) for run in runs])
    return low, np.where([run["status"] == "reached" for run in runs], low, math.inf)


def speedup(base: Ends, own: Ends) -> bounds.Summary:
    """The geometric mean over seeds of base / own: its median over searches, and their range."""
    with np.errstate(divide="ignore"):
        return bounds.summary(*(np.exp(np.log(end).mean(-1)) for end in bounds.ratio(base, own)))


def report(
    plan: Plan, results: Results, tuned: Tuned
) -> tuple[str, list[tuple[Condition, bounds.Summary]]]:
    """(text, (condition, speedup) of every condition)."""
    lines, ratios, number = [], [], "{:.2f}".format
    behind, ideal, flag = "an upstream", "min(e, R)", ""
    limit, slower = f"the upstream delivers {tuned.rate:.0f} examples per second.", plan.ratio
    if plan.disk:
        behind, flag = "a slow disk", f" --disk={plan.disk}"
        limit = f"the disk performs {tuned.rate:.0f} reads per second, one per example."
        ahead, slower = _ahead(plan, results, tuned)
        limit += ahead
    if plan.augmentation:
        behind, ideal, flag = "a slow augmentation", "ideal", " --augmentation"
        limit = f"the host augments at most {tuned.rate:.0f} examples per second."
    tuning = f"{plan.searches} searches of {plan.trials} trials tune each condition. Those on the "
    tuning += "device have the hyperparameters of the host's."
    goal = f"{plan.target:.0%}"
    if plan.problem:
        flag, goal = f" --problem={plan.problem}", f"the target of {plan.problem}"
        tuning = f"{plan.searches} searches of [the grid](protocol.md) tune each condition."
    base, *_ = chosen = conditions(plan)
    for condition in chosen:
        runs = [result for seeds in results[condition.label] for result in seeds]
        diverged = sum(run["status"] == "diverged" for run in runs)
        low, high = fresh_examples(runs)
        own = seconds_to_target(results[condition.label])
        ratio = speedup(seconds_to_target(results[base.label]), own)
        ratios.append((condition, ratio))
        middle = bounds.text(ratio.low, ratio.high, number)
        lines.append(
            [
                condition.label,
                bounds.text(float(np.median(own[0])), float(np.median(own[1])), number),
                "1" if condition == base else f"{middle} [{bounds.range_text(ratio, number)}]",
                f"{min(condition.ideal, slower):.3g}",
                bounds.text(float(np.median(low)), float(np.median(high)), "{:,.0f}".format),
                f"{np.median([r['step'] / r['train_seconds'] for r in runs]):.1f}",
                f"{sum(r['status'] == 'reached' for r in runs)}/{len(runs)}"
                + (f", {diverged} diverged" if diverged else ""),
                f"{plan.searches - tuned.missed[condition.search]}/{plan.searches}",
            ]
        )
    name = bounds.interval_name(plan.searches)
    header = ["", "seconds", f"speedup over {base.label} [{name}]", ideal]
    header += ["fresh examples", "steps/s", "runs reached", "searches reached"]
    text = [
        f"# Seconds to {goal} behind {behind} with R = {slower:.2g}",
        f"How much sooner does echoing reach the target if {_SLOW[plan.augmentation]} is "
        f"{slower:.2g} times slower than the step? {_answer(base, ratios)} Measured by "
        f"`python -m benchmarks.wall_time{flag}`, whose docstring has the protocol, on "
        + common.machine(["jax", "grain", "numpy"]),
        common.markdown_table(header, lines),
        "\n".join(
            [
                f"- **Tuning.** {tuning} A search without a trial at the target takes the one with "
                "the best value.",
                "- **Seconds.** The best trial of each search runs again with "
                f"{plan.seeds} new seeds, paired with no echoing. The columns are medians over "
                "these runs.",
                "- **Speedup.** The geometric mean over the seeds of a search; its median over "
                "searches, and in brackets their range, which includes the variation of tuning. "
                "Runs that missed the target give bounds. The brackets are those of one row; the "
                "largest of several is too large by chance.",
                f"- **R.** A step takes {tuned.step_seconds * 1e3:.2f} ms at batch size "
                f"{plan.batch_size} ({timed(plan)}, without a limit); {limit}",
            ]
        ),
    ]
    if plan.augmentation:
        text[-1] += (
            "\n- **Ideal.** With repeats as good as fresh examples, and no time for augmenting on "
            "the device."
        )
    elif not plan.problem:
        text.append(
            f"Choi et al. (2019) reached {STUDY_AT_5} times at e = 5 with R about 6 (ResNet-50 on "
            "ImageNet)."
        )
    return "\n\n".join(text), ratios


def _ahead(plan: Plan, results: Results, tuned: Tuned) -> tuple[str, float]:
    """The R that no echoing has if the disk delivers during evaluations, too: a sentence, and R."""
    runs = [run for seeds in results[conditions(plan)[0].label] for run in seeds]
    rate = float(np.median([run["fresh_examples"] / run["train_seconds"] for run in runs]))
    ratio = plan.batch_size / (rate * tuned.step_seconds)
    return (
        f" It also delivers while a run evaluates, which does not count: {rate:.0f} examples per "
        f"second of training without echoing, as with R = {ratio:.1f} instead of {plan.ratio:g}. "
        "With echoing, a run is evaluated more often per fresh example, so its R is lower, which "
        "favors it."
    ), ratio


_SLOW = {False: "input", True: "augmentation on the host"}


def _answer(base: Condition, ratios: list[tuple[Condition, bounds.Summary]]) -> str:
    """The condition that echoes with the largest median speedup, in a sentence."""
    echoing = [pair for pair in ratios if pair[0].overrides["echo.insertion"] != "none"]
    best, ratio = max(echoing, key=lambda pair: pair[1].low)
    middle = bounds.text(ratio.low, ratio.high, "{:.2f}".format)
    spread = bounds.range_text(ratio, "{:.2f}".format)
    return (
        f"Among the rows that echo, the largest median speedup over {base.label} is {middle} "
        f'[{spread}], in row "{best.label}".'
    )


def draw(ratios, plan: Plan) -> Figure:
    """Speedup by factor, with min(e, R) as a line."""
    figure = Figure(figsize=(5.5, 3.6), layout="constrained")
    axes = figure.subplots()
    axes.plot([1, plan.ratio, max(plan.factors)], [1, plan.ratio, plan.ratio], color="0.6")
    axes.annotate(
        "min(e, R)",
        (plan.ratio + 1, plan.ratio),
        (0, 4),
        ha="center",
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
    for condition, ratio in ratios:
        device, auto = "device" in condition.label, condition.label == "auto"
        place = max(plan.factors) + 1 if auto else condition.overrides["echo.factor"]
        color, x = "C2" if auto else "C1" if device else "C0", place + 0.12 * device
        low = ratio.min if ratio.min > 0 else ratio.min_high
        high = ratio.max if math.isfinite(ratio.max) else ratio.max_low
        axes.plot([x, x], [low, high], color=color)
        if ratio.min <= 0:
            axes.plot(x, low, "v", color=color)
        if math.isinf(ratio.max):
            axes.plot(x, high, "^", color=color)
        if ratio.low == ratio.high:
            axes.plot(x, ratio.low, "s" if device else "o", color=color)
    places = [*plan.factors, max(plan.factors) + 1]
    axes.set_xticks(places, [*map(str, plan.factors), "auto"])
    axes.set(
        xlabel="echo factor e (squares: stored on the device; triangles: bounds)",
        ylabel="speedup over no echoing",
        ylim=(0, None),
    )
    axes.spines[["top", "right"]].set_visible(False)
    return figure


def main(argv: list[str] | None = None) -> None:
    parser = common.arguments(
        __spec__.name,
        __doc__,
        Plan(),
        QUICK,
        trials="trials per search",
        searches="searches per condition",
        seeds="new seeds per search",
        batch_size="examples per batch",
        budget="fresh examples per trial",
    )
    slow = parser.add_mutually_exclusive_group()
    slow.add_argument(
        "--disk", type=pathlib.Path, metavar="DIR", help="read image files in DIR, on a slow disk"
    )
    slow.add_argument("--augmentation", action="store_true", help="augmentation is what is slow")
    slow.add_argument(
        "--problem",
        choices=[*problems.PROBLEMS],
        help="a problem of the grid instead of the digits mini",
    )
    parser.add_argument(
        "--runs",
        type=pathlib.Path,
        metavar="DIR",
        help="keep the runs in DIR, so that starting again resumes (default: do not keep them)",
    )
    options = parser.parse_args(argv)
    of_grid = [f for f in ("trials", "batch_size", "budget") if getattr(options, f) is not None]
    if options.problem and of_grid:
        parser.error(f"--problem has {', '.join(of_grid)} of its grid; leave the flag out")
    plan = common.plan(options, ON_DISK if options.disk else Plan(), QUICK)
    plan = of_problem(plan, plan.problem) if plan.problem else plan
    with contextlib.ExitStack() as stack:
        root = options.runs or pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        limit = functools.partial(upstream, plan)
        if plan.disk:
            try:
                limit = stack.enter_context(SlowDisk(plan.disk)).limit
            except InputError as error:
                parser.error(str(error))
        tuned = tune(plan, root, limit)
        results = run_seeds(plan, tuned, root)
    text, ratios = report(plan, results, tuned)
    figure = None if plan.augmentation or plan.problem else functools.partial(draw, ratios, plan)
    common.publish(text, options.out, figure)


if __name__ == "__main__":
    common.command(main)
