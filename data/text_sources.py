"""Random access to tokenized text: whole sentences, or documents cut into fixed windows.

An example has at most L + 1 tokens: L targets, each predicted from the tokens before it. The tokens
of a text are BEGIN, its pieces, END. With `sentences`, an example is the first L + 1 tokens of a
record: longer sentences are truncated, and an empty one has no targets. With `documents`, window w
of a document is its tokens w*L .. w*L + L. Neighboring windows share one token, which is the last
target of the first window and the first input of the second, so that every piece of the document is
a target exactly once.

Mapping an example to its window takes the number of tokens of every document. They are counted once
by tokenizing the split, and cached (4 bytes per document). This is the price of a global shuffle
over windows: at the measured rate of about 4 million tokens per second per core, 4% of C4
(6 billion tokens, 15 million documents) take about 26 core-minutes. All of C4, 365 million
documents, takes 11 core-hours, a file of 1.5 GB, and 3 GB of memory. Reading a window tokenizes its
whole document again (C4's have 2 windows on average); `MAX_BYTES` bounds the cost.
"""

import dataclasses
import functools
import io
import pathlib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import ml_collections
import numpy as np

from configs.base import is_own_data
from data import cache, packaged, paths, tfds, vocabulary
from data.sources import DatasetInfo, RecordError, Source, SourceError, fingerprint
from data.vocabulary import BEGIN, END, Vocabulary
from echo.threads import usable_cores
from runs import cli

# Longer documents are truncated, since each of their windows tokenizes the whole document.
MAX_BYTES = 200_000

# Bytes of a sentence that can become tokens: a piece has at most 16 characters of up to 4 bytes.
_BYTES_PER_TOKEN = 64

_COUNT_RECORDS = 1024


class Texts(Source):
    """The records {'text': bytes or str, 'cut': bool} of a split, checked to contain text and
    truncated; `cut` says whether one was.

    Args:
        max_bytes: bytes (or characters) of a record that are used.
    """

    def __init__(self, records: Source, name: str, split: str, max_bytes: int):
        self._records, self._max_bytes, self.where = records, max_bytes, records.where
        if not len(records):
            raise SourceError(f"split {split!r} of data set {name!r} is empty; give another one")
        if "text" not in records[0]:
            raise SourceError(
                f"data set {name!r} has no feature 'text', but {', '.join(map(repr, records[0]))}; "
                "choose a text data set as config.dataset.name"
            )

    def __len__(self) -> int:
        return len(self._records)

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        records = self._records.__getitems__(indices)
        texts = [self._text(*pair) for pair in zip(indices, records, strict=True)]
        longest = self._max_bytes
        return [{"text": text[:longest], "cut": len(text) > longest} for text in texts]

    def _text(self, index: int, record: dict[str, Any]) -> bytes | str:
        if not isinstance(record["text"], bytes | str):
            raise RecordError(
                f"{self.where(index)} has no text; fix it, or leave it out of the split"
            )
        return record["text"]


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
        self._ends_N = None if counts_N is None else np.cumsum(num_windows(counts_N, length))

    def __len__(self) -> int:
        return len(self._texts) if self._ends_N is None else int(self._ends_N[-1])

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        texts_n, windows_n = self._locate(np.asarray(indices, np.int64))
        records = self._texts.__getitems__(texts_n.tolist())
        pieces = self._vocabulary.encode([record["text"] for record in records])
        if self._ends_N is not None:
            self._check_lengths(self._ends_N, texts_n, pieces)
        return [
            {"tokens": window(pieces_n, number, self._length)}
            for pieces_n, number in zip(pieces, windows_n.tolist(), strict=True)
        ]

    def _locate(self, indices_n: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The text of each example, and the example's window in it."""
        if self._ends_N is None:
            return indices_n, np.zeros_like(indices_n)
        texts_n = np.searchsorted(self._ends_N, indices_n, side="right")
        return texts_n, indices_n - _starts(self._ends_N, texts_n)

    def _check_lengths(
        self, ends_N: np.ndarray, texts_n: np.ndarray, pieces: list[np.ndarray]
    ) -> None:
        """Raises RecordError for a text with another number of windows than were counted."""
        counted_n = ends_N[texts_n] - _starts(ends_N, texts_n)
        windows_n = num_windows(np.asarray([len(pieces_n) for pieces_n in pieces]), self._length)
        for text in texts_n[windows_n != counted_n].tolist():
            raise RecordError(
                f"{self._texts.where(text)} has another length than was cached, so its text has "
                "changed since; delete pieces-*.npz in text/ next to the data, or in "
                "config.dataset.cache_dir"
            )


def _starts(ends_N: np.ndarray, texts_n: np.ndarray) -> np.ndarray:
    """The first window of each text, from the ends of all texts."""
    return np.where(texts_n, ends_N[texts_n - 1], 0)


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
    dataset: Any, open_split: Callable[[Any, str], tuple[Source, DatasetInfo]]
) -> tuple[Source, Source, DatasetInfo]:
    """The training and validation examples of a text data set, and what is known of it.

    Args:
        dataset: config.dataset.
        open_split: opens the records of (dataset, split).

    Raises:
        SourceError: there is no such data set or split, it has no text, or no vocabulary of the
            requested size can be made.
    """
    return _open_splits(ml_collections.FrozenConfigDict(dataset), open_split)


@functools.lru_cache(maxsize=4)  # the trials of a search share their data
def _open_splits(dataset: Any, open_split: Callable) -> tuple[Source, Source, DatasetInfo]:
    train, info = _open_texts(dataset, dataset.train_split, open_split)
    held_out, _ = _open_texts(dataset, dataset.validation_split, open_split)
    directory = _cache_directory(dataset)
    settings = vocabulary.training_settings(
        dataset.vocabulary_size, _fingerprint(dataset, info), dataset.train_split
    )
    settings |= {"text": dataset.text, "longest": _max_bytes(dataset)}
    pieces = vocabulary.cached(train, settings, directory)
    examples, notes = [], []
    for texts, split in ((train, dataset.train_split), (held_out, dataset.validation_split)):
        counts_N = None
        if dataset.text == "documents":
            settings = {
                "dataset": _fingerprint(dataset, info),
                "split": split,
                "vocabulary": pieces.fingerprint,
                "longest": MAX_BYTES,
            }
            counts = _cached_counts(texts, pieces, settings, directory)
            notes.append(_note(counts, dataset.name, split))
            counts_N = counts.pieces
        examples.append(Tokens(texts, pieces, dataset.sequence_length, counts_N))
    both = fingerprint(f"{info.fingerprint} {pieces.fingerprint}".encode())
    info = dataclasses.replace(
        info, fingerprint=both, vocabulary_size=pieces.size, notes=(*info.notes, *notes)
    )
    return *examples, info


def _open_texts(dataset: Any, split: str, open_split: Callable) -> tuple[Texts, DatasetInfo]:
    records, info = open_split(dataset, split)
    return Texts(records, dataset.name, split, _max_bytes(dataset)), info


def _max_bytes(dataset: Any) -> int:
    """Bytes of a record that are used."""
    one_window = dataset.sequence_length * _BYTES_PER_TOKEN
    return one_window if dataset.text == "sentences" else MAX_BYTES


def _fingerprint(dataset: Any, info: DatasetInfo) -> str:
    """That of the data set, with the column of its text if the name gives one (PATH?text=NAME)."""
    _, mark, columns = dataset.name.partition("?")
    return f"{info.fingerprint}{mark}{columns}"


def _cache_directory(dataset: Any) -> pathlib.Path | None:
    """By default a directory next to the data; None for text that ships with Python."""
    if dataset.cache_dir:
        return cli.expanded(dataset.cache_dir)
    if dataset.name in packaged.TEXTS:
        return None
    if is_own_data(dataset.name):
        directory = paths.directory(dataset.name, dataset.data_dir)
    else:
        directory = tfds.builder(dataset.name, dataset.data_dir).data_path
    return pathlib.Path(directory) / "text"


class Counts(NamedTuple):
    """The result of tokenizing all documents of a split.

    Attributes:
        pieces: number of pieces in each document, int32 [N].
        cut: number of documents that were truncated to `MAX_BYTES`.
    """

    pieces: np.ndarray
    cut: int


def _note(counts: Counts, name: str, split: str) -> str:
    """A sentence for the run's record on documents that are truncated or left out."""
    empty = int((counts.pieces == 0).sum())
    if empty == len(counts.pieces):
        raise SourceError(
            f"the documents of split {split!r} of data set {name!r} are all empty; give another "
            "split or data set"
        )
    return (
        f"{split}: {len(counts.pieces)} documents; {empty} are empty and left out, and "
        f"{counts.cut} longer than {MAX_BYTES} bytes are truncated"
    )


def _cached_counts(
    texts: Texts, pieces: Vocabulary, settings: dict[str, Any], directory: pathlib.Path | None
) -> Counts:
    """The counts of a split, cached in `directory`."""
    if directory is None:
        return count_pieces(texts, pieces)
    path = directory / cache.file_name("pieces", ".npz", settings)

    def make() -> bytes:
        content = io.BytesIO()
        np.savez(content, **count_pieces(texts, pieces)._asdict())
        return content.getvalue()

    with np.load(io.BytesIO(cache.cached(path, make))) as arrays:
        return Counts(arrays["pieces"], int(arrays["cut"]))


def count_pieces(texts: Texts, pieces: Vocabulary) -> Counts:
    """Tokenizes all texts, on all cores."""

    def count(start: int) -> tuple[list[int], int]:
        indices = range(start, min(start + _COUNT_RECORDS, len(texts)))
        records = texts.__getitems__(indices)
        tokens = pieces.encode([record["text"] for record in records])
        return list(map(len, tokens)), sum(record["cut"] for record in records)

    with ThreadPoolExecutor(usable_cores()) as pool:
        chunks = list(pool.map(count, range(0, len(texts), _COUNT_RECORDS)))
    counts_N = np.concatenate([counts for counts, _ in chunks]).astype(np.int32)
    return Counts(counts_N, sum(truncated for _, truncated in chunks))
