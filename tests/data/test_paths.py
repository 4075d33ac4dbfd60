"""Data sets by path: each kind, its layouts, its splits, and runs on it."""

import json
import shutil

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

import train
import workloads
from configs import base, coco
from data import folder, paths, splits
from data.path_data import split_named
from data.sources import SourceError
from runs import cli
from tests.helpers import path_data, tfds_data
from tests.helpers.runs import EIGHT_STEPS, mini
from workloads import decoding

NUMBERS = {"train": range(60), "val": range(60, 80)}
HF = pytest.param("hf", marks=pytest.mark.extras)
KINDS = ("folder", "npz", HF)


@pytest.fixture
def write(tmp_path):
    """A function that writes a data set with some splits and returns its name."""

    def write(kind, root=tmp_path, numbers=NUMBERS):
        if kind == "hf":
            pytest.importorskip("datasets")
        if kind == "folder":
            path_data.write_folder(root / "pictures", numbers)
        elif kind == "npz":
            arrays = {f"{s}_images": path_data.pixels(rows) for s, rows in numbers.items()}
            arrays |= {f"{s}_labels": np.array(rows)[:, None] % 3 for s, rows in numbers.items()}
            path_data.write_npz(root / "pictures", **arrays)
            (root / "pictures.npz").rename(root / "pictures")
        else:
            for split, rows in numbers.items():
                table = path_data.images_table(rows)
                path_data.write_parquet(root / f"pictures/{split}-00000.parquet", table)
        return f"{kind}:pictures"

    return write


def content(records):
    """Pixels and label of each record."""
    return [
        (decoding.decode(record["image"], 1).tobytes(), int(record["label"])) for record in records
    ]


def wanted(numbers):
    pixels = path_data.pixels(numbers)
    return [(image.tobytes(), n % 3) for n, image in zip(numbers, pixels, strict=True)]


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_gives_every_image_with_its_label_and_what_a_model_must_know(
    kind, write, tmp_path
):
    name = write(kind)
    train_split, info = splits.open_source(name, "train", str(tmp_path))
    everything = train_split.__getitems__(range(60))
    held_out, same = splits.open_source(name, "validation", str(tmp_path))
    assert sorted(content(train_split)) == sorted(wanted(NUMBERS["train"]))
    assert sorted(content(held_out)) == sorted(wanted(NUMBERS["val"]))
    assert info == same
    assert (info.num_classes, info.image_shape, info.channels) == (3, (8, 8, 1), 1)
    half, _ = splits.open_source(name, "train[:50%]", str(tmp_path))
    assert content(half) == content(train_split)[:30]
    assert {label for _, label in content(half)} == {0, 1, 2}  # the data are sorted by class
    both, _ = splits.open_source(name, "validation+train[59:]", str(tmp_path))
    assert content(both) == content(held_out) + content(train_split)[59:]
    order = np.random.default_rng(0).permutation(60).tolist()
    shuffled = content(train_split.__getitems__(order))
    assert shuffled == [content([train_split[number]])[0] for number in order]
    with pytest.raises(IndexError):
        train_split[60]
    assert train_split.bytes_read(120) == 2 * sum(
        image.nbytes if kind == "npz" else len(image)
        for image in (record["image"] for record in everything)
    )


@pytest.mark.parametrize("kind", KINDS)
def test_the_fingerprint_is_that_of_the_data_wherever_they_lie(kind, write, tmp_path):
    name = write(kind, tmp_path / "here")
    (tmp_path / "there").mkdir()
    copy = shutil.copytree if kind != "npz" else shutil.copy
    copy(tmp_path / "here" / "pictures", tmp_path / "there" / "pictures")
    first = splits.open_source(name, "train", str(tmp_path / "here"))[1].fingerprint
    assert first == splits.open_source(name, "train", str(tmp_path / "there"))[1].fingerprint
    write(kind, tmp_path / "other", NUMBERS | {"val": range(60, 81)})
    assert first != splits.open_source(name, "train", str(tmp_path / "other"))[1].fingerprint


# --- splits that are chosen by themselves


def dataset_of(root, name, **fields):
    """config.dataset for the data `name` in `root`."""
    where = {"name": name, "data_dir": str(root), "train_split": "", "validation_split": ""}
    config = base.get_config()
    for field, value in (where | fields).items():
        cli.set_field(config, f"dataset.{field}", value)
    return config.dataset


@pytest.mark.parametrize(("held_out", "size"), [("", 20), ("train[:7]", 7)])
def test_given_splits_come_first(held_out, size, write, tmp_path):
    dataset = dataset_of(tmp_path, write("folder"), validation_split=held_out)
    assert [len(source) for source in splits.open_splits(dataset)[:2]] == [60, size]


@pytest.mark.parametrize("kind", KINDS)
def test_data_without_splits_are_divided_and_it_is_said_once(kind, write, tmp_path):
    dataset = dataset_of(tmp_path, write(kind, numbers={"train": range(300)}))
    kept, held_out, info = splits.open_splits(dataset)
    assert sorted(content([*kept, *held_out])) == sorted(wanted(range(300)))
    assert 15 < len(held_out) < 50
    (note,) = info.notes
    assert f"{len(held_out)} of its 300 records" in note
    assert splits.remarks(dataset) == [note]
    fields = {"train_split": "kept", "validation_split": "held_out[:5]"}
    explicit = splits.open_splits(dataset_of(tmp_path, dataset.name, **fields))
    assert [len(source) for source in explicit[:2]] == [len(kept), 5]
    assert explicit[2].notes == ()


def test_no_record_changes_sides_when_others_are_added(tmp_path):
    """Of images by their names, of text by its lines."""
    (tmp_path / "a.txt").write_text("\n".join(path_data.sentences(range(200))))
    path_data.write_folder(tmp_path / "own", {"": range(200)})
    before = {name: divided(tmp_path, name) for name in ("folder:own", "files:a.txt")}
    path_data.write_folder(tmp_path / "own", {"": range(1000, 1200)})
    lines = path_data.sentences(range(1000, 1200)) + path_data.sentences(range(200))
    (tmp_path / "a.txt").write_text("\n".join(lines))
    for name, parts in before.items():
        for part, more in zip(parts, divided(tmp_path, name), strict=True):
            assert part < more


def divided(root, name):
    field = "text" if name.startswith("files") else "file_name"
    names = splits.split_names(dataset_of(root, name))[:2]
    return [{r[field] for r in splits.open_source(name, part, str(root))[0]} for part in names]


@pytest.mark.parametrize(
    ("train_split", "held_out", "shared"),
    [
        ("train", "validation", False),
        ("train[:80%]", "train[80%:]", False),
        ("train[:30]+validation[5:]", "train[30:]+validation[:5]", False),
        ("train", "train", True),
        ("train[:80%]", "train[50%:]", True),
        ("train[:30]+validation", "train[30:]+validation[9:]", True),
        ("train", "held_out", True),
        ("train", "dev", False),  # which does not exist: opening it says so
    ],
)
def test_splits_that_share_records_are_found(train_split, held_out, shared, write, tmp_path):
    fields = {"train_split": train_split, "validation_split": held_out}
    numbers = {"train": range(60)} if held_out == "held_out" else NUMBERS
    said = splits.remarks(dataset_of(tmp_path, write("folder", numbers=numbers), **fields))
    assert bool(said) == shared
    assert all(train_split in line and held_out in line for line in said)


def test_a_test_split_that_shares_records_is_found(write, tmp_path):
    fields = {"train_split": "train", "validation_split": "validation"}
    dataset = dataset_of(tmp_path, write("folder"), **fields, test_split="train[:5]")
    assert "test_split='train[:5]'" in splits.remarks(dataset)[0]


# --- layouts


def files_at(root, *places):
    """Writes a PNG to each place, whatever its name."""
    for place in places:
        path = root / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(tfds_data.png(1))


@pytest.mark.parametrize(
    ("places", "classes", "expected"),
    [
        (  # images may lie deeper; those of no class, hidden ones, and a system's are left out
            "train/b/x/1.png train/a/2.png val/b/3.PNG val/.x/4.png test/5.png train/t.txt 6.png "
            "train/a/@eaDir/2.png/3.png train/lost+found/1.png",
            "a b",
            {"train": {"train/b/x/1.png": 1, "train/a/2.png": 0}, "validation": {"val/b/3.PNG": 1}},
        ),
        (  # other folders beside train are no splits
            "Training/a/1.png Training/b/1.png TESTING/a/1.png masks/train/1.png masks/val/1.png",
            "a b",
            {
                "train": {"Training/a/1.png": 0, "Training/b/1.png": 1},
                "test": {"TESTING/a/1.png": 0},
            },
        ),
        (  # a class may be called train
            "train/1.png test/2.png car/3.png",
            "car test train",
            {"train": {"train/1.png": 2, "test/2.png": 1, "car/3.png": 0}},
        ),
    ],
)
def test_classes_and_splits_are_those_of_the_folders(places, classes, expected, tmp_path):
    files_at(tmp_path, *places.split())
    opened = paths.open_all(dataset_of("", f"folder:{tmp_path}"))
    assert opened.info.num_classes == len(classes.split())
    found = {
        split: {r["file_name"]: r["label"] for r in opened.open(split).read(range(len(places)))}
        for split, places in expected.items()
    }
    assert found == expected
    assert {*opened.splits} - {paths.KEPT, paths.HELD_OUT} == set(expected)


def test_files_that_are_left_out_are_counted_in_a_note(tmp_path):
    files_at(tmp_path, *(f"{name}/{n}.png" for name in "ab" for n in range(4)))
    files_at(tmp_path, "a/1.heic", "b/x/2.TXT", "b/3", "__MACOSX/._a", "LICENSE", "a/.DS_Store")
    info = splits.open_source(f"folder:{tmp_path}", "train")[1]
    (note,) = info.notes
    assert note.startswith("3 files ")
    assert info.num_classes == 2
    places = {"train.txt": "a", "wiki.train.tokens": "b", "LICENSE.txt": "c"}
    for place, content in places.items():
        (tmp_path / place).write_text(content)
    source, info = splits.open_source(f"files:{tmp_path}", "train", text="sentences")
    assert [record["text"] for record in source] == [b"a"]
    assert [note.split()[4] for note in info.notes] == ["LICENSE.txt,", "LICENSE,"]


@pytest.mark.parametrize("suffix", folder.IMAGES)
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
    assert abs(decoded - np.asarray(image).reshape(decoded.shape)).max() <= 12  # lossy, palettes


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
        ("data/train-00000-of-00002.parquet", "train"),
        ("my_val.txt", "validation"),
        ("VALID/a.txt", "validation"),
        ("dev.jsonl", "validation"),
        ("a/test/b.txt", "test"),
        ("train/how-to-test.txt", "train"),
        ("my-test/train-00000-of-00002.parquet", "train"),
        ("my-test/train/val.txt", "train"),
        ("my-test/my-val/a.txt", "test"),
        ("Testing/a.txt", "test"),
        ("trains", ""),
        ("contest.txt", ""),
    ],
)
def test_the_split_that_a_name_says(name, split):
    assert split_named(name) == split


def test_arrays_are_found_by_their_usual_names_or_by_given_ones(tmp_path):
    images, labels = path_data.pixels(range(6)), np.arange(6) % 2
    color = np.repeat(images[..., None], 3, axis=-1)
    for number, (arrays, query, channels) in enumerate(
        [
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


LINES = ["first", "", "second, and longer", "third"]


def test_each_line_is_a_sentence_and_each_file_a_document(tmp_path):
    (tmp_path / "train").mkdir()
    (tmp_path / "train" / "a.txt").write_bytes("\n".join(LINES).encode())
    (tmp_path / "train" / "b.TXT").write_bytes(b"fourth\r\n\r\nfifth\r\n")
    (tmp_path / "test.txt").write_bytes(b"held out\n")
    (tmp_path / "labels.csv").write_text("label\n1\n")
    (tmp_path / "train" / "c.jsonl").write_text('{"text": "sixth"}\n{"text": "\\u00fc"}')
    name = f"files:{tmp_path}"
    lines, info = splits.open_source(name, "train", text="sentences")
    assert [r["text"] for r in lines] == [
        b"first", b"second, and longer", b"third", b"fourth", b"fifth", b"sixth", b"\xc3\xbc"
    ]  # fmt: skip
    assert lines.where(1).endswith("a.txt, line 3)")
    assert lines.where(4).endswith("b.TXT, line 3)")
    assert splits.open_source(name, "test")[0][0] == {"text": b"held out"}
    documents, same = splits.open_source(name, "train", text="documents")
    assert [len(r["text"]) for r in documents] == [len("\n".join(LINES)), 17, 5, 2]
    assert documents.where(1).endswith("b.TXT)")
    assert documents.where(3).endswith("c.jsonl, line 2)")
    assert info == same


@pytest.mark.parametrize("text", ["sentences", "documents"])
@pytest.mark.parametrize("name", ["a.NDJSON", "a.jsonl"])
def test_json_lines_hold_a_text_each(name, text, tmp_path):
    lines = [json.dumps({"text": line, "content": line[::-1]}) for line in LINES]
    (tmp_path / name).write_text("\n".join(lines))
    source, _ = splits.open_source(f"files:{tmp_path}/{name}", "train", text=text)
    assert [r["text"].decode() for r in source] == LINES
    other, _ = splits.open_source(f"files:{tmp_path}/{name}?text=content", "train", text=text)
    assert [r["text"].decode() for r in other] == [line[::-1] for line in LINES]
    (tmp_path / "dataset_info.json").write_text("{}")  # which describes data
    assert len(splits.open_source(f"files:{tmp_path}", "train", text=text)[0]) == 4


def test_blank_lines_of_any_white_space_are_left_out(tmp_path):
    content = "\ufeffa \n\n \t\r\n\u3000\u00a0\n b\r\n\u00e9"
    (tmp_path / "a.txt").write_text(content, newline="")
    source, _ = splits.open_source(f"files:{tmp_path}/a.txt", "train")
    assert [r["text"].decode() for r in source] == ["a ", " b", "\u00e9"]
    assert [source.where(n).split()[-1] for n in range(3)] == ["1)", "5)", "6)"]


# --- Hugging Face


@pytest.fixture
def datasets():
    return pytest.importorskip("datasets")


@pytest.mark.extras
def test_columns_of_the_hub_are_found_by_type_or_given(datasets, tmp_path):
    table = path_data.images_table(range(4), image="picture")
    fine = {"_type": "ClassLabel", "names": [str(n) for n in range(9)]}
    twice = path_data.described(
        table.append_column("fine", pa.array([8, 7, 6, 5])).rename_columns(
            ["picture", "coarse", "fine"]
        ),
        {"picture": path_data.IMAGE, "coarse": path_data.LABEL, "fine": fine},
    )
    bare = pa.table({"image": [tfds_data.png(n) for n in range(4)], "label": [0, 5, 1, 1]})
    boxes = [{"bbox": [[0.0, 0.0, 8.0, 8.0]], "category": [1]}] * 4
    for name, written in {"one": table, "two": twice, "bare": bare}.items():
        path_data.write_parquet(tmp_path / f"{name}.parquet", written)
    path_data.write_parquet(tmp_path / "both.parquet", bare.append_column("objects", [boxes]))
    for query, classes, has_boxes in [
        ("one.parquet", 3, False),
        ("two.parquet?label=fine", 9, False),
        ("two.parquet?label=coarse", 3, False),
        ("bare.parquet", 6, False),
        ("both.parquet", 2, True),
        ("both.parquet?label=label", 6, False),
    ]:
        source, info = splits.open_source(f"hf:{query}", "train", str(tmp_path))
        assert (info.num_classes, info.has_boxes) == (classes, has_boxes)
        assert ("objects" in source[0]) == has_boxes
    with pytest.raises(SourceError, match="picture, coarse, fine"):
        splits.open_source(f"hf:{tmp_path}/two.parquet", "train")


@pytest.mark.extras
@pytest.mark.parametrize("kind", ["label", "objects"])
def test_a_test_split_may_have_no_labels_and_no_other_ones(kind, datasets, tmp_path):
    images = [tfds_data.png(number) for number in range(3)]
    labels = {"train": [0, 1, 2], "validation": [0, 1, 6], "test": [-1, -1, None]}
    for split, given in labels.items():
        objects = [{"bbox": [[0.0, 0.0, 8.0, 8.0]], "category": [label]} for label in given]
        column = {"label": given} if kind == "label" else {"objects": objects}
        path_data.write_parquet(tmp_path / f"{split}.parquet", pa.table({"image": images} | column))
    for split in ("train", "test"):
        source, info = splits.open_source(f"hf:{tmp_path}", split)
        assert (len(source), info.num_classes) == (3, 3)
    with pytest.raises(SourceError, match="lacks: 6;"):
        splits.open_source(f"hf:{tmp_path}", "validation")


@pytest.mark.extras
@pytest.mark.parametrize("areas", [[None, 9.0], None])
def test_objects_without_an_area_have_that_of_their_box(areas, datasets, tmp_path):
    boxes = [[2.0, 1.0, 4.0, 2.0], [0.0, 0.0, 8.0, 8.0]]
    objects = {"bbox": boxes, "category": [1, 0], "area": areas, "is_crowd": None}
    objects |= {"iscrowd": [0, 1]}
    kind = {"bbox": pa.list_(pa.list_(pa.float32())), "category": pa.list_(pa.int64())}
    kind |= {"area": pa.list_(pa.float32()), "is_crowd": pa.list_(pa.bool_())}
    kind |= {"iscrowd": pa.list_(pa.int64())}
    images = path_data.images_table(range(1)).column("image")
    table = pa.table({"image": images, "objects": pa.array([objects], pa.struct(kind))})
    path_data.write_parquet(tmp_path / "boxes.parquet", table)
    path_data.write_parquet(tmp_path / "a.parquet", table.slice(0, 0))  # no rows
    source, info = splits.open_source(f"hf:{tmp_path}", "train")
    decoded = workloads.make(coco.get_config("mini"), info).decode([source[0]])
    assert decoded["area"][0, :2].tolist() == [8, 9 if areas else 64]
    assert decoded["crowd"][0, :2].tolist() == [False, True]


# --- runs


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_trains_without_splits_and_is_recorded(kind, write, tmp_path):
    name = write(kind, numbers={"train": range(100)})
    fields = {"name": name, "data_dir": str(tmp_path)}
    fields |= {f"{split}_split": "" for split in ("train", "validation", "test")}
    config = mini(**EIGHT_STEPS | {f"dataset__{field}": value for field, value in fields.items()})
    assert train.train(config, tmp_path / "run")["status"] == "exhausted"
    recorded = json.loads((tmp_path / "run" / "config.json").read_text())["dataset"]
    info = splits.open_splits(config.dataset)[2]
    assert (recorded["name"], recorded["fingerprint"]) == (name, info.fingerprint)
    assert recorded["notes"] == list(info.notes)
    assert len(info.notes) == 1
