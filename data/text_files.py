"""Text files, and JSON Lines: one example per line, or one document per file.

    PATH.txt, PATH/*.txt       config.dataset.text=sentences: a record per line that is not empty;
                               documents: a record per file
    PATH.jsonl, PATH/*.jsonl   a record per line: an object with a string `text`; also .ndjson, or
                               one .json file

A directory's files belong to the splits that their folders or names say: test/a.txt, train.txt.
A single file of another suffix is text, too, unless it is a table or binary.
"""

import codecs
import functools
import itertools
import json
import os
import pathlib
import re
import urllib.parse
from collections.abc import Sequence
from typing import Any

import numpy as np

from data.path_data import BOXES, PathData, Settings, by_split
from data.sources import DatasetInfo, Records, SourceError, locate, reason
from data.storage import Tree

_JSON_LINES = (".jsonl", ".ndjson")
SUFFIXES = (".txt", *_JSON_LINES)

# Vocabularies, document lengths, and their checksums, which a run caches in text/ next to the data.
_CACHED = re.compile(
    r"(?:.*/)?(?:vocabulary-\d+|pieces)-[0-9a-f]{12}\.(?:json|model|npz)(?:\.sha256)?", re.S
)
# Half of a character in UTF-16, which JSON can hold, but UTF-8 and sentencepiece cannot.
_SURROGATE = re.compile("[\ud800-\udfff]")
_COMPRESSED = (".gz", ".bz2", ".xz", ".zst", ".zip")
_TABLE = re.compile(
    r"\.(?:(?:csv|tsv)(?:\.(?:gz|bz2|xz|zst|zip))?|xlsx?|ods|feather|parquet|arrow)$", re.I
)
_UTF16 = (b"\xff\xfe", b"\xfe\xff")  # how such a file starts
_SCAN_BYTES = 2**24
_MAX_NAMES = 5  # of fields, in a message
# Of a file or a line that show what it is; a JSON array may be one line of gigabytes.
_START_BYTES = 2**20
_LISTS = re.compile(rb'":\s*\[\s*\{')  # of objects
_COCO = re.compile(rb'"(?:bbox|category_id|file_name)"')


class _Lines(Records):
    """Records {'text': bytes or str}, one per line that is not empty.

    Args:
        shown: the names of the files in messages.
        paths: the files, of which `_is_json` tells those of JSON Lines.
        column: the field of a JSON object that holds the text.
    """

    def __init__(self, shown: list[str], paths: list[pathlib.Path], column: str):
        self._shown, self._paths, self._column = shown, paths, column
        self._starts = [_line_starts(path) for path in paths]
        self._ends = list(itertools.accumulate(map(len, self._starts)))

    def __len__(self) -> int:
        return self._ends[-1]

    def read(self, numbers: Sequence[int]) -> list[dict[str, Any]]:
        return [{"text": self._text(*self._locate(number))} for number in numbers]

    def place(self, number: int) -> str:
        file, start = self._locate(number)
        with self._paths[file].open("rb") as lines:
            before = lines.read(start).count(b"\n")
        return f"{self._shown[file]}, line {before + 1}"

    def _locate(self, number: int) -> tuple[int, int]:
        """The file of a line, and the byte where it starts."""
        file, line = locate(self._ends, number)
        return file, int(self._starts[file][line])

    def _text(self, file: int, start: int) -> bytes | str:
        path = self._paths[file]
        with path.open("rb") as lines:
            lines.seek(start)
            line = lines.readline()
        if not line:
            raise ValueError("the file has become shorter since the run started")
        if not _is_json(path):
            return line.rstrip(b"\r\n")
        try:
            record = json.loads(line.rstrip())
        except json.JSONDecodeError as error:  # its text counts lines from the start of this one
            raise ValueError(
                f"it is not a JSON object on one line ({error.msg}, column {error.colno})"
            ) from error
        text = record.get(self._column) if isinstance(record, dict) else None
        if not isinstance(text, str):
            raise ValueError(f"it is no JSON object with a string {self._column!r}")
        # Bytes that are not UTF-8 are allowed, as in plain text.
        return text.encode(errors="surrogatepass") if _SURROGATE.search(text) else text


class _Documents(Records):
    """Records {'text': bytes}, one per file."""

    def __init__(self, shown: list[str], paths: list[pathlib.Path]):
        self._shown, self._paths = shown, paths

    def __len__(self) -> int:
        return len(self._paths)

    def read(self, numbers: Sequence[int]) -> list[dict[str, Any]]:
        return [{"text": self._paths[number].read_bytes()} for number in numbers]

    def place(self, number: int) -> str:
        return self._shown[number]


def open_tree(tree: Tree, settings: Settings) -> PathData:
    """The text in a file or below a directory.

    Raises:
        SourceError: there is no text.
    """
    names = [name for name in tree.names if name.lower().endswith(SUFFIXES)]
    given = [name for name in tree.names if not _CACHED.fullmatch(name)]
    if tables := [] if names else [name for name in given if converted_table(name)]:
        whole = os.path.basename(settings.path) == tables[0]
        path = settings.path if whole else f"{settings.path.rstrip('/')}/{tables[0]}"
        raise SourceError(
            f"{tree.path(tables[0])} is a table, whose header and columns would all be text; "
            f"allowed: {converted_table(path)}"
        )
    if len(given) == 1 and not given[0].endswith(_COMPRESSED):
        names = given  # whatever its suffix
    if not names:
        raise SourceError(
            f"{tree.root} has no text files ({', '.join(SUFFIXES)}); give a text file, or a "
            "directory of them that are not compressed"
        )
    splits = {
        split: functools.cache(functools.partial(_records, tree, files, settings))
        for split, files in by_split(names).items()
    }
    info = DatasetInfo(settings.name, "text", tree.only(names).fingerprint())
    return PathData(splits, info)


def converted_table(path: str) -> str:
    """What to give for a table in place of files:PATH; '' for a file that is no table."""
    if not (match := _TABLE.search(path)):
        return ""
    kind = match[0].lower().split(".")[1]
    if kind in ("parquet", "arrow"):
        return f"hf:{path}"
    read = {
        "csv": f"read_csv({path!r})",
        "tsv": f"read_csv({path!r}, sep='\\t')",
        "feather": f"read_feather({path!r})",
    }.get(kind, f"read_excel({path!r})")
    lines = f"{path[: match.start()]}.jsonl"
    return (
        f"'files:{lines}?text=COLUMN', which pandas.{read}.to_json({lines!r}, "
        "orient='records', lines=True) writes"
    )


def _records(tree: Tree, names: list[str], settings: Settings) -> Records:
    shown = [tree.path(name) for name in names]
    paths = [tree.local(name, settings.cache_dir) for name in names]
    if settings.text == "documents" and len(set(map(_is_json, paths))) > 1:
        raise SourceError(
            f"{tree.root} holds text and JSON Lines; with config.dataset.text=documents, where a "
            "text file is one document and a JSON Lines file holds many, give one kind"
        )
    if settings.columns and not any(map(_is_json, paths)):
        raise SourceError(
            f"config.dataset.name is {settings.name!r}, but {shown[0]} is plain text without "
            "columns; end the name before the question mark, or rename JSON Lines to .jsonl"
        )
    try:
        for name, path in zip(shown, paths, strict=True):
            _check_start(name, path, settings)
        if settings.text == "documents" and not _is_json(paths[0]):
            return _Documents(shown, paths)
        return _Lines(shown, paths, _column(settings))
    except OSError as error:
        raise SourceError(f"{error.filename} cannot be used ({reason(error)})") from error


def _column(settings: Settings) -> str:
    return settings.columns.get("text", "text")


def _check_start(shown: str, path: pathlib.Path, settings: Settings) -> None:
    """Raises SourceError if the start of a file shows that all of it is of another kind."""
    with path.open("rb") as file:
        start = file.read(2)
        if start in _UTF16:
            raise SourceError(f"{shown} is UTF-16; convert it to UTF-8: iconv -f UTF-16 -t UTF-8")
        file.seek(0)
        if not _is_json(path):
            if path.suffix.lower() not in SUFFIXES and b"\0" in file.read(_START_BYTES):
                raise SourceError(f"{shown} is a binary file; give a text file, or JSON Lines")
            return
        lines = iter(functools.partial(file.readline, _START_BYTES), b"")
        first = next((line for line in lines if not line.isspace()), b"")
        if problem := _not_lines(first, _column(settings)):
            file.seek(0)
            raise SourceError(
                f"{shown} {problem}; allowed: one JSON object per line, as "
                "pandas.DataFrame.to_json(FILE, orient='records', lines=True) writes them"
                f"{BOXES * bool(_COCO.search(file.read(_START_BYTES)))}"
            )
        _check_fields(shown, first, settings)


def _not_lines(line: bytes, column: str) -> str:
    """What a file of JSON has in place of JSON Lines, by its first line; '' if nothing else."""
    content, complete = line.removeprefix(codecs.BOM_UTF8).strip(), len(line) < _START_BYTES
    if content[:1] == b"[":
        return "contains a JSON array"
    if content[:1] == b"{" and content[-1:] in b"{[," and complete:
        return "contains one JSON object on several lines"
    named = json.dumps(column).encode() in line or f'"{column}"'.encode(errors="replace") in line
    if named or not _LISTS.search(line):
        return ""
    if not complete:  # its other fields are not known yet
        return "starts with a long JSON object of boxes" if _COCO.search(line) else ""
    if not _strings(line):
        return f"starts with a JSON object that has lists, but no field {column!r}"
    return ""


def _check_fields(shown: str, line: bytes, settings: Settings) -> None:
    """Raises SourceError if the first object lacks the field of the text, but has other strings."""
    strings = _strings(line, unless=_column(settings))
    if strings:
        names = [*map(repr, strings[:_MAX_NAMES]), *["..."] * (len(strings) > _MAX_NAMES)]
        raise SourceError(
            f"the first object of {shown} has no field {_column(settings)!r}, but the strings "
            f"{', '.join(names)}; name one in config.dataset.name, as in "
            f"'files:{settings.path}?text={urllib.parse.quote(strings[0], safe='')}'"
        )


def _strings(line: bytes, unless: str = "") -> list[str]:
    """The names of the strings in a JSON object; none if it has a field `unless`, or is damaged."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return []  # reading the record reports it
    if not isinstance(record, dict) or unless in record:
        return []
    names = [name for name, value in record.items() if isinstance(value, str)]
    return [name for name in names if not _SURROGATE.search(name)]


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
