"""The tables of a study as text: scores of conditions, outcomes of trials, effects of pairs."""

import io
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pandas as pd
from rich.console import Console
from rich.table import Table
from rich.text import Text

from analysis import bounds, uncertainty
from analysis import scores as scoring
from analysis.load import LoadedStudy
from runs import records
from runs.progress import several
from runs.study import BEST_VALUE, SECONDS, Study

Row = tuple[str, ...]
# What each cost of `scores.MEASURES` is called.
COSTS = {"fresh_examples": "fresh examples", "steps": "steps", "seconds": "seconds of training"}
TRIAL_COLUMNS = ("condition", "trials counted", "censored", "diverged")
_SETTING = ("condition", "shuffle buffer")
_GLUE = "\ue000"  # stands for a space that rich must not break at
_PAIRED = ("condition", "pairs: both reached", "only the condition", "only the baseline", "neither")


def title(study: Study) -> str:
    """What the table shows, in one line."""
    return f"{study.name}: {measure_label(study.score, study)}"


def measure_label(measure: str, study: Study) -> str:
    """One of `scores.MEASURES` in words: "fresh examples to reach 97% validation accuracy"."""
    if measure == "best_value":
        within = f" within {study.budgets} fresh examples" if study.budgets else ""
        return f"best validation {study.target.metric}{within}"
    return f"{COSTS[measure]} to reach {target_text(study.target)}"


def target_text(target: records.Target) -> str:
    """A target: '97% validation accuracy', 'a validation loss of 3.9'."""
    if target.metric.endswith("accuracy") and target.value <= 1:
        return f"{100 * target.value:.6g}% validation {target.metric}"
    return f"a validation {target.metric} of {target.value:g}"


def columns(conditions: pd.DataFrame, study: Study) -> Row:
    """The header of the table of conditions; says what is in parentheses and brackets."""
    spread = _spread(conditions, study.score)
    effect = _spread(conditions, scoring.EFFECTS[study.score])
    untuned = f"without retuning [{_spread(conditions, scoring.UNTUNED)}]"
    if study.scores_values:
        scores = (
            "searches",
            f"best value: median ({spread})",
            f"difference to baseline [{effect}]",
            untuned,
        )
    elif study.score == SECONDS:
        scores = (
            *("searches reached", f"train seconds: median ({spread})"),
            *(f"ratio to baseline [{effect}]", untuned),
            *("fresh examples", f"their ratio [{_spread(conditions, 'ratio')}]"),
            *("resolution", "steps"),
        )
    else:
        scores = (
            *("searches reached", f"fresh examples: median ({spread})"),
            *(f"ratio to baseline [{effect}]", untuned, "ideal 1/e"),
            *("resolution", "steps", "train seconds"),
        )
    return (*_SETTING, *scores)


def _spread(conditions: pd.DataFrame, name: str) -> str:
    """What the ends next to a median are: "range of 3 searches", "range of 1 to 3 searches",
    "93.75% interval, 5 searches", or "none" without a search.

    The condition with the fewest searches decides. A baseline has a score, but no effect.
    """
    counts = conditions[f"{name}_count"]
    others = conditions["condition"] != conditions["baseline"]
    if name not in scoring.MEASURES and others.any():
        counts = counts[others]
    counts = counts[counts > 0]
    if counts.empty:
        return "none"
    fewest, most = int(counts.min()), int(counts.max())
    kind = bounds.interval_name(fewest)
    if kind != "range":
        return f"{kind}, {several(fewest, 'search')}"
    return f"{kind} of {f'{fewest} to ' * (fewest < most)}{several(most, 'search')}"


def condition_rows(conditions: pd.DataFrame, study: Study) -> list[Row]:
    """The table of conditions, one tuple per condition, in the order of `columns`."""
    by_score = {SECONDS: _seconds_cells, BEST_VALUE: _value_cells}
    score_cells = by_score.get(study.score, _target_cells)
    return [
        (row["label"], count_text(row["shuffle_buffer"]), *score_cells(row))
        for row in conditions.to_dict("records")
    ]


def _target_cells(row: Mapping) -> Row:
    return (
        f"{row['searches_reached']}/{row['searches']}",
        _median_and_range(row, "fresh_examples", count_text),
        effect_text(row, "ratio"),
        effect_text(row, scoring.UNTUNED),
        _number(row["ideal_ratio"], ".3g"),
        _number(row["resolution"], ".0%"),
        score_text(row["steps_low"], row["steps_high"], count_text),
        score_text(row["seconds_low"], row["seconds_high"], seconds_text) + _shared_mark(row),
    )


def _seconds_cells(row: Mapping) -> Row:
    return (
        f"{row['searches_reached']}/{row['searches']}",
        _median_and_range(row, "seconds", seconds_text) + _shared_mark(row),
        effect_text(row, "seconds_ratio"),
        effect_text(row, scoring.UNTUNED),
        score_text(row["fresh_examples_low"], row["fresh_examples_high"], count_text),
        effect_text(row, "ratio"),
        _number(row["resolution"], ".0%"),
        score_text(row["steps_low"], row["steps_high"], count_text),
    )


def _value_cells(row: Mapping) -> Row:
    values = _median_and_range(row, "best_value", value_text, -math.inf)
    effects = effect_text(row, "difference"), effect_text(row, scoring.UNTUNED, differences=True)
    return str(row["searches"]), values, *effects


def _shared_mark(row: Mapping) -> str:
    """An asterisk after seconds that depend on other trials."""
    return "*" if row["shared"] and row["seconds_count"] else ""


def score_text(low: float, high: float, number: Callable[[float], str], floor: float = 0.0) -> str:
    """A score by its bounds: "4,400", or ">12,000" if it is only known to be above that.

    Args:
        number: formats one number.
        floor: the lower bound of an unknown score: 0 for costs, -inf for best values.
    """
    if math.isinf(high):
        return f">{number(low)}" if low > floor else "not known"
    return bounds.text(low, high, number, floor)


def format_of(measure: str) -> Callable[[float], str]:
    """The function that formats one of `scores.MEASURES`, in tables and figures."""
    return {"best_value": value_text, "seconds": seconds_text}.get(measure, count_text)


def _median_and_range(
    row: Mapping, name: str, number: Callable[[float], str], floor: float = 0.0
) -> str:
    summary = scoring.summary_of(row, name)
    median = score_text(summary.low, summary.high, number, floor)
    if summary.count < 2:
        return median
    return f"{median} ({bounds.range_text(summary, number, floor, ' to ')})"


def _effect_format(differences: bool) -> tuple[Callable[[float], str], float]:
    """How effects are formatted, and the lower bound of an unknown one."""
    return (_signed, -math.inf) if differences else (_ratio, 0.0)


def effect_text(row: Mapping, name: str, differences: bool = False) -> str:
    """A condition's effect and its range over searches: "0.72 [0.57, 0.79]"; "1.00" of a baseline.

    Args:
        row: of `scores.condition_scores`.
        name: one of `scores.EFFECTS`, or `scores.UNTUNED`.
        differences: whether it is a difference; "difference" always is.
    """
    differences = differences or name == "difference"
    if row["baseline"] == row["condition"]:
        return "-" if differences else "1.00"
    number, floor = _effect_format(differences)
    summary = scoring.summary_of(row, name)
    median = bounds.text(summary.low, summary.high, number, floor)
    if summary.count < 2:
        return median
    return f"{median} [{bounds.range_text(summary, number, floor)}]"


def trial_rows(conditions: pd.DataFrame, study: Study) -> list[Row]:
    """Outcomes of the trials, one tuple per condition."""
    return [
        (
            row["label"],
            str(row["trials_counted"]),
            "-" if study.scores_values else _of(row["trials_censored"], row["trials_counted"]),
            _of(row["trials_diverged"], row["trials_ended"]),
        )
        for row in conditions.to_dict("records")
    ]


def paired_columns(study: Study) -> Row:
    """The header of the table of effects with matched seeds."""
    counts = ("condition", "pairs") if study.scores_values else _PAIRED
    kind = "difference" if study.scores_values else "ratio"
    effect = f"{kind} [{uncertainty.PAIRED_LEVEL:.0%} interval]"
    signs = "/".join(uncertainty.verdicts(study))
    return (*counts, effect, "pairs used", signs, "p", "p (Holm)", f"searches {signs}", "verdict")


def paired_rows(effects: pd.DataFrame, study: Study) -> list[Row]:
    """The table of effects with matched seeds, one tuple per condition."""
    counts = ("pairs", "condition_alone", "baseline_alone", "neither")
    return [
        (
            row["label"],
            *(str(row[name]) for name in (counts[:1] if study.scores_values else counts)),
            paired_text(row, study),
            used_text(row),
            f"{row['below']}/{row['above']}",
            _p_value(row["p"]),
            _p_value(row["p_holm"]),
            f"{row['searches_below']}/{row['searches_above']}",
            row["verdict"],
        )
        for row in effects.to_dict("records")
    ]


def paired_text(row: Mapping, study: Study) -> str:
    """An effect with matched seeds and its interval: "0.67 [0.59, 0.78]"."""
    number, floor = _effect_format(study.scores_values)
    effect = bounds.text(row["effect_low"], row["effect_high"], number, floor)
    if pd.isna(row["low"]):
        return f"{effect} (too few pairs)"
    low = "-" if row["low"] <= floor else number(row["low"])
    return f"{effect} [{low}, {'-' if math.isinf(row['high']) else number(row['high'])}]"


def used_text(row: Mapping) -> str:
    """How many pairs an effect with matched seeds rests on: "13/30"."""
    every = sum(row[name] for name in ("pairs", "condition_alone", "baseline_alone", "neither"))
    return f"{row['used']}/{every}"


def text(loaded: LoadedStudy, conditions: pd.DataFrame, width: int = 100) -> str:
    """The table of conditions with its title, for a terminal of `width` columns."""
    rows = [columns(conditions, loaded.study), *condition_rows(conditions, loaded.study)]
    return f"{title(loaded.study)}\n\n{_terminal(rows, width)}"


def matched_seeds_text(effects: pd.DataFrame, study: Study, width: int = 100) -> str:
    """What the sign test says about each condition, for a terminal; "" without pairs."""
    if effects.empty:
        return ""
    rows = [paired_columns(study), *paired_rows(effects, study)]
    table = _terminal([(row[0], *row[-7:-4], *row[-3:]) for row in rows], width)
    title = (
        "matched seeds: each trial against the baseline's with the same hyperparameters and seeds"
    )
    return f"{title}\n\n{table}"


def _terminal(rows: Sequence[Row], width: int) -> str:
    """Rows as lines of `width` columns, the first row as header. Lines are wider than that if the
    longest words need it; cells keep to one line, from the left, as far as there is space."""
    rows = [tuple(unbroken(cell, _GLUE) for cell in row) for row in rows]
    widths = [
        max(len(word) for cell in column for word in cell.split())
        for column in zip(*rows, strict=True)
    ]
    for position, column in enumerate(zip(*rows[1:], strict=True)):
        spare = max(0, width - sum(widths) - (len(widths) - 1))
        most = widths[position] + spare
        fitting = [length for length in map(len, column) if length <= most or position == 0]
        widths[position] = max(widths[position], min(most, max(fitting, default=0)))
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for position, (name, column_width) in enumerate(zip(rows[0], widths, strict=True)):
        justify = "left" if position == 0 else "right"
        table.add_column(Text(name), justify=justify, width=column_width)
    for row in rows[1:]:
        table.add_row(*map(Text, row))
    output = io.StringIO()
    # In a notebook rich would display the table rather than write it.
    width = sum(widths) + len(widths)
    Console(file=output, width=width, color_system=None, force_jupyter=False).print(table)
    lines = [line.rstrip() for line in output.getvalue().replace(_GLUE, " ").splitlines()]
    return "".join(f"{line}\n" for line in lines if line)


def unbroken(text: str, space: str = "\N{NO-BREAK SPACE}") -> str:
    """A text in which no line breaks within "e = 2" or "batch 32": `space` replaces the spaces."""
    text = re.sub(r" ([=≤]) ", rf"{space}\1{space}", text)
    return re.sub(r"\b(batch|buffer|budget|over) (?=\d)", rf"\1{space}", text)


def seconds_text(value: float) -> str:
    return _number(value, ",.1f" if value < 1000 else ",.0f")


def count_text(value: float) -> str:
    """A count, in millions from a million on; the CSV files hold it exactly."""
    if pd.isna(value):
        return "-"
    return f"{value:,.0f}" if value < 1e6 else f"{value / 1e6:,.2f}M"


def value_text(value: float) -> str:
    return _number(value, ".4g")


def _ratio(value: float) -> str:
    return _number(value, ".2f")


def _signed(value: float) -> str:
    return _number(value, "+.3g")


def _p_value(value: float) -> str:
    return "<0.001" if value < 0.001 else _number(value, ".3f")


def _of(part: int, whole: int) -> str:
    return f"{part} ({part / whole:.0%})" if whole else "-"


def _number(value: Any, form: str) -> str:
    return "-" if pd.isna(value) else format(value, form)
