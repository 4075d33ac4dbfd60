"""A pool of daemon threads: a program that ends, perhaps with an error, does not first wait for all
that a slow source was asked to read.
"""

import atexit
import contextlib
import os
import pathlib
import queue
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from typing import Any

# How long a program that exits waits for the calls that pools are running.
EXIT_SECONDS = 2.0


def usable_cores() -> int:
    """The processor cores that this process may use. They are fewer than the machine's if its
    affinity is set, as batch systems do, or with a quota, as containers have."""
    affine = hasattr(os, "sched_getaffinity")
    cores = len(os.sched_getaffinity(0)) if affine else os.cpu_count() or 1
    with contextlib.suppress(OSError, ValueError):  # microseconds per period, or "max" of them
        quota, period = pathlib.Path("/sys/fs/cgroup/cpu.max").read_text().split()
        cores = min(cores, max(1, -(-int(quota) // int(period))))
    return cores


def done_within(seconds: float | None, future: Future) -> bool:
    """Waits up to `seconds` (None: without limit) for `future`; returns whether it is done."""
    if seconds != 0 and not future.done():
        # concurrent.futures.wait takes twice the CPU time, and a stage asks often.
        with contextlib.suppress(TimeoutError, CancelledError):
            future.exception(None if seconds is None else min(seconds, threading.TIMEOUT_MAX))
    return future.done()


class DaemonPool:
    """A fixed number of daemon threads that run calls in order of submission.

    Attributes:
        close: ends each thread after the calls submitted so far that are not cancelled, as the end
            of the pool itself does.
    """

    def __init__(self, num_threads: int):
        self._calls = calls = queue.SimpleQueue()
        for i in range(num_threads):
            name = f"echo-read-{i}"
            thread = threading.Thread(target=_serve, args=(calls,), name=name, daemon=True)
            thread.start()
            _POOL_THREADS[thread] = calls
        self.close = weakref.finalize(self, _end, calls, num_threads)
        self.close.atexit = False  # whoever waits for calls then would wait forever

    def submit(self, function: Callable[..., Any], *args: Any) -> Future:
        future: Future = Future()
        self._calls.put((future, function, args))
        if _exiting.is_set():
            future.cancel()
        return future


def _end(calls: queue.SimpleQueue, num_threads: int) -> None:
    for _ in range(num_threads):
        calls.put(None)


_POOL_THREADS: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()  # thread -> its queue
_exiting = threading.Event()


@atexit.register
def _finish_running_calls() -> None:
    """Waits briefly for the calls that pools are running, and cancels those that have not begun.
    The interpreter stops daemon threads wherever they are, and one inside C++ code would crash."""
    _exiting.set()
    deadline = time.monotonic() + EXIT_SECONDS
    threads = dict(_POOL_THREADS)
    for calls in threads.values():
        calls.put(None)  # wakes an idle thread
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))


def _serve(calls: queue.SimpleQueue) -> None:
    while (call := calls.get()) is not None:
        future, function, args = call
        if _exiting.is_set():
            future.cancel()  # or whoever waits for it would wait forever
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(function(*args))
            except BaseException as error:  # reraised by future.result()
                future.set_exception(error)
        del call, future, function, args  # or they would stay alive until the next ones
