"""Opens the splits that a configuration names. `open_source` is the place to add a source."""

import contextlib
from typing import Any

import ml_collections

from data import packaged, paths, text_sources, tfds, throttle
from data.path_data import Settings
from data.sources import DatasetInfo, RecordError, Source, SourceError


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
        return text_sources.open_splits(dataset, _open_split)
    source, info = _open_split(dataset, dataset.train_split)
    held_out, _ = _open_split(dataset, dataset.validation_split)
    return source, held_out, info


def overlap(dataset: Any) -> str:
    """A sentence if the training and validation splits of `dataset` (config.dataset) share records;
    '' if they do not, or cannot be opened.

    It is no error: the accuracy on training examples is one measure of memorization.
    """
    names = dataset.train_split, dataset.validation_split
    shared = names[0] == names[1]
    with contextlib.suppress(SourceError, RecordError):
        if not shared:
            train, held_out = (_open_split(dataset, name)[0].slices for name in names)
            shared = any(a.overlaps(b) for a in train for b in held_out)
    return shared * (
        f"warning: config.dataset.train_split={names[0]!r} and validation_split={names[1]!r} share "
        "records, so the target is measured on examples that were trained on; to measure "
        "generalization, give splits that do not overlap, such as train[:90%] and train[90%:]"
    )


def remarks(dataset: Any) -> list[str]:
    """What to say of the splits of `dataset` (config.dataset) before training on them."""
    notes: tuple[str, ...] = ()
    if paths.is_path(dataset.name):
        with contextlib.suppress(SourceError, RecordError):
            notes = _open_split(dataset, dataset.train_split)[1].notes
    warning = overlap(dataset)
    return [*[warning] * bool(warning), *notes]


def open_source(
    name: str, split: str, data_dir: str = "", *, cache_dir: str = "", text: str = ""
) -> tuple[Source, DatasetInfo]:
    """The raw records of a split, and what is known of the data set.

    Args:
        name: one of packaged.NAMES, KIND:PATH (see paths.py), or a data set that
            TFDS has prepared as array_record.
        split: in TFDS's notation: 'train', 'train[:90%]', 'validation'.
        data_dir: where TFDS looks; '' = $TFDS_DATA_DIR, or ~/tensorflow_datasets. A relative path
            in `name` starts there.
        cache_dir, text: fields of config.dataset, which data by path or in a bucket depend on.

    Raises:
        SourceError: there is no such data set or split, or one of its files is missing or damaged.
        RecordError: one of the first images of a data set by path cannot be read.
    """
    if name in packaged.NAMES:
        return packaged.open_source(name, split)
    if paths.is_path(name):
        return paths.open_source(split, data_dir, Settings(name, text, cache_dir))
    paths.check_name(name)
    return tfds.open_source(name, split, data_dir, cache_dir)


def _open_split(dataset: Any, split: str) -> tuple[Source, DatasetInfo]:
    return open_source(
        dataset.name, split, dataset.data_dir, cache_dir=dataset.cache_dir, text=dataset.text
    )
