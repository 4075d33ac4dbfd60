"""Data sets of Hugging Face `datasets`: saved with save_to_disk, or as Parquet files.

The package `datasets` reads both and maps them into memory; this module only says which columns
hold images, labels, objects, or text. Parquet has to decode hundreds of records to read one, so
`datasets` first rewrites it as Arrow files, once, in config.dataset.cache_dir or in .cache next to
the data.
"""

import dataclasses
import functools
import importlib
import io
import json
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from PIL import Image

from data.path_data import (
    FIELDS,
    PathData,
    Settings,
    by_split,
    image_properties,
    main_split,
    shuffled_order,
)
from data.sources import DatasetInfo, Records, SourceError, reason
from data.storage import Tree, is_url


@dataclasses.dataclass(frozen=True)
class _Table:
    """A split.

    Attributes:
        shown: its name in messages.
        rows: a datasets.Dataset.
        columns: the name of the column of each field.
    """

    shown: str
    rows: Any
    columns: dict[str, str]

    def read(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        records = []
        for row in self.rows.__getitems__(list(rows)):
            record = {field: row[name] for field, name in self.columns.items()}
            if isinstance(record.get("image"), dict):
                record["image"] = record["image"]["bytes"]
            if "objects" in record:
                record["objects"] = _objects(record["objects"], record["image"])
            records.append(record)
        return records

    def records(self) -> Records:
        number = len(self.rows)
        order = range(number) if "text" in self.columns else shuffled_order(number)
        return Records(order, self.read, lambda row: f"{self.shown}, row {row}")


def open_tree(tree: Tree, settings: Settings) -> PathData:
    """A data set that `datasets` has written.

    Raises:
        SourceError: `datasets` is not installed or cannot read the files, or their columns do not
            fit a workload.
        RecordError: one of the first images cannot be read.
    """
    files = _files(tree)
    tables = {
        split: functools.cache(functools.partial(_table, tree, names, settings))
        for split, names in files.items()
    }
    splits = {split: lambda table=table: table().records() for split, table in tables.items()}
    main = tables[main_split(tables)]()
    used = [name for names in files.values() for name in names]
    info = DatasetInfo(settings.name, "datasets", tree.fingerprint(used))
    if "image" not in main.columns:
        return PathData(splits, info)
    has_boxes = "objects" in main.columns
    labeled = "objects" if has_boxes else "label"
    classes = _class_names(main.rows.features[main.columns[labeled]])
    number = len(classes or ()) or 1 + max(_last_label(rows, labeled) for rows in tables.values())
    properties = image_properties(main.records())
    info = dataclasses.replace(info, num_classes=number, has_boxes=has_boxes, **properties)
    return PathData(splits, info, classes)


def _library() -> Any:
    """The module `datasets`; raises SourceError if it is not installed."""
    try:
        return importlib.import_module("datasets")
    except ImportError as error:
        raise SourceError(
            "hf:PATH is read with a package that is not installed; pip install datasets"
        ) from error


def _files(tree: Tree) -> dict[str, list[str]]:
    """The names of the files of each split: all in the directory of a saved one, or Parquet."""
    if "dataset_dict.json" in tree.names:
        splits = json.loads(tree.read(["dataset_dict.json"])[0])["splits"]
        return {split: [n for n in tree.names if n.startswith(f"{split}/")] for split in splits}
    if "state.json" in tree.names:
        return {"train": [n for n in tree.names if "/" not in n]}
    if names := [name for name in tree.names if name.endswith(".parquet")]:
        return by_split(names)
    raise SourceError(f"{tree.root} has no Parquet files, nor what dataset.save_to_disk writes")


def _table(tree: Tree, names: list[str], settings: Settings) -> _Table:
    datasets = _library()
    paths = [tree.local(name, settings.cache_dir) for name in names]
    try:
        if names[0].endswith(".parquet"):
            beside = tree.copies(settings.cache_dir) if is_url(tree.root) else tree.root
            cache = settings.cache_dir or pathlib.Path(beside, ".cache")
            rows = datasets.Dataset.from_parquet(list(map(str, paths)), cache_dir=str(cache))
        else:
            rows = datasets.load_from_disk(str(paths[0].parent))
    except Exception as error:  # pyarrow and datasets raise many types
        raise SourceError(f"{tree.path(names[0])} cannot be read: {reason(error)}") from error
    shown = tree.path(names[0]) if len(names) == 1 else f"{tree.path(names[0])} and following"
    columns = _columns(shown, rows.features, settings)
    rows = rows.select_columns(list(columns.values()))
    for name, feature in rows.features.items():  # the workload decodes images
        if isinstance(feature, datasets.Image):
            rows = rows.cast_column(name, datasets.Image(decode=False))
    return _Table(shown, rows, columns)


def _columns(shown: str, features: Any, settings: Settings) -> dict[str, str]:
    """The column of each field: the one given, of its name, or the only one of its type."""
    datasets = _library()
    columns = {field: field for field in FIELDS if field in features}
    for field, kind in (("image", datasets.Image), ("label", datasets.ClassLabel)):
        typed = [name for name, feature in features.items() if isinstance(feature, kind)]
        if len(typed) == 1:
            columns.setdefault(field, typed[0])
    columns |= settings.columns
    if "label" in settings.columns and "objects" not in settings.columns:
        columns.pop("objects", None)  # else their classes would be counted
    if not {"bbox", "category"} <= _fields(features.get(columns.get("objects"))):
        columns.pop("objects", None)
    allowed = ({"image", "objects"}, {"image", "label"}, {"text"})
    chosen = next((fields for fields in allowed if fields <= set(columns)), set())
    if not chosen or not set(columns.values()) <= set(features):
        raise SourceError(
            f"{shown} has the columns {', '.join(features)}, of which {settings.name!r} names no "
            "image with a label or objects, and no text; name them, as in "
            f"'hf:{settings.path}?image=NAME&label=NAME' or 'hf:{settings.path}?text=NAME'"
        )
    kind = str(getattr(features.get(columns.get("label")), "dtype", ""))
    if "label" in chosen and not kind.startswith(("int", "uint", "bool")):
        raise SourceError(
            f"column {columns['label']!r} of {shown} holds no whole numbers, the classes from 0, "
            "which `dataset.class_encode_column` makes of text"
        )
    return {field: name for field, name in columns.items() if field in chosen}


def _fields(feature: Any) -> set[str]:
    """The fields of each object, by the feature of a list of them."""
    inner = getattr(feature, "feature", feature)
    return set(inner) if isinstance(inner, dict) else set()


def _class_names(feature: Any) -> tuple[str, ...] | None:
    """The names of the classes in a feature, or within it."""
    if names := getattr(feature, "names", None):
        return tuple(names)
    inner = feature.values() if isinstance(feature, dict) else [getattr(feature, "feature", None)]
    return next(filter(None, map(_class_names, filter(None, inner))), None)


def _last_label(table: Callable[[], _Table], field: str) -> int:
    """The largest label of a split in its column `field`, label or objects; -1 without labels."""
    try:
        opened = table()
    except SourceError:  # such as a test split that has no labels
        return -1
    values = opened.rows[opened.columns[field]]
    if field == "objects":
        values = [label for value in values for label in _lists(value)["category"]]
    return max((value for value in values if value is not None), default=-1)


def _lists(objects: Any) -> dict[str, list[Any]]:
    """COCO's fields of each object, None if unknown, from a dict of lists or a list of dicts."""
    names = ("bbox", "category", "area", "is_crowd")
    if not isinstance(objects, dict):
        return {name: [item.get(name) for item in objects or ()] for name in names}
    return {name: objects.get(name) or [None] * len(objects["bbox"]) for name in names}


def _objects(given: Any, image: bytes) -> dict[str, np.ndarray]:
    """The objects in an image with the features of TFDS's `coco/2017`, from COCO's own: boxes
    (x, y, width, height) in pixels. An unknown area is NaN."""
    lists = _lists(given)
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
