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
import itertools
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from PIL import Image

from data.file_source import Records
from data.path_data import (
    PathData,
    by_split,
    check_classes,
    check_contents,
    image_properties,
    number_of_classes,
    shuffled_order,
)
from data.sources import DatasetInfo, SourceError, fingerprint, reading
from data.storage import Tree

# Fields of records, which may have other names in a data set.
FIELDS = ("image", "label", "objects", "text")
_OBJECT = ("bbox", "category", "area", "is_crowd", "iscrowd")  # of each object, as COCO names them


def open_tree(tree: Tree, name: str, named: dict[str, str], _: str) -> PathData:
    """A data set that `datasets` has written.

    Raises:
        SourceError: `datasets` is not installed or cannot read the files, or their columns do not
            fit a workload. Opening a split raises it for classes that `train` lacks.
        RecordError: one of the first images cannot be read.
    """
    files, notes = _files(tree)
    digests = {split: tree.fingerprint(names) for split, names in files.items()}
    table = functools.cache(lambda split: _Table(tree, files[split], digests[split], named))
    main = table("train" if "train" in files else next(iter(files)))
    hashed = fingerprint(json.dumps(digests).encode())
    info = DatasetInfo(name, "datasets", hashed, notes=notes)
    if "text" in main.columns:
        return PathData(tree, tuple(files), lambda split: table(split).records(), info)
    labels = set(range(len(main.classes))) or main.labels()

    def records(split: str) -> Records:
        opened = table(split)
        if main.classes and opened.classes not in ((), main.classes):
            listed = " and ".join(", ".join(t.classes[:9]) for t in (main, opened))
            raise SourceError(f"{opened.shown} numbers classes otherwise than train: {listed}")
        check_classes(opened.shown, labels, opened.labels())
        return opened.records()

    number, gaps = number_of_classes(labels)
    known = {"has_boxes": "objects" in main.columns, "notes": (*notes, *gaps)}
    known |= image_properties(main.records())
    info = dataclasses.replace(info, num_classes=number, **known)
    return PathData(tree, tuple(files), records, info)


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


class _Table:
    """A split.

    Attributes:
        shown: its name in messages.
        columns: the name of the column of each field.
        classes: the names of the classes; none if they have no names.
        rows: a datasets.Dataset that gives Arrow's tables.
    """

    def __init__(self, tree: Tree, names: list[str], digest: str, named: dict[str, str]):
        try:
            datasets = importlib.import_module("datasets")
        except ImportError as error:
            raise SourceError(
                "hf:PATH is read with a package that is not installed; pip install datasets"
            ) from error
        self.shown = tree.path(names[0]) + (" and following" if len(names) > 1 else "")
        paths = {tree.local(name): name for name in names}
        directory, is_parquet = next(iter(paths)).parent, names[0].endswith(".parquet")
        with reading(self.shown):
            if is_parquet:  # `datasets` fails on files without rows
                paths = {p: paths[p] for p in paths if pq.read_metadata(p).num_rows} or paths
                check_contents(tree, list(paths.values()))
                schema = pq.read_schema(next(iter(paths)))
                features = datasets.Features.from_arrow_schema(schema).to_dict()
            else:
                rows = datasets.load_from_disk(str(directory))
                features = rows.features.to_dict()
                state = json.loads((directory / "state.json").read_bytes())
                if any(state.get(key) for key in state if "indices" in key):
                    raise ValueError("rows of it were selected; save dataset.flatten_indices()")
            self.columns = _columns(self.shown, features, named)
            if (features.get(self.columns.get("image")) or {}).get("mode"):
                raise ValueError("it has images with Image(mode=...); convert them before saving")
            labeled = self.columns.get("objects") or self.columns.get("label")
            self.classes = _class_names(features.get(labeled))
            chosen = list(self.columns.values())
            if is_parquet:
                options = {"cache_dir": str(tree.cache() / digest), "columns": chosen}
                files = [glob.escape(str(path)) for path in paths]
                parts = [datasets.Dataset.from_parquet(file, **options) for file in files]
                rows = datasets.concatenate_datasets(parts)  # whose features must agree
        self.rows = rows.select_columns(chosen).with_format("arrow")

    def read(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        records = []
        for row in self.rows[list(rows)].to_pylist():
            record = {field: row[name] for field, name in self.columns.items()}
            if isinstance(image := record.get("image"), dict):
                record["image"] = image["bytes"]  # None if the files hold a path alone
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
            SourceError: the labels are no whole numbers, or the boxes are not in pixels.
        """
        (field,) = {"label", "objects"} & set(self.columns)
        with reading(f"column {self.columns[field]!r} of {self.shown}"):
            labels = self.rows[:][self.columns[field]].to_pylist()
            if field == "objects":
                objects = [one for given in labels for one in _each(given)]
                if max((x for one in objects for x in one["bbox"] or () if x), default=2) <= 1:
                    raise ValueError(
                        "no box is larger than a pixel, as if they were shares of the image; give "
                        "x, y, width, and height in pixels"
                    )
                labels = [one["category"] for one in objects]
            for label in labels:
                if not isinstance(label, int | None):
                    raise ValueError(
                        f"it holds {label!r}; allowed: whole numbers, the classes from 0, which "
                        "`dataset.class_encode_column` makes of text"
                    )
        return {label for label in labels if label not in (None, -1)}


def _columns(shown: str, features: dict[str, Any], named: dict[str, str]) -> dict[str, str]:
    """The column of each field: the one named, of its name, or the only one of its type."""
    columns = {field: field for field in FIELDS if field in features}
    for field, kind in (("image", "Image"), ("label", "ClassLabel")):
        typed = [name for name in features if kind == _type(features[name])]
        if len(typed) == 1:
            columns.setdefault(field, *typed)
    columns |= named
    if "label" in named and "objects" not in named:
        columns.pop("objects", None)  # else their classes would be counted
    allowed = ({"image", "objects"}, {"image", "label"}, {"text"})
    chosen = next((fields for fields in allowed if fields <= set(columns)), set())
    if not chosen or not set(columns.values()) <= set(features):
        raise SourceError(
            f"{shown} has the columns {', '.join(features)}, and {columns} are no image with a "
            "label or objects, and no text; name them: hf:PATH?image=NAME&label=NAME or ?text=NAME"
        )
    return {field: name for field, name in columns.items() if field in chosen}


def _type(feature: Any) -> str | None:
    return feature.get("_type") if isinstance(feature, dict) else None


def _class_names(feature: Any) -> tuple[str, ...]:
    """The names of the classes in what `datasets` says of a column, or of a part of it."""
    if _type(feature) == "ClassLabel":
        return tuple(feature["names"])
    parts = feature.values() if isinstance(feature, dict) else feature
    found = map(_class_names, parts if isinstance(feature, dict | list) else ())
    return next(filter(None, found), ())


def _each(objects: Any) -> list[dict[str, Any]]:
    """COCO's fields of each object, from a list of dicts or a dict of lists."""
    if isinstance(objects, dict):
        lists = {name: objects[name] for name in _OBJECT if objects.get(name) is not None}
        rows = itertools.zip_longest(*lists.values())
        objects = [dict(zip(lists, row, strict=True)) for row in rows]
    return [one or {} for one in objects or ()]


def _objects(given: Any, image: bytes) -> dict[str, np.ndarray]:
    """The objects in an image with the features of TFDS's `coco/2017`, from COCO's own: boxes
    (x, y, width, height) in pixels. An unknown area is NaN."""
    objects = _each(given)
    boxes, labels = ([one.get(name) for one in objects] for name in ("bbox", "category"))
    if None in labels or any(None in (box or [None]) for box in boxes):
        raise ValueError("one of its objects has null for its bbox or category")
    with Image.open(io.BytesIO(image)) as opened:
        width, height = opened.size
    boxes_Mx4 = np.asarray(boxes, np.float32).reshape(-1, 4)
    corners_Mx4 = np.concatenate([boxes_Mx4[:, :2], boxes_Mx4[:, :2] + boxes_Mx4[:, 2:]], 1)
    return {
        "bbox": corners_Mx4[:, [1, 0, 3, 2]] / np.array([height, width, height, width], np.float32),
        "label": np.asarray(labels, np.int64),
        "area": np.asarray([one.get("area") for one in objects], np.float32),
        "is_crowd": np.array([bool(o.get("is_crowd") or o.get("iscrowd")) for o in objects], bool),
    }
