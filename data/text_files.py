"""Text files, and JSON Lines: one example per line, or one document per file. All are UTF-8.

    PATH.txt, PATH/*.txt       config.dataset.text=sentences: a record per line that is not blank;
                               documents: a record per file
    PATH.jsonl, PATH/*.jsonl   a record per line: an object with a string `text`; also .ndjson, or
                               one .json file

A directory's files belong to the splits that their folders or names say: test/a.txt, train.txt.
A single file of another suffix is text, too, unless it is a table or binary.
"""

import array
import codecs
import itertools
import json
import os
import pathlib
import re
from collections.abc import Sequence

from data.file_source import Records, locate
from data.path_data import PathData, Settings, by_split, check_contents
from data.sources import DatasetInfo, SourceError
from data.storage import Tree, encoded

_JSON_LINES = (".jsonl", ".ndjson")
SUFFIXES = (".txt", *_JSON_LINES)
_EXTRA_COMMA = re.compile(rb",\s*[]}]?\s*$")
_PACKED = (".gz", ".bz2", ".xz", ".zst", ".zip")
_TABLES = (".csv", ".tsv", ".xls", ".xlsx", ".ods", ".parquet", ".arrow", ".feather")


def open_tree(tree: Tree, settings: Settings) -> PathData:
    """The text in a file or below a directory.

    Raises:
        SourceError: there is no text.
    """
    if packed := [name for name in tree.names if name.lower().endswith(_PACKED)]:
        raise SourceError(
            f"{tree.path(packed[0])} is compressed; unpack it (gunzip, bunzip2, unxz, unzstd, or "
            "unzip), or move it away"
        )
    names = [n for n in tree.names if tree.is_file or n.lower().endswith(SUFFIXES)]
    if not names or names[0].lower().endswith(_TABLES):
        raise SourceError(
            f"{settings.path} has no text ({', '.join(SUFFIXES)}); a table is written as JSON Lines"
            " first, by pandas.DataFrame.to_json(FILE, orient='records', lines=True)"
        )
    files_of, notes = by_split(tree.root, names)
    if others := sorted(set(tree.names).difference(names)):
        suffixes = ", ".join(SUFFIXES)
        notes += (f"{len(others)} files, such as {others[0]}, are no {suffixes}, and left out",)
    info = DatasetInfo(settings.name, "text", tree.fingerprint(names), notes=notes)
    records = lambda split: _records(tree, files_of[split], settings)  # noqa: E731
    return PathData(tuple(files_of), records, info)


def _records(tree: Tree, names: list[str], settings: Settings) -> Records:
    """Records {'text': bytes}, one per line that is not blank; of a file of plain text that is a
    document, the whole."""
    shown = [tree.path(name) for name in names]
    paths = [tree.local(name) for name in names]
    whole = [settings.text == "documents" and not _is_json(path) for path in paths]
    written = [path.stat().st_mtime_ns for path in paths]
    starts = [
        [0] if document else _line_starts(path, name)
        for document, path, name in zip(whole, paths, shown, strict=True)
    ]
    if settings.text != "documents":
        check_contents(tree, [name for name, lines in zip(names, starts, strict=True) if lines])
    ends = list(itertools.accumulate(map(len, starts)))

    def found(row: int) -> tuple[int, int]:
        """The file of a record, and the byte where it starts."""
        file, number = locate(ends, row)
        return file, starts[file][number]

    def content(row: int) -> bytes:
        file, start = found(row)
        with paths[file].open("rb") as opened:
            if os.fstat(opened.fileno()).st_mtime_ns != written[file]:
                raise ValueError("its file has been written since the run started")
            opened.seek(start)
            if not whole[file]:
                return opened.readline().rstrip(b"\r\n")
            text = opened.read().removeprefix(codecs.BOM_UTF8)
        _check(text)
        return text

    def text(row: int) -> bytes:
        if _is_json(paths[found(row)[0]]):
            return _field(content(row), settings.columns.get("text", "text"))
        return content(row)

    def place(row: int) -> str:
        file, start = found(row)
        if whole[file]:
            return shown[file]
        with paths[file].open("rb") as lines:
            before = lines.read(start).count(b"\n")
        return f"{shown[file]}, line {before + 1}"

    def key(row: int) -> bytes:
        file, _ = found(row)
        return encoded(names[file]) if whole[file] else content(row)

    return Records(range(ends[-1]), lambda rows: [{"text": text(row)} for row in rows], place, key)


def _is_json(path: pathlib.Path) -> bool:
    """Whether a file holds JSON Lines. In a directory, a .json describes others and is not read."""
    return path.suffix.lower() in (*_JSON_LINES, ".json")


def _line_starts(path: pathlib.Path, shown: str) -> Sequence[int]:
    """Where each line that is not blank starts in a file."""
    starts, start = array.array("q"), 0
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                bom = codecs.BOM_UTF8 if not start and line.startswith(codecs.BOM_UTF8) else b""
                text = _check(line[len(bom) :])
                if "\r" in text.rstrip("\r\n"):
                    raise ValueError("it has line ends of old Macs; tr '\\r' '\\n' < FILE > NEW")
            except ValueError as error:
                raise SourceError(f"{shown}, line {number}, cannot be read: {error}") from error
            if text.strip():
                starts.append(start + len(bom))
            start += len(line)
    return starts


def _check(text: bytes) -> str:
    """Decodes text; raises ValueError unless it is UTF-8."""
    if b"\0" in text:
        raise ValueError("it is binary, or UTF-16; iconv -f UTF-16 -t UTF-8 FILE > NEW")
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        raise ValueError(
            f"its byte {error.start} is not UTF-8; convert it from the encoding it has, as by "
            "iconv -f WINDOWS-1252 -t UTF-8 FILE > NEW"
        ) from error


def _field(line: bytes, column: str) -> bytes:
    """The text in a line of JSON, which can hold half of a character."""
    try:
        record = json.loads(line)
    except ValueError as error:
        why = "has a comma too many" if _EXTRA_COMMA.search(line) else f"is no JSON ({error})"
        raise ValueError(
            f"it {why}; in JSON Lines, each line is one object, as jq -c '.[]' FILE > NEW writes "
            f"those of an array: {line[:100]!r}"
        ) from error
    text = record.get(column) if isinstance(record, dict) else None
    if not isinstance(text, str):
        raise ValueError(
            f"it is no JSON object with a string {column!r}; another field is given as "
            f"files:PATH?text=FIELD: {line[:100]!r}"
        )
    return text.encode(errors="surrogatepass")
