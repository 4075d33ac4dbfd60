"""One or two seeds for each pilot, within the same time: which chooses the better factor?

    python -m benchmarks.pilot_seeds --train=out/pilot_seeds    about a quarter of an hour; resumes
    python -m benchmarks.pilot_seeds --out=results/pilot_seeds.md

Fixed before the first run: the users are the settings of the hyperparameters of the first eight
trials of search 0 of the grid's problem `logistic`, at batch size 32, of which at least three
factors reached the target. Each is run with six seeds at e = 1, 2, 4, 8, 16 before augmentation.
The truth of a factor is the geometric mean of the fresh examples of its six runs to the target (1.5
budgets where it was not reached), those that the pilots are cut from included. Pilots are cut from
these runs by the adaptive rule of results/forecast_protocol.md, with seed s alone, or with seeds s
and s + 1 (mod 6), where the shorter pilot of the named factor is extended. Both have the time of
one run without echoing. The regret is the seconds at the chosen factor over those at the fastest
one.

Added later: an oracle, which knows the geometric means of the other seeds and chooses the fastest
factor by them; and the same choices judged by a single run, that of seed s, as forecast_grid has to
judge them. The oracle is no bound there, since pilots see the start of the run that judges them. A
seed with a run that diverged is left out, and a user with fewer than two seeds.

Added last: an oracle on all problems of the grid whose confirmation has three factors (echoing
before augmentation), judged by a single run as forecast_grid judges. It knows the medians of the
other 12 to 63 seeds. Each factor has the hyperparameters of its own best trial.
"""

import collections
import dataclasses
import math
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

import sweep
from analysis import load
from benchmarks import common
from benchmarks.forecast_accuracy import (
    RATIOS,
    Outcome,
    User,
    by_form,
    error_text,
    log_error,
    predicted,
    recorded_users,
    row,
    seeded_pilots,
)
from benchmarks.forecast_grid import GROWTH
from configs import catalog, problems
from echo.advice.forecast import FACTORS, Prior, Run, fresh_examples_at
from runs.progress import Progress
from studies.search import make_study

GRID = pathlib.Path("results/grid/logistic.tar.xz")
CONFIRMATIONS = "results/grid/confirmation_{}.tar.xz"
CURVES = pathlib.Path("results/pilot_seeds.csv.xz")
FRESH = "fresh_examples"  # in place of a search
USERS, SEEDS, BATCH_SIZE, BUFFER = 8, 6, 32, 256


def train(outdir: pathlib.Path) -> None:
    """Runs every user at every factor with every seed: conditions without a search."""
    config = problems.get_config("logistic")
    config.gradient_statistics_every_steps = 0
    config.seed.data, config.seed.model = 30_000, 40_000_000
    grid = load.read(GRID)
    fields = [axis.field for axis in grid.study.space]
    trials = grid.trials.set_index(["condition", "search", "trial"])
    chosen = [
        user
        for user in recorded_users("logistic", "logistic", GRID)
        if user.name[1] == 0 and user.batch_size == BATCH_SIZE
    ]
    conditions: dict[str, dict[str, Any]] = {}
    for user in chosen[:USERS]:
        trial: Any = trials.loc[(f"baseline_b{BATCH_SIZE}", 0, user.name[2])]
        for e in FACTORS:
            echo = catalog.echo("before_augmentation" if e > 1 else "none", e, BUFFER * (e > 1))
            point = {name: trial[name].item() for name in fields}
            conditions[f"user{user.name[2]}_e{e}"] = echo | point
    study = make_study(
        "pilot_seeds",
        config,
        conditions,
        (),
        trials=1,
        searches=SEEDS,
        baseline=next(iter(conditions)),
        config_flag="configs/problems.py:logistic",
    )
    if sweep.run(study, outdir, Progress()) != "finished":
        raise SystemExit("stopped; the same command resumes")
    write_curves(outdir)


def write_curves(study: pathlib.Path, path: pathlib.Path = CURVES) -> None:
    """Writes the accuracies of the counted trials, a row for each condition and search and a column
    for each step. The rows of the search FRESH have the fresh examples at each step."""
    loaded = load.read(study)
    counted: Any = loaded.trials[loaded.trials["counted"]]
    _wide(load.curves(counted, loaded.study.target.metric)).to_csv(path)


def _wide(curves: pd.DataFrame) -> pd.DataFrame:
    """The table of `write_curves`, half as large as one with a row for each evaluation."""
    named = curves.assign(search=curves["search"].astype(str))
    fresh = named.assign(search=FRESH, value=named["fresh_examples"])
    both: Any = pd.concat([fresh.drop_duplicates(["condition", "step"]), named])
    return both.pivot(index=["condition", "search"], columns="step", values="value")


def read_curves(path: pathlib.Path = CURVES) -> pd.DataFrame:
    """What `write_curves` wrote: condition, search, step, fresh_examples, value (accuracy)."""
    wide: Any = pd.read_csv(path, index_col=["condition", "search"])
    long = wide.rename(columns=int).stack().dropna()
    long = long.rename_axis(["condition", "search", "step"])
    is_fresh = long.index.get_level_values("search") == FRESH
    fresh = long[is_fresh].droplevel("search").rename("fresh_examples")
    curves = long[~is_fresh].rename("value").reset_index().join(fresh, on=["condition", "step"])
    return curves.astype({"search": int}).sort_values(["condition", "search", "step"])


class Choice(NamedTuple):
    """A chosen factor, the predicted fresh examples to the target by factor, and the bound on the
    regret, if there is one."""

    factor: float
    fresh: Mapping[float, float]
    bound: float | None = None


@dataclasses.dataclass(frozen=True)
class Seeded:
    """A user with several seeds: one `User` for each, with the curves of all factors."""

    seeds: Sequence[User]

    def seconds(self, ratio: float, without: int | None = None) -> dict[float, float]:
        """Seconds to the target by factor, geometric means over seeds (but seed `without`)."""
        logs = collections.defaultdict(list)
        for number, user in enumerate(self.seeds):
            for e, seconds in user.seconds(ratio).items():
                if number != without:
                    logs[e].append(math.log(seconds))
        return {e: math.exp(np.mean(values)) for e, values in logs.items()}

    def oracle(self, seed: int, ratio: float) -> Choice:
        """The fastest factor over the other seeds."""
        seconds = self.seconds(ratio, without=seed)
        return Choice(min(seconds, key=lambda e: seconds[e]), self.seconds(math.inf, without=seed))

    def pilots(self, seeds: Sequence[int], ratio: float) -> Choice:
        """What adaptive pilots with these seeds forecast, without the cells that a pilot reached;
        e = 1 if they have too few points."""
        limit = min(self.seconds(math.inf)[1.0], self.seeds[0].budget)
        chosen = [self.seeds[seed] for seed in seeds]
        runs = seeded_pilots(chosen, limit, ratio, Prior(), GROWTH)
        if not runs:
            return Choice(1.0, {})
        answer = predicted(chosen[0], runs, ratio, Prior())
        cells = answer.cells.items()
        fresh = {e: cell.fresh_examples for e, cell in cells if not cell.observed}
        return Choice(answer.factor, fresh, answer.regret)


def users(path: pathlib.Path = CURVES) -> dict[str, Seeded]:
    """The users of the records by name, with the seeds of which every factor has a run that did not
    diverge."""
    config = problems.get_config("logistic")
    loss = (1 - config.target.value) * (1 + 1e-9)
    runs: Any = collections.defaultdict(dict)
    key: Any
    for key, curve in read_curves(path).groupby(["condition", "search"]):
        name, _, factor = key[0].partition("_e")
        runs[name, key[1]][float(factor)] = Run(
            float(factor),
            curve["fresh_examples"].to_numpy(),
            curve["step"].to_numpy(),
            np.maximum(1 - curve["value"].to_numpy(), 0.5 / 300),
        )
    by_name = {name: [] for name, _ in sorted(runs)}
    for (name, seed), by_factor in sorted(runs.items()):
        if len(by_factor) == len(FACTORS):
            budget = float(config.budget.fresh_examples)
            user = User("logistic", (name, seed), BATCH_SIZE, loss, budget, by_factor)
            by_name[name].append(user)
    return {name: Seeded(seeds) for name, seeds in by_name.items()}


def confirmed() -> dict[tuple[str, int], list[User]]:
    """The seeds of each confirmed problem and batch size, those with a run at every factor."""
    groups = collections.defaultdict(list)
    for problem in problems.PROBLEMS:
        # At the best settings of all searches of the documents, most seeds diverge at some factor.
        winners = f"{problem}_search_0" if problem == "documents" else problem
        path = pathlib.Path(CONFIRMATIONS.format(winners))
        for user in recorded_users(problem, problem, path, least=0) if path.exists() else []:
            if not user.name[2]:  # a run again, after one that diverged, has other seeds
                groups[problem, user.batch_size].append(user)
    most = {key: max(len(user.runs) for user in seeds) for key, seeds in groups.items()}
    return {
        key: [user for user in seeds if len(user.runs) == most[key]]
        for key, seeds in groups.items()
        if most[key] > 2
    }


def by_others(seeds: Sequence[User], ratio: float) -> list[Outcome]:
    """For each seed, what the medians of the others say: the fastest factor, and the fresh examples
    to the target if it is reached."""
    outcomes = []
    for user in seeds:
        others = [other for other in seeds if other is not user]
        chosen = by_form(
            {e: np.median([other.seconds(math.inf)[e] for other in others]) for e in user.runs},
            user,
            ratio,
        )
        reached = {e: [o.fresh[e] for o in others if math.isfinite(o.fresh[e])] for e in user.runs}
        fresh = {e: float(np.median(hits)) if hits else math.inf for e, hits in reached.items()}
        outcomes.append(dataclasses.replace(chosen, predicted=fresh))
    return outcomes


# How a choice is made, by name in the tables: from seed number `seed` of a user, at a ratio.
RULES: dict[str, Callable[[Seeded, int, float], Choice]] = {
    "pilots with one seed": lambda user, seed, ratio: user.pilots([seed], ratio),
    "pilots with two seeds": lambda user, seed, ratio: user.pilots(
        [seed, (seed + 1) % len(user.seeds)], ratio
    ),
    "oracle": lambda user, seed, ratio: user.oracle(seed, ratio),
}


def report(
    by_name: Mapping[str, Seeded], confirmations: Mapping[tuple[str, int], Sequence[User]]
) -> str:
    everyone = [user for user in by_name.values() if len(user.seeds) > 1]
    choices = {
        name: {ratio: _every(everyone, rule, ratio) for ratio in RATIOS}
        for name, rule in RULES.items()
    }
    spread = np.mean([_spread(user) for user in everyone])
    return "\n\n".join(
        [
            "# One or two seeds for each pilot",
            "Do two seeds for each pilot choose a better echo factor than one? Cells are the "
            "regret of the chosen factor: median / 90% / worst, and in parentheses the mean of "
            f"its logarithm, over {len(everyone)} settings of the hyperparameters of logistic "
            f"regression and the choices of seeds. {exclusions(by_name)} The last column is the "
            "median error of the predicted fresh examples at R = "
            f"{RATIOS[0]:g}, as in [forecast_accuracy](forecast_accuracy.md), but a factor that "
            "missed the target counts as 1.5 budgets. Between seeds, log fresh examples to the "
            f"target have a standard deviation of {spread:.2f} (mean). Made by `python -m "
            "benchmarks.pilot_seeds`, whose docstring has the rules.",
            "## Judged by the means of all seeds",
            "The means include the runs that the pilots are cut from.",
            _table(choices, lambda user, seed, ratio: user.seconds(ratio)),
            "## Judged by a single run",
            "[forecast_grid](forecast_grid.md) judges in this way, because its settings have one "
            "run at each factor. The oracle is the fastest factor over all other seeds. It is no "
            "bound: pilots see the start of the run that judges them.",
            _table(choices, _single),
            "## The oracle on all problems",
            "What could any forecast do that has not seen the run that judges it? The oracle takes "
            "the factor that is fastest by the medians of all other seeds. It predicts the median "
            "of those that reached the target, and its error is that of the runs that do. Each "
            "factor has the hyperparameters of its own best trial "
            "([confirmation](confirmation.md); of documents, in search 0), so this is the noise "
            "between seeds at tuned settings.",
            limits(confirmations),
        ]
    )


def exclusions(by_name: Mapping[str, Seeded]) -> str:
    """Sentences on what is left out because runs diverged."""
    left = {name.replace("user", "trial "): len(user.seeds) for name, user in by_name.items()}
    judged = sum(count > 1 for count in left.values())
    listed = ", ".join(f"{n} of {SEEDS} for {name}" for name, n in left.items() if n < SEEDS)
    return (
        f"Of {len(by_name)} registered settings, {judged} are judged: a seed whose run at any "
        "factor diverged is left out, and so is a setting with fewer than two seeds left. Seeds "
        f"left: {listed or 'all'}{', all for the others' if listed else ''}."
    )


def _every(everyone: Sequence[Seeded], rule, ratio: float) -> list[tuple[Seeded, int, Choice]]:
    """The rule's choices for every user and seed."""
    return [
        (user, seed, rule(user, seed, ratio))
        for user in everyone
        for seed in range(len(user.seeds))
    ]


def limits(confirmations: Mapping[tuple[str, int], Sequence[User]]) -> str:
    """The table of what `by_others` misses."""
    rows = []
    for (problem, batch_size), seeds in confirmations.items():
        outcomes = {ratio: by_others(seeds, ratio) for ratio in RATIOS[:-1]}
        _, count, error, high, _, *regrets, _ = row("", outcomes)
        factors = ", ".join(f"{e:g}" for e in sorted(seeds[0].runs))
        rows.append([problem, f"{batch_size}", factors, count, *regrets, error, high])
    header = ["problem", "batch size", "factors", "seeds"]
    header += [*(f"R = {ratio:g}" for ratio in RATIOS[:-1]), "median error", "90%"]
    return common.markdown_table(header, rows)


def _single(user: Seeded, seed: int, ratio: float) -> Mapping[float, float]:
    """Seconds of the seed's own runs, by factor."""
    return user.seeds[seed].seconds(ratio)


def _table(choices, truth: Callable[[Seeded, int, float], Mapping[float, float]]) -> str:
    rows = []
    for name, by_ratio in choices.items():
        cells, within = [], []
        for ratio, of_rule in by_ratio.items():
            regrets = []
            for user, seed, choice in of_rule:
                seconds = truth(user, seed, ratio)
                regrets.append(seconds[choice.factor] / min(seconds.values()))
                if choice.bound is not None:
                    within.append(regrets[-1] <= choice.bound)
            levels = [f"{np.quantile(regrets, level):.2f}" for level in (0.5, 0.9, 1)]
            cells.append(f"{' / '.join(levels)} ({np.mean(np.log(regrets)):.3f})")
        errors = [
            log_error(fresh, truth(user, seed, math.inf)[e], user.seeds[0].budget)
            for user, seed, choice in by_ratio[RATIOS[0]]
            for e, fresh in choice.fresh.items()
        ]
        held = f"{np.mean(within):.0%}" if within else ""
        rows.append([name, *cells, error_text(errors), held])
    header = ["", *(f"R = {ratio:g}" for ratio in RATIOS), "median error", "within bound"]
    return common.markdown_table(header, rows)


def _spread(user: Seeded) -> float:
    """The mean over factors of the standard deviation of log fresh examples between seeds."""
    level = user.seeds[0].target
    deviations = []
    for e in user.seeds[0].runs:
        hits = [fresh_examples_at(seed.runs[e], level) for seed in user.seeds]
        known = [math.log(hit) for hit in hits if hit is not None]
        if len(known) > 2:
            deviations.append(np.std(known, ddof=1))
    return float(np.mean(deviations)) if deviations else math.nan


def main(argv: list[str] | None = None) -> None:
    parser = common.arguments(__spec__.name, __doc__)
    parser.add_argument("--train", type=pathlib.Path, metavar="DIR", help="train in DIR")
    options = parser.parse_args(argv)
    if options.train:
        train(options.train)
    common.publish(report(users(), confirmed()), options.out)


if __name__ == "__main__":
    main()
