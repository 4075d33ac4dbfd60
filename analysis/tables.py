"""The tables of a study: scores of conditions, outcomes of trials, effects with matched seeds.

Each is a DataFrame of strings, which `terminal` and `markdown` print.
"""

import itertools
import math
import re
import textwrap
from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd

from analysis import bounds, uncertainty
from analysis import scores as scoring
from analysis.load import LoadedStudy
from runs import records
from runs.progress import several
from runs.records import plain
from runs.study import BEST_VALUE, SECONDS, Study

# What each cost of `scores.MEASURES` is called.
COSTS = {"fresh_examples": "fresh examples", "steps": "steps", "seconds": "seconds of training"}
_SIDES = {  # of pairs, by column of `uncertainty.paired_effects`
    "pairs": "pairs: both reached",
    "condition_alone": "only the condition",
    "baseline_alone": "only the baseline",
    "neither": "neither",
}


# --- Numbers as text


def count_text(value: float) -> str:
    """A count, in millions from a million on; the CSV files hold it exactly."""
    return _number(value, ",.0f") if not value >= 1e6 else f"{value / 1e6:,.2f}M"


def value_text(value: float) -> str:
    return _number(value, ".4g")


def _seconds_text(value: float) -> str:
    return _number(value, ",.1f" if value < 1000 else ",.0f")


def _number(value: Any, form: str) -> str:
    return "-" if pd.isna(value) else format(value, form)


def format_of(measure: str) -> Callable[[float], str]:
    """The function that formats one of `scores.MEASURES`, in tables and figures."""
    return {BEST_VALUE: value_text, "seconds": _seconds_text}.get(measure, count_text)


def _effect_format(differences: bool) -> tuple[Callable[[float], str], float]:
    """How effects are formatted, and the lower bound of an unknown one."""
    form = "+.3g" if differences else ".2f"
    return lambda value: _number(value, form), -math.inf if differences else 0.0


def score_text(row: Mapping[str, Any], measure: str) -> str:
    """The median score of a row of `scores.condition_scores`: "4,400", or ">12,000" if it is only
    known to be above that."""
    low, high = row[f"{measure}_low"], row[f"{measure}_high"]
    number, floor = format_of(measure), -math.inf if measure == BEST_VALUE else 0.0
    if math.isinf(high):
        return f">{number(low)}" if low > floor else "not known"
    return bounds.text(low, high, number, floor)


def _score_and_range(row: Mapping[str, Any], measure: str) -> str:
    summary = scoring.summary_of(row, measure)
    if summary.count < 2:
        return score_text(row, measure)
    floor = -math.inf if measure == BEST_VALUE else 0.0
    spread = bounds.range_text(summary, format_of(measure), floor, " to ")
    return f"{score_text(row, measure)} ({spread})"


def effect_text(row: Mapping[str, Any], effect: str) -> str:
    """A condition's effect, one of `scores.EFFECTS`, and its range over searches: "0.72 [0.57,
    0.79]"; "1.00" of a baseline. `row` is of `scores.condition_scores`."""
    differences = effect == scoring.EFFECTS[BEST_VALUE]
    if row["baseline"] == row["condition"]:
        return "-" if differences else "1.00"
    number, floor = _effect_format(differences)
    summary = scoring.summary_of(row, effect)
    median = bounds.text(summary.low, summary.high, number, floor)
    if summary.count < 2:
        return median
    return f"{median} [{bounds.range_text(summary, number, floor)}]"


def paired_text(row: Mapping[str, Any], study: Study) -> str:
    """An effect of `uncertainty.paired_effects` and its interval: "0.67 [0.59, 0.78]"."""
    number, floor = _effect_format(study.scores_values)
    effect = bounds.text(row["effect_low"], row["effect_high"], number, floor)
    if pd.isna(row["low"]):
        return f"{effect} (too few pairs)"
    low = "-" if row["low"] <= floor else number(row["low"])
    return f"{effect} [{low}, {'-' if math.isinf(row['high']) else number(row['high'])}]"


def target_text(target: records.Target) -> str:
    """A target: '97% validation accuracy', 'a validation loss of 3.9'."""
    if target.metric.endswith("accuracy") and target.value <= 1:
        return f"{100 * target.value:.6g}% validation {target.metric}"
    return f"a validation {target.metric} of {target.value:g}"


def measure_label(measure: str, study: Study) -> str:
    """One of `scores.MEASURES` in words: "fresh examples to reach 97% validation accuracy"."""
    if measure == BEST_VALUE:
        within = f" within {study.budgets} fresh examples" if study.budgets else ""
        return f"best validation {study.target.metric}{within}"
    return f"{COSTS[measure]} to reach {target_text(study.target)}"


def title(study: Study) -> str:
    """What the table of conditions shows, in one line."""
    return f"{study.name}: {measure_label(study.score, study)}"


# --- Tables


def conditions(table: pd.DataFrame, study: Study) -> pd.DataFrame:
    """The table of conditions, a row for each; the header says what the brackets hold.

    Args:
        table: `scores.condition_scores`.
        study: says what is scored.
    """
    return pd.DataFrame([_condition(row, table, study) for row in table.to_dict("records")])


def _condition(row: Mapping[str, Any], table: pd.DataFrame, study: Study) -> dict[str, str]:
    effect, median = scoring.EFFECTS[study.score], f"median ({_spread(table, study.score)})"
    kind = "difference" if study.scores_values else "ratio"
    shared = "*" if row["shared"] and row["seconds_count"] else ""
    own = _score_and_range(row, study.score)
    compared = {f"{kind} to baseline [{_spread(table, effect)}]": effect_text(row, effect)}
    buffer = study.condition(row["condition"]).buffer_examples  # of whole batches, too
    cells = {"condition": row["label"], "buffer (examples)": count_text(buffer)}
    if study.scores_values:
        return cells | {"searches": str(row["searches"]), f"best value: {median}": own} | compared
    cells["searches reached"] = f"{row['searches_reached']}/{row['searches']}"
    if study.score == SECONDS:
        cells |= {f"train seconds: {median}": own + shared} | compared
        cells["fresh examples"] = score_text(row, "fresh_examples")
        cells[f"their ratio [{_spread(table, 'ratio')}]"] = effect_text(row, "ratio")
    else:
        cells |= {f"fresh examples: {median}": own} | compared
        cells["ideal 1/e"] = _number(row["ideal_ratio"], ".3g")
    cells["resolution"] = _number(row["resolution"], ".0%")
    cells["steps"] = score_text(row, "steps")
    if study.score != SECONDS:
        cells["train seconds"] = score_text(row, "seconds") + shared
    return cells


def _spread(table: pd.DataFrame, name: str) -> str:
    """What the ends next to a median are: "range, 3 searches", "93.75% interval, 5 searches", or
    "none" without a search. The condition with the fewest searches decides."""
    counts = table[f"{name}_count"]
    if not counts.any():
        return "none"
    fewest = int(counts[counts > 0].min())
    return f"{bounds.interval_name(fewest)}, {several(fewest, 'search')}"


def trials(table: pd.DataFrame, study: Study) -> pd.DataFrame:
    """Outcomes of the trials, a row per condition of `scores.condition_scores`."""
    counted, ended = table["trials_counted"], table["trials_ended"]
    censored = _shares(table["trials_censored"], counted)
    return pd.DataFrame(
        {
            "condition": table["label"],
            "trials counted": counted.astype(str),
            "censored": "-" if study.scores_values else censored,
            "diverged": _shares(table["trials_diverged"], ended),
        }
    )


def _shares(parts: pd.Series, wholes: pd.Series) -> list[str]:
    pairs = zip(parts, wholes, strict=True)
    return [f"{part} ({part / whole:.0%})" if whole else "-" for part, whole in pairs]


def paired(effects: pd.DataFrame, study: Study) -> pd.DataFrame:
    """The table of effects with matched seeds, a row per condition of
    `uncertainty.paired_effects`."""
    sides = {"pairs": "pairs"} if study.scores_values else _SIDES
    signs = "/".join(uncertainty.verdicts(study))
    kind = "difference" if study.scores_values else "ratio"
    rows = [
        {
            "condition": row["label"],
            **{name: str(row[side]) for side, name in sides.items()},
            f"{kind} [{uncertainty.PAIRED_LEVEL:.0%} interval]": paired_text(row, study),
            signs: f"{row['below']}/{row['above']}",
            "p": _p_value(row["p"]),
            "p (Holm)": _p_value(row["p_holm"]),
            f"searches {signs}": f"{row['searches_below']}/{row['searches_above']}",
            "verdict": row["verdict"],
        }
        for row in effects.to_dict("records")
    ]
    return pd.DataFrame(rows)


def _p_value(value: float) -> str:
    return "<0.001" if value < 0.001 else _number(value, ".3f")


# --- Printers


def text(loaded: LoadedStudy, table: pd.DataFrame, width: int = 100) -> str:
    """The table of conditions with its title, for a terminal of `width` columns."""
    rows = terminal(conditions(table, loaded.study), width)
    return f"{plain(title(loaded.study))}\n\n{rows}"


def matched_seeds_text(effects: pd.DataFrame, study: Study, width: int = 100) -> str:
    """What the sign test says about each condition, for a terminal; "" without pairs."""
    if effects.empty:
        return ""
    table = paired(effects, study).drop(columns=["p", "pairs", *_SIDES.values()], errors="ignore")
    heading = "each trial against the baseline's with the same hyperparameters and seeds"
    return f"matched seeds: {heading}\n\n{terminal(table, width)}"


def terminal(table: pd.DataFrame, width: int) -> str:
    """A table as lines of `width` columns, wider if its longest words need it. Cells keep to one
    line, from the left, as far as there is space."""
    columns = [[unbroken(plain(cell)) for cell in (name, *cells)] for name, cells in table.items()]
    widths = [max(len(word) for cell in column for word in cell.split(" ")) for column in columns]
    for place, column in enumerate(columns):
        spare = max(0, width - sum(widths) - len(widths) + 1)
        longest = max(map(len, column[1:]), default=0)
        widths[place] = max(widths[place], min(widths[place] + spare, longest))
    lines = []
    for row in zip(*columns, strict=True):
        wrapped = [
            textwrap.wrap(cell, size, break_on_hyphens=False)
            for cell, size in zip(row, widths, strict=True)
        ]
        for first, *others in itertools.zip_longest(*wrapped, fillvalue=""):
            cells = [first.ljust(widths[0]), *map(str.rjust, others, widths[1:])]
            lines.append(" ".join(cells).rstrip().replace("\N{NO-BREAK SPACE}", " ") + "\n")
    return "".join(lines)


def markdown(table: pd.DataFrame) -> str:
    """A table in Markdown; the first column is flush left, the others flush right."""
    rule = [":--", *["--:"] * (table.shape[1] - 1)]
    header, *rows = [list(table), *table.itertuples(index=False, name=None)]
    lines = [[unbroken(escaped(cell)) for cell in row] for row in (header, *rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in (lines[0], rule, *lines[1:]))


# What CommonMark and GitHub would read as markup: emphasis, code, HTML, entities, links, and
# images. Brackets and inequalities of the tables stay as they are.
_MARKUP = re.compile(
    r"[\\`*~$|]|<(?=[A-Za-z/!?])|&(?=[#A-Za-z])|\](?=[(\[:])|!(?=\[)"
    r"|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])"
)


def escaped(text: str) -> str:
    """Text from a record as Markdown that shows it literally, on one line."""
    return _MARKUP.sub(r"\\\g<0>", plain(text))


def unbroken(text: str) -> str:
    """A text in which no line breaks within "e = 2" or "batch 32"."""
    text = re.sub(r" ([=≤]) ", "\N{NO-BREAK SPACE}\\1\N{NO-BREAK SPACE}", text)
    return re.sub(r"\b(batch|buffer|budget|over) (?=\d)", "\\1\N{NO-BREAK SPACE}", text)
