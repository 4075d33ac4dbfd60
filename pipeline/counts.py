"""What a run's input gives, in closed form: how many batches, how many fresh examples, how its
repeats lie in them."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

import echo
from echo.diagnostics import CopyDiagnostics, DecidedRows, EchoedRows, PassesRows
from echo.repeats import Repeats, round_size, store_rows
from pipeline import seeds, spaced

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
        passes = spaced.passes_of(config, num_examples)
        return CopyDiagnostics(config.batch_size, [PassesRows(passes, config.batch_size)])
    counts = Counts.of_all(config)
    if config.echo.policy == "fixed":
        rows = [EchoedRows(c.schedule, c.items, c.outputs_a_batch) for c in counts]
        return CopyDiagnostics(config.batch_size, rows)
    of = functools.partial(Repeats, config.echo.max_factor, config.echo.shuffle_buffer)
    rows = [DecidedRows(of(echo_seed(config, s)), c.outputs_a_batch) for s, c in enumerate(counts)]
    return CopyDiagnostics(config.batch_size, rows)


def repeated_rows(config, held: range) -> RepeatedRows:
    """Tells which rows are repeats, of those that the sub-streams `held` fill; fastest for batches
    in ascending order."""
    buffered = config.echo.insertion != "none" and config.echo.shuffle_buffer > 0
    if config.echo.policy != "fixed" or not buffered:
        return lambda number, copy_b: copy_b > 0
    # Copies are numbered as they enter the buffer, and leave it in any order.
    streams = [Counts.of(config, stream) for stream in held]
    rows = [EchoedRows(c.schedule, c.items, c.outputs_a_batch) for c in streams]
    local = config.batch_size // config.echo.streams * len(held)
    diagnostics = CopyDiagnostics(local, rows)
    return lambda number, copy_b: diagnostics.repeats(number)


class Counts(NamedTuple):
    """What a sub-stream gives, in closed form. An item of its slot is an example, or a batch.

    Attributes:
        schedule: of the slot's items.
        items: how many fresh ones there are.
        examples_an_item, outputs_a_batch: one of the two is 1.
    """

    schedule: echo.EchoSchedule
    items: int
    examples_an_item: int
    outputs_a_batch: int

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
            config.echo.factor, config.echo.shuffle_buffer, echo_seed(config, stream)
        )
        if config.echo.insertion == "after_batching":
            return cls(schedule, fresh // rows, rows, 1)
        return cls(schedule, fresh, 1, rows)

    @classmethod
    def of_all(cls, config, num_fresh: int | None = None) -> list["Counts"]:
        return [cls.of(config, stream, num_fresh) for stream in range(config.echo.streams)]

    @property
    def batches(self) -> int:
        return self.schedule.num_outputs(self.items) // self.outputs_a_batch

    def admitted(self, batches: int) -> int:
        """Fresh examples that have been admitted once so many batches have been given."""
        outputs = batches * self.outputs_a_batch
        return self.schedule.admitted(outputs, self.items) * self.examples_an_item


def echo_seed(config, stream: int) -> int:
    """The seed of a stream's echo stage."""
    return seeds.derived("echo stage", config.seed.data, stream)


def store_size(config, stream: int) -> tuple[int, int, int]:
    """(outputs a batch, rows, new items a round) of a sub-stream's store on the devices."""
    its = Counts.of(config, stream)
    outputs = its.outputs_a_batch
    if config.echo.policy == "auto":
        return outputs, store_rows(config.echo.shuffle_buffer, outputs), round_size(outputs)
    schedule = its.schedule
    return outputs, schedule.most_pending(outputs, its.items), schedule.most_admitted(outputs)
