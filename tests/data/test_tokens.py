"""Tests of text input: vocabularies, windows, Python's own text, TFDS text, and bad input."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from configs import base
from data import python_text, splits, storage, tokens, vocabulary
from data.sources import ArraySource, RecordError
from data.vocabulary import BEGIN, END, UNKNOWN, Vocabulary
from tests.helpers.tfds_data import write_text

WORDS = "the study of data echoing repeats what a slow pipeline has read before and trains on it"


def sentences(n, seed=0):
    """Random sentences of a few words."""
    generator = np.random.Generator(np.random.PCG64(seed))
    words = WORDS.split()
    return [" ".join(generator.choice(words, generator.integers(3, 30))) for _ in range(n)]


def source_of(texts):
    column = np.empty(len(texts), object)
    column[:] = texts
    return ArraySource(text=column)


@pytest.fixture(scope="module")
def words():
    return Vocabulary(vocabulary.train(source_of(sentences(200)), 40))


def dataset(**fields):
    config = base.get_config().dataset
    with config.unlocked():
        config.update({"text": "sentences", "vocabulary_size": 40, "sequence_length": 8})
        config.update(fields)
    return config


@given(st.lists(st.integers(0, 30), max_size=8), st.integers(2, 9))
@settings(max_examples=50, deadline=None)
def test_every_piece_and_end_is_a_target_exactly_once(lengths, length):
    texts = [np.arange(4, 4 + n, dtype=np.int32) for n in lengths]
    counts = tokens.num_windows(np.asarray(lengths, np.int64), length)
    for pieces, num in zip(texts, counts, strict=True):
        windows = [tokens.window(pieces, w, length) for w in range(num)]
        targets = [token for window in windows for token in window[1:]]
        assert targets == ([*pieces, END] if len(pieces) else [])
        assert all(2 <= len(window) <= length + 1 for window in windows)
        if num:  # each begins with what the one before ends with
            assert [w[0] for w in windows] == [BEGIN, *(w[-1] for w in windows[:-1])]
        assert not len(tokens.window(pieces, int(num), length)[1:])


def test_windows_come_in_the_documents_order_and_by_random_access(words):
    documents = source_of(["", "the data", *sentences(20), " \n ", "echoing"])
    counts = tokens.count_pieces(tokens.Texts(documents, "x", "train", 10_000), words)
    examples = tokens.Tokens(documents, words, 8, counts)
    expected = []
    for record in documents.__getitems__(range(len(documents))):
        pieces = words.encode([record["text"]])[0]
        stream = [BEGIN, *pieces, END] if len(pieces) else [BEGIN]
        expected += [stream[i : i + 9] for i in range(0, len(stream) - 1, 8)]
    assert len(examples) == len(expected)
    order = np.random.default_rng(0).permutation(len(expected)).tolist()
    for i, record in zip(order, examples.__getitems__(order), strict=True):
        assert record["tokens"].tolist() == expected[i]
        assert record["tokens"].dtype == np.int32
    assert examples[3]["tokens"].tolist() == expected[3]


def test_a_sentence_is_one_example_truncated_to_the_length(words):
    text = sentences(1, seed=3)[0]
    pieces = words.encode([text])[0].tolist()
    long, empty = tokens.Tokens(source_of([text, ""]), words, 5).__getitems__([0, 1])
    assert long["tokens"].tolist() == [BEGIN, *pieces[:5]]
    assert not len(empty["tokens"])
    whole = tokens.Tokens(source_of([text]), words, 500)[0]["tokens"]
    assert whole.tolist() == [BEGIN, *pieces, END]


def test_bytes_that_are_not_text_become_the_unknown_piece(words):
    pieces = words.encode([b"the \xff\xfe data", "the \0 data", "  the\n\tdata "])
    assert UNKNOWN in pieces[0]
    assert UNKNOWN in pieces[1]
    assert pieces[2].tolist() == words.encode(["the data"])[0].tolist()


def test_equal_texts_give_equal_vocabularies():
    source = source_of(sentences(100))
    assert vocabulary.train(source, 40) == vocabulary.train(source, 40)


def test_a_cached_file_is_read_again_with_the_same_settings_alone(tmp_path):
    def made(content, **on):
        return storage.cached(tmp_path, "x.y", on, lambda: content)

    assert [made(b"1", a=1, b=2), made(b"2", b=2, a=1), made(b"3", a=1)] == [b"1", b"1", b"3"]
    assert len(list(tmp_path.glob("x-*.y"))) == 2
    assert storage.cached(None, "x.y", {"a": 1}, lambda: b"new") == b"new"


@pytest.mark.parametrize("name", python_text.NAMES)
def test_pythons_training_text_does_not_occur_in_validation(name):
    train, info = python_text.open_source(name, "train")
    held_out, again = python_text.open_source(name, "validation")
    assert info == again
    texts = [[r["text"] for r in s.__getitems__(range(len(s)))] for s in (train, held_out)]
    parts = [
        {part for t in ts for part in t.split("\n\n" if "doc" in name else "\0")} for ts in texts
    ]
    long = [{part for part in part_set if len(part) > 200} for part_set in parts]
    assert not long[0] & long[1]
    assert 0.05 < sum(map(len, texts[1])) / sum(map(len, texts[0])) < 0.2
    assert sum(map(len, texts[0])) > 150_000


def test_files_cached_beside_tfds_text_give_equal_examples(tmp_path, monkeypatch):
    texts = [text.encode() for text in [*sentences(60), ""]]
    write_text(tmp_path, "tiny", {"train": texts, "test": [b"", *texts[:5]]})
    fields = {"name": "tiny", "data_dir": str(tmp_path), "validation_split": "test"}
    documents = dataset(**fields, text="documents")
    train, held_out, info = splits.open_splits(documents)
    kept = sorted(p for p in (tmp_path / "tiny" / "1.0.0" / ".cache").iterdir())
    assert [path.name.split("-")[0] for path in kept] == ["pieces", "pieces", "vocabulary"]
    assert info.vocabulary_size == 40
    assert "61 documents, of which 1 " in info.notes[0]
    assert [t["tokens"].tolist() for t in held_out.__getitems__(range(3))] == [
        t["tokens"].tolist() for t in train.__getitems__(range(3))
    ]
    monkeypatch.setattr(vocabulary, "train", lambda *_: 1 / 0)
    monkeypatch.setattr(tokens, "count_pieces", None)
    again, _, same = splits.open_splits(dataset(**fields, text="documents", sequence_length=7))
    assert same == info
    assert again[0]["tokens"].tolist() == train[0]["tokens"].tolist()[:8]
    (shard,) = (tmp_path / "tiny" / "1.0.0").glob("tiny-train*")
    shard.write_bytes(shard.read_bytes())  # which its description does not tell
    with pytest.raises(ZeroDivisionError):
        splits.open_splits(dataset(**fields, text="documents", sequence_length=6))
    monkeypatch.undo()
    lines, _, _ = splits.open_splits(dataset(**fields))
    assert len(lines) == 61 < len(train)


@pytest.mark.parametrize("text", ["sentences", "documents"])
@pytest.mark.parametrize("split", ["train", "validation"])
def test_half_a_character_in_json_becomes_the_unknown_piece(split, text, tmp_path):
    texts = {"train": sentences(60), "validation": sentences(3)}
    texts[split][0] = "the \ud800 data"
    for name, lines in texts.items():
        written = "\n".join(json.dumps({"text": line}) for line in lines)
        (tmp_path / f"{name}.jsonl").write_text(written)
    fields = {"name": f"files:{tmp_path}", "text": text, "validation_split": "validation"}
    opened = dict(zip(texts, splits.open_splits(dataset(**fields)), strict=False))
    assert UNKNOWN in opened[split][0]["tokens"]


@pytest.mark.parametrize("text", ["sentences", "documents"])
@pytest.mark.parametrize("cache_dir", ["", "{}"])
def test_files_cached_beside_text_are_no_text(text, cache_dir, tmp_path):
    (tmp_path / "all.txt").write_text("\n".join(sentences(60)))
    fields = {"name": f"files:{tmp_path}", "cache_dir": cache_dir.format(tmp_path)}
    fields |= {"text": text, "validation_split": "train"}
    first = splits.open_splits(dataset(**fields))
    again = splits.open_splits(dataset(**fields))
    assert again[2] == first[2]
    assert len(again[0]) == len(first[0])


def test_cached_files_are_of_the_column_the_kind_and_the_length_of_the_text(tmp_path):
    rng = np.random.Generator(np.random.PCG64(0))
    lengths = rng.integers(100, 1000, 60).tolist()
    lines = [
        {"title": title, "body": " ".join(rng.choice(WORDS.split(), length))}
        for title, length in zip(sentences(60), lengths, strict=True)
    ]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    kinds = [
        {"name": "files:train.jsonl?text=title", "text": "documents"},
        {"name": "files:train.jsonl?text=body", "text": "documents"},
        {"name": "files:train.jsonl?text=body", "text": "sentences"},
        {"name": "files:train.jsonl?text=body", "text": "sentences", "sequence_length": 4},
    ]

    def opened(kind, cache_dir):
        fields = {"data_dir": str(tmp_path), "train_split": "train[:90%]", "vocabulary_size": 40}
        fields |= {"validation_split": "train[90%:]", "cache_dir": str(tmp_path / cache_dir)}
        train, held_out, info = splits.open_splits(dataset(**fields, **kind))
        return len(train), len(held_out), info.fingerprint

    alone = [opened(kind, f"alone{number}") for number, kind in enumerate(kinds)]
    assert [opened(kind, "shared") for kind in kinds] == alone
    assert len({fingerprint for _, _, fingerprint in alone}) == len(kinds)
    assert alone[0][:2] != alone[1][:2]


@pytest.mark.parametrize("text", ["sentences", "documents"])
def test_text_that_is_written_is_counted_anew_and_never_read_at_old_places(text, tmp_path):
    (tmp_path / "train.txt").write_text("\n".join(sentences(60)))
    fields = {"name": f"files:{tmp_path}", "text": text, "validation_split": "train"}
    train, _, info = splits.open_splits(dataset(**fields))
    changed = "\n".join(reversed(sentences(60)))  # of the same size
    (tmp_path / "train.txt").write_text(changed)
    with pytest.raises(RecordError, match=r"train\.txt"):
        train[0]
    again, _, other = splits.open_splits(dataset(**fields))
    assert other.fingerprint != info.fingerprint
    assert len(again[0]["tokens"])


def test_enormous_documents_are_truncated(words):
    documents = source_of(["the data " * 1000, "data", "d" * 300])  # the last one just fits
    texts = tokens.Texts(documents, "x", "train", 300)
    counts = tokens.count_pieces(texts, words)
    assert counts[0] == len(words.encode([("the data " * 1000)[:300]])[0])
