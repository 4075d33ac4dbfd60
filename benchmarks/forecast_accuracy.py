"""Accuracy of the forecast on recorded runs: errors, coverage, and regret of the chosen factor.

    python -m benchmarks.forecast_accuracy --out=results/forecast_accuracy.md  # about 4 minutes
    python -m benchmarks.forecast_accuracy --quick  # two trials of each problem

results/forecast_protocol.md is the protocol. Pilots are recorded curves, cut off early; what is
forecast are the rest of them and the factors without a pilot. Priors come from the other problems.
"""

import collections
import dataclasses
import functools
import math
import pathlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from analysis import load
from benchmarks import common
from echo.advice.forecast import Fit, Forecast, Prior, Run, forecast, fresh_examples_at
from runs import records

STUDIES = {
    "sentences": ("sentences_factor",),
    "manual": ("language_factor", "language_factor_early"),
    "digits": ("digits_factor",),
}
RECORDS = pathlib.Path("results/studies")
RATIOS = (6.0, 16.0, math.inf)
AUTO_RATIOS = (2.0, 6.0, 16.0)
PILOTS, SHARE = (1.0, 4.0, 16.0), 0.214
FIRST = {4.0: 3, 16.0: 2}  # evaluations that adaptive pilots start with
QUICK = 2  # users of each problem in a smoke run
MAX_PREDICTED = 4.5  # budgets that a prediction counts in an error, since some have no limit

# For whole curves: only k = exp(0.6 +- 2) and so on is known.
WIDE = Prior(mean=(0.6, -1.6, 0.4, -1.6, 0.0), sd=(2.0, 1.5, 0.7, 1.5, 0.5))


@dataclasses.dataclass(frozen=True)
class User:
    """The curves of one trial's hyperparameters.

    Attributes:
        runs: by factor; their loss is 1 - accuracy where the study's metric is accuracy. One that
            diverged ends with a loss of NaN, like a pilot of advise.py.
        baseline: fresh examples of the run without echoing to the target, at most the budget.
        fresh: fresh examples to the target by factor, inf where it was not reached.
        trials: the directories of the runs' records.
    """

    problem: str
    name: tuple
    batch_size: int
    target: float
    budget: float
    runs: Mapping[float, Run]
    trials: Mapping[float, str] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def fresh(self) -> dict[float, float]:
        hits = {e: fresh_examples_at(run, self.target) for e, run in self.runs.items()}
        return {e: math.inf if hit is None else hit for e, hit in hits.items()}

    @property
    def baseline(self) -> float:
        return min(self.fresh.get(1.0, math.inf), self.budget)

    def seconds(self, ratio: float) -> dict[float, float]:
        """Seconds to the target by factor; one second per fresh example upstream."""
        return {e: min(n, 1.5 * self.budget) * max(1, e / ratio) for e, n in self.fresh.items()}

    def until(self, factor: float, fresh_examples: float) -> Run | None:
        """The start of a run, None if it has fewer than two evaluations and did not diverge."""
        run = self.runs[factor]
        points = int(np.sum(run.fresh_examples <= fresh_examples))
        return cut(run, points) if points >= min(2, len(run.loss)) else None


def cut(run: Run, points: int) -> Run:
    return Run(run.factor, run.fresh_examples[:points], run.steps[:points], run.loss[:points])


def surviving(runs: Iterable[Run]) -> list[Run]:
    """The runs that did not diverge."""
    return [run for run in runs if np.isfinite(run.loss[-1])]


def diverged(runs: Iterable[Run]) -> set[float]:
    """The factors of the runs that diverged."""
    return {run.factor for run in runs if not np.isfinite(run.loss[-1])}


def users(problem: str, least: int = 3) -> list[User]:
    """The users of an older problem of whom at least so many factors reached the target."""
    of_studies = (
        recorded_users(problem, study, RECORDS / study / "records.tar.xz", least)
        for study in STUDIES[problem]
    )
    return [user for of_study in of_studies for user in of_study]


def recorded_users(problem: str, study: str, packed: pathlib.Path, least: int = 3) -> list[User]:
    """The users of a packed study of whom at least so many factors reached the target, from trials
    without echoing or before augmentation."""
    loaded = load.read(packed)
    target, budget = loaded.study.target, float(loaded.study.budget or 0)
    all_trials: Any = loaded.trials
    usable = all_trials["insertion"].isin(("none", "before_augmentation"))
    # the others have not ended by themselves, so where they would have reached it is unknown
    usable &= all_trials["status"].isin(records.FINISHED)
    used = all_trials[usable]
    trials = used.set_index(["condition", "search", "trial"])
    evaluations = load.curves(used, target.metric)
    ends = used[used["status"] == "diverged"].rename(columns={"steps": "step"})
    ends = ends.reindex(columns=evaluations.columns).astype(evaluations.dtypes)
    curves: Any = pd.concat([evaluations, ends])
    runs: dict = collections.defaultdict(dict)
    paths: dict = collections.defaultdict(dict)
    key: Any
    for key, curve in curves.groupby(["condition", "search", "trial"]):
        trial, loss = trials.loc[key], curve["value"].to_numpy()
        if target.mode == "above":
            loss = np.maximum(1 - loss, 0.5 / 300)
        if len(loss) < 3 and trial["status"] != "diverged":
            continue
        factor = float(trial["factor"])
        name = (study, key[1], key[2], int(trial["batch_size"]))
        runs[name][factor] = Run(
            factor, curve["fresh_examples"].to_numpy(), curve["step"].to_numpy(), loss
        )
        paths[name][factor] = trial["path"]
    level = 1 - target.value if target.mode == "above" else target.value
    # what rounds to the level reaches it
    level *= 1 + 1e-9
    everyone = [
        User(problem, name, name[-1], level, budget, by_factor, paths[name])
        for name, by_factor in sorted(runs.items())
    ]
    return [user for user in everyone if sum(map(math.isfinite, user.fresh.values())) >= least]


def tuned(everyone: Sequence[User]) -> set[tuple]:
    """The names of each search's best users without echoing."""
    groups = collections.defaultdict(list)
    for user in everyone:
        groups[user.name[:2] + user.name[3:]].append(user)
    return {
        min(group, key=lambda u: (u.fresh.get(1.0, math.inf), min(u.fresh.values()))).name
        for group in groups.values()
    }


# --- pilots


def fixed_pilots(user: User) -> list[Run]:
    runs = [user.until(e, SHARE * user.baseline) for e in PILOTS if e in user.runs]
    return [run for run in runs if run is not None]


def predicted(user: User, runs: Sequence[Run], ratio: float, prior: Prior) -> Forecast:
    """The forecast over the user's factors, with one second per fresh example upstream. As judged
    from the beginning, the time in which the shuffle buffer fills is left out."""
    step_seconds = {e: user.batch_size / e * max(1, e / ratio) for e in user.runs}
    return forecast(
        runs,
        user.target,
        batch_size=user.batch_size,
        step_seconds=step_seconds,
        input_seconds=0.0,
        prior=prior,
    )


def adaptive_pilots(user: User, ratio: float, prior: Prior, growth: float = 0.0) -> list[Run]:
    """Extends the run that the forecast names, by a share `growth` and at least one evaluation,
    within the time of a baseline run. Before there are points enough for a forecast, it extends the
    shortest run, as `advise.py --pilot` does; no runs if there never are."""
    return seeded_pilots([user], user.baseline, ratio, prior, growth)


def seeded_pilots(
    seeds: Sequence[User], limit: float, ratio: float, prior: Prior, growth: float
) -> list[Run]:
    """`adaptive_pilots` of a user with several seeds, which extend the shorter run of a factor,
    within the time of `limit` fresh examples without echoing."""
    user = seeds[0]
    whole = {(e, k): run for k, seed in enumerate(seeds) for e, run in seed.runs.items()}
    keys = [(e, k) for e in FIRST for k in range(len(seeds)) if e in user.runs]
    points = {key: min(FIRST[key[0]], len(whole[key].loss)) for key in keys}

    def cost(points: Mapping[tuple[float, int], int]) -> float:
        fresh = {key: whole[key].fresh_examples[n - 1] for key, n in points.items()}
        return sum(n * max(1, e / ratio) for (e, _), n in fresh.items())

    answered: list[Run] = []
    while True:
        runs = [cut(whole[key], n) for key, n in points.items()]
        try:
            following = predicted(user, runs, ratio, prior).next_factor
        except ValueError:
            unfinished = [key for key, n in points.items() if n < len(whole[key].loss)]
            following = min(unfinished, key=lambda key: points[key], default=(None, 0))[0]
        else:
            answered = runs
        if following is None:
            return answered
        shorter = min(
            ((following, k) for k in range(len(seeds))), key=lambda key: points.get(key, 0)
        )
        so_far = points.get(shorter, 0)
        grown = max(2, so_far + 1, math.ceil((1 + growth) * so_far))
        # a run ends at its target, or at its budget
        more = points | {shorter: min(grown, len(whole[shorter].loss))}
        if more == points or cost(more) > limit:
            return answered
        points = more


def has_forecast(user: User, runs: Sequence[Run]) -> bool:
    """Whether the pilots that did not diverge have enough points for a forecast."""
    try:
        predicted(user, surviving(runs), RATIOS[0], Prior())
    except ValueError:
        return False
    return True


# --- other forms, fitted by least squares without priors on their shape


def per_level(price: bool) -> Callable[[User, Sequence[Run]], dict[float, float]]:
    """F = E + S B/e + P e/B, with E, S, and P powers of the level that are free of each other."""

    def fit(user: User, runs: Sequence[Run]) -> dict[float, float]:
        points = []
        for run in runs:
            top = user.target * (run.loss[0] / user.target) ** 0.7
            for level in np.geomspace(max(np.nanmin(run.loss), user.target), max(top, 1e-9), 8):
                if (n := fresh_examples_at(run, level)) is not None:
                    points.append((run.factor / user.batch_size, math.log(level), math.log(n)))
        density, level, fresh = np.array(points).T
        middle = level.mean()

        def law(p, level, density):
            terms = [p[0] + p[1] * level, p[2] + p[3] * level - np.log(density)]
            if price:
                terms.append(p[4] + p[5] * level + np.log(density))
            return np.logaddexp.reduce(terms)

        n, s = fresh.mean(), np.mean(fresh + np.log(density))
        start = np.array([n - 1, -3, s - 1, -3, n - 1, -3])[: 6 if price else 4]

        def residuals(p):
            return np.r_[(law(p, level - middle, density) - fresh) / 0.1, (p - start) / 3]

        p = least_squares(residuals, start, max_nfev=300).x
        at = math.log(user.target) - middle
        return {e: float(np.exp(law(p, at, e / user.batch_size))) for e in user.runs}

    return fit


def _additive(p, steps, fresh, factor, batch_size, harm=True):
    q = np.exp(p)
    price = 1 + q[5] * (32 * factor / batch_size) ** q[6] if harm else 1.0
    return q[0] + q[1] * steps ** -q[2] + q[3] * fresh ** -q[4] * price


def _saturating(p, steps, fresh, factor, batch_size):
    """Muennighoff et al. 2023: repeats are worth fresh examples, ever less."""
    q = np.exp(p)
    worth = fresh * (1 + q[3] * (1 - np.exp(-(factor - 1) / q[3])))
    return q[0] + q[1] * worth ** -q[2]


def loss_law(
    law: Callable, mean, sd, amplitudes
) -> Callable[[User, Sequence[Run]], dict[float, float]]:
    """A law of the loss in steps and fresh examples, fitted to all points of the pilots.

    Args:
        mean, sd: normal priors of the logs of its parameters.
        amplitudes: the parameters that are relative to the lowest loss.
    """

    def fit(user: User, runs: Sequence[Run]) -> dict[float, float]:
        rows = [(r.steps, r.fresh_examples, np.full(len(r.loss), r.factor), r.loss) for r in runs]
        steps, fresh, factor, loss = np.concatenate(rows, axis=1)
        keep = np.isfinite(loss) & (steps > 0)
        steps, fresh, factor, loss = steps[keep], fresh[keep], factor[keep], loss[keep]
        scale = np.exp(np.log(steps).mean()), np.exp(np.log(fresh).mean())
        center = np.array(mean, float)
        center[amplitudes] += np.log(loss.min())

        def residuals(p):
            value = law(p, steps / scale[0], fresh / scale[1], factor, user.batch_size)
            return np.r_[(np.log(value) - np.log(loss)) / 0.02, (p - center) / sd]

        p = least_squares(residuals, center, max_nfev=300).x
        grid = np.geomspace(user.budget / 100, 6 * user.budget, 2000)
        answer = {}
        for e in user.runs:
            value = law(
                p, grid * e / user.batch_size / scale[0], grid / scale[1], e, user.batch_size
            )
            answer[e] = float(grid[min(np.sum(value > user.target), len(grid) - 1)])
        return answer

    return fit


_MEAN, _SD = np.log([0.7, 0.3, 0.35, 0.1, 0.35, 0.3, 1.2]), [0.5, 1, 0.6, 1, 0.6, 1, 0.3]
FORMS = {
    "E + S B/e + P e/B": per_level(True),
    "E + S B/e": per_level(False),
    "additive with harm": loss_law(_additive, _MEAN, _SD, [0, 1, 3]),
    "additive": loss_law(functools.partial(_additive, harm=False), _MEAN[:5], _SD[:5], [0, 1, 3]),
    "saturating": loss_law(_saturating, np.log([0.7, 0.3, 0.35, 5.0]), [0.5, 1, 0.6, 1], [0, 1]),
}


# --- priors of the other problems


def parameters(everyone: Sequence[User]) -> np.ndarray:
    """[users, 5] the law's parameters, fitted to whole curves with wide priors."""
    fits = [Fit.to(surviving(u.runs.values()), u.target, u.batch_size, WIDE) for u in everyone]
    return np.array([fit.mode[1:6] for fit in fits])


def prior_of(groups: Sequence[np.ndarray]) -> Prior:
    """The prior for a new problem, from the parameters of the users of each problem."""
    medians = np.array([np.median(group, axis=0) for group in groups])
    within = [
        1.4826 * np.median(np.abs(group - median), axis=0)
        for group, median in zip(groups, medians, strict=True)
    ]
    variance = np.mean(np.square(within), axis=0) + medians.var(axis=0, ddof=1) + 0.1
    sd = np.sqrt(variance)
    sd[0] = 1.5
    return Prior(tuple(medians.mean(axis=0).tolist()), tuple(sd.tolist()), widening=1.0)


def pilot_outcomes(everyone: Sequence[User], prior: Prior) -> list["Outcome"]:
    """The outcomes of fixed and of adaptive pilots."""
    return [
        by_forecast(user, runs, RATIOS[0], prior)
        for user in everyone
        for runs in (fixed_pilots(user), adaptive_pilots(user, RATIOS[0], prior))
        if len(runs) > 1
    ]


def stretch(outcomes: Sequence["Outcome"]) -> float:
    """The widening that covers nine cells in ten."""
    ratios = [ratio for outcome in outcomes for ratio in outcome.deviations()]
    return max(1.0, float(np.quantile(ratios, 0.9)))


# --- scores


def log_error(predicted: float, true: float, budget: float) -> float:
    """log(predicted / true) of fresh examples to the target."""
    return math.log(min(predicted, MAX_PREDICTED * budget) / true)


def error_text(log_errors: Sequence[float], level: float = 0.5) -> str:
    """A quantile of max(predicted / true, true / predicted) - 1."""
    return f"{math.expm1(np.quantile(np.abs(log_errors), level)):.0%}"


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What was predicted for a user, and what was so."""

    user: User
    ratio: float
    predicted: Mapping[float, float]  # fresh examples
    factor: float
    forecast: Forecast | None = None
    cost: float = 0.0  # of the pilots, in baseline runs

    @property
    def regret(self) -> float:
        seconds = self.user.seconds(self.ratio)
        return seconds[self.factor] / min(seconds.values())

    def cells(self) -> list[tuple[float, float]]:
        """(factor, log(predicted / true)) of the cells that were reached, but not by a pilot."""
        return [
            (e, log_error(self.predicted[e], n, self.user.budget))
            for e, n in self.user.fresh.items()
            if math.isfinite(n) and not (self.forecast and self.forecast.cells[e].observed)
        ]

    def covered(self) -> list[bool]:
        assert self.forecast
        answers = []
        for e, n in self.user.fresh.items():
            cell = self.forecast.cells.get(e)  # None: its pilot diverged
            if cell is None or cell.observed:
                continue
            if math.isfinite(n):
                answers.append(cell.fresh_low <= n <= cell.fresh_high)
            else:
                answers.append(cell.fresh_high >= self.user.budget)
        return answers

    def deviations(self) -> list[float]:
        """|log(predicted / true)| in half widths of the interval."""
        assert self.forecast
        answers = []
        for e, error in self.cells():
            cell = self.forecast.cells[e]
            low, high = (
                math.log(x / cell.fresh_examples) for x in (cell.fresh_low, cell.fresh_high)
            )
            width = max(high, 1e-3) if error < 0 else max(-low, 1e-3)
            answers.append(abs(error) / width)
        return answers


def by_forecast(user: User, runs: Sequence[Run], ratio: float, prior: Prior) -> Outcome:
    answer = predicted(user, runs, ratio, prior)
    cost = sum(run.fresh_examples[-1] * max(1, run.factor / ratio) for run in runs)
    fresh = {e: cell.fresh_examples for e, cell in answer.cells.items()}
    return Outcome(user, ratio, fresh, answer.factor, answer, cost / user.baseline)


def by_pilots(
    form: Callable[[User, Sequence[Run]], dict[float, float]], user: User, runs: Sequence[Run]
) -> dict[float, float]:
    """What a form predicts from the runs that did not diverge, without the factors of the others,
    which are not to be chosen."""
    excluded = diverged(runs)
    return {e: n for e, n in form(user, surviving(runs)).items() if e not in excluded}


def by_form(fresh: Mapping[float, float], user: User, ratio: float) -> Outcome:
    return Outcome(user, ratio, fresh, min(fresh, key=lambda e: fresh[e] * max(1, e / ratio)))


def by_rule(
    rule: Callable[[User, float], float], everyone: Sequence[User], ratio: float
) -> list[Outcome]:
    """The outcomes at the problem's factor that is closest to the rule's, of the users who have a
    run at it: the score of a run that was not made is unknown."""
    factors, outcomes = {e for user in everyone for e in user.runs}, []
    for user in everyone:
        wanted = rule(user, ratio)
        closest = min(factors, key=lambda e: abs(math.log(e / wanted)))
        if closest in user.runs:
            outcomes.append(Outcome(user, ratio, {}, closest))
    return outcomes


def of_others(everyone: Sequence[User]) -> Callable[[User, float], float]:
    """The rule that takes the factor with the least mean log seconds over all other users."""

    def rule(user: User, ratio: float) -> float:
        logs = collections.defaultdict(list)
        for other in everyone:
            if (other.name[0], other.batch_size) != (user.name[0], user.batch_size):
                continue
            if other is not user:
                for e, seconds in other.seconds(ratio).items():
                    logs[e].append(math.log(seconds))
        return min(logs, key=lambda e: np.mean(logs[e]), default=4.0)

    return rule


CAPS = ("16", "B/8", "B/4", "adaptive pilots")


def caps(everyone: Sequence[User], prior: Prior, growth: float = 0.0) -> str:
    """A table of `auto` behind a constant upstream, where it echoes by min(R, maximum copies)."""
    rows = []
    for ratio in AUTO_RATIOS:
        worse = {name: [] for name in CAPS}
        for user in everyone:
            factors = [*(e for e in user.runs if e <= ratio), ratio]
            best = min(_interpolated(user, e) * max(1, e / ratio) for e in [*user.runs, *factors])
            pilots = adaptive_pilots(user, ratio, prior, growth)
            advised = predicted(user, pilots, ratio, prior).factor if pilots else 1.0
            sizes = (16, max(2, user.batch_size // 8), user.batch_size // 4, advised)
            for name, most in zip(CAPS, sizes, strict=True):
                worse[name].append(_interpolated(user, min(most, ratio)) / best)
        cells = [
            " / ".join(f"{np.quantile(values, level):.2f}" for level in (0.5, 0.9, 1))
            for values in worse.values()
        ]
        rows.append([f"{ratio:g}", *cells])
    return common.markdown_table(["R", *(f"at most {name}" for name in CAPS)], rows)


def _interpolated(user: User, factor: float) -> float:
    """Fresh examples to the target at any factor, log-linear between those that were run."""
    known = sorted(user.fresh)
    fresh = [min(user.fresh[e], 1.5 * user.budget) for e in known]
    return math.exp(np.interp(math.log(factor), np.log(known), np.log(fresh)))


def row(name: str, outcomes: Mapping[float, Sequence[Outcome]]) -> list[str]:
    """A line of the table; cells and coverage are those at the first R."""
    first = next(iter(outcomes.values()))
    errors = [error for outcome in first if outcome.predicted for _, error in outcome.cells()]
    cells = [error_text(errors, level) if errors else "" for level in (0.5, 0.9)]
    covered = [hit for outcome in first if outcome.forecast for hit in outcome.covered()]
    cells.append(f"{np.mean(covered):.0%}" if covered else "")
    for chosen in outcomes.values():
        regrets = [outcome.regret for outcome in chosen]
        levels = [f"{np.quantile(regrets, level):.2f}" for level in (0.5, 0.9, 1) if regrets]
        cells.append(" / ".join(levels))
    bounds = [
        (o.regret, o.forecast.regret) for group in outcomes.values() for o in group if o.forecast
    ]
    cells.append(f"{np.mean([regret <= bound for regret, bound in bounds]):.0%}" if bounds else "")
    return [name, str(len(first)), *cells]


# --- the report


def problem_outcomes(
    everyone: Sequence[User], prior: Prior, growth: float = 0.0
) -> dict[str, dict[float, list]]:
    """The outcomes of every method on one problem, by R; `growth` is that of adaptive pilots."""
    flat = dataclasses.replace(  # without the price of repeats
        prior,
        mean=(*prior.mean[:3], -20.0, prior.mean[4]),
        sd=(*prior.sd[:3], 1e-3, prior.sd[4]),
    )
    straight = dataclasses.replace(prior, bends=1e-2)  # under the same prior and widening
    outcomes: dict[str, dict[float, list]] = collections.defaultdict(dict)
    pilots = [(user, fixed_pilots(user)) for user in everyone]
    pilots = [(user, runs) for user, runs in pilots if len(runs) > 1 and has_forecast(user, runs)]
    points = {
        name: [(user, by_pilots(form, user, runs)) for user, runs in pilots]
        for name, form in FORMS.items()
    }
    law = functools.partial(whole_curves, prior=prior)
    points["law, fitted to whole curves"] = [
        (user, by_pilots(law, user, list(user.runs.values()))) for user in everyone
    ]
    points["law, each factor from the others' whole curves"] = [
        (user, {e: law(user, surviving(_others(user, e)))[e] for e in user.runs})
        for user in everyone
    ]
    for ratio in RATIOS:
        grown = [(user, adaptive_pilots(user, ratio, prior, growth)) for user in everyone]
        grown = [(user, runs) for user, runs in grown if runs]
        powers = [(user, adaptive_pilots(user, ratio, straight, growth)) for user in everyone]
        powers = [(user, runs) for user, runs in powers if runs]
        for name, chosen, used in (
            ("law, adaptive pilots", grown, prior),
            ("law without bends, adaptive pilots", powers, straight),
            ("law", pilots, prior),
            ("law without bends", pilots, straight),
            ("law without price", pilots, flat),
        ):
            outcomes[name][ratio] = [by_forecast(u, runs, ratio, used) for u, runs in chosen]
        for name, of_users in points.items():
            outcomes[name][ratio] = [by_form(fresh, user, ratio) for user, fresh in of_users]
        rules: dict[str, Callable[[User, float], float]] = {
            "always e = 1": lambda user, ratio: 1.0,
            "always e = 4": lambda user, ratio: 4.0,
            "always e = R": lambda user, ratio: ratio if math.isfinite(ratio) else 16.0,
            "best of the other settings": of_others(everyone),
        }
        for name, rule in rules.items():
            outcomes[name][ratio] = by_rule(rule, everyone, ratio)
        common.progress(f"{everyone[0].problem}, R = {ratio:g}")
    return outcomes


def whole_curves(user: User, runs: Sequence[Run], prior: Prior) -> dict[float, float]:
    """Fresh examples that the law predicts from whole curves. No pilot can remove its error."""
    fit = Fit.to(runs, user.target, user.batch_size, prior)
    factors = list(user.runs)
    log_used = np.median(fit.draws(factors, user.target, 0), axis=1)
    held = np.array([fit.prefill(factor) for factor in factors])
    return dict(zip(factors, held + np.exp(log_used), strict=True))


def _others(user: User, factor: float) -> list[Run]:
    return [run for e, run in user.runs.items() if e != factor]


def table(outcomes: Mapping[str, Mapping[float, Sequence[Outcome]]]) -> str:
    header = ["", "settings", "median error", "90%", "covered"]
    header += [f"regret at R = {ratio:g}" for ratio in RATIOS] + ["within bound"]
    return common.markdown_table(header, [row(name, of) for name, of in outcomes.items()])


def kept(outcomes: Mapping[float, Sequence[Outcome]], keep: Callable[[Outcome], bool]) -> dict:
    return {ratio: [o for o in group if keep(o)] for ratio, group in outcomes.items()}


def subsets(outcomes: Mapping[str, Mapping[float, Sequence[Outcome]]], everyone: Sequence[User]):
    """The forecast's outcomes for tuned users, and for those with enough evidence, beside those of
    e = 4 for the latter."""
    best, found = tuned(everyone), {}
    for method in ("law, adaptive pilots", "law"):
        found[f"{method}: tuned settings"] = kept(outcomes[method], lambda o: o.user.name in best)
        enough = kept(outcomes[method], lambda o: o.forecast is not None and not o.forecast.caveat)
        found[f"{method}: enough evidence"] = enough
        sure = {(o.ratio, o.user.name) for group in enough.values() for o in group}
        found[f"always e = 4: enough evidence for {method}"] = kept(
            outcomes["always e = 4"], lambda o, sure=sure: (o.ratio, o.user.name) in sure
        )
    return found


def report(
    problems: Mapping[str, Sequence[User]], recorded: Mapping[str, int], reported: Sequence[str]
) -> str:
    """The page.

    Args:
        problems: the users that are judged, by problem.
        recorded: the number of users whose curves are recorded, by problem.
        reported: the problems that get a table.
    """
    fitted = {name: parameters(everyone) for name, everyone in problems.items()}
    judged = [f"{len(group)} of {recorded[name]} on {name}" for name, group in problems.items()]
    text = [
        "# How good the forecast is",
        "Settings: those of the hyperparameters at which three factors or more reached the target, "
        f"so that there is something to predict ({', '.join(judged)}). A factor whose run diverged "
        "counts as one that missed the target; rows of a rule leave out the settings "
        "without a run at its factor. Error: max(predicted / true, true / predicted) - 1 of the "
        "fresh examples to the target, where a factor reached it, excluding factors whose pilot "
        f"reached it; a prediction counts as at most {MAX_PREDICTED:g} budgets. Regret: seconds of "
        "the chosen factor over the fastest one's, median / 90% / worst. Covered: cells in the 90% "
        "interval. Within bound: settings whose regret is at most the forecast's bound. The error "
        "and the coverage are those at R = 6. [The protocol](forecast_protocol.md); "
        "[docs/forecast.md](../docs/forecast.md) says what follows.",
    ]
    used = {}
    for name, everyone in problems.items():
        others = [group for group in problems if group != name]
        prior = prior_of([fitted[group] for group in others])
        widening = max(stretch(pilot_outcomes(problems[group], prior)) for group in others)
        prior = dataclasses.replace(prior, widening=widening)
        used[name] = prior
        if name not in reported:
            continue
        outcomes = problem_outcomes(everyone, prior)
        costs = [o.cost for o in outcomes["law, adaptive pilots"][RATIOS[0]]]
        text += [
            f"## {name}",
            table(outcomes | subsets(outcomes, everyone)),
            f"Adaptive pilots took {np.median(costs):.2f} baseline runs at R = 6 (median).",
            "`auto` behind a constant upstream: seconds to the target over those of the best fixed "
            "factor, by its maximum number of copies (B: batch size); median / 90% / worst.",
            caps(everyone, prior),
        ]
    widening = max(prior.widening for prior in used.values())
    used["any other"] = dataclasses.replace(prior_of(list(fitted.values())), widening=widening)
    text += [
        "## Priors",
        "Of log(k, r, rho, c, g), mean (sd), and the widening: for each problem from the others, "
        "and `echo.advice.forecast.Prior()` from all of them, with the largest widening.",
        common.markdown_table(
            ["for", "k", "r", "rho", "c", "g", "widening"],
            [[name, *_numbers(prior)] for name, prior in used.items()],
        ),
    ]
    return "\n\n".join(text)


def _numbers(prior: Prior) -> list[str]:
    pairs = zip(prior.mean, prior.sd, strict=True)
    return [*(f"{mean:.2f} ({sd:.2f})" for mean, sd in pairs), f"{prior.widening:.2f}"]


def main(argv: list[str] | None = None) -> None:
    parser = common.arguments(__spec__.name, __doc__, quick=QUICK)
    common.add_list(parser, "--problems", common.one_of(STUDIES), ",".join(STUDIES))
    options = parser.parse_args(argv)
    problems = {name: users(name)[: QUICK if options.quick else None] for name in STUDIES}
    recorded = {name: len(users(name, least=0)) for name in STUDIES}
    common.publish(report(problems, recorded, options.problems), options.out)


if __name__ == "__main__":
    main()
