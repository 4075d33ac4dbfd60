"""Data that people have, and that would train to a wrong result: used rightly, or refused."""

import json
import os
import re
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import train
from data import splits
from data.sources import RecordError, SourceError
from runs import cli
from tests.data.test_errors import arrays, file, images, table
from tests.data.test_paths import dataset_of, files_at
from tests.helpers import path_data, tfds_data
from tests.helpers.runs import HANGS, ROOT

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
ACCENT = "\N{LATIN SMALL LETTER E WITH ACUTE}"


def texts(*names):
    def write(root):
        for name in names:
            (root / name).parent.mkdir(exist_ok=True, parents=True)
            (root / name).write_text(name.replace(" (copy)", ""))

    return write


def of_splits(**labels):
    given = {f"{split}_label": np.array(of) for split, of in labels.items()}
    given |= {f"{s}_image": np.zeros((len(of), 8, 8), np.uint8) for s, of in labels.items()}
    return lambda root: path_data.write_npz(root / "a.npz", **given)


# What is written, the name of the data set, the split, and what the message names.
REFUSED = [
    (
        images("train/Cat/1.png", "train/b/1.png", "val/cat/1.png"),
        "folder:.",
        "validation",
        "'Cat'",
    ),
    (images("train/a/1.png", "train/b/1.png", "test/all/1.png"), "folder:.", "test", "'all'"),
    (
        images("train/\u00e9/1.png", "train/b/1.png", "val/e\u0301/1.png"),
        *("folder:.", "validation", "'\u00e9'"),
    ),
    (of_splits(train=[0, 1, 3], test=[0, 2]), "npz:a.npz", "test", "lacks: 2"),
    (images("train/a/1.png", "train/b/1.png", "Train/a/1.png"), "folder:.", "train", "'Train'"),
    (images("images/train/1.png", "masks/train/1.png"), "folder:.", "train", "images/train"),
    (images("train/a/1.png", "val/a/1.png", "valid/a/1.png"), "folder:.", "train", "'valid'"),
    (arrays(x=np.zeros((4, 8, 8), np.uint8)), "npz:a.npz", "train", "'x'"),
    (arrays(image=np.zeros((4, 3, 9, 9), np.uint8)), "npz:a.npz", "train", "moveaxis"),
    (file("a.npz", POINTER), "npz:a.npz", "train", "git lfs pull"),
    (file("a.txt", POINTER), "files:.", "train", "git lfs pull"),
    (texts("en/train.txt", "fr/train.txt"), "files:.", "train", "'en', 'fr'"),
    (texts("en/train.txt", "fr/test.txt"), "files:.", "train", "'en', 'fr'"),
    (texts("train-0-of-2.txt", "train-0-of-3.txt"), "files:.", "train", "train-*-of-3.txt"),
    (texts("train.txt", "val.txt", "dev.txt"), "files:.", "train", "'dev', 'val'"),
    (
        texts("train-0-of-1-0123456789abcdef.txt", "train-0-of-1-fedcba9876543210.txt"),
        *("files:.", "train", "one number"),
    ),
    (texts("train.txt", "train (copy).txt"), "files:.", "train", "same content"),
    (texts("train-0-of-1.txt", "train-0-of-1 (1).txt"), "files:.", "train", "(1).txt"),
    (file("a.txt", f"one\n{ACCENT}".encode("latin1")), "files:.", "train", "line 2"),
    (file("a.txt", "one".encode("utf-16-le")), "files:.", "train", "UTF-16"),
    (file("a.txt", b"one\rtwo\rthree"), "files:.", "train", "line ends"),
]


def shards(damage):
    def write(root):
        features = {"image": tfds_data.image(8, 8, 1), "label": tfds_data.label()}
        rows = {"train": tfds_data.pictures(range(4))}
        damage(max(tfds_data.write(root, "own", features, rows, shards=2).glob("*-00001-of-*")))

    return write


REFUSED += [
    (shards(lambda path: path.unlink()), "own", "train", "-00001-of-00002"),
    (shards(lambda path: path.write_bytes(POINTER)), "own", "train", "git lfs pull"),
]


@pytest.mark.parametrize(("write", "name", "split", "names"), REFUSED)
def test_data_that_would_be_misread_are_refused(write, name, split, names, tmp_path):
    write(tmp_path)
    with pytest.raises(SourceError, match=re.escape(names)):
        splits.open_source(name, split, str(tmp_path), text="sentences")


def test_a_document_of_another_encoding_is_named(tmp_path):
    (tmp_path / "a.txt").write_bytes(ACCENT.encode("latin1"))
    source, _ = splits.open_source("files:.", "train", str(tmp_path), text="documents")
    with pytest.raises(RecordError, match=r"a\.txt.*iconv"):
        source[0]


def test_a_bad_record_met_while_the_vocabulary_is_trained_is_named(tmp_path):
    lines = [json.dumps({"text": line}) for line in path_data.sentences(range(60))]
    lines[41] = '{"text": "one",}'
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    fields = {"text": "sentences", "vocabulary_size": 40, "train_split": "train"}
    with pytest.raises(RecordError, match=r"^record 41 .*line 42\).*comma") as caught:
        splits.open_splits(dataset_of(tmp_path, "files:.", validation_split="train", **fields))
    assert "INTERNAL" not in str(caught.value)


@pytest.mark.parametrize("kind", ["npz", pytest.param("hf", marks=pytest.mark.extras)])
def test_numbers_of_classes_without_images_are_said(kind, tmp_path):
    images = [tfds_data.png(number) for number in range(3)]
    write = {"npz": arrays(image=np.zeros((3, 8, 8), np.uint8), label=np.array([1, 2, 4]))}
    write["hf"] = table(image=images, label=[1, 2, 4])
    write[kind](tmp_path)
    name = {"npz": "npz:a.npz", "hf": "hf:."}[kind]
    info = splits.open_source(name, "train", str(tmp_path))[1]
    assert (info.num_classes, info.notes[0].split()[:4]) == (5, ["2", "of", "the", "5"])


def test_missing_files_of_a_series_are_said(tmp_path):
    texts("train-00000-of-00003.txt", "train-00002-of-00003.txt")(tmp_path)
    (note,) = splits.open_source("files:.", "train", str(tmp_path))[1].notes
    assert note.startswith("2 of the 3 files")


def test_layouts_that_are_one_data_set(tmp_path):
    hashes = "0123456789abcdef", "fedcba9876543210"  # as older files of the Hub have
    layouts = [
        [f"data/train-0000{n}-of-00002-{h}.txt" for n, h in enumerate(hashes)],
        ["default/train/0.txt", "default/test/0.txt", "default/train/1.txt"],
        ["drive_test.txt", "blog/dev-notes.txt"],  # without train, all are
    ]
    for number, names in enumerate(layouts):
        texts(*(f"{number}/{name}" for name in names))(tmp_path)
        source, info = splits.open_source(f"files:{number}", "train", str(tmp_path))
        assert (len(source), info.notes) == (2, ())


@pytest.mark.long
def test_the_locale_changes_nothing(tmp_path):
    """Names of files are bytes, which ASCII does not have as text."""
    (tmp_path / f"{ACCENT}.txt").write_text("text")
    (tmp_path / f"caf{ACCENT}").mkdir()
    files_at(tmp_path, f"caf{ACCENT}/{ACCENT}.png", "b/1.png")
    names = "files:.", "folder:."
    code = (
        "from data import splits; print(*("
        f"splits.open_source(name, 'train', {str(tmp_path)!r})[1].fingerprint for name in {names}))"
    )
    environment = os.environ | {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        cwd=ROOT,
        stdout=-1,
        timeout=HANGS,
        check=True,
    )
    here = [splits.open_source(name, "train", str(tmp_path))[1].fingerprint for name in names]
    assert done.stdout.decode().split() == here


def test_a_fingerprint_needs_no_directory_to_write_to(tmp_path):
    arrays()(tmp_path)
    for cache_dir in ("", "/dev/null/there"):
        info = splits.open_source("npz:a.npz", "train", str(tmp_path), cache_dir=cache_dir)[1]
        assert (
            info.fingerprint
            == splits.open_source("npz:a.npz", "train", str(tmp_path))[1].fingerprint
        )


def test_images_that_are_written_anew_are_other_data(tmp_path):
    images(*(f"{name}/{n}.png" for name in "ab" for n in range(50)))(tmp_path)
    before = splits.open_source("folder:.", "train", str(tmp_path))[1].fingerprint
    for path in tmp_path.rglob("*.png"):
        path.write_bytes(tfds_data.png(2))
    assert splits.open_source("folder:.", "train", str(tmp_path))[1].fingerprint != before


@pytest.mark.parametrize("kind", ["npz", pytest.param("hf", marks=pytest.mark.extras)])
def test_labels_that_are_exchanged_in_a_file_are_read_anew(kind, tmp_path):
    """Neither a cache nor a run is older than the file, though its size and time are the same."""
    if kind == "hf":
        pytest.importorskip("datasets")
    path = tmp_path / "a.x"
    read = []
    for labels in ([0, 1, 2], [1, 0, 2]):
        if kind == "hf":
            table = pa.table({"image": [tfds_data.png(n) for n in range(3)], "label": labels})
            pq.write_table(
                table, path.with_suffix(".parquet"), use_dictionary=False, compression="none"
            )
        else:
            path_data.write_npz(
                path.with_suffix(".npz"), image=path_data.pixels(range(3)), label=labels
            )
        (written,) = tmp_path.glob("a.*")
        os.utime(written, (1e9, 1e9))
        source, info = splits.open_source(f"{kind}:{written.name}", "train", str(tmp_path))
        read.append(
            ([record["label"] for record in source], info.fingerprint, written.stat().st_size)
        )
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
    given = {"image": [tfds_data.png(n) for n in range(len(labels))], "label": labels} | columns
    return path_data.described(pa.table(given), {"label": described})


@pytest.mark.extras
@pytest.mark.parametrize("second", ["train-1.parquet", "validation.parquet"])
@pytest.mark.parametrize("boxes", [False, True])
def test_class_names_in_another_order_are_refused(second, boxes, datasets, tmp_path):
    for name, names in (("train-0.parquet", ["cat", "dog"]), (second, ["dog", "cat"])):
        table = table_of(names, [0, 1])
        if boxes:
            objects = [[{"bbox": [0.0, 0.0, 8.0, 8.0], "category": n}] for n in (0, 1)]
            kind = {
                "_type": "Sequence",
                "feature": {"category": {"_type": "ClassLabel", "names": names}},
            }
            table = path_data.described(
                pa.table({"image": table.column("image"), "objects": objects}), {"objects": kind}
            )
        path_data.write_parquet(tmp_path / name, table)
    bare = table.replace_schema_metadata()  # the first file, which names nothing
    path_data.write_parquet(tmp_path / "train-.parquet", bare)
    with pytest.raises(SourceError, match="dog, cat"):
        splits.open_source("hf:.", "validation" if "val" in second else "train", str(tmp_path))


@pytest.mark.extras
def test_files_that_differ_in_what_is_not_read_are_one_data_set(datasets, tmp_path):
    names = ["cat", "dog"]
    described = {"label": {"_type": "ClassLabel", "names": names}}
    tables = [
        table_of(names, pa.array([0, 1], pa.int64()), note=["a", "b"]),
        table_of(names, pa.array([1, 0], pa.int8()), note=[1, 2]).select(
            ["note", "label", "image"]
        ),
        table_of(names, pa.array([1, 1], pa.uint16()), note=[None, None]),
    ]
    fields = [pa.field("image", pa.large_binary(), False), pa.field("label", pa.int32(), False)]
    strict = tables[0].select(["image", "label"]).cast(pa.schema(fields))
    tables.append(path_data.described(strict, described))
    for number, shard in enumerate(tables):
        path_data.write_parquet(tmp_path / f"train-{number}.parquet", shard)
    source, info = splits.open_source("hf:.", "train", str(tmp_path))
    assert sorted(record["label"] for record in source) == [0, 0, 0, 1, 1, 1, 1, 1]
    assert {record["image"] for record in source} == {tfds_data.png(n) for n in range(2)}
    assert info.num_classes == 2


@pytest.mark.extras
def test_a_file_may_have_images_without_objects_only(datasets, tmp_path):
    box = {"bbox": [0.0, 0.0, 8.0, 8.0], "category": 0}
    for number, objects in enumerate(([[], []], [[box], []])):
        path_data.write_parquet(
            tmp_path / f"train-{number}.parquet",
            pa.table({"image": [tfds_data.png(n) for n in range(2)], "objects": objects}),
        )
    source, info = splits.open_source("hf:.", "train", str(tmp_path))
    assert (info.has_boxes, info.num_classes) == (True, 1)
    assert sorted(len(record["objects"]["label"]) for record in source) == [0, 0, 0, 1]


@pytest.mark.extras
def test_null_boxes_are_named(datasets, tmp_path):
    boxes = [[{"bbox": [0.0, 0.0, 8.0, 8.0], "category": 0}], [{"bbox": None, "category": 0}]]
    table = pa.table({"image": [tfds_data.png(n) for n in range(2)], "objects": boxes})
    path_data.write_parquet(tmp_path / "a.parquet", table)
    with pytest.raises(RecordError, match=r"a\.parquet, row 1\).*bbox"):
        splits.open_source("hf:.", "train", str(tmp_path))


@pytest.mark.extras
def test_what_changes_the_rows_of_a_saved_data_set_is_refused(datasets, tmp_path):
    features = datasets.Features(
        {"image": datasets.Image(), "label": datasets.ClassLabel(names="ab")}
    )
    rows = {
        "image": [{"bytes": tfds_data.png(n), "path": None} for n in range(4)],
        "label": [0, 1] * 2,
    }
    saved = datasets.Dataset.from_dict(rows, features=features)
    saved.select([1, 3]).with_format("numpy").save_to_disk(tmp_path / "applied")
    source, _ = splits.open_source("hf:applied", "train", str(tmp_path))
    assert {record["image"] for record in source} == {tfds_data.png(1), tfds_data.png(3)}
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
    assert {r["image"]: r["label"] for r in source} == {tfds_data.png(n): n for n in range(2)}


def test_a_password_in_the_name_of_data_is_not_printed(capsys, tmp_path):
    words = ["--config.dataset.name=folder:nonsense://me:hunter2@host/x", f"--workdir={tmp_path}/x"]
    assert cli.guarded(train.main, ["--config=configs/cifar10.py:mini", *words]) == cli.WRONG_INPUT
    printed = "".join(capsys.readouterr())
    assert "@host/x" in printed
    assert "hunter2" not in printed
