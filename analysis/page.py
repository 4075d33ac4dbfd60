"""The report as a page: Markdown, and the same as HTML that needs no other file."""

import base64
import itertools
import os
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from markdown_it import MarkdownIt
from markdown_it.common.utils import escapeHtml

from analysis import caveats, tables
from analysis.load import Records
from analysis.study import BEST_VALUE, Study, target_text


def markdown(
    found: Records, conditions: pd.DataFrame, root: os.PathLike, drawn: Sequence[str]
) -> str:
    """The whole report; the figures `drawn` are expected beside it."""
    doubts = caveats.find(found, root) or ["None found in the records."]
    head = tables.columns(found.study)
    parts = [
        f"# {tables.title(found.study)}",
        _markdown_table(head, tables.condition_rows(conditions, found.study), words=2),
        _RULES[found.study.score == BEST_VALUE],
        _figure(drawn[0]),
        "## Read with care",
        "\n".join(f"- {doubt}" for doubt in doubts),
        "## Trials",
        _markdown_table(tables.TRIAL_COLUMNS, tables.trial_rows(found, conditions), words=1),
        "The score of a search is resampled from the condition's counted trials, at the size of "
        "the largest search. Beside the baseline stands the ratio of the first table, with what "
        "resampling the trials of both conditions gives for it. At equal seeds, a trial is "
        "compared with the baseline's of the same data seed, model seed and hyperparameters, where "
        "both have a score"
        + ("." if found.study.score == BEST_VALUE else " (geometric mean of ratios, t interval)."),
        *map(_figure, drawn[1:]),
        "## How these numbers were made",
        "\n".join(f"- {name}: {value}" for name, value in facts(found).items()),
        "Every trial is in `trials.csv`, every number of the tables in `scores.csv`.",
    ]
    return "\n\n".join(parts) + "\n"


_RULES = {
    False: "Means and ranges are over the searches that reached the target; a search's score is "
    "the smallest over its counted trials. Steps and seconds are those of that best trial. The "
    "ratio is to the baseline of equal batch size.",
    True: "Trials ran to the end of their budget. A search's score is the best value of its "
    "counted trials; means and ranges are over searches.",
}

_BARS = (
    "Bars are means over searches, lines run from the minimum to the maximum, dots are single "
    "searches; the dotted line is the baseline's mean."
)
_POINTS = (
    "Points are means over searches, lines run from the minimum to the maximum. Empty marks: some "
    "searches did not reach the target; crosses: none did."
)
_CURVES = "The best counted trial of each condition"
_CAPTIONS = {
    "best_values": "Large dots are means over searches, lines run from the minimum to the maximum, "
    "small dots are single searches; the dotted line is the baseline's mean.",
    "best_trial_curves": f"{_CURVES}, against fresh examples.",
    "best_trial_curves_by_step": f"{_CURVES}, against steps.",
    "best_trial_curves_by_train_seconds": f"{_CURVES}, against seconds of training.",
    "score_by_trials": "What a search of so many trials scores: the median, and a band from 5 to "
    "95 % of such searches, resampled with replacement from counted trials; the baseline in grey.",
    "trials_by_hyperparameter": "Every trial against each hyperparameter. Steps join the best "
    "trial of each sixth of an axis; rings are the best trials of the searches, crosses trials "
    "without a score. A yellow end of an axis holds the best trial of a search.",
    "paired_effects": "Trials beside the baseline's of equal seeds and hyperparameters: strokes "
    "are pairs, dots their mean, lines its 95 % interval.",
}


def _figure(name: str) -> str:
    caption = _CAPTIONS.get(name, _POINTS if "_by_" in name else _BARS)
    return f"![{name.replace('_', ' ')}]({name}.png)\n\n*{caption}*"


_PAGE = """\
<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>
body {{ max-width: 52rem; margin: 2rem auto; padding: 0 1rem; font: 16px/1.5 sans-serif; }}
table {{ border-collapse: collapse; font-size: 14px; display: block; overflow-x: auto; }}
th, td {{ padding: .3rem .6rem; border-bottom: 1px solid #ccc; }}
img {{ max-width: 100%; }}
</style></head><body>
{body}</body></html>
"""


def html(text: str, pngs: Mapping[str, bytes]) -> str:
    """The Markdown report as one page that needs no other file: `pngs` by file name are inside."""
    parser = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = parser.parse(text)
    for token in itertools.chain.from_iterable(each.children or () for each in tokens):
        if token.type == "image" and token.attrs["src"] in pngs:
            content = base64.b64encode(pngs[token.attrs["src"]]).decode()
            token.attrs["src"] = f"data:image/png;base64,{content}"
    body = parser.renderer.render(tokens, parser.options, {})
    name = escapeHtml(text.partition("\n")[0].lstrip("# "))
    return _PAGE.format(title=name, body=body)


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


def _markdown_table(head: Sequence[str], body: Sequence[Sequence[str]], words: int) -> str:
    """The first `words` columns flush left, the others, numbers, flush right."""
    rule = [":--"] * words + ["--:"] * (len(head) - words)
    return "\n".join(
        "| " + " | ".join(c.replace("|", "\\|") for c in line) + " |"
        for line in [head, rule, *body]
    )


def _target_fact(study: Study) -> str:
    if study.score == BEST_VALUE:
        return f"none, best {study.target.metric} counts ({study.target.mode} is better)"
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
