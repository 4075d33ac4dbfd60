"""The report of a study: tables as CSV, figures, and one page in Markdown.

    report.write(loaded, "out/study/report")     # what `load.read` returns

Every file is written whole or not at all, so a report can be rewritten while someone reads it.
"""

import os
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from analysis import caveats, costs, figures, scores, tables, uncertainty
from analysis.figures import style
from analysis.load import LoadedStudy
from runs import records
from runs.cli import InputError
from runs.records import flat
from runs.study import Study

_PAGE, _MADE = "report.md", "Made by `python -m analysis` from the records."
# The PDF of each figure is for print. Without dates, the same records give the same files.
FORMATS: Mapping[str, Mapping[str, Any]] = {
    "png": {"dpi": 200},
    "pdf": {"metadata": {"CreationDate": None}},
}


def write(
    loaded: LoadedStudy, out: str | os.PathLike, root: str | os.PathLike | None = None
) -> list[str]:
    """Writes report.md, scores.csv, paired.csv, trials.csv, and the figures (PNG and PDF) into
    `out`; returns the names of the figures.

    Paths in these files are relative to `root` (default: `out`), so that they stay valid if the
    analyzed directory is moved.

    Raises:
        InputError: `out` has a file of one of these names that is not a report's.
    """
    out, study, root = pathlib.Path(out), loaded.study, root or out
    paths = (os.fsencode(os.path.relpath(path, root)) for path in loaded.trials["path"])
    readable = [path.decode(errors="backslashreplace") for path in paths]
    frames = {
        "scores.csv": scores.condition_scores(loaded.trials, study),
        "paired.csv": uncertainty.paired_effects(uncertainty.pairs(loaded.trials, study), study),
        "trials.csv": loaded.trials.assign(path=readable),
    }
    drawn = figures.of_study(loaded)
    page = _page(loaded, frames["scores.csv"], frames["paired.csv"], root, *drawn)
    files = {_PAGE: page.encode()}  # the page first, which marks a report
    files |= {name: frame.to_csv(index=False).encode() for name, frame in frames.items()}
    for name, figure in drawn.items():
        for suffix, options in FORMATS.items():
            files[f"{name}.{suffix}"] = style.rendered(figure, suffix, **options)
            figure.set_layout_engine("none")  # the first format lays out for all
    out.mkdir(parents=True, exist_ok=True)
    earlier = (out / _PAGE).is_file() and _MADE in (out / _PAGE).read_text(errors="replace")
    for name in () if earlier else files:
        if os.path.lexists(out / name):
            raise InputError(f"{out / name} exists and is not a report's; give another --out")
    for name, content in files.items():
        records.write_bytes(out / name, content)
    return list(drawn)


def _page(
    loaded: LoadedStudy,
    conditions: pd.DataFrame,
    effects: pd.DataFrame,
    root: str | os.PathLike,
    result: str,
    *others: str,
) -> str:
    """The page; the figures `result` and `others` are expected next to it."""
    study = loaded.study
    number = "best value" if study.scores_values else study.score.replace("_", " ")
    parts = [
        f"# {tables.escaped(tables.title(study))}",
        f"{_MADE} docs/statistics.md of the repository defines every number.",
        tables.markdown(tables.conditions(conditions, study)),
        f"Medians over searches of the {number} of the best trial, and brackets with their range. "
        "**Resolution** is the distance between evaluations, as a share of the score.",
        _figure(
            result,
            "Medians over searches and their range. Triangles are lower bounds: the target was not "
            "reached. Open markers: not all searches reached it. Dotted lines are baselines.",
        ),
        "## Caveats",
        _list(caveats.find(loaded, root) or ["None found in the records."]),
        "## Trials",
        tables.markdown(tables.trials(conditions, study)),
        "Censored trials count but did not reach the target; diverged trials do not count.",
    ]
    if len(used := costs.table(loaded)):
        parts += [
            "## What it used",
            tables.markdown(used),
            "Of the best trial of each search, up to the target: bytes of the records read, CPU "
            "seconds of the process, and seconds of training; medians, and ratios to the baseline "
            "with their range.",
        ]
    if len(effects):
        parts += [
            "## Matched seeds",
            tables.markdown(tables.paired(effects, study)),
            "Each trial is compared with the baseline's trial with the same seeds and "
            "hyperparameters. The verdict is at 5% of **p (Holm)**, which is adjusted for the "
            "conditions of this page. A diverged trial forms no pair, which favors a condition "
            "that diverges more often.",
        ]
    parts += [_figure(name, "The best counted trial of each condition.") for name in others]
    facts = [f"{name}: {value}" for name, value in _origin(study).items()]
    return "\n\n".join([*parts, "## How these numbers were made", _list(facts)]) + "\n"


def _figure(name: str, caption: str) -> str:
    return f"![{name.replace('_', ' ')}]({name}.png)\n\n*{caption}*"


def _origin(study: Study) -> dict[str, str]:
    """The protocol and the origin of the numbers, as far as the records tell."""
    facts = {"configuration": study.config_flag, "search space": "; ".join(map(str, study.space))}
    if not study.scores_values:
        facts["judged at"] = tables.target_text(study.target)
        facts["trained for"] = tables.target_text(study.planned_target)
    facts["budget"] = study.budgets and f"{study.budgets} fresh examples per trial"
    names = ("workload", "dataset", "trials", "max_trials", "searches", "seeds", *records.ORIGIN)
    for name in names:
        value = study.record.get(name)
        values = flat(value).items() if isinstance(value, Mapping) else [("", value)]
        texts = (f"{key} {x}".strip() for key, x in values if x or type(x) in (int, float))
        facts[name.replace("_", " ")] = ", ".join(texts)
    return {name: text for name, text in facts.items() if text}


def _list(items: Iterable[str]) -> str:
    return "\n".join(f"- {tables.escaped(item)}" for item in items)
