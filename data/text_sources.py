"""Random access to tokenized text: sentences one by one, or documents cut into fixed windows.

An example is L + 1 tokens at most: L targets, each predicted from those before it. A text's tokens
are BEGIN, its pieces, END. With `sentences` an example is a record's first L + 1 of them: longer
sentences are truncated, and an empty one is an example without targets. With `documents` window w
of a document is its tokens w*L .. w*L + L: neighbours share one token, which the first predicts
and the second begins with, so every piece of the document is a target exactly once.

Which window is example i? That takes each document's number of tokens, counted once by tokenizing
the split and kept (4 bytes a document). It is the price of a global shuffle over windows: about 4
million tokens a second and core were measured, so 4 % of C4 (6 billion tokens, 15 million
documents) take some 26 core-minutes, and all of it, 365 million documents, 11 core-hours, a 1.5 GB
file and 3 GB of memory. Reading a window tokenizes its whole document again (C4's have 2 windows in
the mean); `LONGEST` bounds that.
"""

import dataclasses
import functools
import hashlib
import io
import os
import pathlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from data import cache, python_text, sources, tfds, vocabulary
from data.errors import RecordError, SourceError
from data.sources import DatasetInfo, Source
from data.vocabulary import BEGIN, END, Vocabulary

# Of a longer document only so many bytes are used: each of its windows tokenizes all of it.
LONGEST = 200_000

# Of a sentence only L times so many bytes are looked at; a piece has 16 characters at most.
_BYTES_PER_TOKEN = 64

_COUNT_RECORDS = 1024


class Texts:
    """A split's records, checked to hold text; {'text': bytes or str}.

    Args:
        longest: what is beyond so many bytes of a record is left out.
    """

    def __init__(self, records: Source, name: str, split: str, longest: int):
        self._records, self._longest = records, longest
        if not len(records):
            raise SourceError(f"split {split!r} of data set {name!r} is empty; give another one")
        if "text" not in records[0]:
            raise SourceError(
                f"data set {name!r} has no feature 'text', but {', '.join(map(repr, records[0]))}; "
                "choose a data set of text as config.dataset.name"
            )

    def __len__(self) -> int:
        return len(self._records)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        records = self._records.__getitems__(indices)
        return [self._cut(*row) for row in zip(indices, records, strict=True)]

    def where(self, number: int) -> str:
        """How a sentence names record `number`."""
        return sources.where(self._records, number)

    def _cut(self, number: int, record: dict[str, Any]) -> dict[str, Any]:
        text = record["text"]
        if not isinstance(text, bytes | str):
            raise RecordError(
                f"{self.where(number)} has no text; fix it, or leave it out of the split"
            )
        return {"text": text[: self._longest]}


class Tokens:
    """Examples {'tokens': int32 [<= length + 1]} of a split.

    Args:
        texts: records with a `text`.
        length: number L of targets an example has at most.
        counts_N: pieces of each text, to cut it into windows; None takes the first window of each.
    """

    def __init__(
        self, texts: Source, words: Vocabulary, length: int, counts_N: np.ndarray | None = None
    ):
        self._texts, self._words, self._length = texts, words, length
        self._ends_N = None if counts_N is None else np.cumsum(num_windows(counts_N, length))

    def __len__(self) -> int:
        return len(self._texts) if self._ends_N is None else int(self._ends_N[-1])

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        texts_n, windows_n = self._places(np.asarray(indices, np.int64))
        records = self._texts.__getitems__(texts_n.tolist())
        pieces = self._words.encode([record["text"] for record in records])
        return [
            {"tokens": window(pieces_n, number, self._length)}
            for pieces_n, number in zip(pieces, windows_n.tolist(), strict=True)
        ]

    def _places(self, indices_n: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Which text, and which window of it, each example is."""
        if self._ends_N is None:
            return indices_n, np.zeros_like(indices_n)
        texts_n = np.searchsorted(self._ends_N, indices_n, side="right")
        starts_n = np.where(texts_n, self._ends_N[texts_n - 1], 0)
        return texts_n, indices_n - starts_n


def num_windows(counts: np.ndarray, length: int) -> np.ndarray:
    """Windows of texts with so many pieces, int64: all pieces and END are targets once; a text
    without pieces has no window."""
    return np.where(counts > 0, counts.astype(np.int64) // length + 1, 0)


def window(pieces: np.ndarray, number: int, length: int) -> np.ndarray:
    """Window `number` of a text's tokens, int32; no tokens of a text without pieces."""
    if not len(pieces):
        return pieces
    tokens = np.concatenate([[BEGIN], pieces, [END]], dtype=np.int32)
    return tokens[number * length : number * length + length + 1]


@dataclasses.dataclass(frozen=True)
class TextSettings:
    """The fields of a configuration's `dataset` that say which text it is, and how it is cut."""

    name: str
    data_dir: str
    cache_dir: str
    train_split: str
    validation_split: str
    text: str
    sequence_length: int
    vocabulary_size: int


def open_text(dataset) -> tuple[Source, Source, DatasetInfo]:
    """The training and validation examples of a text data set, and what is known of it.

    Args:
        dataset: a configuration's `dataset`.

    Raises:
        SourceError: no such data set or split, no text in it, a vocabulary that does not suit.
    """
    fields = [field.name for field in dataclasses.fields(TextSettings)]
    return _open(TextSettings(**{field: dataset[field] for field in fields}))


@functools.lru_cache(maxsize=2)  # the trials of a search share their data
def _open(dataset: TextSettings) -> tuple[Source, Source, DatasetInfo]:
    train, info = _texts(dataset, dataset.train_split)
    held_out, _ = _texts(dataset, dataset.validation_split)
    directory = _cache_directory(dataset)
    about = vocabulary.settings(dataset.vocabulary_size, info.fingerprint, dataset.train_split)
    words = vocabulary.cached(train, about, directory)
    parts, notes = [], []
    for texts, split in ((train, dataset.train_split), (held_out, dataset.validation_split)):
        counts = None
        if dataset.text == "documents":
            about = {"dataset": info.fingerprint, "split": split, "vocabulary": words.fingerprint}
            counts = _cached_counts(texts, words, about | {"longest": LONGEST}, directory)
            notes.append(_note(counts, dataset.name, split))
        pieces_N = None if counts is None else counts.pieces
        parts.append(Tokens(texts, words, dataset.sequence_length, pieces_N))
    both = hashlib.sha256(f"{info.fingerprint} {words.fingerprint}".encode()).hexdigest()[:16]
    info = dataclasses.replace(
        info, fingerprint=both, vocabulary_size=words.size, notes=tuple(notes)
    )
    return *parts, info


def _texts(dataset: TextSettings, split: str) -> tuple[Texts, DatasetInfo]:
    name = dataset.name
    if name in python_text.NAMES:
        records, info = python_text.open_source(name, split)
    else:
        records, info = sources.open_source(name, split, dataset.data_dir)
    one_window = dataset.sequence_length * _BYTES_PER_TOKEN
    longest = one_window if dataset.text == "sentences" else LONGEST
    return Texts(records, name, split, longest), info


def _cache_directory(dataset: TextSettings) -> pathlib.Path | None:
    """Where what is computed once is kept: beside the data; nowhere for Python's own text."""
    if dataset.cache_dir:
        return pathlib.Path(dataset.cache_dir).expanduser()
    if dataset.name in python_text.NAMES:
        return None
    path = os.fspath(tfds.builder(dataset.name, dataset.data_dir).data_path)
    if "://" in path:
        raise SourceError(
            f"data set {dataset.name!r} lies in {path}, where vocabularies cannot be kept; give a "
            "local directory as config.dataset.cache_dir"
        )
    return pathlib.Path(path) / "text"


class Counts(NamedTuple):
    """What tokenizing all documents of a split tells.

    Attributes:
        pieces: of each document, int32 [N].
        cut: documents of which only the first `LONGEST` bytes are used.
    """

    pieces: np.ndarray
    cut: int


def _note(counts: Counts, name: str, split: str) -> str:
    """What a run's record says of the documents that are not used as they are."""
    empty = int((counts.pieces == 0).sum())
    if empty == len(counts.pieces):
        raise SourceError(
            f"the documents of split {split!r} of data set {name!r} are all empty; give another "
            "split or data set"
        )
    return (
        f"{split}: {len(counts.pieces)} documents, of which {empty} are empty and left out, and "
        f"{counts.cut} longer than {LONGEST} bytes and cut there"
    )


def _cached_counts(
    texts: Texts, words: Vocabulary, about: dict[str, Any], directory: pathlib.Path | None
) -> Counts:
    """The counts of a split, from `directory`, or made now and kept there."""
    if directory is None:
        return count_pieces(texts, words)
    path = directory / cache.named("pieces", ".npz", about)

    def made() -> bytes:
        content = io.BytesIO()
        np.savez(content, **count_pieces(texts, words)._asdict())
        return content.getvalue()

    content = cache.kept(path, made)
    try:
        with np.load(io.BytesIO(content)) as kept:
            counts = Counts(kept["pieces"], int(kept["cut"]))
    except Exception as error:  # of the archive's parts, whichever is damaged
        raise cache.damaged(path, error) from error
    pieces_N = counts.pieces
    if pieces_N.dtype != np.int32 or pieces_N.shape != (len(texts),) or (pieces_N < 0).any():
        raise cache.damaged(path, f"it does not hold the lengths of {len(texts)} documents")
    return counts


def count_pieces(texts: Source, words: Vocabulary) -> Counts:
    """Tokenizes all texts, on all cores."""

    def count(start: int) -> tuple[list[int], int]:
        indices = range(start, min(start + _COUNT_RECORDS, len(texts)))
        chunk = [record["text"] for record in texts.__getitems__(indices)]
        return [len(pieces) for pieces in words.encode(chunk)], sum(
            len(t) >= LONGEST for t in chunk
        )

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        parts = list(pool.map(count, range(0, len(texts), _COUNT_RECORDS)))
    pieces_N = np.concatenate([pieces for pieces, _ in parts]).astype(np.int32)
    return Counts(pieces_N, sum(cut for _, cut in parts))
