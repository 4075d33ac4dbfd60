"""Writes a run's measurements to `metrics.jsonl` and to TensorBoard."""

import pathlib
from typing import Any

import tensorboardX

from runs import records


class Recorder:
    """Writes records to a run's directory.

    Args:
        workdir: the run's directory.
        keep_bytes: see records.LinesWriter.
        fresh_examples: the run's position; TensorBoard's later events are purged.
        active: whether to write; only one of several processes does.
    """

    def __init__(
        self, workdir: pathlib.Path, keep_bytes: int, fresh_examples: int, active: bool = True
    ):
        self._active = active
        if active:
            self._metrics = records.LinesWriter(workdir / records.METRICS, keep_bytes)
            self._board = tensorboardX.SummaryWriter(
                str(workdir / records.TENSORBOARD),
                purge_step=fresh_examples + 1,
                max_queue=0,  # unbounded: on a full disk the thread ends, and a queue would block
            )

    def write(self, record: dict[str, Any]) -> None:
        """Appends a record: `step`, `fresh_examples`, `split`, and numbers by name."""
        if not self._active:
            return
        self._metrics.write(record)
        for name in sorted(set(record) - {"step", "fresh_examples", "split"}):
            tag = f"{record['split']}/{name}"
            self._board.add_scalar(tag, record[name], record["fresh_examples"])

    def sync(self) -> records.Extent:
        """Forces records to disk; returns the extent of metrics.jsonl."""
        return self._metrics.sync() if self._active else records.Extent()

    def close(self) -> None:
        if self._active:
            try:
                self._metrics.close()
            finally:
                self._close_board()

    def _close_board(self) -> None:
        events: Any = self._board.file_writer.event_writer  # pyright: ignore
        try:
            self._board.close()
        except OSError:
            # The disk is full. An open writer would retry at exit and print a traceback.
            events._worker.stop()
            events._closed = True
            raise
