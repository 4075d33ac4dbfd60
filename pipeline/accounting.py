"""What a run's input gives, in closed form: how many batches, how many fresh examples, how its
repeats lie in them."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

import echo
from echo.auto_order import Repeats, round_size, store_rows
from echo.diagnostics import CopyDiagnostics, DecidedRows, EchoedRows, PassesRows
from echo.readers import CHUNK_ITEMS
from pipeline import epoch_repeats, seeds

# The number of a batch, from 0, and the copy numbers of its rows int64 [b], to whether an earlier
# row, of that batch or one before, shows the same example, bool [b].
RepeatedRows = Callable[[int, np.ndarray], np.ndarray]


def total_steps(config) -> int:
    """How many batches a run's budget gives: as many as the shortest stream has."""
    return min(counts.batches for counts in Counts.of_all(config))


def horizon_steps(config) -> int:
    """How many batches the fresh examples of the schedule's horizon would give this condition."""
    fresh = config.optimizer.schedule.horizon_fresh_examples or config.budget.fresh_examples
    return min(counts.batches for counts in Counts.of_all(config, fresh))


def copy_diagnostics(config, num_examples: int) -> CopyDiagnostics:
    """How a run's repeats lie in its batches, over all sub-streams of so many training examples."""
    if config.dataset.spaced_epochs > 1:
        passes = epoch_repeats.passes_of(config, num_examples)
        return CopyDiagnostics(config.batch_size, [PassesRows(passes, config.batch_size)])
    counts = Counts.of_all(config)
    if config.echo.policy == "fixed":
        rows = [EchoedRows(c.schedule, c.items, c.outputs_per_batch) for c in counts]
        return CopyDiagnostics(config.batch_size, rows)
    seeds_and_slots = [(echo_seed(config, s), buffer_slots(config, s)) for s in range(len(counts))]
    repeats = [Repeats(config.echo.max_factor, slots, seed) for seed, slots in seeds_and_slots]
    rows = [DecidedRows(r, c.outputs_per_batch) for r, c in zip(repeats, counts, strict=True)]
    return CopyDiagnostics(config.batch_size, rows)


def repeated_rows(config, held: range) -> RepeatedRows:
    """Tells which rows are repeats, of those that the sub-streams `held` fill; fastest for batches
    in ascending order."""
    buffered = config.echo.insertion != "none" and config.echo.shuffle_buffer > 0
    if config.echo.policy != "fixed" or not buffered:
        return lambda number, copy_b: copy_b > 0
    # Copies are numbered as they enter the buffer, and leave it in any order.
    streams = [Counts.of(config, stream) for stream in held]
    rows = [EchoedRows(c.schedule, c.items, c.outputs_per_batch) for c in streams]
    local = config.batch_size // config.echo.streams * len(held)
    diagnostics = CopyDiagnostics(local, rows)
    return lambda number, copy_b: diagnostics.repeats(number)


class Counts(NamedTuple):
    """What a sub-stream gives, in closed form. An item of its slot is an example, or a batch.

    Attributes:
        schedule: of the slot's items.
        items: how many fresh ones there are.
        examples_per_item, outputs_per_batch: one of the two is 1.
    """

    schedule: echo.EchoSchedule
    items: int
    examples_per_item: int
    outputs_per_batch: int

    @classmethod
    def of(cls, config, stream: int, num_fresh: int | None = None) -> "Counts":
        """Those of one stream, where all of them have `num_fresh` examples (None: the budget)."""
        rows = config.batch_size // config.echo.streams
        total = config.budget.fresh_examples if num_fresh is None else num_fresh
        fresh = len(range(stream, total, config.echo.streams))
        if config.dataset.spaced_epochs > 1:
            return cls(echo.EchoSchedule(config.dataset.spaced_epochs), fresh, 1, rows)
        if config.echo.insertion == "none":
            return cls(echo.EchoSchedule(1), fresh // rows, rows, 1)
        schedule = echo.EchoSchedule(
            config.echo.factor, buffer_slots(config, stream), echo_seed(config, stream)
        )
        if config.echo.insertion == "after_batching":
            return cls(schedule, fresh // rows, rows, 1)
        return cls(schedule, fresh, 1, rows)

    @classmethod
    def of_all(cls, config, num_fresh: int | None = None) -> list["Counts"]:
        return [cls.of(config, stream, num_fresh) for stream in range(config.echo.streams)]

    @property
    def batches(self) -> int:
        return self.schedule.num_outputs(self.items) // self.outputs_per_batch

    def admitted(self, batches: int) -> int:
        """Fresh examples that have been admitted once so many batches have been given."""
        outputs = batches * self.outputs_per_batch
        return self.schedule.admitted(outputs, self.items) * self.examples_per_item


def echo_seed(config, stream: int) -> int:
    """The seed of a stream's echo stage."""
    return seeds.derived("echo stage", config.seed.data, stream)


def buffer_slots(config, stream: int) -> int:
    """Slots of a stream's shuffle buffer, in items of its echo stage.

    config.echo.shuffle_buffer is the total of all streams. Before batching they share its examples,
    the first streams taking one more where they cannot do so evenly. After batching a slot of each
    stream holds its block of rows, so that as many slots in every stream hold that many batches.
    """
    total, streams = config.echo.shuffle_buffer, config.echo.streams
    if config.echo.insertion == "after_batching":
        return total
    return total // streams + (stream < total % streams)


class StoreSize(NamedTuple):
    """Of a stream's store on the devices: outputs per batch, rows, new items per round."""

    outputs: int
    rows: int
    round_size: int


def store_size(config, held: range) -> StoreSize:
    """The size that suffices for each of the streams `held`."""
    outputs = Counts.of(config, held.start).outputs_per_batch
    if config.echo.policy == "auto":
        rows = max(store_rows(buffer_slots(config, stream), outputs) for stream in held)
        return StoreSize(outputs, rows, round_size(outputs))
    counts = [Counts.of(config, stream) for stream in held]
    rows = max(c.schedule.max_pending(outputs, c.items) for c in counts)
    return StoreSize(outputs, rows, counts[0].schedule.max_admitted(outputs))


class HostSize(NamedTuple):
    """What echoing keeps on the host: rows for items, and slots, which hold numbers."""

    rows: int
    slots: int

    def bytes(self, item_bytes: int) -> int:
        return self.rows * (item_bytes + ROW_BYTES) + self.slots * SLOT_BYTES


ROW_BYTES = 56  # of echo.rows.RowAllocator, at most
SLOT_BYTES = 16  # of two cursors, the stage's and the diagnostics'


def host_size(config, held: range) -> HostSize:
    """What the echo stages of the streams `held` reserve, as they do without looking at an item."""
    sizes = [_host_size(config, stream) for stream in held]
    return HostSize(*map(sum, zip(*sizes, strict=True)))


def _host_size(config, stream: int) -> HostSize:
    its = Counts.of(config, stream)
    whole_batches = config.echo.insertion == "after_batching"
    # examples are read in chunks and stored as they come, batches one by one
    ahead = 1 if whole_batches else its.outputs_per_batch + CHUNK_ITEMS
    if config.echo.policy == "auto":
        rows = store_rows(buffer_slots(config, stream), ahead)
        return HostSize(min(rows, its.items) if whole_batches else rows, 0)
    slots = min(its.schedule.slots, its.schedule.num_outputs(its.items))
    return HostSize(its.schedule.max_pending(ahead, its.items), slots)
