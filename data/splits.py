"""Opens the splits that a configuration names. `open_source` is the place to add a source."""

import dataclasses
from typing import Any

import ml_collections

from configs.base import is_own_data
from data import packaged, paths, tfds, tokens
from data.path_data import Settings
from data.sources import DatasetInfo, RecordError, Source, SourceError


def open_splits(dataset: Any) -> tuple[Source, Source, DatasetInfo]:
    """The training and validation splits of `dataset` (config.dataset), and the data set.

    Raises:
        SourceError, RecordError: a split cannot be opened. For text, all records may be read.
    """
    train, validation, notes = split_names(dataset)
    if dataset.text:
        chosen = ml_collections.ConfigDict(dataset)
        chosen.train_split, chosen.validation_split = train, validation
        frozen = ml_collections.FrozenConfigDict(chosen)
        source, held_out, info = tokens.open_splits(frozen, open_split)
    else:
        source, info = open_split(dataset, train)
        held_out, _ = open_split(dataset, validation)
    return source, held_out, dataclasses.replace(info, notes=(*notes, *info.notes))


def split_names(dataset: Any) -> tuple[str, str, tuple[str, ...]]:
    """The splits for training and validation of `dataset` (config.dataset), and a sentence if own
    data without a split for validation was divided.

    Raises:
        SourceError, RecordError: own data cannot be opened.
    """
    train, validation, notes = dataset.train_split, dataset.validation_split, ()
    if train and not validation:
        raise SourceError(
            f"config.dataset.validation_split is '' with train_split={train!r}; allowed: another "
            "split, or '' for both, which divides own data"
        )
    if not train and is_own_data(dataset.name):
        train, own, notes = paths.own_splits(dataset.data_dir, Settings.of(dataset))
        validation, notes = validation or own, () if validation else notes
    return train, validation, notes


def remarks(dataset: Any) -> list[str]:
    """What to say of the splits of `dataset` (config.dataset) before training on them."""
    try:
        train, validation, notes = split_names(dataset)
        source, info = open_split(dataset, train)
        fields = {"validation_split": validation, "test_split": dataset.test_split}
        shared = []
        for field, split in fields.items():
            other = open_split(dataset, split)[0] if split else source
            overlap = any(a.overlaps(b) for a in source.slices for b in other.slices)
            if split == train or (split and overlap):
                shared.append(f"{field}={split!r}")
    except (SourceError, RecordError):  # which opening them raises
        return []
    if is_own_data(dataset.name):
        notes = (*notes, *info.notes)
    if not shared:
        return list(notes)
    return [  # no error: the accuracy on training examples is one measure of memorization
        f"warning: config.dataset.train_split={train!r} and {' and '.join(shared)} share records, "
        "so what is measured there is measured on examples that were trained on",
        *notes,
    ]


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
    if is_own_data(name):
        return paths.open_source(split, data_dir, Settings(name, text, cache_dir))
    return tfds.open_source(name, split, data_dir, cache_dir)


def open_split(dataset: Any, split: str) -> tuple[Source, DatasetInfo]:
    """The raw records of a split of `dataset` (config.dataset); raises what `open_source` does."""
    return open_source(
        dataset.name, split, dataset.data_dir, cache_dir=dataset.cache_dir, text=dataset.text
    )
