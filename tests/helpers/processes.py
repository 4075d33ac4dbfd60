"""Commands that run twice, as the two processes of one run."""

import os
import signal
import socket
import subprocess

import pytest

from tests.helpers.runs import HANGS, start_python


def start_pair(words, second=None):
    """Starts Python with `words` twice, or the second time with `second`."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    joined = {
        "JAX_PLATFORMS": "cpu",
        "JAX_COORDINATOR_ADDRESS": address,
        "JAX_NUM_PROCESSES": "2",
        "PYTHONFAULTHANDLER": "1",  # SIGABRT prints the stacks
    }
    return [
        start_python(chosen, os.environ | joined | {"JAX_PROCESS_ID": str(number)})
        for number, chosen in enumerate((words, second or words))
    ]


def errors_of(processes):
    """What each process wrote to standard error; if one hangs, fails with the stacks of all."""
    try:
        return [process.communicate(timeout=HANGS)[1] for process in processes]
    except subprocess.TimeoutExpired:
        for process in processes:
            process.send_signal(signal.SIGABRT)
        pytest.fail("\n\n".join(process.communicate()[1] for process in processes))
