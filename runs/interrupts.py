"""Ctrl-C at any moment ends a command without a traceback; imported before what takes long.

The first Ctrl-C of a command raises KeyboardInterrupt (while it trains, signals.py has it save
first), and a second one ends the process at once, as a kill would: nothing on disk minds.
"""

import contextlib
import os
import signal
import threading

EXIT_CODE = 130


def end_at_once(*_) -> None:
    """A signal handler; also for the time of imports, when there is nothing to save."""
    with contextlib.suppress(OSError):
        os.write(2, b"interrupted\n")
    os._exit(EXIT_CODE)


def raise_once(*_) -> None:
    """A signal handler, for the time of a command."""
    signal.signal(signal.SIGINT, end_at_once)
    raise KeyboardInterrupt


def install(handler) -> None:
    """Has Ctrl-C handled so, unless whoever started this process has it ignored (nohup does).

    Only the main thread can; elsewhere nothing happens.
    """
    ignored = signal.getsignal(signal.SIGINT) in (signal.SIG_IGN, None)
    if not ignored and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, handler)
