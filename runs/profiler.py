"""Writes a trace of some steps of a run: what the host and the devices did, when, and for how long.

The host's regions (read, decode, echo, augment, transfer, step, evaluate, save) are named in it by
`jax.profiler.TraceAnnotation`, which costs next to nothing while no trace is taken.
"""

import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import jax

from runs import records
from runs.observers import Observer


class Profiler(Observer):
    """Traces a range of steps into WORKDIR/profile, which TensorBoard and Perfetto display.

    Args:
        workdir: the run's directory.
        start: the first step of the trace, counted from 1.
        stop: the step before which the trace ends.
        say: prints a line.
    """

    def __init__(self, workdir: pathlib.Path, start: int, stop: int, say: Callable[[str], None]):
        self._directory, self._say = workdir / records.PROFILE, say
        self._start, self._stop = start, stop
        self._tracing, self._traced = False, False

    def step(self, step: int) -> None:
        if self._tracing and step >= self._stop:
            self._end_trace()
        elif not self._tracing and self._start <= step < self._stop:
            options = jax.profiler.ProfileOptions()
            options.python_tracer_level = 0  # every call of Python would bury the named regions
            jax.profiler.start_trace(self._directory, profiler_options=options)
            self._tracing = self._traced = True

    def end(self, result: Mapping[str, Any]) -> None:
        self.close()
        if not self._traced:
            self._say(
                f"warning: this launch trained none of the steps {self._start}:{self._stop} of "
                "--profile, so there is no trace"
            )

    def close(self) -> None:
        if self._tracing:
            self._end_trace()

    def _end_trace(self) -> None:
        self._tracing = False
        jax.profiler.stop_trace()
