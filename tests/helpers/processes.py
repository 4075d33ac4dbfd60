"""Commands that run twice, as the two processes of one run."""

import os
import signal
import socket
import subprocess

import pytest

from tests.helpers import forked
from tests.helpers.runs import HANGS


class ProcessPairs:
    """All processes that a test has started, two at a time."""

    def __init__(self):
        self._started = []

    def start(self, words, second=None):
        """Starts Python with `words` twice, or the second time with `second`; returns all
        processes started so far."""
        with socket.socket() as free:
            free.bind(("localhost", 0))
            address = f"localhost:{free.getsockname()[1]}"
        for number in range(2):
            environment = {
                **os.environ,
                "JAX_PLATFORMS": "cpu",
                "JAX_COORDINATOR_ADDRESS": address,
                "JAX_NUM_PROCESSES": "2",
                "JAX_PROCESS_ID": str(number),
                "PYTHONFAULTHANDLER": "1",  # SIGABRT prints the stacks
            }
            chosen = second if number and second else words
            self._started.append(forked.start(chosen, environment))
        return self._started

    def end(self):
        for process in self._started:
            process.kill()
            process.communicate()


def errors_of(processes):
    """What each process wrote to standard error; if one hangs, fails with the stacks of all."""
    try:
        return [process.communicate(timeout=HANGS)[1] for process in processes]
    except subprocess.TimeoutExpired:
        for process in processes:
            process.send_signal(signal.SIGABRT)
        pytest.fail("\n\n".join(process.communicate()[1] for process in processes))
