"""Closed-form properties of a run's input: numbers of batches and of fresh examples."""

from typing import Any, NamedTuple

from ml_collections import ConfigDict

import echo
from pipeline.map_datasets import derived_seed
from runs.study import augments_repeats, default_buffer, default_max_factor


def total_steps(config: ConfigDict, num_fresh: int = 0) -> int:
    """The number of batches that this condition makes of so many fresh examples (0: the budget):
    those of its shortest stream."""
    streams = range(config.echo.streams)
    return min(Counts.of(config, stream, num_fresh).batches for stream in streams)


class Counts(NamedTuple):
    """The size of a stream. An item is what its echo stage repeats: an example or a batch.

    Attributes:
        schedule: of the stream's items.
        items: the number of fresh items.
        examples_per_item, outputs_per_batch: one of the two is 1.
    """

    schedule: echo.EchoSchedule
    items: int
    examples_per_item: int
    outputs_per_batch: int

    @classmethod
    def of(cls, config: ConfigDict, stream: int, num_fresh: int = 0) -> "Counts":
        """Counts of one stream, for `num_fresh` fresh examples in all streams (0: the budget)."""
        rows = config.batch_size // config.echo.streams
        num_fresh = num_fresh or config.budget.fresh_examples
        fresh = len(range(stream, num_fresh, config.echo.streams))
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

    @property
    def batches(self) -> int:
        return self.schedule.num_outputs(self.items) // self.outputs_per_batch

    def admitted(self, batches: int) -> int:
        """Fresh examples admitted by the time that `batches` batches have been emitted."""
        outputs = batches * self.outputs_per_batch
        return self.schedule.admitted(outputs, self.items) * self.examples_per_item


def stage_settings(config: ConfigDict, stream: int) -> dict[str, Any]:
    """The arguments of a stream's echo stage that do not depend on the policy."""
    return {
        "shuffle_buffer": buffer_slots(config, stream),
        "seed": echo_seed(config, stream),
        "annotate": True,
        "placement": config.echo.placement,
    }


def max_factor(config: ConfigDict) -> int:
    """The maximum number of copies of a fresh item with echo.policy=auto."""
    if config.echo.max_factor:
        return config.echo.max_factor
    return default_max_factor(config.batch_size, augments_repeats(config))


def echo_seed(config: ConfigDict, stream: int) -> int:
    """The seed of a stream's echo stage."""
    return derived_seed("echo stage", config.seed.data, stream)


def shuffle_buffer(config: ConfigDict) -> int:
    """The configured slots of the shuffle buffer, over all streams; under auto, their default."""
    if config.echo.policy == "auto" and not config.echo.shuffle_buffer:
        return default_buffer(config.echo.insertion, config.batch_size)
    return config.echo.shuffle_buffer


def buffer_slots(config: ConfigDict, stream: int) -> int:
    """Slots of a stream's shuffle buffer, in items of its echo stage.

    Before batching, the streams share the slots, and if they cannot do so evenly, the first streams
    get one more. After batching, a slot of each stream holds that stream's rows of one batch, so
    every stream gets the full number of slots.
    """
    total, streams = shuffle_buffer(config), config.echo.streams
    if config.echo.insertion == "after_batching":
        return total
    return total // streams + (stream < total % streams)
