"""Forecasts fresh examples and seconds to a target over echo factors, from short pilot runs.

    from echo.advice.forecast import Run, forecast

    runs = [Run(4, fresh_examples=n4, steps=s4, loss=v4), Run(16, n16, s16, v16)]
    print(forecast(runs, target=3.5, batch_size=32, step_seconds={1: 0.6, 4: 0.15, 16: 0.1}))

The law: with batch size B and factor e, the loss l takes

    n(l, e) = E(l) * (1 + c * (32 * e / B)^g) + S(l) * B / e

fresh examples after the shuffle buffer has been filled. S is the minimum number of steps, which
even a run on fresh examples alone takes. E is the minimum number of fresh examples, which no repeat
can replace, and c is the price of repeats. S is a power of l whose exponent bends along the way, as
on a plateau. E is proportional to S^rho, and E = 32 * r * S at the middle of the observed levels,
so the curve of any factor informs the forecasts of all factors. The law is fitted to the fresh
examples at which the pilots reached each level, with priors from the problems of docs/forecast.md,
which also reports how accurate the forecasts are. A pilot that is later or earlier than the law at
its lowest loss is expected to stay so, but less the farther it has to go; one that has not improved
since is late.

It requires SciPy: `pip install ".[forecast]"` in a checkout.
"""

import dataclasses
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from echo.advice.alternatives import COLUMNS
from echo.spec import (
    MAX_BATCH,
    MAX_SEED,
    EchoSpecError,
    checked_factors,
    checked_integer,
    checked_number,
    comparable_factor,
    missing_package,
)

FACTORS = (1, 2, 4, 8, 16)

# The bound on the regret above which the evidence is not enough.
MAX_REGRET = 1.5

# The bound on the regret up to which the answer is clear.
CLEAR_REGRET = 1.1

# A factor whose chance to be faster than the best one is below this needs no further pilot.
_CONTENDER = 0.1

_LEVELS = 8  # at which a curve is compared
_TRANSIENT = 0.3  # of the way (in log loss) from the start to the target, ignored
_SEEN = 0.5  # of the way, which some pilot must have come: a quick start says little about the rest
_RISE = 1.1  # of a loss, which noise around a flat start seldom reaches
_LENGTH = 0.3  # of the way, over which the exponent of S and a run's deviation are correlated
_INDEPENDENT = 3  # levels of one curve that count as independent
_DRAWS = 400


@dataclasses.dataclass(frozen=True)
class Prior:
    """Means and standard deviations of log(k, r, rho, c, g); S ~ l^-k, E ~ l^-(k * rho).

    Attributes:
        bends: the standard deviation of the log of the local exponent of S over k, > 0.
        noise: the standard deviation of log fresh examples to a level, between seeds.
        widening: the factor by which draws are spread around the fit, so that nine of ten
            intervals cover the truth on other problems.
    """

    mean: tuple[float, ...] = (1.18, -3.1, 0.76, -2.1, 0.28)
    sd: tuple[float, ...] = (1.5, 1.1, 0.5, 0.52, 0.53)
    bends: float = 0.5
    noise: float = 0.12
    widening: float = 1.5

    def __post_init__(self):
        for name in ("mean", "sd"):
            values: Any = getattr(self, name)
            if not isinstance(values, Sequence) or len(values) != 5:
                raise EchoSpecError(name, values, "five numbers, of log(k, r, rho, c, g)")
            for value in values:
                checked_number(name, value, 1e-6 if name == "sd" else -1e3, 1e3)
        for name, largest in (("bends", 10), ("noise", 10), ("widening", 1e3)):
            checked_number(name, getattr(self, name), 1e-6, largest)


@dataclasses.dataclass(frozen=True)
class Run:
    """The curve of one run, which may have ended long before the target.

    Lists and iterators become arrays.

    Attributes:
        factor: the echo factor, >= 1.
        fresh_examples, steps: [points] at each evaluation. An example is counted once, however
            often it is repeated.
        loss: [points] a positive number that falls: a loss, or 1 - accuracy. If it rises instead,
            the evidence is not enough. Values that are not finite are skipped, and those before the
            first fresh example; if the last one is not finite, the run diverged, and its factor is
            not recommended.
    """

    factor: float
    fresh_examples: np.ndarray
    steps: np.ndarray
    loss: np.ndarray

    def __post_init__(self):
        object.__setattr__(self, "factor", comparable_factor("factor", self.factor))
        arrays = {}
        for name in ("fresh_examples", "steps", "loss"):
            points: Any = getattr(self, name)
            points = list(points) if isinstance(points, Iterator) else points
            try:
                array = np.asarray(points, float)
            except (TypeError, ValueError) as error:
                raise EchoSpecError(name, points, "numbers, one for each evaluation") from error
            if array.ndim != 1 or not len(array):
                raise ValueError(f"{name} has shape {array.shape}; allowed: [points], at least one")
            arrays[name] = array
            object.__setattr__(self, name, array)
        if len({len(array) for array in arrays.values()}) > 1:
            lengths = ", ".join(f"{name} {len(array)}" for name, array in arrays.items())
            raise ValueError(f"the arrays of a run differ in length: {lengths}; allowed: equal")
        for name in ("fresh_examples", "steps"):
            if not np.isfinite(arrays[name]).all():
                raise ValueError(f"{name} is not finite at a point; allowed: numbers >= 0")
            if not (np.diff(arrays[name], prepend=0) >= 0).all():
                raise ValueError(f"{name} decreases; allowed: numbers >= 0 that never decrease")
        if (arrays["loss"] <= 0).any():
            raise ValueError(
                f"loss is {arrays['loss'].min():g} at a point; allowed: numbers above 0 (with an "
                "accuracy, give 1 - accuracy plus half an example)"
            )


@dataclasses.dataclass(frozen=True)
class Cell:
    """What one factor takes to reach the target.

    Attributes:
        fresh_examples, fresh_low, fresh_high: their median, and the ends of its 90% interval.
        seconds, seconds_low, seconds_high: the same for seconds of training.
        best: probability that this factor is the fastest.
        observed: whether a run of this factor reached the target.
    """

    fresh_examples: float
    fresh_low: float
    fresh_high: float
    seconds: float
    seconds_low: float
    seconds_high: float
    best: float
    observed: bool


@dataclasses.dataclass(frozen=True)
class Forecast:
    """A forecast; str(forecast) is a report.

    Attributes:
        cells: by factor, without those whose pilots diverged.
        factor: the factor with the least expected log seconds.
        regret: the time of `factor` relative to that of the fastest factor: an upper bound with
            95% probability under the fitted law.
        caveat: why the evidence is not enough, or "".
        next_factor: the factor whose pilot to extend (or start) next; None if the answer is clear,
            or if no factor whose pilots have yet to reach the target is likely to be faster. A
            pilot of a larger factor that has taken fewer seconds comes first.
        noise: standard deviation of log fresh examples around the fitted law.
    """

    cells: dict[float, Cell]
    factor: float
    regret: float
    caveat: str
    next_factor: float | None
    noise: float

    def __str__(self) -> str:
        lines = ["   e   fresh examples (90%)              seconds (90%)               fastest"]
        for factor, cell in self.cells.items():
            fresh = map(_text, (cell.fresh_examples, cell.fresh_low, cell.fresh_high))
            times = map(_text, (cell.seconds, cell.seconds_low, cell.seconds_high))
            columns = "{} ({} to {})".format(*fresh), "{} ({} to {})".format(*times)
            mark = " *" if factor == self.factor else ""
            lines.append(f"{factor:4g}   {columns[0]:33} {columns[1]:27} {cell.best:4.0%}{mark}")
        answer = (
            f"Echo with e = {self.factor:g}: with 95% probability within "
            f"{self.regret:.2f} times the fastest factor's time."
        )
        if self.caveat:
            answer = f"Not enough evidence: {self.caveat}. The best guess is e = {self.factor:g}."
        if self.next_factor is not None:
            answer += f" Next, run a longer pilot with e = {self.next_factor:g}."
        return "\n".join([*lines, "", textwrap.fill(answer, COLUMNS)])


def forecast(
    runs: Iterable[Run],
    target: float,
    *,
    batch_size: int,
    step_seconds: Mapping[float, float] | None = None,
    input_seconds: float | None = None,
    factors: Iterable[float] = FACTORS,
    prior: Prior | None = None,
    seed: int = 0,
) -> Forecast:
    """Predicts the time to `target` over factors.

    Args:
        runs: pilots of at least two factors, one of them large enough (such as 16) to show what
            repeats cost. They have the same hyperparameters and batch size; several runs of one
            factor are seeds.
        target: the loss to reach.
        batch_size: examples per step, copies included.
        step_seconds: seconds per step by factor; the factors in it replace `factors`. By default
            a fresh example takes one second and repeats take none, so seconds are fresh examples.
        input_seconds: seconds in which the input prepares a fresh example, which training waits for
            while the shuffle buffer fills. By default, the most that `step_seconds` allow: the
            smallest e * step_seconds[e] / batch_size, which is exact if the input limits a factor.
        factors: to predict.
        prior: that of the law's parameters; by default from the problems of docs/forecast.md.
        seed: seed of the draws from the posterior.

    Raises:
        ValueError: a number that is not allowed, no run, fewer than two usable points, fresh
            examples that do not fit the steps, or pilots all of which diverged.
        TypeError: runs, step_seconds, or a prior of another type.
        ImportError: scipy is not installed.
    """
    checked_number("target", target, 1e-12, 1e12)
    checked_integer("batch_size", batch_size, 1, MAX_BATCH)
    checked_integer("seed", seed, 0, MAX_SEED)
    runs = _checked_runs(runs)
    if not isinstance(step_seconds, Mapping | None):
        raise TypeError(
            f"step_seconds has type {type(step_seconds).__name__}; allowed: a dict: factor "
            "-> seconds"
        )
    if not isinstance(prior, Prior | None):
        raise TypeError(f"prior has type {type(prior).__name__}; allowed: a Prior")
    step_seconds = {
        comparable_factor("a factor in step_seconds", factor): checked_number(
            "step_seconds", seconds_per_step, 1e-12, 1e12
        )
        for factor, seconds_per_step in (step_seconds or {}).items()
    }
    factors = sorted(step_seconds or checked_factors(factors))
    if input_seconds is not None:
        checked_number("input_seconds", input_seconds, 0.0, 1e12)
    for run in runs:
        _check_counts(run, batch_size)
    diverged = {run.factor for run in runs if not np.isfinite(run.loss[-1])}
    factors = [factor for factor in factors if factor not in diverged]
    if not factors:
        raise ValueError("the pilots of all factors diverged; allowed: at least one that did not")
    fit = Fit.to(runs, target, batch_size, prior or Prior())
    # In logs, since forecasts from a plateau exceed the range of a float.
    one_step = np.log(batch_size / np.array(factors))[:, None]
    deviations = [[fit.deviation(runs, factor, target)] for factor in factors]
    log_used = np.maximum(fit.draws(factors, target, seed) + deviations, one_step)
    reached = _observe(log_used, factors, runs, target, fit)
    prefills = np.array([[fit.prefill(factor)] for factor in factors])
    log_prefills = np.log(np.maximum(prefills, 1e-9))
    log_fresh = np.logaddexp(log_prefills, log_used)
    log_seconds = log_fresh
    if step_seconds:
        log_seconds = log_used - one_step + np.log([[step_seconds[e]] for e in factors])
        if input_seconds is None:
            input_seconds = min(e * s for e, s in step_seconds.items()) / batch_size
        log_seconds = np.logaddexp(log_seconds, log_prefills + np.log(max(input_seconds, 1e-15)))
    best = int(np.argmin(log_seconds.mean(axis=1)))
    fastest = log_seconds.min(axis=0)
    regret = float(_exp(np.quantile(log_seconds[best] - fastest, 0.95)))
    shares = (log_seconds <= fastest).mean(axis=1).tolist()
    ranges = [
        _exp(np.quantile(draws, [0.5, 0.05, 0.95], axis=1).T) for draws in (log_fresh, log_seconds)
    ]
    cells = {
        factor: Cell(*map(float, (*n, *t)), best=share, observed=factor in reached)
        for factor, n, t, share in zip(factors, *ranges, shares, strict=True)
    }
    chances = (log_seconds < log_seconds[best]).mean(axis=1)
    caveat = _caveat(runs, target, diverged, factors[best], regret)
    following = _next_factor(factors, best, reached, chances)
    if not caveat and regret <= CLEAR_REGRET:
        following = None
    if following is not None:
        following = _furthest_behind(runs, factors, following, reached, step_seconds)
    return Forecast(cells, factors[best], regret, caveat, following, fit.noise)


def _checked_runs(runs: Any) -> list[Run]:
    """Runs of any iterable; raises TypeError or ValueError."""
    if not isinstance(runs, Iterable):
        raise TypeError(f"runs has type {type(runs).__name__}; allowed: a list of Run")
    listed = list(runs)
    for run in listed:
        if not isinstance(run, Run):
            raise TypeError(f"runs contains a value of type {type(run).__name__}; allowed: Run")
    if not listed:
        raise ValueError("runs is empty; allowed: at least one Run")
    return listed


def _observe(log_used, factors, runs: Sequence[Run], target: float, fit: "Fit") -> set[float]:
    """Corrects `log_used`, log fresh examples after the prefill [factors, draws], in place by what
    was observed; returns the factors that reached the target."""
    rng, reached = np.random.default_rng(0), set()

    for draws, factor in zip(log_used, factors, strict=True):
        prefill = fit.prefill(factor)
        own = [run for run in runs if run.factor == factor]
        hits = [fresh_examples_at(run, target) for run in own]
        seen = [np.log(max(hit - prefill, 1)) for hit in hits if hit is not None]
        ends = [run.fresh_examples[-1] for run, hit in zip(own, hits, strict=True) if hit is None]
        ends = [np.log(max(end - prefill, 1)) for end in ends]
        if seen:
            reached.add(factor)
            # A run that has gone further than the others needed takes at least as long as it has.
            late = [np.maximum(draws, end) for end in ends if end > np.mean(seen)]
            logs = [*seen, *late]
            spread = fit.noise / np.sqrt(len(logs)) * rng.standard_normal(len(draws))
            draws[:] = sum(logs) / len(logs) + spread
        elif ends:  # it takes at least as long as it has run
            draws[:] = np.maximum(draws, max(ends))
    return reached


def _exp(logs) -> Any:
    """exp, but at most 1e300."""
    return np.exp(np.minimum(logs, np.log(1e300)))


def _text(number: float) -> str:
    if number > 1e12:
        return "> 1e12"
    return f"{number:,.0f}" if 1_000 <= number < 1e7 else f"{number:.3g}"


def _caveat(
    runs: Sequence[Run], target: float, diverged: set[float], best: float, regret: float
) -> str:
    """Why the evidence is not enough, or ''."""
    piloted = {run.factor for run in runs} - diverged
    if all((run.loss[_usable(run)][:1] <= target).all() for run in runs):
        return (
            "every pilot had reached the target at its first evaluation; evaluate earlier, or, if "
            "the loss is an accuracy, give 1 - accuracy, and a target like it"
        )
    if rising := [run for run in runs if run.factor in piloted and _rises(run)]:
        first, *_, last = rising[0].loss[_usable(rising[0])]
        return (
            f"the loss of a pilot with e = {rising[0].factor:g} rises from {_text(first)} to "
            f"{_text(last)}, and the forecast is for one that falls; run that pilot longer, or, if "
            "the loss is an accuracy, give 1 - accuracy, and a target like it"
        )
    if len(piloted) < 2:
        return "the pilots are of fewer than two factors"
    usable = [run for run in runs if run.factor not in diverged]
    lowest, first = _range(usable, target)
    if lowest > _along(_SEEN, first, target):
        return (
            f"no pilot has come beyond the first {_SEEN:.0%} of the way to the target (in log loss)"
        )
    if best > max(piloted):
        return f"no pilot repeats as much as e = {best:g}, so its price has not been seen"
    if regret > MAX_REGRET:
        return f"e = {best:g} may take {_text(regret)} times as long as another factor (95% bound)"
    return ""


def _rises(run: Run) -> bool:
    """Whether the loss has never been below the first one, and ends well above it."""
    loss = run.loss[_usable(run)]
    return len(loss) > 2 and loss.min() == loss[0] and bool(loss[-1] > _RISE * loss[0])


def _next_factor(factors, best: int, reached: set[float], chances) -> float | None:
    """The best guess until it has reached the target, then whatever may still be faster."""
    if factors[best] not in reached:
        return factors[best]
    open_ = {f: c for f, c in zip(factors, chances, strict=True) if f not in reached}
    contender = max(open_, key=lambda factor: open_[factor], default=None)
    return contender if contender and open_[contender] >= _CONTENDER else None


def _furthest_behind(
    runs: Sequence[Run],
    factors: Sequence[float],
    following: float,
    reached: set[float],
    step_seconds: Mapping[float, float],
) -> float:
    """The factor whose pilot to extend: `following`, or a larger one whose pilots have taken fewer
    seconds, the shortest first. What the repeats of a factor cost shows in its own pilots only. On
    a plateau, which the larger factor leaves first, it looks hopeless until then."""
    seconds = dict.fromkeys(factors, 0.0)
    for run in runs:
        if run.factor in seconds:
            last = run.fresh_examples[-1]
            if step_seconds:
                last = run.steps[-1] * step_seconds[run.factor]
            seconds[run.factor] += float(last)
    behind = [
        e
        for e, spent in seconds.items()
        if e > following and e not in reached and 0 < spent < seconds[following]
    ]
    return min(behind, key=lambda e: seconds[e], default=following)


def _check_counts(run: Run, batch_size: int) -> None:
    """Raises ValueError if a run cannot have taken these steps with these fresh examples."""
    outputs = run.steps * batch_size
    last, least = run.fresh_examples[-1], outputs[-1] / run.factor
    trained = outputs > 0
    copies_counted = (
        run.factor > 1.05
        and len(set(outputs[trained])) > 1
        and np.allclose(run.fresh_examples[trained], outputs[trained], rtol=0.01)
        # with a large buffer, true counts may pass through those of the copies
        and np.isclose(np.ptp(run.fresh_examples[trained]), np.ptp(outputs[trained]), rtol=0.02)
    )
    if copies_counted or least > 1.05 * last + batch_size:
        raise ValueError(
            f"fresh_examples ends at {last:g} after {run.steps[-1]:g} steps with batch_size "
            f"{batch_size} and factor {run.factor:g}; allowed: steps * batch_size / factor = "
            f"{least:g}, and what a shuffle buffer holds; count an example once, however often it "
            "is repeated"
        )


def _prefills(runs: Sequence[Run], batch_size: int) -> dict[float, float]:
    """Fresh examples that the shuffle buffer held before the first step, by factor: medians."""
    held: dict[float, list[float]] = {}
    for run in runs:
        before = np.median(run.fresh_examples - run.steps * batch_size / run.factor)
        held.setdefault(run.factor, []).append(max(0.0, float(before)))
    return {factor: float(np.median(counts)) for factor, counts in held.items()}


def _usable(run: Run) -> np.ndarray:
    """The points that the law can describe, bool [points]: it is one of log n and log l."""
    return np.isfinite(run.loss) & (run.fresh_examples > 0)


def fresh_examples_at(run: Run, level: float) -> float | None:
    """Fresh examples at which the curve first reaches `level`, interpolated between evaluations."""
    usable = _usable(run)
    fresh, loss = run.fresh_examples[usable], run.loss[usable]
    below = np.flatnonzero(loss <= level)
    if not len(below):
        return None
    after = below[0]
    if not after:
        return float(fresh[0])
    span = np.log(loss[after - 1] / loss[after])
    share = np.log(loss[after - 1] / level) / span
    return float(fresh[after - 1] * (fresh[after] / fresh[after - 1]) ** share)


def _range(runs: Sequence[Run], target: float) -> tuple[float, float]:
    """The lowest loss of all runs, at least the target, and the largest first loss."""
    curves = [run.loss[_usable(run)] for run in runs]
    lowest = max(min((curve.min() for curve in curves if len(curve)), default=target), target)
    first = max((curve[0] for curve in curves if len(curve)), default=target)
    return lowest, first


def _along(share: float, first: float, target: float) -> float:
    """The loss after a share of the way from `first` to the target, in log loss."""
    return target * (first / target) ** (1 - share)


def _levels(runs: Sequence[Run], target: float) -> np.ndarray:
    """Levels of the loss between the end of the transient and the lowest loss of all runs."""
    lowest, first = _range(runs, target)
    top = max(_along(_TRANSIENT, first, target), 1.05 * lowest)
    return np.geomspace(lowest, top, _LEVELS)


def _knots(levels: np.ndarray, target: float) -> np.ndarray:
    """Knots of log S, which is piecewise linear in log loss: from the log of the target upward to
    the logs of `levels` (rising), with at most four segments below them, which no run has reached.
    """
    seen, end = np.log(levels), np.log(target)
    below = min(max(round((seen[0] - end) / (seen[1] - seen[0])), 1), 4)
    return np.unique([*np.linspace(end, seen[0], below + 1), *seen])


@dataclasses.dataclass(frozen=True)
class Fit:
    """The fitted law.

    Attributes:
        mode: log S at `middle`, the logs of k, r, rho, c, g, and the bends: in each segment between
            `knots`, the log of the exponent of S over k. The first and the last segment are open.
        covariance: of a normal approximation of the posterior around the mode.
        noise: the standard deviation of log fresh examples around the law.
        knots: log losses.
        middle: the mean log loss of the points to which the law was fitted.
        prefills: fresh examples that the shuffle buffer held before the first step, by factor of
            the runs.
        widening: that of the prior.
    """

    mode: np.ndarray
    covariance: np.ndarray
    noise: float
    knots: np.ndarray
    middle: float
    batch_size: int
    prefills: Mapping[float, float]
    widening: float

    @classmethod
    def to(cls, runs: Sequence[Run], target: float, batch_size: int, prior: Prior) -> "Fit":
        """Maximizes the posterior; the noise is estimated from the residuals of a first fit."""
        try:
            from scipy.linalg import block_diag
            from scipy.optimize import least_squares
        except ImportError:
            raise missing_package("echo.advice.forecast", "scipy", "forecast") from None

        prefills = _prefills(runs, batch_size)
        points = []  # (factor, log level, log fresh examples, weight)
        levels = _levels(runs, target)
        for run in runs:
            loss = run.loss[_usable(run)]
            if not len(loss):
                continue
            first, lowest = loss[0], max(loss.min(), target)
            own = sorted({lowest, *levels[(levels >= lowest) & (levels <= first)]})
            known = [(level, fresh_examples_at(run, level)) for level in own]
            held = prefills[run.factor]
            known = [
                (level, n - held)
                for level, n in known
                if n is not None and n - held >= batch_size / run.factor
            ]
            weight = min(1.0, np.sqrt(_INDEPENDENT / max(len(known), 1)))
            points += [(run.factor, np.log(level), np.log(n), weight) for level, n in known]
        if len(points) < 2:
            raise ValueError(
                f"the number of usable points is {len(points)}; allowed: at least two evaluations "
                "after the shuffle buffer was filled; run the pilots longer, or evaluate more often"
            )
        factor, level, fresh, weight = np.array(points).T
        middle, density = level.mean(), factor / batch_size
        knots = _knots(levels, target)
        segments = _segments(level, middle, knots)
        bends = np.zeros(len(knots) - 1)
        mean = np.array([np.mean(fresh + np.log(density)), *prior.mean, *bends])
        sd = np.diag([3.0, *prior.sd])
        whitening: Any = block_diag(np.linalg.inv(sd), _whitening(knots, prior))
        noise = prior.noise

        def residuals(p):
            miss = _law(p, segments, density) - fresh
            return np.concatenate([miss * weight / noise, whitening @ (p - mean)])

        def jacobian(p):
            law = _law_jacobian(p, segments, density)
            return np.concatenate([law * (weight / noise)[:, None], whitening])

        jac: Any = jacobian  # SciPy's annotation does not allow a function
        for _ in range(2):
            fit = least_squares(residuals, mean, jac, max_nfev=200)
            squares = np.sum((fit.fun[: len(points)] * noise) ** 2)
            noise = np.sqrt((4 * prior.noise**2 + squares) / (4 + np.sum(weight**2)))
        fit = least_squares(residuals, fit.x, jac, max_nfev=200)
        covariance = np.linalg.inv(fit.jac.T @ fit.jac)
        return cls(
            fit.x, covariance, float(noise), knots, middle, batch_size, prefills, prior.widening
        )

    def prefill(self, factor: float) -> float:
        """Fresh examples that the shuffle buffer holds before the first step: those of the factor's
        runs; else the examples in the buffer of the others, a copy of each counted once. Without
        echoing, there is no buffer."""
        if factor in self.prefills:
            return self.prefills[factor]
        slots = [held * other for other, held in self.prefills.items() if other > 1]
        return float(np.median(slots)) / factor if slots and factor > 1 else 0.0

    def fresh_examples(self, factor: float, loss: np.ndarray) -> np.ndarray:
        """Fresh examples to each loss by the law at its mode, [levels]."""
        segments = _segments(np.log(loss), self.middle, self.knots)
        law = _law(self.mode, segments, factor / self.batch_size)
        return self.prefill(factor) + np.exp(law)

    def deviation(self, runs: Sequence[Run], factor: float, target: float) -> float:
        """How much later than by the law the runs of this factor will reach the target, in log
        fresh examples: the mean over those that have yet to reach it, 0 if there are none.

        A run that is late stays late; one that has not improved since its lowest loss is late. This
        is correlated along the way as the bends are.
        """
        late = []
        for run in runs:
            loss = run.loss[_usable(run)]
            if run.factor != factor or not len(loss) or loss.min() <= target:
                continue
            log_lowest = np.log(loss.min())
            used = run.fresh_examples[-1] - self.prefill(factor)
            if used < self.batch_size / factor:
                continue
            segments = _segments(log_lowest, self.middle, self.knots)
            law = _law(self.mode, segments, factor / self.batch_size)
            rest = (log_lowest - np.log(target)) / _way(self.knots)
            late.append(np.exp(-rest / _LENGTH) * (np.log(used) - law))
        return float(np.mean(late)) if late else 0.0

    def draws(self, factors: Sequence[float], target: float, seed: int) -> np.ndarray:
        """Log fresh examples to `target` of a new run after its prefill, [factors, draws]."""
        rng = np.random.default_rng(seed)
        p = rng.multivariate_normal(self.mode, self.covariance, size=_DRAWS, method="cholesky").T
        segments = _segments(np.log(target), self.middle, self.knots)
        log_fresh = _law(p, segments, np.asarray(factors)[:, None] / self.batch_size)
        log_fresh += self.noise * rng.standard_normal(log_fresh.shape)
        center = np.median(log_fresh, axis=1, keepdims=True)
        return center + self.widening * (log_fresh - center)


def _way(knots: np.ndarray) -> float:
    """The length of the way from the start to the target, in log loss."""
    return float(knots[-1] - knots[0]) / (1 - _TRANSIENT)


def _segments(level, middle: float, knots: np.ndarray) -> np.ndarray:
    """The signed length in each segment of the way from `middle` to `level`; the first and the last
    segment are open, [*level.shape, knots - 1]."""
    lower, upper = [-np.inf, *knots[1:-1]], [*knots[1:-1], np.inf]
    return np.clip(np.asarray(level)[..., None], lower, upper) - np.clip(middle, lower, upper)


def _whitening(knots: np.ndarray, prior: Prior) -> np.ndarray:
    """The matrix that whitens the bends under their prior, [segments, segments].

    The prior is an Ornstein-Uhlenbeck process in log loss at the middles of the segments.
    """
    distances = np.diff((knots[1:] + knots[:-1]) / 2)
    correlation = np.exp(-distances / _way(knots) / _LENGTH)
    scale = np.concatenate([[1], 1 / np.sqrt(1 - correlation**2)]) / prior.bends
    return np.diag(scale) - np.diag(scale[1:] * correlation, -1)


def _law(p, segments, density):
    """log n, [points] or [factors, draws].

    Args:
        p: parameters as in `Fit.mode`, [parameters] or [parameters, draws].
        segments: `_segments` of each level, [points, segments] or [segments].
        density: e / B, [points] or [factors, 1].
    """
    return np.logaddexp(*_terms(p, segments, density)[:2])


def _terms(p, segments, density):
    """The logs of the two terms of n, the progress in log loss over which log S falls by k times as
    much, and the log of the price."""
    log_steps, k, r, rho, c, g = p[:6]
    progress = segments @ np.exp(p[6:])
    log_price = c + np.exp(g) * np.log(32 * density)
    examples = log_steps + np.log(32) + r - np.exp(k + rho) * progress
    steps = log_steps - np.exp(k) * progress - np.log(density)
    return examples + np.logaddexp(0, log_price), steps, progress, log_price


def _law_jacobian(p, segments, density):
    """The derivatives of `_law`, [points, parameters]."""
    examples, steps, progress, log_price = _terms(p, segments, density)
    share = np.exp(examples - np.logaddexp(examples, steps))  # of fresh examples in n
    _, k, _, rho, _, g = p[:6]
    d_rho = -share * np.exp(k + rho)
    d_progress = d_rho - (1 - share) * np.exp(k)
    d_price = share * np.exp(log_price - np.logaddexp(0, log_price))
    d_power = d_price * np.exp(g) * np.log(32 * density)
    ones = np.ones_like(progress)
    columns = [ones, d_progress * progress, share, d_rho * progress, d_price, d_power]
    return np.column_stack([*columns, d_progress[:, None] * segments * np.exp(p[6:])])
