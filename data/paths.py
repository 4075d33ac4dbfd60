"""Own data: config.dataset.name=KIND:PATH. `KINDS` is the place to add a kind.

    folder:PATH   images in a folder per class
    files:PATH    text files, JSON Lines
    npz:PATH      arrays of images and labels
    hf:PATH       data sets of Hugging Face: save_to_disk, Parquet

PATH is relative to config.dataset.data_dir, or to the working directory; it may be s3://BUCKET/...
or gs://BUCKET/... Splits are in TFDS's notation, which also reads it here.

Data without a split `validation` has the splits `kept` and `held_out`, too: a tenth of the records
of `train` is held out, by a hash of each record, so that none changes sides when others are added.
"""

import dataclasses
import functools
import os
import urllib.parse
from types import SimpleNamespace
from typing import Any

from data import folder, huggingface, npz, storage, text_files
from data.file_source import FileSource, Records, Slice
from data.path_data import PathData
from data.sources import DatasetInfo, Source, SourceError, in_share

# How each kind of configs.base.OWN_DATA is opened, and the fields whose columns its name may give.
KINDS = {
    "folder": (folder.open_tree, ()),
    "files": (text_files.open_tree, ("text",)),
    "npz": (npz.open_tree, ("image", "label")),
    "hf": (huggingface.open_tree, huggingface.FIELDS),
}

KEPT, HELD_OUT = "kept", "held_out"
_HELD_OUT_SHARE = 0.1


def open_source(dataset: Any, split: str) -> tuple[Source, DatasetInfo]:
    """The records of a split of `dataset` (config.dataset), and what is known of the data set.

    Raises:
        SourceError: there is no such data set or split, or it cannot be used.
        RecordError: one of the first images cannot be read.
    """
    data = open_all(dataset)
    named = {part.partition("[")[0].strip() for part in split.split("+")}
    records = {name: data.open(name) for name in data.splits if name in named}
    size = {name: len(rows) for name, rows in records.items()}
    try:
        slices = Slice.of(
            split, {k: SimpleNamespace(num_examples=n, shard_lengths=[n]) for k, n in size.items()}
        )
    except Exception:  # TFDS raises many types
        slices = []
    if any(part.rows for part in slices):
        parts = [records[part.split].at(part.rows) for part in slices]
        return FileSource(split, parts, slices), data.info
    allowed = ", ".join(f"{name} ({len(data.open(name))} records)" for name in data.splits)
    raise SourceError(
        f"data set {dataset.name!r} has no records in split {split!r}; allowed: {allowed}, or a "
        "share such as train[:90%]"
    )


def open_all(dataset: Any) -> PathData:
    """All splits of `dataset` (config.dataset); raises as `open_source`."""
    where = dataset.name, dataset.data_dir, dataset.cache_dir, dataset.text
    data, stamp = opened(*where)
    if data.tree.stamp() != stamp:  # written since
        opened.cache_clear()
        data, _ = opened(*where)
    return data


@functools.lru_cache(maxsize=4)  # both splits of a run, and the trials of a search, share it
def opened(name: str, data_dir: str, cache_dir: str, text: str) -> tuple[PathData, list[int]]:
    """A data set, and the stamp of its files when it was opened."""
    kind, _, place = name.partition(":")
    path, question, query = place.partition("?")
    open_tree, fields = KINDS[kind]
    columns = dict(urllib.parse.parse_qsl(query))
    if not path or (question and not columns) or set(columns) - set(fields):
        raise SourceError(
            f"config.dataset.name is {name!r}; allowed: {kind}:PATH, or "
            f"{kind}:PATH?FIELD=COLUMN&... with the fields {', '.join(fields) or '(none)'}"
        )
    if storage.is_url(data_dir) and not storage.is_url(path):
        path = f"{data_dir.rstrip('/')}/{path}"
    elif not storage.is_url(path):
        path = os.path.join(os.path.expanduser(data_dir), os.path.expanduser(path))
    tree = storage.tree(path, cache_dir)
    stamp, data = tree.stamp(), open_tree(tree, name, columns, text)

    @functools.cache
    def open_split(split: str) -> Records:
        if split not in (KEPT, HELD_OUT):
            return data.open(split)
        whole, held_out = open_split(data.main), split == HELD_OUT
        rows = [r for r in whole.order if in_share(_HELD_OUT_SHARE, whole.key(r)) == held_out]
        return dataclasses.replace(whole, order=rows)

    more = () if "validation" in data.splits else (KEPT, HELD_OUT)
    return dataclasses.replace(data, splits=(*data.splits, *more), open=open_split), stamp
