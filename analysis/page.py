"""The report as a page: Markdown, and the same as HTML that needs no other file."""

import base64
import itertools
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from markdown_it import MarkdownIt
from markdown_it.common.utils import escapeHtml

from analysis import caveats, tables, uncertainty
from analysis.load import Records
from analysis.study import BEST_VALUE, SECONDS, Study, plain, target_text

# What Markdown (CommonMark, and GitHub's) would take for markup: emphasis, code, HTML, entities,
# links and images. Brackets and inequalities of the tables stay as they are.
_MARKUP = re.compile(
    r"[\\`*~$|]|<(?=[A-Za-z/!?])|&(?=[#A-Za-z])|\](?=[(\[:])|!(?=\[)"
    r"|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])"
)


def escaped(text: str) -> str:
    """Text of a record as Markdown that shows it as it is, on one line."""
    return _MARKUP.sub(r"\\\g<0>", plain(text))


def markdown(
    found: Records, conditions: pd.DataFrame, root: os.PathLike, drawn: Sequence[str]
) -> str:
    """The whole report; the figures `drawn` are expected beside it."""
    study = found.study
    notes = caveats.find(found, root) or ["None found in the records."]
    rows = tables.condition_rows(conditions, study)
    parts = [
        f"# {escaped(tables.title(study))}",
        _markdown_table(tables.columns(conditions, study), rows, words=2),
        rules(study),
        _figure(drawn[0]),
        "## Caveats",
        "\n".join(f"- {escaped(note)}" for note in notes),
        "## Trials",
        _markdown_table(tables.TRIAL_COLUMNS, tables.trial_rows(found, conditions), words=1),
        "Censored trials count but did not reach the target; diverged ones do not count. The "
        "score of a search is resampled from the condition's counted trials, at the size of the "
        "largest search; the brackets hold the middle "
        f"{uncertainty.LEVEL:.0%} of resampled searches, which is no confidence interval.",
        *_matched_seeds(found),
        *map(_figure, drawn[1:]),
        "## How these numbers were made",
        "\n".join(f"- {name}: {escaped(value)}" for name, value in facts(found).items()),
        "Every trial is in `trials.csv`, every number of the tables of conditions and of matched "
        "seeds in `scores.csv` and `paired.csv`.",
    ]
    return "\n\n".join(parts) + "\n"


_LEVELS = (
    "The range over five or more searches is an interval that covers the median effect with "
    "probability 1 - 2^(1 - n): 93.75 % at five searches. Over fewer it is only a range."
)


def rules(study: Study) -> str:
    """What the table of conditions prints, in a few sentences."""
    if study.score == BEST_VALUE:
        return (
            "Trials ran to the end of their budget. A search's score is the best value of its "
            "counted trials, a condition's the median over searches. The difference to the "
            f"baseline of equal batch size is the median over pairs of searches. {_LEVELS}"
        )
    cost = "seconds" if study.score == SECONDS else "fresh examples"
    return (
        f"A search's score is the smallest number of {cost} over its counted trials, a condition's "
        "the median over searches; a score after > belongs to searches that ended without reaching "
        "the target. The ratio is the median, over pairs of searches with equal number (hence "
        "equal data seed and hyperparameters), of the search's score over that of the baseline of "
        f"equal batch size; ≥ and ≤ mark bounds. {_LEVELS} The resolution is the distance of the "
        "evaluation that scored to the one before it, as a share of the score: smaller differences "
        "cannot be seen. Everything else is of the best trials, medians over searches."
    )


def _matched_seeds(found: Records) -> list[str]:
    """The section on pairs of trials; nothing where there are none."""
    study = found.study
    effects = uncertainty.paired_effects(uncertainty.pairs(found.trials, study), study)
    if effects.empty:
        return []
    table = _markdown_table(
        tables.paired_columns(study), tables.paired_rows(effects, study), words=1
    )
    less, more = uncertainty.verdicts(study)
    if study.score == BEST_VALUE:
        kind, treated = "differences", "equal values count for neither side"
    else:
        kind = "ratios"
        treated = (
            "a trial reached the target between the evaluation that scored and the one before it, "
            "or later than its end, and a pair that may lie on either side counts for neither"
        )
    return [
        "## Matched seeds",
        table,
        "Each trial beside the baseline's of the same data seed, model seed and hyperparameters. "
        f"The interval holds the {kind} that a two-sided sign test does not reject at "
        f"{1 - uncertainty.PAIRED_LEVEL:.0%}, the number before it is where the signs balance; "
        f"{treated}. It takes pairs as exchangeable, though those of one search share their data "
        f"seed: beside it stands in how many searches most pairs were {less}, and {more}. p is of "
        "no effect, adjusted (Holm) for the conditions of this page; the verdict is at 5 %. "
        f"Fewer than {uncertainty.FEWEST_PAIRS} pairs with a side that reached have no interval.",
    ]


_BARS = (
    "Bars are medians over searches, lines run over the range of the searches, dots are single "
    "searches, and triangles those that ended without reaching the target, which lie further to "
    "the right; the dotted line is the baseline's median. Ratios with their brackets are those of "
    "the table."
)
_POINTS = (
    "Points are medians over searches, lines run over the range of the searches. Triangles are "
    "lower bounds: the target was not reached; an empty mark: not in all searches."
)
_CURVES = "The best counted trial of each condition"
_CAPTIONS = {
    "best_values": "Large dots are medians over searches, lines run over the range of the "
    "searches, small dots are single searches; the dotted line is the baseline's median. "
    "Differences with their brackets are those of the table.",
    "best_trial_curves": f"{_CURVES}, against fresh examples.",
    "best_trial_curves_by_step": f"{_CURVES}, against steps.",
    "best_trial_curves_by_train_seconds": f"{_CURVES}, against seconds of training.",
    "score_by_trials": "What a search of so many trials scores, resampled with replacement from "
    "the counted trials: the median, and a band that covers the middle 90 % of such searches (not "
    "a confidence interval; too narrow at the right); the baseline in grey.",
    "trials_by_hyperparameter": "Every trial against each hyperparameter. Steps join the best "
    "trial of each sixth of an axis; rings are the best trials of the searches, crosses trials "
    "without a score. A yellow end of an axis holds the best trial of a search.",
    "paired_effects": "Trials beside the baseline's with matched seeds: strokes are pairs, "
    "triangles pairs of which one side did not reach the target, dots the effect at which the "
    "signs balance, lines its 95 % interval.",
}


def _figure(name: str) -> str:
    caption = _CAPTIONS.get(name, _POINTS if "_by_" in name else _BARS)
    return f"![{name.replace('_', ' ')}]({name}.png)\n\n*{caption}*"


_PAGE = """\
<!doctype html>
<html lang="en"><head><meta charset="utf-8">
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


def html(title: str, text: str, pngs: Mapping[str, bytes]) -> str:
    """The Markdown report as one page that needs no other file and fetches none: `pngs` by file
    name are inside, and any other image is left out."""
    parser = MarkdownIt("commonmark", {"html": False}).enable("table")
    tokens = parser.parse(text)
    for token in itertools.chain.from_iterable(each.children or () for each in tokens):
        if token.type == "image":
            content = base64.b64encode(pngs.get(token.attrs["src"], b"")).decode()
            token.attrs["src"] = f"data:image/png;base64,{content}"
    body = parser.renderer.render(tokens, parser.options, {})
    return _PAGE.format(title=escapeHtml(title), body=body)


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
        "| " + " | ".join(line) + " |"
        for line in [list(map(escaped, head)), rule, *(map(escaped, row) for row in body)]
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
