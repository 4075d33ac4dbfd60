"""Text files, and JSON Lines: one example per line, or one document per file. All are UTF-8.

    PATH.txt, PATH/*.txt       config.dataset.text=sentences: a record per line that is not blank;
                               documents: a record per file
    PATH.jsonl, PATH/*.jsonl   a record per line: an object with a string `text`; also .ndjson

A directory's files belong to the splits that their folders or names say: test/a.txt, train.txt.
"""

import array
import codecs
import itertools
import json
import pathlib
from collections.abc import Sequence

from data.file_source import Records, locate
from data.path_data import PathData, by_split, check_contents
from data.sources import DatasetInfo, SourceError
from data.storage import Tree, encoded, written

_JSON_LINES = (".jsonl", ".ndjson")
SUFFIXES = (".txt", *_JSON_LINES)


def open_tree(tree: Tree, name: str, columns: dict[str, str], text: str) -> PathData:
    """The text in a file or below a directory.

    Raises:
        SourceError: there is no text.
    """
    names = [file for file in tree.names if file.lower().endswith(SUFFIXES)]
    others = sorted(set(tree.names).difference(names))
    if not names:
        raise SourceError(
            f"{tree.path(others[0])} is no {', '.join(SUFFIXES)}; unpack what is compressed, write "
            "tables as JSON Lines (docs/your_data.md), and rename plain text to .txt"
        )
    files_of, notes = by_split(tree.root, names)
    if others:
        listed = ", ".join(SUFFIXES)
        notes += (f"{len(others)} files, such as {others[0]}, are no {listed}, and left out",)
    info = DatasetInfo(name, "text", tree.fingerprint(names), notes=notes)
    column, documents = columns.get("text", "text"), text == "documents"
    records = lambda split: _records(tree, files_of[split], column, documents)  # noqa: E731
    return PathData(tree, tuple(files_of), records, info)


def _records(tree: Tree, names: list[str], column: str, documents: bool) -> Records:
    """Records {'text': bytes}, one per line that is not blank; of a file of plain text that is a
    document, the whole."""
    files = [_File(tree, name, documents) for name in names]
    if not documents:
        check_contents(tree, [file.name for file in files if file.starts])
    ends = list(itertools.accumulate(len(file.starts) for file in files))

    def of(row: int) -> tuple[_File, int]:
        """The file of a record, and the byte where it starts."""
        file, number = locate(ends, row)
        return files[file], files[file].starts[number]

    def text(row: int) -> bytes:
        file, start = of(row)
        content = file.content(start)
        return _field(content, column) if file.is_json else content

    def place(row: int) -> str:
        file, start = of(row)
        line = file.path.read_bytes()[:start].count(b"\n") + 1
        return tree.path(file.name) + ("" if file.whole else f", line {line}")

    def key(row: int) -> bytes:
        file, start = of(row)
        return encoded(file.name) if file.whole else file.content(start)

    return Records(range(ends[-1]), lambda rows: [{"text": text(row)} for row in rows], place, key)


class _File:
    """A file, and where its records start: a document is one."""

    def __init__(self, tree: Tree, name: str, documents: bool):
        self.name, self.path = name, tree.local(name)
        self.is_json = name.lower().endswith(_JSON_LINES)
        self.whole = documents and not self.is_json
        self._stamp = written([self.path])
        self.starts = [0] if self.whole else _line_starts(self.path, tree.path(name))

    def content(self, start: int) -> bytes:
        if written([self.path]) != self._stamp:
            raise ValueError("it has been written since the run started")
        with self.path.open("rb") as file:
            file.seek(start)
            if not self.whole:
                return file.readline().rstrip(b"\r\n")
            text = file.read().removeprefix(codecs.BOM_UTF8)
        _decoded(text)
        return text


def _line_starts(path: pathlib.Path, shown: str) -> Sequence[int]:
    """Where each line that is not blank starts in a file."""
    starts, start = array.array("q"), 0
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            bom = codecs.BOM_UTF8 if not start and line.startswith(codecs.BOM_UTF8) else b""
            try:
                text = _decoded(line[len(bom) :])
                if "\r" in text.rstrip("\r\n"):
                    raise ValueError("it has line ends of old Macs; tr '\\r' '\\n' < FILE > NEW")
            except ValueError as error:
                raise SourceError(f"{shown}, line {number}, cannot be read: {error}") from error
            if text.strip():
                starts.append(start + len(bom))
            start += len(line)
    return starts


def _decoded(text: bytes) -> str:
    """Decodes text; raises ValueError unless it is UTF-8."""
    if text.startswith(b"version https://git-lfs"):
        raise ValueError("it is a pointer of Git LFS; fetch the file itself with git lfs pull")
    try:
        return text.replace(b"\0", b"\xff").decode()  # UTF-16 and binary files have zeros
    except UnicodeDecodeError as error:
        raise ValueError(
            "it is not UTF-8; convert it from the encoding that it has, such as WINDOWS-1252 or "
            "UTF-16, by iconv -f ENCODING -t UTF-8 FILE > NEW"
        ) from error


def _field(line: bytes, column: str) -> bytes:
    """The text in a line of JSON, which can hold half of a character."""
    try:
        text = json.loads(line)[column]
        return text.encode(errors="surrogatepass")
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ValueError(
            f"it is no JSON object with a string {column!r} ({error}); each line is one object, "
            "without a comma after it, as jq -c '.[]' FILE > NEW writes those of an array; another "
            f"field is given as files:PATH?text=FIELD: {line[:100]!r}"
        ) from error
