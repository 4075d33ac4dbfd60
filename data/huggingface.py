"""Data sets of Hugging Face `datasets`: saved with save_to_disk, or as Parquet files.

The package `datasets` reads both and maps them into memory; this module only says which columns
hold images, labels, objects, or text. Parquet has to decode hundreds of records to read one, so
`datasets` first rewrites it as Arrow files, once, in config.dataset.cache_dir or in .cache next to
the data.
"""

import dataclasses
import functools
import glob
import importlib
import io
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from data.file_source import Records
from data.path_data import (
    FIELDS,
    PathData,
    Settings,
    by_split,
    check_classes,
    check_contents,
    image_properties,
    number_of_classes,
    shuffled_order,
)
from data.sources import DatasetInfo, SourceError, fingerprint, reason
from data.storage import Tree


@dataclasses.dataclass(frozen=True)
class _Table:
    """A split.

    Attributes:
        shown: its name in messages.
        rows: a datasets.Dataset that gives Arrow's tables.
        columns: the name of the column of each field.
        classes: the names of the classes, if they have names.
    """

    shown: str
    rows: Any
    columns: dict[str, str]
    classes: tuple[str, ...] | None

    def read(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        records = []
        for row in self.rows[list(rows)].to_pylist():
            record = {field: row[name] for field, name in self.columns.items()}
            if isinstance(image := record.get("image"), dict):
                if image["bytes"] is None:
                    raise ValueError(
                        f"its image has no bytes, but the path {image['path']!r}; write the data "
                        "with save_to_disk, which stores the bytes"
                    )
                record["image"] = image["bytes"]
            if "objects" in record:
                record["objects"] = _objects(record["objects"], record["image"])
            records.append(record)
        return records

    def records(self) -> Records:
        number = len(self.rows)
        order = range(number) if "text" in self.columns else shuffled_order(number)
        return Records(order, self.read, lambda row: f"{self.shown}, row {row}")

    def labels(self) -> set[int]:
        """The labels that occur; a test split may have none, as null or -1.

        Raises:
            SourceError: the boxes are not in pixels.
        """
        (field,) = {"label", "objects"} & set(self.columns)
        values = self.rows[:][self.columns[field]].to_pylist()
        if field == "objects":
            numbers = [x for value in values for box in _lists(value)["bbox"] for x in box or ()]
            if max(filter(None, numbers), default=2) <= 1:
                raise SourceError(
                    f"no box of {self.shown} is larger than a pixel, as if they were shares of the "
                    "image; give x, y, width, and height in pixels"
                )
            values = [label for value in values for label in _lists(value)["category"]]
        return {label for label in values if label not in (None, -1)}


def open_tree(tree: Tree, settings: Settings) -> PathData:
    """A data set that `datasets` has written.

    Raises:
        SourceError: `datasets` is not installed or cannot read the files, or their columns do not
            fit a workload. Opening a split raises it for classes that `train` lacks.
        RecordError: one of the first images cannot be read.
    """
    files, notes = _files(tree)
    digests = {split: tree.fingerprint(names) for split, names in files.items()}
    table = functools.cache(lambda split: _table(tree, files[split], digests[split], settings))
    main = table("train" if "train" in files else next(iter(files)))
    hashed = fingerprint(json.dumps(digests).encode())
    info = DatasetInfo(settings.name, "datasets", hashed, notes=notes)
    if "image" not in main.columns:
        return PathData(tuple(files), lambda split: table(split).records(), info)
    labels = set(range(len(main.classes))) if main.classes else main.labels()

    def records(split: str) -> Records:
        opened = table(split)
        _check_same_classes(opened.shown, opened.classes, main.classes)
        check_classes(opened.shown, labels, opened.labels())
        return opened.records()

    properties = image_properties(main.records())
    number, gaps = number_of_classes(labels)
    known = {"has_boxes": "objects" in main.columns, "notes": (*notes, *gaps)}
    info = dataclasses.replace(info, num_classes=number, **known, **properties)
    return PathData(tuple(files), records, info, main.classes)


def _files(tree: Tree) -> tuple[dict[str, list[str]], tuple[str, ...]]:
    """The names of the files of each split: all in the directory of a saved one, or Parquet; and
    notes on missing ones."""
    if "dataset_dict.json" in tree.names:
        splits = json.loads(tree.read(["dataset_dict.json"])[0])["splits"]
        return {split: [n for n in tree.names if n.startswith(f"{split}/")] for split in splits}, ()
    if "state.json" in tree.names:
        return {"train": [n for n in tree.names if "/" not in n]}, ()
    if names := [name for name in tree.names if name.endswith(".parquet")]:
        return by_split(tree.root, names)
    raise SourceError(f"{tree.root} has no Parquet files, nor what dataset.save_to_disk writes")


def _table(tree: Tree, names: list[str], digest: str, settings: Settings) -> _Table:
    try:
        datasets = importlib.import_module("datasets")
    except ImportError as error:
        raise SourceError(
            "hf:PATH is read with a package that is not installed; pip install datasets"
        ) from error
    shown = tree.path(names[0]) if len(names) == 1 else f"{tree.path(names[0])} and following"
    paths, saved = [tree.local(name) for name in names], None
    try:
        if names[0].endswith(".parquet"):
            pairs = zip(names, paths, strict=True)  # `datasets` fails on files without rows
            filled = {name: path for name, path in pairs if pq.read_metadata(path).num_rows}
            names, paths = list(filled or names), list(filled.values()) or paths
            check_contents(tree, names)
            schemas = [pq.read_schema(path) for path in paths]
        else:
            saved = datasets.load_from_disk(str(paths[0].parent))
            schemas = [saved.features.arrow_schema]
        described = [_described(schema) for schema in schemas]
        columns = _columns(shown, schemas, described, settings)
        chosen = list(columns.values())
        if saved is not None:
            state = json.loads((paths[0].parent / "state.json").read_bytes())
            if any(state.get(key) for key in state if "indices" in key):
                raise ValueError("rows of it were selected; save dataset.flatten_indices()")
            rows = saved.select_columns(chosen)
        else:
            rows = datasets.Dataset.from_parquet(
                [glob.escape(str(path)) for path in paths],
                cache_dir=str(tree.cache() / digest),
                columns=chosen,
                features=datasets.Features.from_arrow_schema(_common(schemas, chosen)),
            )
    except SourceError:
        raise
    except Exception as error:  # pyarrow and datasets raise many types
        raise SourceError(f"{shown} cannot be read: {reason(error)}") from error
    if any((each.get(columns.get("image", "")) or {}).get("mode") for each in described):
        raise SourceError(
            f"{shown} has images with Image(mode=...); convert them before they are saved"
        )
    labeled = columns.get("objects") or columns.get("label", "")
    named = [_class_names(features.get(labeled)) for features in described]
    wanted = next(filter(None, named), None)
    for name, classes in zip(names, named, strict=False):
        _check_same_classes(tree.path(name), classes, wanted)
    return _Table(shown, rows.with_format("arrow"), columns, wanted)


def _described(schema: pa.Schema) -> dict[str, Any]:
    """What `datasets` says of each column, as in its Features.to_dict()."""
    described = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
    return (described.get("info") or {}).get("features") or {}


def _columns(
    shown: str, schemas: list[pa.Schema], described: list[dict[str, Any]], settings: Settings
) -> dict[str, str]:
    """The column of each field: the one given, of its name, or the only one of its type."""
    types = {field.name: field.type for schema in reversed(schemas) for field in schema}
    features = {name: feature for each in reversed(described) for name, feature in each.items()}
    columns = {field: field for field in FIELDS if field in types}
    for field, kind in (("image", "Image"), ("label", "ClassLabel")):
        typed = [name for name in types if features.get(name, {}).get("_type") == kind]
        if len(typed) == 1:
            columns.setdefault(field, typed[0])
    columns |= settings.columns
    if "label" in settings.columns and "objects" not in settings.columns:
        columns.pop("objects", None)  # else their classes would be counted
    if not any(_holds_boxes(schema, columns.get("objects")) for schema in schemas):
        columns.pop("objects", None)
    allowed = ({"image", "objects"}, {"image", "label"}, {"text"})
    chosen = next((fields for fields in allowed if fields <= set(columns)), set())
    if not chosen or not set(columns.values()) <= set(types):
        raise SourceError(
            f"{shown} has the columns {', '.join(types)}, of which {settings.name!r} names no "
            "image with a label or objects, and no text; name them, as in "
            f"'hf:{settings.path}?image=NAME&label=NAME' or 'hf:{settings.path}?text=NAME'"
        )
    kind = types.get(columns.get("label", ""))
    if "label" in chosen and not (pa.types.is_integer(kind) or pa.types.is_boolean(kind)):
        raise SourceError(
            f"column {columns['label']!r} of {shown} holds no whole numbers, the classes from 0, "
            "which `dataset.class_encode_column` makes of text"
        )
    return {field: name for field, name in columns.items() if field in chosen}


def _holds_boxes(schema: pa.Schema, column: str | None) -> bool:
    """Whether a column has a list of structs with COCO's fields, or a struct of lists."""
    kind = schema.field(column).type if column in schema.names else pa.null()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        kind = kind.value_type
    return pa.types.is_struct(kind) and {"bbox", "category"} <= {field.name for field in kind}


def _common(schemas: list[pa.Schema], columns: list[str]) -> pa.Schema:
    """The types of columns that all files fit: the widest, or the only one that is not null."""
    chosen = [
        pa.schema([schema.field(name).remove_metadata() for name in columns]) for schema in schemas
    ]
    return pa.unify_schemas(chosen, promote_options="permissive")


def _class_names(feature: Any) -> tuple[str, ...] | None:
    """The names of the classes in what `datasets` says of a column, or of a part of it."""
    if isinstance(feature, dict) and feature.get("_type") == "ClassLabel":
        return tuple(feature["names"])
    parts = feature.values() if isinstance(feature, dict) else feature
    found = map(_class_names, parts if isinstance(feature, dict | list) else ())
    return next(filter(None, found), None)


def _check_same_classes(
    shown: str, classes: tuple[str, ...] | None, wanted: tuple[str, ...] | None
) -> None:
    """Raises SourceError if both have names that differ, or that are in another order."""
    if classes and wanted and classes != wanted:
        raise SourceError(
            f"{shown} numbers the classes {', '.join(classes[:9])}, and other files of the data "
            f"set {', '.join(wanted[:9])}; write it anew with their Features"
        )


def _lists(objects: Any) -> dict[str, list[Any]]:
    """COCO's fields of each object, None if unknown, from a dict of lists or a list of dicts."""
    names = ("bbox", "category", "area", "is_crowd", "iscrowd")
    if not isinstance(objects, dict):
        lists = {name: [item.get(name) for item in objects or ()] for name in names}
    else:
        unknown = [None] * len(objects["bbox"] or ())
        lists = {name: objects.get(name) or unknown for name in names}
    crowds = zip(lists["is_crowd"], lists.pop("iscrowd"), strict=True)  # COCO's own name
    return lists | {"is_crowd": [one or other for one, other in crowds]}


def _objects(given: Any, image: bytes) -> dict[str, np.ndarray]:
    """The objects in an image with the features of TFDS's `coco/2017`, from COCO's own: boxes
    (x, y, width, height) in pixels. An unknown area is NaN."""
    lists = _lists(given)
    if None in lists["category"] or any(None in (box or [None]) for box in lists["bbox"]):
        raise ValueError("one of its objects has null for its bbox or category")
    with Image.open(io.BytesIO(image)) as opened:
        width, height = opened.size
    boxes_Mx4 = np.asarray(lists["bbox"], np.float32).reshape(-1, 4)
    corners_Mx4 = np.concatenate([boxes_Mx4[:, :2], boxes_Mx4[:, :2] + boxes_Mx4[:, 2:]], 1)
    return {
        "bbox": corners_Mx4[:, [1, 0, 3, 2]] / np.array([height, width, height, width], np.float32),
        "label": np.asarray(lists["category"], np.int64),
        "area": np.asarray(lists["area"], np.float32),
        "is_crowd": np.asarray(lists["is_crowd"], bool),
    }
