"""Opens the splits that a configuration names. `open_source` is the place to add a source."""

from typing import Any

import ml_collections

from data import digits, python_text, text_sources, tfds, throttle
from data.sources import DatasetInfo, Source


def open_data(
    config: ml_collections.ConfigDict, clock: throttle.StoppableClock | None = None
) -> tuple[Source, Source, DatasetInfo]:
    """The training split, throttled by config.upstream, the validation split, and the data set.

    Args:
        clock: times the limits of config.upstream; None = a clock that is never stopped.

    Raises:
        SourceError, RecordError: a split cannot be opened. For text, all records may be read.
    """
    source, held_out, info = open_splits(config.dataset)
    return throttle.throttled(config, source, clock), held_out, info


def open_splits(dataset: Any) -> tuple[Source, Source, DatasetInfo]:
    """The training and validation splits of `dataset` (config.dataset), and the data set.

    Raises:
        SourceError, RecordError: a split cannot be opened. For text, all records may be read.
    """
    if dataset.text:
        return text_sources.open_splits(dataset, open_source)
    source, info = open_source(dataset.name, dataset.train_split, dataset.data_dir)
    held_out, _ = open_source(dataset.name, dataset.validation_split, dataset.data_dir)
    return source, held_out, info


def open_source(name: str, split: str, data_dir: str = "") -> tuple[Source, DatasetInfo]:
    """The raw records of a split, and what is known of the data set.

    Args:
        name: one of digits.NAMES or python_text.NAMES, or a data set that TFDS has prepared as
            array_record.
        split: in TFDS's notation: 'train', 'train[:90%]', 'validation'.
        data_dir: where TFDS looks; '' = $TFDS_DATA_DIR, or ~/tensorflow_datasets.

    Raises:
        SourceError: there is no such data set or split, or one of its files is missing or damaged.
    """
    if name in digits.NAMES:
        return digits.open_source(name, split)
    if name in python_text.NAMES:
        return python_text.open_source(name, split)
    return tfds.open_source(name, split, data_dir)
