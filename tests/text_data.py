"""Small text data sets for tests, written as TFDS lays them out, without TensorFlow."""

import json
import pathlib

from array_record.python.array_record_module import ArrayRecordWriter
from tensorflow_datasets.proto import tf_example_generated_pb2


def write_tfds(root: pathlib.Path, name: str, splits: dict[str, list[bytes]]) -> None:
    """A data set `name`, version 1.0.0, whose records have one feature `text`."""
    path = root / name / "1.0.0"
    path.mkdir(parents=True)
    described = []
    for split, texts in splits.items():
        records = [_example(text) for text in texts]
        file = path / f"{name}-{split}.array_record-00000-of-00001"
        writer = ArrayRecordWriter(str(file), "group_size:1")
        for record in records:
            writer.write(record)
        writer.close()
        described.append(
            {
                "name": split,
                "filepathTemplate": "{DATASET}-{SPLIT}.{FILEFORMAT}-{SHARD_X_OF_Y}",
                "shardLengths": [str(len(records))],
                "numBytes": str(sum(map(len, records))),
            }
        )
    features = "tensorflow_datasets.core.features."
    text = {"pythonClassName": f"{features}text_feature.Text", "text": {}}
    whole = {
        "pythonClassName": f"{features}features_dict.FeaturesDict",
        "featuresDict": {"features": {"text": text}},
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


def _example(text: bytes) -> bytes:
    example = tf_example_generated_pb2.Example()
    example.features.feature["text"].bytes_list.value.append(text)
    return example.SerializeToString()
