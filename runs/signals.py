"""Being told to stop: SIGTERM from a scheduler, Ctrl-C from a person."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator

import jax
from jax.experimental import multihost_utils

from runs import interrupts


@contextlib.contextmanager
def stop_requested() -> Iterator[Callable[[int], bool]]:
    """A function that says whether to stop before a given step, to be asked at every step.

    In a single process the first SIGTERM or Ctrl-C makes it say so; the second one acts as it
    always does, and ends a command at once. Only the main thread can listen; elsewhere it never
    says so.

    Of several processes any one may get the SIGTERM, and all stop before the same step, a little
    later: JAX's preemption service, which listens since `jax.distributed.initialize`, has them
    agree in the background. Ctrl-C ends such a process as it always does.
    """
    if jax.process_count() > 1:
        yield multihost_utils.reached_preemption_sync_point
        return
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield lambda step: False
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def on_signal(number, _frame):
        stop.set()
        of_command = before[number] is interrupts.raise_once
        signal.signal(number, interrupts.end_at_once if of_command else before[number])

    for number in before:
        signal.signal(number, on_signal)
    try:
        yield lambda step: stop.is_set()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
