"""What a command displays while it works."""

import dataclasses
import io
import threading

import pytest

from runs.progress import Progress, Status, TimeLeft, duration, write
from tests.helpers.runs import HANGS

STATUS = Status("accuracy", 0.9712, ">= 0.97", 7500.0, 0.081, 4804, 1_281_167, 5213.4, 20_853.6)


@pytest.fixture
def now(monkeypatch):
    """A clock that stands still until it is set."""
    seconds = [0.0]
    monkeypatch.setattr("runs.progress.time.monotonic", lambda: seconds[0])
    return seconds


def test_a_line_fits_and_keeps_what_matters_most(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    line = Progress().fitted(str(STATUS))
    assert len(line) <= 80
    assert line.startswith("accuracy 0.9712 (>= 0.97) | 2 h 05 min left | input wait 8% | ")
    monkeypatch.setenv("COLUMNS", "30")
    assert Progress().fitted(str(STATUS)) == "accuracy 0.9712 (>= 0.97)"


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_terminal_shows_one_line_in_place(now, monkeypatch):
    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    progress = Progress(heading="[3/40] e2")
    for now[0] in (3.0, 3.1, 4.0):
        progress.update("accuracy 0.97")
    progress.say("done")
    line = "\r\x1b[K[3/40] e2 | accuracy 0.97"
    assert screen.getvalue() == f"{line}{line}\r\x1b[Kdone\n"


def test_a_log_does_not_repeat_a_status(now, capsys):
    progress = Progress()
    for status in ("a", "a", "b", "b", "a"):
        now[0] += 60.0
        progress.update(status)
    progress.update("too soon")
    assert capsys.readouterr().err.split() == ["a", "b", "a"]


def test_output_that_fails_does_not_end_the_command(tmp_path):
    with open("/dev/full", "w") as full, open(tmp_path / "log", "w") as closed:
        write("a line", full)
        write("another", full)
    write("a line", closed)


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


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(41.6, "42 s"), (200, "3 min 20 s"), (7500, "2 h 05 min"), (float("inf"), "?"), (None, "?")],
)
def test_durations_are_for_humans(seconds, text):
    assert duration(seconds) == text


def test_what_takes_long_is_named_meanwhile(monkeypatch):
    progress, said = Progress(), threading.Event()
    progress.update = lambda status: said.set()
    monkeypatch.setattr("runs.progress._SLOW_SECONDS", 0.0)
    with progress.meanwhile("waiting for the first batch"):
        assert said.wait(HANGS)
    said.clear()
    monkeypatch.setattr("runs.progress._SLOW_SECONDS", float(2 * HANGS))
    with progress.meanwhile("waiting for the second batch"):
        pass
    assert not said.is_set()


def test_between_evaluations_a_line_has_the_training_loss():
    line = str(dataclasses.replace(STATUS, loss=0.51234))
    assert "| training loss 0.512 |" in line
