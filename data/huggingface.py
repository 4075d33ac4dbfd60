"""Data sets of Hugging Face `datasets`: saved with save_to_disk, or as Parquet files.

Both are read with pyarrow, which TFDS requires anyway. A saved data set is mapped into memory, so
that a record is read alone. Parquet has to decode hundreds of records to read one, so each file is
first rewritten as an Arrow file, once, in config.dataset.cache_dir or in .cache next to the data.
"""

import contextlib
import dataclasses
import functools
import io
import itertools
import json
import os
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from PIL import Image

from data import cache
from data.path_data import (
    PathData,
    Settings,
    by_split,
    damaged,
    image_properties,
    main_split,
    shuffled_order,
)
from data.sources import MAX_CLASSES, DatasetInfo, Records, SourceError, fingerprint, locate, reason
from data.storage import Tree
from runs import cli

SUFFIXES = (".arrow", ".parquet")

# What ends a complete Arrow stream.
_END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"

_BATCH_ROWS = 1000
_FOOTER_BYTES = 2**20

# Columns by their usual names, and other names that data sets on the Hub have.
_COLUMNS = {
    "image": ("image", "img"),
    "label": ("label", "labels"),
    "objects": ("objects",),
    "text": ("text",),
}
_OBJECT_COLUMNS = {
    "bbox": ("bbox",),
    "label": ("category", "label", "categories", "labels", "category_id"),
    "area": ("area",),
    "is_crowd": ("is_crowd", "iscrowd"),
}


class _ColumnError(SourceError):
    """A split lacks a usable column that its records need."""


@dataclasses.dataclass(frozen=True)
class _Layout:
    """What the columns of a table hold.

    Attributes:
        columns: the name of the column of each field.
        features: what `datasets` says of the columns.
        object_names: the given names of the fields of objects.
    """

    columns: dict[str, str]
    features: dict[str, Any]
    object_names: dict[str, str]


class _Rows(Records):
    """Rows of tables as records with the usual names.

    Args:
        shown: the names of the tables' files in messages.
        tables: the record batches of each file.
        layout: of all tables.
    """

    def __init__(self, shown: list[str], tables: list[list[Any]], layout: _Layout):
        self.layout = layout
        self._shown = shown
        self._batches = [batch for table in tables for batch in table]
        self._ends = list(itertools.accumulate(batch.num_rows for batch in self._batches))
        rows = [sum(batch.num_rows for batch in table) for table in tables]
        self._file_ends = list(itertools.accumulate(rows))
        self._order = range(len(self)) if "text" in layout.columns else shuffled_order(len(self))
        self._valid: set[int] = set()  # numbers of batches

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def read(self, numbers: Sequence[int]) -> list[dict[str, Any]]:
        return [self._record(self._order[number]) for number in numbers]

    def place(self, number: int) -> str:
        file, row = locate(self._file_ends, self._order[number])
        return f"{self._shown[file]}, row {row}"

    def _batch(self, place: int) -> Any:
        batch = self._batches[place]
        if place not in self._valid:  # wrong offsets could point outside of the file
            batch.validate(full=True)
            self._valid.add(place)
        return batch

    def _record(self, row: int) -> dict[str, Any]:
        place, row = locate(self._ends, row)
        batch = self._batch(place)
        columns = self.layout.columns
        record = {name: batch.column(given)[row].as_py() for name, given in columns.items()}
        if "image" in record:
            record["image"] = _encoded(record["image"])
        if isinstance(record.get("label"), bool):
            record["label"] = int(record["label"])  # as a copy of the data holds it
        if "objects" in record:
            record["objects"] = _objects(
                record["objects"], self.layout.object_names, record["image"]
            )
        return record


def open_tree(tree: Tree, settings: Settings) -> PathData:
    """A data set that `datasets` has written.

    Raises:
        SourceError: there is none, a file is damaged, or its columns do not fit a workload.
        RecordError: one of the first images cannot be read.
    """
    files = _files(tree)
    splits = {
        split: functools.cache(functools.partial(_rows, tree, names, settings))
        for split, names in files.items()
    }
    train = splits[main_split(splits)]()
    layout = train.layout
    used = tree.only([name for names in files.values() for name in names])
    info = DatasetInfo(settings.name, "datasets", used.fingerprint())
    if "image" not in layout.columns:
        return PathData(splits, info)
    shape, channels = image_properties(train)
    labeled = next((name for name in ("objects", "label") if name in layout.columns), None)
    classes, num_classes = None, None
    if labeled:
        classes = _class_names(layout.features.get(layout.columns[labeled]))
        num_classes = (
            len(classes)
            if classes
            else _num_classes(tree, files, labeled, layout.columns[labeled], settings)
        )
    info = dataclasses.replace(
        info,
        num_classes=num_classes,
        image_shape=shape,
        channels=channels,
        has_boxes=labeled == "objects",
    )
    return PathData(splits, info, classes)


def _files(tree: Tree) -> dict[str, list[str]]:
    """The names of the files of each split, in order."""
    try:
        if "dataset_dict.json" in tree.names:
            if splits := json.loads(tree.read(["dataset_dict.json"])[0])["splits"]:
                return {split: _saved(tree, f"{split}/") for split in splits}
            raise ValueError("dataset_dict.json names no splits")
        if "state.json" in tree.names:
            return {"train": _saved(tree, "")}
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise SourceError(
            f"the description of the data set in {tree.root} cannot be used ({reason(error)}); "
            "save the data set again"
        ) from error
    for suffix in SUFFIXES:
        if names := [name for name in tree.names if name.endswith(suffix)]:
            return by_split(names)
    raise SourceError(
        f"{tree.root} contains no Hugging Face data set; give the directory of "
        "`dataset.save_to_disk(...)`, or one of Parquet files"
    )


def _saved(tree: Tree, directory: str) -> list[str]:
    """The files of a split that was saved with save_to_disk."""
    state = json.loads(tree.read([f"{directory}state.json"])[0])
    names = [f"{directory}{file['filename']}" for file in state["_data_files"]]
    if not names:
        raise ValueError(f"{directory}state.json names no files")
    if missing := [name for name in names if name not in tree.names]:
        raise SourceError(f"{tree.path(missing[0])} is missing; restore it, or save the data again")
    return names


def _rows(tree: Tree, names: list[str], settings: Settings) -> _Rows:
    shown, tables, schema = [tree.path(name) for name in names], [], None
    for name in names:
        path = tree.local(name, settings.cache_dir)
        if name.endswith(".parquet"):
            path = _as_arrow(path, tree.path(name), tree.cache(settings.cache_dir))
            own_schema, batches = _mapped(path, os.fspath(path), cache.damaged)
        else:
            own_schema, batches = _mapped(path, tree.path(name))
        schema = schema or own_schema
        if not schema.equals(own_schema):
            raise SourceError(
                f"{tree.path(name)} has other columns than {shown[0]}; give the directory of one "
                "data set"
            )
        tables.append(batches)
    assert schema is not None
    return _Rows(shown, tables, _layout(tree.root, shown[0], schema, settings))


def _layout(root: str, shown: str, schema: Any, settings: Settings) -> _Layout:
    """The layout of the tables with a schema; `shown` is the name of a file of them."""
    features = _features(schema)
    columns = _columns(shown, schema, features, settings)
    if several := [name for name in columns.values() if schema.names.count(name) > 1]:
        raise _ColumnError(
            f"{shown} has several columns {several[0]!r}; rename all but one of them, or leave its "
            "split out"
        )
    if "image" in columns:
        _check_images(root, columns["image"], schema)
    objects = columns.get("objects")
    object_names = _object_names(schema.field(objects).type) if objects else {}
    if not {"bbox", "label"} <= set(object_names):
        columns.pop("objects", None)
    if "objects" in columns:
        _check_objects(root, columns["objects"], schema, object_names["label"])
    elif "label" in columns:
        _check_labels(root, columns["label"], schema)
    return _Layout(columns, features, object_names)


def _mapped(
    path: pathlib.Path, shown: str, described: Callable[[Any, Exception], SourceError] = damaged
) -> tuple[Any, list[Any]]:
    """The schema and the record batches of an Arrow file, mapped into memory; see `_damage`."""
    import pyarrow as pa

    with _damage(shown, described):
        with path.open("rb") as file:
            file.seek(-len(_END_OF_STREAM), os.SEEK_END)
            complete = file.read() == _END_OF_STREAM
        reader = pa.ipc.open_stream(pa.memory_map(os.fspath(path)))
        batches = list(reader)
        if not complete:
            raise ValueError("it is truncated")
    return reader.schema, batches


def _as_arrow(path: pathlib.Path, shown: str, directory: pathlib.Path) -> pathlib.Path:
    """An Arrow file with the rows of a Parquet file, which is made once."""
    import pyarrow as pa
    import pyarrow.parquet as pq
    from tqdm import tqdm

    def make(arrow: pathlib.Path) -> None:
        try:
            parquet = pq.ParquetFile(path, page_checksum_verification=True)
            schema, rows = parquet.schema_arrow, parquet.metadata.num_rows
            with (
                tqdm(total=rows, desc=f"rewriting {path.name} as Arrow", delay=1) as progress,
                pa.ipc.new_stream(os.fspath(arrow), schema) as writer,
            ):
                for batch in parquet.iter_batches(batch_size=_BATCH_ROWS):
                    writer.write_batch(batch)
                    progress.update(batch.num_rows)
        except (pa.ArrowException, OSError) as error:
            if cli.is_disk_full(error):
                raise
            raise damaged(shown, error) from error

    with path.open("rb") as file:  # the end holds a description of the content
        file.seek(max(0, path.stat().st_size - _FOOTER_BYTES))
        digest = fingerprint(str(path.stat().st_size).encode(), file.read())
    arrow = directory / f"{path.stem}-{digest}.arrow"
    if not arrow.exists():
        cache.make_file(arrow, make)
    return arrow


def _features(schema: Any) -> dict[str, Any]:
    """What `datasets` says of the columns; empty for a file that something else has written."""
    try:
        features = json.loads((schema.metadata or {})[b"huggingface"])["info"]["features"]
        return dict(features.items())
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}


def _columns(
    shown: str, schema: Any, features: dict[str, Any], settings: Settings
) -> dict[str, str]:
    """The names of the columns to read, by field; `shown` is the name of a file of the split."""
    columns = {
        field: name
        for field, names in _COLUMNS.items()
        for name in reversed(names)
        if name in schema.names
    }
    for field, kind in (("image", "Image"), ("label", "ClassLabel")):
        given = [name for name, feature in features.items() if _is_feature(feature, kind)]
        if len(given) == 1:
            columns.setdefault(field, given[0])
    columns |= settings.columns
    if "label" in settings.columns and "objects" not in settings.columns:
        columns.pop("objects", None)  # else their classes would be counted
    if missing := [name for name in columns.values() if name not in schema.names]:
        raise _ColumnError(
            f"{shown} has no column {missing[0]!r}, but {', '.join(schema.names)}; correct "
            f"config.dataset.name, {settings.name!r}"
        )
    if "image" in columns and not {"label", "objects"} & set(columns):
        raise _ColumnError(
            f"{shown} has no column label or objects, but {', '.join(schema.names)}; name one in "
            f"config.dataset.name, as in 'hf:{settings.path}?label=NAME', or leave its split out"
        )
    if "image" in columns:
        columns.pop("text", None)  # a caption
    elif "text" in columns:
        return {"text": columns["text"]}
    else:
        raise _ColumnError(
            f"{shown} has no column image or text, but {', '.join(schema.names)}; write "
            f"config.dataset.name='hf:{settings.path}?image=NAME&label=NAME' or ...?text=NAME"
        )
    return columns


def _check_images(root: str, column: str, schema: Any) -> None:
    """Raises SourceError if the type of a column shows that it cannot hold encoded images."""
    from pyarrow import types

    kind = schema.field(column).type
    allowed = (types.is_struct, types.is_binary, types.is_large_binary, types.is_binary_view)
    if not any(is_allowed(kind) for is_allowed in (*allowed, types.is_dictionary)):
        raise SourceError(
            f"column {column!r} of {root} is {kind}; allowed: encoded images, which "
            f"`dataset.cast_column({column!r}, datasets.Image())` makes of arrays or paths"
        )


def _check_labels(root: str, column: str, schema: Any) -> None:
    """Raises _ColumnError if the type of a column shows that its labels are not single numbers."""
    from pyarrow import types

    kind = schema.types[schema.names.index(column)]
    if types.is_nested(kind):
        raise _no_classes(column, root, f"is {kind}")


def _check_objects(root: str, column: str, schema: Any, label: str) -> None:
    """Raises _ColumnError if the type of a column shows that its objects are not in a list, or that
    their labels, which it calls `label`, are not numbers."""
    from pyarrow import types

    kind, listed = schema.field(column).type, False
    while types.is_list(kind) or types.is_large_list(kind):
        kind, listed = kind.value_type, True
    kind = kind.field(label).type
    if not listed and not (types.is_list(kind) or types.is_large_list(kind)):
        raise _ColumnError(
            f"column {column!r} of {root} has one object per image; allowed: lists of objects, "
            "which `dataset.map` makes of them"
        )
    kind = kind if listed else kind.value_type
    if not (types.is_integer(kind) or types.is_boolean(kind) or types.is_null(kind)):
        raise _no_classes(column, root, f"has a field {label!r} of {kind}", "map")


def _no_classes(column: str, root: str, problem: str, method: str = "") -> _ColumnError:
    method = method or f"class_encode_column({column!r})"
    return _ColumnError(
        f"column {column!r} of {root} {problem}; allowed: whole numbers from 0, which "
        f"`dataset.{method}` makes of text"
    )


def _is_feature(feature: Any, kind: str) -> bool:
    """Whether a feature is of this type; a list of features, as `datasets` writes them, is not."""
    return isinstance(feature, dict) and feature.get("_type") == kind


def _class_names(feature: Any) -> tuple[str, ...] | None:
    """The names of the classes in a feature, or within it."""
    if _is_feature(feature, "ClassLabel"):
        return tuple(feature.get("names") or ()) or None
    if isinstance(feature, dict | list):
        inner = feature if isinstance(feature, list) else feature.values()
        return next(filter(None, map(_class_names, inner)), None)
    return None


def _num_classes(
    tree: Tree, files: Mapping[str, list[str]], field: str, column: str, settings: Settings
) -> int:
    """The largest label of all splits + 1, for labels without names; `column` is that of the main
    split.

    Other splits may lack labels, as the Hub marks them: -1, no value, or no column.
    """
    main = main_split(files)
    labels: set[Any] = set()
    for split, names in files.items():
        missing = {None} if split == main else {None, -1}
        for name in names:
            with contextlib.suppress(_ColumnError):
                labels |= _labels(tree, name, field, settings) - missing
    wrong = [n for n in labels if not isinstance(n, int) or not 0 <= n < MAX_CLASSES]
    if wrong or not labels:
        problem = f"has labels such as {next(iter(wrong), None)!r}"
        raise _no_classes(column, tree.root, problem, "map" if field == "objects" else "")
    return max(labels) + 1


def _labels(tree: Tree, name: str, field: str, settings: Settings) -> set[Any]:
    """The distinct labels in a file, of which only their column is read.

    Raises:
        _ColumnError: the file lacks a column that records need.
        SourceError: it cannot be read.
    """
    import pyarrow.parquet as pq

    shown = tree.path(name)
    if name.endswith(".parquet"):
        with tree.open(name) as file, _damage(shown):
            parquet = pq.ParquetFile(file, page_checksum_verification=True)
            layout = _layout(tree.root, shown, parquet.schema_arrow, settings)
            columns = [layout.columns[field]] if field in layout.columns else []
            return _distinct(parquet.iter_batches(columns=columns), field, layout)
    schema, batches = _mapped(tree.local(name, settings.cache_dir), shown)
    layout = _layout(tree.root, shown, schema, settings)
    with _damage(shown):
        return _distinct(batches, field, layout)


def _distinct(batches: Iterable[Any], field: str, layout: _Layout) -> set[Any]:
    """The distinct labels in record batches."""
    labels: set[Any] = set()
    if field not in layout.columns:
        return labels
    for batch in batches:
        batch.validate(full=True)  # wrong offsets could point outside of the file
        values = batch.column(layout.columns[field])
        if field == "label":
            labels.update(values.unique().to_pylist())
            continue
        for value in values.to_pylist():
            labels.update(_lists(value, layout.object_names)["label"])
    return labels


@contextlib.contextmanager
def _damage(
    shown: str, described: Callable[[Any, Exception], SourceError] = damaged
) -> Iterator[None]:
    """Raises what goes wrong in a file as the error of a damaged one, which `described` makes."""
    try:
        yield
    except SourceError:
        raise
    except Exception as error:  # pyarrow raises many types
        raise described(shown, error) from error


def _encoded(image: Any) -> Any:
    """The bytes of an image, as `datasets` stores it or alone."""
    if not isinstance(image, dict):
        return image
    if image.get("bytes") is None and image.get("path"):
        raise ValueError(f"the image is not stored with the data, but in {image['path']}")
    return image.get("bytes")


def _object_names(column: Any) -> dict[str, str]:
    """The given names of the usual fields of objects, by the type of their column."""
    import pyarrow as pa

    while pa.types.is_list(column) or pa.types.is_large_list(column):
        column = column.value_type
    if not pa.types.is_struct(column):
        return {}
    given = [column.field(number).name for number in range(column.num_fields)]
    return {
        usual: next(name for name in names if name in given)
        for usual, names in _OBJECT_COLUMNS.items()
        if not set(names).isdisjoint(given)
    }


def _lists(objects: Any, names: dict[str, str]) -> dict[str, list[Any]]:
    """Lists by their usual names, from a dict of lists or a list of dicts."""
    if isinstance(objects, dict):
        return {usual: objects[given] or [] for usual, given in names.items()}
    return {usual: [item[given] for item in objects or ()] for usual, given in names.items()}


def _objects(given: Any, names: dict[str, str], image: bytes) -> dict[str, np.ndarray]:
    """The objects in an image with the features of TFDS's `coco/2017`, from COCO's own: boxes
    (x, y, width, height) in pixels."""
    lists = _lists(given, names)
    with Image.open(io.BytesIO(image)) as opened:
        width, height = opened.size
    boxes_Mx4 = np.asarray(lists["bbox"], np.float32).reshape(-1, 4)
    corners_Mx4 = np.concatenate([boxes_Mx4[:, :2], boxes_Mx4[:, :2] + boxes_Mx4[:, 2:]], 1)
    objects = {
        "bbox": corners_Mx4[:, [1, 0, 3, 2]] / np.array([height, width, height, width], np.float32),
        "label": np.asarray(lists["label"], np.int64),
    }
    dtypes = {"area": np.float32, "is_crowd": bool}
    nothing = [None] * len(boxes_Mx4)  # as numbers NaN, which is no area, and False
    return objects | {
        name: np.asarray(lists[name] or nothing, dtypes[name]) for name in dtypes if name in lists
    }
