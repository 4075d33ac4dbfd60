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
import pathlib
from collections.abc import Sequence

from data.file_source import Records, locate
from data.path_data import PathData, Settings, by_split, check_contents
from data.sources import DatasetInfo, SourceError
from data.storage import Tree, encoded, written

_JSON_LINES = (".jsonl", ".ndjson")
SUFFIXES = (".txt", *_JSON_LINES)
_PACKED = (".gz", ".bz2", ".xz", ".zst", ".zip")
_TABLES = (".csv", ".tsv", ".xls", ".xlsx", ".ods", ".parquet", ".arrow", ".feather")


def open_tree(tree: Tree, settings: Settings) -> PathData:
    """The text in a file or below a directory.

    Raises:
        SourceError: there is no text.
    """
    names = [n for n in tree.names if tree.is_file or n.lower().endswith(SUFFIXES)]
    packed = [name for name in tree.names if name.lower().endswith(_PACKED)]
    if packed or not names or names[0].lower().endswith(_TABLES):
        raise SourceError(
            f"{tree.path((packed or tree.names)[0])} is no text ({', '.join(SUFFIXES)}); unpack "
            "what is compressed, and write tables as JSON Lines, as by "
            "pandas.read_csv(FILE).to_json(NEW, orient='records', lines=True)"
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
    paths = [tree.local(name) for name in names]
    is_json = [path.suffix.lower() in (*_JSON_LINES, ".json") for path in paths]
    whole = [settings.text == "documents" and not json_lines for json_lines in is_json]
    stamps = [written([path]) for path in paths]
    starts = [
        [0] if document else _line_starts(path, tree.path(name))
        for document, path, name in zip(whole, paths, names, strict=True)
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
        if written([paths[file]]) != stamps[file]:
            raise ValueError("its file has been written since the run started")
        with paths[file].open("rb") as opened:
            opened.seek(start)
            if not whole[file]:
                return opened.readline().rstrip(b"\r\n")
            text = opened.read().removeprefix(codecs.BOM_UTF8)
        _decoded(text)
        return text

    def text(row: int) -> bytes:
        line, column = content(row), settings.columns.get("text", "text")
        return _field(line, column) if is_json[found(row)[0]] else line

    def place(row: int) -> str:
        file, start = found(row)
        if whole[file]:
            return tree.path(names[file])
        with paths[file].open("rb") as lines:
            before = lines.read(start).count(b"\n")
        return f"{tree.path(names[file])}, line {before + 1}"

    def key(row: int) -> bytes:
        file, _ = found(row)
        return encoded(names[file]) if whole[file] else content(row)

    return Records(range(ends[-1]), lambda rows: [{"text": text(row)} for row in rows], place, key)


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
    try:
        if b"\0" not in text:  # which UTF-16 and binary files have
            return text.decode()
    except UnicodeDecodeError:
        pass
    raise ValueError(
        "it is not UTF-8; convert it from the encoding that it has, such as WINDOWS-1252 or "
        "UTF-16, by iconv -f ENCODING -t UTF-8 FILE > NEW"
    )


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
