"""Data by path, against the libraries that define the formats: torchvision and `datasets`."""

import io

import numpy as np
import pytest
from PIL import Image

from data import splits
from data.sources import SourceError
from tests.helpers import path_data, tfds_data

pytestmark = pytest.mark.extras


def test_classes_and_files_are_torchvisions(tmp_path):
    folders = pytest.importorskip("torchvision.datasets")
    path_data.write_folder(tmp_path, {"train": range(60), "val": range(60, 80)})
    (tmp_path / "train" / "Zebra" / "deep").mkdir(parents=True)
    (tmp_path / "train" / "Zebra" / "deep" / "x.JPEG").write_bytes(tfds_data.png(7))
    (tmp_path / "val" / "Zebra").mkdir()
    (tmp_path / "val" / "Zebra" / "y.webp").write_bytes(tfds_data.png(8))
    for folder, split in (("train", "train"), ("val", "validation")):
        wanted = folders.ImageFolder(str(tmp_path / folder))
        source, info = splits.open_source(f"folder:{tmp_path}", split)
        given = {(f"{tmp_path}/{r['file_name']}", r["label"]) for r in source}
        assert given == set(wanted.samples)
        assert info.num_classes == len(wanted.classes)


@pytest.fixture
def datasets():
    return pytest.importorskip("datasets")


@pytest.mark.parametrize("form", ["saved", "one split", "parquet", "hub"])
def test_images_are_those_that_datasets_gives(form, datasets, tmp_path):
    features = datasets.Features(
        {"img": datasets.Image(), "kind": datasets.ClassLabel(names=["a", "b", "c"])}
    )

    def of(numbers):
        images = [Image.open(io.BytesIO(tfds_data.png(n))) for n in numbers]
        rows = {"img": images, "kind": [n % 3 for n in numbers]}
        return datasets.Dataset.from_dict(rows, features=features)

    whole = datasets.DatasetDict({"train": of(range(30)), "test": of(range(30, 40))})
    if form == "saved":
        whole.save_to_disk(tmp_path / "x", num_shards={"train": 3, "test": 1})
    elif form == "one split":
        whole["train"].save_to_disk(tmp_path / "x")
    elif form == "parquet":
        (tmp_path / "x").mkdir()
        whole["train"].to_parquet(tmp_path / "x" / "train.parquet", batch_size=7)
    else:
        for split, rows in whole.items():
            (tmp_path / "x" / "data").mkdir(parents=True, exist_ok=True)
            rows.to_parquet(tmp_path / "x" / "data" / f"{split}-00000-of-00001.parquet")
    source, info = splits.open_source(f"hf:{tmp_path}/x", "train")
    given = {(np.asarray(Image.open(io.BytesIO(r["image"]))).tobytes(), r["label"]) for r in source}
    assert given == {(np.asarray(r["img"]).tobytes(), r["kind"]) for r in whole["train"]}
    assert (info.num_classes, info.image_shape) == (3, (8, 8, 1))
    if form in ("saved", "hub"):
        assert len(splits.open_source(f"hf:{tmp_path}/x", "test")[0]) == 10


@pytest.mark.parametrize("sequence", ["List", "Sequence"])
def test_boxes_are_those_that_datasets_gives(sequence, datasets, tmp_path):
    box = datasets.Sequence(datasets.Value("float32"), length=4)
    fields = {"bbox": box, "category": datasets.ClassLabel(names=["x", "y"])}
    listed = datasets.List(fields) if sequence == "List" else datasets.Sequence(fields)
    features = datasets.Features({"image": datasets.Image(), "objects": listed})
    boxes, kinds = [[2.0, 1.0, 4.0, 2.0], [0.0, 0.0, 8.0, 8.0]], [1, 0]
    objects = {"bbox": boxes, "category": kinds}
    if sequence == "List":
        objects = [{"bbox": b, "category": k} for b, k in zip(boxes, kinds, strict=True)]
    image = Image.open(io.BytesIO(tfds_data.png(1)))
    rows = {
        "image": [image, image],
        "objects": [objects, [] if sequence == "List" else {"bbox": [], "category": []}],
    }
    datasets.Dataset.from_dict(rows, features=features).save_to_disk(tmp_path / "x")
    source, info = splits.open_source(f"hf:{tmp_path}/x", "train")
    assert (info.has_boxes, info.num_classes) == (True, 2)
    full, empty = sorted((r["objects"] for r in source), key=lambda o: -len(o["label"]))
    np.testing.assert_allclose(full["bbox"], [[1 / 8, 2 / 8, 3 / 8, 6 / 8], [0, 0, 1, 1]])
    assert (full["label"].tolist(), empty["bbox"].shape) == ([1, 0], (0, 4))


def test_boxes_whose_categories_are_words_are_refused(datasets, tmp_path):
    image, box = Image.open(io.BytesIO(tfds_data.png(1))), [2.0, 1.0, 4.0, 2.0]
    rows = {"image": [image], "objects": [[{"bbox": box, "category": "cat"}]]}
    features = datasets.Dataset.from_dict(rows).features | {"image": datasets.Image()}
    made = datasets.Dataset.from_dict(rows, features=datasets.Features(features))
    made.save_to_disk(tmp_path / "x")
    with pytest.raises(SourceError, match=r"'objects'.*'cat'"):
        splits.open_source(f"hf:{tmp_path}/x", "train")


def test_text_is_that_which_datasets_gives(datasets, tmp_path):
    lines = path_data.sentences(range(2500))  # several batches
    datasets.Dataset.from_dict({"text": lines}).save_to_disk(tmp_path / "x", num_shards=2)
    datasets.Dataset.from_dict({"text": lines}).to_json(tmp_path / "a.jsonl")
    for name in (f"hf:{tmp_path}/x", f"files:{tmp_path}/a.jsonl"):
        source, _ = splits.open_source(name, "train")
        texts = [r["text"] for r in source]
        assert [t if isinstance(t, str) else t.decode() for t in texts] == lines
