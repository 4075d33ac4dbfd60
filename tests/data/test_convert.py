"""`python -m data.convert`: data by path as TFDS array_record, the same record for record."""

import shlex

import jax
import numpy as np
import pyarrow as pa
import pytest

from data import convert, splits
from data.path_data import shuffled_order
from data.sources import SourceError
from runs import cli
from tests.helpers import path_data, tfds_data
from tests.helpers.runs import mini
from training.experiment import make_experiment


def converted(source, directory, *flags):
    """Converts in this process; what it prints at the end is the next command."""
    assert cli.guarded(convert.main, [source, str(directory), "--name=copy", *flags]) == cli.OK


@pytest.mark.parametrize("kind", ["folder", "npz"])
def test_training_on_the_copy_takes_the_same_batches(kind, tmp_path, capsys):
    if kind == "folder":
        name = f"folder:{path_data.write_folder(tmp_path / 'own', {'': range(60)})}"
    else:
        arrays = {"image": path_data.pixels(range(60)), "label": np.arange(60) % 3}
        name = f"npz:{path_data.write_npz(tmp_path / 'own.npz', **arrays)}"
    converted(name, tmp_path / "tfds")
    *_, command = capsys.readouterr().out.strip().splitlines()
    words = shlex.split(command)
    assert words[:3] == ["python", "train.py", "--config=configs/cifar10.py"]
    given = dict(word.removeprefix("--config.dataset.").split("=", 1) for word in words[3:7])
    shares = {"train_split": "train[:90%]", "validation_split": "train[90%:]"}
    assert given == {"name": "copy", "data_dir": str(tmp_path / "tfds")} | shares
    fields = {f"dataset__{field}": value for field, value in shares.items()} | {"batch_size": 16}
    fields["budget__fresh_examples"] = 128
    own = make_experiment(mini(**fields, dataset__name=name))
    given = {f"dataset__{field}": value for field, value in given.items()}
    copy = make_experiment(mini(**fields | given))
    assert own.info.num_classes == copy.info.num_classes == 3
    assert own.info.image_shape == copy.info.image_shape == (8, 8, 1)
    for one, other in zip(own.batches, copy.batches, strict=True):
        jax.tree.map(np.testing.assert_array_equal, one.data, other.data)
    for one, other in zip(own.validation, copy.validation, strict=True):
        jax.tree.map(np.testing.assert_array_equal, one, other)


def test_boxes_are_copied_as_they_are(tmp_path):
    images = path_data.images_table(range(3)).column("image")
    boxes = [[[2.0, 1.0, 40.0, 2.0]], [], [[0.0, 0.0, 8.0, float("nan")], [1.0, 1.0, 2.0, 2.0]]]
    objects = [{"bbox": b, "category": [1] * len(b), "area": [9.0] * len(b)} for b in boxes]
    table = pa.table({"image": images, "objects": objects, "label": [0, 1, 2]})
    path_data.save_to_disk(tmp_path / "own", {"train": table})
    converted(f"hf:{tmp_path}/own", tmp_path / "tfds")
    own, info = splits.open_source(f"hf:{tmp_path}/own", "train")
    copy, same = splits.open_source("copy", "train", str(tmp_path / "tfds"))
    assert (same.has_boxes, same.num_classes) == (info.has_boxes, info.num_classes) == (True, 2)
    for number in range(3):
        for field, values in own[number]["objects"].items():
            shape = values.shape
            np.testing.assert_array_equal(np.reshape(copy[number]["objects"][field], shape), values)


@pytest.mark.parametrize("text", ["sentences", "documents"])
def test_text_is_copied_by_line_or_by_file(text, tmp_path, capsys):
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "train.txt").write_bytes(b"one\n\ntwo\xff\nthree")
    (tmp_path / "own" / "test.txt").write_bytes("vier \N{SNOWMAN}".encode())
    converted(f"files:{tmp_path}/own", tmp_path / "tfds", f"--text={text}")
    copy, _ = splits.open_source("copy", "train", str(tmp_path / "tfds"))
    lines = [b"one", b"two\xff", b"three"]
    whole = [b"one\n\ntwo\xff\nthree"]
    assert [record["text"] for record in copy] == (lines if text == "sentences" else whole)
    command = capsys.readouterr().out.strip().splitlines()[-1]
    assert f"configs/{'lm1b' if text == 'sentences' else 'common_crawl'}.py" in command
    assert "--config.dataset.validation_split=test" in command


@pytest.mark.parametrize(
    ("names", "validation", "test"),
    [
        (["valid", "test"], "valid", "test"),
        (["test", "dev"], "dev", "test"),
        (["val", "validation"], "validation", ""),
        (["test"], "test", ""),
    ],
)
def test_the_command_names_a_validation_split_as_it_is_called(
    names, validation, test, tmp_path, capsys
):
    tables = {split: path_data.images_table(range(9)) for split in ["train", *names]}
    path_data.save_to_disk(tmp_path / "own", tables)
    converted(f"hf:{tmp_path}/own", tmp_path / "tfds")
    command = shlex.split(capsys.readouterr().out.strip().splitlines()[-1])
    assert "--config.dataset.train_split=train" in command
    assert f"--config.dataset.validation_split={validation}" in command
    assert f"--config.dataset.test_split={test}" in command


def test_the_command_names_the_splits_that_were_copied(tmp_path, capsys):
    rows = {"train": range(9), "validation": range(9, 12), "test": range(12, 15)}
    converted(f"folder:{path_data.write_folder(tmp_path / 'own', rows)}", tmp_path / "tfds")
    command = capsys.readouterr().out.strip().splitlines()[-1]
    assert ".validation_split=validation --config.dataset.test_split=test" in command


def test_a_data_set_without_train_is_copied(tmp_path, capsys):
    path_data.save_to_disk(tmp_path / "own", {"test": path_data.images_table(range(9))})
    converted(f"hf:{tmp_path}/own", tmp_path / "tfds")
    assert len(splits.open_source("copy", "test", str(tmp_path / "tfds"))[0]) == 9
    command = shlex.split(capsys.readouterr().out.strip().splitlines()[-1])
    assert "--config.dataset.train_split=test[:90%]" in command
    assert "--config.dataset.validation_split=test[90%:]" in command
    assert "--config.dataset.test_split=" in command


@pytest.mark.parametrize("split", ["train-clean.100", "a+b", "train[9]", "_", "all"])
def test_a_split_that_tfds_cannot_name_is_refused_before_writing(split, tmp_path, capsys):
    images = path_data.images_table(range(9))
    path_data.save_to_disk(tmp_path / "own", {"train": images, split: images})
    arguments = [f"hf:{tmp_path}/own", str(tmp_path / "tfds")]
    assert cli.guarded(convert.main, arguments) == cli.WRONG_INPUT
    says = f"is called {split!r}; allowed for a copy: letters, digits, -, and _, with"
    assert says in capsys.readouterr().err
    assert not (tmp_path / "tfds").exists()


@pytest.mark.parametrize("channels", [2, 4, 5])
def test_images_that_no_workload_trains_on_are_refused_before_writing(channels, tmp_path, capsys):
    arrays = {"image": np.zeros((9, 8, 8, channels), np.uint8), "label": np.arange(9) % 3}
    own = path_data.write_npz(tmp_path / "own.npz", **arrays)
    assert cli.guarded(convert.main, [f"npz:{own}", str(tmp_path / "tfds")]) == cli.WRONG_INPUT
    assert f"have {channels} channels; allowed: 1 or 3" in capsys.readouterr().err
    assert not (tmp_path / "tfds").exists()


def test_splits_may_have_any_name_of_tfds(tmp_path):
    rows = {
        "train-clean-100": range(9),
        "1": range(3),
        "\N{LATIN SMALL LETTER E WITH ACUTE}": range(4),
    }
    tables = {split: path_data.images_table(numbers) for split, numbers in rows.items()}
    path_data.save_to_disk(tmp_path / "own", tables)
    converted(f"hf:{tmp_path}/own", tmp_path / "tfds")
    for split, numbers in rows.items():
        copy, _ = splits.open_source("copy", split, str(tmp_path / "tfds"))
        assert len(copy) == len(numbers)


def with_labels(labels):
    """A table of images with these labels."""
    column = pa.array(labels, pa.int64())
    return path_data.images_table(range(len(labels))).set_column(1, "label", column)


def test_a_record_without_its_label_is_refused(tmp_path, capsys):
    tables = {"train": path_data.images_table(range(9)), "test": with_labels([None] * 6)}
    path_data.save_to_disk(tmp_path / "own", tables)
    arguments = [f"hf:{tmp_path}/own", str(tmp_path / "tfds")]
    assert cli.guarded(convert.main, arguments) == cli.WRONG_INPUT
    says = capsys.readouterr().err.splitlines()[-1]
    assert says.startswith("error: record 0 of split 'test' (")
    assert says.endswith(
        "cannot be converted: it has no 'label' (-1 marks the records of a split without labels); "
        "fix it, or remove it"
    )
    assert not list((tmp_path / "tfds").iterdir())


def test_a_split_without_the_column_of_labels_is_named(tmp_path, capsys):
    images = path_data.images_table(range(9))
    unlabeled = path_data.described(images.drop_columns(["label"]), {"image": path_data.IMAGE})
    tables = {"train": images, "test": unlabeled}
    path_data.save_to_disk(tmp_path / "own", tables)
    arguments = [f"hf:{tmp_path}/own", str(tmp_path / "tfds")]
    assert cli.guarded(convert.main, arguments) == cli.WRONG_INPUT
    says = f"{tmp_path}/own/test/data-00000-of-00002.arrow has no column label or objects, but ima"
    assert says in capsys.readouterr().err


def test_a_split_without_labels_is_copied_but_not_evaluated(tmp_path, capsys):
    """As the Hub marks it."""
    tables = {"train": path_data.images_table(range(9)), "test": with_labels([-1] * 6)}
    path_data.save_to_disk(tmp_path / "own", tables)
    converted(f"hf:{tmp_path}/own", tmp_path / "tfds")
    copy, _ = splits.open_source("copy", "test", str(tmp_path / "tfds"))
    assert [record["label"] for record in copy] == [-1] * 6
    command = shlex.split(capsys.readouterr().out.strip().splitlines()[-1])
    assert "--config.dataset.validation_split=train[90%:]" in command
    assert "--config.dataset.test_split=" in command


def test_nothing_is_left_of_a_copy_that_failed(tmp_path, capsys):
    row = shuffled_order(71)[70]  # far from the images that are looked at when data are opened
    images = [tfds_data.png(number) for number in range(71)]
    images[row] = None
    table = pa.table({"image": images, "label": [number % 3 for number in range(71)]})
    path_data.write_parquet(tmp_path / "own.parquet", table)
    arguments = [f"hf:{tmp_path}/own.parquet", str(tmp_path / "tfds")]
    assert cli.guarded(convert.main, arguments) == cli.WRONG_INPUT
    says = capsys.readouterr().err.splitlines()[-1]
    place = f"record 70 of split 'train' ({tmp_path}/own.parquet, row {row})"
    assert says == f"error: {place} cannot be converted: it has no 'image'; fix it, or remove it"
    assert not list((tmp_path / "tfds").iterdir())


@pytest.mark.parametrize("name", ["digits", "cifar100"])
def test_a_copy_does_not_take_the_name_of_data_of_a_package(name, tmp_path, capsys):
    """As the example of docs/your_data.md would, digits.npz, or a data set that TFDS knows."""
    arrays = {"image": path_data.pixels(range(9)), "label": np.arange(9) % 3}
    own = path_data.write_npz(tmp_path / f"{name}.npz", **arrays)
    assert cli.guarded(convert.main, [f"npz:{own}", str(tmp_path / "tfds")]) == cli.OK
    assert f"--config.dataset.name={name}_copy" in capsys.readouterr().out


def test_labels_that_are_true_or_false_are_copied(tmp_path):
    images = path_data.images_table(range(9)).column("image")
    table = pa.table({"image": images, "label": [number > 3 for number in range(9)]})
    path_data.write_parquet(tmp_path / "own.parquet", table)
    converted(f"hf:{tmp_path}/own.parquet", tmp_path / "tfds")
    copy, info = splits.open_source("copy", "train", str(tmp_path / "tfds"))
    assert sorted(record["label"] for record in copy) == [0] * 4 + [1] * 5
    assert info.num_classes == 2


def test_a_copy_that_differs_is_found(tmp_path):
    own = path_data.write_folder(tmp_path / "own", {"": range(9)})
    source, _ = splits.open_source(f"folder:{own}", "train")
    records = [source[number] for number in range(9)]
    records[4] = records[4] | {"label": (records[4]["label"] + 1) % 3}
    features = {"image": tfds_data.image(8, 8, 1), "label": tfds_data.label(3)}
    kept = [{name: record[name] for name in features} for record in records]
    tfds_data.write(tmp_path, "copy", features, {"train": kept})
    copy, _ = splits.open_source("copy", "train", str(tmp_path))
    with pytest.raises(
        SourceError, match=r"^record 4 of .*array_record.* differs from record 4 of"
    ):
        convert._check(source, copy, "train")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["folder:{}/nowhere", "{}/tfds"], "there is no file or directory"),
        (["{}/own", "{}/tfds"], "a path without its kind; allowed: folder:"),
        (["digits", "{}/tfds"], "SOURCE is 'digits'; allowed: folder:PATH"),
        (["folder:{}/own", "{}/tfds", "--name=A b"], "--name is 'A b'; allowed: small letters"),
        (["folder:{}/own", "{}/tfds", "--name=digits"], "'digits', which is data of a package"),
        (["folder:{}/own", "{}/tfds", "--name=mnist"], "'mnist', which is data of a package"),
        (["folder:{}/own", "s3://bucket/tfds"], "s3://bucket/tfds is a URL; give a directory"),
        (["folder:{}/own", "{}", "--name=own"], "own exists; give another --name or directory"),
        (["folder:{}/own"], "DIR; see python -m data.convert --help"),
    ],
)
def test_wrong_arguments_are_one_sentence(arguments, says, tmp_path, capsys):
    path_data.write_folder(tmp_path / "own", {"": range(6)})
    words = [word.format(tmp_path) for word in arguments]
    assert cli.guarded(convert.main, words) == cli.WRONG_INPUT
    assert says in capsys.readouterr().err
    assert not (tmp_path / "tfds").exists()
