"""Observers follow a run from outside: trackers, the profiler, a mirror. None can end the run."""

import queue
import threading
from collections.abc import Callable, Mapping
from typing import Any

from runs import cli

# How long the end of a run waits for an observer that does not answer.
_SILENT_SECONDS = 300.0


class Observer:
    """Follows one run; a subclass overrides the events that it needs."""

    def start(self, fresh_examples: int) -> None:
        """The run is about to take its first step in this process.

        Args:
            fresh_examples: the run's position. Later records of an earlier process will be
                recorded again.
        """

    def step(self, step: int) -> None:
        """The run is about to take a step; the first one is 1."""

    def record(self, record: Mapping[str, Any]) -> None:
        """The run has written a record: `step`, `fresh_examples`, `split`, and numbers by name."""

    def saved(self) -> None:
        """A checkpoint is complete. Called in a thread that writes checkpoints."""

    def end(self, result: Mapping[str, Any]) -> None:
        """The run has ended with this result.json, perhaps to be resumed later."""

    def close(self) -> None:
        """Called once, last, also if an error prevented a result."""


class Observers(Observer):
    """Several observers. One that fails is named in a warning, and left out from then on.

    If the disk is full, the run itself usually fails too and says so. The warning is then given
    only if the run comes to its end.

    Args:
        observers: by name.
        say: called with the warning.
    """

    def __init__(self, observers: Mapping[str, Observer], say: Callable[[str], None]):
        self._observers, self._say = dict(observers), say
        self._later: list[str] = []  # warnings of a full disk

    def start(self, fresh_examples: int) -> None:
        self._each(lambda observer: observer.start(fresh_examples))

    def step(self, step: int) -> None:
        self._each(lambda observer: observer.step(step))

    def record(self, record: Mapping[str, Any]) -> None:
        self._each(lambda observer: observer.record(record))

    def saved(self) -> None:
        self._each(lambda observer: observer.saved())

    def end(self, result: Mapping[str, Any]) -> None:
        self._each(lambda observer: observer.end(result))
        while self._later:
            self._say(self._later.pop(0))

    def close(self) -> None:
        self._each(lambda observer: observer.close())

    def _each(self, call: Callable[[Observer], None]) -> None:
        for name, observer in list(self._observers.items()):
            try:
                call(observer)
            except Exception as error:
                self._observers.pop(name, None)
                reason = " ".join(f"{type(error).__name__}: {error}".split())
                warning = f"warning: {name} failed ({reason}); the run continues without it"
                (self._later.append if cli.is_disk_full(error) else self._say)(warning)


class InBackground(Observer):
    """Passes the start, records, the end, and `close` on to an observer in a thread, so that a slow
    server or disk never holds up a run. Steps and checkpoints are not passed on.

    Its errors are raised by the next event. The end waits for what is left, and so does `close`,
    which ends the thread.
    """

    def __init__(self, observer: Observer):
        self._observer = observer
        self._calls: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._error: Exception | None = None
        self._ended = threading.Event()
        self._closed = threading.Event()
        threading.Thread(target=self._work, name="observer", daemon=True).start()

    def start(self, fresh_examples: int) -> None:
        self._submit(lambda: self._observer.start(fresh_examples))

    def record(self, record: Mapping[str, Any]) -> None:
        self._submit(lambda: self._observer.record(record))

    def end(self, result: Mapping[str, Any]) -> None:
        self._submit(lambda: self._observer.end(result))
        self._submit(self._ended.set)
        self._wait(self._ended)

    def close(self) -> None:
        self._submit(self._observer.close)
        self._calls.put(None)
        self._wait(self._closed)

    def _wait(self, event: threading.Event) -> None:
        if not event.wait(_SILENT_SECONDS):
            self._calls.put(None)  # nothing follows, should it answer after all
            raise TimeoutError(f"no answer within {_SILENT_SECONDS:g} seconds")
        self._check()

    def _submit(self, call: Callable[[], None]) -> None:
        self._check()
        self._calls.put(call)

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def _work(self) -> None:
        try:
            while call := self._calls.get():
                call()
        except Exception as error:
            self._error = error
        finally:
            self._ended.set()
            self._closed.set()
