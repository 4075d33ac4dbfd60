"""docs/your_data.md: each command runs on data as the page describes them."""

import json
import pathlib
import re
import shlex

import numpy as np
import pyarrow as pa
import pytest
from sklearn.datasets import load_digits

import advise
import train
import workloads
from configs import coco
from data import splits
from models.resnet import STAGES, BasicBlock
from runs import cli
from tests.helpers import pages, path_data, tfds_data
from tests.helpers.runs import ROOT

PAGE_FILE = "docs/your_data.md"
PAGE = (ROOT / PAGE_FILE).read_text(encoding="utf-8")
COMMANDS = [
    shlex.split(block.replace("\\\n", " "))
    for block in re.findall(r"^```\n(python .*?)\n```$", PAGE, re.M | re.S)
]
MAINS = {"train.py": train.main, "advise.py": advise.main}

# What makes a run on one of the sources take seconds; the data are what the page is about.
SHRUNK = {
    "dataset.canvas": 16,
    "augmentation.crop_size": 16,
    "model.width": 4,
    "model.layers": 1,
    "dataset.vocabulary_size": 60,
    "batch_size": 32,
    "budget.fresh_examples": 64,
    "evaluate_every_fresh_examples": 32,
    "log_every_steps": 1,
}

BOXES = {"dataset.canvas": 40, "augmentation.crop_size": 32}  # the smallest that detection allows


@pytest.fixture
def data(tmp_path, monkeypatch):
    """A directory with data of every kind, which the commands run in."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(STAGES, 18, (BasicBlock, (1, 1, 1, 1)))  # half of the time to compile
    path_data.write_folder(tmp_path / "flowers", {"": range(60)})
    digits = load_digits()
    np.savez("digits.npz", image=(digits.images * 15).astype(np.uint8), label=digits.target)
    texts = path_data.sentences(range(300))
    (tmp_path / "corpus").mkdir()
    for split, lines in {
        "train": texts[:200],
        "validation": texts[200:250],
        "test": texts[250:],
    }.items():
        (tmp_path / "corpus" / f"{split}.txt").write_text("\n".join(lines))
    lines = [json.dumps({"content": "\n".join(texts[n : n + 9])}) for n in range(0, 300, 9)]
    (tmp_path / "pages.jsonl").write_text("\n".join(lines))
    breeds = {"_type": "ClassLabel", "names": [str(n) for n in range(5)]}
    for split, numbers in {"train": range(60), "validation": range(60, 80)}.items():
        table = path_data.images_table(numbers)
        table = table.append_column("breed", pa.array([n % 5 for n in numbers]))
        features = {"image": path_data.IMAGE, "label": path_data.LABEL, "breed": breeds}
        table = path_data.described(table, features)
        path_data.write_parquet(tmp_path / f"pets/{split}.parquet", table)
    write_coco()
    (converting,) = (block.code for block in pages.blocks(PAGE_FILE) if block.language == "python")
    exec(converting, {})
    return tmp_path


def write_coco():
    """40 images with boxes of the categories 7 and 90: none in the first, a crowd in the second."""
    images = [{"id": 100 + n, "file_name": f"{n}.png"} for n in range(40)]
    pathlib.Path("images").mkdir()
    for n, image in enumerate(images):
        pathlib.Path("images", image["file_name"]).write_bytes(tfds_data.png(n))
    annotations = [
        {"image_id": 100 + n, "category_id": (7, 90)[n % 2], "bbox": [1, 2, 3.5, 4], "area": 9}
        for n in range(1, 40)
    ]
    annotations[0] |= {"iscrowd": 1}
    del annotations[1]["area"]
    categories = [{"id": 90, "name": "b"}, {"id": 7, "name": "a"}]
    content = {"images": images, "annotations": annotations, "categories": categories}
    pathlib.Path("instances.json").write_text(json.dumps(content))


@pytest.mark.extras
def test_boxes_in_cocos_format_are_converted_as_the_page_says(data):
    pytest.importorskip("datasets")
    source, info = splits.open_source("hf:boxes", "train")
    assert (len(source), info.num_classes, info.has_boxes) == (40, 2, True)
    records = {record["image"]: record["objects"] for record in source}
    by_number = [records[tfds_data.png(n)] for n in range(40)]
    assert [objects["label"].tolist() for objects in by_number] == [[], *[[1], [0]] * 19, [1]]
    assert [bool(objects["is_crowd"].any()) for objects in by_number] == [
        False,
        True,
        *[False] * 38,
    ]
    corners = np.array([2, 1, 6, 4.5]) / 8  # y, x, y, x of images of 8 pixels
    for objects in by_number[1:]:
        np.testing.assert_allclose(objects["bbox"], [corners])
    decoded = workloads.make(coco.get_config("mini"), info).decode(list(source))
    assert sorted(set(decoded["area"][decoded["labels"] >= 0].tolist())) == [9, 14]


def test_the_page_has_a_command_for_each_kind_of_data_without_splits():
    words = " ".join(word for command in COMMANDS for word in command)
    kinds = ("folder:", "npz:", "files:corpus", "files:pages.jsonl", "hf:pets", "hf:boxes")
    for kind in kinds:
        assert kind in words
    assert "train_split" not in words


@pytest.mark.long
@pytest.mark.parametrize("command", COMMANDS, ids=lambda words: " ".join(words[1:3]))
def test_a_command_of_the_page_runs(command, data, capsys):
    if any("hf:" in word for word in command):
        pytest.importorskip("datasets")
    _, script, *words = command
    shrunk = SHRUNK | (BOXES if "--config=configs/coco.py" in words else {})
    words += [f"--config.{field}={value}" for field, value in shrunk.items()]
    if script == "advise.py":
        words.append("--seconds=0.01")
    assert cli.guarded(MAINS[script], words) == cli.OK, capsys.readouterr().err
    if script == "train.py":
        (result,) = data.glob("out/*/result.json")
        assert json.loads(result.read_text())["status"] in ("reached", "exhausted")
