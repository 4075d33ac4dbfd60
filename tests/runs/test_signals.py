"""What a stop does to the process that receives it."""

import os
import signal
import subprocess
import sys

import pytest

from runs import signals
from tests.helpers.runs import HANGS, ROOT


@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1", "SIGUSR2", "SIGXCPU"])
def test_a_signal_of_a_batch_system_is_a_stop_even_if_it_comes_twice(name):
    """A group of processes receives it, and a study's workers then again from their parent. Nested
    contexts stop together."""
    number = signal.Signals[name]
    before = signal.getsignal(number)
    with signals.stop_requested() as outer:
        with signals.stop_requested() as stop:
            assert not stop()
            for _ in range(2):
                os.kill(os.getpid(), number)
            assert stop()
        assert outer()
    assert signal.getsignal(number) is before
    with signals.stop_requested() as later:
        assert not later()


@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1", "SIGUSR2", "SIGXCPU"])
def test_a_signal_before_training_ends_a_command_as_preempted(name):
    code = "import os, sys; from runs import signals; signals.install_for_start(); "
    code += "os.kill(os.getpid(), int(sys.argv[1]))"
    words = [sys.executable, "-c", code, str(int(signal.Signals[name]))]
    assert subprocess.run(words, cwd=ROOT).returncode == signals.PREEMPTED


SECOND = """
import os, signal, sys
from runs import cli, signals

def main(argv):
    with signals.stop_requested(), signals.stop_requested() as stop:
        os.kill(os.getpid(), signal.Signals[argv[0]])
        assert stop()
        os.kill(os.getpid(), signal.SIGINT)
        raise AssertionError("still here")

cli.guarded(main)
"""


@pytest.mark.parametrize("first", ["SIGINT", "SIGXCPU"])
def test_ctrl_c_after_a_stop_ends_a_command_at_once(first):
    words = [sys.executable, "-c", SECOND, first]
    ended = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, timeout=HANGS)
    assert ended.returncode == signals.INTERRUPTED
    assert ended.stderr.count("\n") == 1
