"""Data sets that TFDS has prepared, opened so that whatever is damaged is named.

Before a run it is checked that the description can be read and that every file of a split is there
with as many records as the description says, which takes the ends of each file: 0.1 ms a file on a
local disk. The bytes of a record have a checksum in the file and are checked when they are read.
"""

import bisect
import concurrent.futures
import contextlib
import itertools
import os
from collections.abc import Iterator, Sequence
from typing import Any

from data.errors import RecordError, SourceError, reason

# Files that are checked at once: what takes time is the way to a bucket.
_CHECKED_AT_ONCE = 64


def builder(name: str, data_dir: str) -> Any:
    """TFDS's builder of a data set that is prepared in `data_dir`.

    Raises:
        SourceError: it is not prepared there, or its description is damaged.
    """
    import tensorflow_datasets as tfds

    where = os.path.expanduser(
        data_dir or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets"
    )
    try:
        made = tfds.builder(name, data_dir=where)  # may be gs://BUCKET
        prepared = made.is_prepared()
    except Exception as error:  # TFDS hands on whatever reading the description raises
        _check_description(name, where, error)
        prepared = False
    if not prepared:
        raise SourceError(
            f"data set {name!r} is not prepared in {where}; prepare it there with "
            f"tfds.builder({name!r}, file_format='array_record').download_and_prepare(), point "
            "TFDS_DATA_DIR or config.dataset.data_dir at it, or use --config=FILE:mini, "
            "which needs no download"
        )
    return made


def _check_description(name: str, where: str, error: Exception) -> None:
    """Raises SourceError if the data set is there, so that its description must be to blame."""
    import tensorflow_datasets as tfds

    for directory in _described_directories(name, where):
        features = directory / "features.json"
        try:
            tfds.features.FeatureConnector.from_config(directory)
        except Exception as found:
            raise damaged(features, found) from error
        raise damaged(directory / "dataset_info.json", error) from error


def _described_directories(name: str, where: str) -> Iterator[Any]:
    from etils import epath

    name, _, version = name.partition(":")
    if not name:
        return
    with contextlib.suppress(Exception):  # no such directory, no name of one, no way to a bucket
        root = epath.Path(where) / name
        for pattern in ("*/dataset_info.json", "*/*/dataset_info.json"):
            directories = [path.parent for path in sorted(root.glob(pattern))]
            yield from (path for path in directories if version in ("", path.name))


def damaged(file: Any, error: Exception | str) -> SourceError:
    """The error for a file of a data set that cannot be used."""
    why = error if isinstance(error, str) else reason(error)
    return SourceError(
        f"{os.fspath(file)} cannot be used ({why}); restore the file, or prepare the data set again"
    )


def open_split(builder: Any, name: str, split: str) -> "PreparedSplit":
    """The records of a split; images stay encoded.

    Raises:
        SourceError: no such split, not as array_record, or a file that is missing or damaged.
    """
    import tensorflow_datasets as tfds

    description = builder.data_path / "dataset_info.json"
    skip = {"image": tfds.decode.SkipDecoding()} if "image" in builder.info.features else None
    try:
        records = builder.as_data_source(split, decoders=skip)
        files = builder.info.splits[split].file_instructions
    except NotImplementedError as error:
        raise SourceError(
            f"data set {name!r} in {builder.data_path} is not in random-access form; prepare it "
            "with file_format='array_record'"
        ) from error
    except Exception as error:
        if not builder.info.splits or split in builder.info.splits:
            raise damaged(description, error) from error
        raise SourceError(
            f"data set {name!r} has no split {split!r}; allowed: {', '.join(builder.info.splits)}, "
            "or a slice of one such as train[:90%]"
        ) from error
    for part in builder.info.splits.values():  # TFDS leaves out files of a negative length
        if (least := min(part.shard_lengths, default=0)) < 0:
            raise damaged(description, f"split {part.name!r} has a file of {least} records")
    if sum(file.take for file in files) < 1:
        raise SourceError(f"split {split!r} of data set {name!r} is empty; give another one")
    _check_files(files, description)
    return PreparedSplit(records, split, files)


def _check_files(files: Sequence[Any], description: Any) -> None:
    with concurrent.futures.ThreadPoolExecutor(_CHECKED_AT_ONCE) as pool:
        try:
            for file, there in zip(files, pool.map(_num_records, files), strict=True):
                if there != file.examples_in_shard:
                    raise damaged(
                        file.filename,
                        f"it has {there} records, and {description} says {file.examples_in_shard}",
                    )
        finally:
            pool.shutdown(cancel_futures=True)


def _num_records(file: Any) -> int:
    from array_record.python.array_record_module import ArrayRecordReader

    reader = ArrayRecordReader(
        os.fspath(file.filename), options="readahead_buffer_size:0", file_reader_buffer_size=32768
    )
    records = reader.num_records()
    try:
        reader.close()  # which raises what was wrong when it was opened
    except RuntimeError as error:
        raise damaged(file.filename, str(error).partition("; ")[0]) from error
    return records


class PreparedSplit:
    """Random access to the records of a split; a record that cannot be read is named.

    Args:
        records: TFDS's data source.
        split: as it was asked for.
        files: where its records are, TFDS's `FileInstruction`s.
    """

    def __init__(self, records: Any, split: str, files: Sequence[Any]):
        self._records, self._split, self._files = records, split, files
        self._ends = list(itertools.accumulate(file.take for file in files))

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, index: int) -> dict[str, Any]:
        try:
            return self._records[index]
        except Exception as error:  # of the reader, of the parser, of what TFDS decodes
            raise RecordError(
                f"{self.where(index)} cannot be read: {reason(error)}; restore the file, or leave "
                "the record out of the split"
            ) from error

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        try:
            return self._records.__getitems__(indices)
        except Exception:
            return [self[index] for index in indices]  # one of which raises, and is named

    def where(self, number: int) -> str:
        """How a sentence names record `number`: by its place in the split and in a file."""
        place = bisect.bisect_right(self._ends, number)
        file = self._files[place]
        in_file = number - (self._ends[place] - file.take) + file.skip
        return f"record {number} of split {self._split!r} ({file.filename}, its record {in_file})"
