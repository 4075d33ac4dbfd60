"""Opens the splits that a configuration names; a packaged set plugs in at `open_source`."""

import dataclasses
from types import SimpleNamespace
from typing import Any

import ml_collections

from configs.base import is_own_data
from data import packaged, paths, tfds, tokens
from data.sources import DatasetInfo, Source, SourceError
from runs import cli


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
    train, validation = dataset.train_split, dataset.validation_split
    if train or not is_own_data(dataset.name):
        return train, validation, ()
    data = paths.open_all(dataset)
    if paths.HELD_OUT not in data.splits:
        return data.main, validation or "validation", ()
    kept, held_out = (len(data.open(split)) for split in (paths.KEPT, paths.HELD_OUT))
    records = f"of its {kept + held_out} records"
    if not kept or not held_out:
        raise SourceError(
            f"{dataset.name} has no split for validation, and hashes {records}, which are few or "
            "alike, divide nothing; give splits, as in config.dataset.train_split='train[:90%]' "
            "and config.dataset.validation_split='train[90%:]'"
        )
    note = (
        f"{dataset.name} has no split for validation, so {held_out} {records}, chosen by a hash of "
        "each, are held out for it"
    )
    return paths.KEPT, validation or paths.HELD_OUT, () if validation else (note,)


def remarks(dataset: Any) -> list[str]:
    """What to say of the splits of `dataset` (config.dataset) before training on them."""
    try:
        train, validation, notes = split_names(dataset)
        source, info = open_split(dataset, train)
        fields = {"validation_split": validation, "test_split": dataset.test_split}
        others = {f"{k}={v!r}": (v, open_split(dataset, v)[0]) for k, v in fields.items() if v}
        shared = [
            field
            for field, (split, other) in others.items()
            if split == train or any(a.overlaps(b) for a in source.slices for b in other.slices)
        ]
    except cli.InputError:  # which opening them raises
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
    fields = {"name": name, "data_dir": data_dir, "cache_dir": cache_dir, "text": text}
    return open_split(SimpleNamespace(**fields), split)


def open_split(dataset: Any, split: str) -> tuple[Source, DatasetInfo]:
    """The raw records of a split of `dataset` (config.dataset); raises what `open_source` does."""
    if dataset.name in packaged.NAMES:
        return packaged.open_source(dataset.name, split)
    if is_own_data(dataset.name):
        return paths.open_source(dataset, split)
    return tfds.open_source(dataset.name, split, dataset.data_dir, dataset.cache_dir)
