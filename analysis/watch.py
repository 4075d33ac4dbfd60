"""`python -m analysis DIR --watch`: the state of a study, every few seconds until it has ended."""

import pathlib
import time
from collections.abc import Callable

import pandas as pd
from rich.console import Console, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from analysis import load, scores, tables
from analysis.load import UNFINISHED, LoadedStudy
from runs import records
from runs.cli import InputError
from runs.study import Study

POLL_SECONDS = 5.0
_HEAD = ("condition", "trials ended", "counted", "diverged", "reached", "best so far", "running")


def watch(directory: pathlib.Path, target: float | None = None) -> None:
    """Shows the study at `directory` until it has ended or the user interrupts.

    A terminal shows a table that is redrawn; other output gets a line whenever something changes.

    Raises:
        InputError: `directory` cannot be read as a study.
    """
    console = Console(highlight=False)
    printed = {}

    def print_change(loaded: LoadedStudy | None) -> None:
        nonlocal printed
        before, printed = printed, dict.fromkeys(filter(None, (_set_aside(loaded), line(loaded))))
        for text in printed:
            if text not in before:
                console.print(text, soft_wrap=True, markup=False)

    try:
        if console.is_terminal:
            with Live(console=console, auto_refresh=False) as live:
                _poll(directory, target, lambda loaded: live.update(table(loaded), refresh=True))
        else:
            _poll(directory, target, print_change)
    except KeyboardInterrupt:
        pass


def _poll(
    directory: pathlib.Path, target: float | None, show: Callable[[LoadedStudy | None], None]
) -> None:
    rows = load.Rows()
    while True:
        start = time.monotonic()
        loaded = _read(directory, target, rows)
        show(loaded)
        if loaded is not None and ended(loaded):
            return
        # a study of 100,000 trials takes seconds to summarize
        time.sleep(max(POLL_SECONDS, time.monotonic() - start))


def _read(directory: pathlib.Path, target: float | None, rows: load.Rows) -> LoadedStudy | None:
    """The records, or None for a study in which no trial has started."""
    try:
        return load.read(directory, target, rows)
    except InputError:
        if not (directory / records.STUDY).exists() or any(records.trials_on_disk(directory)):
            raise
        load.at_target(load.read_study(directory), target)  # a wrong target is wrong already
        return None


def ended(loaded: LoadedStudy) -> bool:
    """Whether each planned search has its trials, or has run as many as it may. A single run that
    was preempted has not ended: it is to be resumed."""
    study = loaded.study
    if not study.trials:
        return bool(loaded.trials["status"].isin(records.ENDED).all())
    done = finished(scores.search_scores(loaded.trials, study), study)
    return int(done.sum()) >= len(study.conditions) * study.searches


def finished(searches: pd.DataFrame, study: Study) -> pd.Series:
    """Whether each search has its trials, or has run as many as it may, bool [searches].

    Args:
        searches: rows of `scores.search_scores`.
    """
    return (searches["counted"] >= study.trials) | (searches["ended"] >= study.max_trials)


def line(loaded: LoadedStudy | None) -> str:
    """The state of the study in one line of plain text."""
    if loaded is None:
        return "no trial has started"
    status = loaded.trials["status"]
    parts = [
        _counted(loaded),
        f"{int((status == 'diverged').sum())} diverged",
        f"{int((status == UNFINISHED).sum())} running",
    ]
    best = ((row[0], row[_HEAD.index("best so far")]) for row in _rows(loaded))
    return " | ".join([*parts, *(f"{label} {score}" for label, score in best if score != "-")])


def _set_aside(loaded: LoadedStudy | None) -> str | None:
    """The trials that cannot be read, for which a study may wait forever; None if all can."""
    return None if loaded is None else loaded.warning()


def _counted(loaded: LoadedStudy) -> str:
    study = loaded.study
    planned = len(study.conditions) * study.searches * study.trials
    of_planned = f" of {planned:,}" if planned else ""
    return f"{int(loaded.trials['counted'].sum())}{of_planned} trials counted"


def table(loaded: LoadedStudy | None) -> RenderableType:
    """The state of the study as a table, one row per condition."""
    if loaded is None:
        return line(loaded)
    title = Text(f"{tables.title(loaded.study)}: {_counted(loaded)}")
    rendered = Table(*_HEAD, title=title, caption=Text(_set_aside(loaded) or ""))
    for row in _rows(loaded):
        rendered.add_row(*map(Text, row))
    return rendered


def _rows(loaded: LoadedStudy) -> list[tuple[str, ...]]:
    study = loaded.study
    searches = scores.search_scores(loaded.trials, study)
    number = tables.format_of(study.score)
    rows = []
    for row in scores.condition_scores(loaded.trials, study).to_dict("records"):
        own = searches[searches["condition"] == row["condition"]]
        known = own[own["counted"] > 0]  # not a search of which all trials so far diverged
        lows, highs = (known[f"{study.score}_{end}"] for end in ("low", "high"))
        low, high = lows.min(), highs.min()
        if study.higher_is_better:
            low = high = lows.max()
        best = "-" if pd.isna(low) else tables.score_text(min(low, high), high, number)
        counts = (str(int(own[name].sum())) for name in ("ended", "counted", "diverged", "reached"))
        rows.append((row["label"], *counts, best, _running(loaded, row["condition"])))
    return rows


def _running(loaded: LoadedStudy, condition: str) -> str:
    """The running trials and how far they are: 'search 0, trial 3 at 2,400'."""
    trials = loaded.trials
    own = trials[(trials["condition"] == condition) & (trials["status"] == UNFINISHED)]
    return "; ".join(
        f"search {row['search']}, trial {row['trial']}{_position(row['path'])}"
        for row in own.to_dict("records")
    )


def _position(path: str) -> str:
    """' at 2,400' from a trial's last record; '' if there is none."""
    try:
        return f" at {records.read_metrics(path)[-1]['fresh_examples']:,}"
    except (IndexError, KeyError, TypeError, ValueError, OSError):
        return ""
