"""English text that ships with Python.

* `python_topics`: sentences of CPython's manual, which `help("lambda")` prints.
* `python_docstrings`: one document per public module of the standard library: all its docstrings.

Both differ slightly between versions of Python; the fingerprint in a run's record identifies the
text.
"""

import ast
import functools
import importlib.machinery
import platform
import re
import sys
import sysconfig
import zlib
from collections.abc import Iterable, Iterator

import numpy as np

from data.sources import ArraySource, DatasetInfo, Source, check_split, fingerprint

NAMES = ("python_topics", "python_docstrings")

# Neighboring sentences share a topic, so whole blocks are held out, one in ten.
_BLOCK_SENTENCES = 20
_HELD_OUT = 10


def open_source(name: str, split: str) -> tuple[Source, DatasetInfo]:
    """Records {'text': str} of a split; no training text occurs in validation."""
    check_split(name, split, ("train", "validation"))
    splits = _topics() if name == "python_topics" else _docstrings()
    digest = fingerprint(repr(splits).encode())
    info = DatasetInfo(name, f"python {platform.python_version()}", digest)
    return ArraySource(text=np.asarray(splits[split], object)), info


@functools.cache
def _topics() -> dict[str, list[str]]:
    from pydoc_data.topics import topics  # which some distributions omit

    sentences = list(dict.fromkeys(s for name in sorted(topics) for s in _sentences(topics[name])))
    return _held_out(sentences, [i // _BLOCK_SENTENCES for i in range(len(sentences))])


@functools.cache
def _docstrings() -> dict[str, list[str]]:
    modules = {name: _module_docstrings(name) for name in sorted(sys.stdlib_module_names)}
    # Some docstrings are copied between modules; each is kept where it occurs first.
    seen: set[str] = set()
    documents = {}
    for name, docstrings in modules.items():
        new = [d for d in dict.fromkeys(docstrings) if d not in seen]
        seen.update(new)
        if new:
            documents[name] = "\n\n".join(new)
    # Split by a hash of the name, so that every version of Python holds out the same modules.
    return _held_out(list(documents.values()), [zlib.crc32(name.encode()) for name in documents])


def _held_out(texts: list[str], blocks: Iterable[int]) -> dict[str, list[str]]:
    is_out = [block % _HELD_OUT == 0 for block in blocks]
    return {
        "train": [text for text, out in zip(texts, is_out, strict=True) if not out],
        "validation": [text for text, out in zip(texts, is_out, strict=True) if out],
    }


def _sentences(topic: str) -> Iterator[str]:
    """Sentences of prose, without headings, code, and grammar."""
    for paragraph in re.split(r"\n\s*\n", topic):
        text = " ".join(paragraph.split())
        if "::=" in text or ">>>" in text or re.search(r"\*{4}|={4}|-{4}", text):
            continue
        for sentence in re.split(r"(?<=[.!?])\s+(?=[A-Z\"*(])", text):
            if len(sentence.split()) > 3 and sentence[-1] in ".!?:":
                yield sentence


def _module_docstrings(name: str) -> list[str]:
    """The docstrings of a module, its functions, and its classes, without importing the module."""
    path = [sysconfig.get_path("stdlib")]
    spec = None if name.startswith("_") else importlib.machinery.PathFinder.find_spec(name, path)
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return []
    with open(spec.origin, "rb") as file:
        nodes = ast.walk(ast.parse(file.read()))
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docstrings = [ast.get_docstring(node) for node in nodes if isinstance(node, documented)]
    return [docstring for docstring in docstrings if docstring]
