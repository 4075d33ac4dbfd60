"""What a command displays while it works."""

import io
import threading

import pytest

from runs.progress import Progress, TimeLeft, duration, write
from tests.helpers.runs import HANGS

LINE = "accuracy 0.9712 (>= 0.97) | 2 h 05 min left | input wait 8% | 5,213 fresh/s | 4,804 of 9"


@pytest.fixture
def now(monkeypatch):
    """A clock that stands still until it is set."""
    seconds = [0.0]
    monkeypatch.setattr("runs.progress.time.monotonic", lambda: seconds[0])
    return seconds


def test_a_line_fits_and_keeps_what_matters_most(monkeypatch):
    for columns, kept in ((200, LINE), (80, LINE.rpartition(" | ")[0]), (30, LINE[:25])):
        monkeypatch.setenv("COLUMNS", str(columns))
        assert Progress().fitted(LINE) == kept


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_terminal_shows_one_line_in_place(now, monkeypatch):
    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    progress = Progress(heading="[3/40] e2")
    for now[0] in (3.0, 3.1, 4.0):
        progress.update(lambda: "accuracy 0.97")
    for line in ("done", "and ended"):
        progress.say(line)
    line = "\r\x1b[K[3/40] e2 | accuracy 0.97"
    assert screen.getvalue() == f"{line}{line}\r\x1b[Kdone\nand ended\n"


def test_a_log_gets_a_line_every_ten_seconds_if_it_is_new(now, capsys):
    progress = Progress()
    for now[0], status in ((1, "a"), (2, "b"), (11.9, "c"), (12, "d"), (22, "d"), (32, "e")):
        progress.update(lambda status=status: status)
    assert capsys.readouterr().err.split() == ["b", "d", "e"]


def test_output_that_fails_does_not_end_the_command(tmp_path):
    with open("/dev/full", "w") as full, open(tmp_path / "log", "w") as closed:
        for line in ("a line", "another"):
            write(line, full)
    write("a line", closed)


def test_time_left_counts_from_the_first_step_of_this_process(now):
    left, slow = TimeLeft(), TimeLeft()
    for now[0], step, done, expected in [
        (100.0, 501, 0.5, None),  # compilation ended, and the run resumed in the middle
        (103.0, 541, 0.54, None),  # three seconds say little
        (106.0, 561, 0.56, pytest.approx(6.0 / 0.06 * 0.44)),
    ]:
        assert left(step, done) == expected
    slow(step=1, done=0.0)
    now[0] += 3600.0
    assert slow(step=2, done=0.01) is None  # and so does one step


def test_durations_are_for_humans():
    shown = {41.6: "42 s", 200: "3 min 20 s", 7500: "2 h 05 min", float("inf"): "?", None: "?"}
    assert {seconds: duration(seconds) for seconds in shown} == shown


def test_what_takes_long_is_named_meanwhile(monkeypatch):
    progress, said = Progress(), threading.Event()
    progress.update = lambda status: said.set()
    for seconds in (0.0, 2 * HANGS):
        said.clear()
        monkeypatch.setattr("runs.progress._SLOW_SECONDS", float(seconds))
        with progress.meanwhile("waiting for the first batch"):
            assert seconds or said.wait(HANGS)
    assert not said.is_set()
