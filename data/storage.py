"""Files of own data, on a file system or in a bucket through fsspec, and what is kept beside them.

fsspec's drivers are packages of their own: s3fs for s3://, gcsfs for gs://.
"""

import dataclasses
import functools
import hashlib
import json
import os
import pathlib
import re
from collections.abc import Callable, Sequence
from typing import Any

import fsspec

from data.sources import SourceError, fingerprint, reading
from runs import cli, records

_MAX_STAMPED = 10_000  # a tenth of a second

# Directories of operating systems and storage servers, which hold copies and thumbnails of files.
_OF_SYSTEMS = {"@eadir", "#recycle", "#snapshot", "$recycle.bin", "system volume information"}
_OF_SYSTEMS |= {"lost+found", "__macosx"}


def encoded(name: str) -> bytes:
    """A file's name as its bytes, which are not always text."""
    return name.encode(errors="surrogateescape")


def is_url(path: str) -> bool:
    return bool(re.match(r"[A-Za-z][A-Za-z0-9+.-]+://", path))


@dataclasses.dataclass(frozen=True)
class Tree:
    """A directory, or a file in it.

    Attributes:
        root: the directory, as a path or URL without a slash at its end.
        names: of all files, relative to `root`, sorted. Files and directories whose names start
            with a dot, and those of systems, are left out.
        cache_dir: where copies of a bucket's files, and what is computed from files, is kept; ''
            keeps it in .cache in `root`.
        is_file: whether a file was given, not a directory.
    """

    root: str
    names: list[str]
    cache_dir: str = ""
    is_file: bool = False

    def path(self, name: str) -> str:
        return f"{self.root}/{name}"

    def stamp(self) -> list[int]:
        """What changes if a file on a file system is added, removed, or, unless there are very
        many, written."""
        if is_url(self.root):
            return []
        places = set() if self.is_file else set(map(os.path.dirname, self.names))
        places.update(self.names if len(self.names) <= _MAX_STAMPED else [])
        try:
            return [os.stat(self.path(name)).st_ctime_ns for name in sorted(places)]
        except OSError:
            return [-1]  # one is gone

    def read(self, names: Sequence[str]) -> list[bytes]:
        """The content of files; those in a bucket are fetched concurrently."""
        if is_url(self.root):
            system, root = fsspec.core.url_to_fs(self.root)
            paths = [f"{root}/{name}" for name in names]
            return system.cat_ranges(paths, None, None, on_error="raise")
        return [pathlib.Path(self.root, name).read_bytes() for name in names]

    def local(self, name: str) -> pathlib.Path:
        """A file on a file system: itself, or its copy in `cache_dir`, which is made once.

        Raises:
            SourceError: there is no `cache_dir` for a copy, or the file cannot be copied or read.
        """
        path = pathlib.Path(self.cache() if is_url(self.root) else self.root, name)
        with reading(self.path(name)):
            if is_url(self.root):
                system, root = fsspec.core.url_to_fs(self.root)  # exact names, not patterns
                options = {"cache_storage": str(path.parent), "same_names": True}
                options |= {"check_files": True, "expiry_time": None}
                copies = fsspec.filesystem("filecache", fs=system, **options)
                copies.open(f"{root}/{name}").close()
            path.stat()
        return path

    def cache(self) -> pathlib.Path:
        """The directory of what is kept of these files; raises SourceError for those in a bucket
        without a `cache_dir`."""
        if not is_url(self.root):
            return cli.expanded(self.cache_dir or f"{self.root}/.cache")
        if not self.cache_dir:
            raise SourceError(
                f"the files of {self.root} are copied before they are read; give a directory for "
                "the copies as config.dataset.cache_dir"
            )
        hashed = fingerprint(encoded(self.root))
        return cli.expanded(self.cache_dir) / f"{self.root.rpartition('/')[2]}-{hashed}"

    def fingerprint(self, names: Sequence[str]) -> str:
        """A hash of the names and the content of files."""
        parts = [encoded(f"{name}\0") for name in names] + [d.encode() for d in self.digests(names)]
        return fingerprint(*parts)

    def digests(self, names: Sequence[str]) -> list[str]:
        """A hash of the content of each file. They are kept until one of them is written."""
        paths = [self.local(name) for name in names]
        make = functools.partial(_digests, paths)
        settings = {"files": list(map(str, paths)), "written": written(paths)}
        try:
            return json.loads(cached(self.cache(), "digests.json", settings, make))
        except (OSError, cli.InputError):  # data that cannot be written to are hashed each time
            return json.loads(make())


def tree(path: str, cache_dir: str = "") -> Tree:
    """The files below a directory, or one file.

    Raises:
        SourceError: there is none, or it cannot be read.
    """
    path = path.rstrip("/") or path
    names = _in_bucket(path) if is_url(path) else _on_disk(path)
    if names == [""]:
        root, name = os.path.split(path)
        return Tree(root or ".", [name], cache_dir, is_file=True)
    names = sorted(name for name in names if all(map(_is_users, name.split("/"))))
    if not names:
        raise SourceError(f"there is no file or directory {path}; correct the path")
    return Tree(path, names, cache_dir)


def _is_users(name: str) -> bool:
    return name[:1] not in ("", ".") and name.lower() not in _OF_SYSTEMS


def _in_bucket(url: str) -> list[str]:
    """The names of all files below a URL; '' is that of the file itself."""
    with reading(url):  # a missing driver says what to install
        system, root = fsspec.core.url_to_fs(url)
        found: list[str] = system.find(root)
    return [path.removeprefix(root).removeprefix("/") for path in found]


def _on_disk(path: str) -> list[str]:
    """The names of all files below a directory, also through links; '' is that of a file."""
    if os.path.isfile(path):
        return [""]
    names = []
    for directory, folders, files in os.walk(path, followlinks=True):
        folders[:] = sorted(filter(_is_users, folders))
        for folder in folders:
            link = pathlib.Path(directory, folder).absolute()
            if link.is_symlink() and link.resolve() in [above.resolve() for above in link.parents]:
                raise SourceError(f"{link} is a link to a directory that contains it; remove it")
        start = os.path.relpath(directory, path)
        names += [os.path.normpath(os.path.join(start, name)) for name in files]
    return names


def _digests(paths: Sequence[pathlib.Path]) -> bytes:
    digests = []
    for path in paths:
        with path.open("rb") as file:
            digests.append(hashlib.file_digest(file, "sha256").hexdigest())
    return json.dumps(digests).encode()


def written(paths: Sequence[pathlib.Path]) -> list[Any]:
    """What changes whenever one of some files is written."""
    stats = [path.stat() for path in paths]
    return [(s.st_size, s.st_mtime_ns, s.st_ctime_ns, s.st_ino) for s in stats]


def cached(
    directory: pathlib.Path | None, name: str, settings: dict[str, Any], make: Callable[[], bytes]
) -> bytes:
    """What `make` computes, kept in a file of `directory`; None keeps nothing.

    Processes that compute it at the same time compute the same; each file appears whole. Its first
    line is a checksum.

    Args:
        name: the file's name; a hash of `settings` is added to it.
        settings: everything that the content depends on.

    Raises:
        SourceError: the file is damaged.
        OSError: the directory is not writable.
    """
    if directory is None:
        return make()
    hashed = fingerprint(json.dumps(settings, sort_keys=True).encode())
    file = pathlib.PurePath(name)
    path = directory / f"{file.stem}-{hashed}{file.suffix}"
    if not path.exists():
        content = make()
        path.parent.mkdir(parents=True, exist_ok=True)
        checksum = hashlib.sha256(content).hexdigest().encode()
        records.write_bytes(path, checksum + b"\n" + content)
    checksum, _, content = path.read_bytes().partition(b"\n")
    if hashlib.sha256(content).hexdigest().encode() != checksum:
        raise SourceError(f"{path} is damaged; delete it, and it is made again from the data set")
    return content
