"""What can be wrong with data: an error of one line, before a run, that names what is wrong."""

import re

import numpy as np
import pyarrow as pa
import pytest

from data import splits
from data.sources import RecordError, SourceError
from runs import cli
from tests.data.test_paths import dataset_of, files_at
from tests.helpers import path_data, tfds_data

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"
PNG = tfds_data.png(1)


def arrays(**given):
    usual = {"image": np.zeros((4, 8, 8), np.uint8), "label": np.arange(4)}
    return lambda root: path_data.write_npz(root / "a.npz", **usual | given)


def of_splits(**labels):
    """The file a.npz with the labels of each split."""
    given = {f"{split}_label": np.array(of) for split, of in labels.items()}
    given |= {f"{s}_image": np.zeros((len(of), 8, 8), np.uint8) for s, of in labels.items()}
    return lambda root: path_data.write_npz(root / "a.npz", **given)


def file(name, content):
    return lambda root: (root / name).write_bytes(content)


def texts(*names):
    def write(root):
        for name in names:
            (root / name).parent.mkdir(exist_ok=True, parents=True)
            (root / name).write_text(name.replace(" (copy)", ""))

    return write


def images(places):
    """Images named by words; one that is a folder gets an image called 1.png."""
    names = [place if "." in place else f"{place}/1.png" for place in places.split()]
    return lambda root: files_at(root, *names)


def table(**columns):
    def write(root):
        pytest.importorskip("datasets")
        path_data.write_parquet(root / "a.parquet", pa.table(columns))

    return write


def pictures(root, shards=1):
    features = {"image": tfds_data.image(8, 8, 1), "label": tfds_data.label()}
    rows = {"train": tfds_data.pictures(range(4))}
    return tfds_data.write(root, "own", features, rows, shards=shards)


def shard(damage):
    return lambda root: damage(max(pictures(root, shards=2).glob("*-00001-of-*")))


def linked(root):
    files_at(root, "a/1.png", "b/2.png")
    (root / "a" / "x").symlink_to("../b")
    (root / "b" / "y").symlink_to("../a")


# What is written, the name of the data set, and what the message names.
SOURCES = [
    (images(""), "folder:nowhere", "nowhere"),
    (images(""), "folder:", "folder:PATH"),
    (images(""), "folder:nonsense://nowhere/x", "nonsense"),
    (images("a b"), "folder:.?image=x", "?image=x"),
    (images("a b"), "folder:.?", "folder:.?"),
    (images("a/1.png a/2.png"), "folder:.", "1 classes"),
    (images("1.png 2.png"), "folder:.", "0 classes"),
    (images("Val/a test/b"), "folder:.", "Val"),
    (images("seg_train/a seg_test/a"), "folder:.", "seg_test"),
    (images("images/train masks/train"), "folder:.", "images/train"),
    (images("a b cat/3.heic"), "folder:.", "cat"),
    (images("a b cat/Thumbs.db"), "folder:.", "cat"),
    (images("train/a train/b val/c/3.svg"), "folder:.", "/c "),
    (images("train/a train/b Train/a"), "folder:.", "'Train'"),
    (images("train/a val/a valid/a"), "folder:.", "'valid'"),
    (linked, "folder:.", "is a link"),
    (images(""), "pictures:a", "pictures:a"),
    (file("a.npz", b"PK"), "npz:a.npz", "a.npz"),
    (file("a.npz", b""), "npz:a.npz", "a.npz"),
    (file("a.npz", POINTER), "npz:a.npz", "a.npz"),
    (images("a"), "npz:a", ".npz"),
    (arrays(image=np.zeros((4, 8, 8))), "npz:a.npz", "image"),
    (arrays(image=np.zeros((4, 64), np.uint8)), "npz:a.npz", "image"),
    (arrays(image=np.zeros((3, 8, 8), np.uint8)), "npz:a.npz", "image"),
    (arrays(image=np.zeros((4, 0, 8), np.uint8)), "npz:a.npz", "image"),
    (arrays(image=np.zeros((4, 3, 9, 9), np.uint8)), "npz:a.npz", "moveaxis"),
    (arrays(image=np.array([b"a", None] * 2)), "npz:a.npz", "image"),
    (arrays(x=np.zeros((4, 8, 8), np.uint8)), "npz:a.npz", "'x'"),
    (arrays(label=np.eye(4)), "npz:a.npz", "label"),
    (arrays(label=np.arange(4) - 1), "npz:a.npz", "label"),
    (arrays(label=np.arange(4) * 2**30), "npz:a.npz", "classes"),
    (arrays(), "npz:a.npz?image=who", "label"),
    (arrays(), "npz:a.npz?text=x", "?text=x"),
    (arrays(), "npz:a.npz?picture=x", "picture"),
    (images("b.jsonl.gz"), "files:.", "b.jsonl.gz"),
    (file("a.csv", b"text,label\n"), "files:a.csv", "a.csv"),
    (file("a.csv", b"text,label\n"), "files:.", ".jsonl"),
    (file("a.text", b"text"), "files:a.text", "a.text"),
    (file("a.txt", b"PK\0\0"), "files:a.txt", "a.txt"),
    (file("a.txt", b"one"), "files:.?label=x", "?label=x"),
    (file("a.txt", b""), "files:.", "train"),
    (file("a.txt", POINTER), "files:.", "git lfs pull"),
    (file("a.txt", b"one\n\xe9"), "files:.", "line 2"),
    (file("a.txt", "one".encode("utf-16-le")), "files:.", "UTF-16"),
    (file("a.txt", b"one\rtwo\rthree"), "files:.", "line ends"),
    (texts("en/train.txt", "fr/train.txt"), "files:.", "'en', 'fr'"),
    (texts("en/train.txt", "fr/test.txt"), "files:.", "'en', 'fr'"),
    (texts("train-0-of-2.txt", "train-0-of-3.txt"), "files:.", "train-*-of-3.txt"),
    (texts("train-0-of-1-01234567.txt", "train-0-of-1-76543210.txt"), "files:.", "one number"),
    (texts("train-0-of-1.txt", "train-0-of-1 (1).txt"), "files:.", "(1).txt"),
    (texts("train.txt", "val.txt", "dev.txt"), "files:.", "'dev', 'val'"),
    (texts("train.txt", "train (copy).txt"), "files:.", "same content"),
    *((pictures, name, repr(name)) for name in ("", "../own", "own:9.9.9", "own/x", "a\0b")),
    (shard(lambda path: path.unlink()), "own", "-00001-of-00002"),
]
OF_HUGGING_FACE = [
    (table(a=[1]), "hf:.", "a"),
    (table(image=[b"x"], label=[0]), "hf:.", "record 0"),
    (table(image=[PNG], label=["cat"]), "hf:.", "label"),
    (table(image=[PNG], label=[-1]), "hf:.", "classes"),
    (table(image=[PNG], label=[None]), "hf:.", "classes"),
    (table(image=[PNG], label=[[0, 2]]), "hf:.", "label"),
    (table(image=[PNG], objects=[[1, 2]]), "hf:.", "objects"),
    (table(image=[PNG], objects=[[{"bbox": [0.0] * 4}]]), "hf:.", "objects"),
    (table(image=[PNG], objects=[[{"bbox": [0.5] * 4, "category": 0}]]), "hf:.", "pixel"),
    (table(image=[PNG], objects=[[{"bbox": None, "category": 0}]]), "hf:.", "row 0"),
    (
        table(image=[PNG], objects=[{"bbox": [[0.0] * 3 + [8.0]], "category": [1, 2]}]),
        "hf:.",
        "row 0",
    ),
    (table(image=[PNG], label=[1]), "hf:.?label=who", "who"),
    (table(image=[{"bytes": None, "path": "1.png"}], label=[1]), "hf:.", "record 0"),
    (file("a.parquet", b"PAR1"), "hf:.", "a.parquet"),
    (images("a"), "hf:.", "Parquet"),
]


@pytest.mark.parametrize(
    ("write", "name", "names"),
    [*SOURCES, *(pytest.param(*row, marks=pytest.mark.extras) for row in OF_HUGGING_FACE)],
)
def test_unusable_data_are_refused(write, name, names, tmp_path):
    write(tmp_path)
    with pytest.raises((SourceError, RecordError), match=re.escape(names)) as caught:
        splits.open_source(name, "train", str(tmp_path), text="sentences")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("write", "name", "split", "names"),
    [
        (images("train/Cat train/b val/cat"), "folder:.", "validation", "'cat'"),
        (images("train/\u00e9 train/b val/e\u0301"), "folder:.", "validation", "'e\\u0301'"),
        (images("train/a train/b test/all"), "folder:.", "test", "'all'"),
        (of_splits(train=[0, 1, 3], test=[0, 2]), "npz:a.npz", "test", "lacks: 2"),
    ],
)
def test_classes_that_train_lacks_are_refused(write, name, split, names, tmp_path):
    write(tmp_path)
    with pytest.raises(SourceError, match=re.escape(names)):
        splits.open_source(name, split, str(tmp_path))


@pytest.mark.parametrize("split", ["dev", "train[", "train[5:2]", "train[:0]", "train[:150%]"])
@pytest.mark.parametrize(("write", "name"), [(images("a b"), "folder:."), (pictures, "own")])
def test_a_split_without_records_is_refused(write, name, split, tmp_path):
    write(tmp_path)
    with pytest.raises(SourceError, match=rf"split {re.escape(repr(split))}.*allowed: train"):
        splits.open_source(name, split, str(tmp_path))


def test_data_that_cannot_be_divided_are_refused(tmp_path):
    arrays(image=np.zeros((4, 8, 8), np.uint8))(tmp_path)  # have one hash
    with pytest.raises(SourceError, match="validation_split"):
        splits.split_names(dataset_of(tmp_path, "npz:a.npz"))


@pytest.mark.parametrize("content", [b"", b"null", b"3", b"{}", b'{"a":' * 10**5, b"\xff\xfe"])
@pytest.mark.parametrize("description", ["dataset_info.json", "features.json"])
def test_a_damaged_description_is_refused(description, content, tmp_path):
    pictures(tmp_path)
    file(f"own/1.0.0/{description}", content)(tmp_path)
    with pytest.raises(SourceError, match="'own'") as caught:
        splits.open_source("own", "train", str(tmp_path))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("write", "fields", "names"),
    [
        (images(""), {"vocabulary_size": 10**6}, "vocabulary_size is 1000000"),
        (images(""), {"vocabulary_size": 20}, "vocabulary_size is 20"),
        (images(""), {"train_split": "test"}, "'test'"),
        (images(""), {"name": "digits", "validation_split": "test"}, "'text'"),
        (images(""), {"name": "own", "data_dir": "/nowhere"}, "/nowhere"),
        (images(""), {"cache_dir": "/dev/null/there"}, "/dev/null/there"),
        (file("a.txt", b"one"), {"name": "files:.", "validation_split": ""}, "split ''"),
        (pictures, {"name": "own", "validation_split": "train"}, "'text'"),
        *(
            (file("train.txt", text), {"name": "files:.", "text": "documents"} | shared, "train")
            for shared in [{"validation_split": "train"}]
            for text in (b"", b" ", b"\n\n")
        ),
    ],
)
def test_unusable_text_is_refused(write, fields, names, tmp_path):
    write(tmp_path)
    usual = {"name": "python_topics", "train_split": "train", "validation_split": "validation"}
    usual |= {"text": "sentences", "vocabulary_size": 100}
    with pytest.raises((cli.InputError, OSError), match=re.escape(names)):
        splits.open_splits(dataset_of(tmp_path, **usual | fields))


def test_documents_of_which_none_has_a_piece_are_refused_in_any_split(tmp_path):
    (tmp_path / "train.txt").write_text("\n".join(path_data.sentences(range(60))))
    (tmp_path / "val.txt").write_text(" ")
    fields = {"name": "files:.", "train_split": "train", "validation_split": "validation"}
    with pytest.raises(SourceError, match="'validation'"):
        splits.open_splits(dataset_of(tmp_path, text="documents", vocabulary_size=40, **fields))


@pytest.mark.parametrize(
    "line", [b"{", b"[1]", b"3", b'{"txt": "a"}', b'{"text": 3}', b'{"text": "a"},']
)
def test_a_damaged_line_of_json_is_named(line, tmp_path):
    lines = [b'{"text": "fine"}', b"", line, b'{"text": "fine"}']
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(lines))
    source, _ = splits.open_source(f"files:{tmp_path}", "train")
    with pytest.raises(RecordError, match=r"^record 1 of split 'train' \(.*a.jsonl, line 3\)"):
        source.__getitems__([0, 1, 2])


def test_a_document_of_another_encoding_is_named(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"\xe9")
    source, _ = splits.open_source("files:.", "train", str(tmp_path), text="documents")
    with pytest.raises(RecordError, match=r"a\.txt.*iconv"):
        source[0]


def test_without_its_package_one_sentence_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)
    path_data.write_parquet(tmp_path / "a.parquet", pa.table({"text": ["a"]}))
    with pytest.raises(SourceError, match="pip install datasets"):
        splits.open_source(f"hf:{tmp_path}", "train")
