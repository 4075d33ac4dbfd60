"""Writes a run's measurements to `metrics.jsonl`, and passes them on to observers."""

import pathlib
from typing import Any

from runs import records
from runs.observers import Observer


class Recorder:
    """Writes records to a run's directory.

    Args:
        workdir: the run's directory.
        keep_bytes: see records.LinesWriter.
        observer: gets each record, too.
        active: whether to write; only one of several processes does.
    """

    def __init__(
        self, workdir: pathlib.Path, keep_bytes: int, observer: Observer, active: bool = True
    ):
        self._observer, self._active = observer, active
        if active:
            self._metrics = records.LinesWriter(workdir / records.METRICS, keep_bytes)

    def write(self, record: dict[str, Any]) -> None:
        """Appends a record: `step`, `fresh_examples`, `split`, and numbers by name."""
        if self._active:
            self._metrics.write(record)
            self._observer.record(record)

    def sync(self) -> records.Extent:
        """Forces records to disk; returns the extent of metrics.jsonl."""
        return self._metrics.sync() if self._active else records.Extent()

    def close(self) -> None:
        if self._active:
            self._metrics.close()
