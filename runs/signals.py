"""SIGTERM from a scheduler and Ctrl-C from a person: a command saves what it has, then ends.

A command's first Ctrl-C raises KeyboardInterrupt (while it trains, `stop_requested` has it save
first). A second one ends the process at once, as a kill would, which no file on disk minds.
Commands import this module before anything that takes long, so it imports JAX only when asked.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator

INTERRUPTED = 130  # exit code


def end_at_once(*_) -> None:
    """A signal handler; also for the time of imports, when there is nothing to save."""
    with contextlib.suppress(OSError):
        os.write(2, b"interrupted\n")
    os._exit(INTERRUPTED)


def raise_once(*_) -> None:
    """A signal handler, for the time of a command."""
    signal.signal(signal.SIGINT, end_at_once)
    raise KeyboardInterrupt


def install(handler) -> None:
    """Installs a handler of Ctrl-C, unless this process was started with it ignored (by nohup).

    Only the main thread can; elsewhere nothing happens.
    """
    ignored = signal.getsignal(signal.SIGINT) in (signal.SIG_IGN, None)
    if not ignored and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, handler)


@contextlib.contextmanager
def stop_requested() -> Iterator[Callable[[int], bool]]:
    """Yields a function that is called before every step and returns whether to stop there.

    In a single process the first SIGTERM or Ctrl-C makes it return True; the second acts as it
    always does and ends a command at once. Only the main thread receives signals; in any other
    thread the function always returns False.

    Of several processes any one may get the SIGTERM, and all stop before the same step, a little
    later: JAX's preemption service, which listens from `jax.distributed.initialize` on, lets them
    agree in the background. Ctrl-C ends such a process as it always does.
    """
    import jax
    from jax.experimental import multihost_utils

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
        of_command = before[number] is raise_once
        signal.signal(number, end_at_once if of_command else before[number])

    for number in before:
        signal.signal(number, on_signal)
    try:
        yield lambda step: stop.is_set()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
