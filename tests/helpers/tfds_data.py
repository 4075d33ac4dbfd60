"""Small data sets for tests, written as TFDS lays them out, without TensorFlow."""

import json
import pathlib
from typing import Any

import cv2
import numpy as np
from array_record.python.array_record_module import ArrayRecordWriter
from tensorflow_datasets.proto import tf_example_generated_pb2

_FEATURES = "tensorflow_datasets.core.features."
TEXT = {"pythonClassName": f"{_FEATURES}text_feature.Text", "text": {}}


def image(*dimensions: int, encoding: str = "png") -> dict[str, Any]:
    """The feature of an image; no dimensions: of any size in color."""
    shape = {"dimensions": [str(d) for d in dimensions or (-1, -1, 3)]}
    described = {"dtype": "uint8", "encodingFormat": encoding, "shape": shape}
    return {"pythonClassName": f"{_FEATURES}image_feature.Image", "image": described}


def label(num_classes: object = 10) -> dict[str, Any]:
    """The feature of a label."""
    described = {"numClasses": str(num_classes)}
    return {
        "pythonClassName": f"{_FEATURES}class_label_feature.ClassLabel",
        "classLabel": described,
    }


def boxes(num_classes: int = 10) -> dict[str, Any]:
    """The feature `objects`: boxes with a label each."""
    box = {"bboxFormat": "REL_YXYX", "dtype": "float32", "shape": {"dimensions": ["4"]}}
    bbox = {"pythonClassName": f"{_FEATURES}bounding_boxes.BBoxFeature", "boundingBox": box}
    inner = {
        "pythonClassName": f"{_FEATURES}features_dict.FeaturesDict",
        "featuresDict": {"features": {"bbox": bbox, "label": label(num_classes)}},
    }
    return {
        "pythonClassName": f"{_FEATURES}sequence_feature.Sequence",
        "sequence": {"feature": inner, "length": "-1"},
    }


def write(
    root: pathlib.Path,
    name: str,
    features: dict[str, Any],
    splits: dict[str, list[Any]],
    shards: int = 1,
) -> pathlib.Path:
    """Writes a data set `name`, version 1.0.0, and returns its directory.

    Args:
        features: by name, as TEXT, `image(...)`, `label(...)` or `boxes(...)` give them.
        splits: the records of each, fields by name, or as bytes what a shard is to hold.
        shards: files a split.
    """
    path = root / name / "1.0.0"
    path.mkdir(parents=True)
    described = []
    for split, records in splits.items():
        serialized = [r if isinstance(r, bytes) else example(**r) for r in records]
        size = -(-len(serialized) // shards)
        parts = [serialized[i * size : (i + 1) * size] for i in range(shards)]
        for number, part in enumerate(parts):
            write_shard(path / f"{name}-{split}.array_record-{number:05}-of-{shards:05}", part)
        described.append(
            {
                "name": split,
                "filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
                "shardLengths": [str(len(part)) for part in parts],
                "numBytes": str(sum(map(len, serialized))),
            }
        )
    whole = {
        "pythonClassName": f"{_FEATURES}features_dict.FeaturesDict",
        "featuresDict": {"features": features},
    }
    info = {
        "name": name,
        "version": "1.0.0",
        "fileFormat": "array_record",
        "moduleName": "tensorflow_datasets.core.dataset_builders.adhoc_builder",
        "splits": described,
    }
    (path / "features.json").write_text(json.dumps(whole))
    (path / "dataset_info.json").write_text(json.dumps(info))
    return path


def write_text(root: pathlib.Path, name: str, splits: dict[str, list[bytes]]) -> pathlib.Path:
    """Writes a data set like `write`, whose records are texts."""
    records = {split: [{"text": text} for text in texts] for split, texts in splits.items()}
    return write(root, name, {"text": TEXT}, records)


def write_shard(path: pathlib.Path, records: list[bytes]) -> None:
    """An array_record file of these records."""
    writer = ArrayRecordWriter(str(path), "group_size:1")
    for record in records:
        writer.write(record)
    writer.close()


def example(**fields: Any) -> bytes:
    """A serialized tf.train.Example: bytes, whole numbers, or floats, or lists of those."""
    built = tf_example_generated_pb2.Example()
    for name, given in fields.items():
        values = given if isinstance(given, list) else [given]
        feature = built.features.feature[name]
        if any(isinstance(value, bytes) for value in values):
            feature.bytes_list.value.extend(values)
        elif any(isinstance(value, float) for value in values):
            feature.float_list.value.extend(values)
        else:
            feature.int64_list.value.extend(values)
    return built.SerializeToString()


def png(number: int, side: int = 8) -> bytes:
    """A gray picture of its own for each number."""
    pixels = np.random.default_rng(number).integers(0, 256, (side, side), np.uint8)
    return cv2.imencode(".png", pixels)[1].tobytes()


def pictures(numbers: range, side: int = 8) -> list[dict[str, Any]]:
    """Records of `image` and `label`."""
    return [{"image": png(number, side), "label": number % 10} for number in numbers]
