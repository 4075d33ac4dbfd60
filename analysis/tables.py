"""The tables of a study as text: scores of conditions, outcomes of trials, effects of pairs.

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
from runs.study import SECONDS, Study, plain

# What each cost of `scores.MEASURES` is called.
COSTS = {"fresh_examples": "fresh examples", "steps": "steps", "seconds": "seconds of training"}
_SIDES = ("pairs", "condition_alone", "baseline_alone", "neither")
_PAIRED = ("pairs: both reached", "only the condition", "only the baseline", "neither")


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


def conditions(table: pd.DataFrame, study: Study) -> pd.DataFrame:
    """The table of conditions, a row for each; the header says what the brackets hold.

    Args:
        table: `scores.condition_scores`.
        study: says what is scored.
    """
    score, effect = study.score, scoring.EFFECTS[study.score]
    median = f"median ({_spread(table, score)})"
    brackets = f"to baseline [{_spread(table, effect)}]"
    untuned = f"without retuning [{_spread(table, scoring.UNTUNED)}]"

    def cells(row: Mapping[str, Any]) -> dict[str, str]:
        shared = "*" if row["shared"] and row["seconds_count"] else ""
        first = {"condition": row["label"], "shuffle buffer": count_text(row["shuffle_buffer"])}
        own = _median_and_range(row, score)
        effects = effect_text(row, effect), effect_text(row, scoring.UNTUNED, study.scores_values)
        if study.scores_values:
            numbers = f"best value: {median}", f"difference {brackets}", untuned
            return first | dict(
                zip(("searches", *numbers), (str(row["searches"]), own, *effects), strict=True)
            )
        first |= {"searches reached": f"{row['searches_reached']}/{row['searches']}"}
        resolution = {"resolution": _number(row["resolution"], ".0%")}
        steps = {"steps": _median(row, "steps")}
        ratios = dict(zip((f"ratio {brackets}", untuned), effects, strict=True))
        if score == SECONDS:
            others = {"fresh examples": _median(row, "fresh_examples")}
            others[f"their ratio [{_spread(table, 'ratio')}]"] = effect_text(row, "ratio")
            seconds = {f"train seconds: {median}": own + shared}
            return first | seconds | ratios | others | resolution | steps
        ideal = {"ideal 1/e": _number(row["ideal_ratio"], ".3g")}
        seconds = {"train seconds": _median(row, "seconds") + shared}
        fresh = {f"fresh examples: {median}": own}
        return first | fresh | ratios | ideal | resolution | steps | seconds

    return pd.DataFrame([cells(row) for row in table.to_dict("records")])


def _spread(table: pd.DataFrame, name: str) -> str:
    """What the ends next to a median are: "range of 3 searches", "range of 1 to 3 searches",
    "93.75% interval, 5 searches", or "none" without a search.

    The condition with the fewest searches decides. A baseline has a score, but no effect.
    """
    counts = table[f"{name}_count"]
    others = table["condition"] != table["baseline"]
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


def floor_of(measure: str) -> float:
    """The lower bound of an unknown score: 0 of costs, -inf of best values."""
    return -math.inf if measure == "best_value" else 0.0


def score_text(low: float, high: float, measure: str) -> str:
    """A score by its bounds: "4,400", or ">12,000" if it is only known to be above that."""
    number, floor = format_of(measure), floor_of(measure)
    if math.isinf(high):
        return f">{number(low)}" if low > floor else "not known"
    return bounds.text(low, high, number, floor)


def format_of(measure: str) -> Callable[[float], str]:
    """The function that formats one of `scores.MEASURES`, in tables and figures."""
    return {"best_value": value_text, "seconds": _seconds_text}.get(measure, count_text)


def _median(row: Mapping, measure: str) -> str:
    return score_text(row[f"{measure}_low"], row[f"{measure}_high"], measure)


def _median_and_range(row: Mapping, measure: str) -> str:
    summary = scoring.summary_of(row, measure)
    if summary.count < 2:
        return _median(row, measure)
    spread = bounds.range_text(summary, format_of(measure), floor_of(measure), " to ")
    return f"{_median(row, measure)} ({spread})"


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


def trials(table: pd.DataFrame, study: Study) -> pd.DataFrame:
    """Outcomes of the trials, a row per condition of `scores.condition_scores`."""
    rows = [
        (
            row["label"],
            str(row["trials_counted"]),
            "-" if study.scores_values else _of(row["trials_censored"], row["trials_counted"]),
            _of(row["trials_diverged"], row["trials_ended"]),
        )
        for row in table.to_dict("records")
    ]
    return pd.DataFrame(rows, columns=["condition", "trials counted", "censored", "diverged"])


def paired(effects: pd.DataFrame, study: Study) -> pd.DataFrame:
    """The table of effects with matched seeds, a row per condition of
    `uncertainty.paired_effects`."""
    sides = _SIDES[:1] if study.scores_values else _SIDES
    signs = "/".join(uncertainty.verdicts(study))
    kind = "difference" if study.scores_values else "ratio"
    columns = ["condition", *(("pairs",) if study.scores_values else _PAIRED)]
    columns += [f"{kind} [{uncertainty.PAIRED_LEVEL:.0%} interval]", "pairs used", signs]
    columns += ["p", "p (Holm)", f"searches {signs}", "verdict"]
    rows = [
        (
            row["label"],
            *(str(row[name]) for name in sides),
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
    return pd.DataFrame(rows, columns=columns)


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
    return f"{row['used']}/{sum(row[name] for name in _SIDES)}"


# --- Printers


def text(loaded: LoadedStudy, table: pd.DataFrame, width: int = 100) -> str:
    """The table of conditions with its title, for a terminal of `width` columns."""
    rows = terminal(conditions(table, loaded.study), width)
    return f"{plain(title(loaded.study))}\n\n{rows}"


def matched_seeds_text(effects: pd.DataFrame, study: Study, width: int = 100) -> str:
    """What the sign test says about each condition, for a terminal; "" without pairs."""
    if effects.empty:
        return ""
    title = (
        "matched seeds: each trial against the baseline's with the same hyperparameters and seeds"
    )
    table = paired(effects, study)
    chosen = [0, *range(table.shape[1] - 7, table.shape[1] - 4), -3, -2, -1]
    return f"{title}\n\n{terminal(table.iloc[:, chosen], width)}"


def terminal(table: pd.DataFrame, width: int) -> str:
    """A table as lines of `width` columns, wider if its longest words need it. Cells keep to one
    line, from the left, as far as there is space."""
    columns = [
        [unbroken(plain(cell)) for cell in (str(name), *cells)] for name, cells in table.items()
    ]
    widths = [max(len(word) for cell in column for word in cell.split(" ")) for column in columns]
    for position, column in enumerate(columns):
        most = widths[position] + max(0, width - sum(widths) - (len(widths) - 1))
        fitting = [n for n in map(len, column[1:]) if n <= most or position == 0]
        widths[position] = max(widths[position], min(most, max(fitting, default=0)))
    lines = []
    for row in zip(*columns, strict=True):
        cells = zip(row, widths, strict=True)
        wrapped = [textwrap.wrap(cell, w, break_on_hyphens=False) for cell, w in cells]
        bottom = max(map(len, wrapped)) if not lines else 0  # headers stand on the table
        for parts in itertools.zip_longest(
            *([""] * (bottom - len(own)) + own for own in wrapped), fillvalue=""
        ):
            _, *others = map(str.rjust, parts, widths)
            lines.append(" ".join([parts[0].ljust(widths[0]), *others]).rstrip())
    return "".join(f"{line}\n" for line in lines).replace("\N{NO-BREAK SPACE}", " ")


def markdown(table: pd.DataFrame) -> str:
    """A table in Markdown; the first column is flush left, the others flush right."""
    rows = [list(table), *table.itertuples(index=False, name=None)]
    lines = [[unbroken(escaped(cell)) for cell in row] for row in rows]
    rule = [":--", *["--:"] * (len(rows[0]) - 1)]
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


def count_text(value: float) -> str:
    """A count, in millions from a million on; the CSV files hold it exactly."""
    if pd.isna(value):
        return "-"
    return f"{value:,.0f}" if value < 1e6 else f"{value / 1e6:,.2f}M"


def value_text(value: float) -> str:
    return _number(value, ".4g")


def _seconds_text(value: float) -> str:
    return _number(value, ",.1f" if value < 1000 else ",.0f")


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
