"""Subword vocabularies: sentencepiece's unigram model (Kudo 2018), trained once per data set."""

import io
from collections.abc import Iterator
from typing import Any

import numpy as np
import sentencepiece

from data import sources
from data.sources import Source, SourceError, reason

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


def train(texts: Source, size: int) -> bytes:
    """A serialized sentencepiece model of `size` pieces; equal texts give equal bytes.

    Raises:
        SourceError: no such vocabulary can be made from the text.
        RecordError: a record cannot be read.
    """
    model = io.BytesIO()
    lines = list(_lines(texts))  # here, so that an error names its record
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines),
            model_writer=model,
            model_type="unigram",
            vocab_size=size,
            pad_id=PAD,
            bos_id=BEGIN,
            eos_id=END,
            unk_id=UNKNOWN,
            num_threads=16,  # threads determine the order of summation, and with it the result
            minloglevel=2,
        )
    except RuntimeError as error:
        raise SourceError(
            f"config.dataset.vocabulary_size is {size}, and the training split has no such "
            f"vocabulary: {reason(error)}"
        ) from error
    return model.getvalue()


def _lines(texts: Source) -> Iterator[str]:
    """Lines of randomly chosen records, up to the size of the sample."""
    bytes_left = SAMPLE_BYTES
    # By chunks: neighboring records are cheaper to read together.
    chunks = np.random.Generator(np.random.PCG64(0)).permutation(-(-len(texts) // _READ_RECORDS))
    for start in (chunks * _READ_RECORDS).tolist():
        rows = range(start, min(start + _READ_RECORDS, len(texts)))
        for record in texts.__getitems__(rows):
            text = record["text"][:bytes_left]
            bytes_left -= len(text)
            text = text.decode("utf-8", "replace") if isinstance(text, bytes) else text
            for line in text.replace("\0", " ").splitlines():
                for begin in range(0, len(line), _LINE_CHARACTERS):
                    yield line[begin : begin + _LINE_CHARACTERS]
        if bytes_left <= 0:
            return
