"""Data sets that TFDS has prepared as array_record, which has a checksum for each record."""

import dataclasses
import itertools
import os
import re
from collections.abc import Callable, Sequence
from typing import Any

from configs.base import OWN_DATA
from data import storage
from data.sources import (
    DatasetInfo,
    FileSource,
    Records,
    Slice,
    Source,
    SourceError,
    fingerprint,
    locate,
    reason,
)


def open_source(
    name: str, split: str, data_dir: str, cache_dir: str = ""
) -> tuple[Source, DatasetInfo]:
    """The records of a split, with images still encoded, and what is known of the data set.

    array_record cannot be read from a bucket. If `data_dir` is in one, the description of the data
    set and the files that the split needs are copied to `cache_dir` first.

    Raises:
        SourceError: there is no such data set or split, or it was not prepared as array_record.
    """
    directory, tree = _directory(data_dir), None
    if storage.is_url(directory):
        tree = _described(name, directory, cache_dir)
        directory = os.fspath(tree.copies(cache_dir))

    def fetch(file: str) -> None:
        if tree is not None:
            tree.local(os.path.relpath(file, directory), cache_dir)

    prepared = builder(name, directory)
    return _open_split(prepared, name, split, fetch), _dataset_info(prepared)


def _directory(data_dir: str) -> str:
    return os.path.expanduser(
        data_dir or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets"
    )


def _described(name: str, url: str, cache_dir: str) -> storage.Tree:
    """The files of a data set in a bucket, of which all but the records have been copied."""
    url, name = url.rstrip("/"), name.partition(":")[0]
    within = storage.tree(f"{url}/{name}")
    tree = dataclasses.replace(within, root=url, names=[f"{name}/{file}" for file in within.names])
    for file in tree.names:
        if ".array_record" not in file:
            tree.local(file, cache_dir)
    return tree


def builder(name: str, data_dir: str) -> Any:
    """TFDS's builder of a data set that is prepared in `data_dir`.

    Raises:
        SourceError: the data set is not prepared there, or its description is damaged.
    """
    import tensorflow_datasets as tfds

    directory = _directory(data_dir)
    try:
        opened = tfds.builder(name, data_dir=directory)
        prepared, why = opened.is_prepared(), ""
    except Exception as error:  # TFDS passes on anything that reading the description raises
        opened, prepared, why = None, False, f" ({reason(error)})"
    if not prepared:
        own = " or ".join(f"{kind}:PATH" for kind in OWN_DATA)
        raise SourceError(
            f"data set {name!r} is not prepared in {directory}{why}; prepare it there with "
            f"tfds.builder({name!r}, file_format='array_record').download_and_prepare(), point "
            f"TFDS_DATA_DIR or config.dataset.data_dir at it, give your own data as {own}, or use "
            "--config=FILE:mini, which needs no download"
        )
    return opened


def _open_split(builder: Any, name: str, split: str, fetch: Callable[[str], None]) -> Source:
    import tensorflow_datasets as tfds

    skip = {"image": tfds.decode.SkipDecoding()} if "image" in builder.info.features else None
    try:
        files = builder.info.splits[split].file_instructions
        for file in files:
            fetch(os.fspath(file.filename))
        records = _records(builder.as_data_source(split, decoders=skip), files)
        slices = Slice.of(split, builder.info.splits)
        if len(records) != sum(len(part.rows) for part in slices):
            raise ValueError(f"its files have {len(records)} records")
    except Exception as error:  # TFDS raises many types
        raise SourceError(
            f"split {split!r} of data set {name!r} in {builder.data_path} cannot be read "
            f"({reason(error)}); allowed: {', '.join(builder.info.splits)}, or a share of one such "
            "as train[:90%], prepared with file_format='array_record'"
        ) from error
    if not len(records):
        raise SourceError(f"split {split!r} of data set {name!r} is empty; give another one")
    return FileSource(split, [(records, range(len(records)))], slices)


def _records(source: Any, files: Sequence[Any]) -> Records:
    """The records of TFDS's data source, and the files that it reads."""
    ends = list(itertools.accumulate(file.take for file in files))

    def place(row: int) -> str:
        part, number = locate(ends, row)
        return f"{files[part].filename}, its record {number + files[part].skip}"

    return Records(range(len(source)), source.__getitems__, place)


def _dataset_info(builder: Any) -> DatasetInfo:
    features = builder.info.features
    objects = _object_features(features)
    num_classes = getattr(features["label"], "num_classes", None) if "label" in features else None
    object_classes = objects["label"].num_classes if "bbox" in objects else None
    shape = features["image"].shape if "image" in features else None
    if not isinstance(shape, tuple) or len(shape) != 3:  # a feature of that name, but not an image
        shape = None
    return DatasetInfo(
        name=builder.info.full_name,
        version=str(builder.info.version),
        fingerprint=_fingerprint(builder.data_path),
        num_classes=object_classes if num_classes is None else num_classes,
        image_shape=None if shape is None or None in shape else shape,
        channels=None if shape is None else shape[-1],
        has_boxes=object_classes is not None,
        object_classes=object_classes,
    )


def _object_features(features: Any) -> Any:
    """The features of each object in an image; empty if there are no objects."""
    import tensorflow_datasets as tfds

    inner = getattr(features["objects"], "feature", None) if "objects" in features else None
    return inner if isinstance(inner, tfds.features.FeaturesDict) else {}


def _fingerprint(directory: Any) -> str:
    """A hash of the description without its white space."""
    files = [(directory / name).read_text() for name in ("dataset_info.json", "features.json")]
    return fingerprint(*(re.sub(r"\s", "", text).encode() for text in files))
