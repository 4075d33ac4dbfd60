"""Data sets that TFDS has prepared as array_record, which has a checksum for each record."""

import itertools
import os
import re
from typing import Any

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
    directory, bucket = _directory(data_dir), None
    if storage.is_url(directory):
        bucket, folder = storage.Tree(directory.rstrip("/"), []), name.partition(":")[0]
        for file in storage.tree(bucket.path(folder)).names:
            if ".array_record" not in file:
                bucket.local(f"{folder}/{file}", cache_dir)
        directory = os.fspath(bucket.copies(cache_dir))
    prepared = builder(name, directory)
    try:
        files = prepared.info.splits[split].file_instructions
        if bucket:
            for file in files:
                bucket.local(os.path.relpath(file.filename, directory), cache_dir)
        source = _source(prepared, split, files)
    except Exception as error:  # TFDS raises many types
        raise SourceError(
            f"split {split!r} of data set {name!r} in {prepared.data_path} cannot be read "
            f"({reason(error)}); allowed: {', '.join(prepared.info.splits)}, or a share of one "
            "such as train[:90%], prepared with file_format='array_record'"
        ) from error
    return source, _dataset_info(prepared)


def _directory(data_dir: str) -> str:
    return os.path.expanduser(
        data_dir or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets"
    )


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
        raise SourceError(
            f"data set {name!r} is not prepared in {directory}{why}; prepare it with TFDS as "
            "array_record (docs/data.md), point TFDS_DATA_DIR or config.dataset.data_dir at it, "
            "give your own data as KIND:PATH (docs/your_data.md), or use --config=FILE:mini"
        )
    return opened


def _source(builder: Any, split: str, files: Any) -> Source:
    import tensorflow_datasets as tfds

    skip = {"image": tfds.decode.SkipDecoding()} if "image" in builder.info.features else None
    rows = builder.as_data_source(split, decoders=skip)
    slices = Slice.of(split, builder.info.splits)
    if not len(rows) == sum(len(part.rows) for part in slices) > 0:
        raise ValueError(f"its files have {len(rows)} records")
    ends = list(itertools.accumulate(file.take for file in files))

    def place(row: int) -> str:
        part, number = locate(ends, row)
        return f"{files[part].filename}, its record {number + files[part].skip}"

    records = Records(range(len(rows)), rows.__getitems__, place)
    return FileSource(split, [(records, range(len(rows)))], slices)


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
