"""The report of a study: tables as CSV, figures, and one page in Markdown.

    report.write(loaded, "out/study/report")     # what `load.read` returns

Every file is written whole or not at all, so a report can be rewritten while someone reads it.
"""

import os
import pathlib
from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd

from analysis import caveats, figures, scores, tables, uncertainty
from analysis.figures import style
from analysis.load import LoadedStudy
from runs import records
from runs.cli import InputError
from runs.progress import several
from runs.records import flat
from runs.study import SECONDS, Study, is_number

_PAGE, _MADE = "report.md", "Made by `python -m analysis` from the records."
# The PDF of each figure is for print. Without dates, the same records give the same files.
FORMATS: Mapping[str, Mapping[str, Any]] = {
    "png": {"dpi": 200},
    "pdf": {"metadata": {"CreationDate": None}},
}
_CAPTIONS = {  # by the beginning of a figure's name
    "best_trial_curves": "The best counted trial of each condition.",
    "paired_effects": "Trials compared with the baseline's with matched seeds: strokes are pairs, "
    "triangles pairs in which one side did not reach the target, dots the effect at which the "
    "signs balance, lines its 95% interval.",
}
_BY_SETTING = (
    "Points are medians over searches, lines the range over searches. Triangles are lower bounds: "
    "the target was not reached. Open markers: not all searches reached it."
)
_BY_CONDITION = (
    "Large dots are medians over searches, lines the range over searches, small dots single "
    "searches, and triangles searches that ended without reaching the target; a dotted line is the "
    "median of the condition's baseline."
)


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
    conditions = scores.condition_scores(loaded.trials, study)
    effects = uncertainty.paired_effects(uncertainty.pairs(loaded.trials, study), study)
    paths = (os.fsencode(os.path.relpath(path, root)) for path in loaded.trials["path"])
    trials = loaded.trials.assign(path=[path.decode(errors="backslashreplace") for path in paths])
    frames = {"scores.csv": conditions, "paired.csv": effects, "trials.csv": trials}
    out.mkdir(parents=True, exist_ok=True)
    earlier = (out / _PAGE).is_file() and _MADE in (out / _PAGE).read_text(errors="replace")
    for name in () if earlier else (_PAGE, *frames):
        if os.path.lexists(out / name):
            raise InputError(f"{out / name} exists and is not a report's; give another --out")
    drawn = figures.of_study(loaded)
    page = _page(loaded, conditions, effects, root, *drawn)
    files = {_PAGE: page.encode()}  # the page first, which marks a report
    files |= {name: frame.to_csv(index=False).encode() for name, frame in frames.items()}
    for name, figure in drawn.items():
        for suffix, options in FORMATS.items():
            files[f"{name}.{suffix}"] = style.rendered(figure, suffix, **options)
            figure.set_layout_engine("none")  # the first format lays out for all
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
    parts = [
        f"# {tables.escaped(tables.title(study))}",
        _summary(effects, study),
        tables.markdown(tables.conditions(conditions, study)),
        _score_definition(study),
        _figure(result),
        "## Caveats",
        _list(caveats.find(loaded, root) or ["None found in the records."]),
        "## Trials",
        tables.markdown(tables.trials(conditions, study)),
        "Censored trials count but did not reach the target; diverged trials do not count.",
        *_matched_seeds(effects, study),
        *map(_figure, others),
        "## How these numbers were made",
        _list(f"{name}: {value}" for name, value in _origin(study).items()),
        "`python -m analysis` also writes `trials.csv`, with every trial, and `scores.csv` and "
        "`paired.csv`, with every number of the tables of conditions and of matched seeds.",
    ]
    return "\n\n".join(parts) + "\n"


def _summary(effects: pd.DataFrame, study: Study) -> str:
    """What the matched seeds say."""
    if effects.empty:
        return _MADE
    found = effects["verdict"].value_counts()
    said = (*uncertainty.verdicts(study), "undecided")
    counts = ", ".join(f"{verdict} in {found.get(verdict, 0)}" for verdict in said)
    compared = several(len(effects), "condition")
    return f"With matched seeds, {compared} against the baseline: {counts}. {_MADE}"


def _score_definition(study: Study) -> str:
    """What the numbers in the table of conditions are."""
    score, effect = "the best value of its counted trials", "difference"
    if not study.scores_values:
        cost = "seconds" if study.score == SECONDS else "fresh examples"
        score = f"the fewest {cost} of its counted trials to the target (> is a lower bound)"
        effect = "ratio"
    return (
        f"A search's score is {score}. The {effect} is to the baseline's search with the same "
        "number and batch size. Numbers are medians over searches, brackets their range; over five "
        "or more, it covers the median effect with probability 1 - 2^(1 - n). **Resolution** is "
        "the distance between evaluations, as a share of the score. docs/statistics.md of the "
        "repository defines every number."
    )


def _matched_seeds(effects: pd.DataFrame, study: Study) -> list[str]:
    """The section on pairs of trials; empty if there are none."""
    if effects.empty:
        return []
    below, above = uncertainty.verdicts(study)
    kind = "difference" if study.scores_values else "ratio"
    return [
        "## Matched seeds",
        tables.markdown(tables.paired(effects, study)),
        "Each trial is compared with the baseline's trial with the same data seed, model seed, and "
        f"hyperparameters. The {kind} is where the signs of the pairs balance; its interval holds "
        f"the {kind}s that a two-sided sign test does not reject. **Pairs used** have a sign at an "
        "end of it. **p** tests for no effect, **p (Holm)** is adjusted for the conditions of this "
        f"page, and the **verdict** is at 5% of it. **{below}/{above}** counts pairs on each side, "
        "and then searches by most of their pairs: pairs of one search share their data seed, so "
        "their signs may depend on one another. A diverged trial forms no pair, which favors a "
        "condition that diverges more often.",
    ]


def _figure(name: str) -> str:
    result = _BY_SETTING if "_by_" in name else _BY_CONDITION
    caption = next((text for start, text in _CAPTIONS.items() if name.startswith(start)), result)
    return f"![{name.replace('_', ' ')}]({name}.png)\n\n*{caption}*"


def _origin(study: Study) -> dict[str, str]:
    """The protocol and the origin of the numbers, as far as the records tell."""
    space = "; ".join(map(str, study.space))
    facts = {"configuration": study.config_flag or "", "search space": space}
    if not study.scores_values:
        facts["judged at"] = tables.target_text(study.target)
        facts["trained for"] = tables.target_text(study.planned_target)
    if study.budgets:
        facts["budget"] = f"{study.budgets} fresh examples per trial"
    names = ("workload", "dataset", "trials", "max_trials", "searches", "seeds", *records.ORIGIN)
    for name in names:
        value = study.record.get(name)
        values = flat(value).items() if isinstance(value, Mapping) else [("", value)]
        texts = (f"{key} {x}".strip() for key, x in values if x or is_number(x))
        facts[name.replace("_", " ")] = ", ".join(texts)
    return {name: text for name, text in facts.items() if text}


def _list(items: Iterable[str]) -> str:
    return "\n".join(f"- {tables.escaped(item)}" for item in items)
