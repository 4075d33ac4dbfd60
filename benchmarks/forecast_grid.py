"""The forecast judged on the problems of the registered grid, beside regressions on what a run
measures about its gradients.

    python -m benchmarks.forecast_grid --out=results/forecast_grid.md  # some minutes

results/forecast_protocol.md is the protocol. The forecast is used as it ships: its prior comes from
older studies (benchmarks.forecast_accuracy). Regressions are fitted to the other problems of the
grid.
"""

import collections
import dataclasses
import math
import pathlib
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from analysis.gradients import gradient_statistics
from benchmarks import common
from benchmarks.forecast_accuracy import (
    PILOTS,
    RATIOS,
    Outcome,
    User,
    caps,
    diverged,
    error_text,
    fixed_pilots,
    has_forecast,
    kept,
    predicted,
    problem_outcomes,
    recorded_users,
    row,
    subsets,
    surviving,
    table,
    tuned,
)
from configs import problems
from echo.advice.forecast import Fit, Prior

RESULTS = pathlib.Path("results/grid")
PROBLEMS = ("digits", "logistic", "sentences", "documents", "mnist", "cells", "photographs")
GROWTH = 0.15  # of a pilot, as in advise.py: evaluations are many here
REFERENCE = 4.0  # regressions predict n(e) / n(4)
# The first search that no one had looked at before its problem changed the forecast: sentences gave
# the law its bends, and photographs the rule on half of the way.
FIRST_UNSEEN = {"sentences": 2, "photographs": 4}
QUICK = 4  # users of each problem in a smoke run
MIN_USERS = 18  # to which a regression within a problem is fitted: twice its coefficients


# --- regressions


def measurements(user: User) -> np.ndarray:
    """[7] what the fixed pilots measured about their gradients, NaN where they did not or diverged:
    the log of the noise scale over the batch size; then at e = 4 and at e = 16 each, the mean
    cosine of the gradients of repeats and of fresh rows, and mean logs of the ratios of their norms
    and of their losses (repeats / fresh)."""
    ends = {run.factor: run.fresh_examples[-1] for run in surviving(fixed_pilots(user))}
    frames = {}
    for factor, end in ends.items():
        frame = gradient_statistics(user.trials[factor])
        frames[factor] = frame[frame["fresh_examples"] <= end]
    noise = [frame["gradient_noise_trace"].dropna().to_numpy() for frame in frames.values()]
    signal = [frame["gradient_squared_norm"].dropna().to_numpy() for frame in frames.values()]
    # a noise scale is defined if the mean estimate of |G|^2 is above 0
    noise, signal = _mean(np.concatenate(noise)), _mean(np.concatenate(signal))
    answer = [math.log(noise / signal / user.batch_size) if signal > 0 else math.nan]
    for factor in PILOTS[1:]:
        frame = frames.get(factor)
        if frame is None:
            answer += [math.nan] * 3
            continue
        answer.append(_mean(frame["gradient_cosine"].dropna()))
        with np.errstate(divide="ignore"):  # a gradient of 0 makes the mean infinite, so missing
            answer.append(_mean(np.log(frame["gradient_norm_ratio"].dropna())))
        losses = frame[["repeat_loss", "fresh_loss"]].dropna()
        losses = losses[(losses > 0).all(axis=1)]
        answer.append(_mean(np.log(losses["repeat_loss"] / losses["fresh_loss"])))
    return np.array(answer)


def _mean(values) -> float:
    return float(np.mean(values)) if len(values) else math.nan


@dataclasses.dataclass(frozen=True)
class Example:
    """A user as a regression sees it.

    Attributes:
        online: [7] see `measurements`.
        law: by factor, log(n(e) / n(4)) as the law predicts it from the fixed pilots.
        truth: likewise, as measured; of the factors that reached the target, if e = 4 did.
    """

    user: User
    online: np.ndarray
    law: Mapping[float, float]
    truth: Mapping[float, float]

    @classmethod
    def of(cls, user: User) -> "Example":
        answer = predicted(user, surviving(fixed_pilots(user)), RATIOS[0], Prior())
        law = {e: cell.fresh_examples for e, cell in answer.cells.items()}
        reached = {e: n for e, n in user.fresh.items() if math.isfinite(n)}
        return cls(user, measurements(user), _relative(law), _relative(reached))


def _relative(fresh: Mapping[float, float]) -> dict[float, float]:
    if REFERENCE not in fresh:
        return {}
    return {e: math.log(n / fresh[REFERENCE]) for e, n in fresh.items() if e != REFERENCE}


def inputs(kind: str, example: Example, factor: float) -> np.ndarray:
    """The numbers that a regression of this kind has."""
    online = {"mean": False, "online": True, "both": True}[kind]
    law = [example.law.get(factor, math.nan)] if kind == "both" else []
    return np.r_[example.online if online else [], law]


def regression(kind: str, examples: Sequence[Example], factor: float):
    """A function from an example to log(n(e) / n(4)): ridge regression with a penalty that counts
    as much as one user; each problem has equal weight."""
    used = [example for example in examples if factor in example.truth]
    x = np.array([inputs(kind, example, factor) for example in used])
    y = np.array([example.truth[factor] for example in used])
    sizes = collections.Counter(example.user.problem for example in used)
    weights = np.array([len(used) / len(sizes) / sizes[e.user.problem] for e in used])
    known = np.isfinite(x)
    total = np.maximum((weights[:, None] * known).sum(axis=0), 1e-9)
    center = (weights[:, None] * np.where(known, x, 0)).sum(axis=0) / total
    spread = (weights[:, None] * np.where(known, x - center, 0) ** 2).sum(axis=0) / total
    scale = np.sqrt(np.maximum(spread, 1e-9))

    def standardized(x):
        return np.where(np.isfinite(x), (x - center) / scale, 0.0)

    middle = np.average(y, weights=weights)
    z = standardized(x)
    gram = z.T @ (weights[:, None] * z) + np.eye(z.shape[1])
    slopes = np.linalg.solve(gram, z.T @ (weights * (y - middle)))
    return lambda example: float(middle + standardized(inputs(kind, example, factor)) @ slopes)


KINDS = {
    "mean of the others": "mean",
    "online measurements": "online",
    "online measurements and the law": "both",
}


def by_regression(
    kind: str, examples: Sequence[Example], others: Sequence[Example]
) -> list[dict[float, float]]:
    """For each example, log(n(e) / n(4)) over its factors that occur in the others."""
    known = {e for example in others for e in example.truth}
    fitted = {e: regression(kind, others, e) for e in sorted(known)}
    return [
        {REFERENCE: 0.0} | {e: f(example) for e, f in fitted.items() if e in example.user.runs}
        for example in examples
    ]


# --- the report


def errors(examples: Sequence[Example], answers: Sequence[Mapping[float, float]]) -> list[float]:
    """|log(predicted / true)| of n(e) / n(4)."""
    return [
        abs(answer[e] - true)
        for example, answer in zip(examples, answers, strict=True)
        for e, true in example.truth.items()
        if e in answer
    ]


def chosen(answer: Mapping[float, float], ratio: float) -> float:
    return min(answer, key=lambda e: answer[e] + math.log(max(1, e / ratio)))


def allowed(user: User, answer: Mapping[float, float]) -> dict[float, float]:
    """The answer for the user's factors whose fixed pilot did not diverge."""
    excluded = diverged(fixed_pilots(user))
    return {e: x for e, x in answer.items() if e in user.runs and e not in excluded}


def searches(examples: Sequence[Example]) -> list[tuple[list[Example], list[Example]]]:
    """For each search: its users, and those of the others."""
    numbers = sorted({example.user.name[1] for example in examples})
    return [
        (
            [example for example in examples if example.user.name[1] == number],
            [example for example in examples if example.user.name[1] != number],
        )
        for number in numbers
    ]


def compared(splits: Sequence[tuple[Sequence[Example], Sequence[Example]]]) -> str:
    """A table of the regressions, and of the law from the same fixed pilots.

    Args:
        splits: the users that are judged, and those that the regressions are fitted to.
    """
    examples = [example for judged, _ in splits for example in judged]
    answers = {
        name: [answer for split in splits for answer in by_regression(kind, *split)]
        for name, kind in KINDS.items()
    }
    answers["law"] = [{REFERENCE: 0.0} | dict(example.law) for example in examples]
    rows = []
    for name, predictions in answers.items():
        outcomes = {
            ratio: [
                Outcome(example.user, ratio, {}, chosen(allowed(example.user, answer), ratio))
                for example, answer in zip(examples, predictions, strict=True)
            ]
            for ratio in RATIOS
        }
        of_name = row(name, outcomes)
        off = errors(examples, predictions)
        quantiles = [error_text(off, level) for level in (0.5, 0.9)]
        rows.append([name, of_name[1], *quantiles, *of_name[5:-1]])
    header = ["", "settings", "median error", "90%"]
    return common.markdown_table(header + [f"regret at R = {ratio:g}" for ratio in RATIOS], rows)


def unseen(outcomes: Mapping[str, Mapping[float, Sequence[Outcome]]], problem: str) -> dict:
    """The outcomes of users who were recorded after their problem had changed the forecast."""
    first = FIRST_UNSEEN.get(problem)
    if first is None:
        return {}
    methods = [name for name in outcomes if name.startswith(("law, adaptive", "law without bends"))]
    return {
        f"{name}: searches after {first - 1}": kept(
            outcomes[name], lambda o: o.user.name[1] >= first
        )
        for name in [*methods, "law", "always e = 4"]
    }


def report(grids: Mapping[str, Sequence[User]]) -> str:
    text = [
        "# The forecast on the registered grid",
        "The columns are those of [forecast_accuracy](forecast_accuracy.md). The prior and the "
        "widening of the intervals are those that ship, estimated from the older problems only. "
        "The law's bends were chosen after the first results on the grid. "
        "[The protocol](forecast_protocol.md); [docs/forecast.md](../docs/forecast.md) says what "
        "follows.",
    ]
    examples = {
        name: [
            Example.of(user)
            for user in everyone
            if len(runs := fixed_pilots(user)) > 1 and has_forecast(user, runs)
        ]
        for name, everyone in grids.items()
    }
    for name, everyone in grids.items():
        if not everyone:
            text += [f"## {name}", "No setting reached the target with three factors."]
            continue
        outcomes = problem_outcomes(everyone, Prior(), GROWTH)
        others = [example for other in grids if other != name for example in examples[other]]
        text += [
            f"## {name}",
            table(outcomes | subsets(outcomes, everyone) | unseen(outcomes, name)),
            "`auto` behind a constant upstream, by its maximum number of copies, as in "
            "forecast_accuracy; median / 90% / worst.",
            caps(everyone, Prior(), GROWTH),
        ]
        if others:
            text += [
                "Regressions on the other problems. Errors are those of n(e) / n(4).",
                compared([(examples[name], others)]),
            ]
        splits = searches(examples[name])
        if splits and all(len(rest) >= MIN_USERS for _, rest in splits):
            text += [
                "Regressions on the other searches of the same problem, with other hyperparameters "
                "and data orders.",
                compared(splits),
            ]
    return "\n\n".join(text)


def draw(grids: Mapping[str, Sequence[User]]) -> Figure:
    """The law, fitted to all curves that did not diverge, of one tuned user of each finished
    problem."""
    finished = {name: users for name, users in grids.items() if len(users) >= MIN_USERS}
    figure = Figure(figsize=(11, 4), layout="constrained")
    for index, (name, everyone) in enumerate(finished.items()):
        axes = figure.add_subplot(1, len(finished), index + 1)
        best = tuned(everyone)
        drawn = [(user, surviving(user.runs.values())) for user in everyone if user.name in best]
        user, runs = max(drawn, key=lambda pair: len(pair[1]))
        fit = Fit.to(runs, user.target, user.batch_size, Prior())
        losses = np.exp(np.linspace(fit.knots[0], fit.knots[-1], 200))
        for run in sorted(runs, key=lambda run: run.factor):
            (dots,) = axes.plot(run.fresh_examples, run.loss, ".", ms=4, alpha=0.5)
            law, color = fit.fresh_examples(run.factor, losses), dots.get_color()
            axes.plot(law, losses, color=color, label=f"e = {run.factor:g}")
        axes.axhline(user.target, color="0.5", ls=":")
        axes.set(xscale="log", yscale="log", xlabel="fresh examples", title=name)
        axes.set_ylim(0.97 * user.target, 1.1 * losses[-1])
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter("{x:.2g}")
        axes.xaxis.set_major_formatter("{x:,.0f}")
        metric = problems.get_config(name).target.metric
        axes.set_ylabel(metric if metric == "loss" else f"1 - {metric}")
        axes.legend(frameon=False)
    return figure


def main(argv: list[str] | None = None) -> None:
    parser = common.arguments(__spec__.name, __doc__, quick=QUICK)
    parser.add_argument("--records", type=pathlib.Path, default=RESULTS, help="packed studies")
    options = parser.parse_args(argv)
    most = QUICK if options.quick else None
    grids = {
        name: recorded_users(name, name, packed)[:most]
        for name in PROBLEMS
        if (packed := options.records / f"{name}.tar.xz").exists()
    }
    if not grids:
        parser.error(f"--records: {options.records} has no packed study of {', '.join(PROBLEMS)}")
    common.publish(report(grids), options.out, lambda: draw(grids))


if __name__ == "__main__":
    main()
