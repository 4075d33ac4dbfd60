"""Threads that read: how a program ends while they do."""

import gc
import math
import os
import threading
import time
from concurrent.futures import Future

import numpy as np
import pytest

import echo
from echo import threads
from tests.helpers.echo_parents import THREADS, parent_of
from tests.helpers.runs import HANGS, run_python

WAITING = """
import contextlib, sys, threading
from concurrent.futures import CancelledError
from echo import threads

threads.EXIT_SECONDS = 2 * float(sys.argv[1])
started, calling, called = threading.Event(), threads.DaemonPool(1), threads.DaemonPool(1)

def run():
    started.set()
    threads._exiting.wait()

def wait():
    called.submit(run)
    for _ in range(2):  # one is submitted before the program ends, one after
        with contextlib.suppress(CancelledError):
            called.submit(print).result()

calling.submit(wait)
started.wait()
"""


def test_a_thread_that_waits_for_a_call_that_has_not_begun_does_not_delay_the_end():
    ended = run_python(["-c", WAITING, str(HANGS)])
    assert (ended.returncode, ended.stdout) == (0, ""), ended.stderr


def test_iterators_that_are_dropped_leave_no_thread():
    stage = echo.EchoIterDataset(parent_of("map", 40)[0], factor=2, read_options=THREADS)
    before = threading.active_count()
    for iterable in (stage, echo.auto([np.arange(4)] * 9), stage):
        next(iter(iterable))
    del iterable
    deadline = time.monotonic() + HANGS
    while threading.active_count() > before and time.monotonic() < deadline:
        gc.collect()
        time.sleep(0.01)
    assert threading.active_count() == before


@pytest.mark.parametrize("seconds", [1e12, math.inf, None])
def test_a_wait_may_be_as_long_as_one_likes(seconds):
    future = Future()
    threading.Timer(0.01, future.set_result, [0]).start()
    assert threads.done_within(seconds, future)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system has no affinity")
def test_only_cores_that_the_process_may_use_count():
    allowed = os.sched_getaffinity(0)
    assert threads.usable_cores() == len(allowed)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert threads.usable_cores() == 1
    finally:
        os.sched_setaffinity(0, allowed)
