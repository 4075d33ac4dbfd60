"""What a command displays while it works."""

import io
import threading

import pytest
from rich.console import Console

from runs.progress import Progress, Status, TimeLeft
from tests.helpers.runs import HANGS

STATUS = Status("accuracy", 0.9712, ">= 0.97", 7500.0, 0.081, 4804, 1_281_167, 5213.4, 20_853.6)


def test_a_line_fits_80_columns_and_keeps_what_matters_most(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    line = Progress().fitted(str(STATUS))
    assert len(line) <= 80
    assert line.startswith("accuracy 0.9712 (>= 0.97) | 2 h 05 min left | input wait 8% | ")
    monkeypatch.setenv("COLUMNS", "30")
    assert Progress().fitted(str(STATUS)) == "accuracy 0.9712 (>= 0.97)"


def test_a_terminal_shows_heading_and_status_in_place(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("runs.progress.time.monotonic", lambda: now[0])
    progress = Progress(heading="[3/40] e2, search 0, trial 3")
    screen = io.StringIO()
    progress._console = Console(file=screen, force_terminal=True, width=80)
    for second in (3.0, 4.0):
        now[0] = second
        progress.update(STATUS)
    progress.close()
    shown = screen.getvalue()
    assert "[3/40] e2, search 0, trial 3\naccuracy 0.9712" in shown
    assert "\x1b[1A\x1b[2K[3/40]" in shown  # the second one over the first


def test_a_log_does_not_repeat_a_status(capsys, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("runs.progress.time.monotonic", lambda: now[0])
    progress = Progress()
    for status in ("a", "a", "b", "b", "a"):
        now[0] += 60.0
        progress.update(status)
    assert capsys.readouterr().err.split() == ["a", "b", "a"]


def test_time_left_counts_from_the_first_step_of_this_process():
    now = [100.0]  # compilation ended
    left = TimeLeft(clock=lambda: now[0])
    assert left(step=501, done=0.5) is None  # resumed in the middle
    now[0] += 3.0
    assert left(step=541, done=0.54) is None  # three seconds say little
    now[0] += 3.0
    assert left(step=561, done=0.56) == pytest.approx(6.0 / 0.06 * 0.44)
    slow = TimeLeft(clock=lambda: now[0])
    slow(step=1, done=0.0)
    now[0] += 3600.0
    assert slow(step=2, done=0.01) is None  # and so does one step


def test_what_takes_long_is_named_meanwhile(monkeypatch):
    progress, said = Progress(), threading.Event()
    progress._next_line = 0.0
    monkeypatch.setattr(progress, "say", lambda line: said.set())
    monkeypatch.setattr("runs.progress._SLOW_SECONDS", 0.0)
    with progress.meanwhile("waiting for the first batch"):
        assert said.wait(HANGS)
    said.clear()
    progress._next_line = 0.0
    monkeypatch.setattr("runs.progress._SLOW_SECONDS", float(2 * HANGS))
    with progress.meanwhile("waiting for the second batch"):
        pass
    assert not said.is_set()
    assert not any(isinstance(thread, threading.Timer) for thread in threading.enumerate())
