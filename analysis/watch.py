"""`python -m analysis DIR --watch`: how a study stands, every few seconds until it has ended."""

import math
import pathlib
import time

import pandas as pd
from rich.console import Console, RenderableType
from rich.live import Live
from rich.table import Table

from analysis import load, scores, study, tables
from analysis.load import UNFINISHED, Records
from runs import records

EVERY_SECONDS = 5.0
_HEAD = ("condition", "trials ended", "counted", "diverged", "reached", "best so far", "now")


def watch(directory: pathlib.Path, target: float | None = None) -> None:
    """Shows the study at `directory` until it has ended or the person signals.

    On a terminal one table is drawn anew; elsewhere a line is printed when something has changed.

    Raises:
        study.InputError: `directory` cannot be read as a study.
    """
    console = Console(highlight=False)
    try:
        if console.is_terminal:
            with Live(console=console, auto_refresh=False) as live:
                _repeat(directory, target, lambda found: live.update(table(found), refresh=True))
        else:
            shown: list[str] = []
            _repeat(directory, target, lambda found: _say_once(console, line(found), shown))
    except KeyboardInterrupt:
        pass


def _repeat(directory: pathlib.Path, target: float | None, show) -> None:
    while True:
        found = _read(directory, target)
        show(found)
        if found is not None and ended(found):
            return
        time.sleep(EVERY_SECONDS)


def _read(directory: pathlib.Path, target: float | None) -> Records | None:
    """The records, or None where the study is there and no trial has begun."""
    try:
        return load.read(directory, target)
    except study.InputError:
        if not (directory / records.STUDY).exists() or any(records.trials_on_disk(directory)):
            raise
        return None


def _say_once(console: Console, words: str, shown: list[str]) -> None:
    if words not in shown[-1:]:
        shown.append(words)
        console.print(words, soft_wrap=True, markup=False)


def ended(found: Records) -> bool:
    """Whether each planned search has its trials, or has tried as many as it may."""
    plan = found.study
    if plan.trials is None:
        return not (found.trials["status"] == UNFINISHED).any()
    searches = scores.search_scores(found.trials, plan)
    most = plan.facts.get("max_trials", math.inf)
    done = (searches["counted"] >= plan.trials) | (searches["ended"] >= most)
    return int(done.sum()) >= len(plan.conditions) * plan.searches


def line(found: Records | None) -> str:
    """The study in one line of plain text."""
    if found is None:
        return "no trial has begun"
    status = found.trials["status"]
    trials = f"{int(found.trials['counted'].sum())}{_planned(found)} trials counted"
    parts = [trials, f"{int((status == 'diverged').sum())} diverged"]
    parts.append(f"{int((status == UNFINISHED).sum())} running")
    parts += [f"{row[0]} {row[5]}" for row in _rows(found) if row[5] != "-"]
    return " | ".join(parts)


def table(found: Records | None) -> RenderableType:
    """The study as a table, a row per condition."""
    if found is None:
        return line(found)
    shown = Table(*_HEAD, title=f"{tables.title(found.study)}: {line(found).split(' | ')[0]}")
    for row in _rows(found):
        shown.add_row(*row)
    return shown


def _rows(found: Records) -> list[tuple[str, ...]]:
    searches = scores.search_scores(found.trials, found.study)
    words = tables.measure_words(found.study)
    rows = []
    for row in scores.condition_scores(found.trials, found.study).to_dict("records"):
        own = searches[searches["condition"] == row["condition"]]
        found_so_far = scores.summary_of(row, found.study.score)
        ends = (found_so_far.min, found_so_far.min_high)
        if found.study.higher_is_better:
            ends = (found_so_far.max_low, found_so_far.max)
        score = "-" if pd.isna(ends[0]) else tables.score_text(*ends, words)
        counts = (str(int(own[name].sum())) for name in ("ended", "counted", "diverged", "reached"))
        rows.append((row["label"], *counts, score, _running(found, row["condition"])))
    return rows


def _running(found: Records, condition: str) -> str:
    """The trials under way with how far they are: 'search 0, trial 3 at 2,400'."""
    trials = found.trials
    own = trials[(trials["condition"] == condition) & (trials["status"] == UNFINISHED)]
    words = []
    for row in own.itertuples():
        words.append(f"search {row.search}, trial {row.trial}{_how_far(row.path)}")
    return "; ".join(words)


def _how_far(path: str) -> str:
    """' at 2,400' by a trial's last record, '' where there is none that says so."""
    try:
        return f" at {records.read_metrics(path)[-1]['fresh_examples']:,}"
    except (IndexError, KeyError, TypeError, ValueError, OSError):
        return ""


def _planned(found: Records) -> str:
    plan = found.study
    if plan.trials is None:
        return ""
    return f" of {len(plan.conditions) * plan.searches * plan.trials:,}"
