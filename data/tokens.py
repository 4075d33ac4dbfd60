"""Tokenized text by random access: whole sentences, or documents cut into fixed windows.

An example has at most L + 1 tokens: L targets, each predicted from the tokens before it. The tokens
of a text are BEGIN, its pieces, END. With `sentences`, an example is the first L + 1 tokens of a
record: longer sentences are truncated, and an empty one has no targets. With `documents`, window w
of a document is its tokens w*L .. w*L + L. Neighboring windows share one token, which is the last
target of the first window and the first input of the second, so that every piece of the document is
a target exactly once.

Mapping an example to its window takes the number of tokens of every document. They are counted once
by tokenizing the split, and cached (4 bytes per document): the price of a global shuffle over
windows, about 26 core-minutes for 4% of C4 (6 billion tokens). Reading a window tokenizes its whole
document again (C4's have 2 windows on average); `MAX_BYTES` bounds the cost.
"""

import dataclasses
import functools
import itertools
import pathlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ml_collections
import numpy as np
import sentencepiece

from configs.base import is_own_data
from data import paths, python_text, tfds, vocabulary
from data.sources import DatasetInfo, RecordError, Source, SourceError, fingerprint
from data.storage import cached, is_url, written
from data.vocabulary import BEGIN, END, Vocabulary
from echo.threads import usable_cores
from runs import cli

# Longer documents are truncated, since each of their windows tokenizes the whole document.
MAX_BYTES = 200_000

# Bytes of a sentence that can become tokens: a piece has at most 16 characters of up to 4 bytes.
_BYTES_PER_TOKEN = 64

_COUNT_RECORDS = 1024


class Texts(Source):
    """The records {'text': bytes or str} of a split, checked to contain text and truncated.

    Args:
        max_bytes: bytes (or characters) of a record that are used.
    """

    def __init__(self, records: Source, name: str, split: str, max_bytes: int):
        self._records, self._max_bytes, self.where = records, max_bytes, records.where
        if not len(records):
            raise SourceError(f"split {split!r} of data set {name!r} is empty; give another one")
        if "text" not in records[0]:
            raise SourceError(f"data set {name!r} has no 'text', but {', '.join(records[0])}")

    def __len__(self) -> int:
        return len(self._records)

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        texts = [record["text"] for record in self._records.__getitems__(indices)]
        for index, text in zip(indices, texts, strict=True):
            if not isinstance(text, bytes | str):
                raise RecordError(f"{self.where(index)} has no text")
        return [{"text": text[: self._max_bytes]} for text in texts]


class Tokens(Source):
    """Examples {'tokens': int32 [<= length + 1]} of a split.

    Args:
        texts: records with a `text`.
        length: maximum number of targets L in an example.
        counts_N: number of pieces in each text, for cutting texts into windows; None takes the
            first window of each text.
    """

    def __init__(
        self, texts: Source, pieces: Vocabulary, length: int, counts_N: np.ndarray | None = None
    ):
        self._texts, self._vocabulary, self._length = texts, pieces, length
        self._starts = None  # the first window of each text, and their total
        if counts_N is not None:
            self._starts = np.concatenate([[0], np.cumsum(num_windows(counts_N, length))])

    def __len__(self) -> int:
        return len(self._texts) if self._starts is None else int(self._starts[-1])

    def bytes_read(self, fresh_examples: int) -> None:
        """Not known: a window is a part of the text that is read for it."""

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        texts_n = indices_n = np.asarray(indices, np.int64)
        windows_n = np.zeros_like(indices_n)
        if self._starts is not None:
            texts_n = np.searchsorted(self._starts, indices_n, side="right") - 1
            windows_n = indices_n - self._starts[texts_n]
        records = self._texts.__getitems__(texts_n.tolist())
        pieces = self._vocabulary.encode([record["text"] for record in records])
        if self._starts is not None:
            counted_n = self._starts[texts_n + 1] - self._starts[texts_n]
            found_n = num_windows(np.asarray(list(map(len, pieces))), self._length)
            for text in texts_n[found_n != counted_n].tolist():
                raise RecordError(
                    f"{self._texts.where(text)} has changed since its length was kept; delete "
                    "pieces-*.int32 in .cache next to the data, or in config.dataset.cache_dir"
                )
        return [
            {"tokens": window(pieces_n, number, self._length)}
            for pieces_n, number in zip(pieces, windows_n.tolist(), strict=True)
        ]


def num_windows(counts: np.ndarray, length: int) -> np.ndarray:
    """Number of windows of texts with so many pieces, int64.

    Every piece and END are targets once; a text without pieces has no windows.
    """
    return np.where(counts > 0, counts.astype(np.int64) // length + 1, 0)


def window(pieces: np.ndarray, number: int, length: int) -> np.ndarray:
    """Window `number` of a text's tokens, int32; empty for a text without pieces."""
    if not len(pieces):
        return pieces
    tokens = np.concatenate([[BEGIN], pieces, [END]], dtype=np.int32)
    return tokens[number * length : number * length + length + 1]


def open_splits(
    dataset: ml_collections.FrozenConfigDict, open_split: Callable
) -> tuple[Source, Source, DatasetInfo]:
    """The training and validation examples of a text data set, and what is known of it.

    Args:
        dataset: config.dataset.
        open_split: opens the records of (dataset, split).

    Raises:
        SourceError: there is no such data set or split, it has no text, or no vocabulary of the
            requested size can be made.
        RecordError: a record cannot be read.
    """
    _, info = open_split(dataset, dataset.train_split)
    return _open_splits(dataset, open_split, info.fingerprint)


@functools.lru_cache(maxsize=4)  # the trials of a search share their data
def _open_splits(
    dataset: ml_collections.FrozenConfigDict, open_split: Callable, content: str
) -> tuple[Source, Source, DatasetInfo]:
    """Like `open_splits`, of data with the fingerprint `content`."""
    max_bytes = MAX_BYTES
    if dataset.text == "sentences":
        max_bytes = dataset.sequence_length * _BYTES_PER_TOKEN
    opened = {}
    for split in (dataset.validation_split, dataset.train_split):
        records, info = open_split(dataset, split)
        opened[split] = Texts(records, dataset.name, split, max_bytes)
    directory, stamp = _cache(dataset)
    size = dataset.vocabulary_size
    settings = {
        # The name may give the column of the text, as in files:PATH?text=NAME.
        "dataset": f"{content}{''.join(dataset.name.partition('?')[1:])}",
        **{"text": dataset.text, "longest": max_bytes, "split": dataset.train_split},
        **{"vocabulary_size": size, "sample_bytes": vocabulary.SAMPLE_BYTES},
        **{"sentencepiece": sentencepiece.__version__, "written": stamp},
    }
    make = functools.partial(vocabulary.train, opened[dataset.train_split], size)
    pieces = Vocabulary(cached(directory, f"vocabulary-{size}.model", settings, make))
    examples, notes = [], list(info.notes)
    for split in (dataset.train_split, dataset.validation_split):
        texts, counts_N = opened[split], None
        if dataset.text == "documents":
            settings |= {"split": split, "vocabulary": pieces.fingerprint}
            make = functools.partial(_counted, texts, pieces)
            counts_N = np.frombuffer(cached(directory, "pieces.int32", settings, make), np.int32)
            empty = int((counts_N == 0).sum())
            if empty == len(counts_N):
                raise SourceError(
                    f"the documents of split {split!r} of data set {dataset.name!r} are all empty"
                )
            notes.append(
                f"{split}: {len(counts_N)} documents, of which {empty} are empty and left out; the "
                f"first {MAX_BYTES} bytes of each are used"
            )
        examples.append(Tokens(texts, pieces, dataset.sequence_length, counts_N))
    both = fingerprint(f"{content} {pieces.fingerprint}".encode())
    known = {"fingerprint": both, "vocabulary_size": pieces.size, "notes": tuple(notes)}
    return *examples, dataclasses.replace(info, **known)


def _cache(dataset: Any) -> tuple[pathlib.Path | None, list[Any]]:
    """Where what is computed is kept, by default next to the data, but not of text that ships with
    Python; and what changes when data are written whose fingerprint does not tell."""
    given = cli.expanded(dataset.cache_dir) if dataset.cache_dir else None
    if dataset.name in python_text.NAMES:
        return given, []
    if is_own_data(dataset.name):
        return paths.open_all(dataset).tree.cache(), []
    if is_url(dataset.data_dir):
        return given, []  # copies
    directory = pathlib.Path(tfds.builder(dataset.name, dataset.data_dir).data_path)
    return given or directory / ".cache", written(sorted(directory.glob("*.array_record*")))


def _counted(texts: Source, pieces: Vocabulary) -> bytes:
    return count_pieces(texts, pieces).tobytes()


def count_pieces(texts: Source, pieces: Vocabulary) -> np.ndarray:
    """Tokenizes all texts, on all cores; their numbers of pieces, int32 [N]."""

    def count(start: int) -> list[int]:
        records = texts.__getitems__(range(start, min(start + _COUNT_RECORDS, len(texts))))
        return list(map(len, pieces.encode([record["text"] for record in records])))

    with ThreadPoolExecutor(usable_cores()) as pool:
        chunks = pool.map(count, range(0, len(texts), _COUNT_RECORDS))
        return np.fromiter(itertools.chain.from_iterable(chunks), np.int32)
