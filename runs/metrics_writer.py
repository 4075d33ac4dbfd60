"""Where a run's measurements go while it runs: `metrics.jsonl`, and the same for TensorBoard."""

import pathlib
from typing import Any

import tensorboardX

from runs import records


class Recorder:
    """Writes records to a run's directory, or, where it is not `active`, nowhere.

    Args:
        workdir: the run's directory.
        keep_bytes: see records.LinesWriter.
        fresh_examples: where the run stands; what TensorBoard has beyond is taken back.
        active: whether to write; of several processes one does.
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
                max_queue=0,  # unbounded: on a full disk its thread ends, and nothing empties it
            )

    def write(self, record: dict[str, Any]) -> None:
        """Appends a record with `step`, `fresh_examples` and `split`, and numbers by name."""
        if not self._active:
            return
        self._metrics.write(record)
        for name in sorted(set(record) - {"step", "fresh_examples", "split"}):
            tag = f"{record['split']}/{name}"
            self._board.add_scalar(tag, record[name], record["fresh_examples"])

    def sync(self) -> records.Extent:
        """Forces records to disk; how far metrics.jsonl goes."""
        return self._metrics.sync() if self._active else records.Extent()

    def close(self) -> None:
        if self._active:
            try:
                self._metrics.close()
            finally:
                self._close_board()

    def _close_board(self) -> None:
        events = self._board.file_writer.event_writer
        try:
            self._board.close()
        except OSError:
            # a full disk: left open, the writer would try again when Python ends, with a traceback
            events._worker.stop()
            events._closed = True
            raise
