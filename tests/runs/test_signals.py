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


NESTED = """
import os, signal
from runs import cli, signals

def main(argv):
    with signals.stop_requested(), signals.stop_requested() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop()
        os.kill(os.getpid(), signal.SIGINT)
        raise AssertionError("still here")

cli.guarded(main, [])
"""


@pytest.mark.parametrize("script", [NESTED, NESTED.replace("signals.stop_requested(), ", "")])
def test_the_second_ctrl_c_ends_a_command_at_once(script):
    ended = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=HANGS
    )
    assert (ended.returncode, ended.stderr) == (signals.INTERRUPTED, "interrupted\n")
