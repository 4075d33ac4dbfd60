"""Small data sets for tests, laid out as users have them: folders, text files, .npz, Parquet."""

import json
import pathlib
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.helpers import tfds_data

CLASSES = ("cat", "dog", "owl")

# The text of a sentence, which differs for each number.
SENTENCE = "sentence {} is about {} things and their names"


def sentences(numbers: range) -> list[str]:
    return [SENTENCE.format(number, number * number) for number in numbers]


def write_folder(root: pathlib.Path, splits: dict[str, range]) -> pathlib.Path:
    """PNGs by split and class; the split '' has no folder of its own."""
    for split, numbers in splits.items():
        for number in numbers:
            path = root / split / CLASSES[number % 3] / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(tfds_data.png(number))
    return root


def write_npz(path: pathlib.Path, **arrays: Any) -> pathlib.Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **arrays)
    return path


def pixels(numbers: range) -> np.ndarray:
    """The images of `tfds_data.png`, uint8 [N, 8, 8]."""
    return np.stack([np.random.default_rng(n).integers(0, 256, (8, 8), np.uint8) for n in numbers])


IMAGE, LABEL = {"_type": "Image"}, {"_type": "ClassLabel", "names": list(CLASSES)}


def images_table(numbers: range, image: str = "image", **features: Any) -> pa.Table:
    """Images with labels as `datasets` stores them."""
    columns = {
        image: pa.array(
            [{"bytes": tfds_data.png(n), "path": None} for n in numbers],
            pa.struct({"bytes": pa.binary(), "path": pa.string()}),
        ),
        "label": pa.array([n % 3 for n in numbers], pa.int64()),
    }
    return described(pa.table(columns), {image: IMAGE, "label": LABEL} | features)


def described(table: pa.Table, features: dict[str, Any]) -> pa.Table:
    """The table with what `datasets` says of its columns."""
    described = json.dumps({"info": {"features": features}})
    return table.replace_schema_metadata({"huggingface": described})


def write_parquet(path: pathlib.Path, table: pa.Table, **options: Any) -> pathlib.Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, **options)
    return path
