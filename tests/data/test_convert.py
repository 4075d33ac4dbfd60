"""`python -m data.convert`: data by path as TFDS array_record, the same record for record."""

import os

import jax
import numpy as np
import pyarrow as pa
import pytest

from data import convert, splits
from runs import cli
from tests.helpers import path_data, tfds_data
from tests.helpers.runs import mini
from training.experiment import make_experiment


def converted(source, directory, *flags):
    assert cli.guarded(convert.main, [source, f"{directory}/copy", *flags]) == cli.OK


@pytest.mark.parametrize("kind", ["folder", "npz"])
def test_training_on_the_copy_takes_the_same_batches(kind, tmp_path):
    if kind == "folder":
        own = path_data.write_folder(tmp_path / "own", {"": range(60)})
        (own / "cat" / "0.png").rename(own / "cat" / os.fsdecode(b"\xff.png"))
        name = f"folder:{own}"
    else:
        arrays = {"image": path_data.pixels(range(60)), "label": np.arange(60) % 3}
        name = f"npz:{path_data.write_npz(tmp_path / 'own.npz', **arrays)}"
    converted(name, tmp_path / "tfds")
    fields = {"dataset__train_split": "train[:90%]", "dataset__validation_split": "train[90%:]"}
    fields |= {"dataset__test_split": "", "batch_size": 16, "budget__fresh_examples": 128}
    own = make_experiment(mini(**fields, dataset__name=name))
    where = {"dataset__name": "copy", "dataset__data_dir": str(tmp_path / "tfds")}
    copy = make_experiment(mini(**fields | where))
    assert own.info.num_classes == copy.info.num_classes == 3
    assert own.info.image_shape == copy.info.image_shape == (8, 8, 1)
    for one, other in zip(own.batches, copy.batches, strict=True):
        jax.tree.map(np.testing.assert_array_equal, one.data, other.data)
    for one, other in zip(own.validation, copy.validation, strict=True):
        jax.tree.map(np.testing.assert_array_equal, one, other)


@pytest.mark.extras
def test_boxes_are_copied_as_they_are(tmp_path):
    pytest.importorskip("datasets")
    images = path_data.images_table(range(3)).column("image")
    boxes = [[[2.0, 1.0, 40.0, 2.0]], [], [[0.0, 0.0, 8.0, float("nan")], [1.0, 1.0, 2.0, 2.0]]]
    objects = [{"bbox": b, "category": [1] * len(b), "area": [9.0] * len(b)} for b in boxes]
    path_data.write_parquet(tmp_path / "a.parquet", pa.table({"image": images, "objects": objects}))
    converted(f"hf:{tmp_path}/a.parquet", tmp_path / "tfds")
    own, info = splits.open_source(f"hf:{tmp_path}/a.parquet", "train")
    copy, same = splits.open_source("copy", "train", str(tmp_path / "tfds"))
    assert (same.has_boxes, same.num_classes) == (info.has_boxes, info.num_classes) == (True, 2)
    for number in range(3):
        for field, values in own[number]["objects"].items():
            shape = values.shape
            np.testing.assert_array_equal(np.reshape(copy[number]["objects"][field], shape), values)


@pytest.mark.parametrize("text", ["sentences", "documents"])
def test_text_is_copied_by_line_or_by_file(text, tmp_path):
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "train.txt").write_bytes(b"one\n\ntwo\nthree")
    (tmp_path / "own" / "test.txt").write_bytes("vier \N{SNOWMAN}".encode())
    converted(f"files:{tmp_path}/own", tmp_path / "tfds", f"--text={text}")
    copy, _ = splits.open_source("copy", "train", str(tmp_path / "tfds"))
    lines, whole = [b"one", b"two", b"three"], [b"one\n\ntwo\nthree"]
    assert [record["text"] for record in copy] == (lines if text == "sentences" else whole)
    assert len(splits.open_source("copy", "test", str(tmp_path / "tfds"))[0]) == 1


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["folder:{}/nowhere", "{}/tfds/x"], "nowhere"),
        (["digits", "{}/tfds/x"], "SOURCE"),
        (["folder:{}/own", "{}/tfds/A b"], "A b"),
        (["folder:{}/own", "s3://bucket/tfds"], "s3://bucket/tfds"),
        (["folder:{}/own", "{}/taken"], "taken"),
        (["folder:{}/pointer", "{}/tfds/x"], "record 66 of split 'train'"),
        (["folder:{}/odd", "{}/tfds/x"], r"a\nb"),
        (["folder:{}/own"], "DIR"),
    ],
)
def test_wrong_arguments_are_one_sentence_and_leave_no_copy(arguments, names, tmp_path, capsys):
    path_data.write_folder(tmp_path / "own", {"": range(6)})
    pointer = path_data.write_folder(tmp_path / "pointer", {"": range(70)}) / "dog" / "22.png"
    pointer.write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    odd = path_data.write_folder(tmp_path / "odd", {"": range(6)})
    (odd / "cat").rename(odd / "a\nb")
    tfds_data.write_text(tmp_path, "taken", {"train": [b"a"]})
    words = [word.format(tmp_path) for word in arguments]
    assert cli.guarded(convert.main, words) == cli.WRONG_INPUT
    assert names in capsys.readouterr().err
    assert not list((tmp_path / "tfds").rglob("*.json"))
