"""Being told to stop: SIGTERM from a scheduler, Ctrl-C from a person."""

import contextlib
import signal
import threading
from collections.abc import Iterator


@contextlib.contextmanager
def stop_requested() -> Iterator[threading.Event]:
    """An event that the first SIGTERM or Ctrl-C sets; the second one acts as it always does.

    Only the main thread can listen; elsewhere the event is never set.
    """
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def on_signal(number, _frame):
        stop.set()
        signal.signal(number, before[number])

    for number in before:
        signal.signal(number, on_signal)
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
