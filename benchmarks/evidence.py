"""Every number that the claims rest on, recomputed from results/trials.parquet and curves.parquet.

    python -m benchmarks.evidence --check     compares with the files in docs/ and results/
    python -m benchmarks.evidence --out=.     writes them: pages, CSV files, and a figure

docs/claims.md is the page, results/claims.md has what is behind it, and claims.csv every claim on
every problem (benchmarks/claims.py). factor_ratios.csv has what each factor saves. confirmation.csv
has the grid's best settings with new seeds: a pair is a run of a condition and one of no echoing at
the same batch size, each with its own winner's hyperparameters and the same new seeds; intervals at
level 1 - 0.05/3 hold at each of the three registered looks. mean_curves.csv has curves averaged
over seeds, and convex.md the convex problem. results/protocol.md has the rules.
"""

# pandas has no complete type stubs.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false
# pyright: reportGeneralTypeIssues=false, reportReturnType=false, reportCallIssue=false

import functools
import itertools
import math
import pathlib
from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from scipy import stats

from analysis import archive, bounds, load, scores, tables, uncertainty
from analysis.figures import style
from benchmarks import claims, common, leaderboard
from benchmarks.claims import Pooled
from configs import problems

ROOT = claims.RECORDS.parents[1]
LEVEL = 1 - 0.05 / 3  # of each of three looks
FACTORS = (2, 4, 16)
CONVEX_FACTORS = (1, 2, 4, 8, 16, 32, 64)
# Names for readers who do not know the problems of configs/problems.py.
TITLES = {
    "cells": "blood cells",
    "digits": "digits",
    "logistic": "logistic regression",
    "mnist": "MNIST images",
    "photographs": "photographs",
    "sentences": "sentences",
    "documents": "documents",
}
EASIER = {"sentences": 5.2, "documents": 5.0, "photographs": 0.315}
EASIER |= {"cells": 0.15, "digits": 0.95, "mnist": 0.7, "logistic": 0.85}


# --- claims


@functools.cache
def pooled(claim: str) -> Pooled:
    return claims.pooled(claims.effects(claim).values())


ALL_CLAIMS = [(question, claim) for question, group in claims.CLAIMS.items() for claim in group]


def claim_rows() -> pd.DataFrame:
    rows = []
    for question, claim in ALL_CLAIMS:
        for name, own in claims.effects(claim).items():
            row = {"question": question, "claim": claim, "problem": name, "tuned": own.text}
            row |= {"matched seeds": own.matched_text, "verdict": own.verdict}
            row["1 / e"] = "-" if math.isnan(own.ideal) else f"{own.ideal:.3g}"
            rows.append(row | {"below 1 / e": own.too_small})
    return pd.DataFrame(rows)


def span(claim: str) -> str:
    """The smallest and the largest effect that is known, with their problems."""
    own = claims.effects(claim)
    if len(own) < claims.MIN_PROBLEMS:
        return "; ".join(f"{effect.text} {name}" for name, effect in own.items())
    names = min(own, key=lambda x: own[x].high), max(own, key=lambda x: own[x].low)
    form = "{:+.1f}" if pooled(claim).differs else "{:.2f}"
    ends = (own[name] for name in names)
    texts = [form.format(x.high) if math.isfinite(x.high) else f">{x.low:.2f}" for x in ends]
    return f"{texts[0]} {names[0]} to {texts[1]} {names[1]}"


def page_rows() -> list[list[str]]:
    """The table of docs/claims.md."""
    rows = []
    for question, claim in ALL_CLAIMS:
        if not claim.startswith("..."):
            own, row = claims.effects(claim), pooled(claim)
            anchor = question.lower().replace(" ", "-").strip("?")
            text, _, figure = claim.partition(" (")
            link = f"[{text}](../results/claims.md#{anchor}){f' ({figure}' * bool(figure)}"
            effect = next(iter(own.values())).text if len(own) == 1 else row.text(row.equal)
            named = [
                ", ".join(name for name, x in own.items() if x.verdict == verdict) or "-"
                for verdict in claims.VERDICTS
            ]
            rows.append([link, row.verdict, effect, span(claim), *named])
    return rows


def group_rows(question: str) -> list[list[str]]:
    """A table of results/claims.md."""
    rows = []
    for claim in claims.CLAIMS[question]:
        row = pooled(claim)
        numbers = (row.text(row.equal), row.text(row.random), row.text(row.new))
        rows.append([f"**{claim}**", f"**{row.verdict}**", *numbers])
        for name, own in claims.effects(claim).items():
            rows.append([name, own.verdict, own.text + "*" * own.too_small, own.matched_text, ""])
    return rows


def reached_rows() -> list[list[str]]:
    """How often the best settings without echoing reach the target with new seeds."""
    rows = []
    for problem in TITLES:
        trials = registered(claims.loaded(f"grid/confirmation_{problem}"))
        own = trials[trials["condition"] == f"baseline_b{claims.small(problem)}"]
        rows.append([problem, f"{own[scores.REACHED].count()} of {len(own)}"])
    return rows


# --- factors


def target_rows() -> list[list[str]]:
    """What the factors need at the registered target and, not registered, at an easier one."""
    rows = []
    for problem, target in itertools.chain.from_iterable(
        ((name, problems.PROBLEMS[name].target), (name, easier)) for name, easier in EASIER.items()
    ):
        own = load.read(claims.RECORDS, study=f"grid/{problem}", target=target)
        table = scores.condition_scores(own.trials, own.study).set_index("condition", drop=False)
        names = (claims.e(factor, claims.small(problem)) for factor in FACTORS)
        texts = [tables.effect_text(table.loc[name].to_dict(), "ratio") for name in names]
        rows.append([problem, f"{target:g}", *texts])
    return rows


def passes(problem: str) -> float:
    """Passes over the data within the budget."""
    plan = claims.loaded(f"grid/{problem}").study
    return plan.budget / plan.record["dataset"]["train_examples"]


def factor_rows() -> pd.DataFrame:
    """The ratios of fresh examples to no echoing at the first batch size of each problem."""
    rows = []
    for problem, factor in itertools.product(TITLES, FACTORS):
        size = claims.small(problem)
        row = {"problem": problem, "passes": f"{passes(problem):.2g}", "batch size": size}
        row |= {"e": factor, "1 / e": 1 / factor}
        for prefix, column in (("", ""), (problems.COMMON_CADENCE, ", common cadence")):
            known = archive.studies(claims.RECORDS)
            pair = claims.e(factor, size), f"baseline_b{size}"
            name, confirmed = f"grid/{prefix}{problem}", f"grid/confirmation_{prefix}{problem}"
            own = claims.compared(name, pair) if name in known else None
            row[f"tuned{column}"] = own.text + "*" * own.too_small if own else "-"
            row[f"matched seeds{column}"] = own.matched_text if own else "-"
            row[f"new seeds{column}"] = _new_seeds(confirmed, *pair) if confirmed in known else "-"
        rows.append(row)
    return pd.DataFrame(rows)


def _new_seeds(study: str, condition: str, baseline: str) -> str:
    own = claims.loaded(study)
    pairs = uncertainty.pairs_between(registered(own), own.study, condition, baseline)
    if pairs.empty:
        return "-"
    effect = uncertainty.paired_effects(pairs, own.study).to_dict("records")[0]
    return tables.paired_text(effect, own.study)


@style.styled
def draw_factors() -> Figure:
    """A row per problem, in two regimes: for each factor the median over searches, a line for their
    range, and the ideal, 1 / e, at the neutral cadence. An arrow ends a range whose smallest ratio
    is only bounded."""
    figure = Figure(figsize=(style.WIDTH, 0.9 + 0.45 * len(TITLES)), layout="constrained")
    axes = figure.add_subplot()
    labels = []
    for row, problem in enumerate(TITLES):
        size, study = claims.small(problem), f"grid/{problems.COMMON_CADENCE}{problem}"
        for place, factor in enumerate(FACTORS):
            pair = claims.e(factor, size), f"baseline_b{size}"
            own = claims.compared(study, pair)
            height = row + 0.24 * (place - 1)
            shade = (0.55, 0.25, 0.0)[place]
            color = style.lighter(style.COLORS["before_augmentation"], shade)
            bounded = not own.interval[0] > 0
            searches = claims.by_search(study, *pair)
            low = searches["high"].min() if bounded else own.interval[0]
            axes.plot([low, own.interval[1]], [height, height], color=color, lw=1.6)
            if bounded:
                axes.plot(low, height, "<", ms=4, color=color)
            label = None if row else f"e = {factor}"
            axes.plot(own.high, height, "o", ms=5.5, color=color, label=label)
            axes.plot([1 / factor] * 2, [height - 0.1, height + 0.1], color="black", lw=1.2)
        times = f"{passes(problem):.2g} passes" if passes(problem) > 1 else "read once"
        labels.append(f"{TITLES[problem]}, {times}")
    axes.plot([], [], color="black", lw=1.2, label="1 / e")
    axes.axvline(1, color=style.QUIET, lw=0.8, ls=style.DOTTED, zorder=0)
    axes.axhline(3.5, color=style.QUIET, lw=0.6)
    axes.set_xscale("log", base=2)
    axes.set_xticks([1 / 16, 1 / 8, 1 / 4, 1 / 2, 1], ["1/16", "1/8", "1/4", "1/2", "1"])
    axes.set_yticks(range(len(TITLES)), labels)
    axes.set_ylim(len(TITLES) - 0.5, -0.5)
    axes.tick_params(axis="y", length=0)
    axes.set_xlabel("fresh examples to the target, relative to no echoing")
    figure.legend(loc="outside lower center", ncols=len(FACTORS) + 1)
    return figure


# --- confirmation


def registered(loaded: load.LoadedStudy) -> pd.DataFrame:
    """The trials that may form pairs: of a confirmation, the first run of each pair, since one that
    follows a diverged run has other seeds."""
    if not loaded.study.name.startswith("confirmation"):
        return loaded.trials
    return loaded.trials[loaded.trials["trial"] == 0]


def confirmation_rows() -> pd.DataFrame:
    """Every confirmed condition against no echoing."""
    rows = []
    for name in archive.studies(claims.RECORDS):
        if not name.startswith("grid/confirmation_"):
            continue
        loaded = claims.loaded(name)
        trials, plan = registered(loaded), loaded.study
        reached = trials.groupby("condition")[scores.REACHED].count()
        for condition, pairs in uncertainty.pairs(trials, plan).groupby("condition", sort=False):
            other = plan.baseline_of(plan.condition(condition))
            row = {"problem": name.removeprefix("grid/confirmation_"), "condition": condition}
            counts = {"reached": f"{reached[condition]}, {reached[other]}"}
            rows.append(row | {"over": other} | confirmed(pairs) | counts)
    return pd.DataFrame(rows)


def confirmed(pairs: pd.DataFrame) -> dict[str, str]:
    """The ratio with its interval at LEVEL, and the verdict: fewer, more, or undecided."""
    lows, highs = (pairs[name].to_numpy(float) for name in ("effect_low", "effect_high"))
    low, high, *balance = uncertainty.sign_interval(lows, highs, level=LEVEL)
    if (pairs["reached"] | pairs["baseline_reached"]).sum() < uncertainty.MIN_PAIRS:
        low = high = math.nan
    below, above = (int(side) for side in uncertainty.signs(lows, highs, 1.0))
    differs = not math.isnan(low) and uncertainty.sign_test(below, above) <= 1 - LEVEL
    side = "fewer" if below > above else "more"
    ends = [f"{end:.2f}" if 0 < end < math.inf else "-" for end in (low, high)]
    effect = uncertainty.middle(*balance)
    return {
        "ratio": f"{effect:.2f}" if math.isfinite(effect) else "-",
        "interval": " to ".join(ends),
        "pairs": str(len(pairs)),
        "verdict": side if differs else "undecided",
    }


def worth_rows() -> pd.DataFrame:
    """The effective share of a repeat."""
    table = claims.repeats()
    ratio, share, low, high = (
        table[name].map("{:.2f}".format).replace("inf", "-")
        for name in ("ratio", "share", "low", "high")
    )
    own = table[["problem", "e", "spacing", "study"]].assign(ratio=ratio)
    return own.assign(**{"effective share": share, "interval": low + " to " + high})


def law_rows() -> list[list[str]]:
    """The error of the law on problems that it was not fitted to."""
    table = claims.repeats()
    errors = np.expm1(np.abs(np.log(table["predicted"] / table["ratio"])))
    sides = {"all": errors, "e of at least 4": errors[table["e"] >= 4]}
    return [[name, str(len(own)), f"{own.median():.0%}"] for name, own in sides.items()]


# --- curves averaged over seeds, and the convex problem


def mean_curve_rows() -> pd.DataFrame:
    """Ratios of fresh examples by curves averaged over seeds, at the value of the protocol and, not
    registered, at those around it."""
    rows = []
    for problem in claims.MEAN_PROBLEMS:
        curves, level = claims.mean_curves(problem)
        margin = claims.TARGET_STEPS[problems.get_config(problem).target.metric]
        for step in range(-8, 2):
            at = level + step * margin
            row = {"problem": problem, "value": f"{abs(at):.3f}", "registered": step == 0}
            for own, base in ((2, 1), (4, 1), (16, 1), (4, 16)):
                name = "no echoing" if base == 1 else f"e = {base}"
                ratio = claims.mean_ratio(curves, (own, base), at)
                row[f"e = {own} over {name}"] = str(ratio or "-")
            rows.append(row)
    return pd.DataFrame(rows)


def convex_runs(study: str, batch_size: int, factor: int) -> pd.DataFrame:
    """The runs of the convex problem, `regimes` or `further`, that did not choose the rate, by
    seed: rate, and fresh examples at the last evaluation above the threshold (low) and at the first
    one below it (high)."""
    runs = archive.rows(claims.RECORDS, f"convex/{study}")
    own = runs[(runs["condition"] == f"e{factor}_b{batch_size}") & (runs["search"] > 0)]
    own = own.set_index("trial").sort_index().rename(columns={"optimizer.learning_rate": "rate"})
    high = own["fresh_examples_to_target"].astype(float).fillna(math.inf)
    return own.assign(low=own["fresh_examples_before_target"].astype(float), high=high)


def convex_ratio(study: str, size: int, factor: int, other: int) -> tuple[float, float, float]:
    """(low, high, balance) of the fresh examples of `factor` over those of `other` on the same
    batches; see `uncertainty.sign_interval`."""
    own, base = (convex_runs(study, size, value) for value in (factor, other))
    base = base.reindex(own.index)
    ratios = bounds.ratio((own["low"], own["high"]), (base["low"], base["high"]))
    low, high, *balance = uncertainty.sign_interval(*ratios)
    return low, high, uncertainty.middle(*balance)


def convex_slope(size: int) -> float:
    """The slope of the logarithm of the tuned learning rate over that of the echo factor."""
    rates = [convex_runs("regimes", size, factor)["rate"].iloc[0] for factor in CONVEX_FACTORS]
    return float(stats.linregress(np.log(CONVEX_FACTORS), np.log(rates)).slope)


def ratio_text(low: float, high: float, ratio: float) -> str:
    return f"{ratio:.2f} [{low:.2f}, {high:.2f}]"


def convex_rows() -> list[list[str]]:
    """Fresh examples of logistic regression until its training loss is 0.3, by batch size and
    factor: the tuned rate, the mean and standard deviation over 20 runs, and the ratio to e = 1."""
    rows = []
    for size, factor in itertools.product((4, 16, 64, 256), CONVEX_FACTORS):
        own = convex_runs("regimes", size, factor)
        fresh = own["high"]
        text = ratio_text(*convex_ratio("regimes", size, factor, 1)) if factor > 1 else "1"
        cells = [f"{own['rate'].iloc[0]:.3g}", f"{fresh.mean():,.0f} ± {fresh.std():,.0f}"]
        cells += [f"{fresh.mean() / size * factor:,.0f}", text]
        rows.append([str(size), str(factor), *cells])
    return rows


def convex_verdicts() -> list[list[str]]:
    """The registered claims of Agarwal et al."""
    noise, curvature = convex_ratio("regimes", 4, 64, 16), convex_ratio("further", 256, 4, 1)
    falls, stays = convex_slope(4), convex_slope(256)
    claim = "Noise limits small batches: at 4, e = 64 over 16 is at least 0.8"
    rows = [(claim, ratio_text(*noise), noise[0] >= 0.8, noise[1] < 0.8)]
    claim = "Curvature limits large ones: at 256, e = 4 over 1 is at most 0.35"
    rows.append((claim, ratio_text(*curvature), curvature[1] <= 0.35, curvature[0] > 0.35))
    claim, text = "The tuned rate falls like 1/e at 4, not at 256: slopes", f"{falls:+.2f} at 4"
    sides = falls <= -0.7 and stays >= -0.3, falls > -0.7 and stays < -0.3
    rows.append((claim, f"{text}, {stays:+.2f} at 256", *sides))
    return [[*texts, "yes" if yes else "no" if no else "open"] for *texts, yes, no in rows]


# --- files


def files() -> dict[str, str]:
    """The tables, and the pages with theirs, by path."""
    frames = {
        "claims": claim_rows(),
        "factor_ratios": factor_rows(),
        "confirmation": confirmation_rows(),
        "mean_curves": mean_curve_rows(),
        "worth_of_a_repeat": worth_rows(),
    }
    texts = {f"results/{name}.csv": frame.to_csv(index=False) for name, frame in frames.items()}
    header = ["claim, problem", "verdict", "tuned; pooled: equal weights"]
    header += ["matched; pooled: random effects", "a new problem"]
    groups = {name: (header, group_rows(name)) for name in claims.CLAIMS}
    header = ["claim", "verdict", "effect", "range over problems", *claims.VERDICTS]
    convex = ["batch size", "e", "tuned rate", "fresh examples", "steps", "ratio"]
    pages = {
        "docs/claims.md": {"claims": (header, page_rows())},
        "results/claims.md": groups
        | {
            "targets": (["problem", "target", *(f"e = {e}" for e in FACTORS)], target_rows()),
            "runs": (["problem", "reached"], reached_rows()),
            "law": (["rows", "number", "median error"], law_rows()),
        },
        "results/convex.md": {
            "verdicts": (["registered claim", "measured", "verdict"], convex_verdicts()),
            "ratios": (convex, convex_rows()),
        },
        "results/LEADERBOARD.md": {"rows": (leaderboard.HEADER, leaderboard.rows())},
        "results/time.md": {"seconds": leaderboard.tuned_rows()},
    }
    return texts | {name: common.with_tables(ROOT / name, own) for name, own in pages.items()}


def differing(root: pathlib.Path) -> list[str]:
    """The files whose content does not follow from the records."""
    return [
        name
        for name, text in files().items()
        if not (root / name).exists() or (root / name).read_text(encoding="utf-8") != text
    ]


def main(argv: Sequence[str] | None = None) -> int:
    parser = common.bare_parser(__spec__.name, __doc__)
    group = parser.add_mutually_exclusive_group(required=True)
    group.add_argument("--check", action="store_true", help="compare with the files")
    group.add_argument("--out", type=pathlib.Path, metavar="DIR", help="write them below DIR")
    options = parser.parse_args(argv)
    if options.check:
        if wrong := differing(ROOT):
            print(f"not what the records give: {', '.join(wrong)}; write them with --out=.")
            return 1
        print("every page and table follows from the records")
    else:
        for name, text in files().items():
            (options.out / name).write_text(text, encoding="utf-8")
        picture = style.rendered(draw_factors(), dpi=150)
        (options.out / "results/factor_ratios.png").write_bytes(picture)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
