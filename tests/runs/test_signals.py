"""What a stop does to the process that receives it."""

import os
import signal
import subprocess
import sys

import pytest

from runs import signals
from tests.helpers.runs import HANGS, ROOT


def test_sigterm_twice_is_one_stop():
    """A group of processes receives it, and a study's workers then again from their parent."""
    before = signal.getsignal(signal.SIGTERM)
    with signals.stop_requested() as stop:
        assert not stop()
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGTERM)
        assert stop()
    assert signal.getsignal(signal.SIGTERM) is before


def test_nested_contexts_stop_together():
    with signals.stop_requested() as outer:
        with signals.stop_requested() as inner:
            os.kill(os.getpid(), signal.SIGTERM)
            assert inner()
        assert outer()
    with signals.stop_requested() as later:
        assert not later()


SECOND = """
import os, signal, sys, time
from runs import cli, signals

def main(argv):
    with signals.stop_requested(), signals.stop_requested() as stop:
        os.kill(os.getpid(), signal.Signals[argv[0]])
        assert stop()
        time.sleep(float(argv[2]))
        os.kill(os.getpid(), signal.Signals[argv[1]])
        raise AssertionError("still here")

cli.guarded(main)
"""


@pytest.mark.parametrize(
    ("first", "second", "seconds", "code"),
    [
        ("SIGINT", "SIGINT", 0, signals.INTERRUPTED),
        ("SIGTERM", "SIGINT", 0, signals.INTERRUPTED),
        ("SIGTERM", "SIGTERM", 3, signals.PREEMPTED),
    ],
)
def test_a_second_signal_ends_a_command_at_once(first, second, seconds, code):
    words = [sys.executable, "-c", SECOND, first, second, str(seconds)]
    ended = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=HANGS)
    assert ended.returncode == code
    assert ended.stderr.count("\n") == 1
