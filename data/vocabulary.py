"""Subword vocabularies: sentencepiece's unigram model (Kudo 2018), trained once per data set."""

import io
import json
import pathlib
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import sentencepiece

from data import cache, sources
from data.sources import Source, SourceError

# Pieces that no text is encoded as (BEGIN and END frame a document), and the unknown piece.
PAD, BEGIN, END, UNKNOWN = range(4)

# Training samples this much text: about half a million sentences. For 32,000 pieces it takes
# minutes on several cores and a few GB of memory.
SAMPLE_BYTES = 2**26

# sentencepiece skips lines of more than 4192 bytes; a character has at most 4.
_LINE_CHARACTERS = 1000

_READ_RECORDS = 256

# The checks of sentencepiece that fail if there are no lines, or none with a character.
_NO_TEXT = ("!sentences_.empty()", "(all_chars_count) > (0)")


class Vocabulary:
    """Encodes text as pieces: numbers in [4, size), or UNKNOWN.

    Args:
        model: a serialized sentencepiece model.

    Raises:
        ValueError: it is not a sentencepiece model that `train` made.
    """

    def __init__(self, model: bytes):
        self._processor = sentencepiece.SentencePieceProcessor()
        try:
            self._processor.LoadFromSerializedProto(model)
        except RuntimeError as error:
            raise ValueError("it is not a sentencepiece model") from error
        self.size = self._processor.vocab_size()
        ids = [getattr(self._processor, f"{name}_id")() for name in ("pad", "bos", "eos", "unk")]
        if self.size <= UNKNOWN or ids != [PAD, BEGIN, END, UNKNOWN]:
            raise ValueError("it is not a sentencepiece model of this project")
        self.fingerprint = sources.fingerprint(model)

    def encode(self, texts: list[Any]) -> list[np.ndarray]:
        """The pieces of each text (bytes or str), int32 [number of pieces].

        Bytes that are not UTF-8 become the unknown piece. Runs of white space become one blank;
        leading and trailing ones are dropped. Releases the GIL.
        """
        return self._processor.encode(texts, return_type="numpy", num_threads=1)

    def decode(self, pieces: np.ndarray) -> str:
        """The text of `pieces`, without PAD, BEGIN, and END."""
        return self._processor.decode([int(piece) for piece in pieces if piece > END])


def training_settings(size: int, fingerprint: str, split: str) -> dict[str, Any]:
    """Everything that a vocabulary depends on.

    Args:
        fingerprint: the data set's fingerprint.
        split: the training split.
    """
    return {
        "vocabulary_size": size,
        "model_type": "unigram",
        "dataset_fingerprint": fingerprint,
        "split": split,
        "sample_bytes": SAMPLE_BYTES,
        "sample_seed": 0,
        "sentencepiece": sentencepiece.__version__,
    }


def cached(
    documents: Source, settings: dict[str, Any], directory: pathlib.Path | None
) -> Vocabulary:
    """The vocabulary of `documents`, read from `directory`, or trained and written there.

    Args:
        documents: the training split, records with a `text`.
        settings: see `training_settings`; written next to the vocabulary as JSON.
        directory: None trains without writing.

    Raises:
        SourceError: the text has fewer pieces than requested, the directory is not writable, or the
            file in it is damaged.
    """
    if directory is None:
        return Vocabulary(train(documents, settings))
    size = settings["vocabulary_size"]
    path = directory / cache.file_name(f"vocabulary-{size}", ".model", settings)

    def make() -> bytes:
        model = train(documents, settings)
        cache.publish(path.with_suffix(".json"), json.dumps(settings, indent=2).encode())
        return model

    model = cache.cached(path, make)
    try:
        vocabulary = Vocabulary(model)
    except ValueError as error:
        raise cache.damaged(path, error) from error
    if vocabulary.size != size:
        raise cache.damaged(path, f"it has {vocabulary.size} pieces")
    return vocabulary


def train(documents: Source, settings: dict[str, Any]) -> bytes:
    """A serialized sentencepiece model; equal settings give equal bytes."""
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=_lines(documents, settings),
            model_writer=model,
            model_type=settings["model_type"],
            vocab_size=settings["vocabulary_size"],
            pad_id=PAD,
            bos_id=BEGIN,
            eos_id=END,
            unk_id=UNKNOWN,
            num_threads=16,  # threads determine the order of summation, and with it the result
            minloglevel=2,
        )
    except RuntimeError as error:
        raise SourceError(_explanation(str(error), settings)) from error
    return model.getvalue()


def _lines(documents: Source, settings: dict[str, Any]) -> Iterator[str]:
    """Lines of randomly chosen records, up to the size of the sample."""
    generator = np.random.Generator(np.random.PCG64(settings["sample_seed"]))
    bytes_left = settings["sample_bytes"]
    for indices in _random_chunks(len(documents), generator):
        for record in documents.__getitems__(indices.tolist()):
            text = record["text"][:bytes_left]
            bytes_left -= len(text)
            text = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
            for line in text.replace("\0", " ").splitlines():
                for start in range(0, len(line), _LINE_CHARACTERS):
                    yield line[start : start + _LINE_CHARACTERS]
        if bytes_left <= 0:
            return


def _random_chunks(n: int, generator: np.random.Generator) -> Iterator[np.ndarray]:
    """0 .. n - 1 in random order by chunks: neighboring records are cheaper to read together."""
    for chunk in generator.permutation(-(-n // _READ_RECORDS)):
        yield np.arange(chunk * _READ_RECORDS, min((chunk + 1) * _READ_RECORDS, n))


def _explanation(error: str, settings: dict[str, Any]) -> str:
    """sentencepiece's error as a sentence that says what is allowed."""
    size, split = settings["vocabulary_size"], settings["split"]
    start = f"config.dataset.vocabulary_size is {size}"
    if maximum := re.search(r"set it to a value <= (\d+)", error):
        return f"{start}, more than the text of split {split!r} gives; allowed: up to {maximum[1]}"
    if minimum := re.search(
        r"(?:smaller than required_chars|<= required_chars)\D*(\d+) vs (\d+)", error
    ):
        return (
            f"{start}, fewer than the text's distinct characters; allowed: more than {minimum[2]}"
        )
    if any(check in error for check in _NO_TEXT):
        return (
            f"no vocabulary can be made from split {split!r}, whose text is empty, or only white "
            "space and bytes that are not UTF-8; give another split or data set"
        )
    return f"no vocabulary of {size} pieces can be made from split {split!r}: {error}"
