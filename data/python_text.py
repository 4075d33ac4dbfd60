"""English text that every Python brings along, so that language models need no download.

* `python_topics`: sentences of CPython's documentation topics, those that `help("lambda")` shows.
* `python_docstrings`: a document a public module of the standard library: all its docstrings.

Both are small (about half a million and a million characters) and technical. They differ a little
from one version of Python to the next; the fingerprint in a run's record says which text it was.
"""

import ast
import functools
import hashlib
import importlib.machinery
import platform
import re
import sys
import sysconfig
import zlib
from collections.abc import Iterable, Iterator

import numpy as np

from data.errors import SourceError
from data.sources import ArraySource, DatasetInfo, Source

NAMES = ("python_topics", "python_docstrings")
SPLITS = ("train", "validation")

# Neighbouring sentences are about one thing, so whole blocks of them are held out: one in ten.
_BLOCK_SENTENCES = 20
_HELD_OUT = 10


def open_source(name: str, split: str) -> tuple[Source, DatasetInfo]:
    """Records {'text': str} of a split; nothing that is trained on occurs in validation.

    Raises:
        SourceError: no such split, or this Python has no source files to read docstrings from.
    """
    if split not in SPLITS:
        raise SourceError(f"data set {name!r} has no split {split!r}; allowed: {', '.join(SPLITS)}")
    splits = _topics() if name == "python_topics" else _docstrings()
    if not all(splits.values()):
        raise SourceError(
            f"data set {name!r} is empty: this Python comes without its documentation; use another "
            "Python, or a data set that TFDS has prepared (config.dataset.name)"
        )
    digest = hashlib.sha256(repr(splits).encode()).hexdigest()[:16]
    info = DatasetInfo(name, f"python {platform.python_version()}", digest, None, None)
    return ArraySource(text=np.asarray(splits[split], object)), info


@functools.cache
def _topics() -> dict[str, list[str]]:
    try:
        from pydoc_data.topics import topics
    except ImportError:  # some distributions split it off
        return {"train": [], "validation": []}
    sentences = _unique(s for name in sorted(topics) for s in _sentences(topics[name]))
    return _split(sentences, [i // _BLOCK_SENTENCES for i in range(len(sentences))])


@functools.cache
def _docstrings() -> dict[str, list[str]]:
    modules = {name: _module_docstrings(name) for name in sorted(sys.stdlib_module_names)}
    # Some docstrings are copied from module to module: each counts where it comes first.
    seen: set[str] = set()
    documents = {}
    for name, docstrings in modules.items():
        new = [d for d in dict.fromkeys(docstrings) if d not in seen]
        seen.update(new)
        if new:
            documents[name] = "\n\n".join(new)
    # By the name's hash, so that a module is held out in every version of Python, or in none.
    return _split(list(documents.values()), [zlib.crc32(name.encode()) for name in documents])


def _split(texts: list[str], blocks: Iterable[int]) -> dict[str, list[str]]:
    held_out = [block % _HELD_OUT == 0 for block in blocks]
    return {
        "train": [text for text, out in zip(texts, held_out, strict=True) if not out],
        "validation": [text for text, out in zip(texts, held_out, strict=True) if out],
    }


def _unique(texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(texts))


def _sentences(topic: str) -> Iterator[str]:
    """Sentences of prose: headings, code and grammar are left out."""
    for paragraph in re.split(r"\n\s*\n", topic):
        text = " ".join(paragraph.split())
        if "::=" in text or ">>>" in text or re.search(r"\*{4}|={4}|-{4}", text):
            continue
        for sentence in re.split(r"(?<=[.!?])\s+(?=[A-Z\"*(])", text):
            if len(sentence.split()) > 3 and sentence[-1] in ".!?:":
                yield sentence


def _module_docstrings(name: str) -> list[str]:
    """Docstrings of a module's functions and classes and its own, read without importing it."""
    path = [sysconfig.get_path("stdlib")]
    spec = None if name.startswith("_") else importlib.machinery.PathFinder.find_spec(name, path)
    if spec is None or not (spec.origin or "").endswith(".py"):
        return []
    with open(spec.origin, "rb") as file:
        nodes = ast.walk(ast.parse(file.read()))
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = [ast.get_docstring(node) for node in nodes if isinstance(node, documented)]
    return [docstring for docstring in docstrings if docstring]
