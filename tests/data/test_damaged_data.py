"""Damaged data: its records or one sentence that names file and record, never other records."""

import contextlib
import json
import re
import shutil

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import train
import workloads
from configs import lm1b
from data import paths, splits, storage
from data.sources import RecordError, SourceError
from pipeline.map_datasets import Examples, FreshOrder, record_numbers
from runs import cli
from tests.helpers import path_data, tfds_data
from tests.helpers.runs import EIGHT_STEPS, mini, records_of

NAME = "pictures"
SECOND = f"{NAME}-train.array_record-00001-of-00002"
FEATURES = {"image": tfds_data.image(8, 8, 1), "label": tfds_data.label()}
SPLITS = {"train": range(64), "test": range(64, 80)}


@pytest.fixture(scope="module")
def pristine(tmp_path_factory):
    """64 pictures in two files to train on, and 16 to validate on."""
    root = tmp_path_factory.mktemp("tfds")
    rows = {name: tfds_data.pictures(numbers) for name, numbers in SPLITS.items()}
    tfds_data.write(root, NAME, FEATURES, rows, shards=2)
    return root


@pytest.fixture
def pictures(pristine, tmp_path):
    """The directory of a copy of them to damage."""
    return shutil.copytree(pristine / NAME, tmp_path / "tfds" / NAME) / "1.0.0"


def config_of(directory, **fields):
    """A run of eight steps on the data set in `directory`."""
    where = {
        "dataset__name": directory.parent.name,
        "dataset__data_dir": str(directory.parent.parent),
        "dataset__validation_split": "test",
    }
    return mini(**EIGHT_STEPS | where | fields)


# --- any damage to any file


def _everything(name, root):
    """The records of the training split, or a sentence for each that cannot be read."""
    paths.opened.cache_clear()
    source, info = splits.open_source(name, "train", str(root), text="sentences")
    workload = None if info.num_classes is None else workloads.make(mini(), info)
    read = []
    for number in range(len(source)):
        try:
            record = source[number]
            read.append(workload.decode([record]) if workload else record)
        except (RecordError, ValueError) as error:
            read.append(str(error))
    return read


def _write_every_kind(root):
    path_data.write_folder(root / "own", {"": range(12)})
    arrays = {"image": path_data.pixels(range(12)), "label": np.arange(12) % 3}
    path_data.write_npz(root / "own.npz", **arrays)
    lines = [json.dumps({"text": line}) for line in path_data.sentences(range(12))]
    (root / "own.jsonl").write_text("\n".join(lines))


# A data set's name, and the file of it that is damaged.
FILES = [
    (NAME, f"{NAME}/1.0.0/{SECOND}"),
    (NAME, f"{NAME}/1.0.0/dataset_info.json"),
    (NAME, f"{NAME}/1.0.0/features.json"),
    ("npz:own.npz", "own.npz"),
    ("folder:own", "own/cat/3.png"),
]


@pytest.mark.parametrize(("name", "file"), FILES)
@settings(max_examples=12, deadline=None)
@given(
    place=st.floats(0, 1),
    new=st.binary(min_size=1, max_size=3),
    keep=st.sampled_from([None, None, 0.0, 0.3, 0.9]),
)
def test_a_damaged_file_gives_its_records_or_a_sentence(pristine, name, file, place, new, keep):
    if not (pristine / "own").exists():
        _write_every_kind(pristine)
    wanted, path = _everything(name, pristine), pristine / file
    before = path.read_bytes()
    used = len(before.rstrip(b"\0"))  # array_record ends in padding
    content = bytearray(before)
    content[min(int(place * used), used - 1)] ^= new[0] or 1
    content = content if keep is None else content[: int(keep * len(content))]
    try:
        path.write_bytes(bytes(content))
        with contextlib.suppress(SourceError, RecordError):
            for number, record in enumerate(_everything(name, pristine)):
                if file.endswith((".json", ".png")):  # of which only the format is checked
                    continue
                assert isinstance(record, str) or str(record) == str(wanted[number])
                if isinstance(record, str) and file.endswith("00002"):
                    assert f"record {number} of split 'train' (" in record
                    assert f"{SECOND}, its record {number - 32})" in record
    finally:
        path.write_bytes(before)


# --- records

PNG = tfds_data.png(0)

# Fields of a record, or its bytes.
DAMAGED_RECORDS = {
    "no Example": b"\xff\xfe garbage",
    "nothing": b"",
    "no label": {"image": PNG},
    "half an image": {"image": PNG[:60], "label": 1},
    "numbers for an image": {"image": [1, 2, 3], "label": 1},
    "another size": {"image": tfds_data.png(0, 9), "label": 1},
    "a label of 2^40": {"image": PNG, "label": 2**40},
    "a label of -2": {"image": PNG, "label": -2},
    "two labels": {"image": PNG, "label": [1, 2]},
}


def _with_record(directory, split, number, record):
    """Rewrites a split with another record `number`."""
    rows = tfds_data.pictures(SPLITS[split])
    serialized = [tfds_data.example(**row) for row in rows]
    serialized[number] = record if isinstance(record, bytes) else tfds_data.example(**record)
    for shard in range(2):
        half = len(rows) // 2
        path = directory / f"{NAME}-{split}.array_record-0000{shard}-of-00002"
        tfds_data.write_shard(path, serialized[shard * half : shard * half + half])


@pytest.mark.parametrize("what", DAMAGED_RECORDS)
def test_a_damaged_record_is_named(what, pictures):
    _with_record(pictures, "train", 40, DAMAGED_RECORDS[what])
    config = config_of(pictures)
    for split, number in (("train", 40), ("train[38:]", 2)):
        source, info = splits.open_source(NAME, split, config.dataset.data_dir)
        decode = workloads.make(config, info).decode
        examples = Examples(
            source, 0, FreshOrder(len(source)), lambda rows, *_, decode=decode: decode(rows)
        )
        with pytest.raises(RecordError) as caught:
            examples.stacked_items(range(len(source)))
        named = f"record {number} of split {split!r} ({pictures / SECOND}, its record 8) "
        assert str(caught.value).startswith(named)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("split", ["train", "test"])
def test_a_damaged_record_found_before_the_run_is_wrong_input(split, pictures, tmp_path):
    _with_record(pictures, split, 0, {"image": PNG, "label": 2**40})
    with pytest.raises(cli.InputError, match=rf"^record 0 of split {split!r} \("):
        train.train(config_of(pictures), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_damaged_image_ends_a_run_which_resumes_bit_for_bit(tmp_path):
    path_data.write_folder(tmp_path / "own", {"train": range(60), "val": range(60, 80)})
    for path in [*(tmp_path / "own").rglob("*.png")]:
        path.rename(path.with_name(f"{path.stem}\udcff.png"))  # a name of any bytes
    where = {"dataset__name": "folder:own", "dataset__data_dir": str(tmp_path)}
    where["dataset__test_split"] = ""
    config = mini(**EIGHT_STEPS | where)
    source, _ = splits.open_source("folder:own", "train", str(tmp_path))
    fourth_batch = record_numbers(np.arange(48, 60), 60, config.seed.data)
    last = max(fourth_batch)  # not one of the first 16, whose content identifies the data
    path, whole, ended = (tmp_path / name for name in ("own", "whole", "ended"))
    path = path / source[last]["file_name"]
    sound = path.read_bytes()
    train.train(config, whole)
    path.write_bytes(sound[:-20])  # its header is intact
    result = train.train(config, ended)
    assert (result["status"], result["step"]) == ("failed", 3)
    assert f"record {last} of split 'train' ({path}) " in result["error"]
    path.write_bytes(sound)
    train.train(config, ended)
    assert records_of(whole) == records_of(ended)


# --- text

SENTENCES = [b"sentence %d is about %d things and their names" % (i, i * i) for i in range(200)]


def text_config(directory, **fields):
    config = lm1b.get_config("mini")
    small = {
        "dataset.name": directory.parent.name,
        "dataset.data_dir": str(directory.parent.parent),
        "dataset.train_split": "train",
        "dataset.validation_split": "train[:20]",
        "dataset.vocabulary_size": 50,
        "dataset.sequence_length": 8,
    }
    for name, value in (small | fields).items():
        cli.set_field(config, name, value)
    return config


@pytest.mark.parametrize(
    "record",
    [
        b"\xff\xfe",
        *(tfds_data.example(**f) for f in ({"o": b"x"}, {"text": 3}, {"text": [b"a"] * 2})),
    ],
)
def test_a_damaged_text_is_named(record, tmp_path):
    serialized = [tfds_data.example(text=text) for text in SENTENCES]
    serialized[7] = record
    directory = tfds_data.write(tmp_path, "talk", {"text": tfds_data.TEXT}, {"train": serialized})
    with pytest.raises(
        RecordError, match=rf"^record 7 of split 'train' \({directory}.*record 7\) "
    ):
        splits.open_splits(text_config(directory).dataset)


def test_text_that_is_not_utf8_or_very_long_is_read(tmp_path):
    odd = [b"\xff\xfe not UTF-8 \xc3", b"a word and " * 1_000_000, b"w" * 10_000_000, b"nul \0 nul"]
    directory = tfds_data.write_text(tmp_path, "odd", {"train": [*odd, *SENTENCES]})
    source, _, _ = splits.open_splits(text_config(directory).dataset)
    assert len(source) == len(odd) + len(SENTENCES)
    assert all(len(record["tokens"]) <= 9 for record in source.__getitems__(range(len(odd))))


@given(place=st.floats(0, 1), flip=st.integers(1, 255), keep=st.sampled_from([None, 0.0, 0.5]))
@settings(max_examples=30, deadline=None)
def test_a_damaged_cached_file_is_refused_until_it_is_deleted(tmp_path_factory, place, flip, keep):
    directory, content = tmp_path_factory.mktemp("cache") / "new", b"the result of hours\n" * 9
    where = (directory, "pieces.npz", {})
    assert storage.cached(*where, lambda: content) == content == storage.cached(*where, bytes)
    (path,) = directory.iterdir()
    stored = bytearray(path.read_bytes())
    stored[int(place * (len(stored) - 1))] ^= flip
    path.write_bytes(stored if keep is None else stored[: int(keep * len(stored))])
    with pytest.raises(SourceError, match=re.escape(str(path))):
        storage.cached(*where, lambda: content)
    path.unlink()
    assert storage.cached(*where, lambda: content) == content
