"""Subword vocabularies: sentencepiece's unigram model (Kudo 2018), trained once per data set."""

import functools
import io
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


class Vocabulary:
    """Encodes text as pieces, numbers in [4, size) or UNKNOWN, by a model that `train` made."""

    def __init__(self, model: bytes):
        self._processor = sentencepiece.SentencePieceProcessor()
        self._processor.LoadFromSerializedProto(model)
        self.size = self._processor.vocab_size()
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
    """Everything that a vocabulary depends on: among others, the data set's fingerprint and its
    training split."""
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
    """The vocabulary of `documents`, read from `directory`, or trained and written there; None
    trains without writing.

    Raises:
        SourceError: the text has fewer pieces than requested, the directory is not writable, or the
            file in it is damaged.
    """
    make = functools.partial(train, documents, settings)
    if directory is None:
        return Vocabulary(make())
    name = cache.file_name(f"vocabulary-{settings['vocabulary_size']}", ".model", settings)
    return Vocabulary(cache.cached(directory / name, make))


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
    """sentencepiece's error as a sentence that names the field."""
    maximum = re.search(r"set it to a value <= (\d+)", error)
    why = f"allowed: up to {maximum[1]}" if maximum else error
    return (
        f"config.dataset.vocabulary_size is {settings['vocabulary_size']}, and no such vocabulary "
        f"can be made from the text of split {settings['split']!r}: {why}"
    )
