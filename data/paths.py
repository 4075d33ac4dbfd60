"""Data sets by path: config.dataset.name=KIND:PATH. `KINDS` is the place to add a kind.

    folder:PATH   images in a folder per class
    files:PATH    text files, JSON Lines
    npz:PATH      arrays of images and labels
    hf:PATH       data sets of Hugging Face: save_to_disk, Parquet

PATH is relative to config.dataset.data_dir, or to the working directory; it may be s3://BUCKET/...
or gs://BUCKET/... Splits are in TFDS's notation, which also reads it here.

A kind is a module with `SUFFIXES`, a tuple of endings of file names that suggest it, and
`open_tree(tree, settings) -> PathData`, which raises SourceError.
"""

import difflib
import functools
import itertools
import os

from data import folder, huggingface, npz, storage, text_files
from data.path_data import FIELDS, PathData, Settings, boxes_hint
from data.sources import DatasetInfo, FileSource, Slice, Source, SourceError

KINDS = {"folder": folder, "files": text_files, "npz": npz, "hf": huggingface}

# Fields whose columns a name may give; of the other kinds, all.
_FIELDS: dict[str, set[str]] = {"folder": set(), "files": {"text"}, "npz": {"image", "label"}}

_LOOKED_AT = 100  # directories, to find out what a path holds; it may be '/'


def is_path(name: str) -> bool:
    """Whether a data set's name is KIND:PATH."""
    kind, colon, _ = name.partition(":")
    return bool(colon) and kind in KINDS


def check_name(name: str) -> None:
    """Raises SourceError for a name that is a path, but does not say of which kind."""
    prefix, colon, path = name.partition(":")
    if storage.is_url(name) or _is_written_as_path(name):
        problem, path = "a path without its kind", name
    elif colon and (storage.is_url(path) or _is_written_as_path(path) or _resembles_kind(prefix)):
        problem = f"a path of an unknown kind, {prefix!r}"
    else:
        return
    raise SourceError(f"config.dataset.name is {name!r}, {problem}; allowed: {_suggestion(path)}")


def _resembles_kind(prefix: str) -> bool:
    return bool(difflib.get_close_matches(prefix.lower(), KINDS, cutoff=0.7))


def _is_written_as_path(name: str) -> bool:
    return name.startswith((".", "/", "~")) or os.path.isfile(name)


def _suggestion(path: str) -> str:
    """The name to give for a path: of the kind that is found there, or of any kind."""
    walked = itertools.islice(os.walk(os.path.expanduser(path)), _LOOKED_AT)
    names = [name for _, _, in_directory in walked for name in in_directory] or [path]
    if "features.json" in names:
        return (
            "the name of a data set, with the directory in which TFDS has prepared it as "
            "config.dataset.data_dir"
        )
    if table := text_files.converted_table(path):
        return table
    if boxes := boxes_hint(names):
        return f"hf:DIRECTORY, of Parquet files{boxes}"
    for kind, module in KINDS.items():
        if any(name.lower().endswith(module.SUFFIXES) for name in names):
            return f"{kind}:{path}"
    return names_of(path)


def names_of(path: str) -> str:
    """The names that data at `path` may have, of each kind, as a list for messages."""
    return ", ".join(f"{kind}:{path}" for kind in KINDS)


def open_source(split: str, data_dir: str, settings: Settings) -> tuple[Source, DatasetInfo]:
    """The records of a split, and what is known of the data set.

    Raises:
        SourceError: there is no such data set or split, or it cannot be used.
        RecordError: one of the first images cannot be read.
    """
    opened = open_all(data_dir, settings)
    return _split(opened, split, settings.name), opened.info


@functools.lru_cache(maxsize=4)  # both splits of a run, and the trials of a search, share it
def open_all(data_dir: str, settings: Settings) -> PathData:
    """All splits of a data set; raises as `open_source`."""
    if not settings.path:
        raise SourceError(
            f"config.dataset.name is {settings.name!r}, which has no path; allowed: "
            f"{settings.kind}:PATH"
        )
    fields = _FIELDS.get(settings.kind, FIELDS)
    if not fields.issuperset(settings.columns):
        columns = f"columns of {' and '.join(sorted(fields))} only" if fields else "no columns"
        raise SourceError(
            f"config.dataset.name is {settings.name!r}; {settings.kind}: has {columns}"
        )
    files = storage.tree(location(settings, data_dir))
    return KINDS[settings.kind].open_tree(files, settings)


def location(settings: Settings, data_dir: str) -> str:
    """The path or URL in a data set's name."""
    if storage.is_url(settings.path):
        return settings.path
    if storage.is_url(data_dir):
        return f"{data_dir.rstrip('/')}/{settings.path}"
    return os.path.join(os.path.expanduser(data_dir), os.path.expanduser(settings.path))


def directory(name: str, data_dir: str) -> str:
    """The directory of a data set; that of a file is the one that it is in."""
    path = location(Settings(name), data_dir)
    return path if os.path.isdir(path) or storage.is_url(path) else os.path.dirname(path) or "."


def _split(opened: PathData, split: str, name: str) -> Source:
    import tensorflow_datasets as tfds

    splits = [part.partition("[")[0].strip() for part in split.split("+")]
    records = {known: opened.splits[known]() for known in splits if known in opened.splits}
    infos = {
        known: tfds.core.SplitInfo(
            name=known, shard_lengths=[len(rows)], num_bytes=0, filename_template=None
        )
        for known, rows in records.items()
    }
    try:
        slices = Slice.of(split, infos)
    except Exception as error:  # TFDS raises many types
        raise _no_split(opened, split, name, "has no split") from error
    parts = [(records[part.split], part.rows) for part in slices]
    if not any(len(rows) for _, rows in parts):
        raise _no_split(opened, split, name, "has no records in split")
    return FileSource(split, parts, slices)


def _no_split(opened: PathData, split: str, name: str, problem: str) -> SourceError:
    allowed = ", ".join(f"{known} ({len(rows())} records)" for known, rows in opened.splits.items())
    shares = "or a share such as train[:90%]"
    if len(opened.splits) == 1:
        shares = (
            "or shares of it: --config.dataset.train_split='train[:90%]' "
            "--config.dataset.validation_split='train[90%:]'"
        )
    return SourceError(f"data set {name!r} {problem} {split!r}; allowed: {allowed}, {shares}")
