"""Measures by simulation how often the intervals in reports cover the truth.

    python -m benchmarks.coverage --out=results/coverage.md      minutes
    python -m benchmarks.coverage --quick                        seconds, with few studies

The protocol is the real one: the quasi-random points of studies/search.py, N trials that do not
diverge out of at most 2N, the first evaluation at the target or past it, a budget that censors, and
the best trial of each search. The condition is evaluated as often as the baseline, as in older
studies, or `divisor` times as often, as in studies/search.py. Only training is replaced, by a
response surface: the logarithm of a trial's cost is quadratic in the logarithm of its effective
learning rate, lr / (1 - momentum), plus normal noise, plus an effect of its search. Above some
effective learning rate trials diverge. The other condition costs `ratio` times as much, which is
the truth that intervals are compared with.
"""

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
from scipy import stats

from analysis import bounds, uncertainty
from benchmarks import common
from configs import cifar10
from runs.study import MAX_TRIALS_FACTOR
from studies.search import point, resolved_axis

BASE, CADENCE = 5000.0, 400.0  # fresh examples: cost of the best trial, and evaluation interval
GRID_CADENCE = 125.0  # the resolution of the studies in results/grid: 2.5% of the cost
BEST_RATE, DIVERGES = 0.4, 1.0  # log10 of the effective learning rate
CURVATURE = 0.25  # of the log cost, per squared decade from the best rate
RATIOS = (0.5, 0.55, 0.6, 0.7, 0.8, 0.85, 0.9, 1.0, 1.05)
LARGE = 20_000  # searches per condition from which the truth is computed


@dataclasses.dataclass(frozen=True)
class Plan:
    """How much is simulated.

    Attributes:
        studies: in each setting.
        pool: searches that those of the studies are drawn from.
    """

    studies: int = 2000
    pool: int = 200


QUICK = Plan(studies=100, pool=20)


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
        return f"ratio {self.ratio:g}, {self.without_ratio()}"

    def without_ratio(self) -> str:
        parts = [f"noise {self.noise:g}"]
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
    setting: Setting
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
    random: np.random.Generator,
    setting: Setting,
    studies: int,
    pool: int,
    chosen: np.ndarray | None = None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(cost, counted, expected), each [studies, 2 (baseline, condition), searches, 2 * trials]:
    the cost of each trial, whether it counts, and its cost without the trial's own noise. `chosen`
    is the searches of the pool, [studies, searches]; by default they are drawn."""
    drawn = rates(pool, setting.trials)
    chosen = _searches(random, setting, studies, pool) if chosen is None else chosen
    rate = np.stack([drawn[chosen], drawn[chosen] + setting.shift], axis=1)
    log = math.log(BASE) + CURVATURE * (rate - BEST_RATE) ** 2
    search_shape = (studies, 1, setting.searches, 1)
    log = log + random.normal(0, setting.between, search_shape)
    effect = math.log(setting.ratio) + random.normal(0, setting.apart, search_shape)
    log = log + np.concatenate([np.zeros(search_shape), effect], axis=1)
    stable = rate < DIVERGES
    noise = random.normal(0, setting.noise, log.shape)
    return np.exp(log + noise), stable & (stable.cumsum(-1) <= setting.trials), np.exp(log)


def _searches(random: np.random.Generator, setting: Setting, studies: int, pool: int) -> np.ndarray:
    return np.argsort(random.random((studies, pool)), axis=1)[:, : setting.searches]


def scored(cost: np.ndarray, cadence: np.ndarray | float) -> np.ndarray:
    """The first evaluation at or after a trial's cost."""
    return np.ceil(cost / cadence) * cadence


def best(cost: np.ndarray, counted: np.ndarray, cadence: np.ndarray | float) -> np.ndarray:
    """The score of each search [..., searches], without a budget."""
    return np.where(counted, scored(cost, cadence), np.inf).min(-1)


def budget(random: np.random.Generator, setting: Setting, pool: int) -> float:
    """The budget that censors the setting's share of the baseline."""
    if not setting.censored:
        return math.inf
    cost, counted, _ = costs(random, dataclasses.replace(setting, searches=1), 4000, pool)
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


def tuned_ratios(random: np.random.Generator, setting: Setting, pool: int) -> np.ndarray:
    """The ratios of two searches' scores at evaluations, without a budget: [LARGE]."""
    cost, counted, _ = costs(random, dataclasses.replace(setting, searches=1), LARGE, pool)
    score = best(cost, counted, setting.cadences)[..., 0]
    return score[:, 1] / score[:, 0]


def by_search(random: np.random.Generator, setting: Setting, studies: int, pool: int) -> list[Row]:
    """The smallest and the largest ratio over searches."""
    truth = float(np.median(tuned_ratios(random, setting, pool)))
    end = budget(random, setting, pool)
    cost, counted, _ = costs(random, setting, studies, pool)
    low, high = ends(best(cost, counted, setting.cadences), end)
    summaries = [
        bounds.summary(*bounds.ratio((low[k, 1], high[k, 1]), (low[k, 0], high[k, 0])))
        for k in range(studies)
    ]
    intervals = np.array([(summary.min, summary.max) for summary in summaries])
    name = f"ratio by search, [min, max] of {setting.searches}"
    return [_row(name, setting, bounds.level(setting.searches), intervals, truth)]


def by_trial(random: np.random.Generator, setting: Setting, studies: int, pool: int) -> list[Row]:
    """The sign test's interval with matched seeds, if there are enough pairs for one, and the
    median of the ratios over all trials, also those that are censored."""
    end = budget(random, setting, pool)
    cost, counted, expected = costs(random, setting, studies, pool)
    truth = setting.ratio
    if setting.shift:
        ratios = expected[:, 1] / expected[:, 0]
        truth = float(np.median(ratios[counted[:, 0] & counted[:, 1]]))
    low, high = ends(scored(cost, setting.cadences), end, setting.cadences)
    intervals = []
    for k in range(studies):
        both = counted[k, 0] & counted[k, 1]
        own, base = ((low[k, side][both], high[k, side][both]) for side in (1, 0))
        if np.isfinite(np.minimum(own[1], base[1])).sum() < uncertainty.MIN_PAIRS:
            continue
        intervals.append(uncertainty.sign_interval(*bounds.ratio(own, base))[:2])
    name = f"matched seeds, {setting.searches * setting.trials} pairs"
    claimed = not setting.apart and not (setting.shift and setting.censored)
    level = uncertainty.PAIRED_LEVEL
    return [_row(name, setting, level, np.array(intervals), truth, claimed)]


def of_ratios(random: np.random.Generator, setting: Setting, studies: int, pool: int) -> list[Row]:
    """`uncertainty.ratio_of_ratios`: the ratio of the condition to the baseline at another batch
    size, over that at this one, for the same trials. Both are equal, so it is 1."""
    end = budget(random, setting, pool)
    chosen = _searches(random, setting, studies, pool)
    sides = []
    for level in (setting.harder, 1.0):
        cost, counted, _ = costs(random, setting, studies, pool, chosen)
        low, high = ends(scored(level * cost, setting.cadences), end, setting.cadences)
        sides.append((low, high, counted[:, 0] & counted[:, 1]))
    intervals, enough = [], uncertainty.MIN_PAIRS
    for k in range(studies):
        four = sides[0][2][k] & sides[1][2][k]
        own, base = (
            bounds.ratio((low[k, 1][four], high[k, 1][four]), (low[k, 0][four], high[k, 0][four]))
            for low, high, _ in sides
        )
        if min(((low > 0) | np.isfinite(high)).sum() for low, high in (own, base)) < enough:
            continue
        intervals.append(uncertainty.ratio_of_ratios(own, base)[:2])
    name = f"ratio of ratios, {setting.searches * setting.trials} trials"
    return [_row(name, setting, uncertainty.PAIRED_LEVEL, np.array(intervals), 1.0)]


def _row(
    name: str,
    setting: Setting,
    nominal: float,
    intervals: np.ndarray,
    truth: float | np.ndarray,
    claimed: bool = True,
) -> Row:
    if not len(intervals):
        return Row(name, setting, nominal, math.nan, math.nan, math.nan, claimed)
    low, high = intervals.T
    slack = 1e-9 * np.asarray(truth)  # ratios of multiples of the cadence, rounded
    bounded = (low > 0) & np.isfinite(high)
    width = float(np.median(high[bounded] / low[bounded])) if bounded.any() else math.nan
    covered = ((low <= truth + slack) & (truth - slack <= high)).mean()
    return Row(name, setting, nominal, float(covered), float(bounded.mean()), width, claimed)


Simulation = Callable[[np.random.Generator, Setting, int, int], Sequence[Row]]
_PAIRS = ((1, 10), (2, 10), (4, 16))  # searches, trials


def all_simulations() -> list[tuple[Simulation, Setting]]:
    """The simulations of the page's first table."""
    plans: list[tuple[Simulation, Setting]] = []
    for noise in (0.05, 0.2, 0.4):
        plans += [(by_search, Setting(noise=noise, censored=share)) for share in (0, 0.2, 0.5)]
    plans += [
        (by_search, Setting(cadence=CADENCE / 40)),
        (by_search, Setting(divisor=2)),
        (by_search, Setting(divisor=2, noise=0.05)),
        (by_search, Setting(ratio=0.25)),
        (by_search, Setting(between=0.2)),
        (by_search, Setting(apart=0.2)),
        (by_search, Setting(shift=0.5)),
        (by_search, Setting(searches=7)),
        (by_search, Setting(searches=3)),
    ]
    for searches, trials in _PAIRS:
        some = Setting(searches=searches, trials=trials, by_trial=True)
        for share in (0.0, 0.25, 0.5):
            plans += [
                (by_trial, dataclasses.replace(some, noise=noise, censored=share))
                for noise in (0.05, 0.4)
            ]
    most = Setting(searches=4, trials=16, by_trial=True)
    plans += [
        (by_trial, dataclasses.replace(most, **changes))
        for changes in (
            {"ratio": 1.0},
            {"ratio": 0.25},
            {"ratio": 0.25, "cadence": CADENCE / 40},
            {"between": 0.2, "censored": 0.25},
            {"apart": 0.05},
            {"apart": 0.2},
        )
    ]
    # Like the older studies of text, such as results/studies/language_insertion.
    text = Setting(0.57, searches=3, trials=12, censored=0.58, by_trial=True, cadence=370.0)
    plans += [(by_trial, dataclasses.replace(text, noise=noise)) for noise in (0.05, 0.1)]
    # Like the studies on the grid, where most trials without echoing miss the target; and with an
    # effect that depends on the hyperparameters.
    grid = dataclasses.replace(most, cadence=GRID_CADENCE, divisor=2.0)
    plans += [(by_trial, dataclasses.replace(grid, censored=share)) for share in (0.75, 0.9)]
    plans += [
        (by_trial, dataclasses.replace(grid, noise=noise, shift=0.5, censored=share))
        for noise in (0.1, 0.2)
        for share in (0.0, 0.5, 0.75, 0.9)
    ]
    plans += [
        (of_ratios, dataclasses.replace(grid, noise=noise, harder=1.5, censored=share))
        for noise in (0.2, 0.4)
        for share in (0.0, 0.25, 0.5)
    ]
    return plans


def settings_by_ratio() -> list[Setting]:
    """The settings of the tables by ratio: both resolutions and both kinds of cadence.

    Signs of matched seeds depend on how the evaluations of the two sides interleave, hence on the
    ratio, and most where noise does not blur it.
    """
    conditions = itertools.product(
        (CADENCE, GRID_CADENCE), (1.0, 2.0), (0.0, 0.5), (0.05, 0.1, 0.2), RATIOS
    )
    return [
        Setting(ratio, noise, searches=4, censored=share, by_trial=True, cadence=every, divisor=by)
        for every, by, share, noise, ratio in conditions
    ]


def simulated(
    chosen: Sequence[tuple[Simulation, Setting]], studies: int, pool: int, seed: int = 0
) -> list[Row]:
    """The rows of each setting, from `studies` studies whose searches are drawn from a pool."""
    return [
        row
        for number, (study, setting) in enumerate(chosen)
        for row in study(np.random.default_rng((seed, number)), setting, studies, pool)
    ]


def table_by_ratio(cells: Mapping[Setting, str]) -> str:
    """A Markdown table with one column per ratio."""
    ratios = sorted({setting.ratio for setting in cells})
    lines: dict[str, dict[float, str]] = {}
    for setting, cell in cells.items():
        lines.setdefault(setting.without_ratio(), {})[setting.ratio] = cell
    rows = [[where, *(line[ratio] for ratio in ratios)] for where, line in lines.items()]
    return common.markdown_table(["true ratio", *(f"{ratio:g}" for ratio in ratios)], rows)


def _worst(rows: Sequence[Row]) -> str:
    judged = [row for row in rows if row.claimed and not math.isnan(row.covered)]
    row = min(judged, key=lambda row: row.covered - row.nominal)
    points = 100 * (row.covered - row.nominal)
    side = "less" if points < 0 else "more"
    return (
        f"{abs(points):.1f} percentage points {side} than its nominal level ({row.setting.text()})"
    )


def _number(value: float, form: str) -> str:
    return "-" if math.isnan(value) else format(value, form)


def report(
    rows: Sequence[Row], matched: Sequence[Row], tuned: Mapping[Setting, np.ndarray], studies: int
) -> str:
    """The page.

    Args:
        rows: of the first table.
        matched: intervals with matched seeds, of the table by ratio.
        tuned: the ratios of two searches' scores in each setting.
        studies: simulated in each setting.
    """
    header = ["interval", "where", "nominal", "covers", "both ends known", "median high / low"]
    lines = [
        [
            row.interval + ("" if row.claimed else " *"),
            row.setting.text(),
            f"{100 * row.nominal:.4g}%",
            _number(row.covered, ".1%"),
            _number(row.bounded, ".0%"),
            _number(row.width, ".2f"),
        ]
        for row in rows
    ]
    by_pair = [row for row in [*rows, *matched] if row.setting.by_trial]
    fine, coarse = (
        [row for row in by_pair if (row.setting.cadence <= GRID_CADENCE) == at_most]
        for at_most in (True, False)
    )
    error = 100 * math.sqrt(0.95 * 0.05 / studies)
    return "\n\n".join(
        [
            "# What the intervals cover",
            "Do the intervals of the reports cover the true effect as often as they say? Among "
            "the simulated settings, the worst interval by search covers "
            f"{_worst([row for row in rows if not row.setting.by_trial])}. With matched seeds, the "
            f"worst covers {_worst(fine)} where evaluations are 2.5% of a score apart, as on the "
            f"grid, or less, and {_worst(coarse)} where they are 7% to 8% apart. "
            "Settings that were not simulated may be worse. "
            "`python -m benchmarks.coverage` simulates the studies; "
            "[docs/statistics.md](../docs/statistics.md) defines the intervals.",
            common.markdown_table(header, lines),
            "\n".join(
                [
                    f"- {studies:,} simulated studies in each line (standard error {error:.1f} "
                    "points at 95%). A search has 16 trials unless stated (10 for 10 or 20 pairs, "
                    "12 for 36), at quasi-random points; points that diverge do not count, and "
                    "later ones replace them. The best trial counts. There is an evaluation every "
                    f"{CADENCE:,.0f} fresh examples unless stated; the baseline's best trials need "
                    f"about {BASE:,.0f}.",
                    "- Noise: the standard deviation of the logarithm of what a trial takes.",
                    "- \\*: not claimed. The project says that the interval does not cover this.",
                    "- Intervals by search are compared with the median ratio of scores as they "
                    "are evaluated; matched seeds, with the ratio of what trials take.",
                    "- Widths are over intervals of which both ends are known.",
                ]
            ),
            "## Matched seeds by true ratio",
            "How often the 95% interval of 64 pairs covers, in percent, from "
            f"{studies:,} studies in each cell. It covers less where evaluations are coarse "
            "compared with the noise and those of the two sides interleave unevenly: then the two "
            "signs of a pair are not equally likely at the true ratio.",
            table_by_ratio({row.setting: _number(100 * row.covered, ".1f") for row in matched}),
            "## Tuned ratio by true ratio",
            "The ratio of two searches' scores as they are evaluated: geometric mean (median) of "
            f"{LARGE:,}. With a common cadence, the mean is biased toward 1. If the condition is "
            "evaluated more often, as with an echo factor, the mean is biased downward, in favor "
            "of echoing. Where evaluations are coarse, the ratio takes few values, and its median "
            "jumps between them.",
            table_by_ratio(
                {
                    setting: f"{stats.gmean(ratios):.3f} ({np.median(ratios):.3f})"
                    for setting, ratios in tuned.items()
                }
            ),
        ]
    )


def main(argv: list[str] | None = None) -> None:
    parser = common.arguments(
        __spec__.name, __doc__, Plan(), QUICK, studies="simulated studies in each setting"
    )
    options = parser.parse_args(argv)
    plan = common.plan(options, Plan(), QUICK)
    settings = settings_by_ratio()
    rows = simulated(all_simulations(), plan.studies, plan.pool)
    matched = simulated([(by_trial, setting) for setting in settings], plan.studies, plan.pool)
    tuned = {
        setting: tuned_ratios(np.random.default_rng(0), setting, plan.pool)
        for setting in settings
        if not setting.censored and setting.noise != 0.1
    }
    common.publish(report(rows, matched, tuned, plan.studies), options.out)


if __name__ == "__main__":
    main()
