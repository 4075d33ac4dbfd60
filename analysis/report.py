"""The report of a study: tables as text, Markdown and CSV, with figures and the protocol's facts.

    tables = report.tables(found)      # what `load.read` found
    report.write(found, "results/cifar10/report")

Every file is written whole or not at all, so a report can be made again while someone reads it.
"""

import dataclasses
import io
import itertools
import os
import pathlib
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import pandas as pd
from matplotlib.figure import Figure

from analysis import caveats, figures, load, scores
from analysis.load import Records
from analysis.study import Study, factor_text, target_text
from runs import records

COLUMNS = ("condition", "insertion", "e", "shuffle buffer", "searches reached")
COLUMNS += ("fresh examples: mean (min-max)", "ratio to baseline", "ideal 1/e", "steps")
COLUMNS += ("train seconds",)
_HEADERS = ("condition", "insertion", "e", "shuffle\nbuffer", "searches\nreached")
_HEADERS += ("fresh examples\nmean (min-max)", "ratio to\nbaseline", "ideal\n1/e", "steps")
_HEADERS += ("train\nseconds",)
_WORD = 13  # columns that the longest word of a condition takes in a terminal
_DPI = 200  # of the PNG files; the PDF beside each is for print


@dataclasses.dataclass(frozen=True)
class Tables:
    """What was computed from the records: one row per condition, search and trial."""

    conditions: pd.DataFrame
    searches: pd.DataFrame
    trials: pd.DataFrame


def tables(found: Records) -> Tables:
    """The tables that the report is made of."""
    return Tables(
        scores.condition_scores(found.trials, found.study),
        scores.search_scores(found.trials, found.study),
        found.trials,
    )


def rows(conditions: pd.DataFrame) -> list[tuple[str, ...]]:
    """The table of conditions as text, one tuple per condition, in the order of COLUMNS."""
    return [
        (
            row.label,
            row.insertion.replace("_", " "),
            factor_text(row.factor),
            _count(row.shuffle_buffer),
            f"{row.searches_reached}/{row.searches}",
            _span(row.fresh_examples_mean, row.fresh_examples_min, row.fresh_examples_max),
            _number(row.ratio, ".2f"),
            _number(row.ideal_ratio, ".3g"),
            _count(row.steps_mean),
            _number(row.seconds_mean, ",.1f" if row.seconds_mean < 1000 else ",.0f"),
        )
        for row in conditions.itertuples()
    ]


def text(found: Records, conditions: pd.DataFrame, width: int = 100) -> str:
    """The table for a terminal of `width` columns, with its title.

    Labels break to fit; where that does not do, lines are longer rather than columns left out.
    """
    table = [_HEADERS, *rows(conditions)]
    numbers = [[cell.replace(" (", "\n(").split("\n") for cell in row[2:]] for row in table]
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
    return f"{study.name}: fresh examples to reach {target_text(study.target)}"


def markdown(found: Records, conditions: pd.DataFrame, root: os.PathLike) -> str:
    """The whole report; the figures are expected beside it."""
    doubts = caveats.find(found, root) or ["None found in the records."]
    parts = [
        f"# {title(found.study)}",
        _markdown_table(conditions),
        "Means and ranges are over the searches that reached the target; a search's score is the "
        "smallest over its counted trials. Steps and seconds are those of that best trial.",
        "![Fresh examples to the target, by condition](fresh_examples_to_target.png)",
        "*Bars are means over searches, lines run from the minimum to the maximum, dots are single "
        "searches; the dashed line is the baseline's mean.*",
        "![The best trial of each condition](best_trial_curves.png)",
        "*The best counted trial of each condition, up to where it first reached the target.*",
        "## Read with care",
        "\n".join(f"- {doubt}" for doubt in doubts),
        "## How these numbers were made",
        "\n".join(f"- {name}: {value}" for name, value in facts(found).items()),
        "Every trial is in `trials.csv`, every number of the table in `scores.csv`.",
    ]
    return "\n\n".join(parts) + "\n"


def facts(found: Records) -> dict[str, str]:
    """The protocol and the origin of the numbers, as far as the records tell."""
    study, source = found.study, found.study.facts
    dataset = source.get("dataset") or {}
    told = {
        "workload": source.get("workload"),
        "configuration": source["config"] if isinstance(source.get("config"), str) else None,
        "data set": _pairs(dataset),
        "target": _target_fact(study),
        "budget": study.budget and f"{study.budget:,} fresh examples a trial",
        "trials": study.trials
        and f"the first {study.trials} of each search that neither diverge nor fail",
        "trials started at most": source.get("max_trials"),
        "searches": study.searches and f"{study.searches} for each condition",
        "seeds of the first trial": _pairs(source.get("seeds") or {}, join=" "),
        "search space": "; ".join(map(_axis, study.search_space)),
        "hardware": _pairs(source.get("hardware") or {}),
        "commit": source.get("commit"),
        "packages": _pairs(source.get("packages") or {}, " "),
    }
    return {name: str(value) for name, value in told.items() if value}


def write(found: Records, out: str | os.PathLike, root: os.PathLike | None = None) -> None:
    """Writes report.md, scores.csv, trials.csv and both figures (PNG and PDF) into `out`.

    Paths in these files are relative to `root`, the analysed directory, so that they hold wherever
    it is moved.
    """
    out = pathlib.Path(out)
    out.mkdir(parents=True, exist_ok=True)
    computed = tables(found)
    root = root or out
    trials = computed.trials.assign(
        path=[os.path.relpath(path, root) for path in computed.trials["path"]]
    )
    for name, table in (("scores.csv", computed.conditions), ("trials.csv", trials)):
        records.write_bytes(out / name, table.to_csv(index=False).encode())
    for name, figure in _drawn(found, computed).items():
        for suffix, options in _FORMATS.items():
            records.write_bytes(out / f"{name}.{suffix}", _rendered(figure, suffix, options))
    records.write_bytes(out / "report.md", markdown(found, computed.conditions, root).encode())


# The names of the figures' files.
FIGURES = ("fresh_examples_to_target", "best_trial_curves")


def _drawn(found: Records, computed: Tables) -> dict[str, Figure]:
    target = found.study.target
    curves = load.curves(scores.best_trials(found.trials, found.study), target.metric)
    return {
        "fresh_examples_to_target": figures.fresh_examples_to_target(
            computed.conditions, computed.searches, target
        ),
        "best_trial_curves": figures.best_trial_curves(curves, target),
    }


# Without dates in them, the same records give the same files.
_FORMATS: Mapping[str, Mapping[str, Any]] = {
    "png": {"dpi": _DPI},
    "pdf": {"metadata": {"CreationDate": None}},
}


def _rendered(figure: Figure, suffix: str, options: Mapping[str, Any]) -> bytes:
    content = io.BytesIO()
    with matplotlib.rc_context({"pdf.fonttype": 42}):  # text stays text
        figure.savefig(content, format=suffix, **options)
    return content.getvalue()


def _markdown_table(conditions: pd.DataFrame) -> str:
    rule = [":--", ":--", *["--:"] * (len(COLUMNS) - 2)]
    lines: Sequence[Sequence[str]] = [COLUMNS, rule, *rows(conditions)]
    return "\n".join(
        "| " + " | ".join(c.replace("|", "\\|") for c in line) + " |" for line in lines
    )


def _span(mean: float, low: float, high: float) -> str:
    return "-" if pd.isna(mean) else f"{_count(mean)} ({_count(low)}-{_count(high)})"


def _count(value: float) -> str:
    """A count to the unit below a million, in millions above; the CSV files hold it exactly."""
    if pd.isna(value):
        return "-"
    return f"{value:,.0f}" if value < 1e6 else f"{value / 1e6:,.2f}M"


def _number(value: float, form: str) -> str:
    return "-" if pd.isna(value) else format(value, form)


def _target_fact(study: Study) -> str:
    words = f"{target_text(study.target)} ({study.target.metric} {study.target.mode})"
    if study.target == study.planned_target:
        return words
    return f"{words}, judged from the kept curves; trained for {target_text(study.planned_target)}"


def _pairs(values: Mapping[str, Any], join: str = " = ") -> str:
    return ", ".join(f"{key}{join}{value}" for key, value in values.items())


def _axis(axis: Mapping[str, Any]) -> str:
    if "values" in axis:
        return f"{axis['field']} in {axis['values']}"
    shown = "1 - value" if axis["scale"] == "log_one_minus" else "value"
    scale = "linear" if axis["scale"] == "linear" else "log"
    return f"{axis['field']} ({scale}, {shown} from {axis['min']:g} to {axis['max']:g})"
