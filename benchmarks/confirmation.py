"""Confirms the best settings of the grid's conditions with new matched seeds.

    python -m benchmarks.confirmation --choose                  writes results/grid/winners.json
    make confirmation                                           runs them; again to resume
    python -m benchmarks.confirmation --out=results/confirmation.md

For the winners at a common cadence: sweep.py --study=confirmation_common_cadence.

results/protocol.md has the rules: the winner of a condition is the trial with the smallest score of
all its searches, which must be finished (for the baseline, if none reached the target, the one with
the best value); a pair is a run of a condition and one of no echoing at the same batch size, each
with its own winner's hyperparameters and the same new seeds; there are three looks, after a third,
two thirds, and all of the pairs, each at level 1 - 0.05/3, and a condition is decided at the first
look whose interval excludes 1.
"""

# pandas has no complete type stubs.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false
# pyright: reportGeneralTypeIssues=false, reportReturnType=false, reportCallIssue=false

import collections
import dataclasses
import itertools
import math
import pathlib
from collections.abc import Mapping
from typing import Any

import pandas as pd

from analysis import archive, load, scores, uncertainty
from benchmarks import common
from configs import problems
from runs import records
from runs.study import echo_label

RECORDS = pathlib.Path(__file__).parents[1] / "results" / archive.TRIALS
PREFIX = "confirmation_"
LOOKS = 3
LEVEL = 1 - 0.05 / LOOKS


_COMPARED = (
    "Conditions compared with one another on the same new seeds. These comparisons were not "
    "registered; they use all pairs, and their 95% intervals are not adjusted for their number. "
    "Each condition keeps its own winner's hyperparameters, so a difference may come from these."
)


_EARLIER = (
    "An earlier confirmation, registered too, ran the winners of search 0 (of digits, of a part of "
    "it, in an earlier run of the grid) with the same seeds. All of its pairs:"
)


_AGAINST_EARLIER = (
    "The runs of the present winners compared with the baseline of that earlier confirmation, at "
    "its own setting. These comparisons were not registered."
)


def winners(loaded: load.LoadedStudy) -> dict[str, dict[str, float]]:
    """By condition, the hyperparameters of the counted trial that reached the target with the
    smallest score: of those that tie, the one of the first search, then the first trial. A
    condition without such a trial is missing, and one that has not finished every search that the
    study has begun. If no trial of the study's baseline reached the target, the one with the best
    value stands for it."""
    chosen = {}
    names = [axis.field for axis in loaded.study.space]
    searches = scores.search_scores(loaded.trials, loaded.study)
    done = searches[scores.finished(searches, loaded.study)]
    finished = collections.Counter(done["condition"])
    begun = loaded.trials["search"].nunique()
    reached: Any = loaded.trials[loaded.trials["counted"] & loaded.trials[scores.REACHED].notna()]
    for condition, trials in reached.groupby("condition", sort=False):
        if finished[condition] < begun:
            continue
        chosen[condition] = trials.sort_values([scores.REACHED, "search", "trial"]).iloc[0]
    baseline = loaded.study.baseline
    own: Any = loaded.trials[loaded.trials["counted"] & (loaded.trials["condition"] == baseline)]
    if baseline not in chosen and finished[baseline] >= begun and len(own):
        up = loaded.study.target.mode == "below"
        chosen[baseline] = own.sort_values("best_value", ascending=up, kind="stable").iloc[0]
    return {
        condition: {name: plain_number(best[name]) for name in names}
        for condition, best in chosen.items()
    }


def published(name: str) -> load.LoadedStudy:
    """A study of the grid in the published records."""
    return load.read(RECORDS, study=f"grid/{name}")


def plain_number(value: Any) -> float:
    """The value as a whole number where it is one, as hyperparameters are written."""
    number = float(value)
    return int(number) if number.is_integer() else number


@dataclasses.dataclass(frozen=True)
class Decision:
    """The effect of a condition at the look that decided it or at the last one, or from all pairs.

    Attributes:
        pairs: that had been run at this look.
        used: pairs of them that have a sign at an end of the interval.
        decided: pairs of them whose side of 1 is known.
        low, high: the interval, at a look at LEVEL; NaN where it needs more pairs.
        effect: the ratio at which the signs balance; NaN if it is not a single number.
        verdict: "fewer" or "more" if the sign test rejects 1 at the interval's level, or
            "undecided".
    """

    pairs: int
    used: int
    decided: int
    effect: float
    low: float
    high: float
    verdict: str


def decide(pairs: pd.DataFrame, planned: int, complete: int) -> Decision:
    """The decision from the pairs of one condition, with at most `planned` of them.

    Args:
        pairs: rows of `uncertainty.pairs`.
        planned: pairs at the last look.
        complete: the number of first pairs that have been run; a later look has not taken place.
    """
    decision = _at_look(pairs[:0])
    for look in range(1, LOOKS + 1):
        end = round(planned * look / LOOKS)
        if end > complete or decision.verdict != "undecided":
            break
        decision = _at_look(pairs[pairs["search"] < end])
    return decision


def _at_look(pairs: pd.DataFrame, level: float = LEVEL) -> Decision:
    lows, highs = (pairs[name].to_numpy(float) for name in ("effect_low", "effect_high"))
    low, high, *balance = uncertainty.sign_interval(lows, highs, level=level)
    below, above = (int(side) for side in uncertainty.signs(lows, highs, 1.0))
    verdict = "fewer" if below > above else "more"
    if (pairs["reached"] | pairs["baseline_reached"]).sum() < uncertainty.MIN_PAIRS:
        low = high = math.nan
        verdict = "undecided"
    elif uncertainty.sign_test(below, above) > 1 - level:
        verdict = "undecided"
    effect = uncertainty.middle(*balance)
    used = uncertainty.pairs_used(lows, highs, low, high)
    return Decision(len(pairs), used, below + above, effect, low, high, verdict)


def registered(loaded: load.LoadedStudy) -> pd.DataFrame:
    """The first run of each pair: one that follows a diverged run has other seeds and forms no
    pair, not even with another one of its kind."""
    return loaded.trials[loaded.trials["trial"] == 0]


def decisions(loaded: load.LoadedStudy, planned: int) -> dict[str, Decision]:
    """By condition that is compared with no echoing."""
    pairs = uncertainty.pairs(registered(loaded), loaded.study)
    return {
        name: decide(own, planned, complete(loaded, name))
        for name, own in pairs.groupby("condition", sort=False)
    }


def complete(loaded: load.LoadedStudy, condition: str) -> int:
    """The number of first pairs of a condition of which both runs have ended."""
    baseline = loaded.study.baseline_of(loaded.study.condition(condition))
    trials = registered(loaded)
    ended = trials[trials["status"].isin(records.FINISHED)].groupby("condition")["search"]
    both = set(ended.get_group(condition)) & set(ended.get_group(baseline))
    return next(pair for pair in itertools.count() if pair not in both)


def finals(loaded: load.LoadedStudy) -> dict[str, Decision]:
    """By condition, from all pairs, with a 95% interval."""
    pairs = uncertainty.pairs(registered(loaded), loaded.study)
    groups = pairs.groupby("condition", sort=False)
    return {name: _at_look(own, uncertainty.PAIRED_LEVEL) for name, own in groups}


def compared(loaded: load.LoadedStudy) -> list[list[str]]:
    """Rows of conditions that are compared with one another: factors 4 and 16, and insertion
    points, at one batch size."""
    by = {(c.insertion, c.factor, c.batch_size): c.name for c in loaded.study.conditions}
    sizes = sorted({size for *_, size in by})
    before = "before_augmentation"
    sides = [((before, 4.0, size), (before, 16.0, size)) for size in sizes]
    points = dict.fromkeys(point for point, *_ in by if point not in ("none", before))
    sides += [((before, 2.0, size), (point, 2.0, size)) for size in sizes for point in points]
    rows = []
    for own, other in sides:
        if own not in by or other not in by:
            continue
        pairs = uncertainty.pairs_between(registered(loaded), loaded.study, by[own], by[other])
        if pairs.empty:
            continue
        seen = _at_look(pairs, uncertainty.PAIRED_LEVEL)
        labels = [echo_label(insertion, factor) for insertion, factor, _ in (own, other)]
        cells = [f"{own[-1]}", _number(seen.effect), _interval(seen), _used(seen)]
        rows.append([*labels, *cells])
    return rows


def against(loaded: load.LoadedStudy, earlier: load.LoadedStudy) -> list[list[str]]:
    """Rows of the conditions at the batch size of the baseline, compared with the same baseline of
    an earlier confirmation, which has another setting and the same seeds."""
    baseline = loaded.study.condition(loaded.study.baseline)
    sides = []
    for side in (loaded, earlier):
        trials = registered(side)
        low, high = uncertainty.trial_bounds(trials, side.study)
        sides.append(trials[trials["counted"]].assign(low=low, high=high))
    own, base = sides
    base = base[base["condition"] == baseline.name].assign(condition="earlier")
    rows = []
    for condition in loaded.study.conditions:
        if condition.batch_size != baseline.batch_size:
            continue
        both = pd.concat([own[own["condition"] == condition.name], base])
        pairs = uncertainty.paired(both, condition.name, "earlier", ["search"], loaded.study)
        seen = _at_look(pairs, uncertainty.PAIRED_LEVEL)
        label = echo_label(condition.insertion, condition.factor)
        rows.append([label, _number(seen.effect), _interval(seen), _used(seen)])
    return rows


def report(
    studies: Mapping[str, tuple[load.LoadedStudy, int]],
    earlier: Mapping[str, load.LoadedStudy] | None = None,
) -> str:
    """The report as Markdown.

    Args:
        studies: by problem, the confirmation and its planned pairs.
        earlier: by problem, a confirmation at the winners of search 0.
    """
    earlier = earlier or {}
    text = [
        "# The grid's best settings, confirmed with new seeds",
        "Do the best settings of [the grid](protocol.md) hold with new seeds? Each condition runs "
        "with the hyperparameters of its best trial, and the baseline at the same batch size with "
        "those of its own best trial and the same new seeds. The tables give ratios of fresh "
        "examples to the target, with intervals by the sign test. Made by "
        "`python -m benchmarks.confirmation`.",
        "- **Decision.** The registered decision is that of the first of three looks whose "
        "interval at level 0.983 excludes 1. It is wrong with a probability of at most 0.05. "
        "Ratios at a look that decides tend to be too far from 1.\n"
        "- **All pairs** that were run, also after a look had decided, so that their 95% interval "
        "does not depend on the looks; where the runs ended earlier, the problem's section "
        "says so.\n"
        "- **Reached** counts the runs at the target, with echoing and without. Where few runs "
        "without echoing reached it, the best trial of no echoing owed much to its seed. Then the "
        "ratio rests on those few pairs, and says more about that setting than about echoing.\n"
        "- **Pairs used** have a sign at an end of the interval. The others would not change it; "
        "in most of them, no run without echoing reached the target early enough.\n"
        "- **Diverged** runs form no pair, as registered. This favors a condition whose runs "
        "diverge more often than those without echoing; where any diverged, the numbers of pairs "
        "and reached show it.\n"
        "- No interval is adjusted for the number of conditions.\n"
        "- **common_cadence**: the winners of the study `common_cadence`, in which echoing is "
        "evaluated as often per fresh example as no echoing, instead of e times as often, run in "
        "the same way. A verdict that both give does not rest on these additional evaluations.",
    ]
    for problem, (loaded, planned) in studies.items():
        rows = []
        reached = registered(loaded).groupby("condition")[scores.REACHED].count()
        baselines = {c.name: loaded.study.baseline_of(c) for c in loaded.study.conditions}
        whole, decided = finals(loaded), decisions(loaded, planned)
        for name, own in decided.items():
            every = whole[name]
            row = [_label(loaded, name), _number(every.effect), _interval(every), _used(every)]
            row.append(f"{reached[name]}, {reached[baselines[name]]}")
            row += [_number(own.effect), _interval(own), f"{own.pairs}"]
            rows.append([*row, f"{own.decided}", own.verdict])
        header = ["condition", "all pairs", "95%", "pairs used", "reached"]
        header += ["at the look", "98.3%", "pairs", "decided", "verdict"]
        summary = _runs(loaded) + _ended(loaded, planned, decided)
        text += [f"## {problem}", summary, common.markdown_table(header, rows)]
        if rows := compared(loaded):
            header = ["condition", "over", "batch", "ratio", "interval", "pairs used"]
            text += [_COMPARED, common.markdown_table(header, rows)]
        if problem in earlier:
            before = earlier[problem]
            rows = [
                [_label(before, name), _number(own.effect), _interval(own), _used(own)]
                for name, own in finals(before).items()
            ]
            header = ["condition", "over no echoing", "interval", "pairs used"]
            text += [_EARLIER, common.markdown_table(header, rows)]
            rows = against(loaded, before)
            header = ["condition", "over the earlier baseline", "interval", "pairs used"]
            text += [_AGAINST_EARLIER, common.markdown_table(header, rows)]
    return "\n\n".join(text)


def _label(loaded: load.LoadedStudy, name: str) -> str:
    condition = loaded.study.condition(name)
    return f"{echo_label(condition.insertion, condition.factor)}, batch {condition.batch_size}"


def _interval(seen: Decision) -> str:
    if math.isnan(seen.low):
        return "-"
    low = _number(seen.low) if seen.low > 0 else "-"  # an open end
    return f"{low} to {_number(seen.high)}"


def _used(seen: Decision) -> str:
    return f"{seen.used} of {seen.pairs}"


def _number(value: float) -> str:
    return f"{value:.2f}" if math.isfinite(value) else "-"


def _ended(loaded: load.LoadedStudy, planned: int, decided: Mapping[str, Decision]) -> str:
    """Whether the runs ended before all pairs, when the looks had decided."""
    pairs = sorted({complete(loaded, name) for name in decided})
    early = max(pairs, default=planned) < planned
    if not early or any(own.verdict == "undecided" for own in decided.values()):
        return ""
    return (
        f" The runs ended after {' or '.join(map(str, pairs))} of {planned} pairs, by which the "
        "looks had decided, so the intervals of all pairs may depend on the looks, too."
    )


def _runs(loaded: load.LoadedStudy) -> str:
    status = registered(loaded)["status"]
    return (
        f"{int(status.isin(records.FINISHED).sum())} runs of "
        f"{loaded.study.searches * len(loaded.study.conditions)}, "
        f"{int((status == 'diverged').sum())} of which diverged; target "
        f"{loaded.study.target.metric} {loaded.study.target.value:g}."
    )


def main(argv: list[str] | None = None) -> None:
    parser = common.arguments(__spec__.name, __doc__)
    parser.add_argument("--choose", action="store_true", help="choose the winners")
    options = parser.parse_args(argv)
    names = [*problems.PROBLEMS, *map(problems.COMMON_CADENCE.__add__, problems.PROBLEMS)]
    known = archive.studies(RECORDS)
    if options.choose:
        grids = {name: published(name) for name in names if f"grid/{name}" in known}
        chosen = {name: winners(grid) for name, grid in grids.items()}
        records.write_json(problems.WINNERS, chosen)
        return
    studies, earlier = {}, {}
    for name in names:
        if f"grid/{PREFIX}{name}" in known:
            problem = name.removeprefix(problems.COMMON_CADENCE)
            studies[name] = published(PREFIX + name), problems.PROBLEMS[problem].pairs
        if f"grid/{PREFIX}{name}_search_0" in known:
            earlier[name] = published(f"{PREFIX}{name}_search_0")
    common.publish(report(studies, earlier), options.out)


if __name__ == "__main__":
    main()
