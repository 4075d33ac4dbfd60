"""The report of a study: tables as CSV, figures, and one page as Markdown and HTML.

    report.write(loaded, "out/study/report")     # what `load.read` returns

Every file is written whole or not at all, so a report can be rewritten while someone reads it.
"""

import base64
import itertools
import os
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from markdown_it import MarkdownIt
from markdown_it.common.utils import escapeHtml

from analysis import caveats, figures, scores, tables, uncertainty
from analysis.figures import style
from analysis.load import LoadedStudy
from runs import records
from runs.progress import several
from runs.study import SECONDS, Study, flat, is_number, plain

_DPI = 200  # of the PNG files; the PDF of each is for print
# Without dates in them, the same records give the same files.
FORMATS: Mapping[str, Mapping[str, Any]] = {
    "png": {"dpi": _DPI},
    "pdf": {"metadata": {"CreationDate": None}},
}


def write(
    loaded: LoadedStudy, out: str | os.PathLike, root: str | os.PathLike | None = None
) -> list[str]:
    """Writes report.html, report.md, scores.csv, paired.csv, trials.csv, and the figures
    (PNG and PDF) into `out`; returns the names of the figures.

    Paths in these files are relative to `root` (default: `out`), so that they stay valid if the
    analyzed directory is moved.
    """
    out, study = pathlib.Path(out), loaded.study
    out.mkdir(parents=True, exist_ok=True)
    root = root or out
    conditions = scores.condition_scores(loaded.trials, study)
    effects = uncertainty.paired_effects(uncertainty.pairs(loaded.trials, study), study)
    trials = loaded.trials.assign(
        path=[
            os.fsencode(os.path.relpath(path, root)).decode(errors="backslashreplace")
            for path in loaded.trials["path"]
        ]
    )
    files = {
        "scores.csv": conditions.to_csv(index=False).encode(),
        "paired.csv": effects.to_csv(index=False).encode(),
        "trials.csv": trials.to_csv(index=False).encode(),
    }
    drawn = figures.of_study(loaded)
    for name, figure in drawn.items():
        for suffix, options in FORMATS.items():
            files[f"{name}.{suffix}"] = style.rendered(figure, suffix, **options)
            figure.set_layout_engine("none")  # the first format lays out for all
    page = markdown(loaded, conditions, effects, root, list(drawn))
    pngs = {name: content for name, content in files.items() if name.endswith(".png")}
    files["report.md"] = page.encode()
    files["report.html"] = html(tables.title(study), page, pngs).encode()
    for name, content in files.items():
        records.write_bytes(out / name, content)
    return list(drawn)


def markdown(
    loaded: LoadedStudy,
    conditions: pd.DataFrame,
    effects: pd.DataFrame,
    root: str | os.PathLike,
    drawn: Sequence[str],
) -> str:
    """The page; the figures `drawn` are expected next to it."""
    study = loaded.study
    notes = caveats.find(loaded, root) or ["None found in the records."]
    parts = [
        f"# {_escaped(tables.title(study))}",
        _summary(effects, study),
        _table(tables.columns(conditions, study), tables.condition_rows(conditions, study)),
        _score_definition(study),
        _figure(drawn[0]),
        "## Caveats",
        _list(*map(_escaped, notes)),
        "## Trials",
        _table(tables.TRIAL_COLUMNS, tables.trial_rows(conditions, study)),
        "Censored trials count but did not reach the target; diverged trials do not count.",
        *_matched_seeds(effects, study),
        *map(_figure, drawn[1:]),
        "## How these numbers were made",
        _list(*(f"{name}: {_escaped(value)}" for name, value in _origin(study).items())),
        "`python -m analysis` also writes `trials.csv`, with every trial, and `scores.csv` and "
        "`paired.csv`, with every number of the tables of conditions and of matched seeds.",
    ]
    return "\n\n".join(parts) + "\n"


def _summary(effects: pd.DataFrame, study: Study) -> str:
    """What the matched seeds say."""
    made = "Made by `python -m analysis` from the records."
    if effects.empty:
        return made
    found = effects["verdict"].value_counts()
    counts = ", ".join(
        f"{verdict} in {found.get(verdict, 0)}"
        for verdict in (*uncertainty.verdicts(study), "undecided")
    )
    compared = several(len(effects), "condition")
    return f"With matched seeds, {compared} against the baseline: {counts}. {made}"


def _score_definition(study: Study) -> str:
    """What the numbers in the table of conditions are."""
    if study.scores_values:
        score, effect = "the best value of its counted trials", "difference"
    else:
        cost = "seconds" if study.score == SECONDS else "fresh examples"
        score = f"the fewest {cost} of its counted trials to the target (> is a lower bound)"
        effect = "ratio"
    return (
        f"A search's score is {score}. The {effect} is to the baseline's search with the same "
        "number and batch size. **Without retuning**, both have the hyperparameters and seeds of "
        "the baseline's best trial, which favors the baseline. Numbers are medians over searches, "
        "brackets their range; over five or more, it covers the median effect with probability "
        "1 - 2^(1 - n). **Resolution** is the distance between evaluations, as a share of the "
        "score. docs/statistics.md of the repository defines every number."
    )


def _matched_seeds(effects: pd.DataFrame, study: Study) -> list[str]:
    """The section on pairs of trials; empty if there are none."""
    if effects.empty:
        return []
    below, above = uncertainty.verdicts(study)
    kind = "difference" if study.scores_values else "ratio"
    return [
        "## Matched seeds",
        _table(tables.paired_columns(study), tables.paired_rows(effects, study)),
        "Each trial is compared with the baseline's trial with the same data seed, model seed, and "
        f"hyperparameters. The {kind} is where the signs of the pairs balance; its interval holds "
        f"the {kind}s that a two-sided sign test does not reject. **Pairs used** have a sign at an "
        "end of it. **p** tests for no effect, **p (Holm)** is adjusted for the conditions of this "
        f"page, and the **verdict** is at 5% of it. **{below}/{above}** counts pairs on each side, "
        "and then searches by most of their pairs: pairs of one search share their data seed, so "
        "their signs may depend on one another.",
    ]


def _list(*items: str) -> str:
    return "\n".join(f"- {item}" for item in items)


_ROWS = (
    "Large dots are medians over searches, lines the range over searches, small dots single "
    "searches, and triangles searches that ended without reaching the target; a dotted line is the "
    "median of the condition's baseline."
)
_POINTS = (
    "Points are medians over searches, lines the range over searches. Triangles are lower bounds: "
    "the target was not reached. Open markers: not all searches reached it."
)
_CAPTIONS = {
    "best_trial_curves": "The best counted trial of each condition.",
    "score_by_trials": "The score of a search by its number of trials, resampled from the counted "
    "trials: the median, and a band with the middle 90% of such searches, which is not a "
    "confidence interval. The baseline is gray.",
    "trials_by_hyperparameter": "Every trial by each hyperparameter. Steps join the best trial of "
    "each sixth of an axis; rings mark the best trial of each search, crosses trials without a "
    "score. A yellow end of an axis holds the best trial of a search.",
    "paired_effects": "Trials compared with the baseline's with matched seeds: strokes are pairs, "
    "triangles pairs in which one side did not reach the target, dots the effect at which the "
    "signs balance, lines its 95% interval.",
}


def _figure(name: str) -> str:
    others = _POINTS if "_by_" in name else _ROWS
    caption = next((text for start, text in _CAPTIONS.items() if name.startswith(start)), others)
    return f"![{name.replace('_', ' ')}]({name}.png)\n\n*{caption}*"


_FIELDS = ("workload", "dataset", "trials", "max_trials", "searches", "seeds", "hardware")
_FIELDS += ("commit", "packages")


def _origin(study: Study) -> dict[str, str]:
    """The protocol and the origin of the numbers, as far as the records tell."""
    space = "; ".join(map(str, study.space))
    facts = {"configuration": study.config_flag or "", "search space": space}
    if not study.scores_values:
        facts["judged at"] = tables.target_text(study.target)
        facts["trained for"] = tables.target_text(study.planned_target)
    if study.budgets:
        facts["budget"] = f"{study.budgets} fresh examples per trial"
    for name in _FIELDS:
        value = study.record.get(name)
        values = flat(value).items() if isinstance(value, Mapping) else [("", value)]
        texts = (f"{key} {x}".strip() for key, x in values if x or is_number(x))
        facts[name.replace("_", " ")] = ", ".join(texts)
    return {name: text for name, text in facts.items() if text}


# What CommonMark and GitHub would read as markup: emphasis, code, HTML, entities, links, and
# images. Brackets and inequalities of the tables stay as they are.
_MARKUP = re.compile(
    r"[\\`*~$|]|<(?=[A-Za-z/!?])|&(?=[#A-Za-z])|\](?=[(\[:])|!(?=\[)"
    r"|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])"
)


def _escaped(text: str) -> str:
    """Text from a record as Markdown that shows it literally, on one line."""
    return _MARKUP.sub(r"\\\g<0>", plain(text))


def _table(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    """A Markdown table; the first column is flush left, the others flush right."""
    rule = [":--"] + ["--:"] * (len(head) - 1)
    rows = [[tables.unbroken(_escaped(cell)) for cell in row] for row in (head, *body)]
    return "\n".join(f"| {' | '.join(row)} |" for row in (rows[0], rule, *rows[1:]))


_PAGE = """\
<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy"
 content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<title>{title}</title><style>
body {{ max-width: 52rem; margin: 2rem auto; padding: 0 1rem; font: 16px/1.5 sans-serif; }}
table {{ border-collapse: collapse; font-size: 14px; display: block; overflow-x: auto; }}
th, td {{ padding: .3rem .6rem; border-bottom: 1px solid #ccc; }}
img {{ max-width: 100%; }}
</style></head><body>
{body}</body></html>
"""


def html(title: str, page: str, pngs: Mapping[str, bytes]) -> str:
    """The Markdown page as one HTML file that fetches nothing and runs no script.

    Args:
        title: of the page.
        page: Markdown.
        pngs: images by file name, which are embedded; any other image is left out.
    """
    parser = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = parser.parse(page)
    for token in itertools.chain.from_iterable(block.children or () for block in tokens):
        if token.type == "image":
            content = base64.b64encode(pngs.get(str(token.attrs["src"]), b"")).decode()
            token.attrs["src"] = f"data:image/png;base64,{content}"
    body = parser.renderer.render(tokens, parser.options, {})
    return _PAGE.format(title=escapeHtml(title), body=body)
