"""Opens a run's data: what is trained on, as slow as config.upstream makes it, and what is not."""

import time
from collections.abc import Callable
from typing import Any

import jax

from pipeline import http_source, sources, text_sources, upstream


def open_data(
    config, clock: Callable[[], float] = time.monotonic
) -> tuple[sources.Source, sources.Source, sources.DatasetInfo]:
    """The training and validation splits, and what is known of the data set.

    Args:
        clock: that the limits of config.upstream go by, where this process keeps them.

    Raises:
        SourceError: they cannot be opened.
    """
    source, held_out, info = open_splits(config.dataset)
    return _slowed(config, source, clock), held_out, info


def open_splits(dataset: Any) -> tuple[sources.Source, sources.Source, sources.DatasetInfo]:
    """The same, of the fields config.dataset, as fast as they are."""
    if dataset.text:
        return text_sources.open_text(dataset)
    source, info = sources.open_source(dataset.name, dataset.train_split, dataset.data_dir)
    held_out, _ = sources.open_source(dataset.name, dataset.validation_split, dataset.data_dir)
    return source, held_out, info


def _slowed(config, source: sources.Source, clock: Callable[[], float]) -> sources.Source:
    settings = config.upstream
    limits = upstream.Limits(
        examples_per_second=settings.examples_per_second,
        bytes_per_second=settings.bytes_per_second,
        latency_seconds=settings.latency_seconds,
        stall_every_seconds=settings.stall_every_seconds,
        stall_seconds=settings.stall_seconds,
        jitter=settings.jitter,
        seed=config.seed.data,
    ).shared_by(jax.process_count())

    def opened(arrived):
        if settings.http:
            return http_source.HttpSource(config.dataset.to_dict(), limits, arrived)
        if limits.none:
            return source
        return upstream.SlowSource(source, upstream.Line(limits, clock), arrived)

    if settings.timeout:
        return upstream.WatchedSource(opened, settings.timeout, clock)
    return opened(lambda: None)
