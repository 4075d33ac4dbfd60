"""Opens a run's data: what is trained on, as slow as config.upstream makes it, and what is not."""

import functools
from typing import Any

import jax

from data import http_source, sources, text_sources, throttle


def open_data(
    config, clock: throttle.StoppableClock | None = None
) -> tuple[sources.Source, sources.Source, sources.DatasetInfo]:
    """The training and validation splits, and what is known of the data set.

    Args:
        clock: that the limits of config.upstream go by; None: one that is never stopped.

    Raises:
        SourceError, RecordError: they cannot be opened; of text all records may be read for that.
    """
    source, held_out, info = open_splits(config.dataset)
    return _slowed(config, source, clock or throttle.StoppableClock()), held_out, info


def open_splits(dataset: Any) -> tuple[sources.Source, sources.Source, sources.DatasetInfo]:
    """The same, of the fields config.dataset, as fast as they are."""
    if dataset.text:
        return text_sources.open_text(dataset)
    source, info = sources.open_source(dataset.name, dataset.train_split, dataset.data_dir)
    held_out, _ = sources.open_source(dataset.name, dataset.validation_split, dataset.data_dir)
    return source, held_out, info


def limits(config) -> throttle.Limits:
    """How slow config.upstream makes the training examples that this process reads."""
    settings = config.upstream
    return throttle.Limits(
        examples_per_second=settings.examples_per_second,
        bytes_per_second=settings.bytes_per_second,
        latency_seconds=settings.latency_seconds,
        stall_every_seconds=settings.stall_every_seconds,
        stall_seconds=settings.stall_seconds,
        jitter=settings.jitter,
        seed=config.seed.data,
    ).shared_by(jax.process_count())


def _slowed(config, source: sources.Source, clock: throttle.StoppableClock) -> sources.Source:
    settings, slow = config.upstream, limits(config)

    def opened(arrived):
        fast = source
        if settings.http:
            where = functools.partial(sources.where, source)
            fast = http_source.HttpSource(config.dataset.to_dict(), arrived, where)
        if slow.none:
            return fast
        return throttle.SlowSource(fast, throttle.RateLimiter(slow, clock, clock.sleep), arrived)

    if settings.timeout:
        return throttle.TimeoutSource(opened, settings.timeout, clock)
    return opened(lambda: None)
