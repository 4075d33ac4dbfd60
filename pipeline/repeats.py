"""Where a run's repeats are: how far apart."""

from ml_collections import ConfigDict

from echo.auto_order import DecidedOrder, Repeats
from echo.diagnostics import CopyDiagnostics, Stream
from pipeline import accounting
from pipeline.epoch_repeats import Passes


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
        counts = [accounting.Counts.of(config, n) for n in range(config.echo.streams)]
        streams = [Stream(c.schedule.cursor(0, c.items), c.outputs_per_batch) for c in counts]
        return CopyDiagnostics(config.batch_size, streams)
    streams, outputs = [], accounting.Counts.of(config, 0).outputs_per_batch
    for stream in range(config.echo.streams):
        slots, seed = accounting.buffer_slots(config, stream), accounting.echo_seed(config, stream)
        repeats = Repeats(accounting.max_factor(config), slots, seed)
        streams.append(Stream(DecidedOrder(repeats, outputs), outputs))
    return CopyDiagnostics(config.batch_size, streams)
