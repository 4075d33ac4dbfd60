"""Measures by simulation how often the intervals in reports cover the truth.

    python -m benchmarks.coverage --out=results/coverage.md      writes the page's table; minutes
    python -m benchmarks.coverage --studies=50                   prints it; seconds

The protocol is the real one: the quasi-random points of studies/search.py, N trials that do not
diverge out of at most 2N, the first evaluation at the target or past it, a budget that censors, and
the best trial of each search. The condition is evaluated as often as the baseline, or `divisor`
times as often, as on the grid. Only training is replaced, by a response surface: the logarithm of a
trial's cost is quadratic in the logarithm of its effective learning rate, lr / (1 - momentum), plus
normal noise, plus an effect of its search. Above some effective learning rate trials diverge. The
other condition costs `ratio` times as much, which is the truth that intervals are compared with.
"""

import dataclasses
import functools
import math
import pathlib
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from analysis import bounds, uncertainty
from benchmarks import common
from configs import cifar10
from runs.study import MAX_TRIALS_FACTOR
from studies.search import point, resolved_axis

BASE, CADENCE = 5000.0, 400.0  # fresh examples: cost of the best trial, and evaluation interval
GRID_CADENCE = 125.0  # the resolution of the studies in results/grid: 2.5% of the cost
BEST_RATE, DIVERGES = 0.4, 1.0  # log10 of the effective learning rate
CURVATURE = 0.25  # of the log cost, per squared decade from the best rate
LARGE = 20_000  # searches per condition from which the truth is computed
STUDIES, POOL = 2000, 200  # in each setting, and searches that theirs are drawn from


@dataclasses.dataclass(frozen=True)
class Setting:
    """The parameters of simulated studies.

    Attributes:
        ratio: cost of the condition / cost of the baseline.
        noise: standard deviation of a trial's log cost.
        between: standard deviation of a search's effect on the log cost of its trials, equal in
            both conditions.
        apart: standard deviation of a search's effect on the log ratio of its trials.
        shift: decades by which the condition's best learning rate is below the baseline's.
        harder: cost at the other batch size / cost at this one (`of_ratios`), of both conditions.
        searches, trials: per condition.
        censored: share of the baseline's searches (of its trials if `by_trial`) that the budget
            censors.
        by_trial: see `censored`.
        cadence: fresh examples between the baseline's evaluations.
        divisor: how many times as often the condition is evaluated; the echo factor in studies.
    """

    ratio: float = 0.6
    noise: float = 0.2
    between: float = 0.0
    apart: float = 0.0
    shift: float = 0.0
    harder: float = 1.0
    searches: int = 5
    trials: int = 16
    censored: float = 0.0
    by_trial: bool = False
    cadence: float = CADENCE
    divisor: float = 1.0

    @property
    def cadences(self) -> np.ndarray:
        """Fresh examples between evaluations: [2 (baseline, condition), 1, 1]."""
        return np.array([self.cadence, self.cadence / self.divisor]).reshape(2, 1, 1)

    def text(self) -> str:
        parts = [f"ratio {self.ratio:g}", f"noise {self.noise:g}"]
        parts += [f"{self.censored:.0%} censored"] if self.censored else []
        parts += [f"between searches {self.between:g}"] if self.between else []
        parts += [f"ratio differs by search {self.apart:g}"] if self.apart else []
        parts += [f"optimum {self.shift:g} decades apart"] if self.shift else []
        parts += [f"other batch size {self.harder:g} times harder"] if self.harder != 1 else []
        parts += [f"evaluations every {self.cadence:g}"] if self.cadence != CADENCE else []
        parts += [f"the condition's every {self.cadence / self.divisor:g}"] * (self.divisor != 1)
        return ", ".join(parts)


@dataclasses.dataclass(frozen=True)
class Row:
    """How often an interval covered the truth; `claimed` if the project says that it does. Numbers
    are NaN where no study had an interval."""

    interval: str
    nominal: float
    covered: float
    bounded: float
    width: float
    claimed: bool = True


@functools.cache
def rates(searches: int, trials: int) -> np.ndarray:
    """log10 of the effective learning rate at the points of searches: [searches, 2 * trials]."""
    config = cifar10.get_config("mini")
    space = [resolved_axis(axis, config) for axis in cifar10.get_search_space("mini")]
    points = [
        [point(space, search, trial) for trial in range(MAX_TRIALS_FACTOR * trials)]
        for search in range(searches)
    ]
    effective = [
        [p["optimizer.learning_rate"] / (1 - p["optimizer.momentum"]) for p in row]
        for row in points
    ]
    return np.log10(effective)


def costs(
    rng: np.random.Generator,
    setting: Setting,
    studies: int,
    pool: int,
    chosen: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(cost, counted, expected), each [studies, 2 (baseline, condition), searches, 2 * trials]:
    the cost of each trial, whether it counts, and its cost without the trial's own noise. `chosen`
    is the searches of the pool, [studies, searches]; by default they are drawn."""
    drawn = rates(pool, setting.trials)
    chosen = _searches(rng, setting, studies, pool) if chosen is None else chosen
    rate = np.stack([drawn[chosen], drawn[chosen] + setting.shift], axis=1)
    log = math.log(BASE) + CURVATURE * (rate - BEST_RATE) ** 2
    search_shape = (studies, 1, setting.searches, 1)
    log = log + rng.normal(0, setting.between, search_shape)
    effect = math.log(setting.ratio) + rng.normal(0, setting.apart, search_shape)
    log = log + np.concatenate([np.zeros(search_shape), effect], axis=1)
    stable = rate < DIVERGES
    noise = rng.normal(0, setting.noise, log.shape)
    return np.exp(log + noise), stable & (stable.cumsum(-1) <= setting.trials), np.exp(log)


def _searches(rng: np.random.Generator, setting: Setting, studies: int, pool: int) -> np.ndarray:
    return np.argsort(rng.random((studies, pool)), axis=1)[:, : setting.searches]


def scored(cost: np.ndarray, cadence: np.ndarray | float) -> np.ndarray:
    """The first evaluation at or after a trial's cost."""
    return np.ceil(cost / cadence) * cadence


def best(cost: np.ndarray, counted: np.ndarray, cadence: np.ndarray | float) -> np.ndarray:
    """The score of each search [..., searches], without a budget."""
    return np.where(counted, scored(cost, cadence), np.inf).min(-1)


def budget(rng: np.random.Generator, setting: Setting, pool: int) -> float:
    """The budget that censors the setting's share of the baseline."""
    if not setting.censored:
        return math.inf
    cost, counted, _ = costs(rng, dataclasses.replace(setting, searches=1), 4000, pool)
    of = (
        scored(cost, setting.cadences)[:, 0][counted[:, 0]]
        if setting.by_trial
        else (best(cost, counted, setting.cadences)[:, 0])
    )
    return float(np.quantile(of, 1 - setting.censored, method="lower"))


def ends(
    score: np.ndarray, end: float, before: np.ndarray | float = 0.0
) -> tuple[np.ndarray, np.ndarray]:
    """(low, high) bounds of scores under a budget `end`; `before` is the evaluation interval."""
    reached = score <= end
    return np.where(reached, score - before, end), np.where(reached, score, np.inf)


def tuned_ratios(rng: np.random.Generator, setting: Setting, pool: int) -> np.ndarray:
    """The ratios of two searches' scores at evaluations, without a budget: [LARGE]."""
    cost, counted, _ = costs(rng, dataclasses.replace(setting, searches=1), LARGE, pool)
    score = best(cost, counted, setting.cadences)[..., 0]
    return score[:, 1] / score[:, 0]


def by_search(rng: np.random.Generator, setting: Setting, studies: int, pool: int) -> Row:
    """The smallest and the largest ratio over searches."""
    truth = float(np.median(tuned_ratios(rng, setting, pool)))
    end = budget(rng, setting, pool)
    cost, counted, _ = costs(rng, setting, studies, pool)
    low, high = ends(best(cost, counted, setting.cadences), end)
    lows, highs = bounds.ratio((low[:, 1], high[:, 1]), (low[:, 0], high[:, 0]))
    summaries = [bounds.summary(*study) for study in zip(lows, highs, strict=True)]
    name = f"ratio by search, [min, max] of {setting.searches}"
    level = bounds.level(setting.searches)
    return _row(name, level, truth, [(summary.min, summary.max) for summary in summaries])


def by_trial(rng: np.random.Generator, setting: Setting, studies: int, pool: int) -> Row:
    """The sign test's interval with matched seeds, of the studies that have enough pairs. The truth
    is the median of the ratios over all trials, also those that are censored."""
    end = budget(rng, setting, pool)
    cost, counted, expected = costs(rng, setting, studies, pool)
    truth = setting.ratio
    both = counted[:, 0] & counted[:, 1]
    if setting.shift:
        truth = float(np.median((expected[:, 1] / expected[:, 0])[both]))
    low, high = ends(scored(cost, setting.cadences), end, setting.cadences)
    intervals = []
    for k, pairs in enumerate(both):
        own, base = ((low[k, side][pairs], high[k, side][pairs]) for side in (1, 0))
        if np.isfinite(np.minimum(own[1], base[1])).sum() >= uncertainty.MIN_PAIRS:
            intervals.append(uncertainty.sign_interval(*bounds.ratio(own, base))[:2])
    name = f"matched seeds, {setting.searches * setting.trials} pairs"
    claimed = not setting.apart and not (setting.shift and setting.censored)
    return _row(name, uncertainty.PAIRED_LEVEL, truth, intervals, claimed)


def of_ratios(rng: np.random.Generator, setting: Setting, studies: int, pool: int) -> Row:
    """`uncertainty.ratio_of_ratios`: the ratio of the condition to the baseline at another batch
    size, over that at this one, for the same trials. Both are equal, so it is 1."""
    end = budget(rng, setting, pool)
    chosen = _searches(rng, setting, studies, pool)
    sides, four = [], np.ones((), bool)
    for level in (setting.harder, 1.0):
        cost, counted, _ = costs(rng, setting, studies, pool, chosen)
        sides.append(ends(scored(level * cost, setting.cadences), end, setting.cadences))
        four = four & counted[:, 0] & counted[:, 1]
    intervals = []
    for k, trials in enumerate(four):
        own, base = (
            bounds.ratio(*((low[k, i][trials], high[k, i][trials]) for i in (1, 0)))
            for low, high in sides
        )
        fewest = min(((low > 0) | np.isfinite(high)).sum() for low, high in (own, base))
        if fewest >= uncertainty.MIN_PAIRS:
            intervals.append(uncertainty.ratio_of_ratios(own, base)[:2])
    name = f"ratio of ratios, {setting.searches * setting.trials} trials"
    return _row(name, uncertainty.PAIRED_LEVEL, 1.0, intervals)


def of_tuned_ratios(rng: np.random.Generator, setting: Setting, studies: int, pool: int) -> Row:
    """The smallest and the largest quotient over searches of the ratios of `of_ratios`, tuned."""
    end = budget(rng, setting, pool)
    chosen = _searches(rng, setting, studies, pool)
    sides = []
    for level in (setting.harder, 1.0):
        cost, counted, _ = costs(rng, setting, studies, pool, chosen)
        low, high = ends(best(level * cost, counted, setting.cadences), end)
        sides.append(bounds.ratio(*((low[:, i], high[:, i]) for i in (1, 0))))
    lows, highs = bounds.ratio(*sides)
    name = f"ratio of tuned ratios, [min, max] of {setting.searches}"
    intervals = list(zip(lows.min(axis=1), highs.max(axis=1), strict=True))
    return _row(name, bounds.level(setting.searches), 1.0, intervals)


def _row(name: str, nominal: float, truth: float, intervals: Sequence, claimed: bool = True) -> Row:
    if not len(intervals):
        return Row(name, nominal, math.nan, math.nan, math.nan, claimed)
    low, high = np.array(intervals).T
    slack = 1e-9 * truth  # ratios of multiples of the cadence, rounded
    known = (low > 0) & np.isfinite(high)
    width = float(np.median(high[known] / low[known])) if known.any() else math.nan
    covered = (low <= truth + slack) & (truth - slack <= high)
    return Row(name, nominal, float(covered.mean()), float(known.mean()), width, claimed)


Simulation = Callable[[np.random.Generator, Setting, int, int], Row]


def all_simulations() -> list[tuple[Simulation, Setting]]:
    """The simulations of the page's table."""
    searches = [
        {"noise": noise, "censored": share} for noise in (0.05, 0.2, 0.4) for share in (0, 0.2, 0.5)
    ]
    searches += [{"cadence": CADENCE / 40}, {"divisor": 2}, {"divisor": 2, "noise": 0.05}]
    searches += [{"ratio": 0.25}, {"between": 0.2}, {"apart": 0.2}, {"shift": 0.5}]
    searches += [{"searches": 7}, {"searches": 3}]
    pairs = [
        {"searches": number, "trials": trials, "noise": noise, "censored": share}
        for number, trials in ((1, 10), (2, 10), (4, 16))
        for share in (0.0, 0.25, 0.5)
        for noise in (0.05, 0.4)
    ]
    four = {"searches": 4}
    others = ({"ratio": 1.0}, {"ratio": 0.25}, {"ratio": 0.25, "cadence": CADENCE / 40})
    others += ({"between": 0.2, "censored": 0.25}, {"apart": 0.05}, {"apart": 0.2})
    pairs += [four | own for own in others]
    # Like the older studies of text, such as results/studies/language_insertion.
    text = {"ratio": 0.57, "searches": 3, "trials": 12, "censored": 0.58, "cadence": 370.0}
    pairs += [text | {"noise": noise} for noise in (0.05, 0.1)]
    # Like the studies on the grid, where most trials without echoing miss the target; and with an
    # effect that depends on the hyperparameters.
    grid = four | {"cadence": GRID_CADENCE, "divisor": 2.0}
    pairs += [grid | {"censored": share} for share in (0.75, 0.9)]
    pairs += [
        grid | {"noise": noise, "shift": 0.5, "censored": share}
        for noise in (0.1, 0.2)
        for share in (0.0, 0.5, 0.75, 0.9)
    ]
    fours = [
        grid | {"noise": noise, "harder": 1.5, "censored": share}
        for noise in (0.2, 0.4)
        for share in (0.0, 0.25, 0.5)
    ]
    tuned = [own | {"searches": 5} for own in fours]
    plans = [(by_search, searches), (by_trial, pairs), (of_ratios, fours)]
    plans.append((of_tuned_ratios, tuned))
    return [
        (
            simulation,
            dataclasses.replace(Setting(by_trial=simulation in (by_trial, of_ratios)), **own),
        )
        for simulation, settings in plans
        for own in settings
    ]


def simulated(
    chosen: Iterable[tuple[Simulation, Setting]], studies: int, pool: int = POOL
) -> list[Row]:
    """The row of each setting, from studies whose searches are drawn from a pool."""
    return [
        simulation(np.random.default_rng((0, number)), setting, studies, pool)
        for number, (simulation, setting) in enumerate(chosen)
    ]


def _number(value: float, form: str) -> str:
    return "-" if math.isnan(value) else format(value, form)


def main(argv: list[str] | None = None) -> None:
    parser = common.bare_parser(__spec__.name, __doc__)
    parser.add_argument("--out", type=pathlib.Path, metavar="FILE", help="the page")
    parser.add_argument("--studies", type=common.number(1), default=STUDIES, metavar="N")
    options = parser.parse_args(argv)
    chosen = all_simulations()
    rows = [
        [
            own.interval + " *" * (not own.claimed),
            *(setting.text(), f"{100 * own.nominal:.4g}%", _number(own.covered, ".1%")),
            *(_number(own.bounded, ".0%"), _number(own.width, ".2f")),
        ]
        for own, (_, setting) in zip(simulated(chosen, options.studies), chosen, strict=True)
    ]
    header = ["interval", "where", "nominal", "covers", "both ends known", "median high / low"]
    print(common.markdown_table(header, rows))
    if options.out:
        text = common.with_tables(options.out, {"intervals": (header, rows)})
        options.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
