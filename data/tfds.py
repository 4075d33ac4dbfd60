"""Data sets that TFDS has prepared as array_record, which has a checksum for each record."""

import itertools
import os
import re
from typing import Any

from data import storage
from data.file_source import FileSource, Records, Slice, locate
from data.sources import DatasetInfo, Source, SourceError, fingerprint, reason


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
        bucket, folder = storage.Tree(directory.rstrip("/"), [], cache_dir), name.partition(":")[0]
        for file in storage.tree(bucket.path(folder)).names:
            if ".array_record" not in file:
                bucket.local(f"{folder}/{file}")
        directory = os.fspath(bucket.cache())
    prepared = builder(name, directory)
    try:
        files = prepared.info.splits[split].file_instructions
        for file in files:
            if bucket:
                bucket.local(os.path.relpath(file.filename, directory))
            os.stat(file.filename)
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
        unknown = isinstance(error, tfds.core.DatasetNotFoundError)  # it lists those of TFDS
        opened, prepared, why = None, False, "" if unknown else f" ({reason(error)})"
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

    return FileSource(split, [Records(range(len(rows)), rows.__getitems__, place)], slices)


def _dataset_info(builder: Any) -> DatasetInfo:
    import tensorflow_datasets as tfds

    features, num_classes, object_classes, shape = builder.info.features, None, None, None
    if "label" in features:
        num_classes = getattr(features["label"], "num_classes", None)
    inner: Any = getattr(features["objects"], "feature", None) if "objects" in features else None
    if isinstance(inner, tfds.features.FeaturesDict) and "bbox" in inner:
        object_classes = getattr(inner["label"], "num_classes", None)
    if "image" in features and isinstance(features["image"], tfds.features.Image):
        shape = features["image"].shape
    files = [builder.data_path / name for name in ("dataset_info.json", "features.json")]
    without_blanks = [re.sub(rb"\s", b"", file.read_bytes()) for file in files]
    return DatasetInfo(
        name=builder.info.full_name,
        version=str(builder.info.version),
        fingerprint=fingerprint(*without_blanks),
        num_classes=object_classes if num_classes is None else num_classes,
        image_shape=None if shape is None or None in shape else shape,
        channels=None if shape is None else shape[-1],
        has_boxes=object_classes is not None,
        object_classes=object_classes,
    )
