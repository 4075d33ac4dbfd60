"""Data sets that TFDS has prepared; any damage is reported with the file's name.

Opening a split checks that the description can be read and that each file holds as many records as
the description says. This reads only the end of each file: 0.1 ms per file on a local disk. The
checksum of a record is verified when the record is read.
"""

import concurrent.futures
import contextlib
import dataclasses
import itertools
import os
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from data import storage
from data.sources import (
    MAX_CLASSES,
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

# The latency of a mounted bucket dominates, so many files are checked concurrently.
_CONCURRENT_CHECKS = 64


def open_source(
    name: str, split: str, data_dir: str, cache_dir: str = ""
) -> tuple[Source, DatasetInfo]:
    """The records of a split, with images still encoded, and what is known of the data set.

    array_record cannot be read from a bucket. If `data_dir` is in one, the description of the data
    set and the files that the split needs are copied to `cache_dir` first.

    Raises:
        SourceError: there is no such data set or split, it was not prepared as array_record, or one
            of its files is missing or damaged.
    """
    directory, tree = _directory(data_dir), None
    if storage.is_url(directory):
        tree = _copied_description(name, directory, cache_dir)
        directory = os.fspath(tree.cache(cache_dir))

    def fetch(file: str) -> None:
        if tree is not None:
            tree.local(os.path.relpath(file, directory), cache_dir)

    prepared = builder(name, directory)
    return _open_split(prepared, name, split, fetch), _dataset_info(prepared)


def _directory(data_dir: str) -> str:
    return os.path.expanduser(
        data_dir or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets"
    )


def _copied_description(name: str, url: str, cache_dir: str) -> storage.Tree:
    """The files of a data set in a bucket, of which all but the records have been copied."""
    url, name = url.rstrip("/"), name.partition(":")[0]
    within = storage.tree(f"{url}/{name}")
    sizes = {f"{name}/{file}": size for file, size in within.sizes.items()}
    tree = dataclasses.replace(within, root=url, names=list(sizes), sizes=sizes)
    for file in sizes:
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
        prepared = opened.is_prepared()
    except Exception as error:  # TFDS passes on anything that reading the description raises
        _check_description(name, directory, error)
        opened, prepared = None, False
    if not prepared:
        raise SourceError(
            f"data set {name!r} is not prepared in {directory}; prepare it there with "
            f"tfds.builder({name!r}, file_format='array_record').download_and_prepare(), point "
            "TFDS_DATA_DIR or config.dataset.data_dir at it, give your own data as folder:PATH, "
            "files:PATH, npz:PATH, or hf:PATH (docs/your_data.md), or use --config=FILE:mini, "
            "which needs no download"
        )
    return opened


def _check_description(name: str, data_dir: str, error: Exception) -> None:
    """Raises SourceError if the data set exists, since then its description caused `error`."""
    import tensorflow_datasets as tfds

    for directory in _described_directories(name, data_dir):
        try:
            tfds.features.FeatureConnector.from_config(directory)
        except Exception as cause:
            raise _damaged(directory / "features.json", cause) from error
        raise _damaged(directory / "dataset_info.json", error) from error


def _described_directories(name: str, data_dir: str) -> Iterator[Any]:
    from etils import epath

    name, _, version = name.partition(":")
    if not name:
        return
    with contextlib.suppress(Exception):  # no such directory, or a bucket that is out of reach
        root = epath.Path(data_dir) / name
        for pattern in ("*/dataset_info.json", "*/*/dataset_info.json"):
            directories = [path.parent for path in sorted(root.glob(pattern))]
            yield from (path for path in directories if version in ("", path.name))


def _damaged(file: Any, error: Exception | str) -> SourceError:
    """The error for a file of a data set that cannot be used."""
    why = error if isinstance(error, str) else reason(error)
    return SourceError(
        f"{os.fspath(file)} cannot be used ({why}); restore the file, or prepare the data set again"
    )


def _open_split(builder: Any, name: str, split: str, fetch: Callable[[str], None]) -> Source:
    import tensorflow_datasets as tfds

    description = builder.data_path / "dataset_info.json"
    skip = {"image": tfds.decode.SkipDecoding()} if "image" in builder.info.features else None
    try:
        records = builder.as_data_source(split, decoders=skip)
        files = builder.info.splits[split].file_instructions
    except NotImplementedError as error:
        raise SourceError(
            f"data set {name!r} in {builder.data_path} does not support random access; prepare it "
            "with file_format='array_record'"
        ) from error
    except Exception as error:
        if not builder.info.splits or split in builder.info.splits:
            raise _damaged(description, error) from error
        raise SourceError(
            f"data set {name!r} has no split {split!r}; allowed: {', '.join(builder.info.splits)}, "
            "or a slice of one such as train[:90%]"
        ) from error
    for part in builder.info.splits.values():  # TFDS skips files of negative length
        if (shortest := min(part.shard_lengths, default=0)) < 0:
            raise _damaged(description, f"split {part.name!r} has a file of {shortest} records")
    if sum(file.take for file in files) < 1:
        raise SourceError(f"split {split!r} of data set {name!r} is empty; give another one")
    for file in files:
        fetch(os.fspath(file.filename))
    _check_files(files, description)
    prepared = _PreparedRecords(records, files)
    slices = Slice.of(split, builder.info.splits)
    return FileSource(split, [(prepared, range(len(prepared)))], slices)


def _check_files(files: Sequence[Any], description: Any) -> None:
    with concurrent.futures.ThreadPoolExecutor(_CONCURRENT_CHECKS) as pool:
        try:
            for file, actual in zip(files, pool.map(_num_records, files), strict=True):
                if actual != file.examples_in_shard:
                    raise _damaged(
                        file.filename,
                        f"it has {actual} records, and {description} says {file.examples_in_shard}",
                    )
        finally:
            pool.shutdown(cancel_futures=True)


def _num_records(file: Any) -> int:
    from array_record.python.array_record_module import ArrayRecordReader

    reader = ArrayRecordReader(
        os.fspath(file.filename), options="readahead_buffer_size:0", file_reader_buffer_size=32768
    )
    num_records = reader.num_records()
    try:
        reader.close()  # raises any error that occurred on opening
    except RuntimeError as error:
        raise _damaged(file.filename, str(error).partition("; ")[0]) from error
    return num_records


class _PreparedRecords(Records):
    """The records of a split.

    Args:
        records: TFDS's data source.
        files: TFDS's `FileInstruction`s for the split.
    """

    def __init__(self, records: Any, files: Sequence[Any]):
        self._records, self._files = records, files
        self._ends = list(itertools.accumulate(file.take for file in files))

    def __len__(self) -> int:
        return len(self._records)

    def read(self, numbers: Sequence[int]) -> list[dict[str, Any]]:
        return self._records.__getitems__(numbers)

    def place(self, number: int) -> str:
        part, place = locate(self._ends, number)
        file = self._files[part]
        return f"{file.filename}, its record {place + file.skip}"


def _dataset_info(builder: Any) -> DatasetInfo:
    features = builder.info.features
    objects = _object_features(features)
    num_classes = _num_classes(builder, features)
    object_classes = _num_classes(builder, objects) if "bbox" in objects else None
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


def _num_classes(builder: Any, features: Any) -> int | None:
    """The number of classes; None if there are no labels, or no classes of them."""
    if "label" not in features:
        return None
    number = getattr(features["label"], "num_classes", None)
    if number is not None and not 1 <= number <= MAX_CLASSES:
        raise _damaged(
            builder.data_path / "features.json",
            f"label has {number} classes; allowed: 1 to {MAX_CLASSES:,}",
        )
    return number


def _fingerprint(directory: Any) -> str:
    """A hash of the description without its white space."""
    parts = []
    for name in ("dataset_info.json", "features.json"):
        try:
            parts.append(re.sub(r"\s", "", (directory / name).read_text()).encode())
        except (OSError, UnicodeDecodeError) as error:
            raise _damaged(directory / name, error) from error
    return fingerprint(*parts)
