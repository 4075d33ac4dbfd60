"""Subword vocabularies: sentencepiece's unigram model (Kudo 2018), trained on the data set once."""

import hashlib
import io
import json
import pathlib
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import sentencepiece

from data import cache
from data.errors import SourceError
from data.sources import Source

# A piece each that no text is made into (BEGIN, END frame a document), then the unknown piece.
PAD, BEGIN, END, UNKNOWN = range(4)

# Training reads records in a random order until it has this much text: about half a million
# sentences, minutes of work on several cores for 32,000 pieces, and some GB of memory.
SAMPLE_BYTES = 2**26

# sentencepiece leaves out lines of more than 4192 bytes; a character has up to 4.
_LINE_CHARACTERS = 1000

_READ_RECORDS = 256


class Vocabulary:
    """Text to pieces, numbers in [4, size) for what the vocabulary knows, and UNKNOWN.

    Args:
        model: a serialized sentencepiece model.

    Raises:
        ValueError: it is none, or not one of `train`'s.
    """

    def __init__(self, model: bytes):
        self._processor = sentencepiece.SentencePieceProcessor()
        try:
            self._processor.LoadFromSerializedProto(model)
        except RuntimeError as error:
            raise ValueError("it is no sentencepiece model") from error
        self.size = self._processor.vocab_size()
        ids = [getattr(self._processor, f"{name}_id")() for name in ("pad", "bos", "eos", "unk")]
        if self.size <= UNKNOWN or ids != [PAD, BEGIN, END, UNKNOWN]:
            raise ValueError("it is no sentencepiece model of this project")
        self.fingerprint = hashlib.sha256(model).hexdigest()[:16]

    def encode(self, texts: list[bytes | str]) -> list[np.ndarray]:
        """The pieces of each text, int32 [its length]; other threads run meanwhile.

        Bytes that are not UTF-8 become the unknown piece; white space of any kind and length is one
        blank, and none at the ends.
        """
        return self._processor.encode(texts, return_type="numpy", num_threads=1)

    def decode(self, pieces: np.ndarray) -> str:
        """The text of pieces; PAD, BEGIN and END are left out."""
        return self._processor.decode([int(piece) for piece in pieces if piece > END])


def settings(size: int, fingerprint: str, split: str) -> dict[str, Any]:
    """All that a vocabulary's pieces depend on.

    Args:
        fingerprint, split: of the data set and the part of it that is trained on.
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


def cached(documents: Source, about: dict[str, Any], directory: pathlib.Path | None) -> Vocabulary:
    """The vocabulary of `documents`, from `directory` or trained now and kept there.

    Args:
        documents: records with a `text`, the training split.
        about: its `settings`; they lie beside it as JSON.
        directory: None keeps nothing.

    Raises:
        SourceError: the text has fewer pieces than asked for, the directory cannot be written, or
            the file in it is damaged.
    """
    if directory is None:
        return Vocabulary(train(documents, about))
    path = directory / cache.named(f"vocabulary-{about['vocabulary_size']}", ".model", about)

    def made() -> bytes:
        model = train(documents, about)
        cache.publish(path.with_suffix(".json"), json.dumps(about, indent=2).encode())
        return model

    model = cache.kept(path, made)
    try:
        words = Vocabulary(model)
    except ValueError as error:
        raise cache.damaged(path, error) from error
    if words.size != about["vocabulary_size"]:
        raise cache.damaged(path, f"it has {words.size} pieces")
    return words


def train(documents: Source, about: dict[str, Any]) -> bytes:
    """A serialized sentencepiece model, the same bytes whenever the settings are the same."""
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=_lines(documents, about),
            model_writer=model,
            model_type=about["model_type"],
            vocab_size=about["vocabulary_size"],
            pad_id=PAD,
            bos_id=BEGIN,
            eos_id=END,
            unk_id=UNKNOWN,
            num_threads=16,  # sums are in the threads' order, so their number shapes the result
            minloglevel=2,
        )
    except RuntimeError as error:
        raise SourceError(_explained(str(error), about)) from error
    return model.getvalue()


def _lines(documents: Source, about: dict[str, Any]) -> Iterator[str]:
    """Lines of randomly chosen records, up to the sample's size."""
    generator = np.random.Generator(np.random.PCG64(about["sample_seed"]))
    order = _random_order(len(documents), generator)
    left = about["sample_bytes"]
    for indices in order:
        for record in documents.__getitems__(indices.tolist()):
            text = record["text"][:left]
            left -= len(text)
            text = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
            for line in text.replace("\0", " ").splitlines():
                for start in range(0, len(line), _LINE_CHARACTERS):
                    yield line[start : start + _LINE_CHARACTERS]
        if left <= 0:
            return


def _random_order(n: int, generator: np.random.Generator) -> Iterator[np.ndarray]:
    """0 .. n - 1 in random chunks: whole runs of neighbours, which are cheaper to read."""
    chunks = generator.permutation(-(-n // _READ_RECORDS))
    for chunk in chunks:
        yield np.arange(chunk * _READ_RECORDS, min((chunk + 1) * _READ_RECORDS, n))


def _explained(error: str, about: dict[str, Any]) -> str:
    """sentencepiece's complaint as a sentence with what is allowed."""
    size, split = about["vocabulary_size"], about["split"]
    start = f"config.dataset.vocabulary_size is {size}"
    if most := re.search(r"set it to a value <= (\d+)", error):
        return f"{start}, more than the text of split {split!r} gives; allowed: up to {most[1]}"
    if least := re.search(
        r"(?:smaller than required_chars|<= required_chars)\D*(\d+) vs (\d+)", error
    ):
        return f"{start}, fewer than the text's characters; allowed: more than {least[2]}"
    return f"no vocabulary of {size} pieces can be made of split {split!r}: {error}"
