"""Factors compared by curves averaged over seeds, which single lucky evaluations hardly move.

    python -m benchmarks.mean_curves --train=out/mean_curves --problem=digits     resumes
    python -m benchmarks.mean_curves --out=results/mean_curves.md

Problems of the grid. results/protocol.md (Logistic regression by mean curves, and Digits and MNIST
images by mean curves) fixes how each factor's hyperparameters are chosen, what is run with new
seeds, and how it is judged. --train takes half an hour to an hour for a problem and writes
results/mean_curves_PROBLEM*.csv.xz: the mean curves of the candidates and the accuracies of the
runs with new seeds; for logistic regression, also the trials of its search.
"""

# pandas has no complete type stubs.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportReturnType=false

import dataclasses
import functools
import math
import pathlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

import sweep
from analysis import archive, bounds, load
from analysis.figures import style
from benchmarks import common
from benchmarks.confirmation import plain_number
from configs import problems
from runs.progress import Progress
from runs.study import BEST_VALUE, Study
from studies.executors import PoolExecutor
from studies.plan import load_study
from studies.search import make_study

SMOOTHED = 4  # evaluations whose mean scores a trial of the search
SEARCHED = 0.87  # the accuracy that this mean has to reach
NEVER = 2.0  # an accuracy that no run reaches, so that all use the whole budget
STEP = 0.005  # of the levels
BELOW_PLATEAU = 2  # steps between the level and the accuracy that no echoing reaches
RESAMPLES, INTERVAL = 10_000, 0.95
# Of the simulation of what intervals cover: repetitions, resamples in each, and the numbers of
# evaluations over which true curves are smoothed: nobody knows how smooth they are.
SIMULATED, SIMULATED_RESAMPLES, WINDOWS = 200, 300, (1, 3, 5, 9)
RESULTS = pathlib.Path(__file__).parents[1] / "results"
RECORDS = RESULTS / archive.TRIALS
_CANDIDATE = "_search_"  # between a condition and its candidate's search

NONE, FACTORS = 1, (2, 4, 16)
# Claims: the factor that needs fewer fresh examples, and than which.
CLAIMS = {
    "e = 2 needs fewer than no echoing": (2, NONE),
    "e = 16 needs fewer than no echoing": (16, NONE),
    "e = 4 needs fewer than e = 16": (4, 16),
}
COMPARED = {
    **{f"e = {e} over no echoing": (e, NONE) for e in FACTORS},
    "e = 4 over e = 16": (4, 16),
}
LABELS = {NONE: "no echoing"} | {e: f"e = {e}" for e in FACTORS}


@dataclasses.dataclass(frozen=True)
class Seeds:
    """New seeds: run k has data seed `data` + k and model seed `model` + 10,000 k."""

    data: int
    model: int
    number: int


# By how the settings were chosen: in one trial each, or by the mean curves of candidates.
OF_TRIALS, OF_MEANS = "one trial", "mean curves"


@dataclasses.dataclass(frozen=True)
class Design:
    """What is run on a problem.

    Attributes:
        problem: of configs/problems.py.
        title: its name in pages.
        candidates: seeds of the candidates.
        new_seeds: seeds of the four conditions, by how their settings were chosen.
        evaluations: of a run over the whole budget.
        shares: of the budget, by factor; 1 where it is missing.
        candidate_level: the value of the metric at which candidates are compared; None for
            `common_level`, at which the new runs are then judged, too.
        metric: of the target, between 0 and 1.
    """

    problem: str
    title: str
    candidates: Seeds
    new_seeds: dict[str, Seeds]
    evaluations: int
    shares: dict[int, float] = dataclasses.field(default_factory=dict)
    candidate_level: float | None = None
    metric: str = "accuracy"

    @property
    def budget(self) -> int:
        return problems.PROBLEMS[self.problem].fields["budget.fresh_examples"]

    @property
    def conditions(self) -> dict[int, str]:
        """Names by factor."""
        size = problems.PROBLEMS[self.problem].batch_sizes[0]
        echoing = {e: f"before_augmentation_e{e}_b{size}" for e in FACTORS}
        return {NONE: f"baseline_b{size}"} | echoing

    def file(self, content: str = "") -> pathlib.Path:
        """Of stored curves, or of `content`: "trials" of a search, "candidates"."""
        return RESULTS / f"mean_curves_{self.problem}{content and '_'}{content}.csv.xz"


_SHARES = {2: 0.75, 4: 0.5, 16: 0.25}
DESIGNS = {
    design.problem: design
    for design in (
        Design(
            "logistic",
            "Logistic regression",
            Seeds(31_000, 50_000_000, 16),
            {
                OF_MEANS: Seeds(32_000, 60_000_000, 64),
                OF_TRIALS: Seeds(30_000, 40_000_000, 64),
            },
            evaluations=128,
            candidate_level=0.865,
        ),
        Design(
            "digits",
            "Digits",
            Seeds(31_000, 50_000_000, 8),
            {OF_MEANS: Seeds(32_000, 60_000_000, 32)},
            evaluations=64,
            shares=_SHARES,
        ),
        Design(
            "mnist",
            "MNIST images",
            Seeds(31_000, 50_000_000, 8),
            {OF_MEANS: Seeds(32_000, 60_000_000, 21)},
            evaluations=64,
            shares=_SHARES,
        ),
        Design(
            "cells",
            "Blood cells",
            Seeds(31_000, 50_000_000, 8),
            {OF_MEANS: Seeds(32_000, 60_000_000, 21)},
            evaluations=64,
            shares=_SHARES,
            metric="AP50",
        ),
    )
}


# --- training


def search() -> Study:
    """The study `common_cadence` of logistic regression, each trial of which uses the whole
    budget."""
    config = problems.get_config("logistic")
    config.target.value = NEVER
    study = load_study(config, problems, "configs/problems.py:logistic", "common_cadence")
    return dataclasses.replace(study, name="mean_curves", score=BEST_VALUE)


def searched(problem: str) -> pd.DataFrame:
    """The trials that candidates are chosen from: those of `search` for logistic regression, else
    those of the packed study `common_cadence`, scored by the fresh examples to its target.

    Returns: condition, search, trial, hyperparameters, `score`, and `smoothed`, by which trials
        with the same score are ordered; see `scored`.
    """
    if problem == "logistic":
        own = archive.rows(RECORDS, "mean_curves/logistic/search")
        score = own["fresh_examples_to_target"].astype(float).fillna(math.inf)
        fields = [name for name in own if "." in name]
        own = own[["condition", "search", "trial", *fields, "best_value"]]
        return own.rename(columns={"best_value": "smoothed"}).assign(score=score)
    loaded = load.read(RECORDS, study=f"grid/{problems.COMMON_CADENCE}{problem}")
    trials = loaded.trials[loaded.trials["counted"]]
    fields = [axis.field for axis in loaded.study.space]
    return trials[["condition", "search", "trial", *fields]].assign(
        score=trials["fresh_examples_to_target"].astype(float).fillna(math.inf),
        smoothed=trials["best_value"],
    )


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


def common_level(means: pd.DataFrame, budget: float) -> float:
    """BELOW_PLATEAU steps below the largest multiple of STEP that a candidate of no echoing reaches
    with its mean curve within two thirds of the budget.

    Args:
        means: as for `chosen_by_means`.
        budget: fresh examples.
    """
    own = means[means["condition"].str.startswith("baseline")]
    best = own.loc[own["fresh_examples"] <= budget * 2 / 3, "value"].max()
    return (math.floor(best / STEP + 1e-9) - BELOW_PLATEAU) * STEP


def chosen_by_means(trials: pd.DataFrame, means: pd.DataFrame, level: float) -> Settings:
    """By condition, the candidate whose mean curve first reaches a level; if none does, the one
    with the best mean accuracy at the end.

    Args:
        trials: as `searched` returns them.
        means: the candidates' mean curves: condition (of `candidates`), fresh_examples, value.
        level: of the accuracy.
    """
    ranks = []
    for name, own in means.groupby("condition"):
        fresh, values = own["fresh_examples"].to_numpy(float), own["value"].to_numpy()
        reached = reaches(fresh, values[None], level)[0]
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


def runs(design: Design, name: str, settings: Settings, seeds: Seeds) -> Study:
    """Runs at settings of conditions or candidates: search k has the k-th of the seeds."""
    config = problems.get_config(design.problem)
    config.target.value = NEVER
    config.seed.data, config.seed.model = seeds.data, seeds.model
    every = {"evaluate_every_fresh_examples": design.budget // design.evaluations}
    conditions = problems.get_studies(design.problem)["common_cadence"]["conditions"]
    overrides = {}
    for e, condition in design.conditions.items():
        fields, shortened = conditions[condition], {}
        if e in design.shares:
            shortened = {"budget.fresh_examples": int(design.budget * design.shares[e])}
        for own, setting in settings.items():
            if own.partition(_CANDIDATE)[0] == condition:
                overrides[own] = fields | setting | every | shortened
    return make_study(
        name,
        config,
        overrides,
        (),
        trials=1,
        searches=seeds.number,
        baseline=min(own for own in settings if own.startswith(design.conditions[NONE])),
        score=BEST_VALUE,
        config_flag=f"configs/problems.py:{design.problem}",
    )


def train(design: Design, root: pathlib.Path) -> None:
    """Runs the studies of a problem below `root`, or resumes them, and writes their results."""
    if design.problem == "logistic":
        _run(search(), root / "search", lanes=16)
        scored(load.read(root / "search")).to_csv(design.file("trials"), index=False)
    trials = searched(design.problem)
    tried = runs(design, "mean_curves_candidates", candidates(trials), design.candidates)
    curves = by_seed(_run(tried, root / "candidates"), design.candidates.number)
    means = {name: table.mean() for name, table in curves.items()}
    pd.concat(means, names=["condition"]).rename("value").to_csv(design.file("candidates"))
    accuracies = {}
    for kind, settings in chosen_settings(design).items():
        name = {OF_MEANS: "mean_curves_of_candidates", OF_TRIALS: "mean_curves_new_seeds"}[kind]
        seeds = design.new_seeds[kind]
        study = runs(design, name, settings, seeds)
        for condition, table in by_seed(_run(study, root / name), seeds.number).items():
            accuracies[kind, condition] = table.T
    names = ["settings", "condition"]
    pd.concat(accuracies, names=names).to_csv(design.file())


def candidate_means(design: Design) -> pd.DataFrame:
    """The mean curves of the candidates: condition (of `candidates`), fresh_examples, value."""
    table = archive.curves(RECORDS, f"mean_curves/{design.problem}/candidates")
    names = table["condition"] + _CANDIDATE + table["search"].astype(str)
    return table[["fresh_examples", "value"]].assign(condition=names)


def chosen_settings(design: Design) -> dict[str, Settings]:
    """The settings of the four conditions, by how they were chosen."""
    trials, means = searched(design.problem), candidate_means(design)
    level = design.candidate_level or common_level(means, design.budget)
    by_kind = {OF_MEANS: chosen_by_means(trials, means, level), OF_TRIALS: chosen(trials)}
    return {kind: by_kind[kind] for kind in design.new_seeds}


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


def by_seed(curves: pd.DataFrame, seeds: int) -> dict[str, pd.DataFrame]:
    """By condition, the accuracies: a row per seed, a column per number of fresh examples. A run
    that diverged has an accuracy of 0 from there on. Pending copies follow the last fresh example,
    so that it may have two evaluations; the last one counts."""
    key = ["search", "fresh_examples"]
    return {
        condition: own.groupby(key)["value"].last().unstack().reindex(range(seeds)).fillna(0.0)
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
    not reach the level needs more fresh examples than its runs had.

    Attributes:
        value: inf if the condition does not reach the level.
        least: the value, or what it exceeds.
        low, high: the interval; 0 or inf at an end that is not known.
    """

    value: float
    least: float
    low: float
    high: float

    @property
    def verdict(self) -> str:
        """By the ends as they are printed: the resamples that were drawn move an end by about
        0.005."""
        if round(self.high, 2) < 1:
            return "reproduced"
        return "not reproduced" if round(self.low, 2) > 1 else "undecided"

    def __str__(self) -> str:
        value = f"{self.value:.2f}" if math.isfinite(self.value) else f">{self.least:.2f}"
        low = f"{self.low:.2f}" if self.low > 0 else "-"
        high = f"{self.high:.2f}" if math.isfinite(self.high) else "-"
        return f"{value} [{low}, {high}]"


Curves = tuple[np.ndarray, np.ndarray]  # fresh examples [evaluations], means [curves, evaluations]


def resampled(accuracies: dict[int, pd.DataFrame]) -> dict[int, Curves]:
    """By factor, the mean curve, and those of a bootstrap over seeds, which the factors share."""
    rng = np.random.default_rng(0)
    seeds = len(next(iter(accuracies.values())))
    drawn = rng.integers(seeds, size=(RESAMPLES, seeds))
    counts = np.stack([np.bincount(row, minlength=seeds) for row in drawn])
    return {
        e: (table.columns.to_numpy(float), _means(counts, table.to_numpy()))
        for e, table in accuracies.items()
    }


def _means(counts: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The mean over the rows of `values` [seeds, evaluations], then those in which row k counts
    `counts[i, k]` times, [1 + resamples, evaluations]."""
    seeds = len(values)
    return np.concatenate([np.full((1, seeds), 1 / seeds), counts / seeds]) @ values


def ratio(curves: dict[int, Curves], factors: tuple[int, int], level: float) -> Ratio | None:
    """The ratio at a level, with the percentile interval of `resampled` curves; None where the
    other factor's mean curve does not reach the level."""
    own, base = (reaches(*curves[e], level) for e in factors)
    if math.isinf(base[0]):
        return None
    own_end, base_end = (curves[e][0][-1] for e in factors)
    least = np.minimum(own, own_end) / base
    most = np.where(np.isfinite(own), own, math.inf) / np.minimum(base, base_end)
    tail = (1 - INTERVAL) / 2
    low = np.quantile(least[1:], tail, method="nearest")
    high = np.quantile(most[1:], 1 - tail, method="nearest")
    return Ratio(most[0], least[0], low, high)


class Coverage(NamedTuple):
    """Of intervals, by simulation: the share that covers the true ratio, the true ratio, and the
    share of the intervals that lie above it; NaN if a true curve does not reach the level."""

    share: float
    true: float
    above: float


def smoothed(values: np.ndarray, window: int) -> np.ndarray:
    """Moving averages over an odd number of values, over fewer on both sides near the ends."""
    last = len(values) - 1
    halves = [min(i, last - i, window // 2) for i in range(len(values))]
    return np.array([values[i - half : i + half + 1].mean() for i, half in enumerate(halves)])


def coverage(accuracies: dict[int, pd.DataFrame], level: float, window: int) -> dict[str, Coverage]:
    """How often the intervals of COMPARED cover, by simulation. The true curves are the mean curves
    smoothed over `window` evaluations. A simulated run adds to its true curve the deviation of a
    stored run, of the same seed for all factors, from the mean curve that is not smoothed.

    Args:
        accuracies: by factor, as `by_seed` returns them.
        level: of the accuracy.
        window: an odd number.

    Returns: by the names of COMPARED.
    """
    rng = np.random.default_rng(0)
    seeds = len(next(iter(accuracies.values())))
    true, simulated = {}, {}
    for e, table in accuracies.items():
        mean, fresh = table.mean(), table.columns.to_numpy(float)
        smooth = smoothed(mean.to_numpy(), window)
        true[e] = reaches(fresh, smooth[None], level)[0]
        noise = (table - mean) * math.sqrt(seeds / (seeds - 1))
        simulated[e] = fresh, noise.to_numpy() + smooth
    ratios: dict[str, list[Ratio | None]] = {name: [] for name in COMPARED}
    for _ in range(SIMULATED):
        drawn = rng.integers(seeds, size=seeds)
        counts = rng.multinomial(seeds, np.full(seeds, 1 / seeds), SIMULATED_RESAMPLES)
        curves = {e: (fresh, _means(counts, runs[drawn])) for e, (fresh, runs) in simulated.items()}
        for name, pair in COMPARED.items():
            ratios[name].append(ratio(curves, pair, level))
    found = {}
    for name, (own, base) in COMPARED.items():
        if not np.isfinite([true[own], true[base]]).all():
            found[name] = Coverage(math.nan, math.nan, math.nan)
            continue
        quotient = true[own] / true[base]
        slack = 1e-9 * quotient
        known = [r for r in ratios[name] if r]  # without a ratio nothing is claimed
        above = sum(r.low > quotient + slack for r in known) / SIMULATED
        below = sum(r.high < quotient - slack for r in known) / SIMULATED
        found[name] = Coverage(1 - above - below, quotient, above)
    return found


def tuned(trials: pd.DataFrame, condition: str, other: str, budget: float) -> str:
    """The ratio of the smallest scores of each search: the median and the range over searches. A
    search without a score needs more than the budget."""
    best: Any = trials.groupby(["condition", "search"])["score"].min()
    own, base = (best[name].to_numpy() for name in (condition, other))
    ratios = bounds.ratio((np.minimum(own, budget), own), (np.minimum(base, budget), base))
    summary, number = bounds.summary(*ratios), "{:.2f}".format
    middle = bounds.text(summary.low, summary.high, number)
    return f"{middle} [{bounds.range_text(summary, number)}]"


def judged_level(accuracies: dict[int, pd.DataFrame], budget: float) -> float:
    """The largest multiple of STEP that the mean curve of no echoing reaches within two thirds of
    the budget."""
    mean = accuracies[NONE].mean()
    return math.floor(mean[mean.index <= budget * 2 / 3].max() / STEP + 1e-9) * STEP


@dataclasses.dataclass(frozen=True)
class Measured:
    """What was run on a problem with settings chosen in one way.

    Attributes:
        design, kind: the problem and how the settings were chosen.
        accuracies: by factor, as `by_seed` returns them.
        level: at which it is judged.
    """

    design: Design
    kind: str
    accuracies: dict[int, pd.DataFrame]
    level: float

    def ratio(self, factors: tuple[int, int], level: float) -> Ratio | None:
        """The ratio at a level."""
        return ratio(self._curves, factors, level)

    @functools.cached_property
    def _curves(self) -> dict[int, Curves]:
        return resampled(self.accuracies)


def read(design: Design, kind: str = OF_MEANS) -> Measured:
    """The stored runs with new seeds."""
    suffix = "/one_trial" if kind == OF_TRIALS else ""
    table = archive.curves(RECORDS, f"mean_curves/{design.problem}{suffix}")
    accuracies = {
        e: table[table["condition"] == name]
        .pivot(index="search", columns="fresh_examples", values="value")
        .dropna(axis="rows")
        for e, name in design.conditions.items()
    }
    if design.candidate_level:
        level = judged_level(accuracies, design.budget)
    else:
        level = common_level(candidate_means(design), design.budget)
    return Measured(design, kind, accuracies, level)


# --- the page


def report() -> str:
    """The page, from the stored curves."""
    summary, covers = [], []
    for design in DESIGNS.values():
        measured = read(design)
        below = BELOW_PLATEAU if design.candidate_level else 0
        for steps in sorted({0, -below}):
            kind = ", not registered" if steps else ""
            level = measured.level + steps * STEP
            ratios = [str(measured.ratio(factors, level) or "-") for factors in COMPARED.values()]
            place = [design.title, f"{design.metric} {level:.3f}{kind}"]
            summary.append([*place, *ratios])
            covers.append([*place, *_covers(measured.accuracies, level)])
    text = [
        "# Fresh examples by curves averaged over seeds",
        "Does echoing need fewer fresh examples if no lucky evaluation counts? Ratios of the fresh "
        "examples at which two mean curves first reach a value, with the percentile interval of a "
        "bootstrap over seeds (95%):",
        common.markdown_table(["problem", "at", *COMPARED], summary),
        "Each curve is the mean over runs with new seeds at the same number of fresh examples. "
        "[The protocol](protocol.md) says how each factor's setting is chosen (by the curve of one "
        "trial, or by the mean curves of five candidates) and at which value it is judged. Where "
        "the mean curve without echoing still rises smoothly there, as on digits and cells, it "
        "crosses the value only once, and luck hardly matters. Not so at the registered accuracy "
        "of logistic regression, which lies on the plateau of the curves; its settings were chosen "
        "at 0.865, and a setting that is the best there may not reach 0.875. Nor on MNIST images, "
        "whose curve without echoing scatters as it rises to the end of the budget (figure). "
        "There, a first crossing still depends on single evaluations, and some intervals cover "
        "less than they say ([below](#what-the-intervals-cover)). No interval includes the choice "
        "of the settings: on logistic regression, that of no echoing alone moves the ratio of "
        f"e = 16 at 0.865 from {_moved()} (below). An end that rounds to 1.00 decides nothing, "
        "since it depends on the resamples that were drawn. "
        "Made by `python -m benchmarks.mean_curves`; `--train` ran on two cores of an AMD EPYC.",
        "*Tuned*, not registered: the ratio of the scores by which trials were chosen, the median "
        "over five searches and their range, a 93.75% interval. The scores are the fresh examples "
        "to the target at a common cadence, and, for logistic regression, those at which the mean "
        f"of {SMOOTHED} evaluations reaches {SEARCHED:g}.",
    ]
    everything = [
        read(design, kind)
        for kind in (OF_MEANS, OF_TRIALS)
        for design in DESIGNS.values()
        if kind in design.new_seeds
    ]
    text += [part for own in everything for part in _section(own)]
    windows = ", ".join(map(str, WINDOWS[1:]))
    text += [
        f"![{text[0].removeprefix('# ')}](mean_curves.png)",
        "## What the intervals cover",
        "How often an interval covers the true ratio, by simulation. It should be 95% of the time. "
        "The true curves are the mean curves above, and these smoothed over "
        f"{windows} evaluations, since nobody knows how smooth true curves are: the table has the "
        f"smallest and the largest share over these {len(WINDOWS)}, and in parentheses the true "
        "ratios. An arrow says on which side of the true ratio most intervals lie that miss it, "
        f"where a share is below 90%: ↑ above, ↓ below. {SIMULATED} times, as many runs as there "
        "are add to the true curves the deviations of stored runs, drawn with their seeds, from "
        f"the mean, and get an interval with {SIMULATED_RESAMPLES} resamples (standard error 1.5 "
        "points at 95%, and 3 at 75%). A dash is a ratio to or of a true curve that does not reach "
        "the value.",
        common.markdown_table(["problem", "at", *COMPARED], covers),
        "Means over the runs scatter around the true curve, and so reach a value earlier, the more "
        "the flatter it is. That moves a ratio up or down, by which of its two curves is flatter.",
    ]
    return "\n\n".join(text)


def _covers(accuracies: dict[int, pd.DataFrame], level: float) -> list[str]:
    """The table cells of `coverage` with all WINDOWS."""
    by_window = [coverage(accuracies, level, window) for window in WINDOWS]
    cells = []
    for name in COMPARED:
        known = [own[name] for own in by_window if not math.isnan(own[name].share)]
        if not known:
            cells.append("-")
            continue
        worst, arrow = min(known), ""
        if worst.share < 0.9:
            arrow = "↑" if worst.above > (1 - worst.share) / 2 else "↓"
        shares, ratios, _ = zip(*known, strict=True)
        cells.append(f"{_ends(shares, '.0%')}{arrow} ({_ends(ratios, '.2f')})")
    return cells


def _ends(values: Sequence[float], form: str) -> str:
    """The smallest and the largest value, or one of them if both are printed alike."""
    return " to ".join(dict.fromkeys(format(end, form) for end in (min(values), max(values))))


def _moved() -> str:
    """By how much the choice of settings moves a ratio of logistic regression."""
    design = DESIGNS["logistic"]
    ratios = [read(design, kind).ratio((16, NONE), 0.865) for kind in (OF_TRIALS, OF_MEANS)]
    return " to ".join(f"{own.value:.2f}" for own in ratios if own)


def _section(measured: Measured) -> list[str]:
    design = measured.design
    trials = searched(design.problem)
    verdicts = []
    for claim, factors in CLAIMS.items():
        own = measured.ratio(factors, measured.level)
        pair = [design.conditions[e] for e in factors]
        verdict = own.verdict if own else "undecided"
        verdicts.append([claim, str(own or "-"), verdict, tuned(trials, *pair, design.budget)])
    target = problems.PROBLEMS[design.problem].fields["target.value"]
    levels = [measured.level + STEP * k for k in range(-8, 2 if design.candidate_level else 4)]
    levels += [coarse / 20 for coarse in range(20) if levels[-1] < coarse / 20 < target]
    levels += [target] if levels[-1] < target else []
    ratios = [
        [
            f"{level:.3f}",
            *(str(measured.ratio(factors, level) or "-") for factors in COMPARED.values()),
        ]
        for level in levels
    ]
    settings = chosen_settings(design)[measured.kind]
    fields = list(next(iter(settings.values())))
    rows = []
    for e, name in design.conditions.items():
        runs = measured.accuracies[e].max(axis=1)
        reached = f"{(runs >= target).sum()} of {len(runs)}"
        rows.append([LABELS[e], *(f"{settings[name][field]:.4g}" for field in fields), reached])
    return [
        f"## {design.title}, settings chosen by {measured.kind}",
        f"{design.new_seeds[measured.kind].number} seeds; judged at an {design.metric} of "
        f"{measured.level:.3f}.",
        common.markdown_table(["claim", "ratio", "verdict", "tuned"], verdicts),
        "At others, not registered. Dashes are ends that are not known, and ratios to a mean curve "
        f"that does not reach the {design.metric}.",
        common.markdown_table([design.metric, *COMPARED], ratios),
        common.markdown_table(
            [
                "condition",
                *(field.rsplit(".", 1)[1].replace("_", " ") for field in fields),
                f"runs that reach the grid's target, {target:g}",
            ],
            rows,
        ),
    ]


@style.styled
def draw() -> Figure:
    """The mean curve of each factor on each problem, at the settings chosen by mean curves."""
    figure = Figure(figsize=(style.WIDTH, 4.8), layout="constrained")
    shades = {NONE: "black"} | {
        e: style.lighter(style.COLORS["before_augmentation"], shade)
        for e, shade in zip(FACTORS, (0.55, 0.25, 0.0), strict=True)
    }
    panels = figure.subplots(2, 2).flat
    for axes, design in zip(panels, DESIGNS.values(), strict=True):
        measured = read(design)
        for e, color in shades.items():
            mean = measured.accuracies[e].mean()
            axes.plot(mean.index, mean, color=color, lw=1.4)
        axes.axhline(measured.level, color=style.QUIET, lw=0.8, ls=style.DOTTED)
        axes.set_ylim(measured.level - 0.1, None)
        axes.set_title(design.title)
        axes.set_xlabel("fresh examples")
        axes.set_ylabel(f"{design.metric}, mean")
        style.format_ticks(axes.xaxis, "fresh_examples")
    lines = [Line2D([], [], color=color, label=LABELS[e]) for e, color in shades.items()]
    figure.legend(handles=lines, loc="outside lower center", ncols=len(shades))
    return figure


def main(argv: list[str] | None = None) -> None:
    parser = common.arguments(__spec__.name, __doc__)
    parser.add_argument("--train", type=pathlib.Path, metavar="DIR", help="train in DIR first")
    parser.add_argument(
        "--problem", choices=DESIGNS, default="logistic", help="what to train (default logistic)"
    )
    options = parser.parse_args(argv)
    if options.train:
        train(DESIGNS[options.problem], options.train)
        return
    common.publish(report(), options.out, draw)


if __name__ == "__main__":
    common.command(main)
