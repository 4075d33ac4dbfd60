"""Text files, and JSON Lines: one example per line, or one document per file.

    PATH.txt, PATH/*.txt       config.dataset.text=sentences: a record per line that is not empty;
                               documents: a record per file
    PATH.jsonl, PATH/*.jsonl   a record per line: an object with a string `text`; also .ndjson, or
                               one .json file

A directory's files belong to the splits that their folders or names say: test/a.txt, train.txt.
A single file of another suffix is text, too, unless it is a table or binary.
"""

import functools
import itertools
import json
import pathlib

import numpy as np

from data.path_data import PathData, Settings, by_split
from data.sources import DatasetInfo, Records, SourceError, locate
from data.storage import Tree

_JSON_LINES = (".jsonl", ".ndjson")
SUFFIXES = (".txt", *_JSON_LINES)
_TABLES = (".csv", ".tsv", ".xls", ".xlsx", ".ods", ".parquet", ".arrow", ".feather")

_SCAN_BYTES = 2**24
_START_BYTES = 2**20  # in which text has no zero byte


def open_tree(tree: Tree, settings: Settings) -> PathData:
    """The text in a file or below a directory.

    Raises:
        SourceError: there is no text.
    """
    names = [n for n in tree.names if tree.is_file or n.lower().endswith(SUFFIXES)]
    if not names or names[0].lower().endswith(_TABLES):
        raise SourceError(
            f"{settings.path} has no text ({', '.join(SUFFIXES)}); a table is written as JSON Lines"
            " first, by pandas.DataFrame.to_json(FILE, orient='records', lines=True)"
        )
    splits = {
        split: functools.cache(functools.partial(_records, tree, files, settings))
        for split, files in by_split(names).items()
    }
    return PathData(splits, DatasetInfo(settings.name, "text", tree.fingerprint(names)))


def _records(tree: Tree, names: list[str], settings: Settings) -> Records:
    """Records {'text': bytes}, one per line that is not empty; of a file of plain text that is a
    document, the whole."""
    shown = [tree.path(name) for name in names]
    paths = [tree.local(name, settings.cache_dir) for name in names]
    whole = [settings.text == "documents" and not _is_json(path) for path in paths]
    try:
        for name, path in zip(shown, paths, strict=True):
            with path.open("rb") as file:
                if b"\0" in file.read(_START_BYTES):
                    raise SourceError(f"{name} is binary, or UTF-16; give text in UTF-8")
        starts = [[0] if w else _line_starts(path) for w, path in zip(whole, paths, strict=True)]
    except OSError as error:
        raise SourceError(f"{error.filename} cannot be read ({error.strerror})") from error
    ends = list(itertools.accumulate(map(len, starts)))

    def found(row: int) -> tuple[int, int]:
        """The file of a record, and the byte where it starts."""
        file, number = locate(ends, row)
        return file, int(starts[file][number])

    def content(row: int) -> bytes:
        file, start = found(row)
        with paths[file].open("rb") as opened:
            opened.seek(start)
            if whole[file]:
                return opened.read()
            line = opened.readline()
        if not line:
            raise ValueError("the file has become shorter since the run started")
        return line.rstrip(b"\r\n")

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
        return names[file].encode(errors="surrogateescape") if whole[file] else content(row)

    return Records(range(ends[-1]), lambda rows: [{"text": text(row)} for row in rows], place, key)


def _field(line: bytes, column: str) -> bytes:
    """The text in a line of JSON, which can hold half of a character."""
    record = json.loads(line)
    text = record.get(column) if isinstance(record, dict) else None
    if not isinstance(text, str):
        raise ValueError(
            f"it is no JSON object with a string {column!r}; another field is given as "
            f"files:PATH?text=FIELD: {line[:100]!r}"
        )
    return text.encode(errors="surrogatepass")


def _is_json(path: pathlib.Path) -> bool:
    """Whether a file holds JSON Lines. In a directory, a .json describes others and is not read."""
    return path.suffix.lower() in (*_JSON_LINES, ".json")


def _line_starts(path: pathlib.Path) -> np.ndarray:
    """Where each line that is not empty starts in a file, int64."""
    size = path.stat().st_size
    if not size:
        return np.zeros(0, np.int64)
    content = np.memmap(path, np.uint8, "r")
    ends = [
        np.flatnonzero(content[start : start + _SCAN_BYTES] == ord("\n")) + start
        for start in range(0, size, _SCAN_BYTES)
    ]
    ends_N = np.concatenate([*ends, [size]])
    starts_N = np.concatenate([[0], ends_N[:-1] + 1])
    short_n = np.flatnonzero(ends_N - starts_N == 1)
    blank_N = ends_N == starts_N
    blank_N[short_n] = content[starts_N[short_n]] == ord("\r")
    return starts_N[~blank_N]
