"""Data that people have, and that would train to a wrong result: used rightly, or refused."""

import json
import os
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest

import train
from data import splits
from data.sources import RecordError, SourceError
from runs import cli
from tests.data.test_errors import arrays, images, table, texts
from tests.data.test_paths import dataset_of
from tests.helpers import path_data, tfds_data
from tests.helpers.runs import HANGS, ROOT

ACCENT = "\N{LATIN SMALL LETTER E WITH ACUTE}"
PNGS = [tfds_data.png(number) for number in range(4)]
HF = pytest.param("hf", marks=pytest.mark.extras)


def fingerprint(root, name, **options):
    return splits.open_source(name, "train", str(root), **options)[1].fingerprint


def test_a_bad_record_met_while_the_vocabulary_is_trained_is_named(tmp_path):
    lines = [json.dumps({"text": line}) for line in path_data.sentences(range(60))]
    lines[41] = '{"text": "one",}'
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    fields = {"text": "sentences", "vocabulary_size": 40, "train_split": "train"}
    with pytest.raises(RecordError, match=r"^record 41 .*line 42\).*comma") as caught:
        splits.open_splits(dataset_of(tmp_path, "files:.", validation_split="train", **fields))
    assert "INTERNAL" not in str(caught.value)


@pytest.mark.parametrize("kind", ["npz", HF])
def test_numbers_of_classes_without_images_are_said(kind, tmp_path):
    write = {"npz": arrays(image=np.zeros((3, 8, 8), np.uint8), label=np.array([1, 2, 4]))}
    write["hf"] = table(image=PNGS[:3], label=[1, 2, 4])
    write[kind](tmp_path)
    name = {"npz": "npz:a.npz", "hf": "hf:."}[kind]
    info = splits.open_source(name, "train", str(tmp_path))[1]
    assert (info.num_classes, info.notes[0].split()[:4]) == (5, ["2", "of", "the", "5"])


@pytest.mark.parametrize(
    ("names", "notes"),
    [
        (["train-00000-of-00003.txt", "train-00002-of-00003.txt"], ["2 of the 3"]),
        # as older files of the Hub have
        ([f"data/train-{n}-of-2-{'0123456789abcdef'[:: 1 - 2 * n]}.txt" for n in (0, 1)], []),
        (["default/train/0.txt", "default/test/0.txt", "default/train/1.txt"], []),
        (["drive_test.txt", "blog/dev-notes.txt"], []),  # without train, all are
    ],
)
def test_layouts_that_are_one_data_set_are_read_and_missing_files_are_said(names, notes, tmp_path):
    texts(*names)(tmp_path)
    source, info = splits.open_source("files:.", "train", str(tmp_path))
    assert len(source) == 2
    assert [note[:10] for note in info.notes] == notes


@pytest.mark.long
def test_the_locale_changes_nothing(tmp_path):
    """Names of files are bytes, which ASCII does not have as text."""
    (tmp_path / f"{ACCENT}.txt").write_text("text")
    images(f"caf{ACCENT}/{ACCENT}.png b")(tmp_path)
    names = "files:.", "folder:."
    code = (
        "from data import splits; print(*("
        f"splits.open_source(name, 'train', {str(tmp_path)!r})[1].fingerprint for name in {names}))"
    )
    environment = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    options = {"env": environment, "cwd": ROOT, "stdout": -1, "timeout": HANGS, "check": True}
    done = subprocess.run([sys.executable, "-c", code], **options)
    assert done.stdout.decode().split() == [fingerprint(tmp_path, name) for name in names]


def test_a_fingerprint_needs_no_directory_to_write_to(tmp_path):
    arrays()(tmp_path)
    options = [{"cache_dir": cache_dir} for cache_dir in ("", "/dev/null/there")]
    assert len({fingerprint(tmp_path, "npz:a.npz", **each) for each in options}) == 1


def test_images_that_are_written_anew_are_other_data(tmp_path):
    images(" ".join(f"{name}/{n}.png" for name in "ab" for n in range(50)))(tmp_path)
    before = fingerprint(tmp_path, "folder:.")
    for path in tmp_path.rglob("*.png"):
        path.write_bytes(PNGS[2])
    assert fingerprint(tmp_path, "folder:.") != before


@pytest.mark.parametrize("kind", ["npz", HF])
def test_labels_that_are_exchanged_in_a_file_are_read_anew(kind, tmp_path):
    """Neither a cache nor a run is older than the file, though its size and time are the same."""
    if kind == "hf":
        pytest.importorskip("datasets")
    read, path = [], tmp_path / ("a.parquet" if kind == "hf" else "a.npz")
    for labels in ([0, 1, 2], [1, 0, 2]):
        if kind == "hf":
            options = {"use_dictionary": False, "compression": "none"}
            path_data.write_parquet(path, pa.table({"image": PNGS[:3], "label": labels}), **options)
        else:
            path_data.write_npz(path, image=path_data.pixels(range(3)), label=labels)
        os.utime(path, (1e9, 1e9))
        source, info = splits.open_source(f"{kind}:{path.name}", "train", str(tmp_path))
        labels = [record["label"] for record in source]
        read.append((labels, info.fingerprint, path.stat().st_size))
    (first, one, size), (again, other, same) = read
    assert size == same
    assert sorted(first) == sorted(again)
    assert first != again
    assert one != other


# --- Hugging Face


@pytest.fixture
def datasets():
    return pytest.importorskip("datasets")


def table_of(names, labels, **columns):
    described = {"_type": "ClassLabel", "names": names}
    given = {"image": PNGS[: len(labels)], "label": labels} | columns
    return path_data.described(pa.table(given), {"label": described})


def boxes_of(names):
    objects = [[{"bbox": [0.0, 0.0, 8.0, 8.0], "category": n}] for n in (0, 1)]
    box = {"_type": "List", "feature": {"_type": "Value", "dtype": "float64"}}
    feature = {"bbox": box, "category": {"_type": "ClassLabel", "names": names}}
    described = {"objects": {"_type": "List", "feature": feature}}
    return path_data.described(pa.table({"image": PNGS[:2], "objects": objects}), described)


@pytest.mark.extras
@pytest.mark.parametrize("second", ["train-1.parquet", "validation.parquet"])
@pytest.mark.parametrize("make", [lambda names: table_of(names, [0, 1]), boxes_of])
def test_class_names_in_another_order_are_refused(second, make, datasets, tmp_path):
    path_data.write_parquet(tmp_path / "train-0.parquet", make(["cat", "dog"]))
    path_data.write_parquet(tmp_path / second, make(["dog", "cat"]))
    bare = make([]).replace_schema_metadata()  # the first file, which names nothing
    path_data.write_parquet(tmp_path / "train-.parquet", bare)
    with pytest.raises(SourceError, match="train"):
        splits.open_source("hf:.", "validation" if "val" in second else "train", str(tmp_path))


@pytest.mark.extras
def test_files_may_differ_in_what_is_not_read_and_in_nothing_else(datasets, tmp_path):
    first = table_of(["cat", "dog"], [0, 1], note=["a", "b"])
    second = table_of(["cat", "dog"], [1, 1], note=[None, None]).select(["note", "label", "image"])
    narrow = table_of(["cat", "dog"], pa.array([1, 0], pa.int8()))
    for number, rows in enumerate((first, second, narrow)):
        path_data.write_parquet(tmp_path / f"{number // 2}/train-{number}.parquet", rows)
    source, info = splits.open_source("hf:0", "train", str(tmp_path))
    assert sorted(record["label"] for record in source) == [0, 1, 1, 1]
    assert info.num_classes == 2
    path_data.write_parquet(tmp_path / "0/train-2.parquet", narrow)
    with pytest.raises(SourceError, match="label"):
        splits.open_source("hf:0", "train", str(tmp_path))


@pytest.mark.extras
def test_what_changes_the_rows_of_a_saved_data_set_is_applied_or_refused(datasets, tmp_path):
    label = datasets.ClassLabel(names="ab")
    features = datasets.Features({"image": datasets.Image(), "label": label})
    rows = {"image": [{"bytes": png, "path": None} for png in PNGS], "label": [0, 1] * 2}
    saved = datasets.Dataset.from_dict(rows, features=features)
    saved.select([1, 3]).with_format("numpy").save_to_disk(tmp_path / "applied")
    source, _ = splits.open_source("hf:applied", "train", str(tmp_path))
    assert {record["image"] for record in source} == {PNGS[1], PNGS[3]}
    saved.cast_column("image", datasets.Image(mode="RGB")).save_to_disk(tmp_path / "mode")
    state = json.loads((tmp_path / "applied" / "state.json").read_text())
    state["_indices_data_files"] = [{"filename": "indices.arrow"}]  # of an older `datasets`
    (tmp_path / "applied" / "state.json").write_text(json.dumps(state))
    for name in ("applied", "mode"):
        with pytest.raises(SourceError, match=name):
            splits.open_source(f"hf:{name}", "train", str(tmp_path))


@pytest.mark.extras
def test_a_path_is_no_pattern(datasets, tmp_path):
    for place, labels in (("a[1]", [0, 1]), ("a1", [1, 0])):
        path_data.write_parquet(tmp_path / place / "a.parquet", table_of(["cat", "dog"], labels))
    source, _ = splits.open_source("hf:a[1]", "train", str(tmp_path))
    assert {record["image"]: record["label"] for record in source} == {PNGS[0]: 0, PNGS[1]: 1}


def test_a_password_in_the_name_of_data_is_not_printed(capsys, tmp_path):
    words = ["--config.dataset.name=folder:nonsense://me:hunter2@host/x", f"--workdir={tmp_path}/x"]
    assert cli.guarded(train.main, ["--config=configs/cifar10.py:mini", *words]) == cli.WRONG_INPUT
    printed = "".join(capsys.readouterr())
    assert "@host/x" in printed
    assert "hunter2" not in printed
