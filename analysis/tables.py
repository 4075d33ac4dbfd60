"""The tables of a study as text: what each condition scored, and what became of its trials."""

import itertools
import math
import textwrap
from collections.abc import Callable, Iterable, Sequence

import pandas as pd

from analysis import bounds, uncertainty
from analysis import scores as scoring
from analysis.load import Records
from analysis.study import BEST_VALUE, SECONDS, Study, factor_text, target_text

_SETTING = ("condition", "insertion", "e", "shuffle buffer")
TRIAL_COLUMNS = ("condition", "trials counted", "censored", "diverged")
TRIAL_COLUMNS += (
    f"score of a resampled search: median [{uncertainty.LEVEL:.0%} of such searches]",
)
_PAIRED = ("condition", "pairs: both reached", "only the condition", "only the baseline", "neither")
_WORD = 13  # columns that the longest word of a condition takes in a terminal
# Where a cell of numbers is broken, and where also if the table would be too wide.
_BREAKS = ((" (", " ["), (" (", " [", " to ", ", "))


def columns(conditions: pd.DataFrame, study: Study) -> tuple[str, ...]:
    """The head of the table of conditions; it says what stands in parentheses and brackets."""
    spread = _spread(conditions, study, study.score)
    effect = _spread(conditions, study, scoring.EFFECTS[study.score])
    if study.score == BEST_VALUE:
        return (
            *(*_SETTING, "searches"),
            f"best value: median ({spread})",
            f"difference to baseline [{effect}]",
        )
    reached, ratio = "searches reached", f"ratio to baseline [{effect}]"
    if study.score == SECONDS:
        cost = ("train seconds", ratio, "fresh examples", f"their ratio [{effect}]")
        return (
            *_SETTING,
            reached,
            f"{cost[0]}: median ({spread})",
            *cost[1:],
            "resolution",
            "steps",
        )
    cost = (f"fresh examples: median ({spread})", ratio, "ideal 1/e", "resolution")
    return (*_SETTING, reached, *cost, "steps", "train seconds")


def _spread(conditions: pd.DataFrame, study: Study, name: str) -> str:
    """What the ends beside a median are: "range of 3 searches", "93.75 % interval, 5 searches".

    By the condition with the fewest, so that no row is promised more than it has.
    """
    others = conditions["condition"] != conditions["baseline"]
    counts = conditions.loc[others if others.any() else slice(None), f"{name}_count"]
    least = int(counts[counts > 0].min()) if (counts > 0).any() else 0
    words = bounds.interval_name(least)
    noun = "search" if least == 1 else "searches"
    return f"{words}{',' if words != 'range' else ' of'} {least} {noun}"


def condition_rows(conditions: pd.DataFrame, study: Study) -> list[tuple[str, ...]]:
    """The table of conditions as text, one tuple per condition, in the order of `columns`."""
    cells = {SECONDS: _seconds_cells, BEST_VALUE: _value_cells}.get(study.score, _target_cells)
    return [
        (
            row["label"],
            row["insertion"].replace("_", " "),
            factor_text(row["factor"]),
            _count(row["shuffle_buffer"]),
            *cells(row),
        )
        for row in conditions.to_dict("records")
    ]


def _target_cells(row: dict) -> tuple[str, ...]:
    return (
        f"{row['searches_reached']}/{row['searches']}",
        _with_range(row, "fresh_examples", _count),
        effect_text(row, "ratio"),
        _number(row["ideal_ratio"], ".3g"),
        _number(row["resolution"], ".0%"),
        score_text(row["steps_low"], row["steps_high"], _count),
        score_text(row["seconds_low"], row["seconds_high"], _seconds),
    )


def _seconds_cells(row: dict) -> tuple[str, ...]:
    return (
        f"{row['searches_reached']}/{row['searches']}",
        _with_range(row, "seconds", _seconds),
        effect_text(row, "seconds_ratio"),
        score_text(row["fresh_examples_low"], row["fresh_examples_high"], _count),
        effect_text(row, "ratio"),
        _number(row["resolution"], ".0%"),
        score_text(row["steps_low"], row["steps_high"], _count),
    )


def _value_cells(row: dict) -> tuple[str, ...]:
    values = _with_range(row, "best_value", _value, -math.inf)
    return str(row["searches"]), values, effect_text(row, "difference")


def score_text(low: float, high: float, words: Callable[[float], str]) -> str:
    """A score by its ends: "4,400", ">12,000" where it is only known to lie above that."""
    if math.isinf(high):
        return f">{words(low)}" if low > 0 else "not known"
    return bounds.text(low, high, words)


def measure_words(study: Study) -> Callable[[float], str]:
    """How the study's scores are written."""
    return {SECONDS: _seconds, BEST_VALUE: _value}.get(study.score, _count)


def _with_range(row: dict, name: str, words: Callable[[float], str], floor: float = 0.0) -> str:
    found = scoring.summary_of(row, name)
    middle = score_text(found.low, found.high, words)
    if found.count < 2:
        return middle
    return f"{middle} ({bounds.ends_text(found, words, floor, ' to ')})"


def effect_text(row: dict, name: str) -> str:
    """A condition's effect with its ends over searches: "0.72 [0.57, 0.79]"; "1.00" of a baseline.

    Args:
        row: of `scores.condition_scores`.
        name: one of `scores.EFFECTS`.
    """
    differ = name == "difference"
    if row["baseline"] == row["condition"]:
        return "-" if differ else "1.00"
    words, floor = (_signed, -math.inf) if differ else (_ratio, 0.0)
    found = scoring.summary_of(row, name)
    middle = bounds.text(found.low, found.high, words, floor)
    if found.count < 2:
        return middle
    return f"{middle} [{bounds.ends_text(found, words, floor)}]"


def trial_rows(found: Records, conditions: pd.DataFrame) -> list[tuple[str, ...]]:
    """What became of the trials, and what a search of as many, resampled, scores."""
    curves = uncertainty.score_by_trials(found.trials, found.study)
    last = curves.groupby("condition").last()
    words = measure_words(found.study)
    by_value = found.study.score == BEST_VALUE
    lines = []
    for row in conditions.to_dict("records"):
        scored = "-"
        if row["condition"] in last.index:
            ends = [
                f">{words(last.at[row['condition'], 'beyond'])}"
                if math.isinf(score)
                else words(score)
                for score in last.loc[row["condition"], ["score", "low", "high"]]
            ]
            scored = f"{ends[0]} [{ends[1]}, {ends[2]}]"
        lines.append(
            (
                row["label"],
                str(row["trials_counted"]),
                "-" if by_value else _of(row["trials_censored"], row["trials_counted"]),
                _of(row["trials_diverged"], row["trials_ended"]),
                scored,
            )
        )
    return lines


def paired_columns(study: Study) -> tuple[str, ...]:
    """The head of the table of effects with matched seeds."""
    kind = "difference" if study.score == BEST_VALUE else "ratio"
    effect = f"{kind} [{uncertainty.PAIRED_LEVEL:.0%} interval]"
    less, more = uncertainty.verdicts(study)
    searches = f"searches {less}/{more}"
    counts = ("condition", "pairs") if study.score == BEST_VALUE else _PAIRED
    return (*counts, effect, f"{less}/{more}", "p", "p (Holm)", searches, "verdict")


def paired_rows(effects: pd.DataFrame, study: Study) -> list[tuple[str, ...]]:
    """Each condition's trials beside the baseline's with matched seeds, a tuple per condition."""
    counts = ("pairs",)
    if study.score != BEST_VALUE:
        counts += ("condition_alone", "baseline_alone", "neither")
    return [
        (
            row["label"],
            *(str(row[name]) for name in counts),
            paired_text(row, study),
            f"{row['below']}/{row['above']}",
            _p(row["p"]),
            _p(row["p_holm"]),
            f"{row['searches_below']}/{row['searches_above']}",
            row["verdict"],
        )
        for row in effects.to_dict("records")
    ]


def paired_text(row: dict, study: Study) -> str:
    """An effect with matched seeds and its interval: "0.67 [0.59, 0.78]"."""
    differ = study.score == BEST_VALUE
    words, floor = (_signed, -math.inf) if differ else (_ratio, 0.0)
    middle = bounds.text(row["effect_low"], row["effect_high"], words, floor)
    if pd.isna(row["low"]):
        return f"{middle} (too few pairs)"
    low = "-" if row["low"] <= floor else words(row["low"])
    return f"{middle} [{low}, {'-' if math.isinf(row['high']) else words(row['high'])}]"


def text(found: Records, conditions: pd.DataFrame, width: int = 100) -> str:
    """The table for a terminal of `width` columns, with its title.

    Labels break to fit; where that does not do, lines are longer rather than columns left out.
    """
    table = [columns(conditions, found.study), *condition_rows(conditions, found.study)]
    for breaks in _BREAKS:
        numbers = _numbers(table, breaks)
        widths = [_width(column) for column in zip(*numbers, strict=True)]
        spare = width - sum(widths) - len(widths) - 1 - _WORD
        if spare >= _WORD:
            break
    words = [[_broken(row[0], max(spare, _WORD)), textwrap.wrap(row[1], _WORD)] for row in table]
    widths = [_width(row[place] for row in words) for place in (0, 1)] + widths
    lines = [
        line
        for named, counted in zip(words, numbers, strict=True)
        for line in _aligned([*named, *counted], widths)
    ]
    return "\n".join([title(found.study), "", *lines]) + "\n"


def _numbers(table: Sequence[Sequence[str]], breaks: Sequence[str]) -> list[list[list[str]]]:
    """The columns of numbers: each cell as lines, broken at `breaks`, the head to their width."""
    cells = [[_split(cell, breaks) for cell in row[2:]] for row in table[1:]]
    head = [
        textwrap.wrap(cell, max(_width(column), *map(len, cell.split())), break_long_words=False)
        for cell, column in zip(table[0][2:], zip(*cells, strict=True), strict=True)
    ]
    return [head, *cells]


def _split(cell: str, breaks: Sequence[str]) -> list[str]:
    for mark in breaks:
        cell = cell.replace(mark, mark.replace(" ", "\n", 1))
    return cell.split("\n")


def _width(column: Iterable[Sequence[str]]) -> int:
    return max(len(line) for cell in column for line in cell)


def _broken(label: str, width: int) -> list[str]:
    """A label in lines of `width`: whole if it fits, else broken at commas, then at words."""
    if len(label) <= width:
        return [label]
    parts = label.replace(", ", ",\n").split("\n")
    return [line for part in parts for line in textwrap.wrap(part, width)]


def _aligned(cells: Sequence[Sequence[str]], widths: Sequence[int]) -> list[str]:
    """One row of the table as lines of text: words flush left, numbers flush right."""
    return [
        " ".join(
            f"{line:<{width}}" if place < 2 else f"{line:>{width}}"
            for place, (line, width) in enumerate(zip(level, widths, strict=True))
        ).rstrip()
        for level in itertools.zip_longest(*cells, fillvalue="")
    ]


def title(study: Study) -> str:
    """What the table is about, in one line."""
    if study.score == BEST_VALUE:
        within = f" within {study.budget:,} fresh examples" if study.budget else ""
        return f"{study.name}: best validation {study.target.metric}{within}"
    cost = "seconds of training" if study.score == SECONDS else "fresh examples"
    return f"{study.name}: {cost} to reach {target_text(study.target)}"


def _seconds(value: float) -> str:
    return _number(value, ",.1f" if value < 1000 else ",.0f")


def _count(value: float) -> str:
    """A count to the unit below a million, in millions above; the CSV files hold it exactly."""
    if pd.isna(value):
        return "-"
    return f"{value:,.0f}" if value < 1e6 else f"{value / 1e6:,.2f}M"


def _value(value: float) -> str:
    return _number(value, ".4g")


def _ratio(value: float) -> str:
    return _number(value, ".2f")


def _signed(value: float) -> str:
    return _number(value, "+.3g")


def _p(value: float) -> str:
    return "-" if pd.isna(value) else "<0.001" if value < 0.001 else f"{value:.3f}"


def _of(part: int, whole: int) -> str:
    return f"{part} ({part / whole:.0%})" if whole else "-"


def _number(value: float, form: str) -> str:
    return "-" if pd.isna(value) else format(value, form)
