"""Damaged data: one sentence that names file and record, and the exit code of docs/data.md."""

import contextlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import train
import workloads
from configs import lm1b
from data import cache, splits
from data.sources import RecordError, SourceError
from pipeline import evaluation
from pipeline.map_datasets import Read
from runs import cli
from tests.helpers import tfds_data
from tests.helpers.runs import EIGHT_STEPS, flags, latest_step, logged_numbers, mini, run_command

NAME, SECOND = "pictures", "pictures-train.array_record-00001-of-00002"
FEATURES = {"image": tfds_data.image(8, 8, 1), "label": tfds_data.label()}


@pytest.fixture(scope="module")
def pristine(tmp_path_factory):
    """64 pictures in two files to train on, and 16 to validate on."""
    root = tmp_path_factory.mktemp("tfds")
    splits = {name: tfds_data.pictures(rows) for name, rows in SPLITS.items()}
    tfds_data.write(root, NAME, FEATURES, splits, shards=2)
    return root


SPLITS = {"train": range(64), "test": range(64, 80)}


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


def test_splits_of_a_prepared_data_set_that_share_records_are_found(pictures):
    fields = {"dataset__train_split": "train[:50%]", "dataset__validation_split": "train[50%:]"}
    assert not splits.overlap(config_of(pictures, **fields).dataset)
    fields["dataset__validation_split"] = "test+train[31:32]"
    assert "share records" in splits.overlap(config_of(pictures, **fields).dataset)


def refused(config, workdir):
    """The sentence of a run that is wrong input; checks that nothing was written."""
    with pytest.raises(cli.InputError) as caught:
        train.train(config, workdir)
    assert not workdir.exists()
    assert "\n" not in str(caught.value)
    return str(caught.value)


# --- files of a data set


def _edited(name, edit):
    """Damage to the JSON of a file."""

    def damage(directory):
        content = json.loads((directory / name).read_text())
        edit(content["featuresDict"]["features"] if name == "features.json" else content)
        (directory / name).write_text(json.dumps(content))

    return damage


def _classes(number):
    return _edited(
        "features.json", lambda features: features["label"].update(tfds_data.label(number))
    )


def _lengths(*lengths):
    return _edited("dataset_info.json", lambda info: info["splits"][0].update(shardLengths=lengths))


def _second(change):
    """Damage to the second file of the split."""

    def damage(directory):
        content = (directory / SECOND).read_bytes()
        (directory / SECOND).unlink()
        if (changed := change(content)) is not None:
            (directory / SECOND).write_bytes(changed)

    return damage


def _replaced(name, content):
    return lambda directory: (directory / name).write_bytes(content)


def _one_record_more(directory):
    more = [tfds_data.example(**record) for record in tfds_data.pictures(range(33))]
    tfds_data.write_shard(directory / SECOND, more)


DEEP = b'{"a":' * 100_000 + b"1" + b"}" * 100_000

# The damage, the file that the message names, and the rest of the message.
DAMAGED_FILES = {
    "no file": (_second(lambda _: None), SECOND, "No such file"),
    "an empty file": (_second(lambda _: b""), SECOND, "cannot be used"),
    "text in place of a file": (_second(lambda _: b"text" * 9999), SECOND, "cannot be used"),
    "a truncated file": (_second(lambda content: content[:-1]), SECOND, "cannot be used"),
    "half a file": (_second(lambda content: content[: len(content) // 2]), SECOND, "cannot be"),
    "zeros": (_second(lambda content: bytes(len(content))), SECOND, "cannot be used"),
    "a record more": (_one_record_more, SECOND, "33 records, and .* says 32"),
    "longer by the description": (_lengths("32", "40"), SECOND, "32 records, and .* says 40"),
    "2^62 records": (_lengths("32", str(2**62)), SECOND, "says 4611686018427387904"),
    "a negative length": (_lengths("32", "-5"), "dataset_info.json", "file of -5 records"),
    "no records": (_lengths("0", "0"), "dataset_info.json", "cannot be used"),
    "one file too few": (_lengths("64"), "00000-of-00001", "No such file"),
    "no splits": (
        _edited("dataset_info.json", lambda info: info.pop("splits")),
        "dataset_info.json",
        "cannot be used",
    ),
    "no version": (
        _edited("dataset_info.json", lambda info: info.pop("version")),
        "dataset_info.json",
        "cannot be used",
    ),
    "no features": (lambda path: (path / "features.json").unlink(), "features.json", "No such"),
    "0 classes": (_classes(0), "features.json", "0 classes; allowed: 1 to"),
    "-1 classes": (_classes(-1), "features.json", "-1 classes; allowed: 1 to"),
    "10^12 classes": (_classes(10**12), "features.json", "1000000000000 classes; allowed"),
    "classes of another type": (_classes([]), "features.json", "cannot be used"),
} | {
    f"{what} {name}": (_replaced(name, content), name, "cannot be used")
    for name in ("dataset_info.json", "features.json")
    for what, content in {
        "empty": b"",
        "truncated": b'{"name": "pict',
        "null": b"null",
        "a number as": b"3",
        "{} as": b"{}",
        "deeply nested": DEEP,
        "not UTF-8": b"\xff\xfe",
    }.items()
}


@pytest.mark.parametrize("what", DAMAGED_FILES)
def test_a_damaged_file_is_wrong_input_and_named(what, pictures, tmp_path):
    damage, file, says = DAMAGED_FILES[what]
    damage(pictures)
    sentence = refused(config_of(pictures), tmp_path / "run")
    assert re.search(f"{re.escape(file)} .*{says}", sentence)


@pytest.mark.parametrize(
    ("features", "says"),
    [
        ({"image": FEATURES["image"]}, "class labels"),
        ({"label": FEATURES["label"]}, "no images of one size"),
        (FEATURES | {"label": tfds_data.TEXT}, "class labels"),
        (FEATURES | {"image": tfds_data.TEXT}, "no images of one size"),
        ({"image": FEATURES["image"], "objects": tfds_data.TEXT}, "class labels"),
        ({"image": tfds_data.boxes(), "label": FEATURES["label"]}, "no images of one size"),
        (FEATURES | {"image": tfds_data.image(8, 8, 4)}, "1 or 3 channels"),
    ],
)
def test_unsuitable_features_are_wrong_input(features, says, pictures, tmp_path):
    _edited("features.json", lambda now: (now.clear(), now.update(features)))(pictures)
    assert says in refused(config_of(pictures), tmp_path / "run")


@pytest.mark.parametrize("split", ["train[5:2]", "train[:0]", "train[", "dev"])
def test_a_split_without_records_is_wrong_input(split, pictures, tmp_path):
    says = refused(config_of(pictures, dataset__train_split=split), tmp_path / "run")
    assert f"split {split!r}" in says


@pytest.mark.parametrize(
    "name", ["", "../pictures", f"{NAME}:9.9.9", f"{NAME}/x", "x" * 5000, "a\0b"]
)
def test_a_missing_data_set_is_not_reported_as_damaged(name, pristine):
    with pytest.raises(SourceError, match=r"is not prepared in|a path without its kind"):
        splits.open_source(name, "train", str(pristine))


@pytest.mark.slow
@settings(max_examples=20)
@given(place=st.floats(0, 1), flip=st.integers(1, 255), keep=st.sampled_from([None, 0.0, 0.3, 0.9]))
def test_a_damaged_file_gives_its_records_or_a_sentence(pristine, place, flip, keep):
    original = pristine / NAME / "1.0.0" / SECOND
    used = original.read_bytes().rstrip(b"\0")  # what follows is padding
    content = bytearray(original.read_bytes())
    content[min(int(place * len(used)), len(used) - 1)] ^= flip
    whole, _ = splits.open_source(NAME, "train", str(pristine))
    wanted = whole.__getitems__(range(64))
    content = content if keep is None else content[: int(keep * len(content))]
    with _swapped(original, bytes(content)):
        opened, refusal = _attempt(SourceError, splits.open_source, NAME, "train", str(pristine))
        if refusal:
            assert SECOND in refusal
            return
        for number in range(64):
            record, refusal = _attempt(RecordError, opened[0].__getitem__, number)
            if refusal:
                assert refusal.startswith(f"record {number} of split 'train' (")
                assert f"{SECOND}, its record {number - 32}) cannot be read: " in refusal
            else:
                assert record == wanted[number]


def _attempt(kind, function, *arguments):
    """(what a function returns, '') or (None, the sentence of its error of this kind)."""
    try:
        return function(*arguments), ""
    except kind as error:
        return None, str(error)


@settings(max_examples=40)
@given(
    name=st.sampled_from(["dataset_info.json", "features.json"]),
    place=st.floats(0, 1),
    new=st.binary(max_size=3),
    length=st.integers(0, 30),
)
def test_a_damaged_description_is_opened_or_a_sentence(pristine, name, place, new, length):
    original = pristine / NAME / "1.0.0" / name
    content = original.read_bytes()
    start = int(place * len(content))
    with (
        _swapped(original, content[:start] + new + content[start + length :]),
        contextlib.suppress(SourceError),
    ):
        splits.open_source(NAME, "train", str(pristine))


@contextlib.contextmanager
def _swapped(path, content):
    before = path.read_bytes()
    path.write_bytes(content)
    try:
        yield
    finally:
        path.write_bytes(before)


# --- records

PNG = tfds_data.png(0)
BOMB = PNG[:16] + (40_000).to_bytes(4, "big") * 2 + PNG[24:29]  # the header's width and height
BOMB += zlib.crc32(BOMB[12:29]).to_bytes(4, "big") + PNG[33:]

# Fields of a record, or its bytes, and what the sentence says.
DAMAGED_RECORDS = {
    "no Example": (b"\xff\xfe garbage", "cannot be read"),
    "nothing": (b"", "it has no 'image'"),
    "no image": ({"label": 1}, "it has no 'image'"),
    "no label": ({"image": PNG}, "it has no 'label'"),
    "an image of no bytes": ({"image": b"", "label": 1}, "0 bytes that are not a complete image"),
    "half an image": ({"image": PNG[:60], "label": 1}, "not a complete image"),
    "numbers for an image": ({"image": [1, 2, 3], "label": 1}, "cannot be read"),
    "another size": ({"image": tfds_data.png(0, 9), "label": 1}, r"an image of \(9, 9, 1\)"),
    "too many pixels": ({"image": BOMB, "label": 1}, "more than 178,956,970 pixels"),
    "a label of 2^40": ({"image": PNG, "label": 2**40}, "label 1099511627776; allowed: 0 to 9"),
    "a label of -2": ({"image": PNG, "label": -2}, "label -2; allowed: 0 to 9"),
    "two labels": ({"image": PNG, "label": [1, 2]}, "cannot be read"),
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
    record, says = DAMAGED_RECORDS[what]
    _with_record(pictures, "train", 40, record)
    config = config_of(pictures)
    source, info = splits.open_source(NAME, "train", config.dataset.data_dir)
    workload = workloads.make(config, info)
    read = Read(source, 0, len(source), lambda records, *_: workload.decode(records))
    with pytest.raises(RecordError, match=says) as caught:
        read.stacked_items(range(len(source)))
    named = f"record 40 of split 'train' ({pictures / SECOND}, its record 8) "
    assert str(caught.value).startswith(named)
    assert "\n" not in str(caught.value)


def test_a_slice_counts_from_its_start(pictures):
    _with_record(pictures, "train", 40, b"\xff")
    source, _ = splits.open_source(NAME, "train[38:]", str(pictures.parent.parent))
    with pytest.raises(RecordError, match=rf"^record 2 of split 'train\[38:\]' \(.*{SECOND}, its "):
        source.__getitems__([0, 1, 2])


@pytest.mark.parametrize("split", ["train", "test"])
def test_a_damaged_record_found_before_the_run_is_wrong_input(split, pictures, tmp_path):
    _with_record(pictures, split, 0, {"image": PNG, "label": 2**40})
    says = refused(config_of(pictures), tmp_path / "run")
    assert says.startswith(f"record 0 of split {split!r} (")


@pytest.mark.slow
def test_a_damaged_record_ends_a_run_which_resumes_bit_for_bit(pictures, tmp_path, capsys):
    config = config_of(pictures)
    whole, ended = tmp_path / "whole", tmp_path / "ended"
    train.train(config, whole)
    sound = (pictures / SECOND).read_bytes()
    content = bytearray(sound)
    content[900] ^= 1  # in a record, whose checksum is off now
    (pictures / SECOND).write_bytes(content)
    result = train.train(config, ended)
    assert (result["status"], cli.EXIT_CODES["failed"]) == ("failed", 4)
    assert re.match(
        rf"RecordError: record \d+ of split 'train' \(.*{SECOND}, its record \d+\) cannot be read",
        result["error"],
    )
    assert "\n" not in result["error"]
    assert "Traceback" not in capsys.readouterr().err
    assert 0 < result["step"] < 8
    (pictures / SECOND).write_bytes(sound)
    train.train(config, ended)
    assert logged_numbers(whole) == logged_numbers(ended)


@pytest.mark.slow
def test_a_validation_record_found_in_the_run_leaves_it_resumable(pictures, tmp_path, monkeypatch):
    monkeypatch.setattr(evaluation, "_CACHE_BYTES", 0)  # as of a split that is not kept in memory
    config = config_of(pictures, checkpoint_every_fresh_examples=32)
    whole, ended = tmp_path / "whole", tmp_path / "ended"
    train.train(config, whole)
    _with_record(pictures, "test", 9, {"image": PNG, "label": 77})
    result = train.train(config, ended)
    assert (result["status"], result["step"]) == ("failed", 4)
    assert latest_step(ended) == 4
    assert result["error"].startswith("RecordError: record 9 of split 'test' (")
    _with_record(pictures, "test", 9, tfds_data.pictures(SPLITS["test"])[9])
    train.train(config, ended)
    assert logged_numbers(whole) == logged_numbers(ended)


@pytest.mark.slow
def test_the_command_says_one_sentence(pictures, tmp_path):
    _with_record(pictures, "train", 40, b"\xff")
    workdir = tmp_path / "run"
    words = [f"--workdir={workdir}", *flags(config_of(pictures))]
    done = run_command("train.py", "--config=configs/cifar10.py:mini", *words)
    assert done.returncode == cli.FAILED
    assert "Traceback" not in done.stdout + done.stderr
    (says,) = (line for line in done.stderr.splitlines() if "error" in line.lower())
    assert says.startswith("error: ")
    assert SECOND in says
    assert workdir.exists()


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
        "model.dim": 8,
        "model.layers": 1,
        "batch_size": 8,
    }
    for name, value in (small | fields).items():
        cli.set_field(config, name, value)
    return config


@pytest.mark.parametrize(
    ("record", "says"),
    [
        (b"\xff\xfe", "cannot be read"),
        (tfds_data.example(other=b"x"), "has no text"),
        (tfds_data.example(text=3), "has no text"),
        (tfds_data.example(text=[b"a", b"b"]), "cannot be read"),
    ],
    ids=["no Example", "no text", "a number", "two texts"],
)
def test_a_damaged_text_is_named(record, says, tmp_path):
    serialized = [tfds_data.example(text=text) for text in SENTENCES]
    serialized[7] = record
    directory = tfds_data.write(tmp_path, "talk", {"text": tfds_data.TEXT}, {"train": serialized})
    sentence = refused(text_config(directory), tmp_path / "run")
    assert re.match(rf"record 7 of split 'train' \({directory}.*, its record 7\) {says}", sentence)


def test_text_that_is_not_utf8_or_very_long_is_read(tmp_path):
    odd = [b"\xff\xfe not UTF-8 \xc3", b"a word and " * 1_000_000, b"w" * 10_000_000, b"nul \0 nul"]
    directory = tfds_data.write_text(tmp_path, "odd", {"train": [*odd, *SENTENCES]})
    source, _, _ = splits.open_splits(text_config(directory).dataset)
    assert len(source) == len(odd) + len(SENTENCES)
    assert all(len(record["tokens"]) <= 9 for record in source.__getitems__(range(len(odd))))


def _npz(**arrays):
    def change(content, directory):
        np.savez(directory / "new.npz", **arrays)
        return (directory / "new.npz").read_bytes()

    return change


def _other_vocabulary(content, directory):
    other = tfds_data.write_text(directory, "other", {"train": [text[::-1] for text in SENTENCES]})
    splits.open_splits(text_config(other, **{"dataset.vocabulary_size": 40}).dataset)
    return next((other / "text").glob("*.model")).read_bytes()


# Changes to a cached file that are detected without its checksum, by the file's suffix.
EVIDENT = {
    "an empty vocabulary": (".model", lambda content, _: b""),
    "a foreign vocabulary": (".model", lambda content, _: b"\x89PNG" * 99),
    "a vocabulary of another size": (".model", _other_vocabulary),
    "no lengths": (".npz", lambda content, _: b""),
    "foreign lengths": (".npz", lambda content, _: b"text" * 99),
    "other arrays": (".npz", _npz(other=1)),
    "too few lengths": (".npz", _npz(pieces=np.ones(3, np.int32), cut=0)),
    "negative lengths": (".npz", _npz(pieces=-np.ones(200, np.int32), cut=0)),
}
HIDDEN = {
    "a truncated vocabulary": (".model", lambda content, _: content[: len(content) // 2]),
    "a vocabulary without its end": (".model", lambda content, _: content[:-1]),
    "a changed vocabulary": (".model", lambda content, _: content[:-1] + b"\x01"),
    "other lengths": (".npz", _npz(pieces=np.ones(200, np.int32), cut=0)),
}


@pytest.fixture(scope="module")
def talk(tmp_path_factory):
    """A text data set with its cached files, as documents."""
    directory = tfds_data.write_text(tmp_path_factory.mktemp("text"), "talk", {"train": SENTENCES})
    splits.open_splits(text_config(directory, **{"dataset.text": "documents"}).dataset)
    return directory


@pytest.mark.slow
@pytest.mark.parametrize(
    ("what", "checksum"),
    [(what, True) for what in EVIDENT | HIDDEN] + [(w, False) for w in EVIDENT],
)
def test_a_damaged_cached_file_is_named(what, checksum, talk, tmp_path):
    suffix, change = (EVIDENT | HIDDEN)[what]
    directory = shutil.copytree(talk.parent, tmp_path / "tfds" / "talk") / "1.0.0"
    config = text_config(directory, **{"dataset.text": "documents"})
    path = min((directory / "text").glob(f"*{suffix}"))
    before = path.read_bytes()
    path.write_bytes(change(before, tmp_path))
    if not checksum:  # as an earlier version left it
        path.with_name(f"{path.name}.sha256").unlink()
    assert f"{path} cannot be used (" in refused(config, tmp_path / "run")
    path.unlink()  # which the sentence says to do
    splits.open_splits(config.dataset)
    assert path.read_bytes() == before


def test_a_named_pipe_in_place_of_a_cached_file_is_refused_and_does_not_block(tmp_path):
    os.mkfifo(tmp_path / "lengths.npy")  # whoever opens it waits
    with pytest.raises(SourceError, match=r"lengths.npy cannot be used \(.* is not a file\)"):
        cache.cached(tmp_path / "lengths.npy", bytes)


def test_a_file_in_place_of_the_cache_is_one_sentence(tmp_path):
    (tmp_path / "cache").touch()
    with pytest.raises(SourceError, match=r"cannot be made \(.*config\.dataset\.cache_dir"):
        cache.make_file(tmp_path / "cache" / "data.arrow", pathlib.Path.touch)


def test_cached_files_have_checksums_that_sha256sum_verifies(talk):
    sums = sorted(path.name for path in (talk / "text").glob("*.sha256"))
    assert len(sums) == 3
    subprocess.run(["sha256sum", "--check", "--strict", *sums], cwd=talk / "text", check=True)
