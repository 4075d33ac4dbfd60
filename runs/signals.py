"""Handles the signals of batch systems and Ctrl-C: a command saves its work and ends.

The first Ctrl-C raises KeyboardInterrupt; during training, `stop_requested` lets the run save
first. A second Ctrl-C ends the process immediately, as a kill would, which the files on disk
survive: the run may wait for a source that does not answer.
Commands import this module before any slow import, so it imports JAX only on demand.
"""

import contextlib
import itertools
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn

INTERRUPTED, PREEMPTED = 130, 75  # exit codes

# What batch systems send to stop a job, or before. Slurm and LSF send what the job script chooses;
# SIGXCPU says that the limit of CPU time is near, and is repeated every second.
STOPS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU)

_calls = itertools.count()  # of all functions that `stop_requested` yields, with several processes
_stop = threading.Event()  # whether `stop_requested` has had a signal
_stopping: Callable[[], bool] | None = None  # what the outermost `stop_requested` yields


def end_at_once(*_) -> None:
    """A signal handler that ends the process immediately; nothing is saved."""
    with contextlib.suppress(OSError):
        os.write(2, b"interrupted\n")
    os._exit(INTERRUPTED)


def end_preempted(*_) -> None:
    """A handler of STOPS while nothing is trained: ends the process as preempted."""
    with contextlib.suppress(OSError):
        os.write(2, b"stopped; run the same command again\n")
    os._exit(PREEMPTED)


def raise_once(*_) -> None:
    """A signal handler that raises KeyboardInterrupt; the next Ctrl-C ends the process."""
    signal.signal(signal.SIGINT, end_at_once)
    raise KeyboardInterrupt


def install(handler) -> None:
    """Installs a handler for Ctrl-C unless the process was started with it ignored (by nohup).

    Does nothing outside the main thread, where signal handlers cannot be installed.
    """
    ignored = signal.getsignal(signal.SIGINT) in (signal.SIG_IGN, None)
    if not ignored and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, handler)


def install_for_start() -> None:
    """Installs the handlers of a command that trains, for the time before it does, such as its slow
    imports and the reading of the data. A batch system that stops it then is to queue it again."""
    install(end_at_once)
    for number in STOPS:
        signal.signal(number, end_preempted)


@contextlib.contextmanager
def stop_requested() -> Iterator[Callable[[], bool]]:
    """Yields a function to be called before every step (or batch of an evaluation), which returns
    whether to stop there.

    In a single process it returns True after the first Ctrl-C or one of STOPS; a Ctrl-C after it
    ends a command immediately. Only the main thread receives signals; elsewhere it always returns
    False. Functions of nested contexts return the same.

    Of several processes, any may receive a signal. All stop at the same call, slightly later:
    JAX's preemption service, which `jax.distributed.initialize` starts, coordinates them in the
    background. All must call the function equally often. Ctrl-C is not caught in that case.
    """
    import jax
    from jax.experimental import multihost_utils

    global _stopping
    if jax.process_count() > 1:
        with _handled_by(lambda *_: os.kill(os.getpid(), signal.SIGTERM), STOPS[1:]):
            # JAX, which handles SIGTERM, stops at the number after the largest one reported so far,
            # which is 0 before the first report. The steps of a resumed run could start beyond it;
            # the number of the call cannot.
            yield lambda: multihost_utils.reached_preemption_sync_point(next(_calls))
    elif threading.current_thread() is not threading.main_thread():
        yield lambda: False
    elif _stopping is not None:
        yield _stopping
    else:

        def on_signal(number, frame):
            if number == signal.SIGINT and _stop.is_set():
                handler = before[number]
                if callable(handler) and handler is not raise_once:
                    handler(number, frame)  # of a notebook, or of pytest
                else:
                    end_at_once()
            _stop.set()

        _stop.clear()
        _stopping = _stop.is_set
        with _handled_by(on_signal, (*STOPS, signal.SIGINT)) as before:
            try:
                yield _stopping
            finally:
                _stopping = None


@contextlib.contextmanager
def _handled_by(handler: Callable, numbers: Iterable[int]) -> Iterator[dict[int, Any]]:
    """Handles signals within the context, in the main thread; yields their handlers before it."""
    if threading.current_thread() is not threading.main_thread():
        numbers = ()
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield before
    finally:
        for number, old in before.items():
            signal.signal(number, old)


def exit_command(code: int) -> NoReturn:
    """Ends the process of a command that has returned `code`.

    If a signal has stopped it, its threads are not waited for: one may read a source that does not
    answer.
    """
    if _stop.is_set():
        os._exit(code)
    # Threads of libraries report in C++ that the loops they wake are closed.
    with contextlib.suppress(OSError, ValueError, AttributeError):
        sys.stderr.flush()
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    sys.exit(code)
