"""Writes a run's measurements and its result, and passes them on to observers."""

import pathlib
from typing import Any

from runs import distributed, records
from runs.observers import Observer


class Recorder:
    """Writes a run's `metrics.jsonl` and `result.json`.

    Removes the result of an interruption from which the run resumes, since it has not ended now.

    Args:
        workdir: the run's directory.
        keep_bytes: see records.LinesWriter.
        observer: gets each record, and the result.

    Attributes:
        active: whether this process writes; only the first of several does.
    """

    def __init__(self, workdir: pathlib.Path, keep_bytes: int, observer: Observer):
        self._workdir, self._observer = workdir, observer
        self.active = distributed.is_first()
        if self.active:
            self._metrics = records.LinesWriter(workdir / records.METRICS, keep_bytes)
            (workdir / records.RESULT).unlink(missing_ok=True)

    def write(self, record: dict[str, Any]) -> None:
        """Appends a record: `step`, `fresh_examples`, `split`, and numbers by name."""
        if self.active:
            self._metrics.write(record)
            self._observer.record(record)

    def sync(self) -> records.Extent:
        """Forces records to disk; returns the extent of metrics.jsonl."""
        return self._metrics.sync() if self.active else records.Extent()

    def close(self) -> None:
        """Forces metrics.jsonl to disk and closes it; the result, which says that it is whole, may
        follow."""
        if self.active:
            try:
                self._metrics.sync()
            finally:
                self._metrics.close()

    def write_result(self, result: dict[str, Any]) -> None:
        """Writes result.json, the last record. A run that has finished no longer has the errors of
        earlier attempts."""
        if self.active:
            if result["status"] in records.FINISHED:
                for path in [*self._workdir.iterdir()]:
                    if records.is_error_file(path.name) and path.is_file():
                        path.unlink()
            records.write_json(self._workdir / records.RESULT, result)
            self._observer.end(result)
