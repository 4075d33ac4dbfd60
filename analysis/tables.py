"""The tables of a study as text: what each condition scored, and what became of its trials."""

import itertools
import textwrap
from collections.abc import Callable, Sequence

import pandas as pd

from analysis import uncertainty
from analysis.load import Records
from analysis.study import BEST_VALUE, SECONDS, Study, factor_text, target_text

_SETTING = ("condition", "insertion", "e", "shuffle buffer")
_TO_TARGET = ("searches reached", "fresh examples: mean (min-max)", "ratio to baseline")
_TO_TARGET += ("ideal 1/e", "steps", "train seconds")
_TO_SECONDS = ("searches reached", "train seconds: mean (min-max)", "ratio to baseline")
_TO_SECONDS += ("fresh examples", "ratio to baseline", "steps")
_BY_VALUE = ("searches", "best value: mean (min-max)", "difference to baseline")
TRIAL_COLUMNS = ("condition", "trials counted", "share reached", "share diverged")
TRIAL_COLUMNS += (
    "score of a search: median [90 % interval]",
    "beside the baseline [90 % interval]",
    "at equal seeds: effect [95 % interval]",
)
TRIAL_COLUMNS += ("pairs",)
_WORD = 13  # columns that the longest word of a condition takes in a terminal


def columns(study: Study) -> tuple[str, ...]:
    """The head of the table of conditions."""
    heads = {SECONDS: _TO_SECONDS, BEST_VALUE: _BY_VALUE}
    return (*_SETTING, *heads.get(study.score, _TO_TARGET))


def condition_rows(conditions: pd.DataFrame, study: Study) -> list[tuple[str, ...]]:
    """The table of conditions as text, one tuple per condition, in the order of `columns`."""
    cells = {SECONDS: _seconds_cells, BEST_VALUE: _value_cells}.get(study.score, _target_cells)
    return [
        (
            row.label,
            row.insertion.replace("_", " "),
            factor_text(row.factor),
            _count(row.shuffle_buffer),
            *cells(row),
        )
        for row in conditions.itertuples()
    ]


def _target_cells(row) -> tuple[str, ...]:
    return (
        f"{row.searches_reached}/{row.searches}",
        _span(row.fresh_examples_mean, row.fresh_examples_min, row.fresh_examples_max, _count),
        _number(row.ratio, ".2f"),
        _number(row.ideal_ratio, ".3g"),
        _count(row.steps_mean),
        _seconds(row.seconds_mean),
    )


def _seconds_cells(row) -> tuple[str, ...]:
    return (
        f"{row.searches_reached}/{row.searches}",
        _span(row.seconds_mean, row.seconds_min, row.seconds_max, _seconds),
        _number(row.seconds_ratio, ".2f"),
        _count(row.fresh_examples_mean),
        _number(row.ratio, ".2f"),
        _count(row.steps_mean),
    )


def _value_cells(row) -> tuple[str, ...]:
    values = row.best_value_mean, row.best_value_min, row.best_value_max
    beside = "-" if row.baseline == row.condition else _number(row.difference, "+.3g")
    return str(row.searches), _span(*values, lambda value: f"{value:.4g}"), beside


def trial_rows(found: Records, conditions: pd.DataFrame) -> list[tuple[str, ...]]:
    """What became of the trials, and how far to trust the scores; a tuple per condition."""
    curves = uncertainty.score_by_trials(found.trials, found.study)
    last = curves.groupby("condition").last()
    paired = uncertainty.pairs(found.trials, found.study)
    effects = uncertainty.paired_effects(paired, found.study).set_index("condition")
    resampled = uncertainty.ratios(found.trials, found.study).set_index("condition")
    by_value = found.study.score == BEST_VALUE
    form = "+.3g" if by_value else ".2f"
    column = {BEST_VALUE: "difference", SECONDS: "seconds_ratio"}.get(found.study.score, "ratio")
    lines = []
    for row in conditions.itertuples():
        scored = beside = compared = number = "-"
        if row.condition in last.index:
            score = last.loc[row.condition]
            ends = [score_text(score[name], found.study) for name in ("score", "low", "high")]
            scored = f"{ends[0]} [{ends[1]}, {ends[2]}]"
        if row.condition in resampled.index:
            beside = _interval(getattr(row, column), resampled.loc[row.condition], form)
        if row.condition in effects.index:
            effect = effects.loc[row.condition]
            compared, number = _interval(effect["effect"], effect, form), str(effect["pairs"])
        shares = (_number(row.share_reached, ".0%"), _number(row.share_diverged, ".0%"))
        lines.append(
            (row.label, str(row.trials_counted), *shares, scored, beside, compared, number)
        )
    return lines


def text(found: Records, conditions: pd.DataFrame, width: int = 100) -> str:
    """The table for a terminal of `width` columns, with its title.

    Labels break to fit; where that does not do, lines are longer rather than columns left out.
    """
    table = [columns(found.study), *condition_rows(conditions, found.study)]
    head = [[cell.rsplit(" ", 1) if "(" not in cell else cell.split(": ") for cell in table[0][2:]]]
    numbers = head + [
        [cell.replace(" (", "\n(").split("\n") for cell in row[2:]] for row in table[1:]
    ]
    widths = [
        max(len(line) for cell in column for line in cell) for column in zip(*numbers, strict=True)
    ]
    spare = width - sum(widths) - len(widths) - 1 - _WORD
    words = [[_broken(row[0], max(spare, _WORD)), textwrap.wrap(row[1], _WORD)] for row in table]
    widths = [max(len(line) for row in words for line in row[place]) for place in (0, 1)] + widths
    lines = [
        line
        for named, counted in zip(words, numbers, strict=True)
        for line in _aligned([*named, *counted], widths)
    ]
    return "\n".join([title(found.study), "", *lines]) + "\n"


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


def score_text(value: float, study: Study) -> str:
    """A score that may be infinite, where the target would not be reached."""
    if abs(value) == float("inf"):
        return "not reached"
    forms = {SECONDS: _seconds, BEST_VALUE: lambda v: f"{v:.4g}"}
    return forms.get(study.score, _count)(value)


def _interval(value: float, ends: pd.Series, form: str) -> str:
    if pd.isna(ends["low"]):
        return _number(value, form)
    return f"{_number(value, form)} [{ends['low']:{form}}, {ends['high']:{form}}]"


def _span(mean: float, low: float, high: float, words: Callable[[float], str]) -> str:
    return "-" if pd.isna(mean) else f"{words(mean)} ({words(low)}-{words(high)})"


def _seconds(value: float) -> str:
    return _number(value, ",.1f" if value < 1000 else ",.0f")


def _count(value: float) -> str:
    """A count to the unit below a million, in millions above; the CSV files hold it exactly."""
    if pd.isna(value):
        return "-"
    return f"{value:,.0f}" if value < 1e6 else f"{value / 1e6:,.2f}M"


def _number(value: float, form: str) -> str:
    return "-" if pd.isna(value) else format(value, form)
