"""What a command displays while it works."""

import io

import pytest

from runs.progress import Progress, duration, write


@pytest.fixture
def now(monkeypatch):
    """A clock that stands still until it is set."""
    seconds = [0.0]
    monkeypatch.setattr("runs.progress.time.monotonic", lambda: seconds[0])
    return seconds


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


def test_durations_are_for_humans():
    shown = {-1: "0 s", 0.2: "0 s", 41.6: "42 s", 3599: "59 min 59 s", 7500: "2 h 05 min"}
    shown |= {float("inf"): "?", None: "?"}
    assert {seconds: duration(seconds) for seconds in shown} == shown
