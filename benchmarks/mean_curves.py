"""Factors compared by curves averaged over seeds, which single lucky evaluations hardly move.

    python -m benchmarks.mean_curves --train=out/mean_curves     about 40 minutes; resumes
    python -m benchmarks.mean_curves --out=results/mean_curves.md

Logistic regression, as in the grid. results/protocol.md (Logistic regression by mean curves) fixes
how each factor's hyperparameters are chosen, what is run with new seeds, and how it is judged.
--train writes results/mean_curves*.csv.xz: the trials of the search, the mean curves of the
candidates, and the accuracies of the runs with new seeds.
"""

# pandas has no complete type stubs.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportReturnType=false

import dataclasses
import functools
import math
import pathlib
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

import sweep
from analysis import load
from analysis.figures import style
from benchmarks import common
from benchmarks.confirmation import plain_number
from configs import problems
from runs.progress import Progress
from runs.study import BEST_VALUE, Study
from studies.definitions import load_study
from studies.executors import PoolExecutor
from studies.search import make_study

PROBLEM = "logistic"
BUDGET = problems.PROBLEMS[PROBLEM].fields["budget.fresh_examples"]
LANES = 16
EVALUATIONS = 128  # of the runs with new seeds
SMOOTHED = 4  # evaluations whose mean scores a trial of the search
SEARCHED = 0.87  # the accuracy that this mean has to reach
NEVER = 2.0  # an accuracy that no run reaches, so that all use the whole budget
STEP = 0.005  # of the levels
RESAMPLES, INTERVAL = 10_000, 0.95
RESULTS = pathlib.Path(__file__).parents[1] / "results"
TRIALS, CURVES = RESULTS / "mean_curves_trials.csv.xz", RESULTS / "mean_curves.csv.xz"
CANDIDATES = RESULTS / "mean_curves_candidates.csv.xz"
CANDIDATE_LEVEL = 0.865  # the accuracy at which the mean curves of candidates are compared
_CANDIDATE = "_search_"  # between a condition and its candidate's search

NONE = "baseline_b32"
FACTORS = {e: f"before_augmentation_e{e}_b32" for e in (2, 4, 16)}
# Claims: the condition that needs fewer fresh examples, and than which.
CLAIMS = {
    "e = 2 needs fewer than no echoing": (FACTORS[2], NONE),
    "e = 16 needs fewer than no echoing": (FACTORS[16], NONE),
    "e = 4 needs fewer than e = 16": (FACTORS[4], FACTORS[16]),
}


@dataclasses.dataclass(frozen=True)
class Seeds:
    """New seeds: run k has data seed `data` + k and model seed `model` + 10,000 k."""

    data: int
    model: int
    number: int


# By how the settings were chosen: in one trial each, or by the mean curves of candidates.
OF_TRIALS, OF_MEANS = "one trial", "mean curves"
NEW_SEEDS = {
    OF_TRIALS: Seeds(30_000, 40_000_000, 64),
    OF_MEANS: Seeds(32_000, 60_000_000, 64),
}
CANDIDATE_SEEDS = Seeds(31_000, 50_000_000, 16)


# --- training


def search() -> Study:
    """The study `common_cadence`, each trial of which uses the whole budget."""
    config = problems.get_config(PROBLEM)
    config.target.value = NEVER
    flag = f"configs/problems.py:{PROBLEM}"
    study = load_study(config, problems, flag, "common_cadence")
    return dataclasses.replace(study, name="mean_curves", score=BEST_VALUE)


Settings = dict[str, dict[str, Any]]  # hyperparameters by name of a condition or candidate


def chosen(trials: pd.DataFrame) -> Settings:
    """By condition, the trial with the smallest score; of those that tie, the one with the best
    smoothed accuracy, then of the first search and trial."""
    return {condition: best for (condition,), best in _best(trials, ["condition"]).items()}


def candidates(trials: pd.DataFrame) -> Settings:
    """The best trial of each search of each condition, chosen in the same way."""
    best = _best(trials, ["condition", "search"])
    return {f"{condition}{_CANDIDATE}{number}": own for (condition, number), own in best.items()}


def _best(trials: pd.DataFrame, groups: list[str]) -> dict[tuple, dict[str, Any]]:
    order = trials.sort_values(
        ["score", "smoothed", "search", "trial"], ascending=[True, False, True, True]
    )
    best = order.drop_duplicates(groups).sort_values(groups)
    fields = [name for name in trials if "." in name]
    return {
        tuple(row[group] for group in groups): {name: plain_number(row[name]) for name in fields}
        for row in best.to_dict("records")
    }


def chosen_by_means(trials: pd.DataFrame, means: pd.DataFrame) -> Settings:
    """By condition, the candidate whose mean curve first reaches CANDIDATE_LEVEL; if none does, the
    one with the best mean accuracy at the end.

    Args:
        trials: of the search.
        means: the candidates' mean curves: condition (of `candidates`), fresh_examples, value.
    """
    ranks = []
    for name, own in means.groupby("condition"):
        fresh, values = own["fresh_examples"].to_numpy(float), own["value"].to_numpy()
        reached = reaches(fresh, values[None], CANDIDATE_LEVEL)[0]
        ranks.append((name.partition(_CANDIDATE)[0], reached, -values[-1], name))
    settings, best = candidates(trials), {}
    for condition, *_, name in sorted(ranks):
        best.setdefault(condition, settings[name])
    return best


def scored(loaded: load.LoadedStudy) -> pd.DataFrame:
    """The counted trials: condition, search, trial, hyperparameters, `score` (fresh examples at the
    first evaluation at which the mean of the last SMOOTHED is at least SEARCHED; inf), and
    `smoothed` (the largest such mean)."""
    trials = loaded.trials[loaded.trials["counted"]]
    curves = load.curves(trials, loaded.study.target.metric)
    key = ["condition", "search", "trial"]
    mean = curves.groupby(key)["value"].transform(lambda own: own.rolling(SMOOTHED).mean())
    curves = curves.assign(smoothed=mean)
    reached = curves[curves["smoothed"] >= SEARCHED]
    scores = reached.groupby(key)["fresh_examples"].min().rename("score")
    largest = curves.groupby(key)["smoothed"].max()
    axes = [axis.field for axis in loaded.study.space]
    table = trials.set_index(key)[axes].join([scores, largest])
    return table.fillna({"score": math.inf}).reset_index()


def runs(name: str, settings: Settings, seeds: Seeds) -> Study:
    """Runs at settings of conditions or candidates: search k has the k-th of the seeds."""
    config = problems.get_config(PROBLEM)
    config.target.value = NEVER
    config.seed.data, config.seed.model = seeds.data, seeds.model
    every = {"evaluate_every_fresh_examples": BUDGET // EVALUATIONS}
    conditions = problems.get_studies(PROBLEM)["common_cadence"]["conditions"]
    return make_study(
        name,
        config,
        {
            own: fields | settings[own] | every
            for condition, fields in conditions.items()
            for own in settings
            if own.partition(_CANDIDATE)[0] == condition
        },
        (),
        trials=1,
        searches=seeds.number,
        baseline=min(own for own in settings if own.startswith(NONE)),
        score=BEST_VALUE,
        config_flag=f"configs/problems.py:{PROBLEM}",
    )


def train(root: pathlib.Path) -> None:
    """Runs the studies below `root`, or resumes them, and writes their results."""
    _run(search(), root / "search", LANES)
    scored(load.read(root / "search")).to_csv(TRIALS, index=False)
    trials = pd.read_csv(TRIALS)
    curves = {OF_TRIALS: _trained("mean_curves_new_seeds", chosen(trials), OF_TRIALS, root)}
    tried = _run(
        runs("mean_curves_candidates", candidates(trials), CANDIDATE_SEEDS), root / "candidates"
    )
    means = {name: table.mean() for name, table in by_seed(tried).items()}
    pd.concat(means, names=["condition"]).rename("value").to_csv(CANDIDATES)
    best = chosen_by_means(trials, pd.read_csv(CANDIDATES))
    curves[OF_MEANS] = _trained("mean_curves_of_candidates", best, OF_MEANS, root)
    pd.concat(curves, names=["settings"]).reset_index("settings").to_csv(CURVES, index=False)


def _trained(name: str, settings: Settings, kind: str, root: pathlib.Path) -> pd.DataFrame:
    return _run(runs(name, settings, NEW_SEEDS[kind]), root / name)


def _run(study: Study, outdir: pathlib.Path, lanes: int = 1) -> pd.DataFrame:
    """The curves of the first trial of each search: condition, search, fresh_examples, value. A
    later one follows one that diverged."""
    workers = functools.partial(PoolExecutor, number=2)
    if sweep.run(study, outdir, Progress(), workers, lanes=lanes) != "finished":
        raise SystemExit("stopped; the same command resumes")
    loaded = load.read(outdir)
    curves = load.curves(loaded.trials[loaded.trials["trial"] == 0], loaded.study.target.metric)
    return curves[["condition", "search", "fresh_examples", "value"]]


# --- judging


def by_seed(curves: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """By condition, the accuracies: a row per seed, a column per number of fresh examples. A run
    that diverged has an accuracy of 0 from there on. Pending copies follow the last fresh example,
    so that it may have two evaluations; the last one counts."""
    key = ["search", "fresh_examples"]
    return {
        condition: own.groupby(key)["value"].last().unstack().fillna(0.0)
        for condition, own in curves.groupby("condition")
    }


def reaches(fresh: np.ndarray, means: np.ndarray, level: float) -> np.ndarray:
    """Fresh examples at which mean curves first reach a level, interpolated linearly; inf if they
    do not.

    Args:
        fresh: float [evaluations], increasing.
        means: float [curves, evaluations].
        level: of the accuracy.

    Returns: float [curves].
    """
    hit = means >= level - 1e-9  # a mean that equals the level, however it was rounded
    last = hit.argmax(axis=1)
    before = np.maximum(last - 1, 0)
    rows = np.arange(len(means))
    low, high = means[rows, before], means[rows, last]
    part = np.where(last > 0, (level - low) / np.where(high > low, high - low, 1.0), 1.0)
    scores = fresh[before] + part * (fresh[last] - fresh[before])
    return np.where(hit.any(axis=1), scores, math.inf)


@dataclasses.dataclass(frozen=True)
class Ratio:
    """Fresh examples of one condition over those of another, with its interval. A curve that does
    not reach the level needs more than BUDGET.

    Attributes:
        value: inf if the condition does not reach the level.
        least: the value, or what it exceeds.
        low, high: the interval; inf at an end that is not known.
    """

    value: float
    least: float
    low: float
    high: float

    @property
    def verdict(self) -> str:
        if self.high < 1:
            return "reproduced"
        return "not reproduced" if self.low > 1 else "undecided"

    def __str__(self) -> str:
        value = f"{self.value:.2f}" if math.isfinite(self.value) else f">{self.least:.2f}"
        high = f"{self.high:.2f}" if math.isfinite(self.high) else "-"
        return f"{value} [{self.low:.2f}, {high}]"


def ratio(
    accuracies: dict[str, pd.DataFrame], conditions: tuple[str, str], level: float
) -> Ratio | None:
    """The ratio at a level, with the percentile interval of a bootstrap over seeds, which the two
    conditions share; None where the other condition's mean curve does not reach the level."""
    rng = np.random.default_rng(0)
    seeds = len(next(iter(accuracies.values())))
    drawn = rng.integers(seeds, size=(RESAMPLES, seeds))
    weights = np.stack([np.bincount(row, minlength=seeds) for row in drawn]) / seeds
    weights = np.concatenate([np.full((1, seeds), 1 / seeds), weights])
    own, base = (
        reaches(table.columns.to_numpy(float), weights @ table.to_numpy(), level)
        for table in (accuracies[name] for name in conditions)
    )
    if math.isinf(base[0]):
        return None
    least = np.minimum(own, BUDGET) / base
    most = np.where(np.isfinite(own), own, math.inf) / np.minimum(base, BUDGET)
    tail = (1 - INTERVAL) / 2
    low = np.quantile(least[1:], tail, method="nearest")
    high = np.quantile(most[1:], 1 - tail, method="nearest")
    return Ratio(most[0], least[0], low, high)


def tuned(trials: pd.DataFrame, conditions: tuple[str, str]) -> str:
    """The ratio of the smallest scores of each search: the median and the range over searches."""
    best = trials.pivot_table(index="search", columns="condition", values="score", aggfunc="min")
    ratios = best[conditions[0]] / best[conditions[1]]
    return f"{ratios.median():.2f} [{ratios.min():.2f}, {ratios.max():.2f}]"


def judged_level(accuracies: dict[str, pd.DataFrame], budget: float = BUDGET) -> float:
    """The largest multiple of STEP that the mean curve of no echoing reaches within two thirds of
    the budget."""
    mean = accuracies[NONE].mean()
    return math.floor(mean[mean.index <= budget * 2 / 3].max() / STEP + 1e-9) * STEP


# --- the page


def report(curves: pd.DataFrame, trials: pd.DataFrame, means: pd.DataFrame) -> str:
    """The page.

    Args:
        curves: of the runs with new seeds: settings, condition, search, fresh_examples, value.
        trials: of the search, as `scored` returns them.
        means: as for `chosen_by_means`.
    """
    settings = {OF_TRIALS: chosen(trials), OF_MEANS: chosen_by_means(trials, means)}
    accuracies = by_seed(curves[curves["settings"] == OF_MEANS])
    level = judged_level(accuracies)
    shares = [
        ", ".join(
            f"{ratio(accuracies, (name, NONE), at)} with e = {e}" for e, name in FACTORS.items()
        )
        for at in (level, level - 2 * STEP)
    ]
    text = [
        "# Logistic regression by mean curves",
        "Does echoing need fewer fresh examples if no lucky evaluation counts? Of the fresh "
        f"examples without echoing, it needs these shares at the registered accuracy, {level:.3f}: "
        f"{shares[0]}. At {level - 2 * STEP:.3f}, not registered: {shares[1]}. The registered "
        "accuracy lies on the plateau of the curves, where a first crossing still depends on "
        f"single evaluations. Settings were chosen at {CANDIDATE_LEVEL:.3f}; a setting that is the "
        "best there may not reach it.",
        "The accuracies of "
        "runs with new seeds are averaged over the seeds at the same number of fresh examples, and "
        "the mean curves are compared. [The protocol](protocol.md) says how each condition's "
        "setting is chosen: by the curve of one trial, or by the mean curves of five candidates. "
        "Made by `python -m benchmarks.mean_curves`; `--train` ran on two cores of an AMD EPYC.",
        "Ratios are those of the fresh examples at which two mean curves first reach an accuracy, "
        "with the percentile interval of a bootstrap over seeds (95%), which excludes the choice "
        "of the settings. *Tuned*, not registered: the ratio of the scores by which trials were "
        f"chosen (where the mean of {SMOOTHED} evaluations reaches {SEARCHED:g}), the median over "
        "five searches and their range, a 93.75% interval.",
    ]
    for kind in (OF_MEANS, OF_TRIALS):
        text += _section(curves, kind, trials, settings[kind])
    return "\n\n".join(text)


def _section(curves: pd.DataFrame, kind: str, trials: pd.DataFrame, settings: Settings):
    accuracies = by_seed(curves[curves["settings"] == kind])
    level = judged_level(accuracies)
    verdicts = []
    for claim, conditions in CLAIMS.items():
        own = ratio(accuracies, conditions, level)
        verdict = own.verdict if own else "undecided"
        verdicts.append([claim, str(own or "-"), verdict, tuned(trials, conditions)])
    compared = [*((name, NONE) for name in FACTORS.values()), (FACTORS[4], FACTORS[16])]
    levels = [level + STEP * k for k in range(-8, 2)]
    ratios = [
        [f"{at:.3f}", *(str(ratio(accuracies, pair, at) or "-") for pair in compared)]
        for at in levels
    ]
    fields = list(next(iter(settings.values())))
    names = {NONE: "no echoing"} | {name: f"e = {e}" for e, name in FACTORS.items()}
    chosen_settings = [
        [names[name], *(f"{settings[name][field]:.4g}" for field in fields)] for name in names
    ]
    return [
        f"## Settings chosen by {kind}",
        f"{NEW_SEEDS[kind].number} seeds; judged at an accuracy of {level:.3f}.",
        common.markdown_table(["claim", "ratio", "verdict", "tuned"], verdicts),
        "At other accuracies, not registered. Dashes are ends that are not known, and ratios to a "
        "mean curve that does not reach the accuracy within the budget.",
        common.markdown_table(
            ["accuracy", *(f"e = {e} over no echoing" for e in FACTORS), "e = 4 over e = 16"],
            ratios,
        ),
        common.markdown_table(
            ["condition", *(field.rsplit(".", 1)[1].replace("_", " ") for field in fields)],
            chosen_settings,
        ),
    ]


@style.styled
def draw(curves: pd.DataFrame) -> Figure:
    """The mean curve of each condition, at the settings chosen by mean curves."""
    accuracies = by_seed(curves[curves["settings"] == OF_MEANS])
    level = judged_level(accuracies)
    figure = Figure(figsize=(style.WIDTH, 3.2), layout="constrained")
    axes = figure.add_subplot()
    shades = {NONE: ("no echoing", "black")} | {
        name: (f"e = {e}", style.lighter(style.COLORS["before_augmentation"], shade))
        for (e, name), shade in zip(FACTORS.items(), (0.55, 0.25, 0.0), strict=True)
    }
    for name, (label, color) in shades.items():
        mean = accuracies[name].mean()
        axes.plot(mean.index, mean, color=color, lw=1.4, label=label)
    axes.axhline(level, color=style.QUIET, lw=0.8, ls=style.DOTTED)
    axes.set_ylim(0.75, None)
    axes.set_xlabel("fresh examples")
    axes.set_ylabel("accuracy, mean over seeds")
    figure.legend(loc="outside lower center", ncols=len(shades))
    return figure


def main(argv: list[str] | None = None) -> None:
    parser = common.arguments(__spec__.name, __doc__)
    parser.add_argument("--train", type=pathlib.Path, metavar="DIR", help="train in DIR first")
    options = parser.parse_args(argv)
    if options.train:
        train(options.train)
    curves = pd.read_csv(CURVES)
    page = report(curves, pd.read_csv(TRIALS), pd.read_csv(CANDIDATES))
    common.publish(page, options.out, lambda: draw(curves))


if __name__ == "__main__":
    main()
