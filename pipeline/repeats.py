"""Where a run's repeats are: how far apart, and in which rows of a batch."""

from collections.abc import Callable

import numpy as np
from ml_collections import ConfigDict

from echo.auto_order import DecidedOrder, Repeats
from echo.diagnostics import CopyDiagnostics, Stream
from pipeline import accounting
from pipeline.epoch_repeats import Passes

# (batch number from 0, copy numbers of its rows int64 [b]) -> whether an earlier row, of this batch
# or of one before, contains the same example, bool [b]
RepeatedRows = Callable[[int, np.ndarray], np.ndarray]


def copy_diagnostics(config: ConfigDict, num_examples: int) -> CopyDiagnostics:
    """How repeats are spread over a run's batches, over all streams.

    Args:
        config: a resolved configuration.
        num_examples: the size of the training split.
    """
    if config.dataset.spaced_epochs > 1:
        order = Passes.of(config, num_examples)
        return CopyDiagnostics(config.batch_size, [Stream(order, config.batch_size)])
    if config.echo.policy == "fixed":
        streams = _fixed_streams(config, range(config.echo.streams))
        return CopyDiagnostics(config.batch_size, streams)
    streams, outputs = [], accounting.Counts.of(config, 0).outputs_per_batch
    for stream in range(config.echo.streams):
        slots, seed = accounting.buffer_slots(config, stream), accounting.echo_seed(config, stream)
        repeats = Repeats(accounting.max_factor(config), slots, seed)
        streams.append(Stream(DecidedOrder(repeats, outputs), outputs))
    return CopyDiagnostics(config.batch_size, streams)


def repeated_rows(config: ConfigDict, held: range) -> RepeatedRows:
    """A function that says which rows are repeats, of those that the streams `held` fill. It is
    fastest for batches in ascending order."""
    buffered = config.echo.insertion != "none" and config.echo.shuffle_buffer > 0
    if config.echo.policy != "fixed" or not buffered:
        return lambda number, copy_b: copy_b > 0
    # Copies are numbered when they enter the buffer, and can leave it in any order.
    local = config.batch_size // config.echo.streams * len(held)
    diagnostics = CopyDiagnostics(local, _fixed_streams(config, held))
    return lambda number, copy_b: diagnostics.repeats(number)


def _fixed_streams(config: ConfigDict, streams: range) -> list[Stream]:
    counts = [accounting.Counts.of(config, stream) for stream in streams]
    return [Stream(c.schedule.cursor(0, c.items), c.outputs_per_batch) for c in counts]
