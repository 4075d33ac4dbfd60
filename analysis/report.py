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
from analysis.tables import target_text
from runs import records
from runs.progress import several
from runs.study import SECONDS, Study, plain

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
        _table(tables.TRIAL_COLUMNS, tables.trial_rows(loaded, conditions)),
        "Censored trials count but did not reach the target; diverged trials do not count. "
        "Searches are resampled from the condition's counted trials, at the size of the largest "
        f"search. The brackets hold the middle {uncertainty.LEVEL:.0%} of their scores, which is "
        "not a confidence interval.",
        *_matched_seeds(effects, study),
        *map(_figure, drawn[1:]),
        "## How these numbers were made",
        _list(*(f"{name}: {_escaped(value)}" for name, value in _origin(study).items())),
        "`python -m analysis` also writes `trials.csv`, with every trial, and `scores.csv` and "
        "`paired.csv`, with every number of the tables of conditions and of matched seeds.",
    ]
    return "\n\n".join(parts) + "\n"


_UNTUNED = (
    "**without retuning**: with the hyperparameters and seeds of the baseline's best trial, which "
    "favors the baseline."
)
_INTERVALS = (
    "**[brackets]**: the range over searches. Over five or more, it is an interval that covers the "
    "median effect with probability 1 - 2^(1 - n): 93.75% for five."
)


def _summary(effects: pd.DataFrame, study: Study) -> str:
    """What the matched seeds say, and how much was run; a few short sentences."""
    sentences = []
    if not effects.empty:
        verdicts = effects["verdict"].value_counts()
        better, worse = uncertainty.verdicts(study)
        if study.higher_is_better:
            better, worse = worse, better
        take, are, have = ("takes", "is", "has") if len(effects) == 1 else ("take", "are", "have")
        verb = {"fewer": f"{take} fewer fresh examples", "faster": f"{are} faster"}
        does = verb.get(better, f"{have} a {better} best value")
        sentences.append(
            f"With matched seeds, {verdicts.get(better, 0)} of "
            f"{several(len(effects), 'condition')} {does} than the baseline, "
            f"{verdicts.get(worse, 0)} {worse}; undecided: {verdicts.get('undecided', 0)}."
        )
    size = [
        study.searches and f"{several(study.searches, 'search')} per condition",
        study.trials and f"{several(study.trials, 'trial')} per search",
        study.budgets and f"at most {study.budgets} fresh examples per trial",
        (study.record.get("hardware") or {}).get("cpu"),
    ]
    if any(size):
        sentences.append(f"The study: {', '.join(_escaped(part) for part in size if part)}.")
    return " ".join([*sentences, "Made by `python -m analysis` from the records."])


def _score_definition(study: Study) -> str:
    """The numbers in the table of conditions, as a list."""
    if study.scores_values:
        return _list(
            "**best value**: of the counted trials of a search, which ran to the end of their "
            "budget; the median over searches.",
            "**difference to baseline**: to the search of the baseline with the same number and "
            "batch size; the median over searches.",
            _INTERVALS,
            _UNTUNED,
        )
    cost = "seconds" if study.score == SECONDS else "fresh examples"
    return _list(
        f"**{cost}**: the smallest number over the counted trials of a search; the median over "
        "searches. After > it is a lower bound, from searches that ended without reaching the "
        "target.",
        "**ratio to baseline**: to the search of the baseline with the same number (hence the same "
        "data seed and hyperparameters) and batch size; the median over searches. ≥ and ≤ mark "
        "bounds.",
        _INTERVALS,
        _UNTUNED,
        "**resolution**: the distance between the evaluation that scored and the one before it, as "
        "a share of the score. Smaller differences are not resolved.",
        "Other columns: medians over the best trials of the searches.",
    )


def _matched_seeds(effects: pd.DataFrame, study: Study) -> list[str]:
    """The section on pairs of trials; empty if there are none."""
    if effects.empty:
        return []
    below, above = uncertainty.verdicts(study)
    if study.scores_values:
        kind, ties = "difference", "Equal values count for neither side."
    else:
        kind = "ratio"
        ties = (
            "A trial reached the target between the evaluation that scored and the one before it, "
            "or later than its end; a pair that may lie on either side counts for neither."
        )
    return [
        "## Matched seeds",
        _table(tables.paired_columns(study), tables.paired_rows(effects, study)),
        "Each trial is compared with the baseline's trial with the same data seed, model seed, and "
        "hyperparameters.",
        _list(
            f"**{kind} [{uncertainty.PAIRED_LEVEL:.0%} interval]**: where the signs balance, and "
            f"the {kind}s that a two-sided sign test does not reject at "
            f"{1 - uncertainty.PAIRED_LEVEL:.0%}. There is no interval with fewer than "
            f"{uncertainty.MIN_PAIRS} pairs in which a side reached the target.",
            "**pairs used**: pairs with a sign at an end of the interval, of all; the others would "
            "not change it. Where they are few, most pairs ended before they could tell.",
            f"**{below}/{above}**: pairs on each side. {ties}",
            f"**searches {below}/{above}**: searches in which most pairs lie on that side. The "
            "test assumes independent signs, but pairs of one search share their data seed.",
            "**p** tests for no effect; **p (Holm)** is adjusted for the conditions of this page, "
            "and the **verdict** is at 5% of it.",
        ),
    ]


def _list(*items: str) -> str:
    return "\n".join(f"- {item}" for item in items)


_BARS = (
    "Bars are medians over searches, lines the range over searches, dots single searches, and "
    "triangles searches that ended without reaching the target, whose scores are larger; a "
    "dotted line is the median of the condition's baseline. Ratios and brackets are those of the "
    "table."
)
_POINTS = (
    "Points are medians over searches, lines the range over searches. Triangles are lower bounds: "
    "the target was not reached. Open markers: not all searches reached it."
)
_CAPTIONS = {
    "best_values": "Large dots are medians over searches, lines the range over searches, small "
    "dots single searches; a dotted line is the median of the condition's baseline. Differences "
    "and brackets are those of the table.",
    "best_trial_curves": "The best counted trial of each condition, by fresh examples.",
    "best_trial_curves_by_step": "The best counted trial of each condition, by steps.",
    "best_trial_curves_by_train_seconds": "The best counted trial of each condition, by seconds of "
    "training.",
    "score_by_trials": "The score of a search by its number of trials, resampled with replacement "
    "from the counted trials: the median, and a band with the middle 90% of such searches (not a "
    "confidence interval; too narrow at the right). The baseline is gray.",
    "trials_by_hyperparameter": "Every trial by each hyperparameter. Steps join the best trial of "
    "each sixth of an axis; rings mark the best trial of each search, crosses trials without a "
    "score. A yellow end of an axis holds the best trial of a search.",
    "paired_effects": "Trials compared with the baseline's with matched seeds: strokes are pairs, "
    "triangles pairs in which one side did not reach the target, dots the effect at which the "
    "signs balance, lines its 95% interval.",
}


def _figure(name: str) -> str:
    caption = _CAPTIONS.get(name, _POINTS if "_by_" in name else _BARS)
    return f"![{name.replace('_', ' ')}]({name}.png)\n\n*{caption}*"


def _origin(study: Study) -> dict[str, str]:
    """The protocol and the origin of the numbers, as far as the records tell."""
    record = study.record
    facts = {
        "workload": record.get("workload"),
        "configuration": study.config_flag,
        "data set": _pairs(record.get("dataset")),
        "target": _target_origin(study),
        "budget": study.budgets and f"{study.budgets} fresh examples per trial",
        "trials": study.trials
        and f"the first {study.trials} of each search that neither diverge nor fail",
        "maximum number of trials": study.max_trials,
        "searches": study.searches and f"{study.searches} per condition",
        "seeds of the first trial": _pairs(record.get("seeds"), " "),
        "search space": "; ".join(map(str, study.space)),
        "hardware": _pairs(record.get("hardware")),
        "commit": record.get("commit"),
        "packages": _pairs(record.get("packages"), " "),
    }
    return {name: str(value) for name, value in facts.items() if value}


def _target_origin(study: Study) -> str:
    if study.scores_values:
        return f"none; the best {study.target.metric} counts ({study.target.mode} is better)"
    target = f"{target_text(study.target)} ({study.target.metric} {study.target.mode})"
    if study.target == study.planned_target:
        return target
    return f"{target}, judged from the curves; trained for {target_text(study.planned_target)}"


def _pairs(values: Mapping[str, Any] | None, separator: str = " = ") -> str:
    """The values that say something: 'name = digits, image_shape = 8 x 8 x 1'."""
    texts = {
        key: " x ".join(map(str, value)) if isinstance(value, list) else str(value)
        for key, value in (values or {}).items()
        if value is not None and value is not False
    }
    return ", ".join(f"{key}{separator}{text}" for key, text in texts.items() if text)


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
