"""Data sets by path: each kind, its layouts, and what can be wrong with it."""

import dataclasses
import json
import os
import re
import shutil
import zipfile

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from PIL import Image

import train
import workloads
from configs import coco, lm1b
from data import folder, paths, splits, storage, text_files
from data.path_data import split_named
from data.sources import RecordError, SourceError
from pipeline.map_datasets import Read, record_numbers
from runs import cli
from studies import runner
from tests.helpers import path_data, small_studies, tfds_data
from tests.helpers.runs import EIGHT_STEPS, logged_numbers, mini
from workloads import decoding

NUMBERS = {"train": range(60), "val": range(60, 80)}


def write(kind, root, numbers=NUMBERS):
    """Writes a data set with two splits and returns its name."""
    if kind == "folder":
        path_data.write_folder(root / "pictures", numbers)
        return "folder:pictures"
    tables = {split: path_data.images_table(rows) for split, rows in numbers.items()}
    if kind == "npz":
        arrays = {f"{split}_images": path_data.pixels(rows) for split, rows in numbers.items()}
        arrays |= {
            f"{split}_labels": np.array(rows)[:, None] % 3 for split, rows in numbers.items()
        }
        path_data.write_npz(root / "pictures.npz", **arrays)
        return "npz:pictures.npz"
    if kind == "hf":
        path_data.save_to_disk(root / "saved", tables | {"validation": tables.pop("val")})
        return "hf:saved"
    for split, table in tables.items():
        path_data.write_parquet(root / "hub" / "data" / f"{split}-00000-of-00001.parquet", table)
    return "hf:hub"


KINDS = ("folder", "npz", "hf", "parquet")


def content(records):
    """Pixels and label of each record."""
    return [
        (decoding.decode(record["image"], 1).tobytes(), int(record["label"])) for record in records
    ]


def wanted(numbers):
    pixels = path_data.pixels(numbers)
    return [(image.tobytes(), n % 3) for n, image in zip(numbers, pixels, strict=True)]


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_gives_every_image_with_its_label_and_what_a_model_must_know(kind, tmp_path):
    name = write(kind, tmp_path)
    train_split, info = splits.open_source(name, "train", str(tmp_path))
    held_out, same = splits.open_source(name, "validation", str(tmp_path))
    assert sorted(content(train_split)) == sorted(wanted(NUMBERS["train"]))
    assert sorted(content(held_out)) == sorted(wanted(NUMBERS["val"]))
    assert info == same
    assert (info.num_classes, info.image_shape, info.channels) == (3, (8, 8, 1), 1)
    half, _ = splits.open_source(name, "train[:50%]", str(tmp_path))
    assert content(half) == content(train_split)[:30]
    both, _ = splits.open_source(name, "validation+train[59:]", str(tmp_path))
    assert content(both) == content(held_out) + content(train_split)[59:]
    order = np.random.default_rng(0).permutation(60).tolist()
    shuffled = content(train_split.__getitems__(order))
    assert shuffled == [content([train_split[number]])[0] for number in order]


@pytest.mark.parametrize("kind", KINDS)
def test_a_share_of_data_sorted_by_class_holds_all_classes(kind, tmp_path):
    name = write(kind, tmp_path)
    share, _ = splits.open_source(name, "train[80%:]", str(tmp_path))
    assert len(share) == 12
    assert {label for _, label in content(share)} == {0, 1, 2}


@pytest.mark.parametrize("kind", KINDS)
def test_the_fingerprint_is_that_of_the_data_wherever_they_lie(kind, tmp_path):
    name = write(kind, tmp_path / "here")
    shutil.copytree(tmp_path / "here", tmp_path / "there")
    first = splits.open_source(name, "train", str(tmp_path / "here"))[1].fingerprint
    assert first == splits.open_source(name, "train", str(tmp_path / "there"))[1].fingerprint
    write(kind, tmp_path / "other", NUMBERS | {"val": range(60, 81)})
    assert first != splits.open_source(name, "train", str(tmp_path / "other"))[1].fingerprint


# --- layouts


def test_classes_are_numbered_by_name_and_images_may_lie_deeper(tmp_path):
    for place in ("train/b/x/1.png", "train/a/2.png", "val/c/3.PNG", "val/.hidden/4.png"):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_bytes(tfds_data.png(1))
    for place in ("test/5.png", "train/notes.txt", "6.png"):  # no image of a class
        (tmp_path / place).parent.mkdir(exist_ok=True)
        (tmp_path / place).write_bytes(tfds_data.png(1))
    opened = paths.open_all("", paths.Settings(f"folder:{tmp_path}"))
    assert opened.classes == ("a", "b", "c")
    records = {split: rows().read(range(len(rows()))) for split, rows in opened.splits.items()}
    assert {(s, r["file_name"], r["label"]) for s, rows in records.items() for r in rows} == {
        ("train", "train/b/x/1.png", 1),
        ("train", "train/a/2.png", 0),
        ("validation", "val/c/3.PNG", 2),
    }


def test_beside_train_only_folders_with_its_classes_are_other_splits(tmp_path):
    for place in ("train/a", "train/b", "val/c", "extra/b", "masks/train", "masks/val"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "1.png").write_bytes(tfds_data.png(1))
    opened = paths.open_all("", paths.Settings(f"folder:{tmp_path}"))
    assert opened.classes == ("a", "b", "c")
    assert set(opened.splits) == {"train", "validation", "extra"}
    assert opened.info.num_classes == 3


def test_a_class_may_be_called_train(tmp_path):
    for place in ("train/1.png", "test/2.png", "car/3.png"):
        (tmp_path / place).parent.mkdir()
        (tmp_path / place).write_bytes(tfds_data.png(1))
    opened = paths.open_all("", paths.Settings(f"folder:{tmp_path}"))
    assert (opened.classes, list(opened.splits)) == (("car", "test", "train"), ["train"])


@pytest.mark.parametrize(
    ("places", "says"),
    [
        (
            ["Training/cat/1.png", "Testing/cat/2.png"],
            r"look like splits \(Testing, Training\), .* rename them to train, validation,",
        ),
        (["VAL/cat/1.png", "Train_2/dog/2.png"], r"look like splits \(Train_2, VAL\)"),
        (["images/cat/1.png", "images/dog/2.png"], "of one class, 'images'; give the directory"),
        (["train/cat/1.png", "val/cat/2.png"], "of one class, 'cat'; give the directory"),
    ],
)
def test_folders_that_are_no_classes_are_refused(places, says, tmp_path):
    for place in places:
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_bytes(tfds_data.png(1))
    assert re.search(says, refused(tmp_path, f"folder:{tmp_path}"))


def files_at(root, *places):
    """Writes a PNG to each place, whatever its name."""
    for place in places:
        path = root / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(tfds_data.png(1))


@pytest.mark.parametrize(
    ("places", "says"),
    [
        (
            ["bird/1.png", "dog/2.png", "cat/3.heic", "cat/4.HEIC"],
            r"without images: cat \(\.heic\)",
        ),
        (
            ["bird/1.png", "cat/README", "owl/a.psd"],
            r"images: cat \(no suffix\), owl \(\.psd\); al",
        ),
        (["train/a/1.png", "train/b/2.png", "val/c/3.svg"], r"images: c \(\.svg\); allowed: \.jpg"),
        (["bird/1.png", "dog/2.png", "cat/"], r"without images: cat \(empty\)"),
        (["bird/1.png", "dog/2.png", "cat/.DS_Store"], r"without images: cat \(empty\)"),
        (["images/1.png", "annotations/instances.json"], r"annotations \(\.json\).*see docs/your"),
        (["train/1.png", "val/2.png", "val/_annotations.coco.json"], "look like splits.*see docs/"),
        (["1.png", "instances_val.json"], "has no images in folders.*see docs/your_data.md"),
    ],
)
def test_a_folder_of_a_class_without_images_is_refused(places, says, tmp_path):
    files_at(tmp_path, *(place for place in places if not place.endswith("/")))
    for place in places:
        (tmp_path / place).parent.mkdir(exist_ok=True)
        if place.endswith("/"):
            (tmp_path / place).mkdir()
    with pytest.raises(SourceError, match=says):
        splits.open_source(f"folder:{tmp_path}", "train")


def test_files_that_are_left_out_are_counted_in_a_note(tmp_path):
    files_at(tmp_path / "pictures", *(f"{name}/{n}.png" for name in "ab" for n in range(40)))
    leftovers = ("a/Thumbs.db", "b/desktop.ini", "__MACOSX/a/1.txt", "LICENSE", "a/.DS_Store")
    files_at(tmp_path / "pictures", "a/1.heic", "b/x/2.TXT", "b/3", *leftovers)
    config = config_of(tmp_path, "folder:pictures", dataset__validation_split="train")
    info = splits.open_source("folder:pictures", "train", str(tmp_path))[1]
    (note,) = info.notes
    assert note == (
        "files in the folders of the classes of folder:pictures that are not images of a known "
        "suffix, and are left out: 3 (.heic, .txt, no suffix)"
    )
    assert info.num_classes == 2
    assert splits.remarks(config.dataset)[-1] == note
    others = write("folder", tmp_path / "others")
    assert splits.open_source(others, "train", str(tmp_path / "others"))[1].notes == ()


@pytest.mark.parametrize("suffix", folder.SUFFIXES)
def test_an_image_of_each_suffix_is_decoded(suffix, tmp_path):
    kinds = {".jfif": "JPEG", ".pgm": "PPM"}
    pixels = np.full((16, 24, 3), (200, 100, 50), np.uint8)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        image = Image.fromarray(pixels).convert("L" if suffix == ".pgm" else "RGB")
        image.save(tmp_path / name / f"1{suffix.upper()}", kinds.get(suffix))
    source, info = splits.open_source(f"folder:{tmp_path}", "train")
    assert (len(source), info.image_shape[:2]) == (2, (16, 24))
    decoded = decoding.decode(source[0]["image"], info.channels).astype(int)
    wanted = np.asarray(image).reshape(decoded.shape)
    assert abs(decoded - wanted).max() <= 12  # some formats, and palettes, lose colors


@pytest.mark.parametrize(
    ("sizes", "modes", "expected"),
    [
        ([(8, 8), (8, 8)], ["L", "L"], ((8, 8, 1), 1)),
        ([(8, 6), (8, 6)], ["L", "RGB"], ((6, 8, 3), 3)),
        ([(8, 6), (6, 8)], ["P", "RGBA"], (None, 3)),
        ([(8, 6), (6, 8)], ["1", "I;16"], (None, 1)),
    ],
)
def test_size_and_channels_are_found_from_the_images(sizes, modes, expected, tmp_path):
    for number, (size, mode) in enumerate(zip(sizes, modes, strict=True)):
        (tmp_path / "ab"[number]).mkdir()
        Image.new(mode, size).save(tmp_path / "ab"[number] / f"{number}.png")
    info = splits.open_source(f"folder:{tmp_path}", "train")[1]
    assert (info.image_shape, info.channels) == expected


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("train", "train"),
        ("data/train-00000-of-00002.parquet", "train"),
        ("my_val.txt", "validation"),
        ("VALID/a.txt", "validation"),
        ("dev.jsonl", "validation"),
        ("a/test/b.txt", "test"),
        ("train/how-to-test.txt", "train"),
        ("Train/dev/test.txt", "train"),
        ("my-test/train-00000-of-00002.parquet", "train"),
        ("my-test/train/val.txt", "train"),
        ("my-test/my-val/a.txt", "test"),
        ("a/how-to-test.txt", "test"),
        ("trains", ""),
        ("contest.txt", ""),
        ("evaluation", ""),
    ],
)
def test_the_split_that_a_name_says(name, split):
    assert split_named(name) == split


def test_arrays_are_found_by_their_usual_names_or_by_given_ones(tmp_path):
    images, labels = path_data.pixels(range(6)), np.arange(6) % 2
    color = np.repeat(images[..., None], 3, axis=-1)
    for number, (arrays, query, channels) in enumerate(
        [
            ({"image": images, "label": labels}, "", 1),
            ({"images": color, "labels": labels}, "", 3),
            ({"x_train": images, "y_train": labels, "x_test": images, "y_test": labels}, "", 1),
            ({"faces": images, "who": labels}, "?image=faces&label=who", 1),
            ({"train_faces": images, "train_label": labels}, "?image=faces", 1),
        ]
    ):
        file = path_data.write_npz(tmp_path / f"{number}.npz", **arrays)
        source, info = splits.open_source(f"npz:{file}{query}", "train")
        assert sorted(r["label"] for r in source) == [0, 0, 0, 1, 1, 1]
        assert (info.image_shape, info.num_classes) == ((8, 8, channels), 2)


def test_columns_of_the_hub_are_found_by_type_or_given(tmp_path):
    table = path_data.images_table(range(4), image="picture")
    fine = {"_type": "ClassLabel", "names": [str(n) for n in range(9)]}
    twice = path_data.described(
        table.append_column("fine", pa.array([8, 7, 6, 5])).rename_columns(
            ["picture", "coarse", "fine"]
        ),
        {"picture": path_data.IMAGE, "coarse": path_data.LABEL, "fine": fine},
    )
    bare = pa.table({"image": [tfds_data.png(n) for n in range(4)], "label": [0, 5, 1, 1]})
    path_data.write_parquet(tmp_path / "one.parquet", table)
    path_data.write_parquet(tmp_path / "two.parquet", twice)
    path_data.write_parquet(tmp_path / "bare.parquet", bare)
    unnamed = path_data.described(
        path_data.images_table(range(4)), {"label": {"_type": "ClassLabel"}, "turns": [{"a": {}}]}
    )
    path_data.write_parquet(tmp_path / "unnamed.parquet", unnamed)
    for query, classes, labels in [
        ("one.parquet", 3, [0, 0, 1, 2]),
        ("two.parquet?label=fine", 9, [5, 6, 7, 8]),
        ("two.parquet?label=coarse", 3, [0, 0, 1, 2]),
        ("bare.parquet", 6, [0, 1, 1, 5]),
        ("unnamed.parquet", 3, [0, 0, 1, 2]),
    ]:
        source, info = splits.open_source(f"hf:{query}", "train", str(tmp_path))
        assert sorted(record["label"] for record in source) == labels
        assert info.num_classes == classes
    with pytest.raises(SourceError, match="no column label or objects, but picture, coarse, fine"):
        splits.open_source(f"hf:{tmp_path}/two.parquet", "train")


@pytest.mark.parametrize("kind", ["npz", "parquet", "boxes"])
def test_a_class_may_occur_in_one_split_only(kind, tmp_path):
    """And a test split may have no labels, as the Hub marks it."""
    labels = {"train": [0, 1, 2], "validation": [0, 1, 6], "test": [0, 3, 4]}
    if kind == "npz":
        arrays = {f"{split}_y": np.array(given) for split, given in labels.items()}
        arrays |= {f"{split}_x": path_data.pixels(range(3)) for split in labels}
        name = f"npz:{path_data.write_npz(tmp_path / 'own.npz', **arrays)}"
    else:
        name = f"hf:{tmp_path}"
        images = [tfds_data.png(number) for number in range(3)]
        for split, given in (labels | {"test": [-1, -1, None]}).items():
            column = {"label": given}
            if kind == "boxes":
                boxes = [[0.0, 0.0, 8.0, 8.0]]
                column = {"objects": [{"bbox": boxes, "category": [label]} for label in given]}
            path_data.write_parquet(
                tmp_path / f"{split}.parquet", pa.table({"image": images} | column)
            )
    for split in ("train", "validation"):
        source, info = splits.open_source(name, split)
        assert (len(source), info.num_classes) == (3, 7)
    rewritten = {path.name.partition("-")[0] for path in tmp_path.glob(".cache/*.arrow")}
    assert rewritten == (set() if kind == "npz" else {"train", "validation"})


def test_labels_of_other_splits_are_read_without_copying_their_files(tmp_path):
    """As from a bucket."""
    bucket = storage.fsspec.filesystem("memory")
    for split, given in {"train": [0, 1, 2], "test": [0, 1, 6]}.items():
        images = [tfds_data.png(number) for number in range(3)]
        table = pa.table({"image": images, "label": given})
        path_data.write_parquet(tmp_path / f"{split}.parquet", table)
        content = (tmp_path / f"{split}.parquet").read_bytes()
        bucket.pipe_file(f"/labels_of_other_splits/{split}.parquet", content)
    settings = {"cache_dir": str(tmp_path / "cache")}
    name = "hf:memory://labels_of_other_splits"
    assert splits.open_source(name, "train", **settings)[1].num_classes == 7
    copied = {path.name for path in (tmp_path / "cache").rglob("*.parquet")}
    assert copied == {"train.parquet"}


@pytest.mark.parametrize(
    ("column", "query", "says"),
    [("label", "", "label or objects"), ("breed", "?label=breed", "'breed'")],
)
def test_a_split_without_the_column_of_labels_does_not_matter_to_others(
    column, query, says, tmp_path
):
    images = [tfds_data.png(number) for number in range(3)]
    table = pa.table({"image": images, column: [0, 1, 2]})
    path_data.write_parquet(tmp_path / "train.parquet", table)
    path_data.write_parquet(tmp_path / "test.parquet", table.drop_columns([column]))
    assert splits.open_source(f"hf:{tmp_path}{query}", "train")[1].num_classes == 3
    with pytest.raises(SourceError, match=rf"test\.parquet has no column {says}"):
        splits.open_source(f"hf:{tmp_path}{query}", "test")


@pytest.mark.parametrize("name", ["image", "label"])
def test_two_columns_of_one_name_are_refused(name, tmp_path):
    table = path_data.images_table(range(3))
    table = table.append_column("other", table.column(name))
    twice = table.rename_columns([*table.column_names[:-1], name])
    path_data.write_parquet(tmp_path / "train.parquet", table)
    path_data.write_parquet(tmp_path / "test.parquet", twice)
    assert splits.open_source(f"hf:{tmp_path}", "train")[1].num_classes
    with pytest.raises(SourceError, match=rf"test\.parquet has several columns '{name}'; rename"):
        splits.open_source(f"hf:{tmp_path}", "test")


@pytest.mark.parametrize("listed", [False, True])  # dicts of lists, or lists of dicts
@pytest.mark.parametrize("named", [False, True])
def test_objects_are_converted_from_cocos_boxes(listed, named, tmp_path):
    boxes, kinds = [[2.0, 1.0, 4.0, 2.0], [0.0, 0.0, 8.0, 8.0]], [1, 0]
    objects = {"bbox": boxes, "category": kinds, "iscrowd": [0, 1], "area": [8.0, 64.0]}
    value = [dict(zip(objects, row, strict=True)) for row in zip(*objects.values(), strict=True)]
    images = path_data.images_table(range(2)).column("image")
    nothing = [] if listed else {name: [] for name in objects}
    table = pa.table({"image": images, "objects": [value if listed else objects, nothing]})
    feature: dict | list = {"category": {"_type": "List", "feature": path_data.LABEL}}
    if listed:
        feature = [{"category": path_data.LABEL}]
    if named:
        table = path_data.described(table, {"image": path_data.IMAGE, "objects": feature})
    path_data.save_to_disk(tmp_path / "boxes", {"train": table})
    source, info = splits.open_source(f"hf:{tmp_path}/boxes", "train")
    assert (info.has_boxes, info.num_classes) == (True, 3 if named else 2)
    first, empty = sorted((r["objects"] for r in source), key=lambda o: -len(o["label"]))
    np.testing.assert_allclose(first["bbox"], [[1 / 8, 2 / 8, 3 / 8, 6 / 8], [0, 0, 1, 1]])
    assert (first["label"].tolist(), first["is_crowd"].tolist()) == ([1, 0], [False, True])
    assert first["area"].tolist() == [8, 64]
    assert empty["bbox"].shape == (0, 4)
    config = coco.get_config("mini")
    decoded = workloads.make(config, info).decode(source.__getitems__([0, 1]))
    assert sorted((decoded["labels"] >= 0).sum(1)) == [0, 2]
    assert not decoded["bad_boxes"].any()


def test_a_given_label_takes_precedence_over_objects_that_are_not_given(tmp_path):
    objects = {"bbox": [[0.0, 0.0, 8.0, 8.0]], "category": [1]}
    table = path_data.images_table(range(3)).append_column("objects", pa.array([objects] * 3))
    path_data.write_parquet(tmp_path / "train.parquet", table)
    for query, classes, has_boxes in [
        ("", 2, True),
        ("?label=label", 3, False),
        ("?label=label&objects=objects", 2, True),
    ]:
        source, info = splits.open_source(f"hf:{tmp_path}{query}", "train")
        assert (info.num_classes, info.has_boxes) == (classes, has_boxes)
        assert ("objects" in source[0]) == has_boxes


@pytest.mark.parametrize("areas", [[None, 9.0], None])
def test_objects_without_an_area_have_that_of_their_box(areas, tmp_path):
    boxes = [[2.0, 1.0, 4.0, 2.0], [0.0, 0.0, 8.0, 8.0]]
    objects = {"bbox": boxes, "category": [1, 0], "area": areas, "iscrowd": None}
    kind = pa.struct(
        {
            "bbox": pa.list_(pa.list_(pa.float32())),
            "category": pa.list_(pa.int64()),
            "area": pa.list_(pa.float32()),
            "iscrowd": pa.list_(pa.bool_()),
        }
    )
    images = path_data.images_table(range(1)).column("image")
    table = pa.table({"image": images, "objects": pa.array([objects], kind)})
    path_data.save_to_disk(tmp_path / "boxes", {"train": table}, files=1)
    source, info = splits.open_source(f"hf:{tmp_path}/boxes", "train")
    decoded = workloads.make(coco.get_config("mini"), info).decode([source[0]])
    assert decoded["area"][0, :2].tolist() == [8, 9 if areas else 64]
    assert not decoded["crowd"].any()


LINES = ["first", "", "second, and longer", "  ", "third"]


def test_each_line_is_a_sentence_and_each_file_a_document(tmp_path):
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "a.txt").write_bytes("\n".join(LINES).encode())
    (tmp_path / "train" / "b.txt").write_bytes(b"fourth\r\n\r\nfifth\r\n")
    (tmp_path / "test.txt").write_bytes(b"held out\n")
    name = f"files:{tmp_path}"
    lines, info = splits.open_source(name, "train", text="sentences")
    assert [r["text"] for r in lines] == [
        b"first", b"second, and longer", b"  ", b"third", b"fourth", b"fifth"
    ]  # fmt: skip
    assert lines.where(1).endswith("a.txt, line 3)")
    assert lines.where(5).endswith("b.txt, line 3)")
    assert splits.open_source(name, "test")[0][0] == {"text": b"held out"}
    documents, same = splits.open_source(name, "train", text="documents")
    assert [len(r["text"]) for r in documents] == [len("\n".join(LINES)), 17]
    assert info == same


@pytest.mark.parametrize("text", ["sentences", "documents"])
def test_json_lines_hold_a_text_each(text, tmp_path):
    lines = [json.dumps({"text": line, "content": line[::-1]}) for line in LINES]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    source, _ = splits.open_source(f"files:{tmp_path}/a.jsonl", "train", text=text)
    assert [r["text"] for r in source] == LINES
    other, _ = splits.open_source(f"files:{tmp_path}/a.jsonl?text=content", "train", text=text)
    assert [r["text"] for r in other] == [line[::-1] for line in LINES]


def test_text_of_the_hub_is_read_in_order(tmp_path):
    path_data.write_parquet(tmp_path / "a.parquet", pa.table({"text": LINES, "id": range(5)}))
    source, _ = splits.open_source(f"hf:{tmp_path}", "train")
    assert [r["text"] for r in source] == LINES


def test_lines_are_found_across_the_pieces_of_a_scan(tmp_path, monkeypatch):
    monkeypatch.setattr(text_files, "_SCAN_BYTES", 3)
    content = b"".join(b"x" * (n % 7) + b"\n" * (n % 3) for n in range(99)) + b"\r\n\nlast"
    (tmp_path / "a").write_bytes(content)  # any suffix, if the file is given by its name
    source, _ = splits.open_source(f"files:{tmp_path}/a", "train")
    assert [r["text"] for r in source] == [line for line in content.splitlines() if line]


# --- what can be wrong


def _cut(share=0.5):
    return lambda content: content[: int(len(content) * share)]


def _zeros(content):
    return bytes(len(content))


# A kind of data, its file, the damage, and what the sentence says before the run.
DAMAGED_FILES = {
    "half an .npz": ("npz", "pictures.npz", _cut(), "pictures.npz cannot be used"),
    "an .npz of zeros": ("npz", "pictures.npz", _zeros, "pictures.npz cannot be used"),
    "an empty .npz": ("npz", "pictures.npz", _cut(0), "pictures.npz cannot be used"),
    "an .npz with a wrong byte": (
        "npz",
        "pictures.npz",
        lambda content: content.replace(path_data.pixels(range(5, 6)).tobytes(), bytes(64)),
        "pictures.npz cannot be used .*CRC",
    ),
    "half an Arrow file": ("hf", "saved/train/data-00001-of-00002.arrow", _cut(), "cannot be used"),
    "an Arrow file without its end": (
        "hf",
        "saved/train/data-00001-of-00002.arrow",
        lambda content: content[:-8],
        "data-00001-of-00002.arrow cannot be used .it is truncated",
    ),
    "an empty Arrow file": ("hf", "saved/train/data-00001-of-00002.arrow", _cut(0), "cannot be"),
    "no Arrow file": ("hf", "saved/train/data-00001-of-00002.arrow", None, "is missing; restore"),
    "half a description": ("hf", "saved/train/state.json", _cut(), "description of the data set"),
    "null as description": ("hf", "saved/dataset_dict.json", lambda _: b"null", "description of"),
    "a deep description": ("hf", "saved/dataset_dict.json", lambda _: b"[" * 10**5, "recursion"),
    "a description without splits": (
        "hf",
        "saved/dataset_dict.json",
        lambda _: b'{"splits": []}',
        "names no splits",
    ),
    "a description without files": (
        "hf",
        "saved/train/state.json",
        lambda _: b'{"_data_files": []}',
        "train/state.json names no files",
    ),
    "half a Parquet file": ("parquet", "hub/data/train-00000-of-00001.parquet", _cut(), "00001.pa"),
    "Parquet of zeros": ("parquet", "hub/data/train-00000-of-00001.parquet", _zeros, "00001.parq"),
}


@pytest.mark.parametrize("what", DAMAGED_FILES)
def test_a_damaged_file_is_wrong_input_and_named(what, tmp_path):
    kind, file, damage, says = DAMAGED_FILES[what]
    name, path = write(kind, tmp_path), tmp_path / file
    if damage is None:
        path.unlink()
    else:
        path.write_bytes(damage(path.read_bytes()))
    assert re.search(says, refused(tmp_path, name))


def refused(root, name, **fields):
    """The sentence of a run that is wrong input; checks that nothing was written."""
    with pytest.raises(cli.InputError) as caught:
        train.train(config_of(root, name, **fields), root / "run")
    assert not (root / "run").exists()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def config_of(root, name, **fields):
    """A run of eight steps."""
    where = {"dataset__name": name, "dataset__data_dir": str(root)}
    return mini(**EIGHT_STEPS | where | fields)


@pytest.mark.parametrize(
    ("train_split", "held_out", "shared"),
    [
        ("train", "validation", False),
        ("train[:80%]", "train[80%:]", False),
        ("train[:30]+validation[5:]", "train[30:]+validation[:5]", False),
        ("train", "train", True),
        ("train[:80%]", "train[50%:]", True),
        ("train[:30]+validation", "train[30:]+validation[9:]", True),
        ("train", "dev", False),  # which does not exist: opening it says so
    ],
)
def test_splits_that_share_records_are_found(train_split, held_out, shared, tmp_path):
    fields = {"dataset__train_split": train_split, "dataset__validation_split": held_out}
    sentence = splits.overlap(config_of(tmp_path, write("folder", tmp_path), **fields).dataset)
    assert bool(sentence) == shared
    if shared:
        assert f"train_split={train_split!r} and validation_split={held_out!r} share" in sentence


def test_a_run_and_a_study_say_once_that_their_splits_share_records(tmp_path):
    fields = {"dataset__train_split": "train[:40]", "dataset__validation_split": "train[39:]"}
    fields |= {"dataset__test_split": ""}
    config = config_of(tmp_path, write("folder", tmp_path), **fields)
    of_run, of_study = small_studies.RecordedProgress(), small_studies.RecordedProgress()
    train.train(config, tmp_path / "run", of_run)
    plan = dataclasses.replace(small_studies.study(conditions=("baseline",)), config=config)
    runner.run(plan, tmp_path / "study", of_study)
    for said in (of_run, of_study):
        assert sum("share records" in line for line in said.lines) == 1


DAMAGED_IMAGES = {"nothing": b"", "half": tfds_data.png(0)[:60], "text": b"text" * 99}


@pytest.mark.parametrize("what", DAMAGED_IMAGES)
def test_an_image_that_cannot_be_decoded_is_named(what, tmp_path):
    name = write("folder", tmp_path)
    source, info = splits.open_source(name, "train", str(tmp_path))  # before it was damaged
    path = tmp_path / "pictures" / source[40]["file_name"]
    path.write_bytes(DAMAGED_IMAGES[what])
    workload = workloads.make(config_of(tmp_path, name), info)
    read = Read(source, 0, 60, lambda records, *_: workload.decode(records))
    with pytest.raises(RecordError) as caught:
        read.stacked_items(range(60))
    place = source.where(40)
    assert str(path) in place
    assert str(caught.value).startswith(f"{place} ")
    assert "\n" not in str(caught.value)


PIPES = {
    "folder": ("train/a/0.png", "cannot be read"),
    "files": ("train.txt", "is not a file; move it away"),
    "npz": ("arrays.npz", "is not a file; move it away"),
    "hf": ("train.parquet", "is not a file; move it away"),
}


@pytest.mark.parametrize("kind", PIPES)
def test_a_named_pipe_is_refused_and_does_not_block(kind, tmp_path):
    file, says = PIPES[kind]
    path = tmp_path / file
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(path)  # whoever opens it waits
    if kind == "folder":  # one class would be refused first
        (tmp_path / "train" / "b").mkdir()
        (tmp_path / "train" / "b" / "0.png").write_bytes(tfds_data.png(0))
    with pytest.raises((SourceError, RecordError), match=f"{re.escape(str(path))}.* {says}"):
        splits.open_source(f"{kind}:{tmp_path}", "train", text="documents")


@pytest.mark.parametrize("target", [".", ".."])
def test_a_link_to_a_directory_that_it_lies_in_is_refused(target, tmp_path):
    path_data.write_folder(tmp_path / "own", {"": range(9)})
    (tmp_path / "cat").symlink_to(tmp_path / "own" / "cat")
    (tmp_path / "own" / "more").symlink_to(tmp_path / "cat")  # an ordinary link
    assert len(splits.open_source(f"folder:{tmp_path}/own", "train")[0]) == 12
    paths.open_all.cache_clear()
    (tmp_path / "own" / "owl" / "loop").symlink_to(target)
    with pytest.raises(SourceError, match=r"owl/loop is a link to .*own.*; remove the link"):
        splits.open_source(f"folder:{tmp_path}/own", "train")


def test_an_image_that_disappears_is_named(tmp_path):
    source, _ = splits.open_source(write("folder", tmp_path), "train", str(tmp_path))
    path = tmp_path / "pictures" / source[40]["file_name"]
    path.unlink()
    with pytest.raises(
        RecordError, match=rf"^record 40 of split 'train' \({path}\) cannot be read"
    ):
        source.__getitems__([39, 40, 41])


def test_a_damaged_copy_of_a_parquet_file_is_the_file_to_delete(tmp_path):
    name = write("parquet", tmp_path)
    splits.open_source(name, "train", str(tmp_path))
    (copy,) = (tmp_path / "hub" / ".cache").glob("train-*.arrow")
    copy.write_bytes(copy.read_bytes()[:-100])
    paths.open_all.cache_clear()
    with pytest.raises(SourceError, match=rf"^{copy} cannot be used \(.*\); delete it, and it"):
        splits.open_source(name, "train", str(tmp_path))
    copy.unlink()
    splits.open_source(name, "train", str(tmp_path))


def test_offsets_that_lead_out_of_an_arrow_file_are_found_when_read(tmp_path):
    name = write("hf", tmp_path)
    path = tmp_path / "saved" / "train" / "data-00001-of-00002.arrow"
    sizes = [0, *(len(tfds_data.png(number)) for number in range(30, 37))]
    offsets = np.cumsum(sizes, dtype=np.int32)  # of the images in the first batch of the file
    wrong = np.where(np.arange(8) == 3, 2**30, offsets).astype(np.int32)
    content = path.read_bytes()
    assert offsets.tobytes() in content
    path.write_bytes(content.replace(offsets.tobytes(), wrong.tobytes()))
    with pytest.raises(
        RecordError, match=r"^record \d+ of split 'train' \(.*data-00001-of-00002.ar"
    ):
        splits.open_source(name, "train", str(tmp_path))


@pytest.mark.parametrize("line", [b"{", b"[1]", b"3", b'{"txt": "a"}', b'{"text": 3}', b"\xff"])
def test_a_damaged_line_of_json_is_named(line, tmp_path):
    lines = [b'{"text": "fine"}', b"", line, b'{"text": "fine"}']
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(lines))
    source, _ = splits.open_source(f"files:{tmp_path}", "train")
    named = r"^record 1 of split 'train' \(.*a.jsonl, line 3\) cannot be read: (?!.*line \d)"
    with pytest.raises(RecordError, match=named):
        source.__getitems__([0, 1, 2])


@pytest.mark.slow
def test_a_damaged_image_ends_a_run_which_resumes_bit_for_bit(tmp_path):
    name = write("folder", tmp_path)
    config = config_of(tmp_path, name)
    source, _ = splits.open_source(name, "train", str(tmp_path))
    (last,) = record_numbers(np.array([59]), 60, config.seed.data)  # of the first epoch
    path = tmp_path / "pictures" / source[last]["file_name"]
    sound, whole, ended = path.read_bytes(), tmp_path / "whole", tmp_path / "ended"
    train.train(config, whole)
    path.write_bytes(sound[:-20])  # its header is intact
    paths.open_all.cache_clear()
    result = train.train(config, ended)
    assert (result["status"], result["step"]) == ("failed", 3)
    assert result["error"].startswith(f"RecordError: record {last} of split 'train' ({path}) ")
    path.write_bytes(sound)
    paths.open_all.cache_clear()
    train.train(config, ended)
    assert logged_numbers(whole) == logged_numbers(ended)


@pytest.mark.slow
def test_files_may_have_names_of_any_bytes(tmp_path):
    name = write("folder", tmp_path)
    for path in [*(tmp_path / "pictures").rglob("*.png")]:
        path.rename(path.with_name(f"{path.stem}\udcff.png"))  # the byte 0xff
    config = config_of(tmp_path, name)
    source, _ = splits.open_source(name, "train", str(tmp_path))
    (last,) = record_numbers(np.array([59]), 60, config.seed.data)  # of the first epoch
    path = tmp_path / "pictures" / source[last]["file_name"]
    path.write_bytes(path.read_bytes()[:-20])  # its header is intact
    result = train.train(config, tmp_path / "run")
    assert (result["status"], result["step"]) == ("failed", 3)
    assert result["error"].startswith(f"RecordError: record {last} of split 'train' ({path}) ")
    assert "\\udcff.png) " in (tmp_path / "run" / "error.txt").read_text()


@pytest.mark.parametrize(
    ("name", "fields", "says"),
    [
        ("folder:pictres", {}, r"no file or directory .*/pictres \(did you mean .*/pictures\?\)"),
        ("npz:pictures", {}, "is a directory; give an .npz file"),
        ("hf:pictures", {}, "contains no Hugging Face data set; give the directory"),
        ("files:pictures", {}, "has no text files .*; give a text file, or a directory"),
        ("folder:pictures/train/cat", {}, "has no images in folders; give the directory whose"),
        ("folder:pictures?image=x", {}, "folder: has no columns"),
        ("folder:ftp://127.0.0.1:1/x", {}, "ftp://127.0.0.1:1/x cannot be listed .*refused"),
        ("folder:nowhere://x", {}, "nowhere://x is not supported; allowed: a path, s3://"),
        ("npz:pictures?text=x", {}, "npz: has columns of image and label only"),
        ("files:pictures?label=x", {}, "files: has columns of text only"),
        ("hf:pictures?", {}, "allowed after the question mark: FIELD=COLUMN"),
        ("npz:x?picture=y", {}, "FIELD is image, label, objects, or text"),
        (
            "folder:pictures",
            {"dataset__validation_split": "dev"},
            "allowed: train .60 records., val",
        ),
        (
            "folder:pictures",
            {"dataset__train_split": "train[5:2]"},
            "has no records in split 'train.5",
        ),
        ("folder:pictures", {"dataset__train_split": "train["}, "has no split 'train\\['; allowed"),
        ("folder:pictures/train", {}, "shares of it: --config.dataset.train_split='train.:90%.'"),
    ],
)
def test_what_is_not_there_is_said_with_what_is(name, fields, says, tmp_path):
    write("folder", tmp_path)
    assert re.search(says, refused(tmp_path, name, **fields))


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("{}/pictures", "a path without its kind; allowed: folder:{}/pictures$"),
        ("{}/pictures.npz", "a path without its kind; allowed: npz:{}/pictures.npz$"),
        ("{}/saved", "a path without its kind; allowed: hf:{}/saved$"),
        ("{}/a.txt", "a path without its kind; allowed: files:{}/a.txt$"),
        ("images:{}/pictures", "of an unknown kind, 'images'; allowed: folder:{}/pictures$"),
        ("file:pictures", "of an unknown kind, 'file'; allowed: folder:pictures, files:pictures"),
        ("folder:", "'folder:', which has no path; allowed: folder:PATH$"),
        ("{}/nowhere", "allowed: folder:{0}/nowhere, files:{0}/nowhere, npz:{0}/nowhere, hf:"),
        ("{}/prepared/1.0.0", "in which TFDS has prepared it as config.dataset.data_dir"),
        ("s3://bucket/x", "a path without its kind; allowed: folder:s3://bucket/x, files:"),
        ("pictures", "give your own data as folder:PATH, files:PATH, npz:PATH, or hf:PATH"),
    ],
)
def test_a_path_without_its_kind_is_answered_with_what_fits(name, says, tmp_path):
    for kind in ("folder", "npz", "hf"):
        write(kind, tmp_path)
    (tmp_path / "a.txt").write_text("text")
    tfds_data.write_text(tmp_path, "prepared", {"train": [b"text"]})
    sentence = refused(tmp_path, name.format(tmp_path))
    assert re.search(says.replace("{}", "{0}").format(re.escape(str(tmp_path))), sentence)


@pytest.mark.parametrize(
    ("arrays", "says"),
    [
        ({"image": np.zeros((4, 8, 8)), "label": np.arange(4)}, r"image .* is float64 \[4, 8, 8\]"),
        ({"image": np.zeros((4, 64), np.uint8), "label": np.arange(4)}, "allowed: uint8 .4, H, W"),
        (
            {"image": np.zeros((3, 8, 8), np.uint8), "label": np.arange(4)},
            "an image for each label",
        ),
        (
            {"image": np.zeros((4, 8, 8), np.uint8), "label": np.eye(4)},
            "is float64 .4, 4.; allowed",
        ),
        ({"image": np.zeros((4, 8, 8), np.uint8), "label": np.arange(4) - 1}, "outside of 0 to"),
        (
            {"image": np.zeros((4, 8, 8), np.uint8), "label": np.arange(4) * 2**30},
            "outside of 0 to",
        ),
        (
            {"image": np.zeros((4, 3, 8, 8), np.uint8), "label": np.arange(4)},
            r"1 or 3 channels .* \(its image_shape is \(3, 8, 8\), channels 8",
        ),
        ({"image": np.zeros((4, 8, 8), np.uint8)}, "no arrays image and label .*, but image; name"),
        (
            {"image": np.array([b"a", None]), "label": np.arange(2)},
            r"image .* is object \[2\]; allowed: uint8 \[2, H, W\]",
        ),
        (
            {"image": np.zeros((2, 8, 8), np.uint8), "label": np.array(["a", None])},
            r"label .* is object \[2\]; allowed: whole numbers \[N\]",
        ),
        ({"image": np.zeros((2, 0, 8), np.uint8), "label": np.arange(2)}, "allowed: uint8 .2, H"),
        (
            {"images": np.zeros((2, 8, 8), np.uint8), "x": np.eye(2), "y": np.arange(2)},
            r"arrays images and x, either of which could be image; name .*a.npz\?image=images'",
        ),
    ],
)
def test_arrays_of_another_kind_are_refused(arrays, says, tmp_path):
    path_data.write_npz(tmp_path / "a.npz", **arrays)
    fields = {"dataset__validation_split": "train"}
    assert re.search(says, refused(tmp_path, "npz:a.npz", **fields))


def test_several_labels_of_an_image_are_refused_if_their_classes_have_names_too(tmp_path):
    table = pa.table({"image": [tfds_data.png(1)], "labels": [[0, 2]]})
    features = {"image": path_data.IMAGE, "labels": [path_data.LABEL]}
    path_data.write_parquet(tmp_path / "a.parquet", path_data.described(table, features))
    with pytest.raises(SourceError, match=r"'labels' of .* is list<.*int64>; allowed: whole"):
        splits.open_source(f"hf:{tmp_path}", "train")


def test_a_file_of_one_array_is_refused(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((4, 8, 8), np.uint8))
    sentence = refused(tmp_path, "npz:a.npy")
    assert "a.npy is a .npy file, which holds one array; save both arrays in one .npz" in sentence
    assert "np.savez('a.npz', image=images, label=labels)" in sentence


def test_a_file_in_place_of_an_array_is_damage(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("image.npy", b"text")
        archive.writestr("label.npy", b"text")
    assert "a.npz cannot be used (label is no array)" in refused(tmp_path, "npz:a.npz")


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        (
            {"a": [1]},
            "no column image or text, but a; write config.dataset.name='hf:a.parquet.image",
        ),
        ({"image": [b"x"], "label": ["cat"]}, "is no image of a known format; fix it"),
        (
            {"image": [tfds_data.png(1)], "label": ["cat"]},
            "class_encode_column..label..` makes",
        ),
        (
            {"image": [tfds_data.png(1)], "label": [-1]},
            "has labels such as -1; allowed: whole number",
        ),
        (
            {"image": [tfds_data.png(1)], "labels": [[0, 2]]},
            "'labels' of .* is list<.*int64>; allowed: whole numbers from 0, which",
        ),
        (
            {"image": [tfds_data.png(1)], "fine": [0], "coarse": [0]},
            "no column label or objects, but image, fine, coarse; .* 'hf:a.parquet.label=NAME'",
        ),
        ({"image": [tfds_data.png(1)], "label": [0]}, r"labels of two classes .* num_classes 1\)"),
        (
            {"image": [tfds_data.png(1)], "objects": [[{"bbox": [0, 0, 1, 1], "category": "cat"}]]},
            r"'objects' of .* has a field 'category' of string; .* which `dataset\.map` makes",
        ),
        (
            {"image": [tfds_data.png(1)], "objects": [{"bbox": [0, 0, 1, 1], "category": 0}]},
            "'objects' of .* has one object per image; allowed: lists of objects",
        ),
        ({"text": ["a"]}, "no images of one size"),
        (
            {"image": [[[0, 255]]], "label": [1]},
            r"'image' of .* is list<.*int64>>; allowed: encoded images, .*cast_column\('image', ",
        ),
        ({"image": ["a.png"], "label": [1]}, "'image' of .* is string; allowed: encoded images"),
        (
            {"image": [{"bytes": None, "path": "/a/b.png"}], "label": [1]},
            "not stored with the data",
        ),
    ],
)
def test_columns_of_another_kind_are_refused(columns, says, tmp_path):
    path_data.write_parquet(tmp_path / "a.parquet", pa.table(columns))
    fields = {"dataset__validation_split": "train"}
    assert re.search(says, refused(tmp_path, "hf:a.parquet", **fields))


@pytest.mark.parametrize("text", ["sentences", "documents"])
@pytest.mark.parametrize("name", ["a.jsonl", "a.JSONL", "a.ndjson", "a.json"])
def test_json_lines_by_any_of_their_names_are_read(name, text, tmp_path):
    (tmp_path / name).write_text('{"text": "one"}\n{"text": "two"}\n')
    source, _ = splits.open_source(f"files:{tmp_path}/{name}", "train", text=text)
    assert [record["text"] for record in source] == ["one", "two"]
    if not name.endswith(".json"):  # in a directory, that describes data
        (tmp_path / "dataset_info.json").write_text("{}")
        source, _ = splits.open_source(f"files:{tmp_path}", "train", text=text)
        assert [record["text"] for record in source] == ["one", "two"]


@pytest.mark.parametrize(
    ("query", "record", "says"),
    [
        ("", {"content": "a"}, r"no field 'text', but the strings 'content'; .*l\?text=content'"),
        ("?text=txt", {"n": 3, "a": "b", "c": "d"}, r"field 'txt', .* 'a', 'c'; .*\?text=a'"),
        ("", {"text": None, "url": "b"}, "no JSON object with a string 'text'; restore the file"),
        ("", {"n": 3}, "no JSON object with a string 'text'; restore the file"),
        ("", {"\ud800": "a"}, "no JSON object with a string 'text'; restore the file"),
        ("", {"\ud800": "a", "b": "c"}, r"but the strings 'b'; name one .*text=b'"),
        ("", {"a&b=c": "d"}, r"the strings 'a&b=c'; .*l\?text=a%26b%3Dc'"),
        ("", dict.fromkeys("abcdefg", ""), "the strings 'a', 'b', 'c', 'd', 'e', ...; name one"),
    ],
)
def test_objects_with_other_fields_are_answered_with_their_strings(query, record, says, tmp_path):
    (tmp_path / "a.jsonl").write_text("\n" + json.dumps(record))
    with pytest.raises((SourceError, RecordError), match=says):
        splits.open_source(f"files:{tmp_path}/a.jsonl{query}", "train")[0][0]


@pytest.mark.parametrize(("before", "indent"), [("", None), ("", 2), ("\n", 2), ("\ufeff", None)])
@pytest.mark.parametrize("name", ["a.json", "a.jsonl"])
def test_a_json_array_is_refused(name, before, indent, tmp_path):
    array = json.dumps([{"text": "one"}, {"text": "two"}], indent=indent)
    (tmp_path / name).write_text(before + array)
    with pytest.raises(SourceError, match=f"{name} contains a JSON array; allowed: one JSON objec"):
        splits.open_source(f"files:{tmp_path}/{name}", "train")


COCO = {
    "info": {"year": 2017},
    "images": [{"id": 1, "file_name": "1.jpg"}],
    "annotations": [{"image_id": 1, "category_id": 3, "bbox": [0, 0, 1, 1]}],
}


@pytest.mark.parametrize("name", ["a.json", "a.jsonl"])
@pytest.mark.parametrize(
    ("value", "indent", "says"),
    [
        (
            COCO,
            None,
            "has lists, but no field 'text'; allowed: one JSON object per line.*see docs/",
        ),
        (
            COCO,
            2,
            "contains one JSON object on several lines; allowed: one JSON .*see docs/your_da",
        ),
        ({"text": "one", "n": 2}, 1, "contains one JSON object on several lines; .* writes them$"),
        ({"turns": [{"role": "a"}]}, None, "that has lists, but no field 'text'; .* writes them$"),
    ],
)
def test_one_json_object_is_refused(name, value, indent, says, tmp_path):
    (tmp_path / name).write_text(json.dumps(value, indent=indent))
    with pytest.raises(SourceError, match=says):
        splits.open_source(f"files:{tmp_path}/{name}", "train", text="sentences")


def test_one_json_object_on_one_long_line_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(text_files, "_START_BYTES", 64)
    (tmp_path / "a.json").write_text(json.dumps(COCO))
    with pytest.raises(SourceError, match=r"starts with a long JSON object of boxes; .*your_data"):
        splits.open_source(f"files:{tmp_path}/a.json", "train")


def test_a_long_object_whose_text_follows_its_lists_is_read(tmp_path):
    record = {"tags": [{"a": 1}] * 200_000, "text": "hello"}
    (tmp_path / "a.jsonl").write_text(json.dumps(record))
    assert len(json.dumps(record)) > text_files._START_BYTES
    assert splits.open_source(f"files:{tmp_path}/a.jsonl", "train")[0][0]["text"] == "hello"


def test_a_long_object_with_lists_and_a_text_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(text_files, "_START_BYTES", 64)
    for number in range(50, 70):  # the start may end in a comma
        file = tmp_path / f"{number}.jsonl"
        record = {"links": [{"n": 1}] * (number % 9), "\u00e9": "a, b", "text": "," * number}
        file.write_text(json.dumps(record))
        assert splits.open_source(f"files:{file}", "train")[0][0]["text"] == "," * number
        assert splits.open_source(f"files:{file}?text=%C3%A9", "train")[0][0]["text"] == "a, b"


@pytest.mark.parametrize(
    ("file", "says"),
    [
        (
            "a.csv",
            r"allowed: 'files:{}/a\.jsonl\?text=COLUMN', which pandas\.read_csv\('{}/a\.csv'\)"
            r"\.to_json\('{}/a\.jsonl', orient='records', lines=True\) writes$",
        ),
        ("a.CSV.gz", r"allowed: 'files:{}/a\.jsonl\?.*read_csv\('{}/a\.CSV\.gz'\)"),
        ("a.tsv", r"read_csv\('{}/a\.tsv', sep='\\t'\)\.to_json"),
        ("a.xlsx", r"read_excel\('{}/a\.xlsx'\)\.to_json"),
        ("a.parquet", r"allowed: hf:{}/a\.parquet$"),
        ("a.arrow", r"allowed: hf:{}/a\.arrow$"),
    ],
)
def test_a_table_is_no_text(file, says, tmp_path):
    (tmp_path / file).write_text("text,label\none,1\n")
    says = says.replace("{}", re.escape(str(tmp_path)))
    for name in (f"files:{tmp_path}/{file}", f"files:{tmp_path}"):
        with pytest.raises(SourceError, match=f"is a table, .*{says}"):
            splits.open_source(name, "train", text="sentences")
    for name in (f"csv:{tmp_path}/{file}", f"{tmp_path}/{file}"):
        with pytest.raises(SourceError, match=says):
            paths.check_name(name)


def test_the_conversion_of_a_table_is_the_one_that_its_refusal_gives(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.csv").write_text('text,label\n"one, two",1\nthree,0\n')
    with pytest.raises(SourceError) as refusal:
        splits.open_source("files:a.csv", "train")
    code = re.search(r"which (pandas\..*) writes", str(refusal.value))[1]
    exec(code, {"pandas": pd})
    source, _ = splits.open_source("files:a.jsonl?text=text", "train", text="sentences")
    assert [record["text"] for record in source] == ["one, two", "three"]


def test_tables_beside_text_are_not_read(tmp_path):
    (tmp_path / "labels.csv").write_text("label\n1\n")
    (tmp_path / "a.txt").write_text("one\n")
    source, _ = splits.open_source(f"files:{tmp_path}", "train", text="sentences")
    assert [record["text"] for record in source] == [b"one"]


def test_a_binary_file_of_another_suffix_is_no_text(tmp_path):
    np.savez(tmp_path / "a.npz", image=np.zeros(4))
    with pytest.raises(SourceError, match=r"a\.npz is a binary file; give a text file"):
        splits.open_source(f"files:{tmp_path}/a.npz", "train", text="sentences")


def test_boxes_in_cocos_format_are_answered_with_their_page(tmp_path):
    files_at(tmp_path, "images/1.png")
    (tmp_path / "annotations").mkdir()
    (tmp_path / "annotations" / "instances_val2017.json").write_text(json.dumps(COCO))
    for name in (f"coco:{tmp_path}", f"{tmp_path}"):
        with pytest.raises(SourceError, match=r"allowed: hf:.*COCO's format, see docs/your"):
            paths.check_name(name)


def test_a_json_array_on_one_long_line_is_not_read_whole(tmp_path):
    with (tmp_path / "a.jsonl").open("wb") as file:
        file.write(b'[{"text": "')
        file.truncate(2**33)  # zeros that take no space
    with pytest.raises(SourceError, match=r"a.jsonl contains a JSON array"):
        splits.open_source(f"files:{tmp_path}/a.jsonl", "train")


def test_names_of_text_files_may_be_in_capitals(tmp_path):
    (tmp_path / "TRAIN.TXT").write_text("one\ntwo\n")
    (tmp_path / "TEST.TXT").write_text("three\n")
    source, _ = splits.open_source(f"files:{tmp_path}", "train", text="sentences")
    assert [record["text"] for record in source] == [b"one", b"two"]


def test_a_column_of_plain_text_is_refused(tmp_path):
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    with pytest.raises(SourceError, match=r"a.txt is plain text without columns; end the name"):
        splits.open_source(f"files:{tmp_path}/a.txt?text=content", "train", text="sentences")


@pytest.mark.parametrize("text", ["sentences", "documents"])
def test_text_in_utf16_is_refused(text, tmp_path):
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    (tmp_path / "b.txt").write_text("one\ntwo\n", encoding="utf-16")
    with pytest.raises(SourceError, match=r"b.txt is UTF-16; convert it to UTF-8"):
        splits.open_source(f"files:{tmp_path}", "train", text=text)


def test_files_of_several_data_sets_are_refused(tmp_path):
    path_data.write_parquet(tmp_path / "a.parquet", path_data.images_table(range(3)))
    path_data.write_parquet(tmp_path / "b.parquet", pa.table({"text": ["a"]}))
    with pytest.raises(
        SourceError, match=r"b.parquet has other columns than .*a.parquet; give the"
    ):
        splits.open_source(f"hf:{tmp_path}", "train")


# --- runs


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_trains_and_is_recorded(kind, tmp_path):
    name = write(kind, tmp_path)
    config = config_of(tmp_path, name, echo__insertion="before_augmentation", echo__factor=2)
    assert train.train(config, tmp_path / "run")["status"] == "exhausted"
    recorded = json.loads((tmp_path / "run" / "config.json").read_text())["dataset"]
    info = splits.open_source(name, "train", str(tmp_path))[1]
    assert (recorded["name"], recorded["fingerprint"]) == (name, info.fingerprint)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "text"), [("files", "sentences"), ("hf", "documents")])
def test_text_trains_and_its_vocabulary_lies_beside_it(kind, text, tmp_path):
    if kind == "files":
        (tmp_path / "data").mkdir()
        lines = path_data.sentences(range(100))
        (tmp_path / "data" / "train.txt").write_text("\n".join(lines[:80]))
        (tmp_path / "data" / "val.txt").write_text("\n".join(lines[80:]))
    else:
        for split, numbers in (("train", range(80)), ("val", range(80, 100))):
            table = pa.table({"text": path_data.sentences(numbers)})
            path_data.write_parquet(tmp_path / "data" / f"{split}.parquet", table)
    config = lm1b.get_config("mini")
    fields = {
        "dataset.name": f"{kind}:{tmp_path}/data",
        "dataset.text": text,
        "dataset.validation_split": "validation",
        "dataset.vocabulary_size": 50,
        "dataset.sequence_length": 8,
        "model.dim": 8,
        "model.layers": 1,
        "batch_size": 8,
        "budget.fresh_examples": 80,
        "evaluate_every_fresh_examples": 40,
        "checkpoint_every_fresh_examples": 40,
        "target.value": 0.0,
    }
    for field, value in fields.items():
        cli.set_field(config, field, value)
    assert train.train(config, tmp_path / "run")["status"] == "exhausted"
    assert [path.suffix for path in (tmp_path / "data" / "text").glob("vocab*.model")]
